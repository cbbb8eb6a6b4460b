//! What another frontend sends to this one: sealed to it and signed by its site, so that whoever brings it need not be
//! known. What stands in front of it is looked at before anything more is read.

use std::{io, time::Duration};

use sluicegate_signin::SEALED_HEAD_LEN;
use sluicegate_store::ISSUED_BYTES_MAX;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::server::TlsStream;

use crate::control::{Control, ControlError};

/// How long the rest may take.
const REST_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest refusal.
const REFUSAL_LEN_MAX: usize = 1_000;

/// A sender whose file is worth reading.
pub(super) struct Sender {
    stream: TlsStream<TcpStream>,
    /// What has been read of it.
    head: Vec<u8>,
    len: usize,
}

impl Sender {
    /// Reads what stands in front. `None`: it was refused.
    pub(super) async fn greet(mut stream: TlsStream<TcpStream>, control: &Control) -> io::Result<Option<Self>> {
        let len = usize::try_from(stream.read_u32().await?).unwrap_or(usize::MAX);
        let mut head = vec![0; SEALED_HEAD_LEN];
        stream.read_exact(&mut head).await?;
        let refusal = match control.awaits(&head) {
            Ok(()) if (SEALED_HEAD_LEN..=ISSUED_BYTES_MAX).contains(&len) => {
                return Ok(Some(Self { stream, head, len }));
            }
            Ok(()) => format!("{len} bytes are no file"),
            Err(error) => error.to_string(),
        };
        refuse(&mut stream, &refusal).await?;
        Ok(None)
    }

    /// Reads the rest and takes it.
    pub(super) async fn take(self, control: Control) -> io::Result<()> {
        let Self { mut stream, head: mut file, len } = self;
        let rest = u64::try_from(len - file.len()).unwrap_or_default();
        timeout(REST_TIMEOUT, (&mut stream).take(rest).read_to_end(&mut file)).await??;
        let taken = tokio::task::spawn_blocking(move || control.take(&file)).await.map_err(io::Error::other)?;
        match taken {
            Ok(loaded) => {
                tracing::info!(number = loaded.number, "has keys and users of the key holder's frontend");
                stream.write_all(&[&[0][..], &loaded.receipt].concat()).await?;
                stream.shutdown().await
            }
            Err(error) => {
                tracing::warn!(%error, "what the key holder's frontend sent is not taken");
                refuse(&mut stream, &error.to_string()).await
            }
        }
    }

    /// Another one is being taken.
    pub(super) async fn put_off(mut self) -> io::Result<()> {
        refuse(&mut self.stream, &ControlError::Busy.to_string()).await
    }
}

async fn refuse(stream: &mut TlsStream<TcpStream>, why: &str) -> io::Result<()> {
    let why = &why.as_bytes()[..why.len().min(REFUSAL_LEN_MAX)];
    stream.write_all(&[&[1], why].concat()).await?;
    stream.shutdown().await
}
