//! A SIP server behind the gate that takes SIP over TCP or TLS alone.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustls::ServerConfig;

use super::{
    lab::{Lab, SERVICE},
    line::Line,
    pbx::answer_at,
    until,
};

/// A running one. Over each connection that is made to it, it takes every call.
pub(crate) struct StreamPbx {
    heard: Arc<Mutex<Vec<String>>>,
    lines: Arc<Mutex<Vec<Arc<Line>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StreamPbx {
    /// One at this port of the service, with TLS inside if it is to have some.
    pub(crate) fn start(lab: &Lab, port: u16, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = lab.listen("service", SERVICE, port);
        listener.set_nonblocking(true).expect("a listener");
        let transport = if tls.is_some() { "tls" } else { "tcp" };
        let contact = format!("sip:pbx@{SERVICE}:{port};transport={transport}");
        let (heard, stop) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let lines = Arc::<Mutex<Vec<Arc<Line>>>>::default();
        let (kept, known, flag) = (Arc::clone(&heard), Arc::clone(&lines), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                if let Some(line) = Line::accepted(&listener, tls.clone()) {
                    known.lock().expect("not poisoned").push(Arc::new(line));
                }
                let lines = known.lock().expect("not poisoned").clone();
                for line in &lines {
                    let Some(message) = line.receive(Duration::from_millis(5)) else { continue };
                    kept.lock().expect("not poisoned").push(String::from_utf8_lossy(&message).into_owned());
                    if let Some(answer) = answer_at(&contact, &message) {
                        line.send(&answer);
                    }
                }
                if lines.is_empty() {
                    thread::sleep(Duration::from_millis(5));
                }
            }
        });
        Self { heard, lines, stop, thread: Some(thread) }
    }

    /// What it was sent over the connections that were made to it.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("not poisoned").clone()
    }

    /// The last INVITE that began a call.
    pub(crate) fn last_invite(&self) -> String {
        let heard = self.heard();
        heard.into_iter().rfind(|message| message.starts_with("INVITE")).expect("an INVITE")
    }

    /// Sends bytes over the first connection that was made to it.
    pub(crate) fn send(&self, bytes: &[u8]) {
        self.lines.lock().expect("not poisoned").first().expect("a connection").send(bytes);
    }

    /// Waits for a message that begins like this and holds that.
    pub(crate) fn hears(&self, begins: &str, holds: &str) -> String {
        until(&format!("the server hears {begins}"), || {
            self.heard().into_iter().rfind(|text| text.starts_with(begins) && text.contains(holds))
        })
    }

    /// How many connections were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.lines.lock().expect("not poisoned").len()
    }
}

impl Drop for StreamPbx {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
