//! The way into a shard from other threads: a bounded queue, and an event that wakes its thread.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use sluicegate_proxy::{Flow, Input};

/// Most inputs that wait for one shard. Beyond that they are dropped, and the requests behind them time out.
const INPUTS_MAX: usize = 8_192;
/// Most messages of other shards that wait for connections of this one.
const CARRIED_MAX: usize = 1_024;

/// A message, and the flow over which it is to be sent.
pub(crate) type Carried = (Flow, Vec<u8>);

/// Sends to one shard. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ShardSender {
    queue: SyncSender<Input>,
    carried: SyncSender<Carried>,
    bell: Arc<Bell>,
}

/// Wakes a thread that waits for it, once for all that rang since it woke.
#[derive(Debug)]
struct Bell {
    event: EventFd,
    has_rung: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        if !self.has_rung.swap(true, Ordering::AcqRel) {
            // A counter that is full wakes the thread as well.
            let _ = self.event.write(1);
        }
    }

    /// What was done before it rang can be seen after this.
    fn clear(&self) {
        let _ = self.event.read();
        self.has_rung.swap(false, Ordering::AcqRel);
    }
}

impl ShardSender {
    /// Queues an input and wakes the shard; `false` if the queue is full or the shard is gone.
    pub(crate) fn send(&self, input: Input) -> bool {
        let taken = self.queue.try_send(input).is_ok();
        self.bell.ring();
        taken
    }

    /// Has the shard send a message over a connection of its own; `false` if as many wait already as may.
    pub(crate) fn carry(&self, flow: Flow, message: &[u8]) -> bool {
        let taken = self.carried.try_send((flow, message.to_vec())).is_ok();
        self.bell.ring();
        taken
    }

    /// Wakes the shard without telling it anything.
    pub(crate) fn wake(&self) {
        self.bell.ring();
    }
}

/// The shard's end.
#[derive(Debug)]
pub(crate) struct ShardInbox {
    queue: Receiver<Input>,
    carried: Receiver<Carried>,
    bell: Arc<Bell>,
}

impl ShardInbox {
    /// Takes what woke the shard. To be called before the inputs are read, or a wake-up could be missed.
    pub(crate) fn clear_wakes(&self) {
        self.bell.clear();
    }

    pub(crate) fn next(&mut self) -> Option<Input> {
        self.queue.try_recv().ok()
    }

    /// What another shard has for a connection of this one.
    pub(crate) fn next_carried(&mut self) -> Option<Carried> {
        self.carried.try_recv().ok()
    }
}

impl AsFd for ShardInbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }
}

/// Both ends of the way into one shard.
pub(crate) fn shard_queue() -> io::Result<(ShardSender, ShardInbox)> {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
    let bell = Arc::new(Bell { event, has_rung: AtomicBool::new(false) });
    let (sender, receiver) = sync_channel(INPUTS_MAX);
    let (carry, carried) = sync_channel(CARRIED_MAX);
    Ok((
        ShardSender { queue: sender, carried: carry, bell: Arc::clone(&bell) },
        ShardInbox { queue: receiver, carried, bell },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> Input {
        Input::Standing { service: String::new(), standing: None }
    }

    #[test]
    fn a_thread_is_woken_once_for_all_that_came_and_again_for_what_comes_later() {
        let (sender, mut inbox) = shard_queue().unwrap();
        for _ in 0..2 {
            assert!(inbox.bell.event.read().is_err(), "nothing has rung");
            for _ in 0..3 {
                assert!(sender.clone().send(input()));
            }
            assert_eq!(inbox.bell.event.read().unwrap(), 1);
            inbox.clear_wakes();
            assert_eq!(std::iter::from_fn(|| inbox.next()).count(), 3);
        }
    }

    #[test]
    fn a_full_queue_refuses_and_says_so() {
        let (sender, mut inbox) = shard_queue().unwrap();
        for _ in 0..INPUTS_MAX {
            assert!(sender.send(input()));
        }
        assert!(!sender.send(input()));
        inbox.clear_wakes();
        assert!(inbox.next().is_some());
        assert!(sender.send(input()));
        let flow = Flow::datagrams(0, "192.0.2.1:5060".parse().unwrap());
        for _ in 0..CARRIED_MAX {
            assert!(sender.carry(flow, b"x"));
        }
        assert!(!sender.carry(flow, b"x"));
        assert_eq!(inbox.next_carried(), Some((flow, b"x".to_vec())));
        assert!(sender.carry(flow, b"x"));
    }
}
