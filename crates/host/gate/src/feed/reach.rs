//! Which services are behind this gate: those to whose addresses the kernel's route leaves by the inside port. A frontend
//! with several gates needs it to choose.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use sluicegate_feed::FromGate;
use sluicegate_netlink::Rtnetlink;

use crate::{ledger::IssuerId, shared::Shared};

/// Remembers what a frontend was told, and tells it what changed.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    told: BTreeMap<String, Option<String>>,
}

impl Reach {
    /// What changed since the last call, of all services that this frontend announces.
    pub(crate) async fn changes(&mut self, shared: &Arc<Shared>, issuer: IssuerId) -> Vec<FromGate> {
        let announced: Vec<(String, IpAddr)> = {
            let ledger = shared.books.read();
            let own = ledger.services().filter(|listed| listed.issuers.contains(&issuer));
            own.map(|listed| (listed.service.name.clone(), listed.service.address)).collect()
        };
        if announced.is_empty() {
            return Vec::new();
        }
        let inside = shared.config.inside.clone();
        let obstacles = tokio::task::spawn_blocking(move || obstacles(announced, &inside)).await;
        obstacles.map_or_else(|_| Vec::new(), |now| self.changed(now))
    }

    fn changed(&mut self, now: BTreeMap<String, Option<String>>) -> Vec<FromGate> {
        let changed = now.iter().filter(|(service, obstacle)| self.told.get(*service) != Some(obstacle));
        let changed =
            changed.map(|(service, obstacle)| FromGate::Reach { service: service.clone(), obstacle: obstacle.clone() });
        let changed = changed.collect();
        self.told = now;
        changed
    }
}

/// What stands between this gate and each of the services; `None` if nothing does, or if the kernel does not say.
fn obstacles(announced: Vec<(String, IpAddr)>, inside: &str) -> BTreeMap<String, Option<String>> {
    let mut netlink = Rtnetlink::open().ok();
    let mut obstacle = |address| match netlink.as_mut()?.way_to(address) {
        Ok(way) if way.interface == inside => None,
        Ok(way) => Some(format!("{address} is reached by {:?}, not by inside", way.interface)),
        Err(error) if error.is_unreachable() => Some(format!("no route to {address}")),
        Err(_) => None,
    };
    announced.into_iter().map(|(service, address)| (service, obstacle(address))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_is_told_of_each_service_once_and_again_when_its_route_changes() {
        let of = |list: &[(&str, Option<&str>)]| {
            list.iter().map(|(service, obstacle)| ((*service).to_owned(), obstacle.map(str::to_owned))).collect()
        };
        let told = |messages: Vec<FromGate>| -> Vec<(String, bool)> {
            let each = messages.into_iter().map(|message| match message {
                FromGate::Reach { service, obstacle } => (service, obstacle.is_none()),
                other => panic!("{other:?}"),
            });
            each.collect()
        };
        let mut reach = Reach::default();
        let first = reach.changed(of(&[("mail", None), ("web", Some("no route"))]));
        assert_eq!(told(first), [("mail".to_owned(), true), ("web".to_owned(), false)]);
        assert_eq!(reach.changed(of(&[("mail", None), ("web", Some("no route"))])), []);
        assert_eq!(told(reach.changed(of(&[("mail", None), ("web", None)]))), [("web".to_owned(), true)]);
        assert_eq!(reach.changed(of(&[("web", None)])), []);
        assert_eq!(told(reach.changed(of(&[("mail", None), ("web", None)]))), [("mail".to_owned(), true)]);
    }
}
