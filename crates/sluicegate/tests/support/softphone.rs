//! A stock softphone (baresip) without sound hardware: it says a tone, and is told what to do over its control socket.

use std::{
    collections::VecDeque,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};

use super::{
    PATIENCE,
    lab::Lab,
    node::{PASSWORD, REALM},
    program::Program,
    until,
};

/// Where Debian keeps baresip's modules.
const MODULES: &str = "/usr/lib/baresip/modules";
/// Longest message of the control socket.
const MESSAGE_MAX: usize = 1 << 16;
/// From a phone's SIP port to the one where it is told what to do.
const CONTROL_OFFSET: u16 = 1_000;

/// Who a phone is, and where.
#[derive(Debug, Clone)]
pub(crate) struct Account<'a> {
    /// The host that it runs on, and its address there.
    pub(crate) place: (&'a str, IpAddr),
    /// Its SIP port: different for each phone of a host.
    pub(crate) port: u16,
    /// Whom it signs in as.
    pub(crate) user: &'a str,
    /// The proxy and registrar.
    pub(crate) server: SocketAddr,
    /// `udp`, `tcp` or `tls`.
    pub(crate) transport: &'a str,
    /// Whether it registers.
    pub(crate) registers: bool,
    /// Whether it takes calls by itself.
    pub(crate) answers: bool,
}

/// A running phone.
#[derive(Debug)]
pub(crate) struct Softphone {
    user: String,
    pub(crate) program: Program,
    control: TcpStream,
    events: Arc<Mutex<VecDeque<Value>>>,
}

impl Softphone {
    /// Switches a phone on; it may not be registered yet.
    pub(crate) fn start(lab: &Lab, account: &Account<'_>) -> Self {
        let (host, _) = account.place;
        let dir = lab.path(&format!("phone-{}", account.user));
        fs::create_dir_all(&dir).expect("a directory");
        for (name, text) in [("config", config(account)), ("accounts", line(account)), ("contacts", String::new())] {
            fs::write(dir.join(name), text).expect("the lab's directory is writable");
        }
        let dir = dir.display().to_string();
        let program = Program::start(lab, host, &format!("phone-{}", account.user), "baresip", &["-s", "-f", &dir]);
        program.says("baresip is ready");
        let control = (Ipv4Addr::LOCALHOST, account.port + CONTROL_OFFSET).into();
        let control = until("the phone can be told what to do", || lab.connect(host, control).ok());
        let events = Arc::<Mutex<VecDeque<Value>>>::default();
        let (reader, kept) = (control.try_clone().expect("a second handle"), Arc::clone(&events));
        // Ends when the phone does.
        thread::spawn(move || read_messages(reader, &kept));
        Self { user: account.user.to_owned(), program, control, events }
    }

    /// Waits until its registrar has taken its registration.
    pub(crate) fn registered(&self) {
        self.program.says("1 binding]");
    }

    /// Switches it off: it says goodbye to its registrar, and to whom it talks with.
    pub(crate) fn switch_off(mut self) {
        self.command("quit", "");
        assert!(self.program.finished(PATIENCE), "{} is content", self.user);
    }

    /// Calls somebody.
    pub(crate) fn dial(&self, whom: &str) {
        self.command("dial", &format!("sip:{whom}@{REALM}"));
    }

    /// Takes the call that rings.
    pub(crate) fn answer(&self) {
        self.waits_for("CALL_INCOMING");
        self.command("accept", "");
        self.waits_for("CALL_ESTABLISHED");
    }

    /// Calls somebody who answers by himself.
    pub(crate) fn talks_to(&self, whom: &str) {
        self.dial(whom);
        self.waits_for("CALL_ESTABLISHED");
    }

    /// Ends the current call.
    pub(crate) fn hang_up(&self) {
        self.command("hangup", "");
        self.waits_for("CALL_CLOSED");
    }

    /// Any command of baresip's menu.
    pub(crate) fn command(&self, command: &str, params: &str) {
        let text = json!({ "command": command, "params": params }).to_string();
        (&self.control)
            .write_all(format!("{}:{text},", text.len()).as_bytes())
            .unwrap_or_else(|error| panic!("{} is told {command}: {error}", self.user));
    }

    /// Waits for an event of this type; what came before it is forgotten.
    pub(crate) fn waits_for(&self, kind: &str) -> Value {
        until(&format!("{} sees {kind}", self.user), || {
            let mut events = self.events.lock().expect("not poisoned");
            let at = events.iter().position(|event| event["type"] == kind)?;
            events.drain(..=at).next_back()
        })
    }

    /// Whether an event of this type has come that was not waited for.
    pub(crate) fn has_seen(&self, kind: &str) -> bool {
        self.events.lock().expect("not poisoned").iter().any(|event| event["type"] == kind)
    }
}

/// Messages are netstrings: the length, a colon, JSON and a comma.
fn read_messages(control: TcpStream, events: &Mutex<VecDeque<Value>>) {
    let mut reader = BufReader::new(control);
    while let Some(message) = read_message(&mut reader) {
        if message["event"] == true {
            events.lock().expect("not poisoned").push_back(message);
        }
    }
}

fn read_message(reader: &mut impl BufRead) -> Option<Value> {
    let mut len = Vec::new();
    reader.take(8).read_until(b':', &mut len).ok()?;
    let len: usize = std::str::from_utf8(len.strip_suffix(b":")?).ok()?.parse().ok()?;
    let mut text = vec![0; len.min(MESSAGE_MAX) + 1];
    reader.read_exact(&mut text).ok()?;
    serde_json::from_slice(text.strip_suffix(b",")?).ok()
}

fn config(account: &Account<'_>) -> String {
    let Account { place: (_, address), port, .. } = account;
    let first = 6_000 + (port % 100) * 100;
    format!(
        "poll_method epoll\nsip_listen {address}:{port}\ncall_local_timeout 120\ncall_max_calls 100\n\
         audio_source ausine,440\naudio_player aubridge,ear\naudio_alert aubridge,bell\n\
         ausrc_srate 48000\nauplay_srate 48000\nausrc_channels 2\nauplay_channels 2\naudio_txmode thread\n\
         audio_level no\nstatmode_default off\nrtp_ports {first}-{last}\nrtcp_mux no\njitter_buffer_delay 0-1\nrtp_stats yes\n\
         module_path {MODULES}\nmodule g711.so\nmodule ausine.so\nmodule aubridge.so\n\
         module_tmp account.so\nmodule_tmp uuid.so\nmodule_app menu.so\nmodule_app ctrl_tcp.so\n\
         ctrl_tcp_listen 127.0.0.1:{control}\n",
        last = first + 99,
        control = port + CONTROL_OFFSET,
    )
}

fn line(account: &Account<'_>) -> String {
    let Account { user, server, transport, registers, answers, .. } = account;
    let every = if *registers { 60 } else { 0 };
    let answers = if *answers { "auto" } else { "manual" };
    format!(
        "<sip:{user}@{REALM};transport={transport}>;auth_user={user};auth_pass={PASSWORD};\
         outbound=\"sip:{server};transport={transport}\";regint={every};audio_codecs=PCMU;answermode={answers}\n"
    )
}
