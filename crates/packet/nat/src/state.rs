//! State that survives a restart of the gate: pinholes and flows as a flat list of records.
//!
//! `magic 8 | version 2 | records | end record | checksum 8`, little-endian; records are in the form of `postcard`. The
//! checksum (SipHash-2-4 under a fixed key) finds damage, not forgery: the file is the gate's own.

mod export;
mod file;
mod record;

use alloc::{collections::BTreeMap, vec::Vec};
use core::time::Duration;

pub use self::export::Export;
use sluicegate_flow::{Budget, Tick};
use sluicegate_grant::{Grant, GrantId};
use sluicegate_pinhole::{EndCause, Holder, PinholeSpec, StandingSpec, Tuple};
use sluicegate_wire::{Instant, UnixTime};

use self::{
    file::Records,
    record::{FlowRecord, GrantRecord, PinholeRecord, Record, StandingRecord},
};
use crate::{
    Translator,
    flows::{ANSWERED, BOUND, FROM_INSIDE, Family, Flows, GUARDED, MOVED, NewFlow, WAITING, of_family},
    inbound::flags_of,
    lifecycle::{end_flow, establish, settle},
    rules::Rules,
    transport::State,
};

const MAGIC: [u8; 8] = *b"SGTABLES";
const VERSION: u16 = 4;

/// What an import brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Imported {
    /// Pinholes that are open again.
    pub pinholes: u32,
    /// Flows that go on.
    pub flows: u32,
    /// Records that no longer apply: expired, their service gone, or no room.
    pub skipped: u32,
}

/// Why exported state was refused as a whole. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Not written by an [`Export`].
    #[error("this is no exported gate state; delete the file and restart the gate")]
    Magic,
    /// Written by another version.
    #[error("exported gate state of version {0} is unknown; this gate reads version 4; delete the file to start empty")]
    Version(u16),
    /// Cut short or damaged.
    #[error("the exported gate state is damaged; delete the file, the frontends' snapshot opens the grants again")]
    Damaged,
}

/// Brings back what an [`Export`] wrote: on a fresh translator, after the services were set. What has
/// expired or no longer fits is left out. TCP connections wait for the inside's first segment and take the
/// outside's only near the written numbers until then.
///
/// # Errors
/// See [`ImportError`]; nothing was changed then.
pub fn import(
    translator: &mut Translator,
    now: Instant,
    unix: UnixTime,
    bytes: &[u8],
) -> Result<Imported, ImportError> {
    translator.now = now;
    translator.rules.pinholes.clock.look(now, unix);
    // All records are read before the first is applied.
    let records = Records::of(bytes)?;
    let mut imported = Imported::default();
    let mut pinholes = BTreeMap::new();
    for record in records.clone() {
        match record {
            Record::Pinhole(place, pinhole) => {
                pinholes.insert(place, pinhole);
            }
            Record::Revoked(id, revoked) => translator.rules.pinholes.revoked.add(GrantId(id), revoked),
            Record::Forgotten(_) | Record::Flow(_) | Record::End => {}
        }
    }
    let mut slots = BTreeMap::new();
    // Oldest first, so that of two that fit a packet the same one wins as before.
    for (place, pinhole) in pinholes {
        let is_service = matches!(pinhole, PinholeRecord::Service(_));
        match import_pinhole(translator, now, unix, pinhole) {
            Some(slot) => {
                slots.insert(place, slot);
                imported.pinholes += u32::from(!is_service);
            }
            None => imported.skipped += u32::from(!is_service),
        }
    }
    for record in records {
        match record {
            Record::Flow(flow) => {
                let Translator { rules, v4, v6, .. } = &mut *translator;
                let goes_on = slots.get(&flow.owner).is_some_and(|slot| {
                    of_family!(flow.inbound.src.0.is_ipv4(), (v4, v6), |flows| {
                        import_flow(flows, rules, now, *slot, &flow).is_some()
                    })
                });
                *(if goes_on { &mut imported.flows } else { &mut imported.skipped }) += 1;
            }
            // Now that what was open is open again: of that it is known that nobody had revoked it.
            Record::Forgotten(revoked) => translator.rules.pinholes.revoked.forget_which(revoked),
            Record::Pinhole(..) | Record::Revoked(..) | Record::End => {}
        }
    }
    translator.rules.looks = 0;
    Ok(imported)
}

fn import_pinhole(translator: &mut Translator, now: Instant, unix: UnixTime, record: PinholeRecord<'_>) -> Option<u32> {
    match record {
        PinholeRecord::Grant(grant) => import_grant(translator, now, unix, &grant),
        PinholeRecord::Standing(standing) => import_standing(translator, now, standing),
        PinholeRecord::Service(service) => translator.rules.pinholes.service_slot(service),
    }
}

fn import_grant(translator: &mut Translator, now: Instant, unix: UnixTime, record: &GrantRecord<'_>) -> Option<u32> {
    let mut grant = Grant::decode(record.body).ok()?;
    let (id, wanted, body_ports): (GrantId, _, _) = (grant.id, record.gate_ports, grant.gate_ports);
    grant.gate_ports = wanted;
    let (target, target_ports) = (record.target, record.target_ports);
    let spec = PinholeSpec { grant, service: record.service, target, target_ports, filter: record.filter, keys: None };
    let opened = translator.install(now, unix, spec).ok()?;
    let slot = translator.rules.pinholes.table.by_id(id)?;
    if opened.ports != wanted && !record.filter {
        // Its old ports are taken: better no pinhole than one that the client does not know.
        translator.end_pinhole(now, slot, EndCause::Expired);
        translator.rules.forget(slot);
        return None;
    }
    let pinholes = &mut translator.rules.pinholes;
    let known = pinholes.table.at(slot)?.client;
    let moved = record.client.filter(|client| client.is_ipv4() == target.is_ipv4() && known != Some(*client));
    pinholes.table.change(slot, |pinhole| {
        (pinhole.spent, pinhole.client) = (record.spent, moved.or(known));
        if let Holder::Granted(grant) = &mut pinhole.holder {
            grant.gate_ports = body_ports;
            pinhole.budget = Budget::restored(grant.bytes, record.left, record.taken);
            // Whether they do is not written down.
            pinhole.follows = grant.proves_address();
        }
    });
    if let Some(highest) = record.window {
        pinholes.macs.seals.resume(slot, highest);
    }
    if let Some(client) = moved {
        pinholes.sources.add(client);
    }
    Some(slot)
}

fn import_standing(translator: &mut Translator, now: Instant, record: StandingRecord) -> Option<u32> {
    let (service, target, port) = (record.service, record.target, record.target_port);
    let spec = StandingSpec {
        service,
        target,
        target_port: port,
        peers: record.peers,
        rate_bytes_per_s: record.rate_bytes_per_s,
        // The feed brings the keys again.
        relays: Vec::new(),
    };
    translator.open_standing(now, spec, record.gate_ports).ok()?;
    translator.rules.pinholes.standing_slots.iter().copied().find(|slot| {
        let pinhole = translator.rules.pinholes.table.at(*slot);
        pinhole.is_some_and(|at| (at.service, at.target, at.target_ports.0) == (service, target, port))
    })
}

fn import_flow<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    slot: u32,
    record: &FlowRecord,
) -> Option<()> {
    let pinhole = rules.pinholes.table.at(slot)?;
    let (inbound, outbound) = (record.inbound, record.outbound);
    let is_bound = record.flags & BOUND != 0;
    let fits = match &pinhole.holder {
        Holder::Service => record.flags & FROM_INSIDE != 0 && outbound.src.0 == pinhole.target,
        // The service knows another address than the client has now.
        _ if record.notes & MOVED != 0 => {
            let as_known = Tuple { dst: inbound.src, ..outbound };
            pinhole.admits_outbound(&as_known) && (is_bound || pinhole.admits_inbound(&inbound))
        }
        _ => pinhole.admits_outbound(&outbound) && (is_bound || pinhole.admits_inbound(&inbound)),
    };
    if !fits || inbound.src.0.is_ipv4() != L::IS_IPV4 || outbound.src.0.is_ipv4() != L::IS_IPV4 {
        return None;
    }
    let state = State::from_code(record.state);
    let is_opening =
        matches!(state, State::SynIn | State::SynOut | State::SynBoth | State::AnsweredIn | State::AnsweredOut);
    if is_opening {
        // Its peers try again.
        return None;
    }
    let protocol = inbound.protocol;
    let port = rules.transports.selector(protocol).external(&inbound);
    if is_bound && !rules.bindings.rejoin(protocol, outbound.src, port, &mut rules.ports) {
        return None;
    }
    let flags = record.flags & !GUARDED | flags_of(pinhole) & GUARDED;
    let new = NewFlow { owner: slot, inbound, outbound, flags };
    let Ok(flow) = establish(flows, rules, now, &new) else {
        if is_bound {
            rules.bindings.leave(protocol, port, &mut rules.ports);
        }
        return None;
    };
    let mut notes = record.notes & (ANSWERED | MOVED);
    if state != State::None {
        notes |= WAITING;
    }
    let ages = record.idle_ms.map(|ms| Tick::before(now, Duration::from_millis(ms.into())));
    let line = flows.line(flow);
    for (line, (half, seen)) in [line, flows.line(line.peer())].into_iter().zip(record.halves.iter().zip(ages)) {
        line.set_tcp(half);
        line.touch(seen);
    }
    flows.set_state(flow, state, notes);
    settle(flows, rules, now, flow);
    if flows.idle(flow, now) >= flows.idle_max(flow, &rules.config.timers) {
        end_flow(flows, rules, flow);
        return None;
    }
    flows.schedule(now, flow, &rules.config.timers);
    Some(())
}
