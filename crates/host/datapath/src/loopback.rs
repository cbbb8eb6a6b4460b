//! Queues in memory in place of interfaces, for tests of whatever drives a [`crate::Device`].

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sluicegate_wire::{Frame, FrameBuf, Port, Reason};

use crate::device::{Action, BATCH};

/// Most frames waiting on one cable in one direction.
pub const CABLE_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Shared {
    queues: Mutex<Queues>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Queues {
    /// By port: towards the device.
    received: [VecDeque<FrameBuf>; 2],
    /// By port: from the device.
    sent: [VecDeque<Vec<u8>>; 2],
    receive_full: u64,
    transmit_full: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device's side.
#[derive(Debug)]
pub(crate) struct Loopback(Arc<Shared>);

/// The far ends of the device's two cables.
#[derive(Debug, Clone)]
pub struct Cables(Arc<Shared>);

pub(crate) fn pair() -> (Loopback, Cables) {
    let shared = Arc::new(Shared::default());
    (Loopback(Arc::clone(&shared)), Cables(shared))
}

impl Cables {
    /// Lets a frame, from its Ethernet header on, arrive at the device's `port`; `false` if [`CABLE_MAX`] wait there.
    pub fn inject(&self, port: Port, frame: &[u8]) -> bool {
        let mut queues = self.0.lock();
        let Some(queue) = queues.received.get_mut(usize::from(port.0)) else { return false };
        if queue.len() == CABLE_MAX {
            queues.receive_full += 1;
            return false;
        }
        queue.push_back(FrameBuf::from_bytes(frame));
        self.0.arrived.notify_one();
        true
    }

    /// The next frame that the device sent out of `port`.
    #[must_use]
    pub fn take(&self, port: Port) -> Option<Vec<u8>> {
        self.0.lock().sent.get_mut(usize::from(port.0))?.pop_front()
    }
}

impl Loopback {
    pub(crate) fn poll(&mut self, timeout: Duration, handler: &mut dyn FnMut(Port, &mut Frame<'_>) -> Action) -> usize {
        let mut queues = self.0.lock();
        if queues.received.iter().all(VecDeque::is_empty) && !timeout.is_zero() {
            queues = self.0.arrived.wait_timeout(queues, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queues);
        let mut count = 0;
        for port in [Port::OUTSIDE, Port::INSIDE] {
            for _ in 0..BATCH {
                let Some(mut frame) = self.0.lock().received[usize::from(port.0)].pop_front() else { break };
                count += 1;
                if let Action::Send(to) = frame.with(|frame| handler(port, frame)) {
                    let _ = self.send(to, frame.bytes());
                }
            }
        }
        count
    }

    pub(crate) fn send(&mut self, port: Port, frame: &[u8]) -> Result<(), Reason> {
        let mut queues = self.0.lock();
        let full = match queues.sent.get_mut(usize::from(port.0)) {
            Some(queue) if queue.len() < CABLE_MAX => {
                queue.push_back(frame.to_vec());
                false
            }
            _ => true,
        };
        queues.transmit_full += u64::from(full);
        if full { Err(Reason::TransmitFull) } else { Ok(()) }
    }

    pub(crate) fn counters(&self) -> Vec<(Reason, u64)> {
        let queues = self.0.lock();
        vec![(Reason::TransmitFull, queues.transmit_full), (Reason::ReceiveFull, queues.receive_full)]
    }
}
