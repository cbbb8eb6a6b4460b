//! Who answers the calls of a load, without remembering any of them.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_sip::{
    message::{Message, Method},
    sdp::{Answer, MediaAnswer, Session},
    write::Response,
};

use super::timers::Timers;
use crate::{
    datagrams::{BATCH, Batch, Inbox, make_room},
    sockets::wait_ready,
};
use sluicegate_site::{During, LabError, worker::Context};

/// Longest wait, so that what rings is answered in time.
const WAIT: Duration = Duration::from_millis(2);
const TAG: &[u8] = b"callee";
/// Calls that may ring at one time; more are answered at once.
const RINGING_MAX: usize = 1 << 20;

/// What is done with an INVITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replying {
    /// It is answered at once.
    #[default]
    Answers,
    /// 180, and the answer so many milliseconds later. The answer is not sent again by itself.
    Rings(u32),
    /// Nothing.
    Silent,
}

/// Specification of the worker `callees`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalleesSpec {
    /// Where they take SIP over UDP.
    pub listen: SocketAddr,
    /// Where calls are to send their media.
    pub media: SocketAddr,
    /// What they do with an INVITE.
    #[serde(default)]
    pub manner: Replying,
    /// How long to answer.
    pub seconds: u32,
}

/// Runs the worker `callees`: 200 to INVITE, BYE and OPTIONS, 481 to CANCEL, nothing to ACK. The result says how many INVITEs,
/// ACKs, BYEs and others came.
pub(crate) fn callees(spec: &CalleesSpec, context: &Context) -> Result<(), LabError> {
    let socket = UdpSocket::bind(spec.listen).during(|| format!("binding {}", spec.listen))?;
    socket.set_nonblocking(true).and_then(|()| make_room(&socket)).during(|| "preparing the socket".to_owned())?;
    context.ready();
    let (mut inbox, mut batch) = (Inbox::new(), Batch::new());
    let mut callees = Callees {
        spec,
        answers: Answers::default(),
        ringing: Timers::new(),
        waiting: Vec::new(),
        free: Vec::new(),
        counts: [0; 4],
    };
    let start = Instant::now();
    let end = Duration::from_secs(spec.seconds.into());
    while start.elapsed() < end && !context.stopped() {
        wait_ready([(socket.as_fd(), false)].into_iter(), WAIT).during(|| "waiting for calls".to_owned())?;
        let mut more = BATCH;
        while more == BATCH {
            let now = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
            more = inbox.receive(&socket, |from, bytes| {
                if let (Some(from), Ok(message)) = (from, Message::parse(bytes)) {
                    callees.take(now, from, &message);
                }
            });
            callees.pick_up(now);
            callees.answers.send(&socket, &mut batch);
        }
    }
    let [invites, acks, byes, others] = callees.counts;
    context.result(&json!({ "invites": invites, "acks": acks, "byes": byes, "others": others }));
    Ok(())
}

/// Answers to be sent, one behind the other.
#[derive(Default)]
struct Answers {
    bytes: Vec<u8>,
    each: Vec<(SocketAddr, usize)>,
    scratch: Vec<u8>,
}

impl Answers {
    fn push(&mut self, to: SocketAddr) {
        self.bytes.extend_from_slice(&self.scratch);
        self.each.push((to, self.bytes.len()));
    }

    fn send(&mut self, socket: &UdpSocket, batch: &mut Batch) {
        let mut from = 0;
        let mut left = self.each.as_slice();
        while !left.is_empty() {
            let mut start = from;
            let some = left.iter().take(BATCH);
            let some = some.map(|(to, end)| (Some(*to), &self.bytes[std::mem::replace(&mut start, *end)..*end]));
            // One that is not taken must not hold up the others.
            let gone = batch.send_each(socket, some).unwrap_or(0).max(1);
            from = left[gone - 1].1;
            left = &left[gone..];
        }
        self.bytes.clear();
        self.each.clear();
    }
}

struct Callees<'s> {
    spec: &'s CalleesSpec,
    answers: Answers,
    ringing: Timers<usize>,
    /// Answers of calls that ring, and places of those that were sent.
    waiting: Vec<(SocketAddr, Vec<u8>)>,
    free: Vec<usize>,
    /// INVITEs, ACKs, BYEs and others.
    counts: [u64; 4],
}

impl Callees<'_> {
    fn take(&mut self, now: u64, from: SocketAddr, message: &Message<'_>) {
        let (kind, code) = match message.method() {
            Some(Method::Invite) => (0, 200),
            Some(Method::Ack) => (1, 0),
            Some(Method::Bye) => (2, 200),
            Some(Method::Cancel) => (3, 481),
            Some(Method::Options) => (3, 200),
            Some(_) => (3, 405),
            None => return,
        };
        self.counts[kind] += 1;
        if code == 0 || (kind == 0 && self.spec.manner == Replying::Silent) {
            return;
        }
        if let (0, Replying::Rings(ms)) = (kind, self.spec.manner)
            && self.waiting.len() - self.free.len() < RINGING_MAX
        {
            Response::to(message, 180)
                .source(from)
                .to_tag(TAG)
                .record_route()
                .begin(&mut self.answers.scratch)
                .finish();
            self.answers.push(from);
            let place = self.free.pop().unwrap_or_else(|| {
                self.waiting.push((from, Vec::new()));
                self.waiting.len() - 1
            });
            self.waiting[place].0 = from;
            accept(self.spec, message, from, &mut self.waiting[place].1);
            self.ringing.begin(now, u64::from(ms) * 1_000, place);
            return;
        }
        if kind == 0 {
            accept(self.spec, message, from, &mut self.answers.scratch);
        } else {
            Response::to(message, code).source(from).to_tag(TAG).begin(&mut self.answers.scratch).finish();
        }
        self.answers.push(from);
    }

    fn pick_up(&mut self, now: u64) {
        while let Some(place) = self.ringing.due(now) {
            let (to, answer) = &self.waiting[place];
            self.answers.scratch.clone_from(answer);
            self.answers.push(*to);
            self.free.push(place);
        }
    }
}

/// The 200 to an INVITE, with an answer if that offers anything.
fn accept(spec: &CalleesSpec, message: &Message<'_>, from: SocketAddr, out: &mut Vec<u8>) {
    let response = Response::to(message, 200).source(from).to_tag(TAG).record_route().begin(out);
    let response = response.header_args("Contact", format_args!("<sip:callee@{}>", spec.listen));
    let Ok(offer) = Session::parse(message.body()) else { return response.finish() };
    let media = [MediaAnswer::Accepted { address: spec.media.ip(), port: spec.media.port() }];
    let mut description = Vec::new();
    Answer { offer: &offer, session_id: 1, version: 1, address: spec.media.ip(), media: &media }
        .write(&mut description);
    response.body("application/sdp", &description);
}
