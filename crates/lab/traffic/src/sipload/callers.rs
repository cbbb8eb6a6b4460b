//! Telephones that call at a constant rate, whatever becomes of their calls.

use std::{io, net::SocketAddr, sync::Arc, time::Instant};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout},
};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_site::{During, LabError, Prefix, clock::Pacer, nth, worker::Context};

use super::{
    calls::{Calls, Habits, Next, Wants},
    counts::Counts,
    lines::Line,
    write::Writer,
};
use crate::{
    attack::{be_polite, require_lab},
    datagrams::{Batch, Inbox},
    sockets::any_like,
    stream::Connecting,
};

/// Most lines that callers share, calls a second, and calls that are open at one time.
const LINES_MAX: u16 = 1_024;
const PER_S_MAX: u32 = 1_000_000;
const CALLS_MAX: u32 = 1 << 20;
const SECONDS_MAX: u32 = 3_600;
/// Ticks of a load; what happens after them counts to the last.
const TICKS_MAX: usize = 16_384;
/// What a generator that was kept from working may catch up, as a part of a second.
const CATCH_UP: u32 = 20;
/// Longest wait, so that what is due is not late.
const WAIT_MS: u8 = 1;
const EVENTS: usize = 256;

/// So many calls a second for so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRate {
    /// Calls a second.
    pub per_s: u32,
    /// For how long.
    pub ms: u32,
}

/// Specification of the worker `callers`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallersSpec {
    /// The servers; lines take turns.
    pub to: Vec<SocketAddr>,
    /// What carries SIP; UDP unless given.
    #[serde(default)]
    pub way: Connecting,
    /// Addresses of this host to call from; lines take turns. `null`: the one that leads there.
    #[serde(default)]
    pub sources: Option<Prefix>,
    /// Sockets, or connections that stay, that calls take turns at.
    pub lines: u16,
    /// Each call has a connection of its own instead, which ends with it.
    #[serde(default)]
    pub connect_each: bool,
    /// Realm, and the service to call in it.
    pub realm: String,
    /// The service.
    pub service: String,
    /// Names and passwords; calls take turns, or over connections lines do.
    pub users: Vec<(String, String)>,
    /// How many calls a second, one after the other.
    pub rates: Vec<CallRate>,
    /// From the 200 to the BYE; `null`: not before all has been begun.
    #[serde(default)]
    pub hold_ms: Option<u32>,
    /// Whether who is refused comes again after the time that the refusal names.
    #[serde(default)]
    pub obeys_retry_after: bool,
    /// Whether a challenge is a refusal, which nobody answers.
    #[serde(default)]
    pub has_no_password: bool,
    /// Whether it attacks: it leaves the processors to what it attacks.
    #[serde(default)]
    pub is_attack: bool,
    /// Port of the media that INVITEs offer; 0: they have no offer.
    #[serde(default)]
    pub media_port: u16,
    /// Most calls that are open at one time; more are not begun, and counted.
    pub calls_max: u32,
    /// How long calls may still take when no more are begun.
    #[serde(default)]
    pub drain_ms: u32,
    /// Length of a tick.
    pub tick_ms: u32,
    /// From and to, of the times of which a sum is told, in milliseconds since the start.
    #[serde(default)]
    pub windows_ms: Vec<(u64, u64)>,
    /// Seed of everything random.
    pub seed: u64,
}

/// Runs the worker `callers`: prints `{"event":"began"}` when it begins to call and `{"event":"rate","place"}` at the end of
/// each rate; the result has `ticks` ([`super::LoadTick`]), `windows` ([`super::LoadSum`]), and `open`, calls that were not over.
pub(crate) fn callers(spec: &CallersSpec, context: &Context) -> Result<(), LabError> {
    require_lab()?;
    check(spec).map_err(|reason| context.refuse(&reason))?;
    if spec.is_attack {
        be_polite().during(|| "giving way to all others".to_owned())?;
    }
    let mut load = Load::open(spec).during(|| "opening the callers' lines".to_owned())?;
    context.ready();
    load.run(context).during(|| "calling".to_owned())?;
    let windows: Vec<_> = spec.windows_ms.iter().map(|(from, to)| load.calls.counts.between(*from, *to)).collect();
    context.result(&json!({ "ticks": load.calls.counts.ticks(), "windows": windows, "open": load.calls.open() }));
    Ok(())
}

fn check(spec: &CallersSpec) -> Result<(), String> {
    if spec.to.is_empty() || spec.users.is_empty() || spec.lines == 0 || spec.lines > LINES_MAX {
        return Err(format!("`to` and `users` must not be empty, `lines` 1 to {LINES_MAX}"));
    }
    if spec.calls_max == 0 || spec.calls_max > CALLS_MAX || spec.rates.iter().any(|rate| rate.per_s > PER_S_MAX) {
        return Err(format!("at most {CALLS_MAX} open calls, and {PER_S_MAX} a second"));
    }
    let ms: u64 = spec.rates.iter().map(|rate| u64::from(rate.ms)).sum();
    if ms + u64::from(spec.drain_ms) > u64::from(SECONDS_MAX) * 1_000 {
        return Err(format!("at most {SECONDS_MAX} s"));
    }
    if spec.connect_each && !spec.way.over.is_stream() {
        return Err("`connect_each` needs a transport with connections".to_owned());
    }
    Ok(())
}

struct Load<'s> {
    spec: &'s CallersSpec,
    tls: Option<Arc<ClientConfig>>,
    calls: Calls,
    lines: Vec<Option<Line>>,
    /// Lines with something to say, or whose system did not take all.
    unsent: Vec<u32>,
    ready: Epoll,
    begun: u32,
    start: Instant,
    batch: Batch,
    inbox: Inbox,
}

impl<'s> Load<'s> {
    fn open(spec: &'s CallersSpec) -> io::Result<Self> {
        let habits = Habits {
            hold: spec.hold_ms.map(|ms| u64::from(ms) * 1_000),
            obeys_retry_after: spec.obeys_retry_after,
            has_password: !spec.has_no_password,
            is_reliable: spec.way.over.is_stream(),
            calls_max: spec.calls_max as usize,
        };
        let writer = Writer::new(spec.seed, &spec.realm, &spec.service, spec.media_port);
        let mut load = Self {
            spec,
            tls: spec.way.tls()?,
            calls: Calls::new(writer, &spec.users, habits, Counts::new(spec.tick_ms, TICKS_MAX)),
            lines: Vec::new(),
            unsent: Vec::new(),
            ready: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            begun: 0,
            start: Instant::now(),
            batch: Batch::new(),
            inbox: Inbox::new(),
        };
        if !spec.connect_each {
            for place in 0..spec.lines {
                load.connect(place.into())?;
            }
        }
        Ok(load)
    }

    /// Opens the line at this place.
    fn connect(&mut self, place: u32) -> io::Result<()> {
        let to = self.spec.to[place as usize % self.spec.to.len()];
        // The network's own and its broadcast address are left out.
        let own = |sources| nth(sources, 1 + u64::from(place) % hosts(sources));
        let from = self.spec.sources.map_or_else(|| any_like(to.ip()), own);
        let line = Line::open(SocketAddr::new(from, 0), to, (self.spec.way.over, self.tls.as_ref()))?;
        self.ready.add(line.as_fd(), EpollEvent::new(line.waits_for(), place.into()))?;
        let at = place as usize;
        if at >= self.lines.len() {
            self.lines.resize_with(at + 1, || None);
        }
        self.lines[at] = Some(line);
        Ok(())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn run(&mut self, context: &Context) -> io::Result<()> {
        self.start = Instant::now();
        context.print(&json!({ "event": "began" }));
        let mut until = 0;
        for (place, rate) in self.spec.rates.iter().enumerate() {
            let from = until;
            until += u64::from(rate.ms) * 1_000;
            let burst = u64::from(rate.per_s / CATCH_UP).max(64);
            let mut pacer = Pacer::new(rate.per_s.into(), burst);
            let (mut wanted, mut missed) = (0, 0);
            while self.now() < until && !context.stopped() {
                let now = self.now().max(from);
                let due = pacer.due((now - from) * 1_000);
                wanted += due;
                let counts = self.calls.counts.at(now);
                counts.offered += due;
                if due >= burst {
                    // What there was no time to begin is not begun later.
                    let all = (now - from) * u64::from(rate.per_s) / 1_000_000;
                    let more = all.saturating_sub(wanted + missed);
                    counts.not_begun += more;
                    missed += more;
                }
                (0..due).for_each(|_| self.begin(now));
                self.turn()?;
            }
            // Nor is what was due in the last moment.
            let all = (until - from) * u64::from(rate.per_s) / 1_000_000;
            self.calls.counts.at(until.saturating_sub(1)).not_begun += all.saturating_sub(wanted + missed);
            context.print(&json!({ "event": "rate", "place": place }));
        }
        if self.spec.hold_ms.is_none() {
            self.calls.hang_up_all(self.now(), &mut self.lines);
            self.unsent = (0..u32::try_from(self.lines.len()).unwrap_or(u32::MAX)).collect();
        }
        until += u64::from(self.spec.drain_ms) * 1_000;
        while self.calls.open() > 0 && self.now() < until && !context.stopped() {
            self.turn()?;
        }
        Ok(())
    }

    fn begin(&mut self, now: u64) {
        let Some(slot) = self.calls.next_slot() else {
            self.calls.counts.at(now).not_begun += 1;
            return;
        };
        let place = if self.spec.connect_each { slot } else { self.begun % u32::from(self.spec.lines) };
        self.begun = self.begun.wrapping_add(1);
        let is_open = self.lines.get(place as usize).is_some_and(Option::is_some);
        if !is_open && self.connect(place).is_err() {
            self.calls.counts.at(now).not_begun += 1;
            return;
        }
        if let Some(Some(line)) = self.lines.get_mut(place as usize) {
            self.calls.begin(now, (place, &mut line.phone));
            self.unsent.push(place);
        }
    }

    /// Sends what there is, waits a little, hears what came, does what is due.
    fn turn(&mut self) -> io::Result<()> {
        self.flush();
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.ready.wait(&mut events, EpollTimeout::from(WAIT_MS)) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in events.iter().take(count) {
            self.hear(event.data() as u32);
        }
        let now = self.now();
        while let Some(next) = self.calls.due(now) {
            let Next::Of(place, later) = next else {
                self.begin(now);
                continue;
            };
            let Some(Some(line)) = self.lines.get_mut(place as usize) else { continue };
            let wants = self.calls.take_due(now, later, &mut line.phone);
            self.unsent.push(place);
            self.end(wants);
        }
        Ok(())
    }

    fn hear(&mut self, place: u32) {
        let now = self.now();
        let Some(Some(line)) = self.lines.get_mut(place as usize) else { return };
        let waited_for = line.waits_for();
        let mut ended = Wants::Nothing;
        line.hear(&mut self.inbox, |phone, message| {
            let wants = self.calls.hear(now, message, phone);
            if wants != Wants::Nothing {
                ended = wants;
            }
        });
        if line.waits_for() != waited_for {
            let _ = self.ready.modify(line.as_fd(), &mut EpollEvent::new(line.waits_for(), place.into()));
        }
        self.unsent.push(place);
        if line.is_over() {
            self.lines[place as usize] = None;
            self.calls.break_off(now, place);
            return;
        }
        self.end(ended);
    }

    /// A connection of one call ends with it, once its last words are said.
    fn end(&mut self, wants: Wants) {
        if let (Wants::End(place), true) = (wants, self.spec.connect_each)
            && let Some(mut line) = self.lines.get_mut(place as usize).and_then(Option::take)
        {
            line.flush(&mut self.batch);
        }
    }

    fn flush(&mut self) {
        let now = self.now();
        let mut places = std::mem::take(&mut self.unsent);
        places.sort_unstable();
        places.dedup();
        places.retain(|place| {
            let Some(Some(line)) = self.lines.get_mut(*place as usize) else { return false };
            let (lost, waits) = line.flush(&mut self.batch);
            self.calls.counts.at(now).unsent += lost;
            waits
        });
        self.unsent = places;
    }
}

/// Addresses of a network beside its own and its broadcast address.
fn hosts(sources: Prefix) -> u64 {
    let bits = u32::from(sources.max_prefix_len() - sources.prefix_len()).min(16);
    ((1_u64 << bits) - 2).max(1)
}
