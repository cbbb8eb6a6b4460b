//! What an agent proves under a grant's session keys: its datagrams, by a trailer each; what comes back, by the gate's; and
//! the address that its packets come from. And what no longer fits a packet because of a trailer.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use sluicegate_grant::{
    DataMode, Grant, GrantId,
    mac::{Ends, Purpose, ReplayWindow, Sealed, SessionKeys, SessionSecret, TRAILER_LEN},
    tunnel,
};
use sluicegate_wire::{IpProtocol, ip, ipv4, ipv6, udp};
use tokio::{net::UdpSocket, time::timeout};
use tracing::{debug, warn};

use crate::{
    endpoint::{any, connected, leave_by},
    fallback::{Datagrams, Trust, Tunnel},
    opening::Reach,
};

/// Between two notes about datagrams that are too long.
const NOTE_INTERVAL: Duration = Duration::from_secs(5);
/// Sign-ins of one call whose secrets are kept until one of them is known to have made the key.
const SECRETS_MAX: usize = 8;
/// Gates, and keys of each, that one socket listens to: a renewal may move either, and what is on its way still counts.
const PEERS_MAX: usize = 16;
/// How long after its last packet a grant counts as used.
const IN_USE_FOR_S: u64 = 60;
/// How often a socket in use proves its address anew.
const PROOF_INTERVAL: Duration = Duration::from_secs(5);
/// For so long after its last acknowledgement a socket trusts that the gate sees its own address and port.
const SEEN_FOR: Duration = Duration::from_secs(12);
/// How long each proof in front of a connection waits for its acknowledgement.
const PROOF_WAITS_MS: [u64; 5] = [200, 400, 800, 1_600, 2_000];
/// Payload of an acknowledgement: number of the proof 8, address 16 and port 2 that the gate saw, bytes left 8, challenge 8.
const ACK_LEN: usize = 42;
/// Where the address begins, the bytes left, and the challenge.
const ACK_SEEN: usize = 8;
const ACK_LEFT: usize = 26;
const ACK_CHALLENGE: usize = 34;
/// How long the acknowledgement of a repeated challenge is waited for.
const FOLLOWED_WAIT: Duration = Duration::from_millis(400);

/// Numbers and seals what one grant's client sends, from however many sockets.
#[derive(Debug)]
pub(crate) struct Sealer {
    grant: GrantId,
    client_id: u32,
    keys: SessionKeys,
    next: AtomicU64,
    /// What its packets prove: datagrams by trailers in mode `mac`. Of other grants it proves addresses and requests.
    mode: DataMode,
    /// The gate that acknowledged the address last, and when.
    proved: Mutex<Option<(SocketAddr, Instant)>>,
    /// Bytes of the grant's budget that are left, as far as this host knows.
    left: AtomicU64,
    /// The gate has acknowledged none of the last proofs.
    is_silent: AtomicBool,
    /// When a packet was counted last, in seconds of this process.
    counted_at_s: AtomicU64,
    /// By which its packets go to the gate where no UDP passes.
    tunnel: Mutex<Option<Arc<Tunnel>>>,
}

/// Seconds of this process; no wall clock.
fn uptime_s() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs()
}

impl PartialEq for Sealer {
    fn eq(&self, other: &Self) -> bool {
        (self.grant, self.client_id) == (other.grant, other.client_id)
    }
}

impl Eq for Sealer {}

impl Sealer {
    /// The grant under whose keys it seals.
    pub(crate) const fn grant_id(&self) -> GrantId {
        self.grant
    }

    fn new(grant: &Grant, keys: SessionKeys) -> Self {
        Self {
            grant: grant.id,
            client_id: grant.client_id,
            keys,
            next: AtomicU64::new(1),
            mode: grant.least_mode,
            proved: Mutex::new(None),
            left: AtomicU64::new(grant.bytes),
            is_silent: AtomicBool::new(false),
            counted_at_s: AtomicU64::new(0),
            tunnel: Mutex::default(),
        }
    }

    /// Whether every datagram has to carry a trailer.
    pub(crate) const fn seals_datagrams(&self) -> bool {
        matches!(self.mode, DataMode::Mac)
    }

    /// The tunnel of its packets, if there is one.
    pub(crate) fn tunnel(&self) -> Option<Arc<Tunnel>> {
        lock(&self.tunnel).clone()
    }

    /// Has packets go through a tunnel from now on, or past any.
    pub(crate) fn goes_by(&self, tunnel: Option<Arc<Tunnel>>) {
        *lock(&self.tunnel) = tunnel;
        self.is_silent.store(false, Relaxed);
        self.forget_proof();
    }

    /// The gate opens no tunnel for this grant: it may know nothing of it any more.
    pub(crate) fn is_refused(&self) {
        self.is_silent.store(true, Relaxed);
    }

    /// Opens a tunnel to the gate for this grant.
    ///
    /// # Errors
    /// As [`Tunnel::open`].
    pub(crate) async fn open_tunnel(
        &self,
        interface: Option<&str>,
        to: SocketAddr,
        trust: &Trust,
    ) -> io::Result<Tunnel> {
        let prove = |exported: &[u8]| self.trailer(Purpose::Tunnel, &tunnel::ENDS, exported);
        Tunnel::open(interface, (to, trust), self.grant, prove).await
    }

    /// The trailer for something that is about to be sent. Each call takes a new sequence number.
    fn trailer(&self, purpose: Purpose, ends: &Ends, payload: &[u8]) -> [u8; TRAILER_LEN] {
        self.keys.to_service.trailer(self.client_id, purpose, self.next.fetch_add(1, Relaxed), ends, payload)
    }

    /// The trailer of a request for a capability, from what follows its header.
    pub(crate) fn request(&self, destination: IpAddr, upper: IpProtocol, payload: &[u8]) -> [u8; TRAILER_LEN] {
        self.trailer(Purpose::Request, &Ends::of_request(destination, upper), payload)
    }

    /// Checks what a gate sent to `local`.
    fn open(&self, local: SocketAddr, gate: SocketAddr, datagram: &[u8]) -> Option<Sealed> {
        let ends = Ends { client: (local.ip(), local.port()), gate_port: gate.port() };
        self.keys.to_client.check(self.client_id, &ends, datagram).ok()
    }

    /// A proof; `challenge` is what the gate's last acknowledgement asks to have repeated, or nothing.
    fn proof(&self, gate: SocketAddr, challenge: &[u8]) -> Vec<u8> {
        let ends = Ends { client: (Ipv6Addr::UNSPECIFIED.into(), 0), gate_port: gate.port() };
        [challenge, &self.trailer(Purpose::Proof, &ends, challenge)].concat()
    }

    /// Bytes of the grant's budget that are left: as the gate said last, less what was sent without asking it.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Relaxed)
    }

    /// Counts an IP packet that was sent past the sockets of this module.
    pub(crate) fn count(&self, len: usize) {
        // Never 0, which is "not yet".
        self.counted_at_s.store(uptime_s() + 1, Relaxed);
        let _ = self.left.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(len as u64)));
    }

    /// The grant is worth so much, or again.
    pub(crate) fn is_worth(&self, bytes: u64) {
        self.left.store(bytes, Relaxed);
    }

    /// Whether a packet was counted lately.
    pub(crate) fn is_in_use(&self) -> bool {
        let counted_at_s = self.counted_at_s.load(Relaxed);
        counted_at_s > 0 && (uptime_s() + 1).saturating_sub(counted_at_s) < IN_USE_FOR_S
    }

    /// What was acknowledged was another address of this host's.
    pub(crate) fn forget_proof(&self) {
        *lock(&self.proved) = None;
    }

    /// Whether the gate acknowledges nothing any more: it is down, out of reach, or knows nothing of the grant.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Relaxed)
    }

    /// Whether a gate has acknowledged this host's address under this grant already.
    pub(crate) fn is_used(&self) -> bool {
        lock(&self.proved).is_some()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Proves to a gate that this host's packets come from where they come from, if that is asked for, and waits until it says
/// that it knows: before that, it lets no connection in. An acknowledgement counts for a while.
///
/// # Errors
/// `TimedOut` if the gate acknowledges none of several proofs; those of the socket.
pub(crate) async fn prove(reach: &Reach) -> io::Result<()> {
    let (gate, Some(sealer)) = (reach.address, &reach.seal) else { return Ok(()) };
    let proved = *lock(&sealer.proved);
    if proved.is_some_and(|(at, when)| at == gate && when.elapsed() < PROOF_INTERVAL) {
        return Ok(());
    }
    prove_again(None, gate, sealer).await
}

/// As [`prove`], whenever the last acknowledgement came: this one also says what is used of the grant's budget. It leaves by
/// `interface`, whatever the routes say.
///
/// # Errors
/// As [`prove`].
pub(crate) async fn prove_again(interface: Option<&str>, gate: SocketAddr, sealer: &Arc<Sealer>) -> io::Result<()> {
    let socket = GateSocket::open_on(interface, gate, Some(sealer)).await?;
    for wait_ms in PROOF_WAITS_MS {
        socket.listen_to(gate, Some(sealer));
        socket.send_raw(&sealer.proof(gate, b""), gate).await?;
        if let Ok(result) = timeout(Duration::from_millis(wait_ms), socket.acknowledged(gate)).await {
            let challenge = result?;
            *lock(&sealer.proved) = Some((gate, Instant::now()));
            sealer.is_silent.store(false, Relaxed);
            if let Some(challenge) = challenge {
                socket.send_raw(&sealer.proof(gate, &challenge), gate).await?;
                // What is lost is made good by the next proof.
                let _ = timeout(FOLLOWED_WAIT, socket.acknowledged(gate)).await;
            }
            return Ok(());
        }
    }
    // Plain packets may be lost in a flood that those with capabilities pass.
    sealer.is_silent.store(sealer.mode != DataMode::Capability, Relaxed);
    Err(io::Error::new(io::ErrorKind::TimedOut, "the gate does not acknowledge where this host's packets come from"))
}

/// The secrets of a call's latest sign-ins. The keys of a grant are from one of them; the grant's client id says which.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Vec<SessionSecret>);

impl Secrets {
    pub(crate) fn push(&mut self, secret: SessionSecret) {
        if self.0.len() >= SECRETS_MAX {
            self.0.remove(0);
        }
        self.0.push(secret);
    }

    /// The sealer for a grant: the one in use, if the grant still names its client id, else a new one, and then the secrets
    /// are not needed any more. `None` if the keys are from no sign-in that is known here.
    pub(crate) fn sealer(&mut self, grant: &Grant, known: Option<&Arc<Sealer>>) -> Option<Arc<Sealer>> {
        let (id, client_id) = (grant.id, grant.client_id);
        if let Some(known) = known.filter(|known| (known.grant, known.client_id) == (id, client_id)) {
            return Some(Arc::clone(known));
        }
        let secret = self.0.iter().rev().find(|secret| secret.is_of(id, client_id))?;
        let sealer = Sealer::new(grant, secret.keys(id));
        // The tunnel is the grant's, whatever its key.
        *lock(&sealer.tunnel) = known.filter(|known| known.grant == id).and_then(|known| known.tunnel());
        self.0.clear();
        Some(Arc::new(sealer))
    }
}

/// Whom a socket sends to, and under which keys.
#[derive(Debug)]
struct Peer {
    gate: SocketAddr,
    sealer: Option<Arc<Sealer>>,
    /// Of what came back to this socket.
    window: ReplayWindow,
    asked_at: Option<Instant>,
    /// When the gate said last that it sees the socket's own address and port.
    seen_at: Option<Instant>,
    /// The challenge in the last acknowledgement, until somebody asks; zeros: none.
    acknowledged: Option<[u8; 8]>,
}

impl Peer {
    fn is(&self, gate: SocketAddr, sealer: Option<&Arc<Sealer>>) -> bool {
        self.gate == gate && self.sealer.as_ref() == sealer
    }
}

/// What carries datagrams to a gate.
#[derive(Debug)]
enum Carrier {
    Udp(UdpSocket),
    Tunnel(Datagrams),
}

/// A UDP socket towards a gate, not connected: the gate's address may change with a renewal. It hears only those that it
/// sends to; where the grant has packet MACs, only what one of them proves.
#[derive(Debug)]
pub(crate) struct GateSocket {
    socket: Carrier,
    /// Its own address and port, as far as this host knows them.
    local: Mutex<SocketAddr>,
    /// The latest first.
    peers: Mutex<Vec<Peer>>,
    noted: Mutex<Option<Instant>>,
}

impl GateSocket {
    /// A socket of the gate's address family.
    pub(crate) async fn open(reach: &Reach) -> io::Result<Self> {
        Self::open_on(None, reach.address, reach.seal.as_ref()).await
    }

    async fn open_on(interface: Option<&str>, gate: SocketAddr, sealer: Option<&Arc<Sealer>>) -> io::Result<Self> {
        let made =
            |socket, local| Self { socket, local: Mutex::new(local), peers: Mutex::default(), noted: Mutex::default() };
        if let Some(tunnel) = sealer.and_then(|sealer| sealer.tunnel()) {
            let datagrams = tunnel.bind()?;
            let local = datagrams.local.into();
            return Ok(made(Carrier::Tunnel(datagrams), local));
        }
        let socket = UdpSocket::bind(any(gate)).await?;
        leave_by(&socket, interface)?;
        let local = SocketAddr::new(own_address(interface, gate).await?, socket.local_addr()?.port());
        Ok(made(Carrier::Udp(socket), local))
    }

    /// Whether its datagrams go by the way that those of `sealer` go now.
    pub(crate) fn goes_with(&self, sealer: Option<&Arc<Sealer>>) -> bool {
        match (&self.socket, sealer.and_then(|sealer| sealer.tunnel())) {
            (Carrier::Udp(_), None) => true,
            (Carrier::Tunnel(datagrams), Some(tunnel)) => tunnel.address == *datagrams.local.ip(),
            _ => false,
        }
    }

    async fn send_raw(&self, datagram: &[u8], gate: SocketAddr) -> io::Result<()> {
        match &self.socket {
            Carrier::Udp(socket) => socket.send_to(datagram, gate).await.map(drop),
            Carrier::Tunnel(datagrams) => datagrams.send_to(datagram, gate),
        }
    }

    /// This host has another address: datagrams leave from there by themselves, with the same port.
    pub(crate) async fn follow(&self) {
        if matches!(self.socket, Carrier::Tunnel(_)) {
            return;
        }
        let Some(gate) = lock(&self.peers).first().map(|peer| peer.gate) else { return };
        let Ok(address) = own_address(None, gate).await else { return };
        lock(&self.local).set_ip(address);
        for peer in lock(&self.peers).iter_mut() {
            (peer.asked_at, peer.seen_at) = (None, None);
        }
    }

    fn local(&self) -> SocketAddr {
        *lock(&self.local)
    }

    /// Sends one datagram, sealed if the grant demands that. What cannot be sent is lost, as datagrams are, and noted.
    pub(crate) async fn send(&self, reach: &Reach, payload: &[u8]) {
        let (gate, sealer) = (reach.address, reach.seal.as_ref());
        let (purpose, asks) = self.listen_to(gate, sealer);
        let Some(sealer) = sealer.filter(|sealer| sealer.seals_datagrams()) else {
            if let Err(error) = self.send_raw(payload, gate).await {
                debug!(%gate, %error, "datagram not sent");
            }
            return;
        };
        if asks {
            let _ = self.send_raw(&sealer.proof(gate, b""), gate).await;
        }
        let local = self.local();
        let ends = Ends { client: (local.ip(), local.port()), gate_port: gate.port() };
        let datagram = [payload, &sealer.trailer(purpose, &ends, payload)].concat();
        // A packet MAC is checked on whole datagrams only: the gate refuses fragments, so the kernel is to make none.
        let whole = match &self.socket {
            Carrier::Udp(socket) => whole_only(socket, gate),
            Carrier::Tunnel(_) => Ok(()),
        };
        let sent = match whole {
            Ok(()) => self.send_raw(&datagram, gate).await,
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

    /// Hears this gate from now on. Gives what the next datagram to it is sealed as, and whether a proof is due: until the
    /// gate has said that it sees the socket's own address and port, a translator may stand between.
    fn listen_to(&self, gate: SocketAddr, sealer: Option<&Arc<Sealer>>) -> (Purpose, bool) {
        let mut peers = lock(&self.peers);
        match peers.iter().position(|peer| peer.is(gate, sealer)) {
            Some(0) => {}
            Some(at) => peers[..=at].rotate_right(1),
            None => {
                peers.truncate(PEERS_MAX - 1);
                let (sealer, window) = (sealer.cloned(), ReplayWindow::default());
                peers.insert(0, Peer { gate, sealer, window, asked_at: None, seen_at: None, acknowledged: None });
            }
        }
        let Some(peer) = peers.first_mut() else { return (Purpose::Translated, false) };
        let is_recent = |at: Option<Instant>, limit| at.is_some_and(|at| at.elapsed() < limit);
        let asks = !is_recent(peer.asked_at, PROOF_INTERVAL);
        if asks {
            peer.asked_at = Some(Instant::now());
        }
        (if is_recent(peer.seen_at, SEEN_FOR) { Purpose::Datagram } else { Purpose::Translated }, asks)
    }

    /// The next datagram for a program: its length in `buffer` and which gate it came from.
    pub(crate) async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        loop {
            if let Some(received) = self.receive_one(buffer).await? {
                return Ok(received);
            }
        }
    }

    /// The next datagram; `None` if it is not for a program: an acknowledgement, or from somebody else.
    async fn receive_one(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        let (len, from) = match &self.socket {
            Carrier::Udp(socket) => socket.recv_from(buffer).await?,
            Carrier::Tunnel(datagrams) => datagrams.recv_from(buffer).await?,
        };
        let datagram = buffer.get(..len).unwrap_or_default();
        Ok(self.accept(from, datagram).map(|len| (len, from)))
    }

    /// How many bytes of a datagram are for a program.
    fn accept(&self, from: SocketAddr, datagram: &[u8]) -> Option<usize> {
        let mut peers = lock(&self.peers);
        for peer in peers.iter_mut().filter(|peer| peer.gate == from) {
            let Some(sealer) = &peer.sealer else { return Some(datagram.len()) };
            let Some(sealed) = sealer.open(self.local(), from, datagram) else { continue };
            if !peer.window.accept(sealed.seq) {
                return None;
            }
            let text = datagram.get(..datagram.len() - TRAILER_LEN)?;
            return match sealed.purpose {
                Purpose::Datagram | Purpose::Translated => Some(text.len()),
                Purpose::Proof => {
                    peer.acknowledged = text.get(ACK_CHALLENGE..).and_then(|text| text.first_chunk().copied());
                    let (seen, left) = (text.get(ACK_SEEN..ACK_LEFT), text.get(ACK_LEFT..ACK_CHALLENGE));
                    if let Some(left) = left.and_then(|left| left.try_into().ok()) {
                        sealer.is_worth(u64::from_be_bytes(left));
                    }
                    let is_own = seen == Some(&seen_as(self.local())[..]);
                    peer.seen_at = is_own.then(Instant::now);
                    None
                }
                Purpose::Request | Purpose::Tunnel => None,
            };
        }
        None
    }

    /// Waits for an acknowledgement of this gate; the challenge in it, if connections depend on its repetition.
    async fn acknowledged(&self, gate: SocketAddr) -> io::Result<Option<[u8; 8]>> {
        let mut nothing = [0; ACK_LEN + TRAILER_LEN];
        loop {
            let found =
                lock(&self.peers).iter_mut().find_map(|peer| (peer.gate == gate).then(|| peer.acknowledged.take())?);
            if let Some(challenge) = found {
                return Ok(Some(challenge).filter(|challenge| *challenge != [0; 8]));
            }
            self.receive_one(&mut nothing).await?;
        }
    }

    async fn note_too_long(&self, gate: SocketAddr, len: usize) {
        {
            let mut noted = lock(&self.noted);
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

/// The address that packets to `gate` leave with.
async fn own_address(interface: Option<&str>, gate: SocketAddr) -> io::Result<IpAddr> {
    Ok(connected(interface, gate).await?.local_addr()?.ip())
}

/// An address and port as an acknowledgement says them.
fn seen_as(local: SocketAddr) -> [u8; ACK_LEFT - ACK_SEEN] {
    let mut seen = [0; ACK_LEFT - ACK_SEEN];
    seen[..16].copy_from_slice(&ip::octets(local.ip()));
    seen[16..].copy_from_slice(&local.port().to_be_bytes());
    seen
}

/// What the kernel knows of the path's MTU.
async fn path_mtu(gate: SocketAddr) -> io::Result<usize> {
    let probe = connected(None, gate).await?;
    let mtu = if gate.is_ipv4() { sockopt::ip_mtu(&probe)? } else { sockopt::ipv6_mtu(&probe)? };
    Ok(mtu as usize)
}

#[cfg(test)]
mod tests;
