//! A gate's two interfaces behind one interface: the back end is chosen when it is opened.

use std::{
    io,
    os::{
        fd::{AsFd as _, BorrowedFd},
        linux::net::SocketAddrExt,
        unix::net,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sluicegate_wire::{Frame, Instant, Port, Reason};

use crate::{
    FRAGMENTED_MAX, Interface, OpenError, Rules, Wake, forwarding,
    packet::Packet,
    xdp::{self, Xdp},
};

/// Frames taken from one port before the other has its turn.
pub const BATCH: usize = 64;

/// What the handler wants done with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Send it, as it is now, out of this port.
    Send(Port),
    /// Forget it. The handler has counted why.
    Drop,
}

/// Which back end to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// `xdp` where it works, else `packet`.
    #[default]
    Auto,
    /// An XDP program and AF_XDP sockets.
    Xdp,
    /// AF_PACKET rings and an nf_tables ingress filter.
    Packet,
}

/// A back end in use: it moves the frames of both ports.
pub trait PacketIo: std::fmt::Debug + Send {
    /// Its name in configuration, logs and metrics.
    fn name(&self) -> &'static str;

    /// As [`Device::poll`]. What is readable at `wake` ends the wait.
    ///
    /// # Errors
    /// As [`Device::poll`].
    fn poll(&mut self, timeout: Duration, wake: Option<BorrowedFd<'_>>, handler: &mut Handler<'_>)
    -> io::Result<usize>;

    /// As [`Device::send`].
    ///
    /// # Errors
    /// As [`Device::send`].
    fn send(&mut self, port: Port, frame: &[u8]) -> Result<(), Reason>;

    /// As [`Device::kernel_counters`]; a reason may stand there more than once.
    fn counters(&mut self) -> Vec<(Reason, u64)>;

    /// Datagrams for the host of which fragments may still come.
    fn fragmented(&self) -> usize {
        0
    }

    /// Lets the kernel receive everything again.
    ///
    /// # Errors
    /// As [`Device::close`].
    fn open_up(self: Box<Self>) -> Result<(), OpenError>;

    /// As [`Device::heartbeat`], where there is a kernel program.
    fn heartbeat(&mut self, _now: Instant) {}

    /// As [`Device::translates_pings`], where somebody has to know.
    fn translates_pings(&mut self, _words: &mut dyn Iterator<Item = u64>) {}
}

/// Judges a frame that came by a port, and may rewrite it in place.
pub type Handler<'h> = dyn FnMut(Port, &mut Frame<'_>) -> Action + 'h;

/// How to open a [`Device`].
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which back end.
    pub backend: Backend,
    /// The interface towards the Internet.
    pub outside: String,
    /// The interface towards the protected link.
    pub inside: String,
    /// What is for the gate's own host.
    pub rules: Rules,
    /// Where the kernel program is pinned, so that it outlives a crash.
    pub state_dir: PathBuf,
}

/// Both interfaces of a gate, opened. Used by one thread.
///
/// Fails closed: if the value is dropped without [`Device::close`], or its process is killed, the kernel keeps dropping
/// everything on both interfaces except what `local` and `peers` list, ARP and who has an address.
///
/// What the `xdp` back end sends passes no queueing discipline (copy mode hands frames straight to the driver): a rate
/// limit on the gate's own interface shapes the `packet` back end only. Frames with a VLAN tag are dropped by either; but on a
/// veth, `xdp` sees only those tags that the sender writes into the frame (`txvlan off` at the other end).
#[derive(Debug)]
pub struct Device {
    io: Box<dyn PacketIo>,
    why: String,
    wake: Option<Arc<Wake>>,
    /// Of the identifiers of pings that were told last.
    pings: Option<u64>,
    /// Held as long as the process lives, however it ends.
    _claims: Vec<net::UnixListener>,
}

impl Device {
    /// Opens both interfaces, in the calling thread's network namespace.
    ///
    /// # Errors
    /// See [`OpenError`]; each message says what to do. Nothing that ran before is changed by a refused open.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        options.rules.check()?;
        let outside = interface(&options.outside)?;
        let inside = interface(&options.inside)?;
        if outside.index == inside.index {
            return Err(OpenError::SameInterface(outside.name));
        }
        let ports = [outside, inside];
        for port in &ports {
            let on = forwarding::is_on(&port.name)
                .map_err(|source| OpenError::system(format!("read the forwarding switch of {}", port.name), source))?;
            if on {
                return Err(OpenError::ForwardingOn(port.name.clone()));
            }
        }
        let claims = [claim(&ports[0])?, claim(&ports[1])?];
        let mut device = Self::open_backend(&ports, options)?;
        device._claims = claims.into();
        Ok(device)
    }

    fn open_backend(ports: &[Interface; 2], options: &Options) -> Result<Self, OpenError> {
        match options.backend {
            Backend::Xdp => Self::open_xdp(ports, options, "asked for"),
            Backend::Packet => Self::open_packet(ports, options, "asked for"),
            Backend::Auto => {
                let opened = match ports.iter().find(|port| port.is_virtual()) {
                    Some(port) => Err(OpenError::TagsHidden(port.name.clone())),
                    None => Self::open_xdp(ports, options, "works here"),
                };
                match opened {
                    Err(error @ OpenError::Busy { .. }) => Err(error),
                    Err(error) => Self::open_packet(ports, options, &format!("because xdp fails here: {error}")),
                    opened => opened,
                }
            }
        }
    }

    fn open_xdp(ports: &[Interface; 2], options: &Options, why: &str) -> Result<Self, OpenError> {
        let xdp = Xdp::open(ports, &options.rules, &options.state_dir)?;
        let why = format!("xdp, {why} ({})", xdp.describe());
        Ok(Self::over(Box::new(xdp), why))
    }

    fn open_packet(ports: &[Interface; 2], options: &Options, why: &str) -> Result<Self, OpenError> {
        let packet = Packet::open(ports, options.rules.clone())?;
        // The filter has the interfaces now; a program of a former gate would drop everything.
        xdp::remove_pinned(&options.state_dir, ports);
        Ok(Self::over(Box::new(packet), format!("packet, {why}")))
    }

    /// A device over this back end, with the line that says why. For tests of whatever drives a device, too.
    #[must_use]
    pub fn over(io: Box<dyn PacketIo>, why: String) -> Self {
        Self { io, why, wake: None, pings: None, _claims: Vec::new() }
    }

    /// The name of the back end in use.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.io.name()
    }

    /// Which back end, in which mode, and why not a faster one. One line for a person.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Tells the kernel program that this process is alive and judging packets. To be called at least every second;
    /// after two seconds without, the program drops. `now` must be nanoseconds of `CLOCK_MONOTONIC`
    /// ([`crate::monotonic_now`]). Costs nothing in back ends without a kernel program.
    pub fn heartbeat(&mut self, now: Instant) {
        self.io.heartbeat(now);
    }

    /// Tells which identifiers of pings the gate translates: answers to others may be the host's own. `changes` differs
    /// whenever the words do; without a change this costs a comparison.
    pub fn translates_pings(&mut self, (changes, mut words): (u64, impl Iterator<Item = u64>)) {
        if self.pings.replace(changes) != Some(changes) {
            self.io.translates_pings(&mut words);
        }
    }

    /// Whoever wakes this ends a wait of [`Self::poll`].
    pub fn woken_by(&mut self, wake: Arc<Wake>) {
        self.wake = Some(wake);
    }

    /// Hands waiting frames of both ports to `handler`, at most [`BATCH`] of each, and does what it answers. Waits up to
    /// `timeout` if there are none, or until it is woken. Returns the number of frames.
    ///
    /// A frame starts at its Ethernet header and has at least [`sluicegate_wire::HEADROOM`] bytes of room in front. The
    /// handler sees no packet that the gate's own host receives.
    ///
    /// # Errors
    /// If an interface went away or down for good. Frames that could not be sent are counted, not reported.
    pub fn poll(&mut self, timeout: Duration, handler: &mut Handler<'_>) -> io::Result<usize> {
        let judged = self.io.poll(timeout, self.wake.as_ref().map(|wake| wake.as_fd()), handler)?;
        // No frame ended the wait, so it may have been this. What frames keep from a wait looks by itself.
        if judged == 0 {
            self.wake.iter().for_each(|wake| wake.clear());
        }
        Ok(judged)
    }

    /// Sends a frame (from its Ethernet header on) out of `port`. It leaves at the next [`Self::poll`] at the latest.
    ///
    /// # Errors
    /// [`Reason::TransmitFull`] without room, [`Reason::PacketTooBig`] if it exceeds the MTU. The device has counted it.
    pub fn send(&mut self, port: Port, frame: &[u8]) -> Result<(), Reason> {
        self.io.send(port, frame)
    }

    /// Frames dropped below the handler since the device was opened, by reason, which may stand there more than once: by the kernel program or filter, for
    /// full rings, for a full transmit queue.
    pub fn kernel_counters(&mut self) -> Vec<(Reason, u64)> {
        self.io.counters()
    }

    /// Name, use and maximum of the device's table: datagrams for the host of which fragments may still come.
    #[must_use]
    pub fn gauge(&self) -> (&'static str, usize, usize) {
        ("local_fragmented", self.io.fragmented(), FRAGMENTED_MAX)
    }

    /// Lets go of the interfaces. With `keep_closed` the kernel keeps dropping until the next gate takes over (a
    /// restart); without, it receives everything again, as before the gate.
    ///
    /// # Errors
    /// If the filter or program could not be removed; the interfaces then stay closed.
    pub fn close(self, keep_closed: bool) -> Result<(), OpenError> {
        if keep_closed { Ok(()) } else { self.io.open_up() }
    }
}

/// Does now what takes more rights than [`Device::open`] needs afterwards (`CAP_SYS_ADMIN`, to mount a BPF file system
/// under `state_dir`), for a process that gives those up. Whatever cannot be done is left to `open` to report.
pub fn prepare(backend: Backend, state_dir: &Path) {
    if backend != Backend::Packet {
        xdp::prepare(state_dir);
    }
}

/// Makes sure that no second gate of this network namespace uses the interface: an abstract socket name belongs to one
/// process of a network namespace, and goes with it.
fn claim(port: &Interface) -> Result<net::UnixListener, OpenError> {
    let name = format!("sluicegate/gate/{}", port.name);
    let listener = net::SocketAddr::from_abstract_name(name).and_then(|name| net::UnixListener::bind_addr(&name));
    listener.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => {
            OpenError::Busy { interface: port.name.clone(), holder: "another gate on this host".into() }
        }
        _ => OpenError::system(format!("claim {}", port.name), source),
    })
}

fn interface(name: &str) -> Result<Interface, OpenError> {
    match Interface::read(name) {
        Ok(interface) if interface.up => Ok(interface),
        Ok(_) => Err(OpenError::Down(name.into())),
        Err(error) if error.is_missing() => Err(OpenError::NoInterface(name.into())),
        Err(error) if error.errno() == Some(libc::EINVAL) => Err(OpenError::NotEthernet(name.into())),
        Err(error) => Err(OpenError::netlink(&format!("read interface {name}"), error)),
    }
}
