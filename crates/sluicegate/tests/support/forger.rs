//! Somebody on the way to the gate who writes whatever he likes into an IP packet, its source included.

use super::lab::Lab;
use sluicegate_datapath::raw::{Options, Socket};

/// A raw socket on the wire in front of the gate's outside port.
#[derive(Debug)]
pub(crate) struct Forger {
    socket: Socket,
    ethernet: Vec<u8>,
}

impl Forger {
    pub(crate) fn new(lab: &Lab) -> Self {
        let socket = lab.host("core").run_in(|| Socket::open("to_gate", &Options::send_only())).expect("a namespace");
        let ethernet = [&lab.mac("gate", "outside")[..], &lab.mac("core", "to_gate"), &[0x08, 0x00]].concat();
        Self { socket: socket.expect("a raw socket"), ethernet }
    }

    /// Sends IPv4 packets to the gate.
    pub(crate) fn send(&mut self, packets: &[Vec<u8>]) {
        let frames: Vec<Vec<u8>> = packets.iter().map(|packet| [&self.ethernet[..], packet].concat()).collect();
        assert_eq!(self.socket.send(&frames).expect("the interface is up").sent, frames.len());
    }
}
