//! A shard's thread: sockets, clock and queues around the pure state machine.

use std::{
    io,
    os::fd::AsFd as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    time::{ClockId, clock_gettime},
};
use sluicegate_bounded::Gauge;
use sluicegate_datapath::UdpQueue;
use sluicegate_wire::{Instant, Pace};

use crate::{
    clock::Clock,
    frames::{FrameCounts, Ports},
    inbox::{ShardInbox, ShardSender},
    outbox::Outbox,
    published::Published,
    streams::{Heard, Streams, Unsent},
    to_hub::ToHub,
    udp::{BATCH, Inbox, Udp},
};
use sluicegate_policy::Policy;
use sluicegate_proxy::{AgentKeys, ConnectionId, Event, Flow, Input, Now, Shard};

/// Longest sleep, so that gauges stay fresh and a stop is noticed.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// While more comes within this time, it is let gather for as long: to wake up for each datagram takes as long as the datagram does.
const GATHERS: Duration = Duration::from_micros(250);
/// While a turn of this length was worked, enough has gathered.
const TURN_LONG: Duration = Duration::from_millis(1);
/// Batches read from one socket before answers are sent and other work is done.
const BATCHES_PER_TURN: usize = 4;
/// What a thread is woken by, besides datagrams at a socket or a queue, which has its place among them.
const INPUTS: u64 = u64::MAX;
const CONNECTIONS: u64 = u64::MAX - 1;
/// Things that are ready looked at in one turn; the others come next.
const READY_MAX: usize = 64;

/// Lines about a socket that does not work.
static CANNOT_RECEIVE: Pace = Pace::per_second(2);

/// The fill of each of a shard's tables, as last published.
pub(crate) type Gauges = Arc<Mutex<Vec<Gauge>>>;

/// Everything that a shard's thread owns.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shard: Shard,
    pub(crate) number: u8,
    /// UDP sockets, by listener number.
    pub(crate) sockets: Vec<(u8, Udp)>,
    /// The interfaces where it takes or refuses something.
    pub(crate) ports: Ports,
    /// What is counted of those.
    pub(crate) frames: FrameCounts,
    /// Its connections, if it listens for any.
    pub(crate) streams: Option<Streams>,
    pub(crate) inbox: ShardInbox,
    pub(crate) policy: Arc<Published<Policy>>,
    pub(crate) agents: Arc<Published<AgentKeys>>,
    /// All shards, this one too: what belongs to a connection of another is sent by that.
    pub(crate) all: Arc<[ShardSender]>,
    pub(crate) to_hub: ToHub,
    pub(crate) clock: Clock,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) gauges: Gauges,
}

/// Tells a shard what each thing that it is handed takes, if it wants to know.
struct Lap<'c> {
    clock: &'c Clock,
    began: Option<Instant>,
}

impl<'c> Lap<'c> {
    fn start(clock: &'c Clock, shard: &Shard) -> Self {
        Self { clock, began: shard.weighs().then(|| clock.now()) }
    }

    fn end(&mut self, shard: &mut Shard) {
        let Some(began) = self.began else { return };
        let now = self.clock.now();
        shard.spend(now.since(began));
        self.began = Some(now);
    }
}

/// Ends the process when its thread panics. The clients of a shard that is gone would get no answer from a process that
/// says it is ready; whoever started the process starts it again.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("a SIP thread has failed; the process ends, so that it is started again");
            std::process::abort();
        }
    }
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn spawn(self) -> io::Result<JoinHandle<()>> {
        let poller = self.poller()?;
        thread::Builder::new().name(format!("sip-{}", self.number)).spawn(move || {
            let _guard = EndOnPanic;
            self.run(&poller);
        })
    }

    /// What is waited for.
    fn poller(&self) -> io::Result<Epoll> {
        let poller = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = |data| EpollEvent::new(EpollFlags::EPOLLIN, data);
        let sockets = self.sockets.iter().map(|(_, udp)| udp.as_fd());
        for (source, place) in sockets.chain(self.ports.queues.iter().map(UdpQueue::as_fd)).zip(0..) {
            poller.add(source, readable(place))?;
        }
        poller.add(&self.inbox, readable(INPUTS))?;
        if let Some(streams) = &self.streams {
            poller.add(streams, readable(CONNECTIONS))?;
        }
        Ok(poller)
    }

    fn run(mut self, poller: &Epoll) {
        let mut memory = Inbox::new(self.sockets.len());
        let mut outbox = Outbox::new();
        let mut events = [EpollEvent::empty(); READY_MAX];
        let mut published = Instant::ZERO;
        let mut measured = Measured { at: Instant::ZERO, cpu: Duration::ZERO, slept: Duration::ZERO };
        let (mut has_more, mut gathers) = (false, false);
        let mut woken = self.clock.now();
        while !self.stop.load(Ordering::Relaxed) {
            let slept = self.clock.now();
            let is_held_up = has_more || self.to_hub.is_due(slept);
            if gathers && !is_held_up && slept.since(woken) < TURN_LONG {
                thread::sleep(GATHERS);
            }
            // So long nobody looked at streams and queues, at most.
            let unread = self.clock.now().since(woken);
            let ready = self.wait(poller, &mut events, is_held_up);
            woken = self.clock.now();
            gathers = woken.since(slept) < 2 * GATHERS;
            measured.slept += woken.since(slept);
            let is_ready = |what| ready.iter().any(|event| event.data() == what);
            if is_ready(INPUTS) {
                self.inbox.clear_wakes();
            }
            self.take_published();
            let now = self.now();
            while let Some(input) = self.inbox.next() {
                self.shard.on_input(now, input);
            }
            for place in ready.iter().filter_map(|event| usize::try_from(event.data()).ok()) {
                self.receive(place, &mut memory, unread);
            }
            self.take_streams(is_ready(CONNECTIONS).then_some(unread));
            let now = self.now();
            if self.shard.poll_timeout().is_some_and(|due| due <= now.instant) {
                self.shard.on_time(now);
            }
            self.measure(&mut measured, &mut memory, now);
            // First of all: who has proved itself is not cut off in this turn.
            self.pass_events(now.instant);
            has_more = self.flush(&mut outbox);
            if now.instant.since(published) >= Duration::from_millis(200) {
                published = now.instant;
                self.publish();
            }
        }
    }

    /// Decides by what the control side put in place since the last turn.
    fn take_published(&mut self) {
        let now = self.now();
        let Self { shard, streams, number, policy, agents, .. } = self;
        policy.take(usize::from(*number), |policy| {
            streams.iter().for_each(|streams| streams.know(&policy));
            shard.on_input(now, Input::Policy(policy));
        });
        agents.take(usize::from(*number), |agents| shard.on_input(now, Input::Agents(agents)));
    }

    /// Tells the shard how busy its thread was since it was told last.
    fn measure(&mut self, measured: &mut Measured, memory: &mut Inbox, now: Now) {
        if self.shard.measure_due() > now.instant {
            return;
        }
        let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(measured.cpu, Duration::from);
        let before = std::mem::replace(measured, Measured { at: now.instant, cpu, slept: Duration::ZERO });
        let share = |of: Duration| of.as_secs_f64() / now.instant.since(before.at).as_secs_f64();
        let busy = 1.0 - share(before.slept);
        if let Some(streams) = &self.streams {
            self.shard.crowd(streams.crowd(busy));
        }
        self.shard.lose(memory.take_lost());
        self.shard.measure(now, share(cpu.saturating_sub(before.cpu)), busy);
        self.ports.sieve(self.shard.sieves());
    }

    fn now(&self) -> Now {
        Now { instant: self.clock.now(), unix: self.clock.unix() }
    }

    /// Sleeps until something is to be done; what there is to be read.
    fn wait<'e>(&self, poller: &Epoll, events: &'e mut [EpollEvent; READY_MAX], has_more: bool) -> &'e [EpollEvent] {
        let now = self.clock.now();
        let streams = self.streams.as_ref().and_then(Streams::next_due);
        let to_hub = self.to_hub.next_due().filter(|due| *due > now);
        let due = self.shard.poll_timeout().into_iter().chain(streams).chain(to_hub).min();
        let due = due.map_or(SLEEP_MAX, |due| due.since(now)).min(SLEEP_MAX);
        // What the hub had no room for is tried again soon, and what came of the last flush goes on.
        let due = if has_more { due.min(Duration::from_millis(1)) } else { due };
        // Rounded up, so that the shard is not woken just before its time and put to sleep again.
        let millis = u16::try_from(due.as_nanos().div_ceil(1_000_000)).unwrap_or(u16::MAX);
        let count = match poller.wait(events, millis) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => {
                tracing::error!(%errno, "cannot wait for datagrams");
                thread::sleep(Duration::from_millis(10));
                0
            }
        };
        events.get(..count).unwrap_or_default()
    }

    fn receive(&mut self, place: usize, memory: &mut Inbox, unread: Duration) {
        let Some((listener, socket)) = self.sockets.get(place) else {
            return self.receive_frames(place - self.sockets.len(), unread);
        };
        for _ in 0..BATCHES_PER_TURN {
            let now = self.now();
            let mut lap = Lap::start(&self.clock, &self.shard);
            let shard = &mut self.shard;
            let received = memory.receive((place, socket), |peer, waited, bytes| {
                shard.wait(waited);
                shard.on_datagram(now, Flow::datagrams(*listener, peer), bytes);
                lap.end(shard);
            });
            match received {
                Ok(BATCH) => {}
                Ok(_) => return,
                Err(error) => {
                    if let Some(left_out) = CANNOT_RECEIVE.admit(now.instant) {
                        tracing::warn!(%error, left_out, "cannot receive");
                    }
                    return;
                }
            }
        }
    }

    /// As [`Self::receive`], from a queue. Where its driver does not tell how long frames have waited, it is as long as nobody
    /// looked.
    fn receive_frames(&mut self, queue: usize, unread: Duration) {
        let Some(queue) = self.ports.queues.get_mut(queue) else { return };
        for _ in 0..BATCHES_PER_TURN {
            let now = Now { instant: self.clock.now(), unix: self.clock.unix() };
            let shard = &mut self.shard;
            let mut lap = Lap::start(&self.clock, shard);
            let received = queue.receive(|listener, peer, waited, bytes| {
                shard.wait_in_frame(waited.unwrap_or(unread));
                shard.on_datagram(now, Flow::datagrams(listener, peer), bytes);
                lap.end(shard);
            });
            if received < BATCH {
                return;
            }
        }
    }

    /// Looks at connections: what came over them, if something did, and whose time is over. What comes has `waited` for as long
    /// as the last turn took.
    fn take_streams(&mut self, waited: Option<Duration>) {
        let now = self.now();
        let Self { streams: Some(streams), shard, inbox, clock, .. } = self else { return };
        if let Some(waited) = waited {
            let mut lap = Lap::start(clock, shard);
            let room = (shard.connections_left(), shard.measure_due());
            streams.turn(now.instant, room, &mut |flow, proofs, heard| {
                match heard {
                    Heard::Connection(waited) => return shard.connects(now, flow, waited),
                    Heard::Message(bytes, nth) => {
                        shard.wait_over_stream(waited, nth);
                        shard.on_message(now, flow, proofs, bytes);
                    }
                    Heard::Broken(bytes, error) => {
                        shard.wait_over_stream(waited, u32::MAX);
                        shard.on_broken(now, flow, bytes, error);
                    }
                }
                lap.end(shard);
                true
            });
        }
        while let Some((flow, message)) = inbox.next_carried() {
            streams.send(now.instant, flow, &message);
        }
        streams.on_time(now.instant);
    }

    /// Who was reached over a connection that has ended is not reached any more, nor who could not be reached at all. Whether
    /// there was anything to tell.
    fn tell_ended(&mut self) -> bool {
        let now = self.now();
        let Self { streams: Some(streams), shard, .. } = self else { return false };
        let ended = streams.ended().map(Input::Closed).collect::<Vec<_>>().into_iter();
        let undelivered = streams.undelivered().into_iter().map(|(flow, message)| Input::Undelivered { flow, message });
        ended.chain(undelivered).map(|input| shard.on_input(now, input)).count() > 0
    }

    /// Sends what is to be sent; whether more came of that.
    fn flush(&mut self, outbox: &mut Outbox) -> bool {
        let now = self.clock.now();
        let out = self.shard.transmits();
        if !out.is_empty() {
            let dropped = outbox.send(&mut self.sockets, &mut self.ports.queues, out);
            if let Some(streams) = &mut self.streams {
                for (flow, message) in out.iter() {
                    if streams.has(flow.listener) {
                        send_over(streams, (self.number, &self.all), now, flow, message);
                    }
                }
            }
            out.clear();
            self.shard.count_unsent(dropped);
        }
        if let Some(streams) = &mut self.streams {
            streams.flush(now);
        }
        // Each of them: peers that sent something in this turn are forgotten.
        let mut has_frames = false;
        for queue in &mut self.ports.queues {
            has_frames |= queue.flush();
        }
        self.tell_ended() || has_frames
    }

    /// Hands events on for as long as there is room; the others stay in the shard's own bounded queue.
    fn pass_events(&mut self, now: Instant) {
        let Self { to_hub, shard, streams, .. } = self;
        to_hub.pass(now, || {
            loop {
                match shard.poll_event()? {
                    Event::Proved { connection, user } => {
                        streams.iter_mut().for_each(|streams| streams.prove(connection, &user));
                    }
                    event => return Some(event),
                }
            }
        });
    }

    fn publish(&mut self) {
        if !self.ports.is_empty() {
            self.ports.spare(self.shard.spared(self.clock.now()));
            self.frames.publish(&mut self.ports);
        }
        let mut gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        gauges.clear();
        gauges.extend(self.shard.gauges(self.clock.now()));
        gauges.extend(self.streams.iter().flat_map(Streams::gauges));
    }
}

/// What a thread has spent, when it was measured last.
struct Measured {
    at: Instant,
    cpu: Duration,
    /// Since then with nothing to do.
    slept: Duration,
}

/// Sends a message over a connection of this thread, or has the thread send it whose connection it is for.
fn send_over(streams: &mut Streams, (own, all): (u8, &[ShardSender]), now: Instant, flow: Flow, message: &[u8]) {
    match flow.connection.map(ConnectionId::shard).filter(|owner| *owner != own) {
        None => streams.send(now, flow, message),
        Some(owner) => {
            if !all.get(usize::from(owner)).is_some_and(|owner| owner.carry(flow, message)) {
                streams.count_unsent(Unsent::Busy);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    const NAME: &str = "worker::tests::sip_d20_a_panicking_sip_thread_ends_the_process";

    #[test]
    fn sip_d20_a_panicking_sip_thread_ends_the_process() {
        if env::var_os("SLUICEGATE_PANIC").is_some() {
            let _ = thread::spawn(|| {
                let _guard = EndOnPanic;
                panic!("as this test wants it");
            })
            .join();
            return;
        }
        let own = env::current_exe().unwrap();
        let child = Command::new(own).args(["--exact", NAME]).env("SLUICEGATE_PANIC", "1").output().unwrap();
        assert_eq!(child.status.signal(), Some(6), "{child:?}");
    }
}
