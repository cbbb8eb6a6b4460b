//! The rows, one after the other, in one lab.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use strum::VariantArray as _;

use super::{
    Mutant, NAME, Options, Row,
    judge::{Carried, judge},
    site,
    ways::{Agent, Agents, BRIEF, FAST, FILES, Service, Way, site_file},
};
use crate::report::rows::Report;
use sluicegate_site::{
    During, Lab, LabError, Node, Process,
    binary::{Binary, text},
    clock::unix_ns,
    cpu::StolenWatch,
    scratch::write_private,
};
use sluicegate_traffic::client::haul::{Haul, Order, ServeSpec};

const PASSWORD: &str = "correct-horse-battery-staple";
/// What a transfer may take beyond what its sender's pace, or half the rate of a default grant, allows.
const PATIENCE_S: u64 = 120;
const SLOWEST_BYTES_PER_S: u64 = 600_000;
/// Repetitions of each transfer of [`Row::Throughput`]; the median counts.
const RUNS: usize = 3;
/// Of an idle session, and of transfers while somebody moves or a clock is wrong.
const TALK_BYTES_PER_S: u64 = 2_000;
const STEADY_BYTES_PER_S: u64 = 100_000;
/// A default grant lives so much longer than one of [`BRIEF`].
const COMPRESSED: u64 = 30;
const SESSION_S: u64 = 7_200;
/// Of the server: longer than any pause that is judged, and than any run.
const SILENCE_S: u32 = 60;
const FOREVER_S: u32 = 86_400;

struct Stage<'a> {
    options: &'a Options,
    _server: Process,
    _node: Node,
    password: PathBuf,
    binary: Binary,
    lab: Lab,
}

/// Plays the rows one after the other and returns what was measured; `tell` hears each step. All daemons, agents and
/// workers are processes of `binary`, whose directory is empty and of this user alone.
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(binary: &Binary, options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    tell("building the lab: 11 network namespaces, a gate with its frontend, a service");
    let stage = Stage::build(binary.clone(), options)?;
    let mut report = Report::new(NAME);
    for row in options.rows() {
        tell(match row {
            Row::Volume if options.short => "volume: 30 MB each way through everything at once, with default settings",
            Row::Volume => "volume: a gigabyte each way through everything at once, with default settings (15 minutes)",
            Row::Session if options.short => "session: twenty minutes, thirty times as fast",
            Row::Session => "session: two hours, thirty times as fast (4 minutes)",
            Row::Roaming => "roaming: clients get other addresses under their connections",
            Row::Clocks => "clocks: clients' clocks are two days off",
            Row::Throughput => "throughput: how fast each way is",
        });
        match row {
            Row::Volume => stage.volume(&mut report)?,
            Row::Session => stage.session(&mut report)?,
            Row::Roaming => stage.roaming(&mut report)?,
            Row::Clocks => stage.clocks(&mut report)?,
            Row::Throughput => stage.throughput(&mut report)?,
        }
    }
    Ok(report)
}

impl<'a> Stage<'a> {
    fn build(binary: Binary, options: &'a Options) -> Result<Self, LabError> {
        let lab = site::plan()?.build()?;
        let listen = [FILES, BRIEF, FAST]
            .into_iter()
            .flat_map(|service| [site::SERVICE, site::BESIDE].map(|address| (address, service.port).into()));
        let spec = ServeSpec { listen: listen.collect(), silence_s: SILENCE_S, seconds: FOREVER_S };
        let server = binary.worker(&lab, "service", "serve", &spec)?;
        let password = binary.directory.join("password");
        write_private(&password, PASSWORD).during(|| format!("writing {}", password.display()))?;
        let node = Node::start(&binary, &lab, "gate", "up", &site_file(&options.datapath))?;
        node.ready()?;
        let users = Way::VARIANTS.iter().map(|way| (way.into_str().to_owned(), PASSWORD.to_owned()));
        node.add_users("staff", users, &[])?;
        Ok(Self { options, _server: server, _node: node, password, binary, lab })
    }

    fn agents(&self, service: Service) -> Agents<'_> {
        let (lab, binary, password) = (&self.lab, &self.binary, self.password.clone());
        Agents { lab, binary, password, environment: Vec::new(), service }
    }

    fn volume(&self, report: &mut Report) -> Result<(), LabError> {
        let bytes = if self.options.short { 30_000_000 } else { 1_000_000_000 };
        let ways = [Way::Forward, Way::Socks, Way::Run, Way::Native, Way::Encapsulated, Way::Nat];
        site::translate(&self.lab, &[Way::Nat], 0)?;
        let agents = self.agents(FILES);
        let mut running = start(&agents, &ways)?;
        for upload in [false, true] {
            let order = Order { upload, bytes, bytes_per_s: 0 };
            let orders: Vec<_> = running.iter().map(|agent| (agent, order)).collect();
            let watch = StolenWatch::start();
            let hauls = begin(&agents, &orders)?;
            self.spoil(&mut running);
            finish(report, Row::Volume, hauls, &[], watch);
        }
        site::translate_nothing(&self.lab)
    }

    fn session(&self, report: &mut Report) -> Result<(), LabError> {
        let seconds = if self.options.short { 40 } else { SESSION_S / COMPRESSED };
        let agents = self.agents(BRIEF);
        let mut running = start(&agents, &[Way::Forward, Way::Socks, Way::Native, Way::Encapsulated])?;
        let bytes = TALK_BYTES_PER_S * seconds;
        let both = |agent| [false, true].map(|upload| (agent, Order { upload, bytes, bytes_per_s: TALK_BYTES_PER_S }));
        let orders: Vec<_> = running.iter().flat_map(both).collect();
        let watch = StolenWatch::start();
        let hauls = begin(&agents, &orders)?;
        self.spoil(&mut running);
        finish(report, Row::Session, hauls, &[], watch);
        for agent in &running {
            self.renewed(report, Row::Session, &agents, agent.way, seconds);
        }
        Ok(())
    }

    /// Grants of ten seconds are renewed after five.
    fn renewed(&self, report: &mut Report, row: Row, agents: &Agents<'_>, way: Way, seconds: u64) {
        let renewed = agents.log(way).matches("renewed").count();
        let least = (seconds / 10) as f64;
        report.of((row.label(), way.into_str())).at_least("renewals", renewed as f64, least);
    }

    fn roaming(&self, report: &mut Report) -> Result<(), LabError> {
        let (moves, every_s) = if self.options.short { (2, 12) } else { (5, 20) };
        // Those whose connections the kernel binds to an address move behind a router that moves.
        let translated = [Way::Forward, Way::Socks, Way::Nat];
        let own = [Way::Run, Way::Native, Way::Encapsulated];
        site::translate(&self.lab, &translated, 0)?;
        let agents = self.agents(FILES);
        let mut running = start(&agents, &[translated, own].concat())?;
        let bytes = STEADY_BYTES_PER_S * every_s * (moves + 1);
        let orders = |agent: &Agent| {
            // Two agents that capture are one too many for one host.
            let directions: &[bool] = if agent.way == Way::Run { &[false] } else { &[false, true] };
            directions.iter().map(|upload| Order { upload: *upload, bytes, bytes_per_s: STEADY_BYTES_PER_S })
        };
        let orders: Vec<_> = running.iter().flat_map(|agent| orders(agent).map(move |order| (agent, order))).collect();
        let watch = StolenWatch::start();
        let hauls = begin(&agents, &orders)?;
        self.spoil(&mut running);
        let (mut moved_at, mut used) = (Vec::new(), 0);
        for turn in 1..=moves as usize {
            thread::sleep(Duration::from_secs(every_s));
            used += site::translated(&self.lab)?;
            if self.options.mutant != Mutant::Still {
                moved_at.push(unix_ns());
                site::translate(&self.lab, &translated, turn)?;
                own.iter().try_for_each(|way| site::move_host(&self.lab, *way, turn))?;
            }
        }
        finish(report, Row::Roaming, hauls, &moved_at, watch);
        used += site::translated(&self.lab)?;
        let about = (Row::Roaming.label(), "lab");
        let least = (moves + 1) * translated.len() as u64;
        let of_turns = if self.options.mutant == Mutant::Still { 0 } else { used };
        report.of(about).at_least("addresses_used", of_turns as f64, least as f64);
        for way in own {
            let followed = agents.log(way).matches("in another network").count();
            let about = (Row::Roaming.label(), way.into_str());
            report.of(about).at_least("moves_followed", followed as f64, moves as f64);
        }
        drop(running);
        for way in own {
            if moves % 2 == 1 && self.options.mutant != Mutant::Still {
                site::move_host(&self.lab, way, 0)?;
            }
        }
        site::translate_nothing(&self.lab)
    }

    fn clocks(&self, report: &mut Report) -> Result<(), LabError> {
        const DAYS: i64 = 2;
        let seconds = if self.options.short { 15 } else { 40 };
        let ways = [(Way::Forward, DAYS), (Way::Socks, -DAYS), (Way::Run, DAYS), (Way::Native, -DAYS)];
        let mut agents = self.agents(BRIEF);
        let library = text(&faketime()?);
        if self.options.mutant != Mutant::Still {
            for (way, days) in ways {
                agents.environment.extend([
                    (way, "LD_PRELOAD", library.clone()),
                    (way, "FAKETIME", format!("{days:+}d")),
                    (way, "FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
                    (way, "DONT_FAKE_MONOTONIC", "1".to_owned()),
                ]);
            }
        }
        let mut running = start(&agents, &ways.map(|(way, _)| way))?;
        let order = Order { upload: false, bytes: STEADY_BYTES_PER_S * seconds, bytes_per_s: STEADY_BYTES_PER_S };
        let orders: Vec<_> = running.iter().map(|agent| (agent, order)).collect();
        let watch = StolenWatch::start();
        let hauls = begin(&agents, &orders)?;
        self.spoil(&mut running);
        finish(report, Row::Clocks, hauls, &[], watch);
        for (way, days) in ways {
            self.renewed(report, Row::Clocks, &agents, way, seconds);
            let off = if agents.log(way).contains(&date(days)?) { 1.0 } else { 0.0 };
            report.of((Row::Clocks.label(), way.into_str())).at_least("clock_is_off", off, 1.0);
        }
        Ok(())
    }

    fn throughput(&self, report: &mut Report) -> Result<(), LabError> {
        let bytes = if self.options.short { 20_000_000 } else { 100_000_000 };
        let ways = [Way::Direct, Way::Pinhole, Way::Forward, Way::Socks, Way::Run, Way::Native, Way::Encapsulated];
        let agents = self.agents(FAST);
        let running = start(&agents, &ways)?;
        let about = |way: Way| (Row::Throughput.label(), way.into_str());
        let watch = StolenWatch::start();
        for upload in [false, true] {
            let mut speeds: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
            // In turn, so that what slows the machine for a while slows all.
            for _ in 0..RUNS {
                for (agent, speeds) in running.iter().zip(&mut speeds) {
                    let hauls = begin(&agents, &[(agent, Order { upload, bytes, bytes_per_s: 0 })])?;
                    let hauls = hauls.into_iter().map(wait);
                    let whole =
                        |one: &Carried| one.haul.as_ref().filter(|haul| haul.bytes == bytes).map(|haul| haul.ms);
                    speeds.extend(hauls.filter_map(|one| whole(&one)).map(|ms| bytes as f64 / 1e3 / ms.max(1) as f64));
                }
            }
            let direction = if upload { "up" } else { "down" };
            for (way, speeds) in ways.into_iter().zip(&speeds) {
                report.of(about(way)).at_least(&format!("whole_{direction}"), speeds.len() as f64, RUNS as f64);
            }
            let medians: Vec<f64> = speeds.into_iter().map(median).collect();
            for (way, speed) in ways.into_iter().zip(&medians) {
                report.of(about(way)).note(&format!("mb_per_s_{direction}"), *speed);
                report.of(about(way)).note(&format!("of_pinhole_{direction}"), speed / medians[1]);
            }
        }
        report.of((Row::Throughput.label(), "lab")).note_taken(&watch.end().taken());
        Ok(())
    }

    /// What a mutant does in the middle of transfers.
    fn spoil(&self, running: &mut [Agent]) {
        if self.options.mutant == Mutant::Dead {
            thread::sleep(Duration::from_secs(2));
            running.iter_mut().filter_map(|agent| agent.process.as_mut()).for_each(Process::kill);
        }
    }
}

/// A transfer under way.
struct Under {
    way: Way,
    order: Order,
    process: Process,
    end: Instant,
}

fn start(agents: &Agents<'_>, ways: &[Way]) -> Result<Vec<Agent>, LabError> {
    ways.iter().map(|way| agents.start(*way)).collect()
}

fn begin(agents: &Agents<'_>, orders: &[(&Agent, Order)]) -> Result<Vec<Under>, LabError> {
    let begin = |(agent, order): &(&Agent, Order)| {
        let pace = if order.bytes_per_s == 0 { SLOWEST_BYTES_PER_S } else { order.bytes_per_s };
        let end = Instant::now() + Duration::from_secs(PATIENCE_S + order.bytes / pace);
        Ok(Under { way: agent.way, order: *order, process: agents.haul(agent, *order)?, end })
    };
    orders.iter().map(begin).collect()
}

fn wait(Under { way, order, process, end }: Under) -> Carried {
    let said = process.event("result", end.saturating_duration_since(Instant::now())).ok();
    let haul = said.and_then(|value| serde_json::from_value::<Haul>(value).ok());
    Carried { way, order, haul }
}

fn finish(report: &mut Report, row: Row, hauls: Vec<Under>, moved_at: &[u64], watch: StolenWatch) {
    let carried: Vec<Carried> = hauls.into_iter().map(wait).collect();
    let stolen = watch.end();
    judge(report, row, &carried, moved_at, &stolen);
    report.of((row.label(), "lab")).note_taken(&stolen.taken());
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The library that gives one process another time of day.
fn faketime() -> Result<PathBuf, LabError> {
    let directories = fs::read_dir("/usr/lib").during(|| "reading /usr/lib".to_owned())?;
    let below = directories.filter_map(|entry| Some(entry.ok()?.path()));
    let mut all = below.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")]);
    let found = all.find_map(|path| {
        let library = path.join("faketime/libfaketimeMT.so.1");
        library.exists().then_some(library)
    });
    found.ok_or_else(|| LabError::Plan("the row `clocks` needs libfaketime; install the package faketime".to_owned()))
}

/// The day that is so many days from now, as logs write it.
fn date(days: i64) -> Result<String, LabError> {
    let when = format!("{days} days");
    let output = Command::new("date").args(["-u", "-d", &when, "+%Y-%m-%dT"]).output();
    let output = output.during(|| "running date".to_owned())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
