//! A SIP server behind the gate: takes every call, and keeps what it was sent.

use std::{
    net::UdpSocket,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use sluicegate_sip::{
    message::{Message, Method},
    write::Response,
};

use super::lab::{Lab, SERVICE};

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
                if let Some(answer) = answer(&bytes[..len]) {
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
    pub(crate) fn send(&self, to: std::net::SocketAddr, bytes: &[u8]) {
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

const DESCRIPTION: &str =
    "v=0\r\no=pbx 5 5 IN IP4 10.4.0.2\r\ns=-\r\nc=IN IP4 10.4.0.2\r\nt=0 0\r\nm=audio 10000 RTP/AVP 0\r\n";

fn answer(request: &[u8]) -> Option<Vec<u8>> {
    let message = Message::parse(request).ok()?;
    let method = message.method()?;
    let mut out = Vec::new();
    let headers = Response::to(&message, 200).to_tag(b"pbx-tag").record_route().begin(&mut out);
    let headers = headers.header("Contact", format!("<sip:pbx@{SERVICE}:5060>"));
    match method {
        Method::Ack => return None,
        Method::Invite => headers.body("application/sdp", DESCRIPTION.as_bytes()),
        _ => headers.finish(),
    };
    Some(out)
}
