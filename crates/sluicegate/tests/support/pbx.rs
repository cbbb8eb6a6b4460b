//! A SIP server behind the gate: takes every call, and keeps what it was sent.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use sluicegate_sip::{
    message::{HeaderName, Message, Method, Transport},
    sdp::Session,
    write::Response,
};

use super::{
    lab::{Lab, SERVICE},
    phone::{AUDIO_PORT, token},
};

/// A running SIP server at the service's port 5060.
#[derive(Debug)]
pub(crate) struct Pbx {
    requests: Arc<Mutex<Vec<String>>>,
    socket: UdpSocket,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pbx {
    pub(crate) fn start(lab: &Lab) -> Self {
        Self::describing(lab, |_| DESCRIPTION.to_owned())
    }

    /// One with a port for each of its caller's.
    pub(crate) fn apart(lab: &Lab) -> Self {
        Self::describing(lab, |invite| {
            let caller = Session::parse(invite.body()).ok().and_then(|session| Some(session.media().first()?.port));
            DESCRIPTION.replace("10000", &caller.map_or(10_000, opposite).to_string())
        })
    }

    fn describing(lab: &Lab, describe: impl Fn(&Message<'_>) -> String + Send + 'static) -> Self {
        let socket = lab.udp("service", SERVICE, 5060);
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let (requests, stop) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let (kept, flag) = (Arc::clone(&requests), Arc::clone(&stop));
        let own = socket.try_clone().expect("a socket");
        let thread = thread::spawn(move || {
            let mut bytes = vec![0; 65_536];
            while !flag.load(Ordering::Relaxed) {
                let Ok((len, from)) = own.recv_from(&mut bytes) else { continue };
                let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
                // Kept before it is answered: who has the answer may ask at once what was heard.
                kept.lock().expect("not poisoned").push(text);
                if let Some(answer) = answer(&format!("sip:pbx@{SERVICE}:5060"), &bytes[..len], &describe) {
                    let _ = own.send_to(&answer, from);
                }
            }
        });
        Self { requests, socket, stop, thread: Some(thread) }
    }

    /// What it was sent, in order: requests and responses.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.requests.lock().expect("not poisoned").clone()
    }

    /// How many different messages it was sent that hold this text.
    pub(crate) fn heard_of(&self, text: &str) -> usize {
        let mut found: Vec<String> = self.heard().into_iter().filter(|message| message.contains(text)).collect();
        found.sort();
        found.dedup();
        found.len()
    }

    /// Sends bytes from its own address and port.
    pub(crate) fn send(&self, to: SocketAddr, bytes: &[u8]) {
        self.socket.send_to(bytes, to).expect("the service has a route");
    }
}

impl Drop for Pbx {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What it answers calls with.
pub(crate) const DESCRIPTION: &str =
    "v=0\r\no=pbx 5 5 IN IP4 10.4.0.2\r\ns=-\r\nc=IN IP4 10.4.0.2\r\nt=0 0\r\nm=audio 10000 RTP/AVP 0\r\n";

/// Where it hears the caller that names this port.
pub(crate) const fn opposite(caller: u16) -> u16 {
    caller - AUDIO_PORT + 10_000
}

/// What a SIP server with this Contact answers.
pub(crate) fn answer_at(contact: &str, request: &[u8]) -> Option<Vec<u8>> {
    answer(contact, request, &|_| DESCRIPTION.to_owned())
}

fn answer(contact: &str, request: &[u8], describe: &dyn Fn(&Message<'_>) -> String) -> Option<Vec<u8>> {
    let message = Message::parse(request).ok()?;
    let method = message.method()?;
    let mut out = Vec::new();
    let headers = Response::to(&message, 200).to_tag(b"pbx-tag").record_route().begin(&mut out);
    let headers = headers.header("Contact", format!("<{contact}>"));
    match method {
        Method::Ack => return None,
        Method::Invite => headers.body("application/sdp", describe(&message).as_bytes()),
        _ => headers.finish(),
    };
    Some(out)
}

/// A request of the server within the call that an INVITE made: From and To change places. `more` are header lines.
pub(crate) fn request_within(
    invite: &[u8],
    (method, cseq): (&str, u32),
    (transport, from): (Transport, SocketAddr),
    (more, body): (&str, &str),
) -> Vec<u8> {
    let invite = Message::parse(invite).expect("an INVITE");
    let text = |name| String::from_utf8_lossy(invite.header(name).unwrap_or_default()).into_owned();
    let routes: String = invite
        .headers(HeaderName::RecordRoute)
        .map(|route| format!("Route: {}\r\n", String::from_utf8_lossy(route)))
        .collect();
    let contact = invite.contact().ok().flatten().expect("a Contact");
    let kind = if body.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
    format!(
        "{method} {target} SIP/2.0\r\nVia: SIP/2.0/{transport} {from};branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n\
         {routes}From: {to};tag=pbx-tag\r\nTo: {caller}\r\nCall-ID: {call_id}\r\nCSeq: {cseq} {method}\r\n\
         Contact: <sip:pbx@{from}>\r\n{more}{kind}Content-Length: {length}\r\n\r\n{body}",
        target = String::from_utf8_lossy(contact.uri),
        transport = transport.name(),
        branch = token(),
        to = text(HeaderName::To),
        caller = text(HeaderName::From),
        call_id = text(HeaderName::CallId),
        length = body.len(),
    )
    .into_bytes()
}
