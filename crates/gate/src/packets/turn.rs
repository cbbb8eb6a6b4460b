//! One turn of the control side's questions, between two batches of packets.

use super::{
    command::{COMMANDS_PER_TURN_MAX, Command, Ended, Explained, Exported, GrantUsage, Installed},
    hops::NextHop,
    path::Path,
};
use crate::{clock, drops::DroppedPacket};
use sluicegate_capability::GrantId;
use sluicegate_nat::{Event, Probe, Translator};
use sluicegate_wire::{Instant, Port};
use std::collections::VecDeque;
use tokio::sync::mpsc::{self, error::TrySendError};

/// Drops shown in an explanation.
const RECENT_MAX: usize = 16;

/// Answers commands and passes on what ended.
pub(crate) struct Turn {
    events: mpsc::Sender<Ended>,
    /// Events that the full queue did not take: at most those of one revoke.
    waiting: VecDeque<Ended>,
    /// Counts installs and ends, so that the control side can order what it hears on different channels.
    stamp: u64,
}

impl Turn {
    /// Stamps start above `stamp`.
    pub(crate) const fn new(events: mpsc::Sender<Ended>, stamp: u64) -> Self {
        Self { events, waiting: VecDeque::new(), stamp }
    }

    /// Answers at most [`COMMANDS_PER_TURN_MAX`] questions.
    pub(crate) fn answer<N: NextHop>(
        &mut self,
        now: Instant,
        path: &mut Path<N>,
        commands: &mut mpsc::Receiver<Command>,
    ) {
        for _ in 0..COMMANDS_PER_TURN_MAX {
            let Ok(command) = commands.try_recv() else { break };
            // What ended before this question is stamped before its answer.
            self.pass_on(path);
            self.answer_one(now, path, command);
        }
        self.pass_on(path);
    }

    fn answer_one<N: NextHop>(&mut self, now: Instant, path: &mut Path<N>, command: Command) {
        let translator = &mut path.translator;
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
                    path.way.opened(&grant);
                }
                // Asking has unknown next hops resolved before the first packet needs them.
                for (port, address) in ends.into_iter().filter(|_| is_open) {
                    let _ = path.next_hop.link_address(port, address);
                }
            }
            Command::Standing { spec, answer } => {
                path.way.signal(&spec.peers);
                let _ = answer.send(translator.install_standing(now, spec));
            }
            Command::Revoke { ids, answer } => {
                let way = &mut path.way;
                let revoke = |id| {
                    let address = translator.allowance(now, id).map(|left| left.address);
                    way.revoked(now, id, address);
                    translator.revoke(now, id)
                };
                let ended: Vec<_> = ids.into_iter().filter_map(revoke).collect();
                let _ = answer.send(ended.len());
                for ended in ended {
                    self.tell(ended);
                }
            }
            Command::Services { services, answer } => {
                let _ = answer.send(translator.set_services(&services));
            }
            Command::Explain { probe, unix, answer } => {
                let explanation = path.way.explain(&probe);
                let explanation = explanation.unwrap_or_else(|| translator.explain(now, unix, &probe));
                let recent = path.drops.recent(RECENT_MAX, |drop| is_like(drop, &probe));
                let _ = answer.send(Explained { explanation, recent });
            }
            Command::Observe { on, answer } => {
                translator.observe(on);
                let _ = answer.send(());
            }
            Command::Usage { ids, answer } => {
                let _ = answer.send(ids.into_iter().filter_map(|id| usage(translator, id)).collect());
            }
            Command::Export { mut buffer, answer } => {
                translator.export_state(&mut |bytes| buffer.extend_from_slice(bytes));
                let took = clock::monotonic().since(now);
                let _ = answer.send(Exported { tables: buffer, took });
            }
        }
    }

    /// Passes on what ended, as far as the control side keeps up; the translator holds the rest.
    fn pass_on<N: NextHop>(&mut self, path: &mut Path<N>) {
        self.retry();
        while self.waiting.is_empty() {
            let Some(Event::Ended(ended)) = path.translator.poll_event() else { return };
            path.way.ended(ended.id);
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

    fn tell(&mut self, ended: sluicegate_nat::Ended) {
        let stamp = self.next_stamp();
        self.waiting.push_back(Ended { id: ended.id, cause: ended.cause, bytes_used: ended.bytes_used, stamp });
        self.retry();
    }

    const fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }
}

fn usage(translator: &Translator, id: GrantId) -> Option<GrantUsage> {
    translator.usage(id).map(|used| GrantUsage { id, bytes_used: used.bytes_used, flows: used.flows })
}

/// Whether the dropped packet went between the ends that `probe` names, in either direction. Ports are compared only
/// where the probe names them.
fn is_like(drop: &DroppedPacket, probe: &Probe) -> bool {
    let Some(tuple) = drop.tuple else { return false };
    let fits = |port: u16, wanted: u16| wanted == 0 || port == wanted;
    let forward = (tuple.source, tuple.destination) == (probe.src, probe.dst)
        && fits(tuple.source_port, probe.src_port)
        && fits(tuple.destination_port, probe.dst_port);
    let back = (tuple.source, tuple.destination) == (probe.dst, probe.src)
        && fits(tuple.source_port, probe.dst_port)
        && fits(tuple.destination_port, probe.src_port);
    tuple.protocol == probe.protocol && (forward || back)
}

#[cfg(test)]
mod tests;
