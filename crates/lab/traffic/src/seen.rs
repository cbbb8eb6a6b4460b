//! What of each attacker arrives as regular packets.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::Options;
use sluicegate_wire::capability::Kind;

use crate::{
    attack::header,
    listen::{SLOTS, listen},
};
use sluicegate_site::{LabError, Prefix, worker::Context};

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

/// Runs the worker `seen`: the result has `regular_bytes`, those of each source of which a packet with a capability header
/// came, as IP packets.
pub(crate) fn seen(spec: &SeenSpec, context: &Context) -> Result<(), LabError> {
    let options = Options { receive_slots: SLOTS, promiscuous: true, ..Options::default() };
    let mut sources: BTreeMap<IpAddr, u64> = BTreeMap::new();
    let lost = listen((&spec.interface, &options, spec.seconds), context, |socket| {
        socket.receive(SLOTS, &mut |frame| {
            let Some((summary, _, header)) = header(frame.bytes) else { return };
            let wanted = spec.sources.iter().any(|prefix| prefix.contains(&summary.src));
            if !wanted || sources.len() >= SOURCES_MAX && !sources.contains_key(&summary.src) {
                return;
            }
            let is_regular = !header.is_demoted() && header.kind() != Kind::Request;
            *sources.entry(summary.src).or_default() += if is_regular { summary.total_len as u64 } else { 0 };
        });
        Ok(())
    })?;
    context.result(&json!({ "regular_bytes": sources.values().collect::<Vec<_>>(), "lost": lost }));
    Ok(())
}
