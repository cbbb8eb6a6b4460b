//! What the control plane tells the packet thread.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, mpsc},
    time::Duration,
};

use ipnet::IpNet;
use sluicegate_datapath::Wake;

use super::{Carrying, moving::Moved, redirects::Target};
use crate::opening::Reach;

/// One thing to do.
#[derive(Debug)]
pub(super) enum Order {
    /// A gate is open, or has moved.
    Opened(Target, Reach),
    /// A gate stays closed.
    Refused(Target),
    /// A grant has ended.
    Closed(Target),
    /// The DNS has these addresses for an entry's name, and says this about them.
    Named { entry: usize, prefixes: Vec<IpNet>, carrying: Option<Carrying>, lasts: Duration },
    /// Captured packets leave by another way.
    Moved(Box<Moved>),
    /// Stop.
    Stop,
}

/// The giving end: cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    queue: mpsc::Sender<Order>,
    bell: Arc<Wake>,
}

/// The taking end, in the packet thread.
#[derive(Debug)]
pub(super) struct Inbox {
    queue: mpsc::Receiver<Order>,
    bell: Arc<Wake>,
}

/// Both ends. The number of orders is bounded by what they are about: services, names.
pub(super) fn channel() -> io::Result<(Orders, Inbox)> {
    let (bell, (send, queue)) = (Arc::new(Wake::new()?), mpsc::channel());
    Ok((Orders { queue: send, bell: Arc::clone(&bell) }, Inbox { queue, bell }))
}

impl Orders {
    /// Gives an order; `false` if nobody takes any more.
    pub(super) fn send(&self, order: Order) -> bool {
        let taken = self.queue.send(order).is_ok();
        self.bell.wake();
        taken
    }
}

impl Inbox {
    /// The next order, if there is one.
    pub(super) fn next(&mut self) -> Option<Order> {
        self.bell.clear();
        self.queue.try_recv().ok()
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
