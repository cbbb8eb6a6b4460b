//! A gate's two interfaces behind one interface: the back end is chosen when it is opened.

use std::{
    io,
    os::{linux::net::SocketAddrExt, unix::net},
    path::{Path, PathBuf},
    time::Duration,
};

use sluicegate_wire::{Frame, Instant, Port, Reason};

use crate::{
    Interface, LOCAL_MAX, LocalRule, OWN_MAX, OpenError, OwnAddress, PEERS_MAX, Peer, Rules, Translated, forwarding,
    loopback::{self, Loopback},
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

/// The back end in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An XDP program and AF_XDP sockets.
    Xdp,
    /// AF_PACKET rings and an nf_tables ingress filter.
    Packet,
    /// Queues in memory.
    Loopback,
}

impl Kind {
    /// The name in configuration, logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Packet => "packet",
            Self::Loopback => "loopback",
        }
    }
}

/// How to open a [`Device`].
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which back end.
    pub backend: Backend,
    /// The interface towards the Internet.
    pub outside: String,
    /// The interface towards the protected link.
    pub inside: String,
    /// What the gate's own host may receive; at most [`LOCAL_MAX`] entries.
    pub local: Vec<LocalRule>,
    /// Addresses of the gate's host; only packets to these can be local. At most [`OWN_MAX`].
    pub own: Vec<OwnAddress>,
    /// The host's own connections; at most [`PEERS_MAX`].
    pub peers: Vec<Peer>,
    /// What the gate translates to.
    pub translated: Option<Translated>,
    /// Where the kernel program is pinned, so that it outlives a crash.
    pub state_dir: PathBuf,
}

impl Options {
    fn rules(&self) -> Result<Rules, OpenError> {
        let sizes = [
            ("local", self.local.len(), LOCAL_MAX),
            ("own", self.own.len(), OWN_MAX),
            ("peers", self.peers.len(), PEERS_MAX),
        ];
        for (table, given, max) in sizes {
            if given > max {
                return Err(OpenError::TooMany { table, given, max });
            }
        }
        Ok(Rules {
            own: self.own.clone(),
            local: self.local.clone(),
            peers: self.peers.clone(),
            translated: self.translated,
            pings: Vec::new(),
        })
    }
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
    backend: Open,
    why: String,
    /// Of the identifiers of pings that were told last.
    pings: Option<u64>,
    /// Held as long as the process lives, however it ends.
    _claims: Vec<net::UnixListener>,
}

#[derive(Debug)]
enum Open {
    Xdp(Box<Xdp>),
    Packet(Box<Packet>),
    Loopback(Loopback),
}

impl Device {
    /// Opens both interfaces, in the calling thread's network namespace.
    ///
    /// # Errors
    /// See [`OpenError`]; each message says what to do. Nothing that ran before is changed by a refused open.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let rules = options.rules()?;
        let outside = interface(&options.outside)?;
        let inside = interface(&options.inside)?;
        if outside.index == inside.index {
            return Err(OpenError::SameInterface { interface: outside.name });
        }
        let ports = [outside, inside];
        for port in &ports {
            let on = forwarding::is_on(&port.name)
                .map_err(|source| OpenError::system(format!("read the forwarding switch of {}", port.name), source))?;
            if on {
                return Err(OpenError::ForwardingOn { interface: port.name.clone() });
            }
        }
        let claims = [claim(&ports[0])?, claim(&ports[1])?];
        let mut device = Self::open_backend(&ports, rules, options)?;
        device._claims = claims.into();
        Ok(device)
    }

    fn open_backend(ports: &[Interface; 2], rules: Rules, options: &Options) -> Result<Self, OpenError> {
        match options.backend {
            Backend::Xdp => Self::open_xdp(ports, &rules, options, "asked for"),
            Backend::Packet => Self::open_packet(ports, rules, options, "asked for"),
            Backend::Auto => {
                let opened = match ports.iter().find(|port| port.is_virtual) {
                    Some(port) => Err(OpenError::TagsHidden { interface: port.name.clone() }),
                    None => Self::open_xdp(ports, &rules, options, "works here"),
                };
                match opened {
                    Err(error @ OpenError::Busy { .. }) => Err(error),
                    Err(error) => Self::open_packet(ports, rules, options, &format!("because xdp fails here: {error}")),
                    opened => opened,
                }
            }
        }
    }

    fn open_xdp(ports: &[Interface; 2], rules: &Rules, options: &Options, why: &str) -> Result<Self, OpenError> {
        let xdp = Xdp::open(ports, rules, &options.state_dir)?;
        let why = format!("xdp, {why} ({})", xdp.describe());
        Ok(Self { backend: Open::Xdp(Box::new(xdp)), why, pings: None, _claims: Vec::new() })
    }

    fn open_packet(ports: &[Interface; 2], rules: Rules, options: &Options, why: &str) -> Result<Self, OpenError> {
        let packet = Packet::open(ports, rules)?;
        // The filter has the interfaces now; a program of a former gate would drop everything.
        xdp::remove_pinned(&options.state_dir, ports);
        Ok(Self {
            backend: Open::Packet(Box::new(packet)),
            why: format!("packet, {why}"),
            pings: None,
            _claims: Vec::new(),
        })
    }

    /// A device of queues in memory, and the far ends of its two cables. For tests.
    #[must_use]
    pub fn loopback() -> (Self, loopback::Cables) {
        let (backend, cables) = loopback::pair();
        (
            Self {
                backend: Open::Loopback(backend),
                why: "loopback, asked for".into(),
                pings: None,
                _claims: Vec::new(),
            },
            cables,
        )
    }

    /// The back end in use.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match &self.backend {
            Open::Xdp(_) => Kind::Xdp,
            Open::Packet(_) => Kind::Packet,
            Open::Loopback(_) => Kind::Loopback,
        }
    }

    /// Which back end, in which mode, and why not a faster one. One line for a person.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Tells the kernel program that this process is alive and judging packets. To be called at least every second;
    /// after two seconds without, the program drops. `now` must be nanoseconds of `CLOCK_MONOTONIC`
    /// ([`crate::monotonic_nanos`]). Costs nothing in back ends without a kernel program.
    pub fn heartbeat(&mut self, now: Instant) {
        if let Open::Xdp(xdp) = &mut self.backend {
            xdp.heartbeat(now);
        }
    }

    /// Tells which identifiers of pings the gate translates: answers to others may be the host's own. `changes` differs
    /// whenever the words do; without a change this costs a comparison.
    pub fn translates_pings(&mut self, (changes, words): (u64, impl Iterator<Item = u64>)) {
        if self.pings.replace(changes) == Some(changes) {
            return;
        }
        match &mut self.backend {
            Open::Xdp(xdp) => xdp.translates_pings(words),
            Open::Packet(packet) => packet.translates_pings(words),
            Open::Loopback(_) => {}
        }
    }

    /// Hands waiting frames of both ports to `handler`, at most [`BATCH`] of each, and does what it answers. Waits up to
    /// `timeout` if there are none. Returns the number of frames.
    ///
    /// A frame starts at its Ethernet header and has at least [`sluicegate_wire::HEADROOM`] bytes of room in front. The
    /// handler sees no packet that the gate's own host receives.
    ///
    /// # Errors
    /// If an interface went away or down for good. Frames that could not be sent are counted, not reported.
    pub fn poll(
        &mut self,
        timeout: Duration,
        handler: &mut dyn FnMut(Port, &mut Frame<'_>) -> Action,
    ) -> io::Result<usize> {
        match &mut self.backend {
            Open::Xdp(xdp) => xdp.poll(timeout, handler),
            Open::Packet(packet) => packet.poll(timeout, handler),
            Open::Loopback(loopback) => Ok(loopback.poll(timeout, handler)),
        }
    }

    /// Sends a frame (from its Ethernet header on) out of `port`. It leaves at the next [`Self::poll`] at the latest.
    ///
    /// # Errors
    /// [`Reason::TransmitFull`] without room, [`Reason::PacketTooBig`] if it exceeds the MTU. The device has counted it.
    pub fn send(&mut self, port: Port, frame: &[u8]) -> Result<(), Reason> {
        match &mut self.backend {
            Open::Xdp(xdp) => xdp.send(port, frame),
            Open::Packet(packet) => packet.send(port, frame),
            Open::Loopback(loopback) => loopback.send(port, frame),
        }
    }

    /// Frames dropped below the handler since the device was opened, by reason: by the kernel program or filter, for
    /// full rings, for a full transmit queue.
    pub fn kernel_counters(&mut self) -> Vec<(Reason, u64)> {
        match &mut self.backend {
            Open::Xdp(xdp) => xdp.counters(),
            Open::Packet(packet) => packet.counters(),
            Open::Loopback(loopback) => loopback.counters(),
        }
    }

    /// Lets go of the interfaces. With `keep_closed` the kernel keeps dropping until the next gate takes over (a
    /// restart); without, it receives everything again, as before the gate.
    ///
    /// # Errors
    /// If the filter or program could not be removed; the interfaces then stay closed.
    pub fn close(self, keep_closed: bool) -> Result<(), OpenError> {
        match self.backend {
            Open::Xdp(xdp) => xdp.close(keep_closed),
            Open::Packet(packet) => packet.close(keep_closed),
            Open::Loopback(_) => Ok(()),
        }
    }
}

/// Whether this process may use the `xdp` back end, for laboratories, whose wires carry nothing beside the packets:
/// [`Backend::Auto`] cannot know that and takes `packet` there.
#[must_use]
pub fn xdp_works() -> bool {
    xdp::works()
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
        Ok(_) => Err(OpenError::Down { interface: name.into() }),
        Err(error) if error.is_missing() => Err(OpenError::NoInterface { interface: name.into() }),
        Err(error) if error.errno() == Some(libc::EINVAL) => Err(OpenError::NotEthernet { interface: name.into() }),
        Err(error) => Err(OpenError::netlink(&format!("read interface {name}"), error)),
    }
}
