//! What is refused because more arrives than can be served, before anything is spent on it.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use siphasher::sip::SipHasher24;
use sluicegate_bounded::Gauge;
use sluicegate_overload::{
    Adaptive, Aims, Came, Class, Crowd, Engineered, EngineeredError, InDialog, Refusing, Rsoca, Thresholds, Used,
    Verdict,
};
use sluicegate_sip::{keyed_hash, message::HeaderName};
use sluicegate_wire::{Instant, ip::sender_of};

use super::{
    answer::RETRY_AFTER,
    auth::Authenticator,
    context::Context,
    emergency::{Emergency, Lane},
    exchanges::{ExchangeId, Exchanges},
    ladder::Asked,
    registrar::Registrar,
    settings::{OPENING_MAX, Tables},
};
use crate::{
    metrics::{Count, Kind, Measured, Outcome, PerSource},
    transmits::Flow,
};

/// How long the same Call-ID is judged alike, in seconds: who comes again later has another chance.
const JUDGED_ALIKE_S: u64 = 64;
/// Between two measurements.
const INTERVAL: Duration = Duration::from_millis(100);
/// Longer than this no opening takes at a gate that keeps up: half of what is waited for it.
const OPENS_WITHIN: Duration = Duration::from_millis(OPENING_MAX.as_millis() as u64 / 2);
/// After this a request has been sent again: T1 (RFC 3261 section 17.1.1.1).
const SENT_AGAIN: Duration = Duration::from_millis(500);
/// What an INVITE that is being set up takes, in bytes: its request twice, what is known of its call and grants, and two slots.
const TRANSACTION_BYTES: f64 = 6_144.0;
/// INVITEs that are being set up, as shares of the table: from the first on some are refused, from the second on all.
const SETTING_UP: (f64, f64) = (0.25, 0.5);
/// How long INVITEs may ring while memory is short.
const RINGS_MAX: Duration = Duration::from_secs(60);
/// INVITEs that are ended in one turn at most.
const ENDED_PER_TURN: usize = 64;
/// So many messages are what a connection was made for: to ask, and to ask again with credentials.
const FIRST: u32 = 4;
/// As much of a Call-ID as is looked at, in bytes.
const CALL_ID_JUDGED: usize = 256;
/// Ended INVITEs that [`Ages`] bears beyond as many as live.
pub(super) const AGES_SLACK: usize = 1_024;

/// How a frontend meets more requests than it can serve.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Overload {
    /// It serves what it can, as it comes.
    #[default]
    Off,
    /// It measures what it can do, and refuses the rest, of who sends most first.
    Adaptive {
        /// Share of its time that a thread is to be busy at most.
        busy: f64,
        /// From which waiting time on less is let in, and beyond which nothing new is.
        sojourn: (Duration, Duration),
    },
    /// R-SOCA, or the baseline that its paper compares it with, for the load of one shard.
    Rsoca(Engineered, Refusing),
}

#[derive(Debug)]
enum Control {
    /// Measured at this time.
    Off(Instant),
    Adaptive(Box<Adaptive>, Duration),
    Rsoca(Box<Rsoca>),
}

/// Gates that say nothing for so many intervals are dead.
const SILENT_MAX: u32 = 10;

/// How long gates took to open what they were asked for.
#[derive(Debug, Default)]
pub(super) struct GateWaits {
    /// Intervals since any answered: gates that are dead are no load.
    silent: u32,
    shortest: Option<Duration>,
}

impl GateWaits {
    /// A gate answered, or did not in time: then so long after it was asked.
    pub(super) fn note(&mut self, is_answer: bool, waited: Option<Duration>) {
        self.silent = if is_answer { 0 } else { self.silent };
        self.shortest = self.shortest.into_iter().chain(waited).min();
    }

    /// For how much longer than it may everybody has waited since this was asked last. What was asked for first, of what waits
    /// now, was so long ago.
    fn take(&mut self, oldest: Option<Duration>) -> Duration {
        let waited = self.shortest.take().or(oldest).filter(|_| self.silent < SILENT_MAX).unwrap_or_default();
        self.silent = self.silent.saturating_add(1);
        waited.saturating_sub(OPENS_WITHIN)
    }
}

/// A shard's control of its load.
#[derive(Debug)]
pub(super) struct Shedding {
    control: Control,
    key: [u8; 16],
    /// Requests that were judged by themselves.
    draws: u64,
    /// Calls opened at the last measurement.
    opened: u64,
    /// How long what is handled now has waited, and the shortest of datagrams, of streams and of frames since the last measurement.
    waited: Duration,
    shortest: [Option<Duration>; 3],
    /// Datagrams since the last measurement that were lost, since the socket had no room for them.
    lost: u32,
    /// What was handled since, and of it what began something.
    handled: (u32, u32),
    /// Connections at the end of the interval.
    crowd: Crowd,
    /// Whether what is handled now is what a new connection brings.
    is_first: bool,
    /// Whether what is handled now begins something; time spent since the last measurement on what does, and on all.
    begins: bool,
    spent: (Duration, Duration),
    /// Whether INVITEs that ring for long are to be ended.
    age_max: Option<Duration>,
    emergency: Lane,
}

impl Shedding {
    /// # Errors
    /// What is wrong with an engineered load.
    pub(super) fn new(
        overload: Overload,
        emergency: &Emergency,
        tables: &Tables,
        key: [u8; 16],
    ) -> Result<Self, EngineeredError> {
        let control = match overload {
            Overload::Off => Control::Off(Instant::ZERO),
            Overload::Adaptive { busy, sojourn } => {
                let bytes = |share: f64| tables.transactions_max as f64 * TRANSACTION_BYTES * share;
                let memory = Thresholds { min: bytes(SETTING_UP.0), max: bytes(SETTING_UP.1) };
                let aims = Aims { interval: INTERVAL, busy, sojourn, memory };
                Control::Adaptive(Box::new(Adaptive::new(aims, Instant::ZERO)), sojourn.1)
            }
            Overload::Rsoca(engineered, refusing) => {
                Control::Rsoca(Box::new(Rsoca::new(engineered, refusing, Instant::ZERO)?))
            }
        };
        Ok(Self {
            control,
            key,
            draws: 0,
            opened: 0,
            waited: Duration::ZERO,
            shortest: [None; 3],
            lost: 0,
            handled: (0, 0),
            crowd: Crowd::NONE,
            is_first: false,
            begins: false,
            spent: (Duration::ZERO, Duration::ZERO),
            age_max: None,
            emergency: Lane::new(emergency),
        })
    }

    /// What is handled next has waited so long, if that is known, in a way of its own; and is the `nth` that a connection brings.
    pub(super) fn wait(&mut self, waited: Option<Duration>, way: usize, nth: u32) {
        self.is_first = nth <= FIRST;
        self.waited = waited.unwrap_or_default();
        if let (Some(waited), Some(shortest)) = (waited, self.shortest.get_mut(way)) {
            *shortest = Some(shortest.map_or(waited, |shortest| shortest.min(waited)));
        }
    }

    /// What was handled last took so long.
    pub(super) fn spend(&mut self, took: Duration) {
        self.handled.0 += 1;
        self.handled.1 += u32::from(self.begins);
        let begun = if std::mem::take(&mut self.begins) { took } else { Duration::ZERO };
        self.spent = (self.spent.0 + begun, self.spent.1 + took);
    }

    /// Whether anything may be refused, so that it matters what time goes into.
    pub(super) const fn is_on(&self) -> bool {
        !matches!(self.control, Control::Off(_))
    }

    /// When to measure next.
    pub(super) fn due(&self) -> Instant {
        match &self.control {
            Control::Off(measured_at) => *measured_at + INTERVAL,
            Control::Adaptive(adaptive, _) => adaptive.due(),
            Control::Rsoca(rsoca) => rsoca.due(),
        }
    }

    /// So many datagrams were lost since a socket had no room for them.
    pub(super) const fn lose(&mut self, datagrams: u32) {
        self.lost = self.lost.saturating_add(datagrams);
    }

    /// How it is with connections.
    pub(super) const fn crowd(&mut self, crowd: Crowd) {
        self.crowd = crowd;
    }

    /// Ends an interval in which the thread ran for this share of the time, and had something to do for that. So many calls were
    /// opened since the start, and so many are being set up. What was measured, and what follows from it.
    pub(super) fn measure(
        &mut self,
        now: Instant,
        (cpu, busy): (f64, f64),
        (opened, setting_up): (u64, usize),
        (gates, asked): (&mut GateWaits, Option<Duration>),
    ) -> Measured {
        let beyond = gates.take(asked);
        let sojourn = std::mem::take(&mut self.shortest).into_iter().flatten().max().unwrap_or_default();
        let (lost, handled) = (std::mem::take(&mut self.lost), std::mem::take(&mut self.handled));
        let lost = lost_of(lost, handled);
        let (begun, all) = std::mem::take(&mut self.spent);
        // Where nothing is known of it, nothing is excused with it.
        let begun = if all.is_zero() { 1.0 } else { begun.as_secs_f64() / all.as_secs_f64() };
        let used = |bytes: f64| Used {
            cpu,
            begun,
            memory: (setting_up as f64 * bytes) as u64,
            sojourn,
            lost,
            crowd: self.crowd,
        };
        self.age_max = match &mut self.control {
            Control::Off(measured_at) => {
                *measured_at = now;
                None
            }
            Control::Adaptive(adaptive, _) => {
                adaptive.wait_for_others(beyond);
                // Others have the processor for the rest.
                adaptive.measure(now, Used { cpu: busy, ..used(TRANSACTION_BYTES) });
                adaptive.is_memory_short().then_some(RINGS_MAX)
            }
            Control::Rsoca(rsoca) => {
                rsoca.succeed(opened.saturating_sub(self.opened));
                rsoca.measure(now, used(rsoca.transaction_bytes()));
                rsoca.age_max(Class::Invite)
            }
        };
        self.opened = opened;
        Measured { busy: cpu, wait: sojourn, per_source: self.per_source() }
    }

    /// What each source may have of an interval, where that is decided by source.
    fn per_source(&self) -> Option<PerSource> {
        let Control::Adaptive(adaptive, _) = &self.control else { return None };
        let of = |limit: Option<f64>| limit.unwrap_or(f64::INFINITY);
        Some(PerSource { admitted: of(adaptive.level()), heard: of(adaptive.pace()) })
    }

    /// Users whose source is remembered, and sources of calls for help, where that matters.
    pub(super) fn gauges(&self, now: Instant) -> impl Iterator<Item = Gauge> {
        let Control::Adaptive(adaptive, _) = &self.control else { return None.into_iter().flatten() };
        Some([adaptive.gauge(), self.emergency.gauge(now)]).into_iter().flatten()
    }

    /// Whether anything is refused, so that it is to be measured when that can end.
    pub(super) fn is_refusing(&self) -> bool {
        match &self.control {
            Control::Off(_) => false,
            Control::Adaptive(adaptive, _) => adaptive.is_overloaded(),
            Control::Rsoca(rsoca) => rsoca.rejection().probability() > 0.0,
        }
    }

    /// Whether who sends most is refused first.
    const fn is_by_source(&self) -> bool {
        matches!(self.control, Control::Adaptive(..))
    }

    /// Whether to look at a datagram at all.
    fn hears(&mut self, flow: Flow) -> bool {
        let Control::Adaptive(adaptive, _) = &mut self.control else { return true };
        self.draws += 1;
        let draw = || hash(&self.key, &self.draws.to_be_bytes());
        adaptive.hears(draw, source_of(&self.key, flow))
    }

    /// Whether to take a connection, of which nothing is known but its source, and how long it has waited for that.
    fn connects(&mut self, cx: &Context, flow: Flow, waited: Duration) -> bool {
        let Control::Adaptive(adaptive, _) = &mut self.control else { return true };
        self.draws += 1;
        let draw = hash(&self.key, &self.draws.to_be_bytes());
        let is_sieved = cx.settings.sieved.contains(&flow.listener);
        let came = Instant::from_nanos(cx.now.instant.as_nanos().saturating_sub(waited.as_nanos() as u64));
        adaptive.connects(draw, source_of(&self.key, flow), is_sieved.then_some(came))
    }

    /// How many connections may still be taken before the next measurement.
    pub(super) fn connections_left(&self) -> u32 {
        match &self.control {
            Control::Adaptive(adaptive, _) => adaptive.connections_left(),
            Control::Off(_) | Control::Rsoca(_) => u32::MAX,
        }
    }

    /// See [`Adaptive::sieves`].
    pub(super) fn sieves(&self) -> [Option<&[u32]>; 2] {
        match &self.control {
            Control::Adaptive(adaptive, _) => adaptive.sieves(),
            _ => [None; 2],
        }
    }

    /// What is to be done with a request.
    pub(super) fn judge(&mut self, cx: &Context, asked: Asked<'_>, is_shown: bool) -> Verdict {
        let class = class_of(asked);
        match &mut self.control {
            Control::Off(_) => Verdict::Pass,
            // What is within a dialog has its cookie looked at, and competes with nobody.
            Control::Adaptive(..) if matches!(class, Class::InDialog(_)) => Verdict::Pass,
            // Its connection was judged in its place.
            Control::Adaptive(adaptive, _) if self.is_first && adaptive.is_choosing_connections() => Verdict::Pass,
            Control::Adaptive(adaptive, sojourn_max) => {
                self.begins = true;
                let came = if is_shown {
                    Came::Shown
                } else if adaptive.sieves()[0].is_some() && is_sieved(cx, asked) {
                    Came::Sieved
                } else {
                    Came::Past
                };
                let epoch = cx.now.unix.0 / JUDGED_ALIKE_S;
                let call_id = asked.essentials.call_id;
                let call_id = call_id.get(..CALL_ID_JUDGED).unwrap_or(call_id);
                let draw = keyed_hash(&self.key, &[call_id, &epoch.to_be_bytes()]);
                let verdict = adaptive.arrive(draw, source_of(&self.key, asked.flow), came);
                match asked.flow.connection {
                    _ if self.waited <= SENT_AGAIN.max(*sojourn_max) => verdict,
                    // Whoever sent it has sent it again, and what came later is not too late.
                    None => Verdict::Drop,
                    Some(_) => adaptive.reject(draw),
                }
            }
            Control::Rsoca(rsoca) => {
                self.draws += 1;
                let draw = hash(&self.key, &self.draws.to_be_bytes());
                match asked.flow.connection {
                    Some(_) => rsoca.arrive_once(class, draw),
                    None => rsoca.arrive(class, draw),
                }
            }
        }
    }

    /// Whether a request that was refused is let in all the same: a call for help, from where somebody has signed in.
    fn lets_in_for_help(&mut self, cx: &Context, asked: Asked<'_>) -> bool {
        let Control::Adaptive(adaptive, _) = &self.control else { return false };
        let source = source_of(&self.key, asked.flow);
        cx.settings.emergency.is_called(asked)
            && adaptive.has_members(source)
            && self.emergency.take(cx.now.instant, source)
    }

    /// A user has proved to be where this came from.
    pub(super) fn sign_in(&mut self, flow: Flow, user: &str) {
        if let Control::Adaptive(adaptive, _) = &mut self.control {
            adaptive.sign_in(hash(&self.key, user.as_bytes()), source_of(&self.key, flow));
        }
    }

    pub(super) const fn age_max(&self) -> Option<Duration> {
        self.age_max
    }
}

/// Share of what came that was lost and would have begun something, if it was like what was handled. A flood of what ends something
/// is not to have calls refused, which would make no room.
fn lost_of(lost: u32, (handled, began): (u32, u32)) -> f64 {
    if lost == 0 || handled == 0 {
        return 0.0;
    }
    let (lost, handled) = (f64::from(lost), f64::from(handled));
    lost / (lost + handled) * f64::from(began) / handled
}

/// Whose request it is: of an IPv6 /64 all addresses are one host's to take.
fn source_of(key: &[u8; 16], flow: Flow) -> u64 {
    match sender_of(flow.peer.ip()) {
        IpAddr::V4(v4) => hash(key, &v4.octets()),
        IpAddr::V6(v6) => hash(key, &v6.octets()),
    }
}

/// Whether it came through what refuses in front of this process.
fn is_sieved(cx: &Context, asked: Asked<'_>) -> bool {
    let has = |name| asked.message.header(name).is_some();
    matches!(asked.kind, Kind::Invite | Kind::Register)
        && asked.flow.connection.is_none()
        && cx.settings.sieved.contains(&asked.flow.listener)
        && !has(HeaderName::Authorization)
        && !has(HeaderName::ProxyAuthorization)
}

fn hash(key: &[u8; 16], bytes: &[u8]) -> u64 {
    SipHasher24::new_with_key(key).hash(bytes)
}

const fn class_of(asked: Asked<'_>) -> Class {
    let is_in_dialog = asked.essentials.to.tag.is_some();
    match asked.kind {
        Kind::Reinvite => Class::InDialog(InDialog::ReInvite),
        Kind::Bye => Class::InDialog(InDialog::Bye),
        Kind::Prack => Class::InDialog(InDialog::Prack),
        Kind::Update => Class::InDialog(InDialog::Update),
        Kind::Ack => Class::InDialog(InDialog::Ack),
        Kind::Cancel => Class::InDialog(InDialog::Cancel),
        Kind::Invite => Class::Invite,
        _ if is_in_dialog => Class::InDialog(InDialog::Other),
        Kind::Register => Class::Register,
        _ => Class::Other,
    }
}

/// Whether to look at what is no answer to a request of ours. What comes over a connection is held up by its sender's window, and a
/// SIP server that shows who it is sends what many telephones say.
pub(super) fn hears(cx: &Context, shedding: &mut Shedding, registrar: &Registrar, flow: Flow) -> bool {
    flow.connection.is_some() || shedding.hears(flow) || registrar.sender(cx, flow).is_some() || !is_held(cx, flow)
}

/// Whether to take a connection.
pub(super) fn connects(cx: &Context, shedding: &mut Shedding, flow: Flow, waited: Duration) -> bool {
    shedding.connects(cx, flow, waited) || !is_held(cx, flow)
}

/// Whether it is refused for load, unless an operator has lifted that.
fn is_held(cx: &Context, flow: Flow) -> bool {
    let (limits, now) = (&cx.settings.limits, cx.now.instant);
    let is_held = !limits.is_lifted(now, flow.peer.ip());
    if is_held {
        limits.refused_for_load(now, flow.peer);
    }
    is_held
}

/// Refuses a request, if it is to be refused; whether it was. A SIP server that calls for two thousand telephones is one source,
/// and no flood.
pub(super) fn shed(
    cx: &mut Context,
    shedding: &mut Shedding,
    (registrar, authenticator): (&Registrar, &Authenticator),
    asked: Asked<'_>,
) -> bool {
    // Anybody may send datagrams in another's name, but is given no nonce for it.
    let is_shown = shedding.is_by_source()
        && asked.essentials.to.tag.is_none()
        && (asked.flow.connection.is_some() || authenticator.has_given(cx, asked));
    match shedding.judge(cx, asked, is_shown) {
        Verdict::Pass => false,
        Verdict::Reject { .. } if shedding.is_by_source() && registrar.sender(cx, asked.flow).is_some() => false,
        _ if shedding.lets_in_for_help(cx, asked) => {
            cx.metrics.one(Count::Emergency);
            false
        }
        _ if !is_held(cx, asked.flow) => false,
        Verdict::Reject { status, retry_after_s } => {
            let mut digits = itoa::Buffer::new();
            let after = digits.format(retry_after_s);
            cx.answer(asked, (Outcome::Overload, status), &[(RETRY_AFTER, after.as_bytes())]);
            true
        }
        Verdict::Drop => {
            cx.metrics.request(asked.kind, Outcome::Overload);
            true
        }
    }
}

/// Ends INVITEs that ring for longer than they may while memory is short, those that ring longest first.
pub(super) fn end_old(cx: &mut Context, exchanges: &mut Exchanges, age_max: Duration) {
    for _ in 0..ENDED_PER_TURN {
        let Some(id) = exchanges.oldest(|started| cx.now.instant.since(started) >= age_max) else { return };
        cx.metrics.one(Count::EndedEarly);
        exchanges.end_early(cx, id);
    }
}

/// When each INVITE began, oldest first. What has ended stays in it for a while.
#[derive(Debug, Default)]
pub(super) struct Ages(VecDeque<(Instant, ExchangeId)>);

impl Ages {
    /// One more, of `pending` that there are.
    pub(super) fn note(
        &mut self,
        now: Instant,
        id: ExchangeId,
        lives: impl Fn(&(Instant, ExchangeId)) -> bool,
        pending: usize,
    ) {
        if self.0.len() > 2 * pending + AGES_SLACK {
            self.0.retain(lives);
        }
        self.0.push_back((now, id));
    }

    /// Forgets the oldest for as long as they have ended.
    pub(super) fn forget(&mut self, has_ended: impl Fn(&(Instant, ExchangeId)) -> bool) {
        while self.0.pop_front_if(|entry| has_ended(entry)).is_some() {}
    }

    /// The oldest, if it is old enough.
    pub(super) fn oldest(&mut self, is_old: impl Fn(Instant) -> bool) -> Option<ExchangeId> {
        self.0.pop_front_if(|(started, _)| is_old(*started)).map(|(_, id)| id)
    }

    /// When the oldest began.
    pub(super) fn first(&self) -> Option<Instant> {
        self.0.front().map(|(started, _)| *started)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
