//! What each frontend may have this gate do: the gate's own file says so, whatever a frontend says.

use super::{Config, Prefix};
use crate::ledger::{Entry, IssuerId};
use sluicegate_feed::{FeedService, GrantDelta};
use sluicegate_grant::IssuerPublic;
use sluicegate_policy::{Outbound, PortProtocol, PortRange, ServiceDefault};
use sluicegate_wire::UnixTime;
use std::net::IpAddr;

/// `[[issuer]]` tables of one gate.
pub const ISSUERS_MAX: usize = 64;
/// Seconds by which a grant may seem longer than it is: the frontend's clock may be ahead.
const SKEW_S: u64 = sluicegate_feed::SKEW_S_MAX;

/// What one frontend may have this gate open. A list that is empty, or a bound that is `None`, restricts nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The public key that the frontend signs with.
    pub key: [u8; 32],
    /// Services that it may announce and open.
    pub services: Vec<String>,
    /// Targets that it may open, besides what the gate's own `may_open` says.
    pub may_open: Vec<Prefix>,
    /// Ports of services that it may open.
    pub ports: Vec<PortRange>,
    /// Most bytes of one grant.
    pub bytes_max: Option<u64>,
    /// Highest rate of one grant in bit/s.
    pub rate_max_bps: Option<u64>,
    /// Longest life of one grant in seconds.
    pub lifetime_max_s: Option<u32>,
    /// Addresses from which it relays SIP to services; the one of its feed unless given.
    pub sip_from: Vec<IpAddr>,
}

impl Issuer {
    /// A frontend that nothing is forbidden to.
    #[must_use]
    pub const fn any(key: [u8; 32]) -> Self {
        Self {
            key,
            services: Vec::new(),
            may_open: Vec::new(),
            ports: Vec::new(),
            bytes_max: None,
            rate_max_bps: None,
            lifetime_max_s: None,
            sip_from: Vec::new(),
        }
    }

    fn id(&self) -> Option<IssuerId> {
        IssuerPublic::from_bytes(&self.key).ok().map(|key| key.id())
    }

    fn refuses_service(&self, name: &str, target: IpAddr) -> Option<String> {
        if !self.services.is_empty() && !self.services.iter().any(|known| known == name) {
            return Some(format!("the service {name:?} is not in this frontend's [[issuer]] services"));
        }
        let may_open = self.may_open.is_empty() || self.may_open.iter().any(|prefix| prefix.contains(target));
        (!may_open).then(|| format!("{target} is not in this frontend's [[issuer]] may_open"))
    }

    fn refuses_grant(&self, unix: UnixTime, delta: &GrantDelta) -> Option<String> {
        let grant = &delta.grant;
        let opened = ports(grant.protocol, delta.target_ports);
        if !self.ports.is_empty()
            && !opened.is_some_and(|opened| self.ports.iter().any(|range| range.contains(&opened)))
        {
            return Some("the ports are not in this frontend's [[issuer]] ports".to_owned());
        }
        if self.bytes_max.is_some_and(|max| grant.bytes > max) {
            return Some(format!("{} bytes are more than this frontend's [[issuer]] bytes_max", grant.bytes));
        }
        // A rate of 0 in a grant is no limit.
        let rate_bps = u64::from(grant.rate_100kbps) * 100_000;
        if self.rate_max_bps.is_some_and(|max| rate_bps == 0 || rate_bps > max) {
            return Some("the rate is higher than this frontend's [[issuer]] rate".to_owned());
        }
        let latest = |max: u32| unix.plus_secs(u64::from(max) + SKEW_S);
        let too_long = self.lifetime_max_s.is_some_and(|max| grant.not_after > latest(max));
        too_long.then(|| "the grant lives longer than this frontend's [[issuer]] lifetime_s".to_owned())
    }
}

/// A service that the gate's own file describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnService {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Strangers' packets reach it (`default = "open"`).
    pub is_open: bool,
    /// It may start flows of its own (`outbound = "all"`).
    pub outbound_all: bool,
}

impl Config {
    /// Whether a frontend may announce this service, or why not. That nothing is needed to reach a service, or that it
    /// may reach everybody, is for the gate's own file to say.
    pub(crate) fn permits_service(&self, issuer: IssuerId, service: &FeedService) -> Result<(), String> {
        self.permits_target(issuer, &service.name, service.address)?;
        self.permits_openness(service)
    }

    /// Whether the gate's own file agrees to a service being open, or to its flows.
    pub(crate) fn permits_openness(&self, service: &FeedService) -> Result<(), String> {
        let own = self.own_services.iter().find(|own| own.name == service.name && own.address == service.address);
        let refusal = |setting: &str| {
            format!(
                "{setting} is only for the gate's own file to say: describe the service {:?} there too",
                service.name
            )
        };
        if service.default == ServiceDefault::Open && !own.is_some_and(|own| own.is_open) {
            return Err(refusal("default = \"open\""));
        }
        if service.outbound == Outbound::All && !own.is_some_and(|own| own.outbound_all) {
            return Err(refusal("outbound = \"all\""));
        }
        Ok(())
    }

    /// Whether a frontend may open this grant for this service, as it was announced, or why not.
    pub(crate) fn permits_grant(
        &self,
        unix: UnixTime,
        service: &FeedService,
        delta: &GrantDelta,
    ) -> Result<(), String> {
        let grant = &delta.grant;
        self.permits_target(grant.issuer, &delta.service, delta.target)?;
        if (delta.target, delta.mode) != (service.address, service.mode) {
            return Err(format!("the service {:?} was announced at {}", service.name, service.address));
        }
        let opened = ports(grant.protocol, delta.target_ports);
        if !opened.is_some_and(|opened| service.ports.iter().any(|range| range.contains(&opened))) {
            return Err(format!("the service {:?} was announced without these ports", service.name));
        }
        let refused = self.issuer(grant.issuer)?.and_then(|rule| rule.refuses_grant(unix, delta));
        refused.map_or(Ok(()), Err)
    }

    /// Whether a grant that was open before this start may still be open.
    pub(crate) fn still_permits(&self, unix: UnixTime, entry: &Entry, service: Option<&FeedService>) -> bool {
        let can_be = entry.delta.grant.check().is_ok();
        can_be && service.is_some_and(|service| self.permits_grant(unix, service, &entry.delta).is_ok())
    }

    /// Addresses from which a frontend relays SIP; `None`: that of its feed.
    pub(crate) fn sip_from(&self, issuer: IssuerId) -> Option<&[IpAddr]> {
        let rule = self.issuer(issuer).ok().flatten()?;
        (!rule.sip_from.is_empty()).then_some(&rule.sip_from)
    }

    fn permits_target(&self, issuer: IssuerId, name: &str, target: IpAddr) -> Result<(), String> {
        if !self.may_open(target) {
            return Err(format!("{target} is not in this gate's may_open"));
        }
        self.issuer(issuer)?.and_then(|rule| rule.refuses_service(name, target)).map_or(Ok(()), Err)
    }

    /// The rule of a frontend. Where any frontend has one, those without may do nothing.
    fn issuer(&self, issuer: IssuerId) -> Result<Option<&Issuer>, String> {
        if self.issuers.is_empty() {
            return Ok(None);
        }
        let rule = self.issuers.iter().find(|rule| rule.id() == Some(issuer));
        rule.map(Some).ok_or_else(|| "this gate's file has no [[issuer]] with this frontend's key".to_owned())
    }
}

/// The ports that a grant opens at its target; `None` for a protocol that services do not name.
fn ports(protocol: u8, (first, last): (u16, u16)) -> Option<PortRange> {
    let protocol = PortProtocol::from_number(protocol)?;
    Some(if protocol.has_ports() { PortRange { protocol, first, last } } else { PortRange::whole(protocol) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use sluicegate_grant::{Grant, IssuerKey};

    const NOW: UnixTime = UnixTime(1_000);

    fn key() -> IssuerPublic {
        IssuerKey::from_seed([5; 32]).public()
    }

    fn config(change: impl FnOnce(&mut Issuer)) -> Config {
        let mut config = Config::new("gate-1", "out", "in", "/nowhere");
        let mut rule = Issuer::any(key().to_bytes());
        change(&mut rule);
        config.issuers = vec![rule];
        config
    }

    /// What the gate says to a grant for UDP ports 5004-5005 of `web`.
    fn says(config: &Config, change: impl FnOnce(&mut Grant, &mut GrantDelta, &mut FeedService)) -> Result<(), String> {
        let mut grant = samples::grant(1);
        (grant.issuer, grant.bytes, grant.rate_100kbps) = (key().id(), 1_000_000, 20);
        (grant.not_before, grant.not_after) = (NOW, NOW.plus_secs(60));
        let (mut delta, mut service) = (samples::delta(grant.clone()), samples::service("web"));
        delta.target_ports = (5_004, 5_005);
        change(&mut grant, &mut delta, &mut service);
        delta.grant = grant;
        config.permits_grant(NOW, &service, &delta)
    }

    #[test]
    fn each_bound_of_an_issuer_is_the_last_that_passes() {
        let elsewhere = "10.9.0.0/16".parse::<Prefix>().unwrap();
        let cases: [(&str, Config, Config); 6] = [
            (
                "services",
                config(|rule| rule.services = vec!["web".into()]),
                config(|rule| rule.services = vec!["ssh".into()]),
            ),
            (
                "may_open",
                config(|rule| rule.may_open = vec![elsewhere, "10.0.0.0/24".parse().unwrap()]),
                config(|rule| rule.may_open = vec![elsewhere]),
            ),
            (
                "ports",
                config(|rule| rule.ports = vec!["udp/5000-5005".parse().unwrap()]),
                config(|rule| rule.ports = vec!["udp/5000-5004".parse().unwrap(), "tcp/1-65535".parse().unwrap()]),
            ),
            (
                "bytes_max",
                config(|rule| rule.bytes_max = Some(1_000_000)),
                config(|rule| rule.bytes_max = Some(999_999)),
            ),
            (
                "rate",
                config(|rule| rule.rate_max_bps = Some(2_000_000)),
                config(|rule| rule.rate_max_bps = Some(1_999_999)),
            ),
            (
                "lifetime_s",
                config(|rule| rule.lifetime_max_s = Some(58)),
                config(|rule| rule.lifetime_max_s = Some(57)),
            ),
        ];
        for (what, wide, narrow) in cases {
            assert_eq!(says(&wide, |_, _, _| {}), Ok(()), "{what}");
            assert!(says(&narrow, |_, _, _| {}).unwrap_err().contains(what), "{what}");
        }
        let unlimited = says(&config(|rule| rule.rate_max_bps = Some(u64::MAX)), |grant, _, _| grant.rate_100kbps = 0);
        assert!(unlimited.unwrap_err().contains("rate"), "no limit is above every limit");
    }

    #[test]
    fn a_grant_opens_what_its_service_was_announced_with_and_nothing_else() {
        let config = config(|_| {});
        let few = |service: &mut FeedService| service.ports = vec!["udp/5004-5005".parse().unwrap()];
        assert_eq!(says(&config, |_, _, service| few(service)), Ok(()));
        let wrong: [fn(&mut Grant, &mut GrantDelta); 4] = [
            |_, delta| delta.target_ports = (5_004, 5_006),
            |grant, _| grant.protocol = 6,
            |grant, _| grant.protocol = 132,
            |_, delta| delta.target = IpAddr::from([10, 0, 0, 99]),
        ];
        for change in wrong {
            let said = says(&config, |grant, delta, service| {
                few(service);
                change(grant, delta);
            });
            assert!(said.unwrap_err().contains("was announced"));
        }
        let other_mode = says(&config, |_, delta, _| delta.mode = sluicegate_policy::ServiceMode::Filter);
        assert!(other_mode.unwrap_err().contains("was announced"));
    }

    #[test]
    fn where_one_frontend_has_a_rule_others_may_do_nothing() {
        let config = config(|_| {});
        let stranger = says(&config, |grant, _, _| grant.issuer = [9; 8]);
        assert!(stranger.unwrap_err().contains("[[issuer]]"));
        assert!(config.permits_service([9; 8], &samples::service("web")).is_err());
        assert_eq!(config.permits_service(key().id(), &samples::service("web")), Ok(()));
    }

    #[test]
    fn only_the_gates_own_file_opens_a_service_or_lets_it_out() {
        let mut config = Config::new("gate-1", "out", "in", "/nowhere");
        let service = samples::service("web");
        let open = FeedService { default: ServiceDefault::Open, ..service.clone() };
        let outbound = FeedService { outbound: Outbound::All, ..service.clone() };
        for asked in [&open, &outbound] {
            assert!(config.permits_service([1; 8], asked).unwrap_err().contains("own file"));
        }
        let own =
            |is_open, outbound_all| OwnService { name: "web".into(), address: service.address, is_open, outbound_all };
        config.own_services = vec![own(true, false)];
        assert!(config.permits_service([1; 8], &open).is_ok() && config.permits_service([1; 8], &outbound).is_err());
        config.own_services = vec![own(false, true)];
        assert!(config.permits_service([1; 8], &open).is_err() && config.permits_service([1; 8], &outbound).is_ok());
        let elsewhere = FeedService { address: IpAddr::from([10, 0, 0, 99]), ..outbound };
        assert!(config.permits_service([1; 8], &elsewhere).is_err(), "the same name at another address");
    }
}
