//! The daemons of the live experiment, and the plain routers in their place.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use super::site::{COLLUDER, NODES, SERVICE};
use crate::{
    Lab, LabError, Process,
    binary::{Binary, text},
    error::During,
    scratch::unmount_below,
};

/// What the daemons have in common.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) binary: Binary,
    /// The back end as the configuration names it.
    pub(super) datapath: String,
    /// What the gate paces its egress to, bit/s.
    pub(super) link_rate_bps: u64,
    /// The destination's default grant: N and T.
    pub(super) default_grant: (u32, u32),
    /// From which rate a sender of the service floods, as the configuration says it.
    pub(super) flood_rate: &'static str,
    /// Whether the honest hosts behind the spoofing neighbour have their edge box.
    pub(super) edge_behind_spoofer: bool,
}

/// The running daemons. Dropping them ends them as an operator would.
#[derive(Debug)]
pub(super) struct Nodes {
    directory: PathBuf,
    running: Vec<(String, PathBuf, Process)>,
    binary: Binary,
}

/// Lets the kernels forward, as a network without capabilities does; or stops them.
pub(super) fn forward_plainly(lab: &Lab, on: bool) -> Result<(), LabError> {
    NODES.iter().chain(&["edge-1"]).try_for_each(|name| lab.host(name)?.forward(on))
}

impl Nodes {
    /// Starts edge boxes, routers and the gate, and waits until each answers.
    pub(super) fn start(lab: &Lab, settings: &Settings) -> Result<Self, LabError> {
        let directory = settings.binary.directory.clone();
        let mut nodes = Self { directory, running: Vec::new(), binary: settings.binary.clone() };
        let names = NODES.iter().copied().chain(settings.edge_behind_spoofer.then_some("edge-1"));
        for name in names {
            nodes.start_one(lab, settings, name)?;
        }
        for (name, config, _) in &nodes.running {
            nodes.binary.wait_for(name, || nodes.binary.status(config))?;
        }
        Ok(nodes)
    }

    /// Bytes that left the gate towards the bottleneck in the request lane, and in all lanes.
    pub(super) fn request_lane(&self) -> Result<(u64, u64), LabError> {
        let gate = self.running.iter().find(|(name, ..)| name == "gate");
        let status = gate.and_then(|(_, config, _)| self.binary.status(config));
        let missing = || LabError::Process { name: "gate".to_owned(), reason: "says nothing of its lanes".to_owned() };
        let status = status.ok_or_else(missing)?;
        let lanes = status.pointer("/gate/lanes").or(status.pointer("/lanes")).and_then(|lanes| lanes.as_array());
        let lanes = lanes.ok_or_else(missing)?.iter().filter(|lane| lane["port"] == "inside");
        Ok(lanes.fold((0, 0), |(requests, all), lane| {
            let bytes = lane["bytes"].as_u64().unwrap_or(0);
            (requests + if lane["lane"] == "request" { bytes } else { 0 }, all + bytes)
        }))
    }

    fn start_one(&mut self, lab: &Lab, settings: &Settings, name: &str) -> Result<(), LabError> {
        let state = self.directory.join(format!("state-{name}"));
        if !state.exists() {
            let made = fs::DirBuilder::new().mode(0o700).create(&state);
            made.during(|| format!("making {}", state.display()))?;
        }
        let config = self.directory.join(format!("{name}.toml"));
        let toml = toml(settings, name, &state);
        fs::write(&config, toml).during(|| format!("writing {}", config.display()))?;
        let process = self.binary.spawn(lab, name, name, &["gate".to_owned(), text(&config)])?;
        self.running.push((name.to_owned(), config, process));
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.running.iter_mut().for_each(|(.., process)| process.end());
        unmount_below(&self.directory);
    }
}

fn toml(settings: &Settings, name: &str, state: &Path) -> String {
    let datapath = crate::topology::datapath(&settings.datapath);
    let node = format!("[node]\nname = \"{name}\"\nstate = {state:?}\n\n");
    let (bytes, seconds) = settings.default_grant;
    let server = format!("\"server\"\nflood_rate = \"{}\"\nblacklist_s = 60", settings.flood_rate);
    let edge = |outside: &str, inside: &str, policy: &str| {
        format!(
            "{node}[gate]\nrole = \"edge\"\noutside = \"{outside}\"\ninside = \"{inside}\"\ndatapath = \"{datapath}\"\n\
             policy = {policy}\ncapability_bytes = {bytes}\ncapability_s = {seconds}\npeers_max = 65536\n"
        )
    };
    let router = |outside: &str, inside: &str| {
        format!(
            "{node}[gate]\nrole = \"router\"\noutside = \"{outside}\"\ninside = \"{inside}\"\n\
             datapath = \"{datapath}\"\nboundary = true\nlink_rate = \"none\"\n"
        )
    };
    match name {
        "edge" | "edge-1" => edge("wan", "lan", "\"client\""),
        "edge-s" => edge("wan", "lan", &server),
        "r1" => router("lan", "wan"),
        "r2" => router("wan", "down"),
        _ => {
            let services = [("web", SERVICE), ("colluder", COLLUDER)].map(|(name, address)| {
                format!(
                    "\n[[service]]\nname = \"{name}\"\nmode = \"filter\"\ndefault = \"open\"\naddress = \"{address}\"\n"
                )
            });
            format!(
                "{node}[gate]\noutside = \"wan\"\ninside = \"down\"\ndatapath = \"{datapath}\"\nlink_rate = \"{}bit\"\n\
                 boundary = true\n{}",
                settings.link_rate_bps,
                services.concat()
            )
        }
    }
}
