//! SIP floods over datagrams: messages that cost a front end as much as they can, from many sources.

mod write;

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::json;

use self::write::Writer;
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
/// Nonces that an attacker keeps for its next guesses.
const NONCES_MAX: usize = 64;

/// Specification of the worker `sip_flood`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SipFloodSpec {
    /// The front ends.
    pub to: Vec<SocketAddr>,
    /// Addresses of this host to send from.
    pub sources: Prefix,
    /// Addresses and ports that the first sockets have instead of one of `sources`. Such a socket sends of `recorded` only
    /// what stands there at its own place.
    #[serde(default)]
    pub from: Vec<SocketAddr>,
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
    /// What to send: (kind, how often relative to the others).
    pub mix: Vec<(SipKind, u32)>,
    /// Recorded requests, for `replay`, `again` and `in_dialog`.
    #[serde(default)]
    pub recorded: Vec<String>,
    /// Recorded branches of the front end, without their first seven letters, for every second `response`.
    #[serde(default)]
    pub branches: Vec<String>,
    /// A user's name and password, for `account` and `account_register`.
    #[serde(default)]
    pub account: Option<(String, String)>,
    /// Seed of everything random.
    pub seed: u64,
}

/// A kind of message of a SIP flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SipKind {
    /// INVITEs without credentials.
    Invite,
    /// INVITEs with a wrong digest: over a nonce that the front end gave to this address where there is one.
    BadDigest,
    /// Recorded requests as they were.
    Replay,
    /// Bytes that look like SIP for a while.
    Garbage,
    /// INVITEs with the right digest of `account`, whose answers nobody acknowledges, and others for the nonces of these.
    Account,
    /// The same of REGISTERs.
    AccountRegister,
    /// REGISTERs without credentials.
    Register,
    /// REGISTERs with a wrong digest.
    BadRegister,
    /// BYEs for calls that there are not, with tags and cookies of the right form.
    Bye,
    /// The same of ACKs.
    Ack,
    /// CANCELs for requests that there are not.
    Cancel,
    /// OPTIONS.
    Options,
    /// Answers, half of them to requests that there were.
    Response,
    /// Recorded requests as new ones, with all that proved them.
    Again,
    /// Other requests in the calls of recorded ones.
    InDialog,
    /// Line breaks.
    KeepAlive,
}

/// Runs the worker `sip_flood`: prints requests sent by kind and answers by status; `accepted` (2xx) must stay 0.
pub(crate) fn sip_flood(spec: &SipFloodSpec, context: &Context) -> Result<(), LabError> {
    begin(context, check(spec))?;
    let mut attackers: Vec<Attacker> = (0..spec.sockets)
        .map(|index| Attacker::open(spec, index))
        .collect::<io::Result<_>>()
        .during(|| format!("binding to addresses of {}", spec.sources))?;
    context.ready();
    let mut writer = Writer::new(spec);
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
    if spec.to.is_empty() || spec.users.is_empty() || spec.sockets == 0 || spec.sockets > SOCKETS_MAX {
        return Err(format!("`to` and `users` must not be empty, `sockets` 1 to {SOCKETS_MAX}"));
    }
    bounded(spec.seconds, spec.per_s, "requests")?;
    if spec.mix.iter().all(|(_, weight)| *weight == 0) {
        return Err("the mix is empty: there is nothing to send".to_owned());
    }
    let sends = |kinds: &[SipKind]| spec.mix.iter().any(|(kind, _)| kinds.contains(kind));
    if sends(&[SipKind::Replay, SipKind::Again, SipKind::InDialog]) && spec.recorded.is_empty() {
        return Err("`replay`, `again` and `in_dialog` need `recorded` requests".to_owned());
    }
    if sends(&[SipKind::Account, SipKind::AccountRegister]) && spec.account.is_none() {
        return Err("`account` and `account_register` need an `account`".to_owned());
    }
    Ok(())
}

/// One source address of the flood.
struct Attacker {
    socket: UdpSocket,
    local: SocketAddr,
    front_end: SocketAddr,
    /// The place of what it recorded itself.
    own: Option<usize>,
    /// Nonces that the front end gave to this address, each used once.
    nonces: Vec<String>,
}

impl Attacker {
    fn open(spec: &SipFloodSpec, index: u16) -> io::Result<Self> {
        // The network's own and its broadcast address are left out.
        let any = || SocketAddr::new(nth(spec.sources, 1 + u64::from(index) % 250), 0);
        let own = Some(usize::from(index)).filter(|own| *own < spec.from.len());
        let socket = UdpSocket::bind(own.and_then(|own| spec.from.get(own)).copied().unwrap_or_else(any))?;
        let front_end = spec.to[usize::from(index) % spec.to.len()];
        socket.connect(front_end)?;
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        Ok(Self { socket, local, front_end, own, nonces: Vec::new() })
    }

    fn read_answers(&mut self, answers: &mut BTreeMap<u16, u64>) {
        let mut buffer = [0; 2_048];
        for _ in 0..ANSWERS_PER_TURN {
            let Ok(len) = self.socket.recv(&mut buffer) else { return };
            let answer = buffer.get(..len).unwrap_or_default();
            let Some(status) = status(answer) else { continue };
            *answers.entry(status).or_insert(0) += 1;
            if self.nonces.len() < NONCES_MAX {
                self.nonces.extend(nonce(answer));
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
