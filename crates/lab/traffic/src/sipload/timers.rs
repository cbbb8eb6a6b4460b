//! What is due later. All delays are constants, so that of what waits equally long the first to begin is the first to be due.

use std::collections::VecDeque;

/// Queues of `T`, one for each delay that was ever asked for.
pub(super) struct Timers<T> {
    queues: Vec<(u64, VecDeque<(u64, T)>)>,
}

impl<T: Copy> Timers<T> {
    pub(super) const fn new() -> Self {
        Self { queues: Vec::new() }
    }

    /// `what` is due `delay` microseconds after `now`.
    pub(super) fn begin(&mut self, now: u64, delay: u64, what: T) {
        let place = self.queues.iter().position(|(other, _)| *other == delay).unwrap_or_else(|| {
            self.queues.push((delay, VecDeque::new()));
            self.queues.len() - 1
        });
        self.queues[place].1.push_back((now + delay, what));
    }

    /// The next that is due until `now`.
    pub(super) fn due(&mut self, now: u64) -> Option<T> {
        let queue = self.queues.iter_mut().map(|(_, queue)| queue);
        let mut due = queue.filter(|queue| queue.front().is_some_and(|(at, _)| *at <= now));
        due.next()?.pop_front().map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_due_after_its_delay_in_the_order_in_which_it_began() {
        let mut timers = Timers::new();
        timers.begin(0, 500, 'a');
        timers.begin(10, 100, 'b');
        timers.begin(20, 500, 'c');
        assert_eq!(timers.due(109), None);
        assert_eq!(timers.due(600), Some('a'));
        assert_eq!([timers.due(600), timers.due(600), timers.due(600)], [Some('c'), Some('b'), None]);
    }
}
