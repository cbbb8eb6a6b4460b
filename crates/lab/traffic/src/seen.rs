//! What of each attacker arrives as which class of packet.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::capability::Kind;

use crate::attack::header;
use sluicegate_site::{During, LabError, Prefix, worker::Context};

const RECEIVE_SLOTS: usize = 16_384;
const SOURCES_MAX: usize = 65_536;

/// Specification of the worker `seen`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeenSpec {
    /// The interface; what it receives is looked at.
    pub interface: String,
    /// Sources that are counted.
    pub sources: Vec<Prefix>,
    /// How long.
    pub seconds: u32,
}

/// Packets of one source that arrived with a capability header, bytes as IP packets.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Seen {
    regular_bytes: u64,
    demoted_bytes: u64,
    requests: u64,
}

/// Runs the worker `seen`: prints `sources` (each with `regular_bytes`, `demoted_bytes`, `requests`) in the result.
pub(crate) fn seen(spec: &SeenSpec, context: &Context) -> Result<(), LabError> {
    let options = Options { receive_slots: RECEIVE_SLOTS, promiscuous: true, ..Options::default() };
    let mut socket = Socket::open(&spec.interface, &options).during(|| format!("listening on {}", spec.interface))?;
    context.ready();
    let mut sources: BTreeMap<IpAddr, Seen> = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(spec.seconds.into());
    while Instant::now() < end && !context.stopped() {
        socket.wait(Duration::from_millis(20)).during(|| format!("waiting on {}", spec.interface))?;
        socket.receive(RECEIVE_SLOTS, &mut |frame| {
            let Some((summary, _, header)) = header(frame.bytes) else { return };
            let wanted = spec.sources.iter().any(|prefix| prefix.contains(summary.src));
            if !wanted || sources.len() >= SOURCES_MAX && !sources.contains_key(&summary.src) {
                return;
            }
            let seen = sources.entry(summary.src).or_default();
            match (header.is_demoted(), header.kind()) {
                (true, _) => seen.demoted_bytes += summary.total_len as u64,
                (false, Kind::Request) => seen.requests += 1,
                (false, _) => seen.regular_bytes += summary.total_len as u64,
            }
        });
    }
    let lost = socket.statistics().map_or(0, |statistics| statistics.dropped);
    let sources: Vec<_> = sources.iter().map(|(source, seen)| json!({ "source": source, "regular_bytes": seen.regular_bytes, "demoted_bytes": seen.demoted_bytes, "requests": seen.requests })).collect();
    context.result(&json!({ "sources": sources, "lost": lost }));
    Ok(())
}
