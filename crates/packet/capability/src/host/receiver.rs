//! One peer as seen by a receiver: what it was granted, what it has proved, and what it is still to be told.

use core::time::Duration;

use sluicegate_wire::{
    Instant,
    capability::{Algorithm, CAPABILITIES_MAX, Capability, CapabilityList, FlowNonce, Limits, Return, shim::Carriage},
};

use super::{
    config::{ANSWER_AGAIN, ANSWER_COPIES, ANSWER_WAIT, GRANT_SECONDS_MAX, NOTICE_INTERVAL},
    random::Keyed,
};
use crate::secrets;

const GRANTED: usize = 4;
/// For how long a router mints under one stamp.
const STAMP_FOR: Duration = Duration::from_secs(1);

/// What a receiver knows about one sender.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    answer: Option<Answer>,
    notice: bool,
    noticed_at: Option<Instant>,
    /// The newest, the one that was used last, and older ones that were never used: their capabilities may still come.
    granted: [Option<Granted>; GRANTED],
    nonce: Option<FlowNonce>,
    /// The flow before, or one that routers let pass on a grant whose list never came.
    vouched: Option<FlowNonce>,
    bytes: u64,
    overrun: bool,
    /// The first packet with a list that was asked for anew has come, and nobody has heard of it.
    begun: Option<Limits>,
    rtt: Option<Duration>,
}

/// A list that was granted, by its keyed digest: enough to recognise who received it.
#[derive(Debug, Clone, Copy)]
struct Granted {
    digest: u64,
    limits: Limits,
    at: Instant,
    used: bool,
    /// Whether the packet that asked for it proved who sent it.
    renewal: bool,
    /// When routers minted the pre-capabilities, by their own clocks.
    stamps: [u8; CAPABILITIES_MAX],
    /// Whether a router was among them: the first is the sender's own.
    by_routers: bool,
    /// How many grants of that second were used before.
    step: u16,
}

impl Granted {
    /// Whether routers charge both as one: several requests within a round trip are answered with the same capabilities,
    /// and whoever sends fast from the start uses them one after the other without getting more.
    fn is_the_same_to_routers(&self, other: &Self) -> bool {
        let apart = self.at.since(other.at).max(other.at.since(self.at));
        // The first entry is the sender's own.
        self.limits == other.limits && self.stamps[1..] == other.stamps[1..] && apart < STAMP_FOR
    }
}

/// An answer that the sender has not used yet.
#[derive(Debug, Clone, Copy)]
struct Answer {
    list: (Option<Limits>, CapabilityList),
    at: Instant,
    copies: u8,
    carriage: Carriage,
}

impl Receiver {
    /// Seals pre-capabilities and keeps the answer for the way back. Within one second routers mint the same
    /// pre-capability again, so each renewal of that second gets slightly other limits: another capability, which
    /// routers know as the newer one.
    pub(super) fn grant(
        &mut self,
        now: Instant,
        keyed: &Keyed,
        algorithm: Algorithm,
        limits: Limits,
        (pre, renewal): (&CapabilityList, bool),
        carriage: Carriage,
    ) {
        let mut stamps = [0; CAPABILITIES_MAX];
        for (stamp, pre) in stamps.iter_mut().zip(pre.iter()) {
            *stamp = pre.timestamp();
        }
        let same_second = |last: &Granted| last.stamps.iter().zip(&stamps).take(pre.len()).any(|(a, b)| a == b);
        let last = self.granted[0].filter(same_second);
        // The first stamp is the sender's own choice: it may keep a second from ever ending.
        let step = last.map_or(0, |last| last.step.saturating_add(u16::from(last.used)));
        let varied = vary(limits, step);
        let limits = last.map_or(varied, |last| not_older(varied, &last));
        let list: CapabilityList = pre.iter().map(|pre| secrets::seal(algorithm, pre, limits)).collect();
        let digest = digest(keyed, limits, &list);
        if self.granted[0].is_none_or(|last| last.used) {
            self.granted[1] = self.granted[0];
        } else {
            // Forged requests cost only what was never used.
            self.granted[2..].rotate_right(1);
            self.granted[2] = self.granted[0];
        }
        self.granted[0] =
            Some(Granted { digest, limits, at: now, used: false, renewal, stamps, by_routers: pre.len() > 1, step });
        self.answer = Some(Answer { list: (Some(limits), list), at: now, copies: ANSWER_COPIES, carriage });
    }

    /// Whether the newest grant was given just now, and the sender may not have heard of it.
    pub(super) fn is_answering(&self, now: Instant) -> bool {
        let again_for = ANSWER_AGAIN.max(self.rtt.unwrap_or_default() * 2).min(ANSWER_WAIT);
        let fresh = |answer: &Answer| !answer.list.1.is_empty() && now.since(answer.at) < again_for;
        self.answer.as_ref().is_some_and(fresh) && self.granted[0].is_some_and(|newest| !newest.used)
    }

    /// Answers once more with the newest grant.
    pub(super) fn again(&mut self) {
        if let Some(answer) = &mut self.answer {
            answer.copies = ANSWER_COPIES;
        }
    }

    /// Keeps a refusal for the way back.
    pub(super) fn refuse(&mut self, now: Instant, carriage: Carriage) {
        let list = (None, CapabilityList::new());
        self.answer = Some(Answer { list, at: now, copies: 1, carriage });
    }

    /// Whether a regular packet proves that its sender received what this host granted: it carries a list that was
    /// granted, or the nonce of a flow that once did.
    pub(super) fn proves(
        &mut self,
        now: Instant,
        keyed: &Keyed,
        nonce: FlowNonce,
        list: Option<(Limits, &CapabilityList)>,
    ) -> bool {
        let digest = list.map(|(limits, list)| digest(keyed, limits, list));
        let at = self.granted.iter().position(|held| held.is_some_and(|held| Some(held.digest) == digest));
        let is_known = self.granted.iter().flatten().any(|used| {
            let new = at.and_then(|at| self.granted[at]);
            used.used && new.is_some_and(|new| new.is_the_same_to_routers(used))
        });
        if let Some(granted) = at.and_then(|at| self.granted[at].as_mut()) {
            if !granted.used {
                let sample = now.since(granted.at);
                // A sender with nothing to send makes a sample longer, never shorter.
                self.rtt = Some(self.rtt.map_or(sample, |rtt| sample.min((rtt * 7 + sample) / 8)));
                if !granted.renewal && !is_known {
                    self.begun = Some(granted.limits);
                }
            }
            granted.used = true;
            if self.granted[0].is_some_and(|newest| newest.used)
                && self.answer.is_some_and(|answer| !answer.list.1.is_empty())
            {
                self.answer = None;
            }
            if self.nonce != Some(nonce) {
                // Packets of the flow before may still come, and begin nothing.
                self.vouched = self.nonce.replace(nonce);
                (self.bytes, self.overrun) = (0, false);
            }
            return true;
        }
        self.nonce == Some(nonce)
    }

    /// Whether a regular packet that was not demoted uses a grant whose list this host has not seen. The list may have got
    /// lost, or been made to: routers that minted for the request demote what has no capability, so what they pass is the
    /// use of one. It is charged as such, but proves nothing to anybody else.
    pub(super) fn uses_unseen(&mut self, nonce: FlowNonce) -> bool {
        if self.vouched == Some(nonce) {
            return true;
        }
        let unused = |granted: &&mut Granted| !granted.used && granted.by_routers;
        let Some(granted) = self.granted.iter_mut().flatten().find(unused) else { return false };
        granted.used = true;
        if !granted.renewal {
            self.begun = Some(granted.limits);
        }
        self.vouched = Some(nonce);
        true
    }

    /// Counts a regular packet that was not demoted; true for the one with which the sender exceeded twice its N,
    /// the most that routers ever let pass.
    pub(super) fn count(&mut self, len: usize) -> bool {
        self.bytes += len as u64;
        let most = self.granted.iter().flatten().map(|granted| granted.limits.bytes()).max().unwrap_or(u64::MAX / 2);
        let first = !self.overrun && self.bytes > most * 2;
        self.overrun |= first;
        first
    }

    /// Wants a demotion notice to be sent; false if the last one is too fresh.
    pub(super) fn notice(&mut self, now: Instant) -> bool {
        let due = self.noticed_at.is_none_or(|at| now.since(at) >= NOTICE_INTERVAL);
        self.notice |= due;
        due
    }

    /// What the next packet over `carriage` tells the peer.
    pub(super) fn telling(&mut self, now: Instant, carriage: Carriage) -> Option<Return> {
        if self.answer.is_some_and(|answer| now.since(answer.at) >= ANSWER_WAIT) {
            self.answer = None;
        }
        let fits = |answer: &Answer| answer.copies > 0 && answer.carriage == carriage;
        let list = self.answer.filter(fits).map(|answer| answer.list);
        (self.notice || list.is_some()).then_some(Return { demoted: self.notice, list })
    }

    /// The peer has been told, in a packet that is on its way.
    pub(super) fn told(&mut self, now: Instant, ret: &Return) {
        if ret.demoted {
            (self.notice, self.noticed_at) = (false, Some(now));
        }
        if let Some(answer) = self.answer.as_mut().filter(|_| ret.list.is_some()) {
            answer.copies = answer.copies.saturating_sub(1);
        }
    }

    /// Whether there is something to tell that no packet has carried yet.
    pub(super) fn waits(&self) -> bool {
        let unsent = |answer: &Answer| answer.list.1.is_empty() || answer.copies == ANSWER_COPIES;
        self.notice || self.answer.as_ref().is_some_and(|answer| answer.copies > 0 && unsent(answer))
    }

    /// Where a waiting answer is to go.
    pub(super) fn answer_carriage(&self) -> Option<Carriage> {
        self.answer.as_ref().filter(|answer| answer.copies > 0).map(|answer| answer.carriage)
    }

    /// Whether the peer was ever granted anything.
    pub(super) const fn has_grants(&self) -> bool {
        self.granted[0].is_some()
    }

    /// Whether packets of the peer can prove that they come from whom this host granted to.
    pub(super) const fn has_proof(&self) -> bool {
        self.nonce.is_some()
    }

    /// The time from an answer to its first use.
    pub(super) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// What the sender was granted anew and has just begun to use, once.
    pub(super) const fn begun(&mut self) -> Option<Limits> {
        self.begun.take()
    }

    /// The newest grant, if the sender has not used it and these pre-capabilities would make the same capabilities of
    /// it: no router's second is another. The sender's own entry, the first, is no router's.
    pub(super) fn repeats(&self, pre: &CapabilityList) -> Option<Limits> {
        let last = self.granted[0].filter(|last| !last.used)?;
        let same = pre.iter().zip(&last.stamps).skip(1).all(|(pre, stamp)| pre.timestamp() == *stamp);
        same.then_some(last.limits)
    }

    /// The newest grant that has not ended.
    pub(super) fn granted(&self, now: Instant) -> Option<Limits> {
        let live = |granted: &Granted| now.since(granted.at).as_secs() < u64::from(granted.limits.seconds());
        self.granted[0].filter(live).map(|granted| granted.limits)
    }
}

/// The limits of the grant that follows `step` others of the same second. Of two capabilities of a flow that were
/// minted in one second, routers hold the one with the larger T for the newer one, and of equal T the one with the
/// smaller N. So N becomes a kilobyte smaller each time, down to three quarters, and then T a second longer.
fn vary(limits: Limits, step: u16) -> Limits {
    let seconds = limits.seconds().min(GRANT_SECONDS_MAX);
    let steps = (limits.kilobytes() / 4).max(1);
    let (more, less) = (step / steps, step % steps);
    let most = Limits::SECONDS_MAX - seconds;
    let (more, less) = if more > u16::from(most) { (most, steps - 1) } else { (more as u8, less) };
    Limits::new(limits.kilobytes() - less, seconds + more).unwrap_or(limits)
}

/// `limits`, unless routers would take them for those of an older capability than the last of the same second: a policy
/// that granted less because much was asked for, and now would grant more, must wait for the next second.
fn not_older(limits: Limits, last: &Granted) -> Limits {
    let order = |limits: Limits| (limits.seconds(), Limits::KILOBYTES_MAX - limits.kilobytes());
    let is_newer = order(limits) > order(last.limits) || limits == last.limits && !last.used;
    let smaller = last.limits.kilobytes() - u16::from(last.used);
    let newer = Limits::new(smaller, last.limits.seconds()).or(Limits::new(1, last.limits.seconds() + 1));
    if is_newer { limits } else { newer.unwrap_or(limits) }
}

fn digest(keyed: &Keyed, limits: Limits, list: &CapabilityList) -> u64 {
    let mut bytes = [0; 2 + 8 * CAPABILITIES_MAX];
    bytes[..2].copy_from_slice(&limits.bits().to_be_bytes());
    for (chunk, Capability(value)) in bytes[2..].chunks_exact_mut(8).zip(list.iter()) {
        chunk.copy_from_slice(&value.to_be_bytes());
    }
    keyed.hash(bytes.get(..2 + 8 * list.len()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(kilobytes: u16, seconds: u8) -> Limits {
        Limits::new(kilobytes, seconds).unwrap()
    }

    #[test]
    fn a_sender_whose_second_never_ends_is_granted_on_and_on() {
        let keyed = Keyed::new([3; 16]);
        let mut receiver = Receiver::default();
        let pre: CapabilityList = [Capability::new(9, 1)].into_iter().collect();
        let now = Instant::from_secs(1);
        for _ in 0..=u32::from(u16::MAX) + 1 {
            receiver.grant(now, &keyed, Algorithm::SipHash, limits(32, 10), (&pre, true), Carriage::Native);
            let (granted, list) = receiver.answer.unwrap().list;
            assert!(receiver.proves(now, &keyed, FlowNonce(1), Some((granted.unwrap(), &list))));
        }
        assert_eq!(receiver.granted[0].unwrap().step, u16::MAX);
    }

    #[test]
    fn what_routers_let_pass_is_the_use_of_a_grant_whose_list_never_came() {
        let keyed = Keyed::new([3; 16]);
        let now = Instant::from_secs(1);
        let granted = |receiver: &mut Receiver, entries: u64, second: u8| {
            let pre: CapabilityList = (0..entries).map(|entry| Capability::new(second, entry)).collect();
            receiver.grant(now, &keyed, Algorithm::SipHash, limits(32, 10), (&pre, false), Carriage::Native);
        };
        let mut receiver = Receiver::default();
        granted(&mut receiver, 1, 9);
        assert!(!receiver.uses_unseen(FlowNonce(1)), "no router minted: who lets it pass vouches for nothing");
        granted(&mut receiver, 3, 10);
        assert!(receiver.uses_unseen(FlowNonce(1)) && receiver.begun() == Some(limits(32, 10)));
        assert!(receiver.uses_unseen(FlowNonce(1)) && receiver.begun().is_none(), "once for each grant");
        assert!(!receiver.uses_unseen(FlowNonce(2)), "nothing that was not granted");
        assert!(!receiver.proves(now, &keyed, FlowNonce(1), None), "proves nothing");
        granted(&mut receiver, 3, 11);
        assert!(receiver.uses_unseen(FlowNonce(2)) && receiver.begun() == Some(limits(32, 10)));
        let (granted, list) = receiver.answer.unwrap().list;
        assert!(receiver.proves(now, &keyed, FlowNonce(2), Some((granted.unwrap(), &list))));
        assert_eq!(receiver.begun(), None, "the list comes late and is charged once");
        let pre: CapabilityList = (0..3).map(|entry| Capability::new(12, entry)).collect();
        receiver.grant(now, &keyed, Algorithm::SipHash, limits(32, 10), (&pre, false), Carriage::Native);
        let (granted, list) = receiver.answer.unwrap().list;
        assert!(receiver.proves(now, &keyed, FlowNonce(3), Some((granted.unwrap(), &list))));
        let _ = receiver.begun();
        receiver.grant(now, &keyed, Algorithm::SipHash, limits(32, 10), (&pre, false), Carriage::Native);
        assert!(receiver.uses_unseen(FlowNonce(2)) && receiver.begun().is_none(), "overtaken by the next flow");
    }

    #[test]
    fn answers_with_the_same_capabilities_are_charged_once() {
        let keyed = Keyed::new([3; 16]);
        let now = Instant::from_secs(1);
        let mut receiver = Receiver::default();
        // The sender's own entry is another in each request; the routers' are the same for a second.
        let lists = [1, 2].map(|own| {
            let pre = [Capability::new(own, own.into()), Capability::new(9, 7)].into_iter().collect();
            receiver.grant(now, &keyed, Algorithm::SipHash, limits(32, 10), (&pre, false), Carriage::Native);
            receiver.answer.unwrap().list
        });
        let begun = lists.map(|(granted, list)| {
            assert!(receiver.proves(now, &keyed, FlowNonce(1), Some((granted.unwrap(), &list))));
            receiver.begun()
        });
        assert_eq!(begun, [Some(limits(32, 10)), None]);
    }

    #[test]
    fn grants_of_one_second_differ_and_each_is_newer_than_the_one_before() {
        for (asked, least) in [(limits(1_023, 63), 1_000), (limits(32, 10), 400), (limits(1, 1), 60)] {
            let granted: std::vec::Vec<Limits> = (0..=least).map(|step| vary(asked, step)).collect();
            let order = |limits: &Limits| (limits.seconds(), 1_023 - limits.kilobytes());
            assert!(granted.windows(2).all(|pair| order(&pair[0]) < order(&pair[1])), "{asked:?}");
            assert!(granted.iter().all(|granted| granted.kilobytes() <= asked.kilobytes()), "never more bytes");
            assert!(granted[0] == asked || asked.seconds() > GRANT_SECONDS_MAX);
        }
        assert_eq!(vary(limits(1, 1), u16::MAX - 1), limits(1, 63), "in the end they repeat");
    }
}
