use alloc::{vec, vec::Vec};
use core::time::Duration;

use sluicegate_wire::Instant;

use super::{
    MAGIC, VERSION,
    record::{FlowRecord, GrantRecord, Record, StandingRecord},
    writer::{Sum, Writer},
};
use crate::{
    Translator,
    flows::{Family, Flows},
    pinhole::{Holder, Pinhole},
};

/// An export under way, see [`Translator::export_begin`].
#[derive(Debug, Clone)]
pub struct Export {
    /// For each slot its place among the pinhole records.
    places: Vec<u32>,
    sum: Sum,
    /// The first line that was not looked at, of both tables one behind the other.
    next: u64,
}

impl Translator {
    /// Writes all granted and standing pinholes and their flows to `sink`, in pieces of up to 4 KB.
    ///
    /// Costs a walk over the tables; with many flows, [`Self::export_begin`] spreads it. After a kill, TCP connections
    /// go on whose numbers moved less than 4 MiB since the export.
    pub fn export_state(&self, sink: &mut dyn FnMut(&[u8])) {
        let mut export = self.export_begin(sink);
        while !self.export_more(&mut export, u32::MAX, sink) {}
    }

    /// Starts an export: writes the pinholes. Packets may pass between this and [`Self::export_more`]; what changes
    /// meanwhile is written as it is when its turn comes.
    pub fn export_begin(&self, sink: &mut dyn FnMut(&[u8])) -> Export {
        let mut writer = Writer::new(Sum::default(), sink);
        writer.put(&MAGIC);
        writer.put(&VERSION.to_le_bytes());
        // Oldest first, so that of two that fit a packet the same one wins after the restart.
        let mut live: Vec<_> = self.rules.pinholes.iter().filter(|(_, pinhole)| pinhole.is_live()).collect();
        live.sort_unstable_by_key(|(_, pinhole)| pinhole.serial);
        let mut places = vec![u32::MAX; self.rules.pinholes.max() as usize];
        for (place, (slot, pinhole)) in live.into_iter().enumerate() {
            places[slot as usize] = place as u32;
            pinhole_record(pinhole).write(&mut writer);
            if let Some(seal) = self.rules.seals.at(slot) {
                Record::Window(seal.highest()).write(&mut writer);
            }
        }
        Export { places, sum: writer.finish(), next: 0 }
    }

    /// Goes on with an export: looks at `lines_max` lines, used or not (a thousand cost about 0.1 ms if all are used).
    /// `true`: the export is complete.
    pub fn export_more(&self, export: &mut Export, lines_max: u32, sink: &mut dyn FnMut(&[u8])) -> bool {
        let mut writer = Writer::new(export.sum.clone(), sink);
        let (v4_end, v6_end) = (u64::from(self.v4.table.index_end()), u64::from(self.v6.table.index_end()));
        let end = (export.next + u64::from(lines_max)).min(v4_end + v6_end);
        let part =
            |from: u64, to: u64| (export.next.clamp(from, to) - from) as u32..(end.clamp(from, to) - from) as u32;
        export_flows(&self.v4, self.now, part(0, v4_end), &export.places, &mut writer);
        export_flows(&self.v6, self.now, part(v4_end, v4_end + v6_end), &export.places, &mut writer);
        export.next = end;
        let is_complete = end == v4_end + v6_end;
        if is_complete {
            Record::End.write(&mut writer);
        }
        export.sum = writer.finish();
        if is_complete {
            sink(&export.sum.value().to_le_bytes());
        }
        is_complete
    }
}

fn pinhole_record(pinhole: &Pinhole) -> Record {
    match &pinhole.holder {
        Holder::Granted(grant) => Record::Grant(GrantRecord {
            body: grant.encode(),
            service: pinhole.service,
            target: pinhole.target,
            target_ports: pinhole.target_ports,
            gate_ports: pinhole.gate.ports,
            filter: pinhole.filter,
            spent: pinhole.spent,
            left: pinhole.budget.left(),
            taken: pinhole.budget.taken(),
        }),
        Holder::Standing { peers, rate_bytes_per_s } => Record::Standing(StandingRecord {
            service: pinhole.service,
            target: pinhole.target,
            target_port: pinhole.target_ports.0,
            gate_ports: pinhole.gate.ports,
            rate_bytes_per_s: *rate_bytes_per_s,
            peers: peers.to_vec(),
        }),
        Holder::Service => Record::Service(pinhole.service),
    }
}

/// Flow records name their pinhole by its place among the pinhole records.
fn export_flows<L: Family>(
    flows: &Flows<L>,
    now: Instant,
    range: core::ops::Range<u32>,
    places: &[u32],
    writer: &mut Writer<'_>,
) {
    for flow in flows.in_range(range) {
        let line = flows.line(flow);
        let back = flows.line(line.peer());
        let Some(owner) = places.get(line.owner() as usize).copied() else { continue };
        let millis = |age: Duration| u32::try_from(age.as_millis()).unwrap_or(u32::MAX);
        let record = FlowRecord {
            owner,
            inbound: L::tuple_of(&line.key()),
            outbound: L::tuple_of(&back.key()),
            flags: line.rewrite().2,
            state: line.state(),
            notes: line.notes(),
            halves: [line.tcp(), back.tcp()],
            idle_ms: [millis(line.seen().age(now)), millis(back.seen().age(now))],
            lent: line.lent(),
        };
        Record::Flow(record).write(writer);
    }
}
