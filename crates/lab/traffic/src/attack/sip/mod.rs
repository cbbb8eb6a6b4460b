//! SIP floods: messages that cost a front end as much as they can, from many sources, in datagrams or over connections.

mod attacker;
mod write;

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::json;

use self::{attacker::Attacker, write::Writer};
use super::{begin, bounded};
use crate::{
    datagrams::{BATCH, Batch},
    stream::Connecting,
};
use sluicegate_site::{
    During, LabError, Prefix,
    clock::{FLOOD_REST, Pacer},
    worker::Context,
};

/// Sockets, each with its own source address, of one flood.
const SOCKETS_MAX: u16 = 1_024;

/// Specification of the worker `sip_flood`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SipFloodSpec {
    /// The front ends.
    pub to: Vec<SocketAddr>,
    /// What carries the messages; UDP unless given.
    #[serde(default)]
    pub way: Connecting,
    /// Addresses of this host to send from.
    pub sources: Prefix,
    /// Addresses and ports that the first sockets have instead of one of `sources`. Such a socket sends of `recorded` only
    /// what stands there at its own place. Connections have the address alone.
    #[serde(default)]
    pub from: Vec<SocketAddr>,
    /// Sockets; each has one address of `sources` and one front end. A connection that ends is made anew.
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
    let tls = spec.way.tls().during(|| "preparing TLS".to_owned())?;
    let mut attackers: Vec<Attacker> = (0..spec.sockets)
        .map(|index| Attacker::open(spec, index, tls.as_ref()))
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
            let taken = attacker.send(&mut batch, &payloads);
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
        "requests": sent, "connections": attackers.iter().map(|attacker| attacker.opened).sum::<u64>(), "written": writer.sent, "answers": answers, "accepted": accepted, "ms": paced.elapsed_ms(),
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
