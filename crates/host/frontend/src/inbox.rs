//! The way into a shard from other threads: a bounded queue, and an event that wakes its thread.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use sluicegate_datapath::Wake;
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
    wake: Arc<Wake>,
}

impl ShardSender {
    /// Queues an input and wakes the shard; `false` if the queue is full or the shard is gone.
    pub(crate) fn send(&self, input: Input) -> bool {
        let taken = self.queue.try_send(input).is_ok();
        self.wake.wake();
        taken
    }

    /// Has the shard send a message over a connection of its own; `false` if as many wait already as may.
    pub(crate) fn carry(&self, flow: Flow, message: &[u8]) -> bool {
        let taken = self.carried.try_send((flow, message.to_vec())).is_ok();
        self.wake.wake();
        taken
    }

    /// Wakes the shard without telling it anything.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }
}

/// The shard's end.
#[derive(Debug)]
pub(crate) struct ShardInbox {
    queue: Receiver<Input>,
    carried: Receiver<Carried>,
    wake: Arc<Wake>,
}

impl ShardInbox {
    /// Takes what woke the shard. To be called before the inputs are read, or a wake-up could be missed.
    pub(crate) fn clear_wakes(&self) {
        self.wake.clear();
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
        self.wake.as_fd()
    }
}

/// Both ends of the way into one shard.
pub(crate) fn shard_queue() -> io::Result<(ShardSender, ShardInbox)> {
    let wake = Arc::new(Wake::new()?);
    let (sender, receiver) = sync_channel(INPUTS_MAX);
    let (carry, carried) = sync_channel(CARRIED_MAX);
    Ok((
        ShardSender { queue: sender, carried: carry, wake: Arc::clone(&wake) },
        ShardInbox { queue: receiver, carried, wake },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> Input {
        Input::Standing { service: String::new(), standing: None }
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
