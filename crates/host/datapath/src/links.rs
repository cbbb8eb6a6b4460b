//! Whether the interfaces that a gate opened are still there, and still those.

use sluicegate_netlink::{Error, Monitor, Rtnetlink};

use crate::Interface;

/// Follows the two interfaces of a gate, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Links {
    monitor: Monitor,
    ports: [Interface; 2],
}

impl Links {
    /// Follows these interfaces, as they are now.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn follow(ports: &[Interface; 2]) -> Result<Self, Error> {
        Ok(Self { monitor: Monitor::of_links()?, ports: ports.clone() })
    }

    /// What is wrong with one of them, if anything changed since the last call. Does not wait; costs one system call if
    /// nothing changed.
    pub fn problem(&mut self) -> Option<String> {
        let mut is_changed = false;
        // Too much to be kept is a change, too.
        is_changed |= self.monitor.changes(&mut |_| is_changed = true).is_err();
        if is_changed { self.ports.iter().find_map(problem) } else { None }
    }
}

fn problem(port: &Interface) -> Option<String> {
    let name = &port.name;
    let link = match Rtnetlink::open().and_then(|mut netlink| netlink.link(name)) {
        Ok(link) => link,
        Err(error) if error.is_missing() => return Some(format!("interface `{name}` is gone")),
        Err(error) => return Some(format!("interface `{name}` cannot be read: {error}")),
    };
    if link.index != port.index {
        return Some(format!("interface `{name}` was replaced by another of its name"));
    }
    if !link.up {
        return Some(format!("interface `{name}` is down"));
    }
    (link.mac != Some(port.mac)).then(|| format!("interface `{name}` has another hardware address"))
}
