//! The calls that live: who called what, until when, and how much may still be said in each. A dialog's tag or cookie
//! counts for nothing once its call is not here.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use sluicegate_wire::{Instant, UnixTime};

/// A call's id: what the ids of its grants have in common.
pub type CallId = [u8; 12];

/// How long a BYE may still be repeated after the call that it ended (RFC 3261, timer F).
const BYE_REPEATED: Duration = Duration::from_secs(32);
/// How often, within that (timer E). More is no repetition: whoever wrote it would reach its service without end.
const BYE_REPEATS_MAX: u8 = 11;
/// BYEs remembered for that. Beyond this the oldest goes: its repetition is answered 481, which ends a call just as well.
const BYES_MAX: usize = 4_096;

/// Requests that may be said in one call at once before its rate counts: what a transfer or a set of keys takes.
const BURST_SECS: u32 = 2;

/// What a call leaves behind that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// No gate was ever asked to open anything for it.
    Nothing,
    /// Gates may have something open for it.
    Grants,
}

#[derive(Debug)]
struct Call {
    user: String,
    service: String,
    until: UnixTime,
    leaves: Leaves,
    /// When to look whether its media still flow, unless its grants are renewed first.
    watch: Option<Watch>,
    /// How often its sides have agreed on media.
    agreed: u32,
    /// Where the media of a peer come from.
    media: Option<IpAddr>,
    /// Requests that may still be said, and since when.
    left: u32,
    since: Instant,
}

/// Looks at a call that nears its end. Media that flowed between two looks are what keeps it.
#[derive(Debug, Clone, Copy)]
struct Watch {
    at: UnixTime,
    /// Between one look and the next, in seconds.
    step_s: u64,
    /// What its grants had carried at the last look.
    carried: Option<u64>,
}

/// A BYE that has ended a call.
#[derive(Debug, Clone, Copy)]
struct Bye {
    /// Its number in CSeq.
    cseq: u32,
    /// Until when it may come again, and how often.
    until: Instant,
    repeats: u8,
}

/// Longest before the end of a call's grants that its media are looked at, in seconds.
const WATCHED_S_MAX: u64 = 40;
/// Looks within that time.
const LOOKS: u64 = 4;

/// Bounded by the number of grants that the frontend may hold; a call without grants takes a place as one with.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    by_id: HashMap<CallId, Call>,
    /// How many each user has.
    of_users: HashMap<String, usize>,
    by_end: BTreeSet<(UnixTime, CallId)>,
    by_watch: BTreeSet<(UnixTime, CallId)>,
    byes: HashMap<CallId, Bye>,
    byes_end: VecDeque<(Instant, CallId)>,
}

/// Why a request inside a dialog does not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such call, or not any more.
    Over,
    /// More was said in it than its rate allows.
    Busy,
}

impl Calls {
    /// A call begins, and gates were not asked for anything yet. `false` if there is no room for one more than `max`.
    pub(crate) fn begin(&mut self, id: CallId, of: (&str, &str), until: UnixTime, max: usize) -> bool {
        self.enter(id, of, (until, Leaves::Nothing), max)
    }

    /// The call lives until `until`, at least. `false` if there is no room for one more than `max`.
    pub(crate) fn keep(&mut self, id: CallId, of: (&str, &str), until: UnixTime, max: usize) -> bool {
        self.enter(id, of, (until, Leaves::Grants), max)
    }

    /// Gates are asked to open something for this call. What is not known is taken for one that has something open.
    pub(crate) fn opens(&mut self, id: CallId) {
        if let Some(call) = self.by_id.get_mut(&id) {
            call.leaves = Leaves::Grants;
        }
    }

    fn enter(
        &mut self,
        id: CallId,
        (user, service): (&str, &str),
        (until, leaves): (UnixTime, Leaves),
        max: usize,
    ) -> bool {
        if let Some(call) = self.by_id.get_mut(&id) {
            self.by_end.remove(&(call.until, id));
            call.until = call.until.max(until);
            self.by_end.insert((call.until, id));
            return true;
        }
        if self.by_id.len() >= max {
            return false;
        }
        *self.of_users.entry(user.to_owned()).or_default() += 1;
        let (user, service) = (user.to_owned(), service.to_owned());
        let (left, since) = (u32::MAX, Instant::ZERO);
        self.by_id.insert(id, Call { user, service, until, leaves, watch: None, agreed: 0, media: None, left, since });
        self.by_end.insert((until, id));
        true
    }

    /// The call was answered: it lives until then, however long it might have rung.
    pub(crate) fn answered(&mut self, id: CallId, until: UnixTime) {
        let Some(call) = self.by_id.get_mut(&id) else { return };
        self.by_end.remove(&(call.until, id));
        call.until = until;
        self.by_end.insert((until, id));
    }

    /// Whose call to which service this is.
    pub(crate) fn of(&self, id: CallId) -> Option<(&str, &str)> {
        self.by_id.get(&id).map(|call| (call.user.as_str(), call.service.as_str()))
    }

    /// How many calls this user has.
    pub(crate) fn of_user(&self, user: &str) -> usize {
        self.of_users.get(user).copied().unwrap_or_default()
    }

    pub(crate) fn media_of(&self, id: CallId) -> Option<IpAddr> {
        self.by_id.get(&id)?.media
    }

    pub(crate) fn set_media(&mut self, id: CallId, media: IpAddr) {
        if let Some(call) = self.by_id.get_mut(&id) {
            call.media = Some(media);
        }
    }

    /// Until when a call lives.
    pub(crate) fn until(&self, id: CallId) -> Option<UnixTime> {
        self.by_id.get(&id).map(|call| call.until)
    }

    /// How often the sides of a call have agreed on media.
    pub(crate) fn agreed(&self, id: CallId) -> u32 {
        self.by_id.get(&id).map_or(0, |call| call.agreed)
    }

    /// They have once more.
    pub(crate) fn agree(&mut self, id: CallId) {
        if let Some(call) = self.by_id.get_mut(&id) {
            call.agreed = call.agreed.wrapping_add(1);
        }
    }

    /// Takes one request out of what may be said in a call: `per_s` a second, and twice that at once.
    pub(crate) fn say(&mut self, now: Instant, id: CallId, per_s: u32) -> Result<(), Refused> {
        let call = self.by_id.get_mut(&id).ok_or(Refused::Over)?;
        let step = Duration::from_secs(1) / per_s.max(1);
        let gained = u32::try_from(now.since(call.since).as_nanos() / step.as_nanos().max(1)).unwrap_or(u32::MAX);
        if gained > 0 {
            call.left = call.left.saturating_add(gained).min(per_s.saturating_mul(BURST_SECS));
            call.since = now;
        }
        call.left = call.left.checked_sub(1).ok_or(Refused::Busy)?;
        Ok(())
    }

    /// The call is over; what it leaves, if it lived.
    pub(crate) fn end(&mut self, id: CallId) -> Option<Leaves> {
        let call = self.by_id.remove(&id)?;
        if let Some(count) = self.of_users.get_mut(&call.user) {
            *count -= 1;
            if *count == 0 {
                self.of_users.remove(&call.user);
            }
        }
        call.watch.map(|watch| self.by_watch.remove(&(watch.at, id)));
        self.by_end.remove(&(call.until, id));
        Some(call.leaves)
    }

    /// Looks at a call's media from some time before its grants end, which last from the one time to the other.
    pub(crate) fn watch(&mut self, id: CallId, (from, until): (UnixTime, UnixTime)) {
        let lead_s = (until.0.saturating_sub(from.0) / 2).min(WATCHED_S_MAX);
        let at = UnixTime(until.0.saturating_sub(lead_s));
        self.look_next(id, Some(Watch { at, step_s: (lead_s / LOOKS).max(1), carried: None }));
    }

    fn look_next(&mut self, id: CallId, next: Option<Watch>) {
        let Some(call) = self.by_id.get_mut(&id) else { return };
        let before = std::mem::replace(&mut call.watch, next);
        before.map(|watch| self.by_watch.remove(&(watch.at, id)));
        next.map(|watch| self.by_watch.insert((watch.at, id)));
    }

    /// When to look next at some call's media.
    pub(crate) fn next_look(&self) -> Option<UnixTime> {
        self.by_watch.first().map(|(at, _)| *at)
    }

    /// The calls whose media flow and whose grants end soon; once there are `max`, others are looked at the next time. `carried`
    /// tells what a call's grants have carried.
    pub(crate) fn look(&mut self, now: UnixTime, max: usize, carried: impl Fn(CallId) -> u64) -> Vec<CallId> {
        let mut flowing = Vec::new();
        while let Some((_, id)) = self.by_watch.first().copied().filter(|(at, _)| *at <= now && flowing.len() < max) {
            let watch = self.by_id.get(&id).and_then(|call| call.watch);
            let Some(watch) = watch else {
                self.by_watch.pop_first();
                continue;
            };
            let carried = carried(id);
            let flows = watch.carried.is_some_and(|before| carried > before);
            let next = Watch { at: now.plus_secs(watch.step_s), carried: Some(carried), ..watch };
            self.look_next(id, Some(next).filter(|_| !flows));
            flowing.extend(flows.then_some(id));
        }
        flowing
    }

    /// A BYE with this number in its CSeq has ended the call: the same may come again.
    pub(crate) fn ended_by(&mut self, now: Instant, id: CallId, cseq: u32) {
        while let Some((until, oldest)) = self.byes_end.front().copied() {
            if until > now && self.byes_end.len() < BYES_MAX {
                break;
            }
            self.byes_end.pop_front();
            self.byes.remove(&oldest);
        }
        let until = now + BYE_REPEATED;
        self.byes.insert(id, Bye { cseq, until, repeats: BYE_REPEATS_MAX });
        self.byes_end.push_back((until, id));
    }

    /// Whether this is the BYE again that has ended the call. It comes so often and no more.
    pub(crate) fn was_ended_by(&mut self, now: Instant, id: CallId, cseq: u32) -> bool {
        let bye = self.byes.get_mut(&id).filter(|bye| bye.cseq == cseq && bye.until > now && bye.repeats > 0);
        bye.map(|bye| bye.repeats -= 1).is_some()
    }

    /// Whether a BYE has ended the call.
    pub(crate) fn was_hung_up(&self, now: Instant, id: CallId) -> bool {
        self.byes.get(&id).is_some_and(|bye| bye.until > now)
    }

    /// Ends the calls whose user and service `is_meant` names; their ids.
    pub(crate) fn end_all(&mut self, is_meant: impl Fn(&str, &str) -> bool) -> Vec<CallId> {
        let meant = self.by_id.iter().filter(|(_, call)| is_meant(&call.user, &call.service));
        let ids: Vec<CallId> = meant.map(|(id, _)| *id).collect();
        for id in &ids {
            self.end(*id);
        }
        ids
    }

    /// Ends what was not renewed in time.
    pub(crate) fn expire(&mut self, now: UnixTime) {
        while let Some((_, id)) = self.by_end.first().copied().filter(|(until, _)| *until <= now) {
            self.end(id);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(100);
    const UNTIL: UnixTime = UnixTime(1_000);

    #[test]
    fn a_call_says_so_much_a_second_and_nothing_once_it_is_over() {
        let mut calls = Calls::default();
        assert!(calls.keep([1; 12], ("alice", "pbx"), UNTIL, 1));
        assert!(!calls.keep([2; 12], ("alice", "pbx"), UNTIL, 1), "there is no room");
        assert_eq!((0..30).filter(|_| calls.say(NOW, [1; 12], 10).is_ok()).count(), 20);
        assert_eq!(calls.say(NOW, [1; 12], 10), Err(Refused::Busy));
        let later = NOW + Duration::from_secs(1);
        assert_eq!((0..30).filter(|_| calls.say(later, [1; 12], 10).is_ok()).count(), 10);
        calls.ended_by(later, [1; 12], 7);
        assert!(calls.end([1; 12]).is_some());
        assert_eq!(calls.say(later, [1; 12], 10), Err(Refused::Over));
        assert!(calls.was_ended_by(later, [1; 12], 7) && !calls.was_ended_by(later, [1; 12], 8));
        assert!(!calls.was_ended_by(later + BYE_REPEATED, [1; 12], 7));
    }

    #[test]
    fn a_call_leaves_nothing_only_if_it_began_here_and_nothing_was_ever_asked_for() {
        let mut calls = Calls::default();
        let of = ("alice", "pbx");
        assert!(calls.begin([1; 12], of, UNTIL, 9) && calls.keep([1; 12], of, UnixTime(2_000), 9));
        assert!(calls.begin([2; 12], of, UNTIL, 9) && calls.keep([3; 12], of, UNTIL, 9));
        calls.opens([2; 12]);
        let left = [[1; 12], [2; 12], [3; 12], [4; 12]].map(|id| calls.end(id));
        assert_eq!(left, [Some(Leaves::Nothing), Some(Leaves::Grants), Some(Leaves::Grants), None]);
    }

    #[test]
    fn a_bye_comes_again_as_often_as_a_timer_repeats_it() {
        let mut calls = Calls::default();
        calls.ended_by(NOW, [1; 12], 7);
        assert_eq!((0..1_000).filter(|_| calls.was_ended_by(NOW, [1; 12], 7)).count(), 11);
        assert!(calls.was_hung_up(NOW, [1; 12]));
    }

    #[test]
    fn remembered_byes_are_bounded() {
        let mut calls = Calls::default();
        let id = |number: u32| {
            let mut id = [0; 12];
            id[..4].copy_from_slice(&number.to_be_bytes());
            id
        };
        (0..2 * BYES_MAX as u32).for_each(|number| calls.ended_by(NOW, id(number), number));
        assert_eq!((calls.byes.len(), calls.byes_end.len()), (BYES_MAX, BYES_MAX));
        let last = 2 * BYES_MAX as u32 - 1;
        assert!(calls.was_ended_by(NOW, id(last), last) && !calls.was_ended_by(NOW, id(0), 0));
    }

    #[test]
    fn a_call_that_is_not_renewed_ends() {
        let mut calls = Calls::default();
        calls.keep([1; 12], ("alice", "pbx"), UNTIL, 9);
        calls.keep([1; 12], ("alice", "pbx"), UnixTime(2_000), 9);
        calls.keep([2; 12], ("bob", "pbx"), UNTIL, 9);
        assert_eq!(["alice", "bob", "carol"].map(|user| calls.of_user(user)), [1, 1, 0]);
        calls.expire(UNTIL);
        assert_eq!(calls.of_users.len(), 1, "nothing is remembered of who has none");
        assert_eq!((calls.of([1; 12]), calls.of([2; 12])), (Some(("alice", "pbx")), None));
        assert_eq!(calls.end_all(|user, _| user == "alice"), [[1; 12]]);
    }
}
