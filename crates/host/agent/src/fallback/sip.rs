//! SIP over a TLS connection, in whole messages. A task of its own reads and writes, so that nothing is lost when whoever
//! waits for a message is interrupted.

use std::{io, net::SocketAddr, time::Duration};

use sluicegate_sip::stream::{Framer, Item};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

use super::{Trust, link};

/// Messages that wait, each way.
const WAITING_MAX: usize = 64;
/// After so long without a message a keep-alive goes (RFC 5626 section 4.4.1).
const KEPT_ALIVE_AFTER: Duration = Duration::from_secs(60);
const CHUNK_LEN: usize = 16_384;

/// A connection to a frontend; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SipStream {
    pub(crate) local: SocketAddr,
    sender: mpsc::Sender<Vec<u8>>,
    received: mpsc::Receiver<Vec<u8>>,
    _tasks: JoinSet<()>,
}

impl SipStream {
    /// Connects to `frontend`.
    ///
    /// # Errors
    /// Those of the system and of TLS.
    pub(crate) async fn connect(interface: Option<&str>, frontend: SocketAddr, trust: &Trust) -> io::Result<Self> {
        let stream = link::connect(interface, frontend, trust).await?;
        let local = stream.get_ref().0.local_addr()?;
        let (reader, writer) = split(stream);
        let ((sender, to_send), (hear, received)) = (mpsc::channel(WAITING_MAX), mpsc::channel(WAITING_MAX));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = read(reader, hear).await;
        });
        tasks.spawn(async move {
            let _ = write(writer, to_send).await;
        });
        Ok(Self { local, sender, received, _tasks: tasks })
    }

    /// Sends a message; a frontend that reads nothing gets no more, and is given up by its silence.
    pub(crate) fn send(&self, message: Vec<u8>) {
        let _ = self.sender.try_send(message);
    }

    /// The next message.
    ///
    /// # Errors
    /// `ConnectionReset` once the connection has ended.
    pub(crate) async fn receive(&mut self) -> io::Result<Vec<u8>> {
        self.received.recv().await.ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }
}

async fn read(mut reader: impl AsyncRead + Unpin, hear: mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    let (mut framer, mut chunk) = (Framer::new(), vec![0; CHUNK_LEN]);
    loop {
        let len = reader.read(&mut chunk).await?;
        let mut rest = chunk.get(..len).filter(|read| !read.is_empty()).ok_or(io::ErrorKind::UnexpectedEof)?;
        loop {
            let (taken, message) = match framer.next(rest) {
                Ok(Some((taken, Item::Message(message)))) => (taken, Some(message.to_vec())),
                Ok(Some((taken, Item::Ping))) => (taken, None),
                Ok(None) => break,
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            };
            rest = rest.get(taken..).unwrap_or_default();
            if let Some(message) = message {
                hear.send(message).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
            }
        }
    }
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut to_send: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    loop {
        let message = match timeout(KEPT_ALIVE_AFTER, to_send.recv()).await {
            Ok(Some(message)) => message,
            Ok(None) => return writer.shutdown().await,
            Err(_) => b"\r\n\r\n".to_vec(),
        };
        writer.write_all(&message).await?;
        writer.flush().await?;
    }
}
