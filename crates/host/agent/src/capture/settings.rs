//! Kernel settings that capturing changes. They are put back when the agent ends, however it ends: a helper process
//! waits for that.

use std::{
    fs,
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use sluicegate_netlink::{Error, Rtnetlink};
use tracing::warn;

use super::place::{RULE_PRIORITY, TABLE};

/// The hidden verb of the helper.
pub const RESTORE_VERB: &str = "agent-restore";
const SETTINGS: &str = "/proc/sys/net/";

/// What was changed.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// For [`restore`].
    undo: Vec<String>,
    helper: Option<Child>,
}

impl Settings {
    /// Whether a setting of this host, such as `ipv4/conf/eth0/forwarding`, has this value.
    pub(super) fn read(setting: &str) -> io::Result<String> {
        fs::read_to_string(format!("{SETTINGS}{setting}")).map(|value| value.trim().to_owned())
    }

    /// Changes a setting for as long as the agent lives.
    pub(super) fn change(&mut self, setting: &str, value: &str) -> io::Result<()> {
        let before = Self::read(setting)?;
        if before == value {
            return Ok(());
        }
        write(setting, value)?;
        self.undo.push(format!("{setting}={before}"));
        Ok(())
    }

    /// Has the capture table asked first for as long as the agent lives.
    pub(super) fn rule(&mut self, netlink: &mut Rtnetlink, is_v6: bool) -> Result<(), Error> {
        match netlink.add_rule(RULE_PRIORITY, TABLE, is_v6) {
            // Left by an agent whose helper was killed too.
            Err(error) if error.is_exists() => {}
            other => other?,
        }
        self.undo.push(if is_v6 { "rule6" } else { "rule4" }.to_owned());
        Ok(())
    }

    /// Whether nothing was changed.
    pub(super) fn is_empty(&self) -> bool {
        self.undo.is_empty()
    }

    /// Starts the helper. Without one, only an orderly end puts the settings back.
    pub(super) fn guard(&mut self) {
        if self.undo.is_empty() {
            return;
        }
        let helper = Command::new("/proc/self/exe")
            .arg(RESTORE_VERB)
            .args(&self.undo)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C at the terminal is meant for the agent; the helper ends after it.
            .process_group(0)
            .spawn();
        match helper {
            Ok(helper) => self.helper = Some(helper),
            Err(error) => warn!(%error, "no helper: after a kill of this process its kernel settings stay"),
        }
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        match &mut self.helper {
            Some(helper) => {
                drop(helper.stdin.take());
                let _ = helper.wait();
            }
            None => undo(&self.undo),
        }
    }
}

/// Writes a setting without a way back: for devices and namespaces that end with the agent.
pub(super) fn write(setting: &str, value: &str) -> io::Result<()> {
    let path = format!("{SETTINGS}{setting}");
    fs::write(&path, value).map_err(|error| io::Error::new(error.kind(), format!("writing {value} to {path}: {error}")))
}

/// The helper: waits for the end of its standard input, which the agent holds open, then undoes `changes`.
pub fn restore(changes: &[String]) {
    let mut nothing = [0; 16];
    while !matches!(io::stdin().read(&mut nothing), Ok(0) | Err(_)) {}
    undo(changes);
}

fn undo(changes: &[String]) {
    for change in changes.iter().rev() {
        let done = match (change.as_str(), change.split_once('=')) {
            ("rule4" | "rule6", _) => Rtnetlink::open().map_err(io::Error::from).map(|mut netlink| {
                let _ = netlink.delete_rule(RULE_PRIORITY, TABLE, change == "rule6");
            }),
            (_, Some((setting, value))) if !setting.contains("..") => write(setting, value),
            _ => Ok(()),
        };
        // The interface may be gone by now, and its settings with it.
        if let Err(error) = done.as_ref()
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("sluicegate: cannot put {change} back: {error}");
        }
    }
}
