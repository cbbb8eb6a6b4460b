//! Packets over TLS to a gate. One tunnel belongs to one grant: whoever has its session key proves that, for this one TLS
//! connection, and gets an address of the gate's to send from. What passes is held to the grant like any packet.

use std::{
    collections::HashMap,
    fmt, io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluicegate_grant::{
    GrantId,
    tunnel::{self, ANSWER_LEN, PACKET_LEN_MAX},
};
use sluicegate_wire::{IpProtocol, build, ip::Summary, ipv4, udp};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

use super::{CONNECT_MAX, Trust, link, stack::Stack, stack::Stream};

/// Packets that wait to be sent.
const WAITING_MAX: usize = 256;
/// Datagrams that wait for one of their receivers.
const DATAGRAMS_MAX: usize = 256;
/// Sockets for datagrams in one tunnel.
const SOCKETS_MAX: usize = 4_096;
/// Where ports of sockets begin.
const PORT_FIRST: u16 = 49_152;

/// A way for one grant's packets; it ends when this is dropped.
pub(crate) struct Tunnel {
    /// The address that its packets come from.
    pub(crate) address: Ipv4Addr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    to_send: mpsc::Sender<Vec<u8>>,
    stack: Arc<Stack>,
    receivers: Mutex<Receivers>,
}

#[derive(Debug, Default)]
struct Receivers {
    by_port: HashMap<u16, mpsc::Sender<(SocketAddr, Vec<u8>)>>,
    next: u16,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Connects to the gate at `to` and proves to hold the key of `grant`: `prove` makes the proof for what the TLS connection
    /// exports.
    ///
    /// # Errors
    /// Those of the system and of TLS; `PermissionDenied` if the gate does not take the proof.
    pub(crate) async fn open(
        interface: Option<&str>,
        (to, trust): (SocketAddr, &Trust),
        grant: GrantId,
        prove: impl FnOnce(&[u8]) -> [u8; tunnel::PROOF_LEN],
    ) -> io::Result<Self> {
        let mut stream = link::connect(interface, to, trust).await?;
        let exported = stream.get_ref().1.export_keying_material([0; tunnel::EXPORT_LEN], tunnel::EXPORT_LABEL, None);
        let exported = exported.map_err(io::Error::other)?;
        let hello = [&grant.0[..], &prove(&exported)].concat();
        let answered = async {
            stream.write_all(&hello).await?;
            stream.flush().await?;
            let mut answer = [0; ANSWER_LEN];
            stream.read_exact(&mut answer).await?;
            Ok::<_, io::Error>(answer)
        };
        let answer = timeout(CONNECT_MAX, answered).await.map_err(|_| io::ErrorKind::TimedOut)?;
        let address = answer.ok().and_then(tunnel::address).ok_or_else(|| {
            io::Error::new(io::ErrorKind::PermissionDenied, "the gate does not take this grant's proof")
        })?;
        let (reader, writer) = split(stream);
        let (to_send, waiting) = mpsc::channel(WAITING_MAX);
        let stack = Stack::new(address, to_send.clone());
        let shared = Arc::new(Shared { to_send, stack: Arc::clone(&stack), receivers: Mutex::default() });
        let mut tasks = JoinSet::new();
        let reading = Arc::clone(&shared);
        tasks.spawn(async move {
            let _ = read(reader, &reading).await;
            reading.end();
        });
        let writing = Arc::clone(&shared);
        tasks.spawn(async move {
            let _ = write(writer, waiting).await;
            writing.end();
        });
        tasks.spawn(async move { stack.run().await });
        Ok(Self { address, shared, _tasks: tasks })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.stack.has_ended()
    }

    /// A TCP connection through it.
    ///
    /// # Errors
    /// `ConnectionRefused`, or that the tunnel has ended or has all the connections that it may.
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<Stream> {
        let SocketAddr::V4(to) = to else { return Err(only_v4()) };
        Stack::connect(&self.shared.stack, to).await
    }

    /// A socket for datagrams.
    ///
    /// # Errors
    /// If there are too many.
    pub(crate) fn bind(&self) -> io::Result<Datagrams> {
        let (hear, received) = mpsc::channel(DATAGRAMS_MAX);
        let mut receivers = lock(&self.shared.receivers);
        receivers.by_port.retain(|_, hear| !hear.is_closed());
        if receivers.by_port.len() >= SOCKETS_MAX || self.has_ended() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let port = loop {
            receivers.next = receivers.next.checked_add(1).unwrap_or(PORT_FIRST).max(PORT_FIRST);
            if !receivers.by_port.contains_key(&receivers.next) {
                break receivers.next;
            }
        };
        receivers.by_port.insert(port, hear);
        let local = SocketAddrV4::new(self.address, port);
        Ok(Datagrams { local, to_send: self.shared.to_send.clone(), received: tokio::sync::Mutex::new(received) })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// A socket for datagrams in a tunnel.
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) local: SocketAddrV4,
    to_send: mpsc::Sender<Vec<u8>>,
    received: tokio::sync::Mutex<mpsc::Receiver<(SocketAddr, Vec<u8>)>>,
}

impl Datagrams {
    /// Sends a datagram; one that finds no room is lost.
    ///
    /// # Errors
    /// That it is too long, or the tunnel has ended.
    pub(crate) fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<()> {
        if !to.is_ipv4() {
            return Err(only_v4());
        }
        if payload.len() + ipv4::HEADER_LEN + udp::HEADER_LEN > PACKET_LEN_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let packet = build::datagram((*self.local.ip(), self.local.port()), (to.ip(), to.port()), payload);
        match self.to_send.try_send(packet) {
            Err(mpsc::error::TrySendError::Closed(_)) => Err(io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(()),
        }
    }

    /// The next datagram: its length in `buffer`, and whose it is.
    ///
    /// # Errors
    /// That the tunnel has ended.
    pub(crate) async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.received.lock().await.recv().await;
        let (from, payload) = received.ok_or(io::ErrorKind::ConnectionAborted)?;
        let len = payload.len().min(buffer.len());
        buffer[..len].copy_from_slice(&payload[..len]);
        Ok((len, from))
    }
}

impl Shared {
    fn end(&self) {
        self.stack.end();
        lock(&self.receivers).by_port.clear();
    }

    fn heard(&self, packet: Vec<u8>) {
        let Some((protocol, from, port, payload)) = datagram(&packet) else { return };
        if protocol == IpProtocol::TCP {
            return self.stack.heard(packet);
        }
        let hear = lock(&self.receivers).by_port.get(&port).cloned();
        if let Some(hear) = hear {
            // What finds no room is lost, as datagrams are.
            let _ = hear.try_send((from, payload.to_vec()));
        }
    }
}

/// What a packet is, and of a datagram who sent it, to which port, and what.
fn datagram(packet: &[u8]) -> Option<(IpProtocol, SocketAddr, u16, &[u8])> {
    let ip = Summary::parse(packet).ok()?;
    if ip.protocol == IpProtocol::TCP {
        return Some((ip.protocol, (ip.src, 0).into(), 0, &[]));
    }
    let is_whole = ip.protocol == IpProtocol::UDP && ip.fragment.is_none();
    let transport = is_whole.then(|| ip.transport(packet)).filter(|transport| transport.len() >= udp::HEADER_LEN)?;
    let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
    let len = usize::from(port(4)).min(transport.len());
    Some((ip.protocol, (ip.src, port(0)).into(), port(2), transport.get(udp::HEADER_LEN..len)?))
}

async fn read(mut reader: impl AsyncRead + Unpin, shared: &Shared) -> io::Result<()> {
    loop {
        let len = usize::from(reader.read_u16().await?);
        if len > PACKET_LEN_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut packet = vec![0; len];
        reader.read_exact(&mut packet).await?;
        shared.heard(packet);
    }
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut waiting: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    let (mut packets, mut bytes) = (Vec::new(), Vec::new());
    while waiting.recv_many(&mut packets, 32).await > 0 {
        bytes.clear();
        packets.drain(..).for_each(|packet| tunnel::put(&packet, &mut bytes));
        writer.write_all(&bytes).await?;
        writer.flush().await?;
    }
    Ok(())
}

fn only_v4() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "a tunnel carries IPv4 only")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
