//! Our side: the real binary as gate and frontend in one, opened by a real `connect`.

use std::{
    fs,
    net::SocketAddrV4,
    path::{Path, PathBuf},
};

use super::{
    Options,
    lab::{BenchLab, FIRST_PORT, OUTSIDE, PORTS, SINK, SIP_PORT},
};
use crate::{
    LabError,
    binary::{Binary, text},
    clock::{Random, unix_ns},
    error::During,
};

const REALM: &str = "bench.example";
/// One client may have 64 SIP requests under way, and a port takes two: one is challenged, one answered.
const PORTS_PER_CLIENT: usize = 26;

/// A lab with our gate, whose grants are open.
pub(super) fn start(options: &Options, backend: &str) -> Result<BenchLab, LabError> {
    let mut lab = BenchLab::build(backend, false)?;
    lab.targets.clear();
    let files = Files::write(&options.directory.join(backend), backend)?;
    let binary = Binary { program: options.program.clone(), directory: files.directory.clone() };
    binary.run(&["user", "add", "bench", "--password-file", &text(&files.password), "--config", &text(&files.site)])?;
    let up = ["up".to_owned(), text(&files.site)];
    lab.keep(binary.spawn(&lab.lab, "gate", "up", &up)?);
    binary.wait_for("up", || is_ready(&binary, &files.site).then_some(()))?;
    let ports: Vec<_> = (FIRST_PORT..FIRST_PORT + PORTS).collect();
    for (number, ports) in ports.chunks(PORTS_PER_CLIENT).enumerate() {
        let name = format!("connect{number}");
        lab.keep(binary.spawn(&lab.lab, "gen", &name, &connect(&files, ports))?);
        let log = binary.log(&name);
        let opened = || opened(&fs::read_to_string(&log).unwrap_or_default(), ports);
        lab.targets.extend(binary.wait_for(&name, opened)?);
    }
    Ok(lab)
}

fn connect(files: &Files, ports: &[u16]) -> Vec<String> {
    let frontend = format!("{OUTSIDE}:{SIP_PORT}");
    let password = text(&files.password);
    let mut arguments =
        ["connect", "bench@sink", "--frontend", &frontend, "--realm", REALM, "--password-file", &password]
            .map(str::to_owned)
            .to_vec();
    for port in ports {
        arguments.extend(["-L".to_owned(), format!("{port}:{port}/udp")]);
    }
    arguments
}

/// Where the gate lets each of `ports` be reached, once `log` names all of them.
fn opened(log: &str, ports: &[u16]) -> Option<Vec<SocketAddrV4>> {
    ports
        .iter()
        .map(|port| {
            let range = format!(" range=udp/{port} ");
            let line = log.lines().find(|line| line.contains(" open ") && line.contains(&range))?;
            let (_, rest) = line.split_once(" gate=")?;
            rest.split(' ').next()?.parse().ok()
        })
        .collect()
}

struct Files {
    directory: PathBuf,
    site: PathBuf,
    password: PathBuf,
}

impl Files {
    fn write(directory: &Path, backend: &str) -> Result<Self, LabError> {
        let files = Self {
            directory: directory.to_owned(),
            site: directory.join("site.toml"),
            password: directory.join("password"),
        };
        let password = format!("{:016x}", Random::new(unix_ns()).next());
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&files.site, site_toml(&directory.join("state"), backend)))
            .and_then(|()| fs::write(&files.password, password))
            .during(|| format!("writing into {}", directory.display()))?;
        Ok(files)
    }
}

fn site_toml(state: &Path, backend: &str) -> String {
    let last = FIRST_PORT + PORTS - 1;
    format!(
        "[node]\nname = \"bench\"\nstate = {state:?}\n\
         [frontend]\nlisten = [\"udp/{OUTSIDE}:{SIP_PORT}\"]\nrealm = \"{REALM}\"\n\
         [gate]\noutside = \"outside\"\ninside = \"inside\"\nlocal = [\"udp/{SIP_PORT}\"]\ndatapath = \"{backend}\"\n\
         flows_max = 131072\n\
         [[service]]\nname = \"sink\"\naddress = \"{SINK}\"\nports = [\"udp/{FIRST_PORT}-{last}\"]\n\
         grant = {{ bytes_max = \"1TB\", lifetime_s = 3600, rate = \"none\", flows_max = 65535 }}\n\
         allow = [\"user:bench\"]\n"
    )
}

/// Whether the node answers and its gate holds its feed.
fn is_ready(binary: &Binary, config: &Path) -> bool {
    let status = binary.status(config).unwrap_or_default();
    let feeds = status["gate"]["feeds"].as_array().cloned().unwrap_or_default();
    !feeds.is_empty() && feeds.iter().all(|feed| feed["state"] == "connected")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gates_ports_are_known_once_the_log_names_all_of_them() {
        let line = |port: u16| {
            let gate = 20_000 + port;
            format!(
                "2026-01-01T00:00:00Z  INFO open service=sink range=udp/{port} gate=198.51.100.1:{gate} lasts_s=9\n"
            )
        };
        let log = line(5_002) + &line(5_001);
        let expected = ["198.51.100.1:25001", "198.51.100.1:25002"].map(|text| text.parse().unwrap());
        assert_eq!(opened(&log, &[5_001, 5_002]).unwrap(), expected);
        assert!(opened(&log, &[5_001, 5_003]).is_none());
    }
}
