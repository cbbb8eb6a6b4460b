//! What must hold of every controller, whatever load it is built for, arrives and is measured. Shared by the property test and
//! the fuzz target.

use std::time::Duration;

use sluicegate_overload::{
    Adaptive, Aims, Came, Class, Crowd, Durations, Engineered, InDialog, Load, Refusing, Rsoca, Thresholds, Used,
    Verdict,
};
use sluicegate_wire::Instant;

/// Intervals after which a server that is idle refuses nobody.
const CALM: u32 = 400;
/// Of an input, to a controller that looks at all sources in each interval: more add time and no new order.
const OPERATIONS: u32 = 48;

/// Bytes as numbers, zeroes behind their end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let len = N.min(self.0.len());
        taken[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        taken
    }

    fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    fn whole(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn real(&mut self) -> f64 {
        f64::from_le_bytes(self.bytes())
    }

    /// Any number, but more often one that makes sense.
    fn amount(&mut self, sensible: f64) -> f64 {
        match self.byte() {
            0 => self.real(),
            part => sensible * f64::from(part) / 64.0,
        }
    }

    /// Until something happens: at most some hours, so that time has no end.
    fn pause(&mut self) -> Duration {
        let all = self.duration();
        Duration::from_nanos((all.as_nanos() as u64) >> if all > Duration::from_secs(60) { 20 } else { 0 })
    }

    fn duration(&mut self) -> Duration {
        match self.byte() {
            0 => Duration::from_nanos(self.whole()),
            tenths => Duration::from_millis(u64::from(tenths) * 100),
        }
    }
}

fn class(byte: u8) -> Class {
    match usize::from(byte) % (3 + InDialog::ALL.len()) {
        0 => Class::Invite,
        1 => Class::Register,
        2 => Class::Other,
        rest => Class::InDialog(InDialog::ALL[rest - 3]),
    }
}

fn engineered(input: &mut Input<'_>) -> Engineered {
    let paper = Engineered::PAPER;
    Engineered {
        load: Load {
            invites: input.amount(paper.load.invites),
            in_dialog: input.amount(100.0),
            registers: input.amount(100.0),
            others: input.amount(100.0),
        },
        durations: Durations { invite: input.duration(), register: input.duration(), other: input.duration() },
        interval: input.duration(),
        smoothing: input.amount(0.3),
        cpu: Thresholds { min: input.amount(0.2), max: input.amount(0.4) },
        transaction_bytes: input.amount(paper.transaction_bytes),
        burst: input.amount(paper.burst),
        stretch: input.amount(paper.stretch),
        pass: input.amount(paper.pass),
        sends: u32::from(input.byte()),
        refreshes: input.amount(1.0),
    }
}

fn holds(verdict: Verdict) {
    if let Verdict::Reject { status, retry_after_s } = verdict {
        assert!(
            (status == 500 && (1..=10).contains(&retry_after_s)) || (status == 503 && (1..=3).contains(&retry_after_s))
        );
    }
}

fn used(input: &mut Input<'_>) -> Used {
    Used {
        cpu: input.amount(0.5),
        begun: input.amount(0.5),
        memory: input.whole() >> (input.byte() % 64),
        sojourn: input.duration(),
        lost: input.amount(0.5),
        crowd: Crowd {
            waiting: input.whole() as u32 >> (input.byte() % 32),
            is_full: input.byte().is_multiple_of(4),
            strangers: input.amount(0.5),
            busy: input.amount(0.5),
        },
    }
}

const IDLE: Used = Used { cpu: 0.01, begun: 1.0, memory: 0, sojourn: Duration::ZERO, lost: 0.0, crowd: Crowd::NONE };

/// Builds a controller, and has requests and measurements come in any order.
pub(crate) fn step(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() % 3 {
        0 => adaptive(&mut input),
        1 => rsoca(&mut input, Refusing::Proportionally),
        _ => rsoca(&mut input, Refusing::Unavailable),
    }
}

fn rsoca(input: &mut Input<'_>, refusing: Refusing) {
    let engineered = engineered(input);
    let Ok(mut server) = Rsoca::new(engineered, refusing, Instant::ZERO) else { return };
    let mut now = Instant::ZERO;
    while !input.0.is_empty() {
        match input.byte() {
            0 => server.succeed(input.whole()),
            1 => {
                now = now + input.pause();
                server.measure(now, used(input));
            }
            kind if kind % 2 == 0 => holds(server.arrive_once(class(kind / 2), input.whole())),
            kind => holds(server.arrive(class(kind / 2), input.whole())),
        }
        let probability = server.rejection().probability();
        assert!((0.0..=1.0).contains(&probability), "{probability}");
        assert!(server.age_max(Class::Invite).is_none_or(|age| age >= engineered.durations.invite));
    }
}

fn adaptive(input: &mut Input<'_>) {
    let sojourn = (Duration::from_millis(5), Duration::from_millis(100));
    let aims =
        Aims { interval: Duration::from_millis(100), busy: 0.95, sojourn, memory: Thresholds { min: 1e6, max: 2e6 } };
    let (mut server, mut now) = (Adaptive::new(aims, Instant::ZERO), Instant::ZERO);
    for _ in 0..OPERATIONS {
        if input.0.is_empty() {
            break;
        }
        match input.byte() {
            0 => {
                now = now + input.pause();
                server.measure(now, used(input));
            }
            1 => server.sign_in(input.whole(), u64::from(input.byte())),
            count => {
                let (draw, source) = (input.whole(), u64::from(input.byte()));
                for turn in 0..u64::from(count / 8) {
                    let came = [Came::Shown, Came::Sieved, Came::Past][turn as usize % 3];
                    let draw = draw.wrapping_mul(2 * turn + 1);
                    let is_taken = server.connects(draw, source, (turn % 2 == 0).then_some(now));
                    assert!(server.is_overloaded() || is_taken, "a connection is refused while nothing is used");
                    let verdict = server.arrive(draw, source, came);
                    holds(verdict);
                    assert!(server.is_overloaded() || verdict == Verdict::Pass, "{verdict:?} while nothing is used");
                }
            }
        }
    }
    // Whatever it was, it ends.
    for _ in 0..CALM {
        if !server.is_overloaded() {
            break;
        }
        now = now + aims.interval;
        server.measure(now, IDLE);
    }
    assert!(!server.is_overloaded());
}
