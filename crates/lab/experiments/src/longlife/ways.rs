//! The ways by which a program reaches a service, and what has to run for each.

use std::{path::PathBuf, process::Command, time::Duration};

use strum::{IntoStaticStr, VariantArray};

use super::site::{BESIDE, GATE, SERVICE};
use sluicegate_site::{
    During, Lab, LabError, NodeFile, Process,
    binary::{self, Binary},
    scratch::write_private,
    worker,
};
use sluicegate_traffic::client::haul::{HaulSpec, Order};

pub(super) const REALM: &str = "example.net";
/// With default settings.
pub(super) const FILES: Service = Service { name: "files", port: 7_000, grant: "" };
/// Whose grants end soon.
pub(super) const BRIEF: Service = Service { name: "brief", port: 7_001, grant: "grant = { lifetime_s = 10 }\n" };
/// Whose grants limit nothing here.
pub(super) const FAST: Service =
    Service { name: "fast", port: 7_002, grant: "grant = { bytes_max = \"16GB\", rate = \"100Gbit\" }\n" };
/// What captured programs call the service.
const KNOWN: &str = "192.0.2.77";
const LISTEN: u16 = 7_000;
const READY_MAX: Duration = Duration::from_secs(15);

/// How a program gets at a service. Written out, it is the name of its host, of its user, and in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(super) enum Way {
    /// `connect -L`.
    Forward,
    /// `connect --socks`.
    Socks,
    /// `agent run`.
    Run,
    /// `agent tun`, headers as an IP protocol of their own.
    #[strum(serialize = "tun")]
    Native,
    /// `agent tun`, headers in UDP.
    #[strum(serialize = "tun-udp")]
    Encapsulated,
    /// `agent tun` as it comes, behind a NAT.
    #[strum(serialize = "tun-nat")]
    Nat,
    /// `connect -- CMD`: the program's own connection through the pinhole.
    Pinhole,
    /// Past the gate, through a plain router.
    Direct,
}

/// A service of the lab, all on one host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service {
    pub(super) name: &'static str,
    pub(super) port: u16,
    grant: &'static str,
}

/// What all agents need.
#[derive(Debug)]
pub(super) struct Agents<'l> {
    pub(super) lab: &'l Lab,
    pub(super) binary: &'l Binary,
    pub(super) password: PathBuf,
    /// What stands in the environment of some.
    pub(super) environment: Vec<(Way, &'static str, String)>,
    pub(super) service: Service,
}

/// An agent that runs, or what is to be run for each transfer.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) way: Way,
    /// Dies with this; `None` where each transfer has its own.
    pub(super) process: Option<Process>,
    /// The verb and what follows, in front of each transfer's own command.
    before: Option<Vec<String>>,
}

impl Agents<'_> {
    /// Starts what stands for this way, and waits until it is ready.
    pub(super) fn start(&self, way: Way) -> Result<Agent, LabError> {
        let Service { name, port, .. } = self.service;
        let (words, ready) = match way {
            Way::Direct => return Ok(Agent { way, process: None, before: None }),
            Way::Pinhole => {
                let before = self.connect(way, &format!("{name}:{port}"), &["--"]);
                return Ok(Agent { way, process: None, before: Some(before) });
            }
            Way::Run => {
                let before = ["agent", "run", &self.file(way, "")?, "--"].map(str::to_owned).to_vec();
                return Ok(Agent { way, process: None, before: Some(before) });
            }
            Way::Forward => (self.connect(way, name, &["-L", &format!("{LISTEN}:{port}")]), "ready"),
            Way::Socks => (self.connect(way, name, &["--socks", &format!("127.0.0.1:{LISTEN}")]), "ready"),
            Way::Native => (self.tun(way, "carriage = \"native\"\n")?, "capturing"),
            Way::Encapsulated => (self.tun(way, "carriage = \"encapsulated\"\n")?, "capturing"),
            Way::Nat => (self.tun(way, "")?, "capturing"),
        };
        let process = self.spawn(way, way.into_str(), &words)?;
        self.binary.wait_for(way.into_str(), || self.log(way).contains(ready).then_some(()))?;
        Ok(Agent { way, process: Some(process), before: None })
    }

    /// Starts a transfer this way.
    pub(super) fn haul(&self, agent: &Agent, order: Order) -> Result<Process, LabError> {
        let (way, Service { name, port, .. }) = (agent.way, self.service);
        let (to, socks) = match way {
            Way::Forward => (format!("127.0.0.1:{LISTEN}"), None),
            Way::Socks => (format!("{name}:{port}"), Some(([127, 0, 0, 1], LISTEN).into())),
            Way::Run | Way::Native | Way::Encapsulated | Way::Nat => (format!("{KNOWN}:{port}"), None),
            Way::Pinhole => ("{host}:{port}".to_owned(), None),
            Way::Direct => (format!("{BESIDE}:{port}"), None),
        };
        let spec = HaulSpec { to, socks, order };
        let Some(before) = &agent.before else {
            let command = worker::command(&self.binary.program, "haul", &spec);
            return self.lab.host(way.into_str())?.spawn(&format!("haul on {}", way.into_str()), command);
        };
        let own = worker::command(&self.binary.program, "haul", &spec);
        let own =
            std::iter::once(own.get_program()).chain(own.get_args()).map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = before.iter().cloned().chain(own).collect();
        let process = self.spawn(way, way.into_str(), &words)?;
        process.event("ready", READY_MAX)?;
        Ok(process)
    }

    /// What the agent of this way has said since its start.
    pub(super) fn log(&self, way: Way) -> String {
        std::fs::read_to_string(self.binary.log(way.into_str())).unwrap_or_default()
    }

    fn spawn(&self, way: Way, name: &str, words: &[String]) -> Result<Process, LabError> {
        let log = self.binary.log(name);
        let mut command: Command = self.binary.command(words);
        command.stderr(std::fs::File::create(&log).during(|| format!("making {}", log.display()))?);
        // Each has met the site for the first time.
        let home = self.binary.directory.join(format!("home-{}", way.into_str()));
        std::fs::create_dir_all(&home).during(|| format!("making {}", home.display()))?;
        command
            .env("HOME", home)
            .envs(self.environment.iter().filter(|(of, ..)| *of == way).map(|(_, name, value)| (name, value)));
        self.lab.host(way.into_str())?.spawn(name, command)
    }

    fn connect(&self, way: Way, to: &str, more: &[&str]) -> Vec<String> {
        let to = format!("{}@{to}", way.into_str());
        binary::connect(&to, (&GATE.to_string(), REALM), &self.password, more)
    }

    fn tun(&self, way: Way, more: &str) -> Result<Vec<String>, LabError> {
        Ok(["agent", "tun", &self.file(way, more)?].map(str::to_owned).to_vec())
    }

    /// The file of an agent that captures the service.
    fn file(&self, way: Way, more: &str) -> Result<String, LabError> {
        let path = self.binary.directory.join(format!("{}.toml", way.into_str()));
        let text = format!(
            "[agent]\nfrontend = \"{GATE}\"\nrealm = \"{REALM}\"\npassword_file = \"{}\"\n\
             [[capture]]\nto = \"{KNOWN}\"\nservice = \"{}@{}\"\n{more}",
            self.password.display(),
            way.into_str(),
            self.service.name,
        );
        write_private(&path, &text).during(|| format!("writing {}", path.display()))?;
        Ok(binary::text(&path))
    }
}

/// The file of the gate and its frontend.
pub(super) fn site_file(datapath: &str) -> NodeFile {
    let file = NodeFile::new("site").frontend(GATE.into(), REALM, "").gate(
        ("outside", "inside"),
        datapath,
        "local = [\"udp/5060\"]\n",
    );
    [FILES, BRIEF, FAST].into_iter().fold(file, |file, Service { name, port, grant }| {
        file.service(name, SERVICE, &format!("ports = [\"tcp/{port}\"]\nallow = [\"group:staff\"]\n{grant}"))
    })
}
