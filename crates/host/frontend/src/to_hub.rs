//! The way of a shard's events to the hub.

use std::{collections::VecDeque, time::Duration};

use sluicegate_proxy::Event;
use sluicegate_wire::Instant;
use tokio::sync::mpsc::{Sender, error::TrySendError};

/// So long notes wait for each other, and for what is more than a note: to wake the hub for each takes longer than the note.
const TOGETHER: Duration = Duration::from_millis(20);
/// As many notes do not wait.
const NOTES_MAX: usize = 256;

/// Events of one shard on their way to the hub, in order.
#[derive(Debug)]
pub(crate) struct ToHub {
    hub: Sender<(u8, Event)>,
    shard: u8,
    /// At most [`NOTES_MAX`].
    waiting: VecDeque<Event>,
    due: Instant,
}

impl ToHub {
    pub(crate) const fn new(hub: Sender<(u8, Event)>, shard: u8) -> Self {
        Self { hub, shard, waiting: VecDeque::new(), due: Instant::ZERO }
    }

    /// Hands on what `next` gives, and takes no more of it while the hub has no room.
    pub(crate) fn pass(&mut self, now: Instant, mut next: impl FnMut() -> Option<Event>) {
        loop {
            if self.is_due(now) && !self.send() {
                return;
            }
            let Some(event) = next() else { return };
            if self.waiting.is_empty() {
                self.due = now + TOGETHER;
            }
            if !matches!(event, Event::Decided(_) | Event::Told(..)) {
                self.due = now;
            }
            self.waiting.push_back(event);
        }
    }

    /// When [`Self::pass`] has something to do by itself.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.due)
    }

    /// Whether something should have gone by now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.waiting.len() >= NOTES_MAX || self.next_due().is_some_and(|due| due <= now)
    }

    /// Whether all went.
    fn send(&mut self) -> bool {
        while let Some(event) = self.waiting.pop_front() {
            // A hub that is gone needs nothing.
            if let Err(TrySendError::Full((_, event))) = self.hub.try_send((self.shard, event)) {
                self.waiting.push_front(event);
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_feed::{Selected, Selector};
    use sluicegate_proxy::Happened;
    use tokio::sync::mpsc::{Receiver, channel};

    use super::*;

    fn note() -> Event {
        Event::Told([1; 12], Happened::Unacknowledged)
    }

    fn end() -> Event {
        Event::Revoke(Selector::all(Selected::User("alice".to_owned())))
    }

    /// Passes these at that time; how many came to the hub.
    fn pass(way: &mut ToHub, hub: &mut Receiver<(u8, Event)>, ms: u64, events: Vec<Event>) -> usize {
        let mut events = events.into_iter();
        way.pass(Instant::ZERO + Duration::from_millis(ms), || events.next());
        std::iter::from_fn(|| hub.try_recv().ok()).count()
    }

    #[test]
    fn notes_wait_for_each_other_and_go_before_what_does_not_wait() {
        let (send, mut hub) = channel(1_000);
        let mut way = ToHub::new(send, 3);
        assert_eq!(way.next_due(), None);
        assert_eq!(pass(&mut way, &mut hub, 100, vec![note(), note()]), 0);
        assert_eq!(pass(&mut way, &mut hub, 119, vec![note()]), 0);
        assert_eq!(way.next_due(), Some(Instant::ZERO + Duration::from_millis(120)), "the first says when");
        assert_eq!(pass(&mut way, &mut hub, 120, vec![]), 3);
        assert_eq!((way.next_due(), pass(&mut way, &mut hub, 121, vec![note()])), (None, 0));
        let mut events = vec![end(), note()].into_iter();
        way.pass(Instant::ZERO + Duration::from_millis(122), || events.next());
        let came: Vec<_> = std::iter::from_fn(|| hub.try_recv().ok()).collect();
        assert!(matches!(came[..], [(3, Event::Told(..)), (3, Event::Revoke(_))]), "{came:?}");
        assert_eq!(pass(&mut way, &mut hub, 142, vec![]), 1);
        assert_eq!(
            pass(&mut way, &mut hub, 143, (0..NOTES_MAX).map(|_| note()).collect()),
            NOTES_MAX,
            "so many do not"
        );
    }

    #[test]
    fn while_the_hub_has_no_room_nothing_more_is_taken_and_nothing_lost() {
        let (send, mut hub) = channel(2);
        let mut way = ToHub::new(send, 0);
        let mut events = (0..5).map(|_| end());
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        way.pass(at(0), || events.next());
        assert_eq!((events.len(), way.is_due(at(0))), (2, true), "two went, one is held");
        let came: usize = (1..4)
            .map(|ms| {
                let came = std::iter::from_fn(|| hub.try_recv().ok()).count();
                way.pass(at(ms), || events.next());
                came
            })
            .sum();
        assert_eq!((came, events.len(), way.next_due()), (5, 0, None));
    }
}
