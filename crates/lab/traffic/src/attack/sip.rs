use std::{
    collections::BTreeMap,
    fmt::Write,
    io,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    begin, bounded,
    insider::{BATCH, Batch},
};
use sluicegate_site::{
    During, LabError, Prefix,
    clock::{FLOOD_REST, Pacer},
    nth,
    worker::Context,
};

/// Sockets, each with its own source address, of one flood.
const SOCKETS_MAX: u16 = 1_024;
/// Answers read from a socket each time it sends.
const ANSWERS_PER_TURN: usize = 48;

/// Specification of the worker `sip_flood`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SipFloodSpec {
    /// The front ends.
    pub to: Vec<SocketAddr>,
    /// Addresses of this host to send from.
    pub sources: Prefix,
    /// Sockets; each has one address of `sources` and one front end.
    pub sockets: u16,
    /// Requests a second in all.
    pub per_s: u64,
    /// How long to send.
    pub seconds: u32,
    /// The most requests to send in all.
    pub requests_max: u64,
    /// Realm of the front ends.
    pub realm: String,
    /// Service to ask for.
    pub service: String,
    /// User names to claim; some should exist.
    pub users: Vec<String>,
    /// What to send.
    pub mix: SipMix,
    /// Recorded authorised requests, for `replay`.
    #[serde(default)]
    pub recorded: Vec<String>,
    /// Seed of everything random.
    pub seed: u64,
}

/// How often a SIP flood sends each kind of request, relative to the others.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SipMix {
    /// INVITEs without credentials.
    pub invite: u32,
    /// INVITEs with a wrong digest: over a nonce that the front end gave to this address where there is one.
    pub bad_digest: u32,
    /// Requests that someone else was authorised for.
    pub replay: u32,
    /// Bytes that look like SIP for a while.
    pub garbage: u32,
}

/// Runs the worker `sip_flood`: prints requests sent by kind and answers by status; `accepted` (2xx) must stay 0.
pub(crate) fn sip_flood(spec: &SipFloodSpec, context: &Context) -> Result<(), LabError> {
    begin(context, check(spec))?;
    let mut attackers: Vec<Attacker> = (0..spec.sockets)
        .map(|index| Attacker::open(spec, index))
        .collect::<io::Result<_>>()
        .during(|| format!("binding to addresses of {}", spec.sources))?;
    context.ready();
    let mut writer = Writer { spec, random: Rng::with_seed(spec.seed), serial: 0, sent: BTreeMap::new() };
    let mut batch = Batch::new();
    let mut requests: Vec<String> = vec![String::new(); BATCH];
    let mut answers = BTreeMap::new();
    let pacer = Pacer::new(spec.per_s, BATCH as u64 * 8).resting(FLOOD_REST);
    let mut paced = context.paced(pacer, Duration::from_secs(spec.seconds.into()));
    let (mut sent, mut turn, mut printed, mut done) = (0u64, 0usize, 0, Ok(()));
    while sent < spec.requests_max
        && done.is_ok()
        && let Some(due) = paced.next()
    {
        let mut left = usize::try_from(due).unwrap_or(BATCH);
        while left > 0 && done.is_ok() {
            let count = left.min(BATCH);
            left -= count;
            turn += 1;
            let index = turn % attackers.len();
            let attacker = &mut attackers[index];
            attacker.read_answers(&mut answers);
            requests[..count].iter_mut().for_each(|request| writer.write(request, attacker));
            let payloads: Vec<&[u8]> = requests[..count].iter().map(String::as_bytes).collect();
            let taken = batch.send(&attacker.socket, &payloads);
            done = taken.map(|taken| sent += taken as u64).during(|| "sending".to_owned());
        }
        if done.is_ok() && paced.has_ticked() {
            context.print(&json!({ "event": "tick", "requests": sent - printed, "answers": answers }));
            printed = sent;
        }
    }
    attackers.iter_mut().for_each(|attacker| attacker.read_answers(&mut answers));
    let accepted: u64 = answers.iter().filter(|(status, _)| (200..300).contains(*status)).map(|(_, count)| count).sum();
    context.result(&json!({
        "requests": sent, "written": writer.sent, "answers": answers, "accepted": accepted, "ms": paced.elapsed_ms(),
    }));
    done
}

fn check(spec: &SipFloodSpec) -> Result<(), String> {
    let mix = spec.mix;
    if spec.to.is_empty() || spec.users.is_empty() || spec.sockets == 0 || spec.sockets > SOCKETS_MAX {
        return Err(format!("`to` and `users` must not be empty, `sockets` 1 to {SOCKETS_MAX}"));
    }
    bounded(spec.seconds, spec.per_s, "requests")?;
    if mix.invite + mix.bad_digest + mix.replay + mix.garbage == 0 {
        return Err("the mix is empty: there is nothing to send".to_owned());
    }
    if mix.replay > 0 && spec.recorded.is_empty() {
        return Err("`replay` needs `recorded` requests".to_owned());
    }
    Ok(())
}

/// One source address of the flood.
struct Attacker {
    socket: UdpSocket,
    local: SocketAddr,
    /// The last nonce that the front end gave to this address, used once.
    nonce: Option<String>,
}

impl Attacker {
    fn open(spec: &SipFloodSpec, index: u16) -> io::Result<Self> {
        // The network's own and its broadcast address are left out.
        let socket = UdpSocket::bind((nth(spec.sources, 1 + u64::from(index) % 250), 0))?;
        socket.connect(spec.to[usize::from(index) % spec.to.len()])?;
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        Ok(Self { socket, local, nonce: None })
    }

    fn read_answers(&mut self, answers: &mut BTreeMap<u16, u64>) {
        let mut buffer = [0; 2_048];
        for _ in 0..ANSWERS_PER_TURN {
            let Ok(len) = self.socket.recv(&mut buffer) else { return };
            let answer = buffer.get(..len).unwrap_or_default();
            let Some(status) = status(answer) else { continue };
            *answers.entry(status).or_insert(0) += 1;
            if let Some(nonce) = nonce(answer) {
                self.nonce = Some(nonce);
            }
        }
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    let digits = answer.strip_prefix(b"SIP/2.0 ")?.first_chunk::<3>()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn nonce(answer: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let (_, rest) = text.split_once("nonce=\"")?;
    rest.split_once('"').map(|(nonce, _)| nonce.to_owned())
}

/// Writes the flood's requests.
struct Writer<'a> {
    spec: &'a SipFloodSpec,
    random: Rng,
    serial: u64,
    sent: BTreeMap<&'static str, u64>,
}

impl Writer<'_> {
    fn write(&mut self, request: &mut String, attacker: &mut Attacker) {
        request.clear();
        self.serial += 1;
        let mix = self.spec.mix;
        let up_to_invite = mix.invite;
        let up_to_digest = up_to_invite + mix.bad_digest;
        let up_to_replay = up_to_digest + mix.replay;
        let drawn = self.random.u32(..up_to_replay + mix.garbage);
        let kind = match drawn {
            drawn if drawn < up_to_invite => {
                self.invite(request, attacker.local, None);
                "invite"
            }
            drawn if drawn < up_to_digest => {
                let nonce = attacker.nonce.take().unwrap_or_else(|| format!("{:032x}", self.random.u64(..)));
                self.invite(request, attacker.local, Some(&nonce));
                "bad_digest"
            }
            drawn if drawn < up_to_replay => {
                request.push_str(self.random.choice(&self.spec.recorded).map_or("", String::as_str));
                "replay"
            }
            _ => {
                self.garbage(request, attacker.local);
                "garbage"
            }
        };
        *self.sent.entry(kind).or_insert(0) += 1;
    }

    fn invite(&mut self, request: &mut String, local: SocketAddr, nonce: Option<&str>) {
        let (realm, service) = (&self.spec.realm, &self.spec.service);
        let user = self.random.choice(&self.spec.users).map_or("nobody", String::as_str);
        let tag = self.random.u64(..);
        let body =
            "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n";
        // Writing to a `String` cannot fail.
        let _ = write!(
            request,
            "INVITE sip:{service}@{realm} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{tag:x};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:{user}@{realm}>;tag={tag:x}\r\nTo: <sip:{service}@{realm}>\r\n\
             Call-ID: {:x}.{:x}\r\nCSeq: 1 INVITE\r\nContact: <sip:{user}@{local}>\r\n",
            self.serial,
            self.random.u64(..),
        );
        if let Some(nonce) = nonce {
            let (a, b, c, d) = (self.random.u64(..), self.random.u64(..), self.random.u64(..), self.random.u64(..));
            let _ = write!(
                request,
                "Proxy-Authorization: Digest username=\"{user}\", realm=\"{realm}\", nonce=\"{nonce}\", \
                 uri=\"sip:{service}@{realm}\", response=\"{a:016x}{b:016x}{c:016x}{d:016x}\", algorithm=SHA-256, \
                 qop=auth, nc=00000001, cnonce=\"{tag:x}\"\r\n",
            );
        }
        let _ = write!(request, "Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    }

    /// A request with a random part overwritten, cut at a random place.
    fn garbage(&mut self, request: &mut String, local: SocketAddr) {
        self.invite(request, local, None);
        request.truncate(self.random.usize(..request.len()));
        (0..self.random.u8(..64)).for_each(|_| request.push(self.random.char(..'\u{80}')));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_nonces_are_found_in_answers_only() {
        let answer = b"SIP/2.0 407 Proxy Authentication Required\r\nProxy-Authenticate: Digest realm=\"r\", nonce=\"abc\"\r\n\r\n";
        assert_eq!((status(answer), nonce(answer)), (Some(407), Some("abc".to_owned())));
        assert_eq!((status(b"INVITE sip:x SIP/2.0"), nonce(b"nonce=\"abc")), (None, None));
    }
}
