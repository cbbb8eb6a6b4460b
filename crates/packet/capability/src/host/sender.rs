//! One peer as seen by a sender: what was asked, what was granted, and what the routers on the way still remember.

use core::time::Duration;

use sluicegate_wire::{
    Instant,
    capability::{Algorithm, Capability, CapabilityList, FlowNonce, Limits},
};

use super::{
    config::{
        ANSWER_DELAY, ANSWER_WAIT, ASKED_MAX, BURST_BYTES, LIST_PACKETS_MAX, LITTLE_FOR, REFUSED_WAIT,
        REFUSED_WAIT_DOUBLINGS, REQUEST_BURST, REQUEST_INTERVAL, ROUND, ROUNDS_BEFORE_TRIAL, RTT_ASSUMED, SILENCE_MIN,
        UNANSWERED_MIN,
    },
    header::{self, Form},
    policy::life,
};
use crate::secrets;

/// What a sender knows about one destination.
#[derive(Debug, Default)]
pub(super) struct Sender {
    set: Option<Set>,
    asked: [Option<Asked>; ASKED_MAX],
    serial: u32,
    /// Theoretical arrival time of the next request: a bucket of [`REQUEST_BURST`] that refills at the interval.
    next_request: Instant,
    /// Half-seconds in which requests were sent and after which no answer has come.
    rounds: u8,
    round_at: Option<Instant>,
    trial: bool,
    refused_until: Option<Instant>,
    refusals: u8,
    rtt: Option<Duration>,
    silent_since: Option<Instant>,
    /// Packets since then.
    unanswered: u8,
    silences: u8,
    /// Something came back after the last silence was broken.
    silence_answered: bool,
    repaired_at: Option<Instant>,
    renewal_asked_at: Option<Instant>,
    aside: Option<Form>,
    /// Bytes of the largest grant of late, and whether more than a little was asked for since.
    usual: u64,
    asked_for_more: bool,
}

/// One outstanding request or renewal, named by the entry that the sender itself put first into the list.
#[derive(Debug, Clone, Copy)]
struct Asked {
    own: Capability,
    serial: u32,
    at: Instant,
    /// It rode on a capability that may hold still, so nobody asked it to repair anything.
    renews: bool,
}

/// A granted set of capabilities and the model of what routers have charged and cached.
#[derive(Debug)]
struct Set {
    nonce: FlowNonce,
    limits: Limits,
    list: CapabilityList,
    serial: u32,
    asked_at: Instant,
    used: u64,
    /// Packets with the list since routers were last presumed empty.
    carried: u8,
    first_carried: Option<Instant>,
    confirmed: bool,
    cached_until: Instant,
    /// Spent or expired. Kept, so that a grant of the same capabilities is recognised.
    over: bool,
}

/// How a packet goes out, and what goes out beside it in a packet of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) form: Form,
    /// Whether the return information fits beside that.
    pub(super) tells: bool,
    pub(super) aside: Option<Form>,
}

/// The packet does not fit, not even with the shortest header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooBig;

/// What became of return information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    /// It fits an outstanding request: its capabilities are used from now on.
    Accepted,
    /// It answers no outstanding request: late, repeated or forged. Nothing changed.
    Ignored,
}

impl Sender {
    /// How a packet of `base` bytes (all but the capability header) goes out, if no packet may exceed `room`; `ret`: the
    /// bytes of the return information that is waiting, which can wait longer than the packet. `capable`: the far end is
    /// known to speak capabilities, so silence never means that it does not.
    pub(super) fn plan(
        &mut self,
        now: Instant,
        (base, ret): (usize, usize),
        room: usize,
        slots: u8,
        capable: bool,
    ) -> Result<Plan, TooBig> {
        if let Some(form) = self.regular(now, base + ret) {
            return self.fit(now, form, (base, ret), room);
        }
        if !self.may_request(now, capable) {
            return Ok(Plan { form: Form::Bare, tells: true, aside: None });
        }
        let fits = base + ret + header::len(Form::Request, usize::from(slots)) <= room;
        Ok(if fits {
            Plan { form: Form::Request, tells: true, aside: None }
        } else {
            self.aside = Some(Form::Request);
            Plan { form: Form::Bare, tells: true, aside: Some(Form::Request) }
        })
    }

    /// The form of a packet with nothing but a header, sent because [`Plan::aside`] asked for it or to carry an answer.
    pub(super) fn plan_alone(&mut self, now: Instant, base: usize, slots: u8, capable: bool) -> Form {
        let aside = self.aside.take();
        if aside == Some(Form::Request) {
            return Form::Request;
        }
        match self.regular(now, base) {
            Some(form) => aside.unwrap_or(form),
            None if self.may_request(now, capable) && slots > 0 => Form::Request,
            None => Form::Bare,
        }
    }

    /// Whether a packet of `base` bytes would go without a capability while an answer is on its way that may bring one, or
    /// would ask for one although somebody has just asked.
    pub(super) fn awaits(&self, now: Instant, base: usize) -> bool {
        let spent = self.live().is_none_or(|set| {
            let listed = base + header::len(Form::List, set.list.len());
            now >= set.expires_at() || set.used + listed as u64 > set.limits.bytes()
        });
        if !spent || self.refused_until.is_some_and(|until| now < until) {
            return false;
        }
        let answered = self.set.as_ref().map_or(0, |set| set.serial);
        let unanswered = self.asked.iter().flatten().filter(|asked| asked.serial > answered);
        let soon = (self.rtt() * 2).max(ANSWER_DELAY * 2);
        let wait = if self.has_request(now) { soon } else { ANSWER_WAIT };
        unanswered.map(|asked| now.since(asked.at)).min().is_some_and(|since| since < wait)
    }

    /// Whether a packet of its own is wanted.
    pub(super) const fn wants_aside(&self) -> bool {
        self.aside.is_some()
    }

    /// Which regular form suits a packet of about `base` bytes; `None` if no capability is worth it
    /// any more.
    fn regular(&mut self, now: Instant, base: usize) -> Option<Form> {
        let rtt = self.rtt();
        let may_renew = self.renewal_asked_at.is_none_or(|at| now.since(at) >= rtt * 2);
        let set = self.set.as_mut().filter(|set| !set.over)?;
        let listed = base + header::len(Form::List, set.list.len());
        if now >= set.expires_at() || set.used + listed as u64 > set.limits.bytes() {
            set.over = true;
            return None;
        }
        if set.carried > 0 && now >= set.cached_until {
            set.presume_evicted();
        }
        let is_little = set.is_little(now, self.usual);
        Some(if (set.is_due(now) || is_little) && may_renew {
            self.asked_for_more |= is_little;
            Form::Renewal
        } else if set.must_carry() {
            Form::List
        } else {
            Form::Nonce
        })
    }

    fn fit(&mut self, now: Instant, form: Form, (base, ret): (usize, usize), room: usize) -> Result<Plan, TooBig> {
        let entries = self.live().map_or(0, |set| set.list.len());
        let len = |form| base + if form == Form::Bare { 0 } else { header::len(form, entries) };
        if len(Form::Nonce) > room {
            return Err(TooBig);
        }
        let aside = self.break_silence(now);
        if len(form) <= room {
            return Ok(Plan { form, tells: len(form) + ret <= room, aside });
        }
        // The list travels in a packet of its own. It leaves after this one, so before routers have seen a first list
        // this packet goes without a capability.
        self.aside = aside.or(Some(form));
        let form = if self.is_listed() { Form::Nonce } else { Form::Bare };
        Ok(Plan { form, tells: len(form) + ret <= room, aside: self.aside })
    }

    /// Whether the list has left at least once since routers were presumed empty.
    pub(super) fn is_listed(&self) -> bool {
        self.live().is_some_and(|set| set.carried > 0)
    }

    /// Nothing has come back for long: routers may have lost everything, and the notice got lost as well.
    fn break_silence(&mut self, now: Instant) -> Option<Form> {
        let wait = SILENCE_MIN.max(self.rtt() * 3) * (1 << self.silences.min(4));
        let is_over = self.silent_since.is_some_and(|since| now.since(since) >= wait);
        if is_over && self.unanswered < UNANSWERED_MIN {
            // Nobody spoke since. The silence, if it is one, begins now.
            (self.silent_since, self.unanswered) = (Some(now), UNANSWERED_MIN);
            return None;
        }
        if !is_over || !self.take_request(now) {
            return None;
        }
        self.silent_since = Some(now);
        self.silences = self.silences.saturating_add(1);
        // A receiver that has nothing to say answers a renewal as well, and knows from it who asks. Only if not even
        // that brings an answer may the way have changed.
        let answered = core::mem::replace(&mut self.silence_answered, false) || self.silences == 1;
        self.aside = Some(if answered { Form::Renewal } else { Form::Request });
        self.aside
    }

    /// Whether a request may leave now, and not a packet without capability.
    fn may_request(&mut self, now: Instant, capable: bool) -> bool {
        if self.refused_until.is_some_and(|until| now < until) || !self.has_request(now) {
            return false;
        }
        if !capable && self.rounds >= ROUNDS_BEFORE_TRIAL {
            // Every other one goes plain: what answers it tells a far end without capabilities from a lossy path.
            self.trial = !self.trial;
            if self.trial {
                return false;
            }
        }
        self.take_request(now)
    }

    fn has_request(&self, now: Instant) -> bool {
        // Whoever has been refused asks once and waits for the answer.
        let burst = if self.refusals > 0 { 1 } else { REQUEST_BURST };
        self.next_request <= now + self.request_interval() * (burst - 1)
    }

    fn take_request(&mut self, now: Instant) -> bool {
        let allowed = self.has_request(now);
        if allowed {
            self.next_request = self.next_request.max(now) + self.request_interval();
        }
        allowed
    }

    /// The interval grows while nobody answers.
    fn request_interval(&self) -> Duration {
        REQUEST_INTERVAL * (1 << (self.rounds / 4).min(2))
    }

    /// Records that a request or renewal leaves now, named by `own`, the first entry of its list.
    pub(super) fn asks(&mut self, now: Instant, form: Form, own: Capability) {
        self.serial += 1;
        let renews = form == Form::Renewal;
        self.asked[self.serial as usize % ASKED_MAX] = Some(Asked { own, serial: self.serial, at: now, renews });
        if renews {
            self.renewal_asked_at = Some(now);
            return;
        }
        if self.round_at.is_none_or(|at| now.since(at) >= ROUND) {
            self.round_at = Some(now);
            self.rounds = self.rounds.saturating_add(1);
        }
    }

    fn live(&self) -> Option<&Set> {
        self.set.as_ref().filter(|set| !set.over)
    }

    /// What a regular packet carries.
    pub(super) fn regular_parts(&self) -> Option<(FlowNonce, Limits, &CapabilityList)> {
        self.live().map(|set| (set.nonce, set.limits, &set.list))
    }

    /// Charges a regular packet of `len` bytes, all headers included, as every router on the way will.
    pub(super) fn sent(&mut self, now: Instant, form: Form, len: usize) {
        let Some(set) = self.set.as_mut() else { return };
        if !form.is_regular() {
            return;
        }
        set.used += len as u64;
        set.cached_until = set.cached_until.max(now) + set.time_of(len as u64);
        if form != Form::Nonce {
            set.carried = set.carried.saturating_add(1);
            set.first_carried.get_or_insert(now);
        }
        self.silent_since.get_or_insert(now);
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// A packet with a capability header came from the peer, without a demotion notice. `traffic`: it carries more than
    /// the header. A peer that only ever answers leaves a one-way flow, which asks ever more rarely.
    pub(super) fn heard(&mut self, now: Instant, traffic: bool) {
        (self.silent_since, self.unanswered) = (None, 0);
        self.silence_answered = true;
        if traffic {
            self.silences = 0;
        }
        let rtt = self.rtt();
        if let Some(set) = self.set.as_mut()
            && set.first_carried.is_some_and(|at| now.since(at) >= rtt)
        {
            set.confirmed = true;
        }
    }

    /// Takes a granted list, if it answers an outstanding request.
    ///
    /// The first entry of every list that leaves this host is its own: 56 random bits, sealed by whoever grants. Only
    /// a host that received the request can return it, so nobody off the path can forge an answer.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        algorithm: Algorithm,
        limits: Limits,
        list: CapabilityList,
        nonce: FlowNonce,
    ) -> Answered {
        let Some(first) = list.get(0) else { return Answered::Ignored };
        let fits = |asked: &&Asked| secrets::seal(algorithm, asked.own, limits).ct_eq(&first);
        let Some(asked) = self.asked.iter().flatten().find(fits).copied() else { return Answered::Ignored };
        if self.set.as_ref().is_some_and(|set| asked.serial <= set.serial) {
            return Answered::Ignored;
        }
        for held in &mut self.asked {
            if held.is_some_and(|held| held.serial <= asked.serial) {
                *held = None;
            }
        }
        let sample = now.since(asked.at);
        self.rtt = Some(self.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
        // Routers mint the same pre-capability twice within one of their seconds, and charge both sets as one.
        // Who gets little again although he asked for more, will in time take that for what is usual.
        let is_little = core::mem::take(&mut self.asked_for_more) && limits.bytes() * 4 < self.usual * 3;
        let given_up = if is_little { self.usual / 8 } else { 0 };
        self.usual = limits.bytes().max(self.usual - given_up);
        let old = self.set.as_ref().filter(|old| old.shares_a_capability(limits, &list));
        let used = old.map_or(0, |old| old.used);
        self.set = Some(Set {
            nonce,
            limits,
            list,
            serial: asked.serial,
            asked_at: asked.at,
            used,
            carried: 0,
            first_carried: None,
            confirmed: false,
            cached_until: Instant::ZERO,
            over: false,
        });
        self.give_up();
        (self.refused_until, self.refusals) = (None, 0);
        self.renewal_asked_at = None;
        if !asked.renews {
            self.repaired_at = Some(now);
        }
        self.heard(now, false);
        Answered::Accepted
    }

    /// The destination refused. Nothing in an empty list proves who sent it, so it counts only while a request is
    /// outstanding, costs no capability that is still good, and yields to a grant that comes after it.
    pub(super) fn refused(&mut self, now: Instant) -> Answered {
        let outstanding = self.asked.iter().flatten().any(|asked| now.since(asked.at) < ANSWER_WAIT);
        if !outstanding || self.refused_until.is_some_and(|until| now < until) {
            return Answered::Ignored;
        }
        self.refused_until = Some(now + REFUSED_WAIT * (1 << self.refusals));
        self.refusals = (self.refusals + 1).min(REFUSED_WAIT_DOUBLINGS);
        self.give_up();
        self.heard(now, false);
        Answered::Accepted
    }

    /// The receiver says that packets arrived demoted. Routers lost the capability or the way changed: the list, which
    /// may still be valid, goes out again at once, and a request beside it. Returns whether that is wanted; at most
    /// once a round trip, so forged notices cost some bytes and no more. For as long after a request was granted, notices
    /// are about what was sent before the new list: asking again for that would look like somebody who is never content.
    pub(super) fn noticed(&mut self, now: Instant) -> bool {
        let rtt = self.rtt();
        (self.silent_since, self.unanswered) = (None, 0);
        let again = self.repaired_at.is_none_or(|at| now.since(at) >= rtt + ANSWER_DELAY);
        let Some(set) = self.set.as_mut().filter(|set| again && !set.over) else { return false };
        set.presume_evicted();
        self.repaired_at = Some(now);
        if self.refused_until.is_none_or(|until| now >= until) && self.take_request(now) {
            self.aside = Some(Form::Request);
        }
        self.aside.is_some()
    }

    /// Wants the list to leave in a packet of its own.
    pub(super) const fn send_list_alone(&mut self) -> bool {
        if self.aside.is_none() {
            self.aside = Some(Form::List);
        }
        true
    }

    /// Whether `own` names an outstanding request.
    pub(super) fn is_outstanding(&self, own: Capability) -> bool {
        self.asked.iter().flatten().any(|asked| asked.own.ct_eq(&own))
    }

    /// Whether requests went out in at least two rounds and no answer came.
    pub(super) const fn is_on_trial(&self) -> bool {
        self.rounds >= ROUNDS_BEFORE_TRIAL
    }

    /// The far end was found not to speak capabilities: when that is forgotten, it gets a fresh try.
    pub(super) const fn give_up(&mut self) {
        (self.rounds, self.round_at, self.trial) = (0, None, false);
    }

    /// The measured time from request to answer, or the assumption before the first.
    fn rtt(&self) -> Duration {
        self.rtt.unwrap_or(RTT_ASSUMED)
    }

    /// The limits, the bytes used and the end of the capabilities held, for status.
    pub(super) fn held(&self, now: Instant) -> Option<(Limits, u64, Instant)> {
        let set = self.live().filter(|set| now < set.expires_at())?;
        Some((set.limits, set.used, set.expires_at()))
    }

    /// Until when the destination's refusal is respected.
    pub(super) fn refused_until(&self, now: Instant) -> Option<Instant> {
        self.refused_until.filter(|until| now < *until)
    }
}

impl Set {
    /// How long routers remember a flow for `len` more bytes: L * T / N.
    fn time_of(&self, len: u64) -> Duration {
        let seconds = u64::from(self.limits.seconds());
        Duration::from_nanos(len.saturating_mul(seconds * 1_000_000_000) / self.limits.bytes())
    }

    fn expires_at(&self) -> Instant {
        self.asked_at + life(self.limits)
    }

    fn left(&self) -> u64 {
        self.limits.bytes().saturating_sub(self.used)
    }

    /// Whether half of the usable T or of N is gone, or as much of it that what TCP sends before an answer comes no longer
    /// fits: more than that of a small N.
    fn is_due(&self, now: Instant) -> bool {
        let all = self.limits.bytes();
        let ahead = (all / 2).max(BURST_BYTES.min(all / 4 * 3));
        now.since(self.asked_at) >= life(self.limits) / 2 || self.left() <= ahead
    }

    /// Whether this grant was smaller than usual, is some time old, and less than 3/4 of a usual one is left of it: the
    /// destination had been asked for too much just then, and has more after a while. Who waited until half of the
    /// little is gone would send the rest of TCP's first window without a capability.
    fn is_little(&self, now: Instant, usual: u64) -> bool {
        let left = self.left();
        self.limits.bytes() < usual && left * 4 < usual * 3 && now.since(self.asked_at) >= LITTLE_FOR
    }

    const fn must_carry(&self) -> bool {
        !self.confirmed && self.carried < LIST_PACKETS_MAX
    }

    fn presume_evicted(&mut self) {
        (self.carried, self.first_carried, self.confirmed) = (0, None, false);
    }

    fn shares_a_capability(&self, limits: Limits, list: &CapabilityList) -> bool {
        let routers = || list.iter().skip(1);
        let common = |held: Capability| routers().any(|new| held.ct_eq(&new));
        self.limits == limits && self.list.iter().skip(1).any(common)
    }
}
