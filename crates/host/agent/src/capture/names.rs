//! What the DNS says about captured names: their addresses, and whether their hosts speak capabilities.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use hickory_resolver::{
    ResolveError, TokioResolver,
    config::{NameServerConfig, ResolverConfig},
    name_server::TokioConnectionProvider,
    proto::xfer::Protocol,
};
use ipnet::IpNet;
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::{
    Carrying,
    destinations::NAME_ADDRESSES_MAX,
    orders::{Order, Orders},
};

/// A name is looked up again after its time to live, but not sooner than this...
const AGAIN_MIN: Duration = Duration::from_secs(30);
/// ...nor later than this.
const AGAIN_MAX: Duration = Duration::from_secs(300);
/// A name that could not be looked up is tried again after this.
const RETRY: Duration = Duration::from_secs(5);

/// Asks the DNS.
#[derive(Debug, Clone)]
pub(super) struct Names {
    resolver: TokioResolver,
}

impl Names {
    /// Asks `server`, or those of this host's `resolv.conf`.
    pub(super) fn new(server: Option<SocketAddr>) -> Result<Self, ResolveError> {
        let builder = match server {
            Some(server) => {
                let mut config = ResolverConfig::new();
                config.add_name_server(NameServerConfig::new(server, Protocol::Udp));
                config.add_name_server(NameServerConfig::new(server, Protocol::Tcp));
                TokioResolver::builder_with_config(config, TokioConnectionProvider::default())
            }
            None => TokioResolver::builder_tokio()?,
        };
        Ok(Self { resolver: builder.build() })
    }

    /// Keeps an entry's addresses, and what is known about them, as the DNS has them. Ends when nobody takes orders.
    /// `one` limits them to one address of each version; `known` hears of the first answer.
    pub(super) async fn follow(
        self,
        entry: usize,
        name: String,
        one: bool,
        orders: Orders,
        known: oneshot::Sender<()>,
    ) {
        let (mut had, mut known) = (None, Some(known));
        loop {
            let wait = match self.look_up(&name, one).await {
                Ok((prefixes, carrying, until)) => {
                    if had.as_ref() != Some(&(prefixes.clone(), carrying)) {
                        let addresses: Vec<String> = prefixes.iter().map(|prefix| prefix.addr().to_string()).collect();
                        info!(name, addresses = addresses.join(" "), carriage = ?carrying, "captured");
                    }
                    had = Some((prefixes.clone(), carrying));
                    let wait = until.saturating_duration_since(Instant::now()).clamp(AGAIN_MIN, AGAIN_MAX);
                    if !orders.send(Order::Named { entry, prefixes, carrying, lasts: wait + RETRY }) {
                        return;
                    }
                    if let Some(known) = known.take() {
                        let _ = known.send(());
                    }
                    wait
                }
                Err(error) => {
                    warn!(name, %error, "a captured name cannot be looked up; what it had stays captured");
                    RETRY
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn look_up(&self, name: &str, one: bool) -> Result<(Vec<IpNet>, Option<Carrying>, Instant), ResolveError> {
        // A final dot: the search list of resolv.conf has no say.
        let found = self.resolver.lookup_ip(format!("{name}.")).await?;
        let mut addresses: Vec<IpAddr> = found.iter().take(NAME_ADDRESSES_MAX).collect();
        if one {
            let first = |is_v4: bool| addresses.iter().copied().find(|address| address.is_ipv4() == is_v4);
            addresses = [first(true), first(false)].into_iter().flatten().collect();
        }
        addresses.sort_unstable();
        let record = match self.resolver.txt_lookup(format!("_sluicegate.{name}.")).await {
            Ok(record) => record.iter().find_map(|text| {
                let bytes: Vec<u8> = text.txt_data().iter().flat_map(|part| part.iter().copied()).collect();
                carrying(&String::from_utf8_lossy(&bytes))
            }),
            Err(error) => {
                debug!(name, %error, "no record; trial decides");
                None
            }
        };
        Ok((addresses.into_iter().map(IpNet::from).collect(), record, found.valid_until()))
    }
}

/// What a record `v=1 carriage=native|encapsulated` says; `None` if it is of another version or kind.
fn carrying(text: &str) -> Option<Carrying> {
    let mut words = text.split_ascii_whitespace();
    if words.next() != Some("v=1") {
        return None;
    }
    match words.find_map(|word| word.strip_prefix("carriage=")) {
        None | Some("native") => Some(Carrying::Native),
        Some("encapsulated") => Some(Carrying::Encapsulated),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_how_the_far_end_wants_its_header() {
        assert_eq!(carrying("v=1 carriage=native"), Some(Carrying::Native));
        assert_eq!(carrying("v=1 later=x carriage=encapsulated"), Some(Carrying::Encapsulated));
        assert_eq!(carrying("v=1"), Some(Carrying::Native));
        for other in ["", "v=2 carriage=native", "carriage=native", "v=1 carriage=pigeon", "v=spf1 -all"] {
            assert_eq!(carrying(other), None, "{other}");
        }
    }
}
