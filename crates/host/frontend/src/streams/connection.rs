//! One connection: where it stands, what of a message has come over it, and until when something has to happen on it.

use std::{
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::Duration,
};

use nix::sys::epoll::EpollFlags;
use sluicegate_proxy::{ConnectionId, Flow, Proofs};
use sluicegate_sip::{
    message::ParseError,
    stream::{Framer, Item},
};
use sluicegate_wire::Instant;
use socket2::SockRef;

use super::{
    carrier::{Carrier, Failed},
    counted::Ended,
    places::Connections,
};
use crate::tls::Tls;

/// How long a peer may take to answer when we dial it.
const DIAL_MAX: Duration = Duration::from_secs(5);
/// How long a peer may read nothing of what waits for it: then every transaction is over (64 T1).
const STALLED_MAX: Duration = Duration::from_secs(32);
/// How long a peer has to read our last answer.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// What has come over a connection.
#[derive(Debug)]
pub(crate) enum Heard<'b> {
    /// A peer wants one, and has waited so long for it: whether to take it.
    Connection(Duration),
    /// A whole message, the how manieth of its connection; or a keep-alive, which has its answer.
    Message(&'b [u8], u32),
    /// What is no message, and why: nothing will follow.
    Broken(&'b [u8], ParseError),
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// We dialled; the peer has not answered yet.
    Dialling,
    /// Messages come and go.
    Open,
    /// The last answer goes; what comes is not read any more.
    Leaving,
    /// It went; the peer closes, or is cut off.
    Left,
}

/// What a connection begins with.
pub(super) struct Begun {
    pub(super) socket: TcpStream,
    pub(super) carrier: Carrier,
    pub(super) stage: Stage,
    pub(super) proofs: Arc<Proofs>,
}

/// A connection of this thread.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) flow: Flow,
    pub(super) socket: TcpStream,
    pub(super) carrier: Carrier,
    pub(super) stage: Stage,
    pub(super) is_ours: bool,
    /// What the poller looks for.
    pub(super) interest: EpollFlags,
    /// Whether it stands in the list of those that have something to send.
    pub(super) is_due: bool,
    /// Messages that it was given before it stood.
    pub(super) waiting: Vec<Box<[u8]>>,
    /// What was proved over it. Of a server that we dialled over TLS: that it has the certificate that it was dialled for.
    pub(super) proofs: Arc<Proofs>,
    /// Whether the certificates that a peer may have shown have been looked at.
    is_examined: bool,
    framer: Framer,
    /// When it was made, and from [`Stage::Leaving`] on when that began.
    since: Instant,
    /// When the last message or keep-alive came.
    heard: Instant,
    /// Messages that have come over it.
    messages: u32,
    /// When the message under way began.
    within: Option<Instant>,
    /// When the peer last read something while more waited for it.
    unread: Option<Instant>,
}

impl Connection {
    pub(super) fn new(
        now: Instant,
        (id, flow): (ConnectionId, Flow),
        Begun { socket, carrier, stage, proofs }: Begun,
    ) -> Self {
        Self {
            id,
            flow,
            socket,
            carrier,
            stage,
            is_ours: matches!(stage, Stage::Dialling),
            interest: EpollFlags::empty(),
            is_due: false,
            waiting: Vec::new(),
            proofs,
            is_examined: false,
            framer: Framer::new(),
            since: now,
            heard: now,
            messages: 0,
            within: None,
            unread: None,
        }
    }

    /// Whether a whole message has ever come over it.
    pub(super) const fn has_spoken(&self) -> bool {
        self.messages > 0
    }

    /// Bytes that it holds of what has not come to its end.
    pub(super) fn unfinished(&self) -> usize {
        let of_message = if self.framer.is_within() { self.framer.held() } else { 0 };
        of_message + self.carrier.unfinished()
    }

    /// Whether we dialled and the peer has not shown yet that it is there, and who it is.
    pub(super) fn is_begun(&self) -> bool {
        self.is_ours && (self.stage == Stage::Dialling || self.carrier.is_handshaking())
    }

    /// Whether its peer has shown a certificate that counts.
    pub(super) fn has_certificate(&self, tls: Option<&Tls>) -> bool {
        let demands = tls.is_some_and(|tls| tls.demands) && !self.carrier.shown().is_empty();
        demands || !self.proofs.certificates.is_empty()
    }

    /// Whether it is the one that `flow` means. One that took the number of another is not.
    pub(super) fn is(&self, flow: Flow) -> bool {
        (self.flow.listener, self.flow.peer) == (flow.listener, flow.peer)
    }

    /// Reads what has come, hands on what it is, and answers keep-alives.
    ///
    /// # Errors
    /// [`Failed`]: nothing more will come.
    pub(super) fn read(
        &mut self,
        now: Instant,
        (chunk, limits): (&mut [u8], &Connections),
        tls: Option<&Tls>,
        heard: &mut impl FnMut(Flow, &Arc<Proofs>, Heard<'_>) -> bool,
    ) -> Result<(), Failed> {
        let Self { flow, socket, carrier, framer, proofs, is_examined, is_ours, messages: before, .. } = self;
        let is_open = self.stage == Stage::Open;
        let (mut messages, mut pings, mut is_broken) = (0_u32, 0_usize, false);
        let read = carrier.read(socket, chunk, |shown, mut text| {
            // Before the first message: who sent that may depend on it.
            if let Some(tls) = tls.filter(|_| !*is_ours && !std::mem::replace(is_examined, true)) {
                let certificates = tls.servers.count_as(shown, Some(flow.peer.ip()));
                if !certificates.is_empty() {
                    Arc::make_mut(proofs).certificates = certificates;
                }
            }
            while is_open && !is_broken {
                match framer.next(text) {
                    Ok(Some((used, item))) => {
                        match item {
                            Item::Message(bytes) => {
                                messages += 1;
                                heard(*flow, proofs, Heard::Message(bytes, before.saturating_add(messages)));
                            }
                            Item::Ping => {
                                pings += 1;
                                heard(*flow, proofs, Heard::Message(b"\r\n\r\n", u32::MAX));
                            }
                        }
                        text = text.get(used..).unwrap_or_default();
                    }
                    Ok(None) => break,
                    Err(broken) => {
                        heard(*flow, proofs, Heard::Broken(broken.bytes, broken.error));
                        is_broken = true;
                    }
                }
            }
        });
        let is_silent = messages == 0 && pings == 0;
        if !is_silent {
            self.heard = now;
        }
        self.messages = self.messages.saturating_add(messages);
        let began = self.within.filter(|_| is_silent).unwrap_or(now);
        self.within = self.framer.is_within().then_some(began);
        if is_broken {
            self.leave(now);
        }
        let pongs = b"\r\n".repeat(pings);
        read.and_then(|()| self.carrier.queue(&self.socket, &pongs, limits.unsent_bytes_max))
    }

    /// Nothing more is read; what waits is sent, and then the connection ends.
    fn leave(&mut self, now: Instant) {
        (self.stage, self.since) = (Stage::Leaving, now);
        self.framer = Framer::new();
    }

    /// Sends what waits, as far as the peer takes it.
    ///
    /// # Errors
    /// [`Failed::Broken`].
    pub(super) fn write(&mut self, now: Instant) -> Result<(), Failed> {
        let has_sent = self.carrier.write(&self.socket)?;
        let began = self.unread.filter(|_| !has_sent).unwrap_or(now);
        self.unread = self.carrier.has_unsent().then_some(began);
        if self.stage == Stage::Leaving && self.unread.is_none() {
            self.carrier.say_goodbye();
            self.carrier.write(&self.socket)?;
            // Closed at once, what the peer still sends would have our answer thrown away before it is read.
            let _ = self.socket.shutdown(Shutdown::Write);
            self.stage = Stage::Left;
        }
        Ok(())
    }

    /// What the poller is to look for.
    pub(super) fn wanted(&self) -> EpollFlags {
        match self.stage {
            Stage::Dialling => EpollFlags::EPOLLOUT,
            _ if self.carrier.has_unsent() => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
            _ => EpollFlags::EPOLLIN,
        }
    }

    /// Until when something has to happen, and why it ends if nothing does.
    pub(super) fn deadline(&self, limits: &Connections) -> (Instant, Ended) {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let first = self.since + seconds(limits.first_message_s);
        match self.stage {
            Stage::Dialling => return (self.since + DIAL_MAX, Ended::Unreached),
            Stage::Leaving | Stage::Left => return (self.since + LINGER_MAX, Ended::Malformed),
            Stage::Open if self.is_begun() => return (first, Ended::Unreached),
            Stage::Open if !self.is_ours && !self.has_spoken() => return (first, Ended::Silent),
            Stage::Open => {}
        }
        let slow = self.within.map(|began| (began + seconds(limits.message_s), Ended::Slow));
        let unread = self.unread.map(|since| (since + STALLED_MAX, Ended::Unread));
        let idle = (self.heard + seconds(limits.idle_s), Ended::Idle);
        let all = [slow, unread].into_iter().flatten();
        all.fold(idle, |first, next| if next.0 < first.0 { next } else { first })
    }

    /// Closes it. Who crowds, or does not keep to the times, is told so in the shortest way, which leaves the system nothing
    /// to remember either.
    pub(super) fn close(mut self, reason: Ended) {
        match reason {
            Ended::Crowded | Ended::Silent | Ended::Slow | Ended::Unread => {
                let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
            }
            _ => {
                self.carrier.say_goodbye();
                let _ = self.carrier.write(&self.socket);
            }
        }
    }

    /// Whether the peer of a connection that we dialled has answered.
    pub(super) fn is_answered(&self) -> bool {
        self.socket.take_error().is_ok_and(|error| error.is_none()) && self.socket.peer_addr().is_ok()
    }
}
