//! One turn of the control side's questions, between two batches of packets.

use super::{
    STEP_LOOKS_MAX, TURN_LOOKS_MAX,
    command::{COMMANDS_PER_TURN_MAX, Command, Ended, Explained, Exported, Installed},
    tunnels::Tunnels,
};
use crate::clock;
use sluicegate_grant::GrantId;
use sluicegate_nat::{Export, Probe};
use sluicegate_node::{DroppedPacket, Firewall, NextHop, Node};
use sluicegate_pinhole::{InstallError, Tuple};
use sluicegate_wire::{Instant, Port, UnixTime};
use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

/// What an export looks at in one turn.
const EXPORT_LOOKS: u32 = 500;
/// A grant whose usage is asked for: its pinhole, and the lines that hold something of its budget.
const USAGE_LOOKS: u32 = 7;
/// Drops shown in an explanation.
const RECENT_MAX: usize = 16;

/// Ended grants passed on in one turn.
const ENDS_PER_TURN_MAX: usize = 256;
/// A full queue of them is tried again after this.
const ROOM_AFTER: Duration = Duration::from_millis(1);

/// Answers commands and passes on what ended.
pub(crate) struct Commands {
    events: mpsc::Sender<Ended>,
    /// Events that the full queue did not take: at most those of one step.
    waiting: VecDeque<Ended>,
    /// Counts installs and ends, so that the control side can order what it hears on different channels.
    stamp: u64,
    /// A revoke of many grants: some in each turn.
    revoking: Option<Revoking>,
    /// An export of the tables: a part in each turn, while other questions are answered.
    exporting: Option<Exporting>,
    /// Whether some of these, of the questions, or of what ended is left for the next turn.
    has_more: bool,
    pub(crate) tunnels: Tunnels,
}

struct Revoking {
    ids: std::vec::IntoIter<GrantId>,
    ended: usize,
    answer: oneshot::Sender<usize>,
}

struct Exporting {
    export: Export,
    tables: Vec<u8>,
    took: Duration,
    answer: oneshot::Sender<Exported>,
}

impl Commands {
    /// Stamps start above `stamp`.
    pub(crate) fn new(events: mpsc::Sender<Ended>, stamp: u64, tunnels: Tunnels) -> Self {
        Self { events, waiting: VecDeque::new(), stamp, revoking: None, exporting: None, has_more: false, tunnels }
    }

    /// Answers at most [`COMMANDS_PER_TURN_MAX`] questions, and no more than the turn has room for: see
    /// [`TURN_LOOKS_MAX`]. Each goes in steps of at most [`STEP_LOOKS_MAX`].
    pub(crate) fn answer<N: NextHop>(
        &mut self,
        now: Instant,
        node: &mut Node<N>,
        commands: &mut mpsc::Receiver<Command>,
    ) {
        let mut ends = ENDS_PER_TURN_MAX;
        for _ in 0..COMMANDS_PER_TURN_MAX {
            if node.looks() > STEP_LOOKS_MAX {
                break;
            }
            // What ended before this question is stamped before its answer.
            self.pass_on(node, &mut ends);
            if self.revoking.is_some() {
                self.revoke_some(now, node);
            } else {
                let Ok(command) = commands.try_recv() else { break };
                self.answer_one(now, node, command);
            }
        }
        self.pass_on(node, &mut ends);
        self.export_some(node);
        self.has_more = ends == 0 || self.revoking.is_some() || self.exporting.is_some() || !commands.is_empty();
    }

    /// The longest wait for packets before the next turn, if the last left something for that.
    pub(crate) fn wait_max(&self) -> Option<Duration> {
        match self.has_more || self.tunnels.has_more() {
            true => Some(Duration::ZERO),
            // The control side has no room for more of what ended.
            false => (!self.waiting.is_empty()).then_some(ROOM_AFTER),
        }
    }

    /// Goes on with a revoke, while the turn has room.
    fn revoke_some<N: NextHop>(&mut self, now: Instant, node: &mut Node<N>) {
        let Some(mut revoking) = self.revoking.take() else { return };
        while node.looks() <= STEP_LOOKS_MAX {
            let Some(id) = revoking.ids.next() else {
                // An answer that nobody waits for any more is dropped with its channel.
                let _ = revoking.answer.send(revoking.ended);
                return;
            };
            node.add_looks(1);
            if let Some(ended) = node.pipeline.revoke(now, id) {
                revoking.ended += 1;
                self.tell(ended);
            }
        }
        self.revoking = Some(revoking);
    }

    /// Goes on with an export, with what the turn has left.
    fn export_some<N: NextHop>(&mut self, node: &mut Node<N>) {
        let room = TURN_LOOKS_MAX.saturating_sub(node.looks()).min(EXPORT_LOOKS);
        let Some(exporting) = self.exporting.as_mut().filter(|_| room > 0) else { return };
        let began = clock::monotonic();
        let mut looks = room;
        let Exporting { export, tables, took, .. } = exporting;
        let Some(firewall) = node.pipeline.firewall() else { return };
        let mut sink = |bytes: &[u8]| tables.extend_from_slice(bytes);
        let is_complete = export.more(&firewall.translator, &mut looks, &mut sink);
        *took += clock::monotonic().since(began);
        node.add_looks(room - looks);
        if is_complete && let Some(Exporting { tables, took, answer, .. }) = self.exporting.take() {
            let _ = answer.send(Exported { tables, took });
        }
    }

    fn answer_one<N: NextHop>(&mut self, now: Instant, node: &mut Node<N>, command: Command) {
        let Some(Firewall { translator, .. }) = node.pipeline.firewall_mut() else {
            return without_firewall(now, node, command);
        };
        // An answer that nobody waits for any more is dropped with its channel.
        match command {
            Command::Install { spec, unix, answer } => {
                let stamp = self.next_stamp();
                let ends = [(Port::INSIDE, spec.target), (Port::OUTSIDE, spec.grant.client_address)];
                let grant = spec.grant.clone();
                let installed = translator.install(now, unix, *spec).map(|opened| Installed { opened, stamp });
                let is_open = installed.is_ok();
                let _ = answer.send(installed);
                if is_open {
                    node.pipeline.opened(&grant);
                }
                // Asking has unknown next hops resolved before the first packet needs them.
                for (port, address) in ends.into_iter().filter(|_| is_open) {
                    let _ = node.next_hop.link_address(port, address);
                }
            }
            Command::Standing { spec, answer } => {
                let _ = answer.send(translator.install_standing(now, spec));
            }
            Command::Revoke { ids, answer } => {
                self.revoking = Some(Revoking { ids: ids.into_iter(), ended: 0, answer });
                self.revoke_some(now, node);
            }
            Command::Services { services, answer } => {
                let _ = answer.send(translator.set_services(&services));
            }
            Command::Explain { probe, unix, answer } => {
                let _ = answer.send(explain(now, unix, node, &probe));
            }
            Command::Tunnel { id, sealed, answers, answer } => {
                let is_proved = translator.open_tunnel(now, id, &sealed).is_ok();
                let is_taken = |address: Ipv4Addr| translator.pinholes().sources.may_contain(address.into());
                let address = is_proved.then(|| self.tunnels.open(id, answers, is_taken)).flatten();
                let _ = answer.send(address);
            }
            Command::Observe { on, answer } => {
                translator.observe(on);
                let _ = answer.send(());
            }
            Command::Usage { ids, answer } => {
                let used: Vec<_> = ids.iter().filter_map(|id| Some((*id, translator.usage(*id)?))).collect();
                let _ = answer.send(used);
                node.add_looks(ids.len() as u32 * USAGE_LOOKS);
            }
            Command::Export { buffer: mut tables, answer } => {
                let export = Export::begin(translator, &mut |bytes| tables.extend_from_slice(bytes));
                self.exporting = Some(Exporting { export, tables, took: Duration::ZERO, answer });
            }
        }
    }

    /// Passes on up to `ends` of what ended, as far as the control side keeps up; the translator holds the rest.
    fn pass_on<N: NextHop>(&mut self, node: &mut Node<N>, ends: &mut usize) {
        self.retry();
        while self.waiting.is_empty() && *ends > 0 {
            let Some(ended) = node.pipeline.poll_event() else { return };
            *ends -= 1;
            self.tell(ended);
        }
    }

    fn retry(&mut self) {
        while let Some(ended) = self.waiting.pop_front() {
            if let Err(TrySendError::Full(ended)) = self.events.try_send(ended) {
                self.waiting.push_front(ended);
                return;
            }
        }
    }

    fn tell(&mut self, ended: sluicegate_pinhole::Ended) {
        self.tunnels.end(ended.id);
        let stamp = self.next_stamp();
        self.waiting.push_back(Ended { id: ended.id, cause: ended.cause, bytes_used: ended.bytes_used, stamp });
        self.retry();
    }

    const fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }
}

/// Answers for a router or an edge, where nothing needs permission.
fn without_firewall<N>(now: Instant, node: &Node<N>, command: Command) {
    match command {
        Command::Install { spec, answer, .. } => drop(answer.send(Err(InstallError::Service(spec.service)))),
        Command::Standing { spec, answer } => drop(answer.send(Err(InstallError::Service(spec.service)))),
        Command::Revoke { answer, .. } => drop(answer.send(0)),
        Command::Services { answer, .. } => drop(answer.send(Ok(()))),
        Command::Explain { probe, unix, answer } => drop(answer.send(explain(now, unix, node, &probe))),
        Command::Tunnel { answer, .. } => drop(answer.send(None)),
        Command::Observe { answer, .. } => drop(answer.send(())),
        Command::Usage { answer, .. } => drop(answer.send(Vec::new())),
        Command::Export { buffer, answer } => drop(answer.send(Exported { tables: buffer, took: Duration::ZERO })),
    }
}

fn explain<N>(now: Instant, unix: UnixTime, node: &Node<N>, probe: &Probe) -> Explained {
    let explanation = node.pipeline.explain(now, unix, probe);
    Explained { explanation, recent: node.drops.recent(RECENT_MAX, |drop| is_like(drop, probe)) }
}

/// Whether the dropped packet went between the ends that `probe` names, in either direction. Ports are compared only
/// where the probe names them.
fn is_like(drop: &DroppedPacket, probe: &Probe) -> bool {
    let Some(tuple) = drop.tuple else { return false };
    let Tuple { protocol, src, dst } = probe.tuple;
    let fits = |end: (IpAddr, u16), wanted: (IpAddr, u16)| end.0 == wanted.0 && (wanted.1 == 0 || end.1 == wanted.1);
    let forward = fits(tuple.src, src) && fits(tuple.dst, dst);
    tuple.protocol == protocol && (forward || fits(tuple.src, dst) && fits(tuple.dst, src))
}

pub(crate) mod longest;
#[cfg(test)]
mod tests;
