//! Raw sockets for packets that carry a capability header on a host: IP protocol 253 (native), UDP port 7253
//! (encapsulated), and the ICMP errors about either.
//!
//! They are bound to one interface. The kernel therefore routes what is sent here as if there were no other interface,
//! past the routes into a TUN device, and what is received here came from outside.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use libc::c_int;
use sluicegate_wire::{Frame, HEADROOM, IpProtocol, ipv6};

use crate::{
    error::OpenError,
    raw::{Filter, FilterInstruction},
    sys,
};

/// Number of the experimental IP protocol (RFC 3692) that carries the header natively.
const NATIVE: u8 = 253;
/// `IPV6_HDRINCL` of linux/in6.h.
const IPV6_HDRINCL: c_int = 36;
/// Room for bursts while the reader is elsewhere.
const RECEIVE_BUFFER_BYTES: c_int = 4 << 20;
const SEND_BUFFER_BYTES: c_int = 4 << 20;

/// Sends whole IP packets out of one interface.
#[derive(Debug)]
pub struct Sender {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

/// Receives the packets of one IP protocol and version that arrive at one interface for this host.
#[derive(Debug)]
pub struct Receiver {
    fd: OwnedFd,
    protocol: IpProtocol,
    /// Unlike an IPv4 header, an IPv6 header is not handed over by the kernel.
    is_v6: bool,
}

/// The right to receive on a UDP port of this network namespace, so that nobody else (a second agent) does, and the
/// kernel does not answer for a closed port.
#[derive(Debug)]
pub struct Claim {
    _v4: UdpSocket,
    _v6: Option<UdpSocket>,
}

impl Claim {
    /// Claims `udp_port`.
    ///
    /// # Errors
    /// [`OpenError::Busy`] if another program has it.
    pub fn new(udp_port: u16) -> Result<Self, OpenError> {
        let claimed = |address: IpAddr| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((address, udp_port))?;
            let fd = socket.as_fd().try_clone_to_owned()?;
            nothing().attach(&fd)?;
            Ok(socket)
        };
        // An IPv6 socket would claim IPv4 too, so IPv4 comes first and alone where there is no IPv6.
        let v6 = claimed_v6(udp_port);
        let v4 = claimed(Ipv4Addr::UNSPECIFIED.into());
        match (v4, v6) {
            (Err(error), _) | (_, Err(error)) if error.kind() == io::ErrorKind::AddrInUse => Err(OpenError::Busy {
                interface: format!("udp/{udp_port}"),
                holder: "another program (one agent of a host may capture at a time)".to_owned(),
            }),
            (Err(error), _) => Err(OpenError::system(format!("bind udp/{udp_port}"), error)),
            (Ok(v4), v6) => Ok(Self { _v4: v4, _v6: v6.ok() }),
        }
    }
}

/// A UDP socket for IPv6 alone.
fn claimed_v6(udp_port: u16) -> io::Result<UdpSocket> {
    let fd = sys::socket(libc::AF_INET6, libc::SOCK_DGRAM, 0)?;
    sys::set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)?;
    sys::bind(&fd, &address_v6(Ipv6Addr::UNSPECIFIED, udp_port))?;
    nothing().attach(&fd)?;
    Ok(fd.into())
}

impl Sender {
    /// A sender bound to `interface`, or routed like any other program of its network namespace.
    ///
    /// # Errors
    /// [`OpenError::NoPermission`] without CAP_NET_RAW; [`OpenError::NoInterface`].
    pub fn open(interface: Option<&str>) -> Result<Self, OpenError> {
        let open = |family: c_int| -> Result<OwnedFd, OpenError> {
            let failed = |error| OpenError::system("open a raw socket", error);
            let fd = sys::socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW).map_err(failed)?;
            sys::grow_send_buffer(&fd, SEND_BUFFER_BYTES);
            if let Some(interface) = interface {
                bind_to(&fd, interface)?;
            }
            Ok(fd)
        };
        let v4 = open(libc::AF_INET)?;
        sys::set_option(&v4, libc::IPPROTO_IP, libc::IP_HDRINCL, &1)
            .map_err(|error| OpenError::system("send whole IPv4 packets", error))?;
        let v6 =
            open(libc::AF_INET6).ok().filter(|fd| sys::set_option(fd, libc::IPPROTO_IPV6, IPV6_HDRINCL, &1).is_ok());
        Ok(Self { v4, v6 })
    }

    /// Sends an IPv4 or IPv6 packet. The kernel writes the IPv4 header's checksum, and its identification if that is 0.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is longer than the interface's MTU; `ENETUNREACH` without a route; `ENOBUFS` or `EAGAIN` when
    /// the interface's queue is full.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => {
                let to: [u8; 4] = *packet.get(16..).and_then(<[u8]>::first_chunk).ok_or_else(invalid)?;
                sys::send_to(&self.v4, packet, &address_v4(to.into())).map(drop)
            }
            Some(6) => {
                let to: [u8; 16] = *packet.get(24..).and_then(<[u8]>::first_chunk).ok_or_else(invalid)?;
                let fd = self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                sys::send_to(fd, packet, &address_v6(to.into(), 0)).map(drop)
            }
            _ => Err(invalid()),
        }
    }
}

impl Receiver {
    /// Receivers for everything with a capability header, or about one, that arrives at `interface`: IP protocol 253,
    /// UDP to `udp_port`, ICMP errors; IPv4, and IPv6 where the kernel has it.
    ///
    /// # Errors
    /// [`OpenError::NoPermission`] without CAP_NET_RAW; [`OpenError::NoInterface`].
    pub fn open_all(interface: &str, udp_port: u16) -> Result<Vec<Self>, OpenError> {
        let mut receivers = Vec::new();
        let v4 = [
            (NATIVE, None),
            (libc::IPPROTO_UDP as u8, Some(udp_v4(udp_port))),
            // Destination unreachable, parameter problem.
            (libc::IPPROTO_ICMP as u8, Some(icmp_v4(&[3, 12]))),
        ];
        for (protocol, filter) in v4 {
            receivers.push(Self::open(interface, libc::AF_INET, protocol, filter)?);
        }
        let v6 = [
            (NATIVE, None),
            (libc::IPPROTO_UDP as u8, Some(udp_v6(udp_port))),
            // Destination unreachable, packet too big, parameter problem.
            (libc::IPPROTO_ICMPV6 as u8, Some(icmp_v6(&[1, 2, 4]))),
        ];
        for (protocol, filter) in v6 {
            match Self::open(interface, libc::AF_INET6, protocol, filter) {
                Ok(receiver) => receivers.push(receiver),
                Err(OpenError::System { source, .. }) if source.raw_os_error() == Some(libc::EAFNOSUPPORT) => break,
                Err(error) => return Err(error),
            }
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
        let families = [(libc::AF_INET, libc::IPPROTO_ICMP), (libc::AF_INET6, libc::IPPROTO_ICMPV6)];
        for (family, icmp) in families {
            for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP, icmp] {
                match Self::open(interface, family, protocol as u8, Some(nothing())) {
                    Ok(receiver) => receivers.push(receiver),
                    Err(OpenError::System { source, .. }) if source.raw_os_error() == Some(libc::EAFNOSUPPORT) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(receivers)
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
        let filter = match (on, self.protocol.0.into()) {
            (false, _) => nothing(),
            (true, libc::IPPROTO_TCP) => tcp_first_answer(self.is_v6),
            (true, _) => Filter(vec![KEEP]),
        };
        filter.attach(&self.fd)
    }

    fn open(interface: &str, family: c_int, protocol: u8, filter: Option<Filter>) -> Result<Self, OpenError> {
        let failed = |error| OpenError::system(format!("open a raw socket for IP protocol {protocol}"), error);
        let fd = sys::socket(family, libc::SOCK_RAW, protocol.into()).map_err(failed)?;
        if let Some(filter) = filter {
            filter.attach(&fd).map_err(failed)?;
        }
        bind_to(&fd, interface)?;
        if sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER_BYTES).is_err() {
            let _ = sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER_BYTES);
        }
        let is_v6 = family == libc::AF_INET6;
        if is_v6 {
            sys::set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1).map_err(failed)?;
        }
        Ok(Self { fd, protocol: IpProtocol(protocol), is_v6 })
    }

    /// The next packet from its IP header on, with at least [`HEADROOM`] bytes in front; `None` if none waits. IPv6
    /// extension headers are gone, and traffic class and flow label are 0: the kernel keeps them to itself.
    ///
    /// # Errors
    /// Those of `recvmsg(2)`.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<Frame<'b>>> {
        if !self.is_v6 {
            let room = buffer.get_mut(HEADROOM..).ok_or(io::ErrorKind::InvalidInput)?;
            return match sys::receive(&self.fd, room, 0) {
                Ok(len) => Ok(Frame::new(buffer, HEADROOM, len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error),
            };
        }
        let at = HEADROOM + ipv6::HEADER_LEN;
        let room = buffer.get_mut(at..).ok_or(io::ErrorKind::InvalidInput)?;
        let (len, src, dst) = match sys::receive_v6(&self.fd, room) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let payload_len = u16::try_from(len).map_err(|_| io::ErrorKind::InvalidData)?;
        let header = buffer.get_mut(HEADROOM..at).ok_or(io::ErrorKind::InvalidInput)?;
        header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
        header[4..6].copy_from_slice(&payload_len.to_be_bytes());
        header[6..8].copy_from_slice(&[self.protocol.0, 64]);
        header[8..24].copy_from_slice(&src.octets());
        header[24..40].copy_from_slice(&dst.octets());
        Ok(Frame::new(buffer, HEADROOM, ipv6::HEADER_LEN + len))
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn bind_to(fd: &OwnedFd, interface: &str) -> Result<(), OpenError> {
    let name = sys::interface_name(interface).map_err(|error| OpenError::system("name an interface", error))?;
    match sys::set_option(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &name) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            Err(OpenError::NoInterface { interface: interface.to_owned() })
        }
        Err(error) => Err(OpenError::system(format!("bind descriptor {} to {interface}", fd.as_raw_fd()), error)),
    }
}

fn address_v4(to: Ipv4Addr) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.octets()) },
        sin_zero: [0; 8],
    }
}

fn address_v6(to: Ipv6Addr, port: u16) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: to.octets() },
        sin6_scope_id: 0,
    }
}

const fn instruction(code: u32, operand: u32, jump_true: u8, jump_false: u8) -> FilterInstruction {
    FilterInstruction { code: code as u16, jump_true, jump_false, operand }
}

const KEEP: FilterInstruction = instruction(libc::BPF_RET | libc::BPF_K, u32::MAX, 0, 0);
const DROP: FilterInstruction = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0);
/// The length of the IPv4 header at the start goes to the index register.
const IPV4_HEADER: FilterInstruction = instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0);

fn nothing() -> Filter {
    Filter(vec![DROP])
}

/// UDP to `port`, from the IPv4 header on.
fn udp_v4(port: u16) -> Filter {
    let load = instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 2, 0, 0);
    let compare = instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, port.into(), 0, 1);
    Filter(vec![IPV4_HEADER, load, compare, KEEP, DROP])
}

/// UDP to `port`, from the UDP header on.
fn udp_v6(port: u16) -> Filter {
    let load = instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 2, 0, 0);
    let compare = instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, port.into(), 0, 1);
    Filter(vec![load, compare, KEEP, DROP])
}

/// ICMP of these types, from the IPv4 header on.
fn icmp_v4(types: &[u8]) -> Filter {
    let load = instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, 0, 0, 0);
    let mut program = vec![IPV4_HEADER, load];
    program.extend(one_of(types));
    Filter(program)
}

/// ICMPv6 of these types, from the ICMPv6 header on.
fn icmp_v6(types: &[u8]) -> Filter {
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0)];
    program.extend(one_of(types));
    Filter(program)
}

/// TCP segments with SYN or RST: what answers the first segment of a connection.
fn tcp_first_answer(is_v6: bool) -> Filter {
    const FLAGS_AT: u32 = 13;
    const SYN_OR_RST: u32 = 0x02 | 0x04;
    let mut program = Vec::new();
    if is_v6 {
        program.push(instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, FLAGS_AT, 0, 0));
    } else {
        program.extend([IPV4_HEADER, instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, FLAGS_AT, 0, 0)]);
    }
    program.extend([instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, SYN_OR_RST, 0, 1), KEEP, DROP]);
    Filter(program)
}

/// Keeps the packet if the loaded value is one of `values`.
fn one_of(values: &[u8]) -> impl Iterator<Item = FilterInstruction> {
    let last = values.len() as u8;
    let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let compares =
        (1..).zip(values).map(move |(number, value)| instruction(compare, u32::from(*value), last - number + 1, 0));
    compares.chain([DROP, KEEP])
}
