//! The attackers of one phase: workers behind the first two neighbours, and the colluder.

use std::time::Duration;

use super::{
    Attack, Carriage, Mutant, Options,
    site::{ATTACKERS, COLLUDER, SERVICE},
};
use sluicegate_site::{Lab, LabError, Process, binary::Binary, clock::unix_ns};
use sluicegate_traffic::{
    attack::{CapabilityFloodSpec, CapabilityMode, ColluderSpec},
    seen::SeenSpec,
};

/// Size of a flooding packet, the simulation's.
const PACKET_BYTES: u16 = 1_000;
/// What one attacker of an imprecise attack sends, bit/s.
const ATTACKER_BPS: u64 = 1_000_000;
/// Attackers behind each of the two neighbours at most.
const ATTACKERS_EACH: u32 = 50;
/// Groups that attack in turn.
const GROUPS: u32 = 10;
/// What an attacker of an imprecise attack sends at most: ten times what the bound allows, five seconds long; in turn,
/// what it was granted, because a group follows when the one before has spent its own (TVA V-E).
const BYTES_EACH: u64 = 640_000;
const BYTES_EACH_IN_TURN: u64 = 32_000;
const FLOOD_PORT: u16 = 9;
const READY_MAX: Duration = Duration::from_secs(15);

/// Where and how long.
pub(super) struct Plan<'a> {
    pub(super) lab: &'a Lab,
    pub(super) binary: &'a Binary,
    pub(super) options: &'a Options,
    pub(super) seconds: u32,
    /// Whether those who spend what they were granted go on for ever.
    pub(super) endless: bool,
}

/// Running attackers.
pub(super) struct Attackers {
    floods: Vec<Process>,
    /// Counts what comes out of the bottleneck, by source. On the switch: the edge box takes frames before any capture
    /// on its own interface sees them.
    seen: Option<Process>,
    _colluder: Option<Process>,
    began_ns: u64,
    attackers: u32,
}

/// What they did.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    pub(super) attackers: u32,
    /// Attackers that were authorised before the flood began.
    pub(super) granted: u64,
    pub(super) began_ns: u64,
    pub(super) arrived: Vec<u64>,
}

impl Attackers {
    /// Starts them with `flood_bps` in all, in turn or at once.
    pub(super) fn start(plan: &Plan<'_>, attack: Attack, in_turn: bool, flood_bps: u64) -> Result<Self, LabError> {
        let family = plan.options.family;
        let mut attackers = Self { floods: Vec::new(), seen: None, _colluder: None, began_ns: 0, attackers: 0 };
        let mode = match attack {
            Attack::Legacy => CapabilityMode::Legacy,
            Attack::Request => CapabilityMode::Requests,
            Attack::Authorized => CapabilityMode::Authorized,
            Attack::Imprecise => CapabilityMode::Spend,
            Attack::Reasking => CapabilityMode::Reasking,
        };
        if attack == Attack::Authorized {
            let address = family.address(COLLUDER);
            let spec = ColluderSpec { interface: "eth0".into(), address, seconds: plan.seconds };
            attackers._colluder = Some(plan.binary.worker(plan.lab, "colluder", "colluder", &spec)?);
        }
        if matches!(attack, Attack::Imprecise | Attack::Reasking) {
            let sources = ATTACKERS.iter().map(|text| family.prefix(text)).collect::<Result<_, _>>()?;
            let spec = SeenSpec { interface: "link".into(), sources, seconds: plan.seconds + 10 };
            attackers.seen = Some(plan.binary.worker(plan.lab, "site", "seen", &spec)?);
        }
        let target = if attack == Attack::Authorized { COLLUDER } else { SERVICE };
        for (index, (host, neighbour, prefix)) in
            [("a1", "n1", ATTACKERS[0]), ("a2", "n2", ATTACKERS[1])].into_iter().enumerate()
        {
            let bps = flood_bps / 2;
            // A request is small; the flood has the same bits in more packets.
            let spec = CapabilityFloodSpec {
                interface: "eth0".into(),
                source_mac: plan.lab.mac(host, "eth0")?,
                destination_mac: plan.lab.mac(neighbour, "lan")?,
                mode,
                target: family.address(target),
                target_port: FLOOD_PORT,
                encapsulated: plan.options.carriage == Carriage::Udp,
                sources: family.prefix(prefix)?,
                attackers: u32::try_from(bps / ATTACKER_BPS).unwrap_or(1).clamp(1, ATTACKERS_EACH),
                groups: if in_turn { GROUPS } else { 1 },
                bytes_each: match attack {
                    _ if plan.options.mutant == Mutant::SelfLimiting => BYTES_EACH_IN_TURN,
                    _ if plan.endless => 0,
                    Attack::Imprecise if in_turn => BYTES_EACH_IN_TURN,
                    Attack::Imprecise => BYTES_EACH,
                    _ => 0,
                },
                packet_bytes: PACKET_BYTES,
                rate_bps: bps,
                seconds: plan.seconds,
                seed: plan.options.seed.wrapping_add(index as u64),
            };
            attackers.attackers += spec.attackers;
            attackers.floods.push(plan.binary.worker(plan.lab, host, "capability_flood", &spec)?);
        }
        attackers.began_ns = unix_ns();
        for flood in &attackers.floods {
            let began = flood.event("began", READY_MAX)?;
            attackers.began_ns = attackers.began_ns.min(began["ns"].as_u64().unwrap_or(u64::MAX));
        }
        Ok(attackers)
    }

    /// Ends them and says what they did.
    pub(super) fn stop(mut self) -> Result<Stopped, LabError> {
        let mut stopped = Stopped { began_ns: self.began_ns, attackers: self.attackers, ..Stopped::default() };
        for flood in &mut self.floods {
            flood.close_input();
            let result = flood.event("result", READY_MAX)?;
            stopped.granted += result["granted"].as_u64().unwrap_or(0);
        }
        if let Some(mut seen) = self.seen.take() {
            seen.close_input();
            let result = seen.event("result", READY_MAX)?;
            let sources = result["regular_bytes"].as_array().cloned().unwrap_or_default();
            stopped.arrived = sources.iter().filter_map(serde_json::Value::as_u64).collect();
        }
        Ok(stopped)
    }
}
