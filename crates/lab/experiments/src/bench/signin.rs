//! What a sign-in costs a frontend: processor time of its process, for telephones (digest) and for agents (digest and
//! handshake).
//!
//! The real frontend on loopback, and clients that register again and again without a Contact: an exchange of challenge
//! and answer, with nothing behind it that a gate or a disk would have a part in. Counted is what the kernel says that the
//! frontend's process used, so neither the clients nor other programs on the machine are in it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    process::Command,
    time::Duration,
};

use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};
use sluicegate_grant::epoch::Epoch;
use sluicegate_signin::{Certificate, HEADER, Hello, Initiator, Proposal, UserSecret};
use sluicegate_sip::{
    digest::{Answer, Ha1, ha1, strongest},
    message::{HeaderName, Message},
};

use strum::IntoStaticStr;

use super::{Median, Options, RUNS, Row, Run, Summary, busy_before, no_row};
use sluicegate_site::{
    During, LabError, Process,
    binary::{Binary, text},
};

const REALM: &str = "bench.example";
const PASSWORD: &str = "correct-horse-battery";
const CNONCE: &str = "c0ffee";
/// Clients of each kind; all wait for their answers at once.
const CLIENTS: usize = 8;
/// Sign-ins of each in a run. All runs together stay below what one user may do in the time that they take.
const ROUNDS: usize = 250;
const ROUNDS_SHORT: usize = 10;
/// A frontend that does not answer for so long has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who signs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
enum Kind {
    Phone,
    Agent,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Phone, Self::Agent];

    fn users(self) -> impl Iterator<Item = String> {
        (0..CLIENTS).map(move |number| format!("{}{number}", self.into_str()))
    }
}

/// Measures, and hands each row to `tell`.
///
/// # Errors
/// [`LabError::Plan`] for a row that does not exist; [`LabError::Process`] if the frontend does not start or answers with
/// anything but a challenge and a welcome.
pub fn signin(binary: &Binary, options: &Options, tell: &mut dyn FnMut(Row)) -> Result<Summary, LabError> {
    let only = options.only.as_deref().unwrap_or_default();
    let kinds: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| rows_of(*kind).iter().any(|row| row.starts_with(only))).collect();
    if kinds.is_empty() {
        return Err(no_row(only, &Kind::ALL.map(rows_of).concat().join(", ")));
    }
    let mut bench = Run::begin("signin", busy_before()?, tell);
    let site = Site::start(binary, &kinds)?;
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); kinds.len()];
    let mut clients = Vec::new();
    for kind in &kinds {
        clients.push(kind.users().map(|user| Client::new(*kind, user, site.address)).collect::<Result<Vec<_>, _>>()?);
    }
    let rounds = if options.short { ROUNDS_SHORT } else { ROUNDS };
    // One run that does not count: connections to the store, tables and caches are cold.
    for run in 0..=RUNS {
        for (clients, values) in clients.iter_mut().zip(&mut values) {
            let before = site.cpu()?;
            sign_ins(clients, if run == 0 { ROUNDS_SHORT } else { rounds })?;
            let each = site.cpu()?.saturating_sub(before).as_secs_f64() / (CLIENTS * rounds) as f64;
            values.extend((run > 0).then_some(each * 1e6));
        }
    }
    for (kind, values) in kinds.iter().zip(values) {
        let [cpu, rate] = rows_of(*kind);
        let each_second: Vec<_> = values.iter().map(|us| 1e6 / us).collect();
        for (row, unit, values) in [(cpu, "us/sign-in", values), (rate, "sign-ins/s", each_second)] {
            match Median::of(&values) {
                Some(ours) if row.starts_with(only) => bench.row(row, unit, ours, None, None),
                None => bench.miss(format!("{row}: no processor time was used")),
                Some(_) => {}
            }
        }
    }
    Ok(bench.end())
}

/// Processor time of a sign-in, and how many one processor would do with it.
const fn rows_of(kind: Kind) -> [&'static str; 2] {
    match kind {
        Kind::Phone => ["phone_cpu", "phone_per_core"],
        Kind::Agent => ["agent_cpu", "agent_per_core"],
    }
}

/// The frontend.
struct Site {
    process: Process,
    address: SocketAddr,
}

impl Site {
    fn start(binary: &Binary, kinds: &[Kind]) -> Result<Self, LabError> {
        let directory = &binary.directory;
        let (config, list) = (directory.join("frontend.toml"), directory.join("users"));
        let address = free_udp()?;
        fs::write(&config, toml(&text(&directory.join("state")), address, free_tcp()?, kinds))
            .during(|| writing(&config))?;
        for kind in kinds {
            let lines: String = kind.users().map(|user| format!("{user}:{PASSWORD}\n")).collect();
            fs::write(&list, lines).during(|| writing(&list))?;
            let other = if *kind == Kind::Phone { "--no-agent" } else { "--no-phone" };
            binary.run(&["user", "add", "--from", &text(&list), other, "--config", &text(&config)])?;
        }
        let mut command = binary.command(&["frontend".to_owned(), text(&config)]);
        let log = binary.log("frontend");
        command.stderr(fs::File::create(&log).during(|| writing(&log))?);
        let process = Process::start("frontend", command, |mut command: Command| command.spawn());
        let process = process.during(|| "starting the frontend".to_owned())?;
        binary.wait_for("frontend", || binary.status(&config))?;
        Ok(Self { process, address })
    }

    /// Processor time that the process has used.
    fn cpu(&self) -> Result<Duration, LabError> {
        let clock = clock_getcpuclockid(Pid::from_raw(self.process.pid().cast_signed()));
        let used = clock.and_then(clock_gettime).map_err(std::io::Error::from);
        Ok(used.during(|| "reading the frontend's processor time".to_owned())?.into())
    }
}

fn writing(path: &std::path::Path) -> String {
    format!("writing {}", path.display())
}

fn free_udp() -> Result<SocketAddr, LabError> {
    let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    bound.during(|| "finding a free port".to_owned())
}

fn free_tcp() -> Result<SocketAddr, LabError> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    bound.during(|| "finding a free port".to_owned())
}

/// Each user is the registrar of a service of its own, and strangers are answered without limit.
fn toml(state: &str, address: SocketAddr, feed: SocketAddr, kinds: &[Kind]) -> String {
    let node = format!(
        "[node]\nname = \"bench\"\nstate = {state:?}\n[frontend]\nlisten = [\"udp/{address}\"]\nrealm = \"{REALM}\"\n\
         feed = \"{feed}\"\nshards = 1\nunproved_answers_per_s = 1000000\n"
    );
    let service = |(user, host): (String, u8)| {
        format!(
            "[[service]]\nname = \"of-{user}\"\nkind = \"agent\"\naddress = \"10.4.0.{host}\"\nports = [\"udp/5004\"]\n\
             registrar = \"{user}\"\nallow = [\"user:{user}\"]\n"
        )
    };
    kinds.iter().flat_map(|kind| kind.users()).zip(2..).map(service).fold(node, |toml, service| toml + &service)
}

/// All clients sign in so often, side by side.
fn sign_ins(clients: &mut [Client], rounds: usize) -> Result<(), LabError> {
    for _ in 0..rounds {
        clients.iter_mut().try_for_each(|client| client.ask(""))?;
        clients.iter_mut().try_for_each(Client::answer)?;
        clients.iter_mut().try_for_each(Client::welcomed)?;
    }
    Ok(())
}

/// One user's telephone or agent.
struct Client {
    user: String,
    /// Of an agent.
    secret: Option<UserSecret>,
    socket: UdpSocket,
    local: SocketAddr,
    frontend: SocketAddr,
    cseq: u32,
    initiator: Option<Initiator>,
}

impl Client {
    fn new(kind: Kind, user: String, frontend: SocketAddr) -> Result<Self, LabError> {
        let open = || -> std::io::Result<(UdpSocket, SocketAddr)> {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.connect(frontend)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            let local = socket.local_addr()?;
            Ok((socket, local))
        };
        let (socket, local) = open().during(|| "opening a client's socket".to_owned())?;
        let secret = (kind == Kind::Agent).then(|| UserSecret::from_password(&user, REALM, PASSWORD.as_bytes()));
        Ok(Self { user, secret, socket, local, frontend, cseq: 0, initiator: None })
    }

    fn ask(&mut self, credentials: &str) -> Result<(), LabError> {
        self.cseq += 1;
        let supported = if self.secret.is_some() { "Supported: sluicegate\r\n" } else { "" };
        let request = format!(
            "REGISTER sip:{REALM} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{branch:x};rport\r\nMax-Forwards: 70\r\n\
             From: <sip:{user}@{REALM}>;tag={user}\r\nTo: <sip:of-{user}@{REALM}>\r\nCall-ID: {user}@{local}\r\n\
             CSeq: {cseq} REGISTER\r\n{supported}{credentials}Content-Length: 0\r\n\r\n",
            local = self.local,
            branch = fastrand::u64(..),
            user = self.user,
            cseq = self.cseq,
        );
        self.socket.send(request.as_bytes()).map(drop).during(|| "asking the frontend".to_owned())
    }

    fn hear(&self, status: u16) -> Result<Vec<u8>, LabError> {
        let mut answer = vec![0; 4_096];
        let len = self.socket.recv(&mut answer).during(|| format!("waiting for the {status} of {}", self.user))?;
        answer.truncate(len);
        match Message::parse(&answer).ok().and_then(|message| message.status()) {
            Some(found) if found == status => Ok(answer),
            _ => Err(failed(format!("{} got {}", self.user, String::from_utf8_lossy(&answer)))),
        }
    }

    fn answer(&mut self) -> Result<(), LabError> {
        let heard = self.hear(401)?;
        let unfit = || failed("a challenge that no client can answer");
        let message = Message::parse(&heard).map_err(|_| unfit())?;
        let challenge = strongest(message.headers_raw(HeaderName::WwwAuthenticate)).ok_or_else(unfit)?;
        let realm = challenge.realm_text().ok_or_else(unfit)?;
        let uri = format!("sip:{REALM}");
        let (secret, handshake) = match &self.secret {
            None => (ha1(challenge.algorithm, &self.user, &realm, PASSWORD), String::new()),
            Some(secret) => {
                let epoch: Epoch =
                    realm.split_once(";e=").and_then(|(_, epoch)| epoch.parse().ok()).ok_or_else(unfit)?;
                let certificate = message.header(HEADER).ok_or_else(unfit)?;
                let replica = Certificate::from_text(certificate).map_err(|_| unfit())?.replica;
                let ha1 = secret.ha1(&self.user, REALM, epoch, &replica);
                let proposal = Proposal {
                    method: b"REGISTER",
                    uri: uri.as_bytes(),
                    nonces: (challenge.nonce, CNONCE.as_bytes()),
                    supported: b"sluicegate",
                    contact: b"",
                    body: b"",
                    dialled: self.frontend,
                };
                let mut seed = [0; 32];
                fastrand::fill(&mut seed);
                let (initiator, message) = Initiator::begin(seed, &replica, &ha1, &proposal).map_err(|_| unfit())?;
                self.initiator = Some(initiator);
                let hello = Hello { message, dialled: self.frontend }.to_text();
                (Ha1::from_sha256(*ha1.expose()), format!("{}: {hello}\r\n", HEADER.as_str()))
            }
        };
        let (username, method) = (self.user.as_str(), &b"REGISTER"[..]);
        let mut value = Vec::new();
        Answer { challenge: &challenge, username, ha1: &secret, method, uri: uri.as_bytes(), cnonce: CNONCE, nc: 1 }
            .write(&mut value);
        let credentials = format!("Authorization: {}\r\n{handshake}", String::from_utf8_lossy(&value));
        self.ask(&credentials)
    }

    /// Whether it is in; an agent believes that from the frontend alone.
    fn welcomed(&mut self) -> Result<(), LabError> {
        let answer = self.hear(200)?;
        let message = Message::parse(&answer).map_err(|_| failed("a welcome that cannot be read"))?;
        match self.initiator.take().map(|initiator| initiator.finish(&message)) {
            Some(Err(error)) => Err(failed(error.to_string())),
            _ => Ok(()),
        }
    }
}

fn failed(reason: impl Into<String>) -> LabError {
    LabError::process("bench signin", reason)
}
