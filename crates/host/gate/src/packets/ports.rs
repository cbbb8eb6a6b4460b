//! The device under the packet path, which can be lost and found again: an interface may go away, come back as another,
//! or be set down. Meanwhile nothing is forwarded and no sign of life is given, so the kernel keeps both sides closed;
//! grants and bindings stay. As soon as both interfaces are there again, they are opened as at the start.

use crate::{daemon::Ground, error::StartError};
use sluicegate_bounded::Gauge;
use sluicegate_datapath::{Device, Links, Wake};
use sluicegate_node::{Node, REASONS};
use sluicegate_wire::Reason;
use std::sync::Arc;

/// Opens the interfaces again.
pub(crate) type Reopen<N> = Box<dyn FnMut() -> Result<Ground<N>, StartError> + Send>;

pub(crate) struct Ports<N> {
    /// `None` while closed.
    pub(crate) device: Option<Device>,
    /// Ends a wait for packets: there is a command, or a packet that came through a tunnel, or the gate stops.
    pub(crate) wake: Arc<Wake>,
    links: Option<Links>,
    /// `None` for a device that cannot be lost (queues in memory).
    reopen: Option<Reopen<N>>,
    mtu: [u16; 2],
    /// What devices before this one counted, by reason.
    counted: [u64; REASONS],
}

impl<N> Ports<N> {
    /// Takes the open device, and gives the next hops that go with it.
    pub(crate) fn new(ground: Ground<N>, wake: Arc<Wake>) -> (Self, N) {
        let Ground { mut device, next_hop, mtu, links, reopen, .. } = ground;
        device.woken_by(Arc::clone(&wake));
        (Self { device: Some(device), wake, links, reopen, mtu, counted: [0; REASONS] }, next_hop)
    }

    /// Whether a lost device can be found again.
    pub(crate) const fn may_come_back(&self) -> bool {
        self.reopen.is_some()
    }

    /// What is wrong with an interface, if anything is since the last call.
    pub(crate) fn problem(&mut self) -> Option<String> {
        self.links.as_mut()?.problem()
    }

    /// Lets go of the device. The kernel keeps both sides closed.
    pub(crate) fn shut(&mut self) {
        for (reason, count) in self.device.as_mut().map(Device::kernel_counters).unwrap_or_default() {
            self.counted[reason as usize] += count;
        }
        (self.device, self.links) = (None, None);
    }

    /// Opens both interfaces again; `Err` says why not yet.
    pub(crate) fn find(&mut self, node: &mut Node<N>) -> Result<(), String> {
        let reopen = self.reopen.as_mut().ok_or("it is gone for good")?;
        let Ground { mut device, next_hop, mtu, links, .. } = reopen().map_err(|error| error.to_string())?;
        if mtu != self.mtu {
            let [was, is] = [self.mtu, mtu].map(|[outside, inside]| format!("{outside} and {inside}"));
            return Err(format!("the MTUs were {was} and are {is} bytes; restart the gate"));
        }
        node.next_hop = next_hop;
        device.woken_by(Arc::clone(&self.wake));
        (self.device, self.links) = (Some(device), links);
        Ok(())
    }

    /// How full the device's table is.
    pub(crate) fn gauge(&self) -> Option<Gauge> {
        let (name, used, max) = self.device.as_ref()?.gauge();
        Some(Gauge { name, used: used as u64, max: max as u64 })
    }

    /// What was dropped below the node since the gate started, by reason, which may stand there more than once.
    pub(crate) fn counters(&mut self) -> Vec<(Reason, u64)> {
        let before = Reason::ALL.iter().copied().zip(self.counted);
        before.chain(self.device.as_mut().map(Device::kernel_counters).unwrap_or_default()).collect()
    }
}
