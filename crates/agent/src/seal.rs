//! Packet MACs on what goes to the service: the trailer that proves each datagram, and what no longer fits a packet
//! because of it.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use sluicegate_capability::{
    Grant, GrantId,
    mac::{Direction, SessionKey, SessionSecret, TRAILER_LEN},
};
use sluicegate_wire::{ipv4, ipv6, udp};
use tokio::net::UdpSocket;
use tracing::{debug, warn};

/// Between two notes about datagrams that are too long.
const NOTE_INTERVAL: Duration = Duration::from_secs(5);
/// Sign-ins of one call whose secrets are kept until one of them is known to have made the key.
const SECRETS_MAX: usize = 8;

/// Numbers and seals the datagrams of one grant, from however many sockets.
#[derive(Debug)]
pub(crate) struct Sealer {
    grant: GrantId,
    client_id: u32,
    key: SessionKey,
    next: AtomicU64,
}

impl PartialEq for Sealer {
    fn eq(&self, other: &Self) -> bool {
        (self.grant, self.client_id) == (other.grant, other.client_id)
    }
}

impl Eq for Sealer {}

impl Sealer {
    const fn new(grant: GrantId, client_id: u32, key: SessionKey) -> Self {
        Self { grant, client_id, key, next: AtomicU64::new(1) }
    }

    /// The trailer for a datagram that is about to be sent. Each call takes a new sequence number.
    fn trailer(&self, payload: &[u8]) -> [u8; TRAILER_LEN] {
        self.key.trailer(self.client_id, self.next.fetch_add(1, Relaxed), payload)
    }
}

/// The secrets of a call's latest sign-ins. The key of a grant is from one of them; the grant's client id says which.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Vec<SessionSecret>);

impl Secrets {
    pub(crate) fn push(&mut self, secret: SessionSecret) {
        if self.0.len() >= SECRETS_MAX {
            self.0.remove(0);
        }
        self.0.push(secret);
    }

    /// The sealer for a grant of mode `mac`: the one in use, if the grant still names its client id, else a new one, and
    /// then the secrets are not needed any more. `None` if the key is from no sign-in that is known here.
    pub(crate) fn sealer(&mut self, grant: &Grant, known: Option<&Arc<Sealer>>) -> Option<Arc<Sealer>> {
        let (id, client_id) = (grant.id, grant.client_id);
        if let Some(known) = known.filter(|known| (known.grant, known.client_id) == (id, client_id)) {
            return Some(Arc::clone(known));
        }
        let secret = self.0.iter().rev().find(|secret| secret.is_of(id, client_id))?;
        let sealer = Sealer::new(id, client_id, secret.key(id, Direction::ToService));
        self.0.clear();
        Some(Arc::new(sealer))
    }
}

/// A UDP socket towards a gate, not connected: the gate's address may change with a renewal.
#[derive(Debug)]
pub(crate) struct GateSocket {
    socket: UdpSocket,
    noted: std::sync::Mutex<Option<Instant>>,
}

impl GateSocket {
    /// A socket of the gate's address family.
    pub(crate) async fn open(gate: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = if gate.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).await?;
        Ok(Self { socket, noted: std::sync::Mutex::default() })
    }

    /// Sends one datagram, sealed if the grant demands that. What cannot be sent is lost, as datagrams are, and noted.
    pub(crate) async fn send(&self, gate: SocketAddr, seal: Option<&Sealer>, payload: &[u8]) {
        let Some(seal) = seal else {
            if let Err(error) = self.socket.send_to(payload, gate).await {
                debug!(%gate, %error, "datagram not sent");
            }
            return;
        };
        let datagram = [payload, &seal.trailer(payload)].concat();
        // A packet MAC is checked on whole datagrams only: the gate refuses fragments, so the kernel is to make none.
        let sent = match whole_only(&self.socket, gate) {
            Ok(()) => self.socket.send_to(&datagram, gate).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match sent {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                self.note_too_long(gate, payload.len()).await;
            }
            Err(error) => debug!(%gate, %error, "datagram not sent"),
            Ok(()) => {}
        }
    }

    /// The next datagram from anywhere.
    pub(crate) async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.recv_from(buffer).await
    }

    async fn note_too_long(&self, gate: SocketAddr, len: usize) {
        {
            let mut noted = self.noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if noted.is_some_and(|at| at.elapsed() < NOTE_INTERVAL) {
                return;
            }
            *noted = Some(Instant::now());
        }
        let mtu = path_mtu(gate).await.unwrap_or(0);
        warn!(
            %gate,
            bytes = len,
            bytes_max = payload_max(gate, mtu),
            mtu,
            "a datagram was not sent: with its packet MAC of {TRAILER_LEN} bytes it does not fit the path's MTU; send shorter ones",
        );
    }
}

/// The longest payload that fits a packet of `mtu` bytes together with its trailer.
const fn payload_max(gate: SocketAddr, mtu: usize) -> usize {
    let ip = if gate.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    mtu.saturating_sub(ip + udp::HEADER_LEN + TRAILER_LEN)
}

fn whole_only(socket: &UdpSocket, gate: SocketAddr) -> io::Result<()> {
    match gate {
        SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DO)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DO)?,
    }
    Ok(())
}

/// What the kernel knows of the path's MTU.
async fn path_mtu(gate: SocketAddr) -> io::Result<usize> {
    let probe = GateSocket::open(gate).await?.socket;
    probe.connect(gate).await?;
    let mtu = if gate.is_ipv4() { sockopt::ip_mtu(&probe)? } else { sockopt::ipv6_mtu(&probe)? };
    Ok(mtu as usize)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use sluicegate_capability::{ANY_PORTS, Mode, mac::ReplayWindow};
    use sluicegate_wire::UnixTime;

    use super::*;

    fn secret(nonce: &str) -> SessionSecret {
        SessionSecret::extract(nonce.as_bytes(), (&[1; 32], &[2; 32]))
    }

    fn grant(client_id: u32) -> Grant {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        Grant {
            flags: 0,
            least_mode: Mode::Mac,
            protocol: 17,
            id: GrantId([3; 16]),
            issuer: [0; 8],
            epoch: 0,
            not_before: UnixTime(1),
            not_after: UnixTime(2),
            bytes: 1,
            client_id,
            flows: 0,
            rate_100kbps: 0,
            client_address: address,
            client_ports: ANY_PORTS,
            gate_address: address,
            gate_ports: (1, 1),
            holder: [0; 32],
            user_pseudonym: [0; 8],
        }
    }

    #[test]
    fn each_datagram_has_a_new_number_and_a_tag_that_the_gate_accepts() {
        let first = secret("n");
        let mut secrets = Secrets::default();
        secrets.push(first.clone());
        let grant = grant(first.client_id(GrantId([3; 16]), 0));
        let sealer = secrets.sealer(&grant, None).unwrap();
        let (key, mut window) = (first.key(grant.id, Direction::ToService), ReplayWindow::default());
        for _ in 0..100 {
            let datagram = [&b"data"[..], &sealer.trailer(b"data")].concat();
            assert!(window.accept(key.check(grant.client_id, &datagram).unwrap()));
        }
    }

    #[test]
    fn a_renewal_with_the_same_client_id_goes_on_and_with_another_finds_the_sign_in_that_made_the_key() {
        let id = GrantId([3; 16]);
        let mut secrets = Secrets::default();
        secrets.push(secret("first"));
        let known = secrets.sealer(&grant(secret("first").client_id(id, 0)), None).unwrap();
        let _ = known.trailer(b"");
        secrets.push(secret("second"));
        let same = secrets.sealer(&grant(known.client_id), Some(&known)).unwrap();
        assert!(Arc::ptr_eq(&known, &same));
        // A renewal that failed here had been booked by the frontend; the next one says so.
        secrets.push(secret("third"));
        let other = secrets.sealer(&grant(secret("second").client_id(id, 1)), Some(&known)).unwrap();
        assert_eq!((other.next.load(Relaxed), other.key == secret("second").key(id, Direction::ToService)), (1, true));
        assert_eq!(secrets.sealer(&grant(12), Some(&known)), None);
    }

    #[test]
    fn the_longest_payload_leaves_room_for_headers_and_trailer() {
        assert_eq!(payload_max("192.0.2.1:1".parse().unwrap(), 1_500), 1_452);
        assert_eq!(payload_max("[2001:db8::1]:1".parse().unwrap(), 1_280), 1_212);
        assert_eq!(payload_max("192.0.2.1:1".parse().unwrap(), 0), 0);
    }
}
