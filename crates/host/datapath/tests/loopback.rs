//! The `loopback` back end keeps the device's promises without interfaces.

use std::time::Duration;

use sluicegate_datapath::{Action, Device, Kind, loopback::CABLE_MAX};
use sluicegate_wire::{HEADROOM, Port, Reason};

#[test]
fn frames_go_where_the_handler_sends_them_as_it_left_them() {
    let (mut device, cables) = Device::loopback();
    assert_eq!(device.kind(), Kind::Loopback);
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
    let (mut device, cables) = Device::loopback();
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
    let (mut device, cables) = Device::loopback();
    let sender = std::thread::spawn(move || cables.inject(Port::INSIDE, b"wake up"));
    let count = device.poll(Duration::from_secs(60), &mut |_, _| Action::Drop).unwrap();
    assert!(sender.join().unwrap());
    assert_eq!(count, 1);
}
