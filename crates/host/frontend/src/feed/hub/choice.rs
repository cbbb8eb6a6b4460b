//! Which gate a service is opened at.

use std::{collections::BTreeMap, time::Duration};

use sluicegate_api::JoinedGate;
use sluicegate_wire::Instant;

use super::Hub;

/// How long a service may be without a gate before calls to it are refused at once: a gate that is started anew is back sooner.
const CUT_OFF_AFTER: Duration = Duration::from_secs(5);

impl Hub {
    /// The gate that protects a service, if it is connected. No other one gets its grants, which carry session keys: not
    /// even while that gate is away.
    pub(super) fn gate_of(&self, service: &str) -> Option<String> {
        let says = |gate: &str, of: fn(&JoinedGate) -> &BTreeMap<String, String>| {
            self.gates.get(gate).is_some_and(|gate| of(&gate.status).contains_key(service))
        };
        let refuses = |gate: &str| says(gate, |status| &status.refused);
        let reaches = |gate: &str| !says(gate, |status| &status.unreached);
        let name = self.holders.of(service, refuses, reaches)?;
        self.gates.get(name).filter(|gate| gate.frames.is_some()).map(|_| name.to_owned())
    }

    /// Why there is none, for a person.
    pub(super) fn why_no_gate(&self, service: &str) -> String {
        let obstacles = self.gates.values().map(|gate| gate.status.unreached.get(service));
        match obstacles.collect::<Option<Vec<_>>>().as_deref() {
            Some([obstacle, ..]) => format!("no gate reaches the service {service:?}: {obstacle}"),
            _ => format!("no gate for the service {service:?} is connected"),
        }
    }

    /// Has shards refuse calls to services that no gate has reached for a while: they are let in nowhere.
    pub(super) fn tell_cut_off(&mut self, now: Instant) {
        let is_cut_off = |name: &String| self.gate_of(name).is_none();
        let cut_off: Vec<String> = self.services.keys().filter(|name| is_cut_off(name)).cloned().collect();
        self.unreached.retain(|name, _| cut_off.contains(name));
        for name in cut_off {
            self.unreached.entry(name).or_insert(now);
        }
        let lasts = self.unreached.iter().filter(|(_, since)| now.since(**since) >= CUT_OFF_AFTER);
        self.outages.cut_off(lasts.map(|(name, _)| name.clone()).collect());
    }

    /// A gate says whether its routes lead to a service.
    pub(super) fn on_reach(&mut self, name: &str, service: String, obstacle: Option<String>) {
        let Some(gate) = self.gates.get_mut(name).filter(|_| self.services.contains_key(&service)) else { return };
        match obstacle {
            Some(obstacle) => drop(gate.status.unreached.insert(service, obstacle)),
            None => drop(gate.status.unreached.remove(&service)),
        }
    }
}
