//! SIP set-ups: many users who call a service, and how long it takes until they are let in.

use std::{
    collections::{BTreeMap, HashMap},
    io, iter, mem,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    sync::Arc,
    time::{Duration, Instant as Clock},
};

use fastrand::Rng;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_sip::{
    message::{HeaderName, Message, Method},
    sdp::Session,
    ua::{Content, Event, LegId, Parties, Password, Settings, UserAgent},
};
use sluicegate_wire::Instant;

use super::{line::Line, media::Media};
use crate::{
    sample::Percentiles,
    sockets::{connected, wait_ready},
    stream::{Connecting, Over},
};
use sluicegate_site::{
    During, LabError, Process,
    clock::{Pacer, unix_ns},
    worker::Context,
};

/// Calls that may be open at one time; more are not begun, and counted.
const CALLS_MAX: usize = 65_536;
const SOCKETS_MAX: u16 = 256;
/// Requests of one call: its INVITEs, until one has a nonce that is right, and its BYE.
const REQUESTS_MAX: usize = 8;
/// What is answered so, or not at all, another front end may still take; 500 asks for less, wherever.
const AT_ANOTHER: [u16; 3] = [0, 408, 503];
const RECEIVE_MAX: usize = 16_384;
/// How long a call may take to be set up.
const READY_MAX: Duration = Duration::from_secs(10);
/// How often timers are looked at; far below T1.
const TICK: Duration = Duration::from_millis(5);

/// Specification of the worker `setup`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetupSpec {
    /// The front ends; sockets take turns.
    pub to: Vec<SocketAddr>,
    /// Whether a call that a front end does not answer, or answers with 408 or 503, is begun anew at the next one, as
    /// RFC 3263 has it, until each was asked once. It counts as one call from its first INVITE on.
    #[serde(default)]
    pub fails_over: bool,
    /// Sockets to call from. Over a stream each call has a connection of its own, so that who calls has to be let in anew.
    pub sockets: u16,
    /// What carries SIP; UDP unless given.
    #[serde(default)]
    pub way: Connecting,
    /// Realm of the front ends.
    pub realm: String,
    /// Service to call.
    pub service: String,
    /// Further services; calls take turns.
    #[serde(default)]
    pub more_services: Vec<String>,
    /// Names and passwords; calls take turns.
    pub users: Vec<(String, String)>,
    /// Calls begun a second.
    pub per_s: u32,
    /// Calls to begin in all.
    pub calls: u32,
    /// How long to begin calls.
    pub seconds: u32,
    /// How long an established call lasts before its BYE; `null`: until the worker is told to stop.
    #[serde(default)]
    pub talk_ms: Option<u32>,
    /// How long to wait for each answer; 0: 32 s, as RFC 3261 has it.
    #[serde(default)]
    pub give_up_ms: u32,
    /// Port of the media that the calls announce, the first of 256 where they send any.
    #[serde(default)]
    pub media_port: u16,
    /// Send a datagram of media in each call after so many milliseconds; 0: none.
    #[serde(default)]
    pub media_ms: u32,
    /// Ask for this UDP port of the service, as agents do, instead of offering audio; 0: audio.
    #[serde(default)]
    pub service_port: u16,
    /// How many authorised INVITEs to print, for attackers that replay them.
    #[serde(default)]
    pub record: u32,
    /// A method of which as many requests within relayed calls are printed, one of each, for the same purpose.
    #[serde(default)]
    pub record_also: String,
    /// Seed of everything random.
    pub seed: u64,
}

/// One set-up that ended: established, refused or given up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// When the first INVITE was sent, nanoseconds since 1970.
    pub started_ns: u64,
    /// Microseconds from the first INVITE to the 200; `None` if it never came.
    pub us: Option<u64>,
    /// The user.
    pub user: String,
    /// 200, the status that refused it, or 0 if no answer came.
    pub status: u16,
    /// The gate's address and port, from the 200.
    pub media: Option<SocketAddr>,
}

/// One call that was established and is over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndedCall {
    /// When its first INVITE was sent, nanoseconds since 1970.
    pub started_ns: u64,
    /// What its BYE was answered; 0: nothing.
    pub status: u16,
    /// Datagrams of media that it sent.
    pub media_sent: u32,
    /// Those that the service sent back.
    pub media_heard: u32,
}

/// Where the next call of a worker `setup` may send.
///
/// # Errors
/// If it ends without a call, or the call was refused.
pub fn opened(phone: &Process) -> Result<SocketAddr, LabError> {
    let event = phone.event("setup", READY_MAX)?;
    let media = event["media"].as_str().and_then(|media| media.parse().ok());
    media.ok_or_else(|| phone.failed(&format!("the call was refused: status {}", event["status"])))
}

/// What became of set-ups in a window of time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupSummary {
    /// Set-ups begun.
    pub started: u64,
    /// Those that were established.
    pub established: u64,
    /// The others, by status; 0: no answer.
    pub failed: BTreeMap<u16, u64>,
    /// From the first INVITE to the 200, microseconds.
    pub us: Percentiles,
}

impl SetupSummary {
    /// Of the set-ups begun from `from_ns` until before `to_ns`.
    #[must_use]
    pub fn of(setups: &[Setup], from_ns: u64, to_ns: u64) -> Self {
        let mut summary = Self::default();
        let mut times = Vec::new();
        for setup in setups.iter().filter(|setup| (from_ns..to_ns).contains(&setup.started_ns)) {
            summary.started += 1;
            match setup.us {
                Some(us) => times.push(us),
                None => *summary.failed.entry(setup.status).or_insert(0) += 1,
            }
        }
        summary.established = times.len() as u64;
        summary.us = Percentiles::of(&mut times);
        summary
    }
}

/// Runs the worker `setup`: prints `{"event":"setup","started_ns","us","user","status","media"}` for each,
/// `{"event":"ended","started_ns","status","media_sent","media_heard"}` for each that was established and is over,
/// and `{"event":"authorised","from","message"}` and `{"event":"recorded","from","message"}` for the first `record` ones.
pub(crate) fn setup(spec: &SetupSpec, context: &Context) -> Result<(), LabError> {
    if spec.to.is_empty() || spec.users.is_empty() || spec.sockets == 0 || spec.sockets > SOCKETS_MAX {
        return Err(context.refuse(&format!("`to` and `users` must not be empty, `sockets` 1 to {SOCKETS_MAX}")));
    }
    let mut phone = Phone::open(spec, context).during(|| "opening the phones' sockets".to_owned())?;
    context.ready();
    let mut pacer = Pacer::new(spec.per_s.into(), 64);
    let end = Duration::from_secs(spec.seconds.into());
    while !context.stopped() {
        let elapsed = phone.clock.elapsed();
        if elapsed < end {
            let due = pacer.due(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
            (0..due).for_each(|_| phone.begin());
        }
        let all_begun = elapsed >= end || phone.begun >= u64::from(spec.calls);
        if all_begun && phone.calls.is_empty() {
            break;
        }
        phone.turn().during(|| "waiting for answers".to_owned())?;
    }
    phone.hang_up().during(|| "ending the calls".to_owned())?;
    context.result(&json!({
        "begun": phone.begun, "established": phone.established, "not_begun": phone.not_begun,
        "us": Percentiles::of(&mut phone.times_us),
    }));
    Ok(())
}

/// Who calls whom; shared by all calls of one user.
struct Caller {
    user: String,
    password: Password,
    /// `sip:user@realm`
    address: String,
    /// `sip:service@realm`
    service: String,
}

/// One call from its first INVITE to the answer of its BYE. Each has a user agent of its own, so that a call that is over
/// takes its transactions along.
struct Call {
    ua: UserAgent<Password>,
    /// When the user agent has something to do.
    due: Option<Instant>,
    line: Line,
    local: SocketAddr,
    began: Began,
    user: String,
    bye_at: Option<Instant>,
    /// What its BYE was answered.
    bye_status: u16,
    reported: bool,
    recorded: bool,
    recorded_also: bool,
}

/// Which call it is, when its first INVITE was sent, and how many front ends it was begun at before.
#[derive(Debug, Clone, Copy)]
struct Began {
    turn: usize,
    at: Instant,
    at_ns: u64,
    tried: usize,
}

struct Phone<'a> {
    spec: &'a SetupSpec,
    context: &'a Context,
    clock: Clock,
    sockets: Vec<UdpSocket>,
    tls: Option<Arc<ClientConfig>>,
    callers: Vec<Arc<Caller>>,
    calls: HashMap<LegId, Call>,
    media: Option<Media>,
    random: Rng,
    begun: u64,
    not_begun: u64,
    established: u64,
    recorded: u32,
    recorded_also: u32,
    times_us: Vec<u64>,
}

impl<'a> Phone<'a> {
    fn open(spec: &'a SetupSpec, context: &'a Context) -> io::Result<Self> {
        let open = |index: u16| {
            let to = spec.to[usize::from(index) % spec.to.len()];
            let socket = connected(to, 0)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let sockets = if spec.way.over.is_stream() { 0 } else { spec.sockets };
        let services: Vec<_> = iter::once(&spec.service).chain(&spec.more_services).collect();
        let caller = |service: &str, (user, password): &(String, String)| {
            Arc::new(Caller {
                user: user.clone(),
                password: Password::new(user, &spec.realm, password),
                address: format!("sip:{user}@{}", spec.realm),
                service: format!("sip:{service}@{}", spec.realm),
            })
        };
        Ok(Self {
            spec,
            context,
            clock: Clock::now(),
            sockets: (0..sockets).map(open).collect::<io::Result<_>>()?,
            tls: spec.way.tls()?,
            callers: services.iter().flat_map(|service| spec.users.iter().map(|user| caller(service, user))).collect(),
            calls: HashMap::new(),
            media: if spec.media_ms > 0 { Some(Media::open(media_port(spec), spec.media_ms)?) } else { None },
            random: Rng::with_seed(spec.seed),
            begun: 0,
            not_begun: 0,
            established: 0,
            recorded: 0,
            recorded_also: 0,
            times_us: Vec::new(),
        })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.clock.elapsed()
    }

    /// Begins the next call, unless all have begun.
    fn begin(&mut self) {
        if self.begun >= u64::from(self.spec.calls) {
            return;
        }
        let number = self.begun;
        self.begun += 1;
        if self.calls.len() >= CALLS_MAX {
            self.not_begun += 1;
            return;
        }
        let turn = usize::try_from(number).unwrap_or(0);
        self.call(Began { turn, at: self.now(), at_ns: unix_ns(), tried: 0 });
    }

    /// Sends an INVITE to the front end whose turn it is.
    fn call(&mut self, began: Began) {
        let caller = Arc::clone(&self.callers[began.turn % self.callers.len()]);
        let turn = began.turn + began.tried;
        let target = self.spec.to[turn % self.spec.to.len()];
        let line = match self.spec.way.over {
            Over::Udp => Ok(Line::Shared(turn % self.sockets.len())),
            Over::Tcp | Over::Tls => Line::open(target, self.tls.as_ref()),
        };
        let Ok((target, local, line)) =
            line.and_then(|line| line.ends(&self.sockets, target).map(|(to, own)| (to, own, line)))
        else {
            self.not_begun += 1;
            return;
        };
        let patience_ms = if self.spec.give_up_ms == 0 { 32_000 } else { self.spec.give_up_ms };
        let settings = Settings {
            transport: self.spec.way.over.transport(),
            local,
            target,
            requests_max: REQUESTS_MAX,
            answers_max: 1,
            patience: Some(Duration::from_millis(patience_ms.into())),
            has_short_t2: false,
        };
        let mut key = [0; 16];
        self.random.fill(&mut key);
        let mut ua = UserAgent::new(settings, key);
        let parties =
            Parties { from: &caller.address, to: &caller.service, uri: &caller.service, contact: &caller.user };
        let content = Content::default().body("application/sdp", self.offer(&caller.user, (local.ip(), began.turn)));
        let started = self.now();
        let Ok(leg) = ua.start(started, Method::Invite, parties, content, Some(caller.password.clone())) else {
            return;
        };
        let user = caller.user.clone();
        let call = Call {
            ua,
            due: None,
            line,
            local,
            began,
            user,
            bye_at: None,
            bye_status: 0,
            reported: false,
            recorded: false,
            recorded_also: false,
        };
        self.calls.insert(leg, call);
        self.settle(leg);
    }

    /// The session description that says what to open.
    fn offer(&self, user: &str, (ip, turn): (IpAddr, usize)) -> Vec<u8> {
        let family = if ip.is_ipv4() { "IP4" } else { "IP6" };
        let media_port = media_port(self.spec);
        let media_port = if self.media.is_some() { super::media::port(media_port, turn) } else { media_port };
        let media = match self.spec.service_port {
            0 => format!("m=audio {media_port} RTP/AVP 0\r\na=sendrecv"),
            port => format!("m=application {media_port} UDP sluicegate\r\na=service-ports:{port}"),
        };
        format!("v=0\r\no={user} 1 1 IN {family} {ip}\r\ns=-\r\nc=IN {family} {ip}\r\nt=0 0\r\n{media}\r\n")
            .into_bytes()
    }

    /// Waits up to [`TICK`], reads what came, looks at the timers.
    fn turn(&mut self) -> io::Result<()> {
        let streams = self.calls.values().filter_map(|call| call.line.stream());
        let streams = streams.map(|stream| (stream.socket.as_fd(), stream.has_unsent()));
        let ready = wait_ready(self.sockets.iter().map(|socket| (socket.as_fd(), false)).chain(streams), TICK)?;
        let mut messages = Vec::new();
        self.calls.values_mut().for_each(|call| call.line.turn(&mut messages));
        messages.iter().for_each(|message| self.receive(message));
        let mut buffer = vec![0; RECEIVE_MAX];
        for socket in (0..self.sockets.len()).filter(|index| ready[*index]) {
            // An error is the ICMP answer to an earlier request: the retransmission deals with it.
            while let Ok(len) = self.sockets[socket].recv(&mut buffer) {
                self.receive(buffer.get(..len).unwrap_or_default());
            }
        }
        let now = self.now();
        self.media.iter_mut().for_each(|media| media.turn(now));
        let is_due = |call: &Call| [call.due, call.bye_at].into_iter().flatten().any(|at| at <= now);
        let due: Vec<LegId> = self.calls.iter().filter(|(_, call)| is_due(call)).map(|(leg, _)| *leg).collect();
        for leg in due {
            if let Some(call) = self.calls.get_mut(&leg) {
                call.ua.handle_timeout(now);
                if call.bye_at.take_if(|at| *at <= now).is_some() {
                    // A call that cannot be ended ends by itself.
                    let _ = call.ua.end(now, leg, Content::default());
                }
            }
            self.settle(leg);
        }
        Ok(())
    }

    fn receive(&mut self, datagram: &[u8]) {
        let now = self.now();
        let Ok(message) = Message::parse(datagram) else { return };
        let leg = message.from().ok().and_then(|from| LegId::of_tag(from.tag?));
        let Some((leg, call)) = leg.and_then(|leg| Some((leg, self.calls.get_mut(&leg)?))) else { return };
        if message.cseq().is_ok_and(|cseq| cseq.method == Method::Bye) {
            call.bye_status = message.status().unwrap_or_default();
        }
        call.ua.handle_input(now, call.ua.target(), datagram);
        self.settle(leg);
    }

    /// Sends what a call has to send and reports what became of it.
    fn settle(&mut self, leg: LegId) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(&leg) else { return };
        while let Some(message) = call.ua.poll_output() {
            // What the kernel does not take is lost, and sent again by the timer.
            call.line.send(&self.sockets, &message.bytes);
            let is_meant = is_within(&message.bytes, &self.spec.record_also);
            if is_meant && self.recorded_also < self.spec.record && !mem::replace(&mut call.recorded_also, true) {
                self.recorded_also += 1;
                let (from, message) = (call.local, String::from_utf8_lossy(&message.bytes));
                self.context.print(&json!({ "event": "recorded", "from": from, "message": message }));
            }
        }
        call.due = call.ua.poll_timeout();
        if let (true, false, Some(invite)) = (
            self.recorded < self.spec.record,
            call.recorded,
            call.ua.waiting(leg).filter(|invite| is_authorised(invite)),
        ) {
            call.recorded = true;
            self.recorded += 1;
            let message = String::from_utf8_lossy(invite);
            self.context.print(&json!({ "event": "authorised", "from": call.local, "message": message }));
        }
        while let Some(event) = self.calls.get_mut(&leg).and_then(|call| call.ua.poll_event()) {
            match event {
                Event::Answered { code: 200..=299, response, .. } => self.report(now, leg, 200, media(&response)),
                Event::Answered { code, .. } => self.give_up(now, leg, code),
                Event::Failed { .. } => self.give_up(now, leg, 0),
                Event::Ended { .. } => self.over(leg),
                Event::Invited { .. } => {}
            }
        }
    }

    fn give_up(&mut self, now: Instant, leg: LegId, status: u16) {
        let tried = self.calls.get(&leg).map_or(0, |call| call.began.tried + 1);
        if !self.spec.fails_over || !AT_ANOTHER.contains(&status) || tried >= self.spec.to.len() {
            self.report(now, leg, status, None);
            self.calls.remove(&leg);
        } else if let Some(call) = self.calls.remove(&leg) {
            self.call(Began { tried, ..call.began });
        }
    }

    fn over(&mut self, leg: LegId) {
        let Some(Call { began, bye_status, .. }) = self.calls.remove(&leg) else { return };
        let carried = self.media.as_mut().map(|media| media.end(leg)).unwrap_or_default();
        let (media_sent, media_heard) = (carried.sent, carried.heard);
        self.context.say("ended", &EndedCall { started_ns: began.at_ns, status: bye_status, media_sent, media_heard });
    }

    fn report(&mut self, now: Instant, leg: LegId, status: u16, media: Option<SocketAddr>) {
        let Some(call) = self.calls.get_mut(&leg) else { return };
        call.reported = true;
        let took = (status == 200).then(|| now.since(call.began.at));
        let us = took.and_then(|took| u64::try_from(took.as_micros()).ok());
        call.bye_at = self.spec.talk_ms.map(|ms| now + Duration::from_millis(ms.into()));
        if let (Some(media), Some(gate)) = (&mut self.media, media) {
            media.begin((now, call.bye_at), (leg, call.began.turn), gate);
        }
        self.times_us.extend(us);
        self.established += u64::from(us.is_some());
        let setup = Setup { started_ns: call.began.at_ns, us, user: call.user.clone(), status, media };
        self.context.say("setup", &setup);
    }

    /// Ends all calls that stand, and waits a moment for the answers.
    fn hang_up(&mut self) -> io::Result<()> {
        let now = self.now();
        for (leg, call) in &mut self.calls {
            call.bye_at = (call.reported && call.ua.waiting(*leg).is_none()).then_some(now);
        }
        let end = Clock::now() + Duration::from_secs(2);
        while !self.calls.is_empty() && Clock::now() < end {
            self.turn()?;
        }
        Ok(())
    }
}

const fn media_port(spec: &SetupSpec) -> u16 {
    if spec.media_port == 0 { 40_000 } else { spec.media_port }
}

/// Whether a message is a request of this method, there is none without a name, that follows a Route.
fn is_within(message: &[u8], method: &str) -> bool {
    let is_of = message.strip_prefix(method.as_bytes()).is_some_and(|rest| rest.first() == Some(&b' '));
    is_of && Message::parse(message).is_ok_and(|request| request.routes().next().is_some())
}

/// Whether a request carries credentials.
fn is_authorised(request: &[u8]) -> bool {
    let fields = [HeaderName::Authorization, HeaderName::ProxyAuthorization];
    Message::parse(request).is_ok_and(|request| fields.iter().any(|field| request.header(*field).is_some()))
}

/// The gate's address and port for the media, from a 200.
fn media(response: &[u8]) -> Option<SocketAddr> {
    let session = Session::parse(Message::parse(response).ok()?.body()).ok()?;
    let media = session.media().iter().find(|media| media.port != 0)?;
    Some(SocketAddr::new(media.address?, media.port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_counts_failures_by_status_and_times_of_successes() {
        let setup = |started_ns, us, status| Setup { started_ns, us, user: "u".to_owned(), status, media: None };
        let setups = [setup(1, Some(100), 200), setup(2, None, 503), setup(3, None, 0), setup(9, Some(5), 200)];
        let summary = SetupSummary::of(&setups, 0, 9);
        assert_eq!((summary.started, summary.established, summary.us.max), (3, 1, 100));
        assert_eq!(summary.failed, BTreeMap::from([(0, 1), (503, 1)]));
    }
}
