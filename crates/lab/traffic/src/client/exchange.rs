//! Packets of any IP protocol, sent and sent back: by the kernel's own sockets where it has the protocol, else with headers
//! made here and raw sockets.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, recvfrom},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_wire::{
    IpProtocol,
    build::Body,
    dccp::{self, Type as Dccp},
    ip::{Ports, Summary},
    udplite,
};
use socket2::{Domain, Protocol, Socket, Type};

use sluicegate_site::{During, LabError, worker::Context};

const PAYLOAD: [u8; 64] = *b"sluicegate sluicegate sluicegate sluicegate sluicegate sluicegat";
/// The client's port, where there are ports.
const OWN_PORT: u16 = 40_000;
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_millis(500);
const PACKETS_MAX: u32 = 1_000;

/// Specification of the worker `exchange`: sends packets one after the other and waits for the answer to each.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeSpec {
    /// IP protocol number.
    pub protocol: u8,
    /// The sender's own address.
    pub from: Ipv4Addr,
    /// Where to, with a port of 0 where there is none.
    pub to: SocketAddrV4,
    /// How many, at most 1,000.
    pub packets: u32,
    /// What each waits for its answer at most, in milliseconds; half a second unless given.
    pub answer_ms: Option<u64>,
}

/// Specification of the worker `mirror`: sends back what comes, until it is told to stop.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorSpec {
    /// IP protocol number.
    pub protocol: u8,
    /// Its addresses, with a port of 0 where there is none.
    pub at: Vec<SocketAddrV4>,
}

/// One end of an exchange.
struct End {
    socket: Socket,
    protocol: IpProtocol,
    at: SocketAddrV4,
    /// Whether the kernel makes the headers.
    by_kernel: bool,
}

/// What came: from where, and for DCCP of which type.
struct Heard {
    from: SocketAddrV4,
    kind: Dccp,
}

impl End {
    fn open(protocol: u8, at: SocketAddrV4) -> io::Result<Self> {
        let protocol = IpProtocol(protocol);
        let has_sockets = matches!(protocol, IpProtocol::UDP | IpProtocol::UDPLITE);
        let number = Protocol::from(i32::from(protocol.0));
        let own = if has_sockets { Socket::new(Domain::IPV4, Type::DGRAM, Some(number)).ok() } else { None };
        let by_kernel = own.is_some();
        let socket = own.map_or_else(|| Socket::new(Domain::IPV4, Type::RAW, Some(number)), Ok)?;
        let bound = if by_kernel { at } else { SocketAddrV4::new(*at.ip(), 0) };
        socket.bind(&SocketAddr::V4(bound).into())?;
        Ok(Self { socket, protocol, at, by_kernel })
    }

    fn send(&self, to: SocketAddrV4, kind: Dccp) -> io::Result<()> {
        let raw = SocketAddrV4::new(*to.ip(), if self.by_kernel { to.port() } else { 0 });
        self.socket.send_to(&self.packet(to, kind), &SocketAddr::V4(raw).into()).map(drop)
    }

    /// What a socket is to send.
    fn packet(&self, to: SocketAddrV4, kind: Dccp) -> Vec<u8> {
        let header: &[u8] = match self.protocol {
            _ if self.by_kernel => &[],
            IpProtocol::DCCP => return self.dccp(to, kind),
            IpProtocol::UDPLITE => return self.udplite(to),
            // No options, carries IPv4.
            IpProtocol::GRE => &[0, 0, 8, 0],
            // Index 0x1001, first packet.
            IpProtocol::ESP => &[0, 0, 0x10, 1, 0, 0, 0, 1],
            // The same, in front of UDP, with a check value of 12 bytes.
            IpProtocol::AUTHENTICATION => {
                &[17, 4, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
            }
            _ => &[],
        };
        [header, &PAYLOAD].concat()
    }

    fn dccp(&self, to: SocketAddrV4, kind: Dccp) -> Vec<u8> {
        // Behind the sequence number: an acknowledgement, a service code, or both.
        let header_rest_len = match kind {
            Dccp::REQUEST => 4,
            Dccp::RESPONSE => 12,
            _ => 8,
        };
        let (src_port, dst_port) = (self.at.port(), to.port());
        self.bytes(to, &dccp::Repr { src_port, dst_port, kind, seq: 7, header_rest_len, rest: &PAYLOAD })
    }

    fn udplite(&self, to: SocketAddrV4) -> Vec<u8> {
        let (src_port, dst_port) = (self.at.port(), to.port());
        self.bytes(to, &udplite::Repr { src_port, dst_port, covered: 8, payload: &PAYLOAD })
    }

    fn bytes(&self, to: SocketAddrV4, body: &impl Body) -> Vec<u8> {
        let mut bytes = vec![0; body.len()];
        body.emit(&mut bytes, (*self.at.ip()).into(), (*to.ip()).into());
        bytes
    }

    /// The next packet for this end; `None` if none comes in time.
    fn receive(&self, within: Duration) -> io::Result<Option<Heard>> {
        let end = Instant::now() + within;
        let mut buffer = [0; 2_048];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // Less than the kernel can count would be no limit at all.
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let (len, from) = match recvfrom(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((len, _, from)) => (len, from),
                Err(Errno::AGAIN | Errno::INTR) => continue,
                // An ICMP error about a packet before: nobody answers that one.
                Err(Errno::CONNREFUSED) => continue,
                Err(error) => return Err(error.into()),
            };
            let heard = if self.by_kernel {
                let from = from.and_then(|from| SocketAddrV4::try_from(from).ok());
                from.map(|from| Heard { from, kind: Dccp::DATA_ACK })
            } else {
                buffer.get(..len).and_then(|bytes| self.heard(bytes))
            };
            if heard.is_some() {
                return Ok(heard);
            }
        }
    }

    /// What a raw socket received, if it is for this end, whole and right.
    fn heard(&self, bytes: &[u8]) -> Option<Heard> {
        let ip = Summary::parse(bytes).ok().filter(|ip| ip.verify_transport_checksum(bytes))?;
        let IpAddr::V4(from) = ip.src else { return None };
        let transport = ip.transport(bytes);
        if !transport.ends_with(&PAYLOAD) {
            return None;
        }
        if !self.protocol.has_ports() {
            return Some(Heard { from: SocketAddrV4::new(from, 0), kind: Dccp::DATA_ACK });
        }
        let ports = Ports::parse(transport).ok().filter(|ports| ports.dst == self.at.port())?;
        let kind = match self.protocol {
            IpProtocol::DCCP => dccp::Packet::new_checked(transport).ok()?.kind(),
            _ => Dccp::DATA_ACK,
        };
        Some(Heard { from: SocketAddrV4::new(from, ports.src), kind })
    }
}

/// Sends and waits.
///
/// # Errors
/// If a socket cannot be opened or used.
pub(crate) fn exchange(spec: &ExchangeSpec, context: &Context) -> Result<(), LabError> {
    if spec.packets > PACKETS_MAX {
        return Err(context.refuse("at most 1,000 packets"));
    }
    let port = if spec.to.port() == 0 { 0 } else { OWN_PORT };
    let end = End::open(spec.protocol, SocketAddrV4::new(spec.from, port)).during(|| "opening a socket".to_owned())?;
    let wait = spec.answer_ms.map_or(ANSWER_MAX, Duration::from_millis);
    context.ready();
    let mut answered = 0;
    for number in 0..spec.packets {
        if context.stopped() {
            break;
        }
        let kind = match number {
            0 => Dccp::REQUEST,
            1 => Dccp::ACK,
            _ => Dccp::DATA_ACK,
        };
        end.send(spec.to, kind).during(|| format!("sending to {}", spec.to))?;
        let heard = end.receive(wait).during(|| "receiving".to_owned())?;
        answered += u32::from(heard.is_some_and(|heard| heard.from == spec.to));
    }
    context.result(&json!({ "sent": spec.packets, "answered": answered, "by_kernel": end.by_kernel }));
    Ok(())
}

/// Sends back.
///
/// # Errors
/// If a socket cannot be opened or used.
pub(crate) fn mirror(spec: &MirrorSpec, context: &Context) -> Result<(), LabError> {
    let open = |at: &SocketAddrV4| End::open(spec.protocol, *at).during(|| format!("opening a socket at {at}"));
    let ends = spec.at.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    context.ready();
    let reflect = |end: &End| -> io::Result<BTreeMap<String, u64>> {
        let mut heard_of = BTreeMap::new();
        while !context.stopped() {
            let Some(heard) = end.receive(Duration::from_millis(100))? else { continue };
            *heard_of.entry(heard.from.ip().to_string()).or_insert(0) += 1;
            let kind = if heard.kind == Dccp::REQUEST { Dccp::RESPONSE } else { Dccp::DATA_ACK };
            end.send(heard.from, kind)?;
        }
        Ok(heard_of)
    };
    let heard: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = ends.iter().map(|end| scope.spawn(|| reflect(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a panic")))).collect()
    });
    let mut all = BTreeMap::new();
    for heard in heard {
        for (from, packets) in heard.during(|| "reflecting".to_owned())? {
            *all.entry(from).or_insert(0) += packets;
        }
    }
    context.result(&json!({ "heard": all }));
    Ok(())
}
