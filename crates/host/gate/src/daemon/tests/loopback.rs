//! Queues in memory in place of interfaces.

use sluicegate_datapath::{Action, BATCH, Device, Handler, OpenError, PacketIo};
use sluicegate_wire::{FrameBuf, HEADROOM, Port, Reason};
use std::{
    collections::VecDeque,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Most frames waiting on one cable in one direction.
const CABLE_MAX: usize = 4096;

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
struct Loopback(Arc<Shared>);

/// The far ends of the device's two cables.
#[derive(Debug, Clone)]
pub(super) struct Cables(Arc<Shared>);

/// A device of queues in memory, and the far ends of its two cables.
pub(super) fn device() -> (Device, Cables) {
    let shared = Arc::new(Shared::default());
    (Device::over(Box::new(Loopback(Arc::clone(&shared))), "loopback, asked for".into()), Cables(shared))
}

impl Cables {
    /// Lets a frame, from its Ethernet header on, arrive at the device's `port`; `false` if [`CABLE_MAX`] wait there.
    pub(super) fn inject(&self, port: Port, frame: &[u8]) -> bool {
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
    pub(super) fn take(&self, port: Port) -> Option<Vec<u8>> {
        self.0.lock().sent.get_mut(usize::from(port.0))?.pop_front()
    }
}

impl PacketIo for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn poll(
        &mut self,
        timeout: Duration,
        wake: Option<BorrowedFd<'_>>,
        handler: &mut Handler<'_>,
    ) -> io::Result<usize> {
        // Queues in memory are not waited for together with a descriptor.
        let timeout = if wake.is_some() { timeout.min(Duration::from_millis(1)) } else { timeout };
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
        Ok(count)
    }

    fn send(&mut self, port: Port, frame: &[u8]) -> Result<(), Reason> {
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

    fn counters(&mut self) -> Vec<(Reason, u64)> {
        let queues = self.0.lock();
        vec![(Reason::TransmitFull, queues.transmit_full), (Reason::ReceiveFull, queues.receive_full)]
    }
    fn open_up(self: Box<Self>) -> Result<(), OpenError> {
        Ok(())
    }
}

#[test]
fn frames_go_where_the_handler_sends_them_as_it_left_them() {
    let (mut device, cables) = device();
    assert!(cables.inject(Port::OUTSIDE, b"to be forwarded"));
    assert!(cables.inject(Port::OUTSIDE, b"to be dropped"));
    assert!(cables.inject(Port::INSIDE, b"answered"));
    let count = device.poll(Duration::ZERO, &mut |port, frame| {
        assert!(frame.start() >= HEADROOM);
        match frame.bytes() {
            b"to be dropped" => Action::Drop,
            b"answered" => Action::Send(port),
            _ => {
                frame.push_front(2).unwrap()[..2].copy_from_slice(b"> ");
                Action::Send(port.opposite())
            }
        }
    });
    assert_eq!(count.unwrap(), 3);
    assert_eq!(cables.take(Port::INSIDE).unwrap(), b"> to be forwarded");
    assert_eq!(cables.take(Port::INSIDE).unwrap(), b"answered");
    assert_eq!((cables.take(Port::INSIDE), cables.take(Port::OUTSIDE)), (None, None));
}

#[test]
fn full_cables_drop_and_count() {
    let (mut device, cables) = device();
    for _ in 0..CABLE_MAX {
        assert!(cables.inject(Port::OUTSIDE, b"x"));
        device.send(Port::INSIDE, b"y").unwrap();
    }
    assert!(!cables.inject(Port::OUTSIDE, b"x"));
    assert_eq!(device.send(Port::INSIDE, b"y"), Err(Reason::TransmitFull));
    let counters = device.kernel_counters();
    assert!(counters.contains(&(Reason::ReceiveFull, 1)) && counters.contains(&(Reason::TransmitFull, 1)));
}

#[test]
fn a_waiting_device_wakes_up_for_a_frame() {
    let (mut device, cables) = device();
    let sender = std::thread::spawn(move || cables.inject(Port::INSIDE, b"wake up"));
    let count = device.poll(Duration::from_secs(60), &mut |_, _| Action::Drop).unwrap();
    assert!(sender.join().unwrap());
    assert_eq!(count, 1);
}
