use core::time::Duration;

use sluicegate_grant::{GRANT_LEN, Grant, GrantId};
use sluicegate_pinhole::{Holder, Pinhole, RevokedGrants, Seal, Table};
use sluicegate_wire::Instant;

use super::{
    file::{Sum, Writer},
    record::{FlowRecord, GrantRecord, PinholeRecord, Record, StandingRecord},
};
use crate::{
    Translator,
    flows::{Family, Flows, of_family},
    lifecycle::LINES,
};

/// An export under way.
#[derive(Debug, Clone)]
pub struct Export {
    sum: Sum,
    next: Next,
}

/// The first thing that was not looked at.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// The revoked grant behind this one.
    Revoked(Option<GrantId>),
    /// The pinhole in this slot.
    Pinhole(u32),
    /// This set of the table of lines.
    Lines { is_ipv4: bool, set: u32 },
}

impl Export {
    /// Writes all granted and standing pinholes, their flows, and what was revoked to `sink`, in pieces of up to 4 KB.
    ///
    /// Costs a walk over the tables; while packets wait, [`Self::begin`] spreads it. After a kill, TCP connections
    /// go on whose numbers moved less than 4 MiB since the export.
    pub fn whole(translator: &Translator, sink: &mut dyn FnMut(&[u8])) {
        let mut export = Self::begin(translator, sink);
        while !export.more(translator, &mut { u32::MAX }, sink) {}
    }

    /// Starts an export. Packets may pass and commands be answered between this and every [`Self::more`]; what
    /// changes meanwhile is written as it is when its turn comes. What is opened after its turn is not in the export.
    pub fn begin(translator: &Translator, sink: &mut dyn FnMut(&[u8])) -> Self {
        let mut writer = Writer::new(sink);
        for forgotten in translator.rules.pinholes.revoked.forgotten() {
            writer.put(&Record::Forgotten(forgotten));
        }
        Self { sum: writer.finish(), next: Next::Revoked(None) }
    }

    /// Goes on with an export until `looks` is used up: one for a revoked grant, a pinhole, each line in use, and a word
    /// that says which of eight lines are (a thousand cost about 0.1 ms). `true`: the export is complete.
    pub fn more(&mut self, translator: &Translator, looks: &mut u32, sink: &mut dyn FnMut(&[u8])) -> bool {
        let Translator { rules, v4, v6, now, .. } = translator;
        let mut writer = Writer::resume(self.sum.clone(), sink);
        let mut next = Some(self.next);
        while let Some(at) = next.filter(|_| *looks != 0) {
            next = match at {
                Next::Revoked(after) => Some(export_revoked(&rules.pinholes.revoked, after, looks, &mut writer)),
                Next::Pinhole(slot) => Some(export_pinhole(translator, slot, looks, &mut writer)),
                Next::Lines { is_ipv4, set } => of_family!(is_ipv4, (v4, v6), |flows| {
                    export_flows(flows, &rules.pinholes.table, *now, set, looks, &mut writer)
                }),
            };
        }
        if next.is_none() {
            writer.put(&Record::End);
        }
        self.sum = writer.finish();
        match next {
            Some(next) => self.next = next,
            None => sink(&self.sum.to_bytes()),
        }
        next.is_none()
    }
}

fn export_revoked(revoked: &RevokedGrants, after: Option<GrantId>, looks: &mut u32, writer: &mut Writer<'_>) -> Next {
    let mut last = after;
    for (id, grant) in revoked.iter_after(after) {
        if *looks == 0 {
            return Next::Revoked(last);
        }
        *looks -= 1;
        writer.put(&Record::Revoked(id.0, grant));
        last = Some(id);
    }
    Next::Pinhole(0)
}

fn export_pinhole(translator: &Translator, slot: u32, looks: &mut u32, writer: &mut Writer<'_>) -> Next {
    *looks -= 1;
    if slot >= translator.rules.pinholes.table.max() {
        return Next::Lines { is_ipv4: true, set: 0 };
    }
    if let Some(pinhole) = translator.rules.pinholes.table.at(slot).filter(|pinhole| pinhole.is_live()) {
        *looks =
            looks.saturating_sub(translator.rules.owner(slot).map_or(0, |owner| owner.borrowers.iter().count()) as u32);
        let body = pinhole.grant().map_or([0; GRANT_LEN], Grant::encode);
        writer.put(&Record::Pinhole((pinhole.serial, slot), pinhole_record(translator, slot, pinhole, &body)));
    }
    Next::Pinhole(slot + 1)
}

fn pinhole_record<'a>(translator: &Translator, slot: u32, pinhole: &Pinhole, body: &'a [u8]) -> PinholeRecord<'a> {
    let lent = translator.lent(slot);
    match &pinhole.holder {
        Holder::Granted(_) => PinholeRecord::Grant(GrantRecord {
            body,
            service: pinhole.service,
            target: pinhole.target,
            target_ports: pinhole.target_ports,
            gate_ports: pinhole.gate.ports,
            filter: pinhole.filter,
            spent: pinhole.spent,
            client: pinhole.client,
            left: pinhole.budget.left().saturating_add(lent),
            taken: pinhole.budget.taken().saturating_sub(lent),
            window: translator.rules.pinholes.macs.seals.at(slot).map(Seal::highest),
        }),
        Holder::Standing { peers, rate_bytes_per_s } => PinholeRecord::Standing(StandingRecord {
            service: pinhole.service,
            target: pinhole.target,
            target_port: pinhole.target_ports.0,
            gate_ports: pinhole.gate.ports,
            rate_bytes_per_s: *rate_bytes_per_s,
            peers: peers.to_vec(),
        }),
        Holder::Service => PinholeRecord::Service(pinhole.service),
    }
}

/// Writes the flows whose inbound line is in one set. Those of a pinhole that is not in the export find none at the import.
fn export_flows<L: Family>(
    flows: &Flows<L>,
    pinholes: &Table,
    now: Instant,
    set: u32,
    looks: &mut u32,
    writer: &mut Writer<'_>,
) -> Option<Next> {
    let is_ipv4 = L::IS_IPV4;
    if set >= flows.table.sets_len() {
        return is_ipv4.then_some(Next::Lines { is_ipv4: false, set: 0 });
    }
    *looks -= 1;
    for flow in flows.in_set(set) {
        *looks = looks.saturating_sub(LINES);
        let line = flows.line(flow);
        let back = flows.line(line.peer());
        let Some(pinhole) = pinholes.at(line.owner()) else { continue };
        let millis = |age: Duration| u32::try_from(age.as_millis()).unwrap_or(u32::MAX);
        let record = FlowRecord {
            owner: (pinhole.serial, line.owner()),
            inbound: L::tuple_of(&line.key()),
            outbound: L::tuple_of(&back.key()),
            flags: line.rewrite().2,
            state: line.state(),
            notes: line.notes(),
            halves: [line.tcp(), back.tcp()],
            idle_ms: [millis(line.seen().age(now)), millis(back.seen().age(now))],
        };
        writer.put(&Record::Flow(record));
    }
    Some(Next::Lines { is_ipv4, set: set + 1 })
}
