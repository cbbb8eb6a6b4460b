//! Datagrams that come as frames, past the kernel's network stack.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use sluicegate_datapath::{Interface, UdpCounts, UdpQueue};
use sluicegate_telemetry::{Family, Metric};

use crate::{config::Listen, daemon::StartError};

const DATAGRAMS: Family = Family::counter(
    "sluicegate_frontend_xdp_datagrams_total",
    &["direction"],
    "SIP datagrams that came or left as frames.",
);
const DROPPED: Family = Family::counter(
    "sluicegate_frontend_xdp_dropped_datagrams_total",
    &["reason"],
    "SIP datagrams that came as frames and were dropped.",
);

/// Takes the datagrams for these addresses, as far as they come by interfaces: the queues of all of those.
///
/// # Errors
/// [`StartError::Datapath`].
pub(crate) fn open(listens: &[Listen]) -> Result<Vec<UdpQueue>, StartError> {
    let mut by_interface: BTreeMap<String, (Interface, Vec<_>)> = BTreeMap::new();
    for (listen, number) in listens.iter().zip(0..).filter(|(listen, _)| listen.comes_as_frames()) {
        let failed = |why: String| StartError::Datapath { what: listen.to_string(), why };
        let found = Interface::with_address(listen.address.ip()).map_err(|error| failed(error.to_string()))?;
        // What is there for other hosts to reach comes by another interface.
        let found = found.filter(|interface| interface.name != "lo");
        let interface = found.ok_or_else(|| failed(NO_INTERFACE.to_owned()))?;
        let (_, listeners) = by_interface.entry(interface.name.clone()).or_insert_with(|| (interface, Vec::new()));
        listeners.push((number, listen.address));
    }
    let mut queues = Vec::new();
    for (name, (interface, listeners)) in by_interface {
        let opened = UdpQueue::open(&interface, &listeners)
            .map_err(|error| StartError::Datapath { what: name.clone(), why: error.to_string() })?;
        let how = opened.first().map(UdpQueue::describe);
        tracing::info!(interface = name, queues = opened.len(), how, "datagrams come as frames");
        queues.extend(opened);
    }
    Ok(queues)
}

const NO_INTERFACE: &str =
    "no interface by which packets come has that address; give it to one, or write datapath = \"socket\"";

/// What queues have counted, as last published by the thread that has them.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrameCounts(Arc<Mutex<Vec<UdpCounts>>>);

impl FrameCounts {
    pub(crate) fn publish(&self, queues: &mut [UdpQueue]) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.clear();
        counts.extend(queues.iter_mut().map(UdpQueue::counts));
    }

    /// Nothing where no datagrams come as frames.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if counts.is_empty() {
            return Vec::new();
        }
        let sum = |of: fn(&UdpCounts) -> u64| counts.iter().map(of).sum::<u64>();
        let mut dropped = BTreeMap::new();
        for (reason, count) in counts.iter().flat_map(UdpCounts::dropped) {
            *dropped.entry(reason.label()).or_default() += count;
        }
        let datagrams = [("received", sum(|counts| counts.received)), ("answered", sum(|counts| counts.answered))];
        vec![DATAGRAMS.by(datagrams), DROPPED.by(dropped)]
    }

    /// The same as a person reads it, such as `dropped checksum_wrong`; zeros are left out.
    pub(crate) fn counted(&self) -> BTreeMap<String, u64> {
        let all = ["", "dropped "].into_iter().zip(self.metrics());
        all.flat_map(|(what, metric)| metric.counted().into_iter().map(move |(why, n)| (format!("{what}{why}"), n)))
            .collect()
    }
}
