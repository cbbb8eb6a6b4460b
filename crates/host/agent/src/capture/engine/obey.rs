//! What the control plane has the packet thread do.

use ipnet::IpNet;
use sluicegate_capability::host::Knowledge;
use sluicegate_datapath::monotonic_now;
use sluicegate_wire::{FrameBuf, Instant};
use tracing::warn;

use super::{
    super::{
        answers::Why,
        heard::Heard,
        moving::Moved,
        orders::{Inbox, Order},
        redirects::Target,
        trials::Trials,
    },
    Engine, carriage, new_host,
};

impl Engine {
    /// Does what the control plane says; false once it says stop.
    pub(in crate::capture) fn obey(&mut self, inbox: &mut Inbox) -> bool {
        while let Some(order) = inbox.next() {
            let now = monotonic_now();
            match order {
                Order::Opened(target, reach) => {
                    for packet in self.redirects.opened(target, reach) {
                        self.again(now, &packet);
                    }
                }
                Order::Refused(target) => self.refuse(now, target),
                Order::Closed(target) => self.redirects.closed(target),
                Order::Named { entry, prefixes, carrying, lasts } => {
                    if let Err(error) = self.name(entry, &prefixes) {
                        warn!(%error, "a captured name's address cannot be routed");
                    }
                    for prefix in prefixes {
                        if let Some(carrying) = carrying {
                            let knowledge = Knowledge::Capable { carriage: carriage(carrying) };
                            self.host.know(prefix.addr(), knowledge, now + lasts);
                            self.trials.arrived(now, prefix.addr(), carrying);
                        }
                    }
                }
                Order::Moved(moved) => self.moved(*moved),
                Order::Stop => return false,
            }
        }
        true
    }

    /// This host is in another network: what was learned about ways and far ends was learned in the last.
    fn moved(&mut self, Moved { outward, headers, plain }: Moved) {
        self.host = new_host(&outward);
        (self.trials, self.heard) = (Trials::default(), Heard::new());
        self.wires.headers = headers;
        if let Some(plain) = plain {
            self.wires.plain = plain;
        }
        self.listens_plain = false;
        self.set_listening();
        if let Err(error) = self.place.moved(outward, &self.destinations.prefixes()) {
            warn!(%error, "captured destinations cannot be routed any more");
        }
        self.say_again(monotonic_now(), true);
    }

    /// Says for programs that wait for data what they said last, so that who carries their connections knows where they are.
    pub(super) fn say_again(&mut self, now: Instant, for_all: bool) {
        for ack in self.connections.acks(now, for_all) {
            self.again(now, &ack);
        }
    }

    /// Sends a packet that waited for its gate.
    fn again(&mut self, now: Instant, packet: &[u8]) {
        FrameBuf::from_bytes(packet).with(|frame| self.outbound(now, frame));
    }

    pub(super) fn refuse(&mut self, now: Instant, target: Target) {
        for packet in self.redirects.refused(now, target) {
            self.answer(&packet, Why::Prohibited);
        }
    }

    /// Sets what an entry captures.
    pub(super) fn name(&mut self, entry: usize, prefixes: &[IpNet]) -> Result<(), sluicegate_netlink::Error> {
        let (added, gone) = self.destinations.set(entry, prefixes);
        for prefix in added {
            self.place.capture(prefix)?;
        }
        for prefix in gone {
            self.place.release(prefix)?;
        }
        Ok(())
    }
}
