//! Which gate protects which service.

use std::{collections::HashMap, net::IpAddr};

use crate::config::GateSite;

/// Which gate protects which service: the one that the file names, or else the gate that joined first among those that
/// the file gives no services of their own and whose routes lead to the service. Never simply whoever is connected: a gate more in the site must not become
/// the one that gets other gates' grants and session keys.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    assigned: HashMap<String, String>,
    sites: Vec<GateSite>,
    /// In the order in which they joined.
    joined: Vec<String>,
}

impl Holders {
    pub(crate) fn new(sites: &[GateSite]) -> Self {
        let of_site = |site: &GateSite| {
            let gate = site.name.clone();
            site.services.clone().into_iter().map(move |service| (service, gate.clone()))
        };
        Self { assigned: sites.iter().flat_map(of_site).collect(), sites: sites.to_vec(), joined: Vec::new() }
    }

    /// A gate has joined, after all that are known.
    pub(crate) fn joined(&mut self, name: &str) {
        self.joined.push(name.to_owned());
    }

    /// All gates, first joined first; others are forgotten.
    pub(crate) fn only(&mut self, names: &[String]) {
        self.joined = names.to_vec();
    }

    /// The gate of a service, connected or not. A gate that has said that it cannot protect the service is passed over,
    /// unless the file names it; one that does not reach the service is, unless there is no other: its inside link may be
    /// away for a moment.
    pub(crate) fn of(
        &self,
        service: &str,
        refuses: impl Fn(&str) -> bool,
        reaches: impl Fn(&str) -> bool,
    ) -> Option<&str> {
        let first = || {
            let mut candidates = self.joined.iter().filter(|name| !self.is_dedicated(name) && !refuses(name));
            let alone = candidates.clone().nth(1).is_none();
            candidates.find(|name| alone || reaches(name))
        };
        self.assigned.get(service).or_else(first).map(String::as_str)
    }

    /// Whether this gate may have grants of a service open.
    pub(crate) fn may_hold(&self, gate: &str, service: &str) -> bool {
        match self.assigned.get(service) {
            Some(assigned) => assigned == gate,
            None => !self.is_dedicated(gate),
        }
    }

    /// Whether an address is one of the gate's: one that the file names, or else the one that it dialled from.
    pub(crate) fn is_address(&self, gate: &str, dialled_from: Option<IpAddr>, address: IpAddr) -> bool {
        match self.site(gate).filter(|site| !site.addresses.is_empty()) {
            Some(site) => site.addresses.contains(&address),
            None => dialled_from == Some(address),
        }
    }

    fn is_dedicated(&self, gate: &str) -> bool {
        self.site(gate).is_some_and(|site| !site.services.is_empty())
    }

    fn site(&self, gate: &str) -> Option<&GateSite> {
        self.sites.iter().find(|site| site.name == gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders() -> Holders {
        let site = |name: &str, services: &[&str], addresses: &[[u8; 4]]| GateSite {
            name: name.into(),
            services: services.iter().map(|name| (*name).to_owned()).collect(),
            addresses: addresses.iter().map(|address| IpAddr::from(*address)).collect(),
        };
        let mut holders = Holders::new(&[site("east", &["pbx"], &[]), site("west", &[], &[[203, 0, 113, 7]])]);
        ["east", "west", "a-newcomer"].into_iter().for_each(|name| holders.joined(name));
        holders
    }

    #[test]
    fn the_file_names_the_gate_of_a_service_and_the_first_that_joined_has_the_rest() {
        let mut holders = holders();
        assert_eq!(holders.of("pbx", |_| true, |_| true), Some("east"), "whatever it says");
        assert_eq!(
            holders.of("web", |_| false, |_| true),
            Some("west"),
            "east has services of its own, and names do not count"
        );
        assert_eq!(holders.of("web", |gate| gate == "west", |_| true), Some("a-newcomer"));
        assert_eq!(holders.of("web", |_| true, |_| true), None);
        holders.only(&["a-newcomer".into()]);
        assert_eq!(holders.of("web", |_| false, |_| true), Some("a-newcomer"));
    }

    #[test]
    fn a_gate_that_does_not_reach_a_service_is_passed_over_unless_it_is_the_only_one() {
        let mut holders = holders();
        assert_eq!(holders.of("web", |_| false, |gate| gate == "a-newcomer"), Some("a-newcomer"));
        assert_eq!(holders.of("web", |_| false, |_| false), None, "nobody gets keys of another's service");
        assert_eq!(holders.of("pbx", |_| false, |_| false), Some("east"), "the file names it");
        holders.only(&["west".into()]);
        assert_eq!(holders.of("web", |_| false, |_| false), Some("west"));
        assert_eq!(holders.of("web", |_| true, |_| true), None);
    }

    #[test]
    fn a_gate_has_no_say_in_services_of_others() {
        let holders = holders();
        assert!(holders.may_hold("east", "pbx") && !holders.may_hold("west", "pbx"));
        assert!(holders.may_hold("west", "web") && !holders.may_hold("east", "web"));
    }

    #[test]
    fn an_address_is_the_gates_if_the_file_says_so_or_it_dialled_from_there() {
        let (holders, dialled, other) = (holders(), IpAddr::from([203, 0, 113, 1]), IpAddr::from([203, 0, 113, 66]));
        assert!(holders.is_address("east", Some(dialled), dialled));
        assert!(!holders.is_address("east", Some(dialled), other));
        assert!(!holders.is_address("east", None, other));
        assert!(holders.is_address("west", Some(dialled), IpAddr::from([203, 0, 113, 7])));
        assert!(!holders.is_address("west", Some(dialled), dialled), "the file names another");
    }
}
