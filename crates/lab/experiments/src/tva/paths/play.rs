//! The rows, one after the other, in one lab.

use std::{
    fs,
    io::Read,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    time::{Duration, Instant},
};

use super::{
    Mutant, NAME, Options, Row,
    judge::Played,
    site::{self, CHAIN_A, CHAIN_B, Chain, DELAY_US, SERVICE, USERS},
    soak::{LEAST_S, Memory},
    talk::Talk,
};
use crate::tva::{
    Report,
    nodes::{self, Nodes},
};
use sluicegate_site::{During, Lab, LabError, NodeFile, Process, binary::Binary, clock::unix_ns, worker::said};
use sluicegate_traffic::{
    client::{
        haul::ServeSpec,
        transfer::{Transfer, TransferSpec},
    },
    emulator::{EmulateSpec, LineOptions},
};
use sluicegate_wire::Reason;

/// Nothing in the lab comes near it.
const LINK_BPS: u64 = 100_000_000;
/// Until the flows have capabilities.
const WARM: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_secs(5);
/// Between two changes of [`Row::Switch`], and how many there are.
const LEG: Duration = Duration::from_secs(5);
const LEGS: u32 = 3;
/// Between two changes of [`Row::Flap`], and for how long.
const FLAP: Duration = Duration::from_millis(200);
const FLAPS: u32 = 40;
const ASYMMETRIC: Duration = Duration::from_secs(6);
/// Two lives of a secret, whenever each router's began.
const CLOCKS: Duration = Duration::from_secs(258);
const SETTLE: Duration = Duration::from_secs(1);
/// Who asks as often as a path that flaps makes it is blacklisted for a while, and asks again some time after that.
const FLAP_SETTLE: Duration = Duration::from_secs(30);
const BLACKLIST_S: u32 = 10;
const AFTER: Duration = Duration::from_secs(3);
/// What is under way when a path is chosen.
const UNDER_WAY: Duration = Duration::from_millis(100);
/// How long a change of [`Mutant::Hole`] lasts.
const HOLE: Duration = Duration::from_millis(100);
/// More than the nodes need for their first turns; memory that grows until then is theirs.
const SOAK_WARM_S: u32 = 30;
/// What the clocks of the first chain's routers are ahead of the second one's.
const AHEAD_S: [i64; 3] = [90, 0, -90];

struct Stage<'a> {
    options: &'a Options,
    nodes: Nodes,
    _standing: Vec<Process>,
    binary: Binary,
    lab: Lab,
}

/// Plays the rows one after the other and returns what was measured; `tell` hears each step. All daemons, agents and
/// workers are processes of `binary`, whose directory is empty and of this user alone.
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(binary: &Binary, options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    if options.rows().any(|row| row == Row::Soak) && options.soak_s < LEAST_S {
        return Err(LabError::Plan(format!("a soak of {} s shows nothing: use {LEAST_S} s or more", options.soak_s)));
    }
    tell("building the lab: 14 network namespaces, edge boxes, five routers and a gate");
    let stage = Stage::build(binary.clone(), options)?;
    let mut report = Report::new(NAME);
    for row in options.rows() {
        tell(match row {
            Row::Switch => "switch: both directions move to another chain of routers and back",
            Row::Flap => "flap: both directions change between two chains five times a second",
            Row::Asymmetric => "asymmetric: answers take the other chain",
            Row::Clocks => "clocks: three routers 90 s apart, over two lives of their secrets (4 minutes)",
            Row::Soak => "soak: memory and demotions while transfers and renewals go on",
        });
        stage.play(row, &mut report)?;
    }
    Ok(report)
}

impl<'a> Stage<'a> {
    fn build(binary: Binary, options: &'a Options) -> Result<Self, LabError> {
        let lab = site::plan()?.build()?;
        let mut standing = Vec::new();
        let line = LineOptions { delay_us: DELAY_US, ..LineOptions::default() };
        let seconds = 600 + options.soak_s;
        let wire = EmulateSpec { a: "client".into(), b: "service".into(), a_to_b: line, b_to_a: line, seconds };
        for host in ["near", "far"] {
            standing.push(binary.worker(&lab, host, "emulate", &wire)?);
        }
        let serve = ServeSpec { listen: vec![(SERVICE, 80).into()], silence_s: 10, seconds };
        standing.push(binary.worker(&lab, "service", "serve", &serve)?);
        for (name, ahead_s) in CHAIN_A.into_iter().zip(AHEAD_S) {
            set_clock(&binary, name, if options.mutant == Mutant::Still { 0 } else { ahead_s })?;
        }
        let nodes = Nodes::start(&lab, &binary, files(&options.datapath))?;
        Ok(Self { options, nodes, _standing: standing, binary, lab })
    }

    fn play(&self, row: Row, report: &mut Report) -> Result<(), LabError> {
        self.choose(Chain::A)?;
        let mut talk = Talk::start(&self.lab, &self.binary, 300 + self.options.soak_s)?;
        talk.go_on(WARM);
        let calm = unix_ns();
        talk.go_on(CALM);
        let mut played = Played {
            row,
            heard: super::talk::Heard::default(),
            calm: calm..unix_ns(),
            active: 0..0,
            after: 0..0,
            changes: Vec::new(),
            by_new_path: [0; 2],
            by_old_path: 0,
            demoted_by_routers: 0,
        };
        let (before, demoted_before) = (self.judged(&CHAIN_B)?, self.demoted()?);
        let began = unix_ns();
        match row {
            Row::Switch => self.switch(&mut talk, &mut played)?,
            Row::Flap => self.flap(&mut talk, &mut played)?,
            Row::Asymmetric => self.asymmetric(&mut talk, &mut played)?,
            Row::Clocks => talk.go_on(CLOCKS),
            Row::Soak => self.soak(&mut talk, report)?,
        }
        played.active = began..unix_ns();
        if row == Row::Flap {
            report.of((row.label(), "tva")).note("senders_blacklisted", self.blacklisted()?);
        }
        talk.go_on(if row == Row::Flap { FLAP_SETTLE } else { SETTLE });
        let after = self.judged(&CHAIN_B)?;
        played.by_new_path = [0, 1].map(|direction| after[direction] - before[direction]);
        played.demoted_by_routers = self.demoted()? - demoted_before;
        let began = unix_ns();
        talk.go_on(AFTER);
        played.after = began..unix_ns();
        played.heard = talk.end()?;
        played.judge(report);
        Ok(())
    }

    /// There and back, several times: a chain that knew the flow once has other lines for it, and the same secrets.
    fn switch(&self, talk: &mut Talk, played: &mut Played) -> Result<(), LabError> {
        let mut chain = Chain::A;
        for _ in 0..LEGS {
            chain = chain.other();
            played.changes.extend(self.change(chain)?);
            talk.go_on(UNDER_WAY);
            let before = self.frames_to(chain.other())?;
            talk.go_on(LEG - UNDER_WAY);
            played.by_old_path += self.frames_to(chain.other())? - before;
        }
        Ok(())
    }

    fn flap(&self, talk: &mut Talk, played: &mut Played) -> Result<(), LabError> {
        let (began, mut chain) = (Instant::now(), Chain::A);
        for turn in 1..=FLAPS {
            chain = chain.other();
            played.changes.extend(self.change(chain)?);
            talk.go_on((FLAP * turn).saturating_sub(began.elapsed()));
        }
        self.choose(Chain::A)
    }

    fn asymmetric(&self, talk: &mut Talk, played: &mut Played) -> Result<(), LabError> {
        if self.options.mutant != Mutant::Still {
            self.lose_some()?;
            site::answers_by(&self.lab, Chain::B)?;
            played.changes.push(unix_ns());
        }
        talk.go_on(ASYMMETRIC);
        Ok(())
    }

    /// New flows all the time, and each daemon's memory every second.
    fn soak(&self, talk: &mut Talk, report: &mut Report) -> Result<(), LabError> {
        let from = USERS.parse().map_err(|error| LabError::Plan(format!("{USERS}: {error}")))?;
        let spec = TransferSpec {
            to: (SERVICE, 80).into(),
            from: Some(from),
            bytes: 20_000,
            upload: true,
            deadline_ms: 10_000,
            per_minute: 300,
            parallel_max: 0,
            seconds: self.options.soak_s,
        };
        let mut clients = self.binary.worker(&self.lab, "client", "transfer", &spec)?;
        let (mut memory, mut transfers) = (Memory::default(), Vec::new());
        for second in 0..self.options.soak_s {
            talk.go_on(Duration::from_secs(1));
            if second >= SOAK_WARM_S {
                memory.read(self.nodes.processes())?;
            }
            transfers.extend(
                std::iter::from_fn(|| clients.line_now()).filter_map(|line| said::<Transfer>(&line, "transfer")),
            );
        }
        clients.close_input();
        memory.judge(report);
        let about = (Row::Soak.label(), "tva");
        let least = f64::from(self.options.soak_s) * 4.0;
        report.of(about).at_least("transfers", transfers.len() as f64, least);
        let failed = transfers.iter().filter(|one| one.error.is_some()).count();
        report.of(about).at_most("transfers_failed", failed as f64, 0.0);
        Ok(())
    }

    /// Both directions take this chain; when they did.
    fn change(&self, chain: Chain) -> Result<Option<u64>, LabError> {
        if self.options.mutant == Mutant::Still {
            return Ok(None);
        }
        self.lose_some()?;
        // Packets may go by the new chain from here on.
        let at = unix_ns();
        self.choose(chain)?;
        Ok(Some(at))
    }

    fn lose_some(&self) -> Result<(), LabError> {
        if self.options.mutant == Mutant::Hole {
            site::requests_nowhere(&self.lab)?;
            std::thread::sleep(HOLE);
            site::requests_by(&self.lab, Chain::A)?;
        }
        Ok(())
    }

    fn choose(&self, chain: Chain) -> Result<(), LabError> {
        site::requests_by(&self.lab, chain)?;
        site::answers_by(&self.lab, chain)
    }

    /// Packets to the service and to the client that these routers have judged; of the router that judged fewest.
    fn judged(&self, chain: &[&str]) -> Result<[u64; 2], LabError> {
        let mut least = [u64::MAX; 2];
        for name in chain {
            let status = self.nodes.status(name)?;
            let ports = status["ports"].as_array().cloned().unwrap_or_default();
            for (least, port) in least.iter_mut().zip(["inside", "outside"]) {
                let sent = ports.iter().find(|one| one["port"] == port).and_then(|one| one["sent_packets"].as_u64());
                *least = (*least).min(sent.unwrap_or(0));
            }
        }
        Ok(least)
    }

    /// Packets that the routers of the first chain and the gate have demoted, without those that came demoted.
    fn demoted(&self) -> Result<u64, LabError> {
        let mut packets = 0;
        for name in CHAIN_A.into_iter().chain(["gate"]) {
            let status = self.nodes.status(name)?;
            let reasons = status["router"]["demoted"].as_object().into_iter().flatten();
            let own = reasons.filter(|(reason, _)| *reason != Reason::AlreadyDemoted.label());
            packets += own.filter_map(|(_, packets)| packets.as_u64()).sum::<u64>();
        }
        Ok(packets)
    }

    /// Senders that the service's edge box gives nothing now.
    fn blacklisted(&self) -> Result<f64, LabError> {
        let status = self.nodes.status("edge-s")?;
        let tables = status["tables"].as_array().cloned().unwrap_or_default();
        let listed = tables.iter().find(|table| table["table"] == "policy_blacklist");
        Ok(listed.and_then(|table| table["used"].as_f64()).unwrap_or(f64::NAN))
    }

    /// Frames that the plain routers have sent into this chain.
    fn frames_to(&self, chain: Chain) -> Result<u64, LabError> {
        let interface = match chain {
            Chain::A => "a",
            Chain::B => "b",
        };
        let sent = |host: &str| self.lab.counters(host, interface).map(|counters| counters.tx_packets);
        Ok(sent("in")? + sent("out")?)
    }
}

fn files(datapath: &str) -> impl Iterator<Item = NodeFile> {
    let routers = CHAIN_A.into_iter().chain(CHAIN_B);
    // The first of a chain stands where other people's networks begin.
    let routers = routers.map(|name| nodes::router(name, datapath, ("lan", "wan"), name.ends_with('1')));
    let ends = [
        nodes::edge("edge", datapath, "policy = \"client\"\n"),
        nodes::edge("edge-s", datapath, &format!("policy = \"server\"\nblacklist_s = {BLACKLIST_S}\n")),
        nodes::gate(datapath, LINK_BPS, &[("web", SERVICE.into())]),
    ];
    routers.collect::<Vec<_>>().into_iter().chain(ends)
}

/// Sets a node's clock of capabilities: it stands apart from Unix time by what was drawn at the node's first start, and
/// here the lab draws. The wall clock of the machine stays as it is.
fn set_clock(binary: &Binary, name: &str, ahead_s: i64) -> Result<(), LabError> {
    /// Beyond what any router is behind.
    const BASE_S: u64 = 1_000;
    // A seed of a period that is long over: the node draws its own.
    const NO_SEED: [u8; 8 + 32] = [0; 40];
    let mut tags = [0; 16];
    let random = fs::File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut tags));
    random.during(|| "drawing a key".to_owned())?;
    let state = NodeFile::new(name).state(&binary.directory).join("gate");
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&state);
    made.during(|| format!("making {}", state.display()))?;
    let clock = BASE_S.wrapping_add_signed(ahead_s).to_be_bytes();
    let path = state.join("router.seed");
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let bytes = [b"sgseed2\0", &tags[..], &clock, &NO_SEED].concat();
    let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, &bytes));
    written.during(|| format!("writing {}", path.display()))
}
