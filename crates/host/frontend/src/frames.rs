//! What is done where packets come by an interface: datagrams are taken as frames, past the kernel's network stack, and what is
//! too much is refused before it costs the process anything.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use ipnet::IpNet;
use sluicegate_datapath::{Interface, SHARES, Sieve, SieveCounts, Sieved, UdpCounts, UdpPort, UdpQueue};
use sluicegate_proxy::{answer_bytes, derive, source_key};
use sluicegate_telemetry::{Family, Metric};

use crate::{
    config::{Config, Datapath, Listen},
    daemon::StartError,
};

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
const SIEVED: Family = Family::counter(
    "sluicegate_frontend_interface_total",
    &["outcome"],
    "What came by an interface and did not reach the process, or was not understood there.",
);

/// Of datagrams and of connections, with their numbers.
type Listeners = [Vec<(u8, SocketAddr)>; 2];

/// Listeners in front of which what is too much is refused.
pub(crate) fn sieved(config: &Config, addresses: &[Listen]) -> Arc<[u8]> {
    let refuses = config.overload.refuses_at_interfaces();
    let all = addresses.iter().zip(0..).filter(|(listen, _)| refuses && listen.comes_by_an_interface());
    all.map(|(_, number)| number).collect()
}

/// The interfaces by which packets come.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    /// By which datagrams come as frames.
    pub(crate) queues: Vec<UdpQueue>,
    sieves: Vec<UdpPort>,
    /// Whether requests and connections are refused there now.
    is_refusing: [bool; 2],
    spared: Vec<IpNet>,
}

impl Ports {
    /// What the one thread that has them is configured to do there; nothing where there are several. By this start's keys: of that
    /// thread, and of all.
    ///
    /// # Errors
    /// [`StartError::Interface`].
    pub(crate) fn of(
        config: &Config,
        (of_thread, of_all): (&[u8; 32], &[u8; 32]),
        addresses: &[Listen],
    ) -> Result<Self, StartError> {
        if !config.has_one_thread() {
            return Ok(Self::default());
        }
        let tag = derive(of_all, b"refusals at interfaces");
        let tag = u64::from_be_bytes(tag.first_chunk().copied().unwrap_or_default());
        let tag = format!("{tag:016x}").as_bytes().first_chunk().copied().unwrap_or_default();
        let bytes_per_s = answer_bytes(config.unproved_answers_per_s);
        let sieve = Sieve { key: source_key(of_thread), tag, bytes_per_s };
        let sieve = config.overload.refuses_at_interfaces().then_some(&sieve);
        Self::open(addresses, config.datapath == Datapath::Xdp, sieve)
    }

    /// Looks at what comes for these addresses, as far as it comes by interfaces: takes datagrams as frames, on all queues of
    /// those, and refuses what is too much.
    ///
    /// # Errors
    /// [`StartError::Interface`].
    fn open(listens: &[Listen], takes_frames: bool, sieve: Option<&Sieve>) -> Result<Self, StartError> {
        let is_wanted = |listen: &Listen| match sieve {
            Some(_) => listen.comes_by_an_interface(),
            None => listen.comes_as_frames(),
        };
        let mut by_interface: BTreeMap<String, (Interface, Listeners)> = BTreeMap::new();
        for (listen, number) in listens.iter().zip(0..).filter(|(listen, _)| is_wanted(listen)) {
            let failed = |why: String| StartError::Interface { what: listen.to_string(), why };
            let found = Interface::with_address(listen.address.ip()).map_err(|error| failed(error.to_string()))?;
            // What is there for other hosts to reach comes by another interface.
            let found = found.filter(|interface| interface.name != "lo");
            let interface = found.ok_or_else(|| failed(NO_INTERFACE.to_owned()))?;
            let (_, [datagrams, streams]) =
                by_interface.entry(interface.name.clone()).or_insert_with(|| (interface, Default::default()));
            if listen.is_stream() { streams } else { datagrams }.push((number, listen.address));
        }
        let mut ports = Self::default();
        for (name, (interface, [datagrams, streams])) in by_interface {
            let streams: Vec<_> = streams.into_iter().map(|(_, address)| address).collect();
            let takes_frames = takes_frames && !datagrams.is_empty();
            let (port, queues) = UdpPort::open(&interface, (&datagrams, &streams), takes_frames, sieve)
                .map_err(|error| StartError::Interface { what: name.clone(), why: error.to_string() })?;
            let how = port.describe();
            tracing::info!(
                interface = name,
                queues = queues.len(),
                refuses = sieve.is_some(),
                how,
                "looks at an interface"
            );
            ports.queues.extend(queues);
            ports.sieves.extend(sieve.map(|_| port));
        }
        Ok(ports)
    }

    /// With which probability requests and connections are let through by their sources; all where there is nothing.
    pub(crate) fn sieve(&mut self, wanted: [Option<&[u32]>; 2]) {
        for ((what, shares), is_refusing) in
            [Sieved::Requests, Sieved::Connections].into_iter().zip(wanted).zip(&mut self.is_refusing)
        {
            if shares.is_some() || *is_refusing {
                let shares = shares.unwrap_or(&[u32::MAX; SHARES]);
                self.sieves.iter_mut().for_each(|port| port.set_shares(what, shares));
            }
            *is_refusing = shares.is_some();
        }
    }

    /// Nothing is refused of these sources.
    pub(crate) fn spare(&mut self, sources: Vec<IpNet>) {
        if sources == self.spared {
            return;
        }
        let prefixes: Vec<_> = sources.iter().map(|net| (net.network(), net.prefix_len())).collect();
        for port in &mut self.sieves {
            if let Err(error) = port.spare(&prefixes) {
                tracing::error!(%error, "cannot spare sources at an interface; those of before are spared");
            }
        }
        self.spared = sources;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.sieves.is_empty()
    }
}

const NO_INTERFACE: &str = "no interface by which packets come has that address; give it to one, or write datapath = \"socket\" and overload refuse = \"process\"";

#[derive(Debug, Clone, Default)]
struct Counted {
    queues: Vec<UdpCounts>,
    sieves: Vec<SieveCounts>,
}

/// What was counted there, as last published by the thread that has the interfaces.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrameCounts(Arc<Mutex<Counted>>);

impl FrameCounts {
    pub(crate) fn publish(&self, ports: &mut Ports) {
        let counted = Counted {
            queues: ports.queues.iter_mut().map(UdpQueue::counts).collect(),
            sieves: ports.sieves.iter().map(UdpPort::counts).collect(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counted;
    }

    pub(crate) fn metrics(&self) -> Vec<Metric> {
        self.named().into_iter().map(|(_, metric)| metric).collect()
    }

    /// With what comes before their labels where a person reads them. Nothing where no interface is looked at.
    fn named(&self) -> Vec<(&'static str, Metric)> {
        let Counted { queues, sieves } = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut metrics = Vec::new();
        if !queues.is_empty() {
            let sum = |of: fn(&UdpCounts) -> u64| queues.iter().map(of).sum::<u64>();
            let mut dropped = BTreeMap::new();
            for (reason, count) in queues.iter().flat_map(UdpCounts::dropped) {
                *dropped.entry(reason.label()).or_default() += count;
            }
            let received = [("received", sum(|counts| counts.received)), ("answered", sum(|counts| counts.answered))];
            metrics.extend([("", DATAGRAMS.by(received)), ("dropped ", DROPPED.by(dropped))]);
        }
        if !sieves.is_empty() {
            let sum = |of: fn(&SieveCounts) -> u64| sieves.iter().map(of).sum::<u64>();
            let outcomes = [
                ("request_refused", sum(|counts| counts.refused)),
                ("connection_refused", sum(|counts| counts.resets)),
                ("refusal_acknowledged", sum(|counts| counts.acks)),
                ("answers_too_many", sum(|counts| counts.over_budget)),
                ("not_understood", sum(|counts| counts.unread)),
            ];
            metrics.push(("interface ", SIEVED.by(outcomes)));
        }
        metrics
    }

    /// The same as a person reads it, such as `dropped checksum_wrong`; zeros are left out.
    pub(crate) fn counted(&self) -> BTreeMap<String, u64> {
        let all = self.named().into_iter();
        all.flat_map(|(what, metric)| metric.counted().into_iter().map(move |(why, n)| (format!("{what}{why}"), n)))
            .collect()
    }
}
