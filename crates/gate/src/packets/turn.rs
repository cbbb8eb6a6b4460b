//! One turn of the control side's questions, between two batches of packets.

use super::{
    command::{COMMANDS_PER_TURN_MAX, Command, Ended, Explained, Exported, GrantUsage, Installed},
    path::{NextHop, Path},
};
use crate::{clock, drops::DroppedPacket};
use sluicegate_nat::{Event, Probe};
use sluicegate_wire::Instant;
use tokio::sync::mpsc;

/// Drops shown in an explanation.
const RECENT_MAX: usize = 16;

/// Answers commands and passes on what ended.
pub(crate) struct Turn {
    events: mpsc::Sender<Ended>,
    /// An event that the full queue did not take.
    waiting: Option<Ended>,
    /// Counts installs and ends, so that the control side can order what it hears on different channels.
    stamp: u64,
}

impl Turn {
    /// Stamps start above `stamp`.
    pub(crate) const fn new(events: mpsc::Sender<Ended>, stamp: u64) -> Self {
        Self { events, waiting: None, stamp }
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
                let installed = translator.install(now, unix, *spec).map(|opened| Installed { opened, stamp });
                let _ = answer.send(installed);
            }
            Command::Standing { spec, answer } => {
                let _ = answer.send(translator.install_standing(now, spec));
            }
            Command::Revoke { ids, answer } => {
                let mut ended = 0;
                for id in ids {
                    if let Some(end) = translator.revoke(now, id) {
                        ended += 1;
                        let stamp = self.next_stamp();
                        self.events_push(Ended { id, cause: end.cause, bytes_used: end.bytes_used, stamp });
                    }
                }
                let _ = answer.send(ended);
            }
            Command::Services { services, answer } => {
                translator.set_services(&services);
                let _ = answer.send(());
            }
            Command::Explain { probe, unix, answer } => {
                let explanation = translator.explain(now, unix, &probe);
                let recent = path.drops.recent(RECENT_MAX, |drop| is_like(drop, &probe));
                let _ = answer.send(Explained { explanation, recent });
            }
            Command::Observe { on, answer } => {
                translator.observe(on);
                let _ = answer.send(());
            }
            Command::Usage { ids, answer } => {
                let usage = ids.into_iter().filter_map(|id| {
                    translator.usage(id).map(|used| GrantUsage { id, bytes_used: used.bytes_used, flows: used.flows })
                });
                let _ = answer.send(usage.collect());
            }
            Command::Export { mut buffer, answer } => {
                translator.export_state(&mut |bytes| buffer.extend_from_slice(bytes));
                let took = clock::monotonic().since(now);
                let _ = answer.send(Exported { tables: buffer, took });
            }
        }
    }
}
