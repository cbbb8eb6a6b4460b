//! One connection: its proof, and then packets both ways.

use crate::packets::{
    Command, Commander,
    tunnels::{ANSWERS_MAX, Arrived},
};
use sluicegate_datapath::Wake;
use sluicegate_grant::{
    GrantId,
    tunnel::{self, EXPORT_LABEL, EXPORT_LEN, HELLO_LEN, PACKET_LEN_MAX, PROOF_LEN},
};
use std::{io, net::Ipv4Addr, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, split},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Packets written together.
const TOGETHER_MAX: usize = 32;
/// An agent that takes nothing for so long is cut off.
const UNREAD_MAX: Duration = Duration::from_secs(30);

/// A connection whose agent has proved to hold a grant's key.
pub(super) struct Tunnel {
    stream: TlsStream<TcpStream>,
    address: Ipv4Addr,
    answers: mpsc::Receiver<Vec<u8>>,
}

/// Takes the TLS handshake and the proof, and answers it.
///
/// # Errors
/// Those of TLS and the connection; `PermissionDenied` for what is no proof of a grant that is open.
pub(super) async fn prove(acceptor: TlsAcceptor, stream: TcpStream, commander: &Commander) -> io::Result<Tunnel> {
    let mut stream = acceptor.accept(stream).await?;
    let mut hello = [0; HELLO_LEN];
    stream.read_exact(&mut hello).await?;
    let exported = stream.get_ref().1.export_keying_material([0; EXPORT_LEN], EXPORT_LABEL, None);
    let exported = exported.map_err(io::Error::other)?;
    let (id, proof) = hello.split_last_chunk::<PROOF_LEN>().ok_or(io::ErrorKind::InvalidData)?;
    let id = GrantId(id.try_into().map_err(|_| io::ErrorKind::InvalidData)?);
    let sealed = [&exported[..], proof].concat();
    let (sender, answers) = mpsc::channel(ANSWERS_MAX);
    let asked = commander.call(|answer| Command::Tunnel { id, sealed, answers: sender, answer }).await;
    let address = asked.map_err(io::Error::other)?.ok_or(io::ErrorKind::PermissionDenied)?;
    stream.write_all(&tunnel::answer(address)).await?;
    stream.flush().await?;
    Ok(Tunnel { stream, address, answers })
}

impl Tunnel {
    /// Carries packets until the connection or the grant ends.
    pub(super) async fn carry(self, came: mpsc::Sender<Arrived>, wake: &Wake) -> io::Result<()> {
        let (reader, writer) = split(self.stream);
        // The other end is dropped with the grant, and the connection is with this.
        tokio::select! {
            ended = read(BufReader::new(reader), self.address, (came, wake)) => ended,
            ended = write(writer, self.answers) => ended,
        }
    }
}

/// Hands on what comes to the packet thread, which is woken for it.
async fn read(
    mut reader: impl AsyncRead + Unpin,
    from: Ipv4Addr,
    (came, wake): (mpsc::Sender<Arrived>, &Wake),
) -> io::Result<()> {
    loop {
        let len = usize::from(reader.read_u16().await?);
        if len > PACKET_LEN_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut packet = vec![0; len];
        reader.read_exact(&mut packet).await?;
        came.send((from, packet)).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        wake.wake();
    }
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut answers: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    let (mut packets, mut bytes) = (Vec::new(), Vec::new());
    while answers.recv_many(&mut packets, TOGETHER_MAX).await > 0 {
        bytes.clear();
        packets.drain(..).for_each(|packet| tunnel::put(&packet, &mut bytes));
        let written = async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        };
        timeout(UNREAD_MAX, written).await.map_err(|_| io::ErrorKind::TimedOut)??;
    }
    Ok(())
}
