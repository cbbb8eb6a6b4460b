use serde::Deserialize;
use serde_json::Value;

use super::{attacks::Class as Attack, files::SERVICES};

use sluicegate_site::{clock::unix_ns, worker::said};
use sluicegate_traffic::{
    client::{
        call::{CallSummary, Calls},
        setup::{Setup, SetupSummary},
        transfer::{Transfer, TransferSummary},
    },
    count::Class,
};

/// Lines of one kind that are kept; a run of an hour stays below.
const LINES_MAX: usize = 1 << 20;

/// Which worker a line comes from; numbers are those of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A caller.
    Call,
    /// Where calls end.
    Sink,
    /// Transfers from or to a service.
    Transfer(usize),
    /// Set-ups with a service.
    Setup(usize),
    /// The counter at a service.
    Count(usize),
    /// An attacker on packets.
    Flood(Attack),
    /// An attacker on the front end.
    SipFlood,
    /// The insider, or a user who spends what all share.
    Insider,
    /// Whoever occupies the feed's door, or stands between an agent and its front end.
    Door,
}

/// What one tick of a counter said: when, and what came in each class since the tick before.
#[derive(Debug, Deserialize)]
struct Counted {
    ns: u64,
    classes: Vec<Class>,
}

/// What one tick of a worker `flood` said.
#[derive(Deserialize)]
struct Sent {
    frames: u64,
}

/// All that the workers have said.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    calls: Calls,
    transfers: [Vec<Transfer>; SERVICES.len()],
    setups: [Vec<Setup>; SERVICES.len()],
    counted: [Vec<Counted>; SERVICES.len()],
    /// Frames that attackers sent: when that was said, class, how many since the last time.
    sent: Vec<(u64, Attack, u64)>,
    /// The last line of each worker that has one: (origin, line).
    results: Vec<(Origin, Value)>,
}

impl Ledger {
    /// Takes in one line.
    pub(super) fn take(&mut self, origin: Origin, line: &str) {
        match origin {
            Origin::Call | Origin::Sink => self.calls.take(line),
            Origin::Transfer(service) => push(&mut self.transfers[service], said(line, "transfer")),
            Origin::Setup(service) => push(&mut self.setups[service], said(line, "setup")),
            Origin::Count(service) => push(&mut self.counted[service], said(line, "tick")),
            Origin::Flood(class) => {
                push(&mut self.sent, said(line, "tick").map(|Sent { frames }| (unix_ns(), class, frames)));
            }
            Origin::SipFlood | Origin::Insider | Origin::Door => {}
        }
        push(&mut self.results, said(line, "result").map(|value| (origin, value)));
    }

    /// Calls whose flow numbers `wanted` accepts, sent in the window.
    pub(super) fn calls(&self, from_ns: u64, to_ns: u64, wanted: impl Fn(u32) -> bool) -> CallSummary {
        self.calls.summary(from_ns, to_ns, wanted)
    }

    /// Transfers from a service, started in the window.
    pub(super) fn transfers(&self, service: usize, from_ns: u64, to_ns: u64) -> TransferSummary {
        TransferSummary::of(&self.transfers[service], from_ns, to_ns)
    }

    /// Set-ups with a service, begun in the window.
    pub(super) fn setups(&self, service: usize, from_ns: u64, to_ns: u64) -> SetupSummary {
        SetupSummary::of(&self.setups[service], from_ns, to_ns)
    }

    /// Transfers from all services that completed in the window.
    pub(super) fn transfers_completed(&self, from_ns: u64, to_ns: u64) -> usize {
        let ended =
            |one: &&Transfer| one.error.is_none() && (from_ns..to_ns).contains(&(one.started_ns + one.ms * 1_000_000));
        self.transfers.iter().flatten().filter(ended).count()
    }

    /// Packets and bytes of a class that a service's counter saw in ticks of the window.
    pub(super) fn counted(&self, service: usize, class: &str, from_ns: u64, to_ns: u64) -> (u64, u64) {
        let ticks = self.counted[service].iter().filter(|tick| (from_ns..to_ns).contains(&tick.ns));
        let classes = ticks.flat_map(|tick| &tick.classes).filter(|one| one.name == class);
        classes.fold((0, 0), |(packets, bytes), one| (packets + one.packets, bytes + one.bytes))
    }

    /// Frames that attackers of a class sent, as they said in the window.
    pub(super) fn sent(&self, class: Attack, from_ns: u64, to_ns: u64) -> u64 {
        let said = self.sent.iter().filter(|(at, of, _)| *of == class && (from_ns..to_ns).contains(at));
        said.map(|(_, _, frames)| frames).sum()
    }

    /// Results of the workers of this origin, in the order in which they ended.
    pub(super) fn results(&self, origin: Origin) -> impl Iterator<Item = &Value> {
        self.results.iter().filter(move |(of, _)| *of == origin).map(|(_, value)| value)
    }
}

fn push<T>(list: &mut Vec<T>, item: Option<T>) {
    if list.len() < LINES_MAX {
        list.extend(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::attacks;

    #[test]
    fn frames_sent_are_those_that_attackers_of_the_class_said_in_the_window() {
        let mut ledger = Ledger::default();
        let from_ns = unix_ns();
        ledger.take(Origin::Flood(attacks::SPOOFED), r#"{"event":"tick","frames":7,"bytes":700}"#);
        ledger.take(Origin::Flood(attacks::SPOOFED), r#"{"event":"result","frames":9}"#);
        ledger.take(Origin::Flood(attacks::FORGED_PHONE), r#"{"event":"tick","frames":5,"bytes":1}"#);
        assert_eq!(ledger.sent(attacks::SPOOFED, from_ns, u64::MAX), 7);
        assert_eq!(ledger.sent(attacks::SPOOFED, 0, from_ns), 0);
    }

    #[test]
    fn counted_bytes_are_those_of_the_class_and_window() {
        let mut ledger = Ledger::default();
        for ns in [1, 5, 9] {
            let line =
                format!(r#"{{"event":"tick","ns":{ns},"classes":[{{"name":"stranger","packets":1,"bytes":60}}]}}"#);
            ledger.take(Origin::Count(0), &line);
        }
        ledger.take(Origin::Count(0), r#"{"event":"result","lost":0}"#);
        assert_eq!(ledger.counted(0, "stranger", 2, 10), (2, 120));
        assert_eq!(ledger.counted(1, "stranger", 2, 10), (0, 0));
        assert_eq!(ledger.counted(0, "clients", 2, 10), (0, 0));
        assert_eq!(ledger.results(Origin::Count(0)).count(), 1);
    }

    #[test]
    fn a_transfer_counts_in_the_second_in_which_it_ends() {
        let mut ledger = Ledger::default();
        let line = r#"{"event":"transfer","started_ns":1000000000,"ms":1500,"error":null}"#;
        ledger.take(Origin::Transfer(0), line);
        ledger.take(Origin::Transfer(0), r#"{"event":"transfer","started_ns":1000000000,"ms":1500,"error":"late"}"#);
        assert_eq!(ledger.transfers_completed(2_000_000_000, 3_000_000_000), 1);
        assert_eq!(ledger.transfers_completed(1_000_000_000, 2_000_000_000), 0);
        assert_eq!(ledger.transfers(0, 0, u64::MAX).complete, 1);
    }
}
