//! Raw sockets for packets that carry a capability header on a host: IP protocol 253 (native), UDP port 7253
//! (encapsulated), and the ICMP errors about either.
//!
//! They are bound to one interface. The kernel therefore routes what is sent here as if there were no other interface,
//! past the routes into a TUN device, and what is received here came from outside.

use std::{
    io::{self, IoSliceMut, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use libc::c_int;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn6, recvmsg, setsockopt, sockopt::Ipv6RecvPacketInfo};
use rustix::net::sockopt;
use sluicegate_wire::{Frame, HEADROOM, IpProtocol, ipv6};
use socket2::{Domain, SockFilter, Socket, Type};

use crate::{error::OpenError, sys};

/// Number of the experimental IP protocol (RFC 3692) that carries the header natively.
const NATIVE: c_int = 253;
/// Length of the kernel's words about one packet; more than they take.
const CONTROL_LEN: usize = 128;
/// Room for bursts while the reader is elsewhere.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// Sends whole IP packets out of one interface.
#[derive(Debug)]
pub struct Sender {
    v4: Socket,
    v6: Option<Socket>,
}

/// Receives the packets of one IP protocol and version that arrive at one interface for this host.
#[derive(Debug)]
pub struct Receiver {
    socket: Socket,
    protocol: IpProtocol,
    /// Unlike an IPv4 header, an IPv6 header is not handed over by the kernel.
    is_v6: bool,
}

/// The right to receive on a UDP port of this network namespace, so that nobody else (a second agent) does, and the
/// kernel does not answer for a closed port.
#[derive(Debug)]
pub struct Claim {
    _v4: Socket,
    _v6: Option<Socket>,
}

impl Claim {
    /// Claims `udp_port`.
    ///
    /// # Errors
    /// [`OpenError::Busy`] if another program has it.
    pub fn new(udp_port: u16) -> Result<Self, OpenError> {
        let claimed = |address: IpAddr| -> io::Result<Socket> {
            let address = SocketAddr::new(address, udp_port);
            let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
            if address.is_ipv6() {
                // It would claim IPv4 too.
                socket.set_only_v6(true)?;
            }
            socket.bind(&address.into())?;
            socket.attach_filter(&[DROP])?;
            Ok(socket)
        };
        match (claimed(Ipv4Addr::UNSPECIFIED.into()), claimed(Ipv6Addr::UNSPECIFIED.into())) {
            (Err(error), _) | (_, Err(error)) if error.kind() == io::ErrorKind::AddrInUse => Err(OpenError::Busy {
                interface: format!("udp/{udp_port}"),
                holder: "another program (one agent of a host may capture at a time)".to_owned(),
            }),
            (Err(error), _) => Err(OpenError::system(format!("bind udp/{udp_port}"), error)),
            // A host without IPv6 has nothing to claim there.
            (Ok(v4), v6) => Ok(Self { _v4: v4, _v6: v6.ok() }),
        }
    }
}

impl Sender {
    /// A sender bound to `interface`, or routed like any other program of its network namespace.
    ///
    /// # Errors
    /// [`OpenError::NoPermission`] without CAP_NET_RAW; [`OpenError::NoInterface`].
    pub fn open(interface: Option<&str>) -> Result<Self, OpenError> {
        let open = |family: c_int| -> Result<Socket, OpenError> {
            let failed = |error| OpenError::system("open a raw socket", error);
            let socket = sys::socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW).map_err(failed)?;
            sys::grow_send_buffer(&socket, SEND_BUFFER_BYTES);
            if let Some(interface) = interface {
                bind_to(&socket, interface)?;
            }
            Ok(socket)
        };
        let v4 = open(libc::AF_INET)?;
        v4.set_header_included_v4(true).map_err(|error| OpenError::system("send whole IPv4 packets", error))?;
        let v6 = open(libc::AF_INET6).ok().filter(|socket| socket.set_header_included_v6(true).is_ok());
        Ok(Self { v4, v6 })
    }

    /// Sends an IPv4 or IPv6 packet. The kernel writes the IPv4 header's checksum, and its identification if that is 0.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is longer than the interface's MTU; `ENETUNREACH` without a route; `ENOBUFS` or `EAGAIN` when
    /// the interface's queue is full.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        let to = match packet.first().map(|byte| byte >> 4) {
            Some(4) => packet.get(16..).and_then(<[u8]>::first_chunk).map(|to: &[u8; 4]| IpAddr::from(*to)),
            Some(6) => packet.get(24..).and_then(<[u8]>::first_chunk).map(|to: &[u8; 16]| IpAddr::from(*to)),
            _ => None,
        };
        let to = to.ok_or(io::ErrorKind::InvalidInput)?;
        let socket = if to.is_ipv4() { &self.v4 } else { self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)? };
        socket.send_to(packet, &SocketAddr::new(to, 0).into()).map(drop)
    }
}

impl Receiver {
    /// Receivers for everything with a capability header, or about one, that arrives at `interface`: IP protocol 253,
    /// UDP to `udp_port`, ICMP errors; IPv4, and IPv6 where the kernel has it.
    ///
    /// # Errors
    /// [`OpenError::NoPermission`] without CAP_NET_RAW; [`OpenError::NoInterface`].
    pub fn open_all(interface: &str, udp_port: u16) -> Result<Vec<Self>, OpenError> {
        // Destination unreachable, parameter problem; in IPv6 also packet too big.
        let families =
            [(libc::AF_INET, libc::IPPROTO_ICMP, &[3, 12][..]), (libc::AF_INET6, libc::IPPROTO_ICMPV6, &[1, 2, 4])];
        let mut receivers = Vec::new();
        for (family, icmp, errors) in families {
            let is_v6 = family == libc::AF_INET6;
            let filters =
                [(NATIVE, vec![KEEP]), (libc::IPPROTO_UDP, udp_to(udp_port, is_v6)), (icmp, icmp_of(errors, is_v6))];
            receivers.extend(Self::open_each(interface, family, filters)?);
        }
        Ok(receivers)
    }

    /// Receivers for plain answers: TCP segments that open or refuse a connection, UDP, ICMP. They are deaf until
    /// [`Receiver::listen`], because they would be given everything that this host receives.
    ///
    /// # Errors
    /// As [`Receiver::open_all`].
    pub fn open_plain(interface: &str) -> Result<Vec<Self>, OpenError> {
        let mut receivers = Vec::new();
        for (family, icmp) in [(libc::AF_INET, libc::IPPROTO_ICMP), (libc::AF_INET6, libc::IPPROTO_ICMPV6)] {
            let deaf = [libc::IPPROTO_TCP, libc::IPPROTO_UDP, icmp].map(|protocol| (protocol, vec![DROP]));
            receivers.extend(Self::open_each(interface, family, deaf)?);
        }
        Ok(receivers)
    }

    /// One receiver for each protocol with its filter; none where the kernel has no IPv6.
    fn open_each(
        interface: &str,
        family: c_int,
        filters: [(c_int, Vec<SockFilter>); 3],
    ) -> Result<Vec<Self>, OpenError> {
        let opened = filters.into_iter().map(|(protocol, filter)| Self::open(interface, family, protocol, &filter));
        match opened.collect() {
            Err(OpenError::System { source, .. })
                if family == libc::AF_INET6 && source.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
            {
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// The IP protocol that it receives.
    #[must_use]
    pub const fn protocol(&self) -> IpProtocol {
        self.protocol
    }

    /// Switches a receiver of [`Receiver::open_plain`] on or off.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    pub fn listen(&self, on: bool) -> io::Result<()> {
        let filter = match (on, self.protocol) {
            (false, _) => vec![DROP],
            (true, IpProtocol::TCP) => tcp_first_answer(self.is_v6),
            (true, _) => vec![KEEP],
        };
        self.socket.attach_filter(&filter)
    }

    fn open(interface: &str, family: c_int, protocol: c_int, filter: &[SockFilter]) -> Result<Self, OpenError> {
        let failed = |error| OpenError::system(format!("open a raw socket for IP protocol {protocol}"), error);
        let socket = sys::socket(family, libc::SOCK_RAW, protocol).map_err(failed)?;
        socket.attach_filter(filter).map_err(failed)?;
        bind_to(&socket, interface)?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
            let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
        }
        let is_v6 = family == libc::AF_INET6;
        if is_v6 {
            setsockopt(&socket, Ipv6RecvPacketInfo, &true).map_err(|error| failed(error.into()))?;
        }
        Ok(Self { socket, protocol: IpProtocol(protocol as u8), is_v6 })
    }

    /// The next packet from its IP header on, with at least [`HEADROOM`] bytes in front; `None` if none waits. IPv6
    /// extension headers are gone, and traffic class and flow label are 0: the kernel keeps them to itself.
    ///
    /// # Errors
    /// Those of `recvmsg(2)`.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<Frame<'b>>> {
        let received = if self.is_v6 { self.receive_v6(buffer) } else { self.receive_v4(buffer) };
        match received {
            Ok(len) => Ok(Frame::new(buffer, HEADROOM, len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn receive_v4(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(buffer.get_mut(HEADROOM..).ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// Receives a packet and writes a header in front of it.
    fn receive_v6(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.get_mut(HEADROOM..).and_then(|room| room.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>());
        let (header, room) = room.ok_or(io::ErrorKind::InvalidInput)?;
        let (mut parts, mut control) = ([IoSliceMut::new(room)], Control([0; CONTROL_LEN]));
        let message =
            recvmsg::<SockaddrIn6>(self.socket.as_raw_fd(), &mut parts, Some(&mut control.0), MsgFlags::empty())?;
        let sent_to = |message| match message {
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(info.ipi6_addr.s6_addr),
            _ => None,
        };
        let ends = message.address.zip(message.cmsgs()?.find_map(sent_to));
        let (src, dst) = ends.ok_or(io::ErrorKind::InvalidData)?;
        let payload_len = u16::try_from(message.bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        ipv6::Repr::new(src.ip(), dst.into(), self.protocol, payload_len)
            .emit(&mut ipv6::Packet::new_unchecked(header));
        Ok(ipv6::HEADER_LEN + message.bytes)
    }
}

/// Room for what the kernel says about a packet, aligned as its structures are.
#[repr(align(8))]
struct Control([u8; CONTROL_LEN]);

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bind_to(socket: &Socket, interface: &str) -> Result<(), OpenError> {
    socket.bind_device(Some(interface.as_bytes())).map_err(|error| match error.raw_os_error() {
        Some(libc::ENODEV) => OpenError::NoInterface(interface.to_owned()),
        _ => OpenError::system(format!("bind descriptor {} to {interface}", socket.as_raw_fd()), error),
    })
}

/// The result of a filter: the whole packet.
const KEEP: SockFilter = instruction(libc::BPF_RET | libc::BPF_K, u32::MAX);
/// The result of a filter: nothing.
const DROP: SockFilter = instruction(libc::BPF_RET | libc::BPF_K, 0);

const fn instruction(code: u32, operand: u32) -> SockFilter {
    SockFilter::new(code as u16, 0, 0, operand)
}

/// Goes on with the next instruction if the loaded value compares so with `operand`, else with the one behind it.
const fn unless(compare: u32, operand: u32) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | compare | libc::BPF_K) as u16, 0, 1, operand)
}

/// Loads a value (`BPF_B` or `BPF_H`) at `offset` of the transport header: behind the IPv4 header, or where the packet begins.
fn load(size: u32, offset: u32, is_v6: bool) -> Vec<SockFilter> {
    if is_v6 {
        return vec![instruction(libc::BPF_LD | size | libc::BPF_ABS, offset)];
    }
    // The length of the IPv4 header goes to the index register.
    let header_len = instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0);
    vec![header_len, instruction(libc::BPF_LD | size | libc::BPF_IND, offset)]
}

/// UDP to `port`.
fn udp_to(port: u16, is_v6: bool) -> Vec<SockFilter> {
    let mut program = load(libc::BPF_H, 2, is_v6);
    program.extend([unless(libc::BPF_JEQ, port.into()), KEEP, DROP]);
    program
}

/// ICMP of these types.
fn icmp_of(types: &[u8], is_v6: bool) -> Vec<SockFilter> {
    let mut program = load(libc::BPF_B, 0, is_v6);
    for one in types {
        program.extend([unless(libc::BPF_JEQ, u32::from(*one)), KEEP]);
    }
    program.push(DROP);
    program
}

/// TCP segments with SYN or RST: what answers the first segment of a connection.
fn tcp_first_answer(is_v6: bool) -> Vec<SockFilter> {
    const FLAGS_AT: u32 = 13;
    const SYN_OR_RST: u32 = 0x02 | 0x04;
    let mut program = load(libc::BPF_B, FLAGS_AT, is_v6);
    program.extend([unless(libc::BPF_JSET, SYN_OR_RST), KEEP, DROP]);
    program
}
