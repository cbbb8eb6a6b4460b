//! TCP in user space, for connections through a tunnel: the kernel has no part in them.

use std::{
    collections::VecDeque,
    fmt, io,
    net::{Ipv4Addr, SocketAddrV4},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use sluicegate_grant::tunnel::PACKET_LEN_MAX;
use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken},
    socket::tcp::{CongestionControl, Socket, SocketBuffer, State},
    time::{Duration as Span, Instant},
    wire::{HardwareAddress, IpAddress, IpCidr, IpListenEndpoint},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Notify, mpsc},
    time::{self, sleep},
};

use crate::account::random;

/// Connections in one tunnel.
const CONNECTIONS_MAX: usize = 256;
/// Bytes that one connection may have on its way, in each direction.
const WINDOW_LEN: usize = 256 * 1_024;
/// Packets that came and wait to be looked at; what finds no room is lost, and sent again by its sender.
const CAME_MAX: usize = 1_024;
/// How long a connection lives while nothing that it sent is answered.
const UNANSWERED_MAX: Span = Span::from_secs(60);
const PORT_FIRST: u16 = 32_768;
const PORT_LAST: u16 = 49_151;

/// The connections of one tunnel.
pub(super) struct Stack {
    state: Mutex<Inside>,
    /// There is something to do.
    due: Notify,
    began: time::Instant,
}

struct Inside {
    interface: Interface,
    sockets: SocketSet<'static>,
    queues: Queues,
    address: Ipv4Addr,
    port: u16,
    /// Closed by their programs, and not over yet.
    leaving: Vec<SocketHandle>,
    connections: usize,
    has_ended: bool,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack").finish_non_exhaustive()
    }
}

impl Stack {
    /// At `address`; what leaves goes to `to_send`.
    pub(super) fn new(address: Ipv4Addr, to_send: mpsc::Sender<Vec<u8>>) -> Arc<Self> {
        let mut queues = Queues { came: VecDeque::new(), to_send };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from_be_bytes(random());
        let mut interface = Interface::new(config, &mut queues, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let _ = addresses.push(IpCidr::new(IpAddress::Ipv4(address), 32));
        });
        let _ = interface.routes_mut().add_default_ipv4_route(address);
        let port = PORT_FIRST + u16::from_be_bytes(random()) % (PORT_LAST - PORT_FIRST);
        let sockets = SocketSet::new(Vec::new());
        let (leaving, connections, has_ended) = (Vec::new(), 0, false);
        let state = Inside { interface, sockets, queues, address, port, leaving, connections, has_ended };
        Arc::new(Self { state: Mutex::new(state), due: Notify::new(), began: time::Instant::now() })
    }

    /// Sends and repeats what is due, for ever.
    pub(super) async fn run(&self) {
        loop {
            let (wait, is_full) = self.turn();
            tokio::select! {
                () = self.due.notified() => {}
                () = sleep(wait) => {}
            }
            if is_full {
                // The tunnel takes no more: what is to be sent waits for it.
                let to_send = self.lock().queues.to_send.clone();
                let _ = to_send.reserve().await;
            }
        }
    }

    fn turn(&self) -> (Duration, bool) {
        let now = self.now();
        let mut state = self.lock();
        let Inside { interface, sockets, queues, leaving, connections, .. } = &mut *state;
        interface.poll(now, queues, sockets);
        leaving.retain(|handle| {
            let is_over = sockets.get::<Socket<'_>>(*handle).state() == State::Closed;
            if is_over {
                sockets.remove(*handle);
                *connections -= 1;
            }
            !is_over
        });
        let wait = interface.poll_delay(now, sockets).map_or(Duration::from_secs(1), Duration::from);
        (wait.clamp(Duration::from_millis(1), Duration::from_secs(1)), queues.to_send.capacity() == 0)
    }

    /// A packet came for one of the connections.
    pub(super) fn heard(&self, packet: Vec<u8>) {
        let mut state = self.lock();
        if state.queues.came.len() < CAME_MAX {
            state.queues.came.push_back(packet);
        }
        drop(state);
        self.due.notify_one();
    }

    /// The tunnel has ended, and all connections with it.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        for (_, socket) in state.sockets.iter_mut() {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            socket.abort();
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// A connection to `to`, once it stands.
    pub(super) async fn connect(this: &Arc<Self>, to: SocketAddrV4) -> io::Result<Stream> {
        let handle = this.start(to)?;
        let mut stream = Stream { stack: Arc::clone(this), handle };
        this.due.notify_one();
        std::future::poll_fn(|cx| stream.poll_open(cx)).await?;
        Ok(stream)
    }

    fn start(&self, to: SocketAddrV4) -> io::Result<SocketHandle> {
        let mut state = self.lock();
        if state.has_ended || state.connections >= CONNECTIONS_MAX {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let buffer = || SocketBuffer::new(vec![0; WINDOW_LEN]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_congestion_control(CongestionControl::Cubic);
        socket.set_timeout(Some(UNANSWERED_MAX));
        socket.set_nagle_enabled(false);
        state.port = if state.port >= PORT_LAST { PORT_FIRST } else { state.port + 1 };
        let local = IpListenEndpoint { addr: Some(IpAddress::Ipv4(state.address)), port: state.port };
        let remote = (IpAddress::Ipv4(*to.ip()), to.port());
        socket.connect(state.interface.context(), remote, local).map_err(io::Error::other)?;
        state.connections += 1;
        Ok(state.sockets.add(socket))
    }

    fn now(&self) -> Instant {
        Instant::from_micros(i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A TCP connection through a tunnel.
#[derive(Debug)]
pub(crate) struct Stream {
    stack: Arc<Stack>,
    handle: SocketHandle,
}

impl Stream {
    fn poll_open(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.stack.lock();
        let socket = state.sockets.get_mut::<Socket<'_>>(self.handle);
        match socket.state() {
            State::SynSent | State::SynReceived => {
                socket.register_send_waker(cx.waker());
                Poll::Pending
            }
            State::Closed => Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into())),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Ends it with a reset, and what waits is lost.
    pub(crate) fn reset(&self) {
        self.stack.lock().sockets.get_mut::<Socket<'_>>(self.handle).abort();
        self.stack.due.notify_one();
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.stack.lock();
        let socket = state.sockets.get_mut::<Socket<'_>>(self.handle);
        if socket.can_recv() {
            let len = socket.recv_slice(buffer.initialize_unfilled()).map_err(io::Error::other)?;
            buffer.advance(len);
            // The window may have opened.
            self.stack.due.notify_one();
            return Poll::Ready(Ok(()));
        }
        match socket.state() {
            State::Closed => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            _ if !socket.may_recv() => Poll::Ready(Ok(())),
            _ => {
                socket.register_recv_waker(cx.waker());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.stack.lock();
        let socket = state.sockets.get_mut::<Socket<'_>>(self.handle);
        if socket.can_send() {
            let len = socket.send_slice(bytes).map_err(io::Error::other)?;
            self.stack.due.notify_one();
            return Poll::Ready(Ok(len));
        }
        if !socket.may_send() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        socket.register_send_waker(cx.waker());
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stack.lock().sockets.get_mut::<Socket<'_>>(self.handle).close();
        self.stack.due.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.stack.lock();
        let socket = state.sockets.get_mut::<Socket<'_>>(self.handle);
        if socket.may_recv() || matches!(socket.state(), State::SynSent | State::SynReceived) {
            // Nobody reads what would come.
            socket.abort();
        } else {
            socket.close();
        }
        state.leaving.push(self.handle);
        drop(state);
        self.stack.due.notify_one();
    }
}

/// Packets between the connections and the tunnel.
struct Queues {
    came: VecDeque<Vec<u8>>,
    to_send: mpsc::Sender<Vec<u8>>,
}

struct Came(Vec<u8>);
struct Room<'q>(mpsc::Permit<'q, Vec<u8>>);

impl Device for Queues {
    type RxToken<'q> = Came;
    type TxToken<'q> = Room<'q>;

    fn receive(&mut self, _: Instant) -> Option<(Came, Room<'_>)> {
        let room = self.to_send.try_reserve().ok()?;
        Some((Came(self.came.pop_front()?), Room(room)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        self.to_send.try_reserve().ok().map(Room)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        (capabilities.medium, capabilities.max_transmission_unit) = (Medium::Ip, PACKET_LEN_MAX);
        capabilities
    }
}

impl RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.send(packet);
        result
    }
}
