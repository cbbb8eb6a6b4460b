use core::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sluicegate_sip::message::Transport;

use crate::{NAME_LEN_MAX, PerUser, SipCertificate, TextError, User, text::serde_as_text};

/// Addresses with the same beginning. Text form: `192.0.2.0/24`, `2001:db8::/32`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(IpNet);

impl Network {
    /// Whether `address` lies in it; never across address families.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Whether an address lies in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.contains(&other.0) || other.0.contains(&self.0)
    }

    /// Its first address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.0.network()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

impl FromStr for Network {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let bare = |_| text.parse::<IpAddr>().map(IpNet::from);
        let wrong =
            || TextError::new(text, "address prefix", "write \"192.0.2.0/24\", \"2001:db8::/32\" or one address");
        text.parse::<IpNet>().or_else(bare).map(|network| Self(network.trunc())).map_err(|_| wrong())
    }
}

serde_as_text!(Network, "an address prefix such as \"192.0.2.0/24\", or one address");

/// Where a peer takes SIP. Text form: `tls/198.51.100.40:5061`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SipTarget {
    /// What carries the messages.
    pub transport: Transport,
    /// Where it listens.
    pub address: SocketAddr,
}

impl fmt::Display for SipTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.transport.param(), self.address)
    }
}

impl FromStr for SipTarget {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let read = || {
            let (transport, address) = text.split_once('/')?;
            let transport = Transport::named(transport.as_bytes()).filter(|known| known.param() == transport)?;
            Some(Self { transport, address: address.parse().ok()? })
        };
        read().ok_or_else(|| TextError::new(text, "place to call a peer at", "write \"tls/198.51.100.40:5061\""))
    }
}

serde_as_text!(SipTarget, "a place to call a peer at, such as \"tls/198.51.100.40:5061\"");

/// What stands before a peer's name where users are named as well. No user's name has a colon.
const PARTY: &str = "peer:";

/// A carrier, or a PBX elsewhere, that calls services and is called by them: known by its addresses and its certificate. In
/// configuration: `[[peer]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SipPeer {
    /// The name, in rules `peer:NAME`.
    pub name: String,
    /// Where it connects from.
    pub addresses: Vec<Network>,
    /// The certificate that it shows; nothing without.
    #[serde(default)]
    pub certificate: Option<SipCertificate>,
    /// Where it is called; without it only calls us.
    #[serde(default)]
    pub sip: Option<SipTarget>,
    /// What services dial to reach it: whole names, or with `*` at the end how they begin.
    #[serde(default)]
    pub numbers: Vec<String>,
    /// Who it may say that calls, in the same form.
    #[serde(default = "callers_default")]
    pub callers: Vec<String>,
    /// Where its media come from; `addresses` if empty.
    #[serde(default)]
    pub media: Vec<Network>,
    /// Calls at once, both ways together.
    #[serde(default = "calls_default")]
    pub calls_max: u32,
    /// Calls a second each way, and twice that at once.
    #[serde(default = "rate_default")]
    pub calls_per_s: u32,
}

fn callers_default() -> Vec<String> {
    vec!["+*".to_owned()]
}

const fn calls_default() -> u32 {
    30
}

const fn rate_default() -> u32 {
    10
}

impl SipPeer {
    /// The peer with this name among callers of all kinds.
    #[must_use]
    pub fn name_of(party: &str) -> Option<&str> {
        party.strip_prefix(PARTY)
    }

    /// What it goes by where users are named as well.
    #[must_use]
    pub fn party(&self) -> String {
        [PARTY, &self.name].concat()
    }

    /// As a user whom no password lets in.
    pub(crate) fn to_user(&self) -> User {
        User::new(&self.party())
    }

    /// Whether it connects from here.
    #[must_use]
    pub fn is_at(&self, address: IpAddr) -> bool {
        let is_called_there = self.sip.is_some_and(|sip| sip.address.ip() == address.to_canonical());
        is_called_there || self.addresses.iter().any(|network| network.contains(address))
    }

    /// Where its media come from.
    #[must_use]
    pub fn media(&self) -> &[Network] {
        if self.media.is_empty() { &self.addresses } else { &self.media }
    }

    /// Whether its media may come from here.
    #[must_use]
    pub fn has_media_at(&self, address: IpAddr) -> bool {
        self.media().iter().any(|network| network.contains(address))
    }

    /// How well what a service dials fits one of its numbers, if it can be called.
    #[must_use]
    pub fn answers_to(&self, dialled: &str) -> Option<usize> {
        fit(&self.numbers, dialled).filter(|_| self.sip.is_some() && is_plain(dialled))
    }

    /// Whether it may say that this is who calls.
    #[must_use]
    pub fn may_speak_for(&self, caller: &str) -> bool {
        is_plain(caller) && fit(&self.callers, caller).is_some()
    }

    /// What all its calls may hold together: each as much as one user.
    #[must_use]
    pub const fn share(&self, of_one: &PerUser) -> PerUser {
        of_one.times(self.calls_max)
    }
}

/// Whether it stands in a SIP URI as it is, and is not nothing.
fn is_plain(name: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+*".contains(&byte))
}

/// How well what was dialled fits one of these numbers: the longer the part that is the same, the better.
pub(crate) fn fit(numbers: &[String], dialled: &str) -> Option<usize> {
    let fit = |number: &String| match number.strip_suffix('*') {
        Some(beginning) => dialled.starts_with(beginning).then_some(beginning.len()),
        None => (number == dialled).then_some(usize::MAX),
    };
    numbers.iter().filter_map(fit).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_targets_are_read_back_and_others_refused_with_an_example() {
        for text in ["192.0.2.0/24", "2001:db8::/32", "192.0.2.7", "2001:db8::7"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        assert_eq!("192.0.2.7/24".parse::<Network>().unwrap().to_string(), "192.0.2.0/24");
        for text in ["", "carrier.example", "192.0.2.0/33", "192.0.2"] {
            assert!(text.parse::<Network>().unwrap_err().to_string().contains("192.0.2.0/24"), "{text}");
        }
        for text in ["tls/198.51.100.40:5061", "udp/[2001:db8::7]:5060"] {
            assert_eq!(text.parse::<SipTarget>().unwrap().to_string(), text);
        }
        for text in ["", "tls/5061", "tls/carrier.example:5061", "TLS/198.51.100.40:5061", "198.51.100.40:5061"] {
            assert!(text.parse::<SipTarget>().unwrap_err().to_string().contains("tls/198.51.100.40:5061"), "{text}");
        }
    }

    #[test]
    fn a_network_holds_its_own_family_and_addresses_written_the_other_way() {
        let network: Network = "192.0.2.0/24".parse().unwrap();
        for (address, is_in) in [("192.0.2.9", true), ("::ffff:192.0.2.9", true), ("192.0.3.9", false), ("::1", false)]
        {
            assert_eq!(network.contains(address.parse().unwrap()), is_in, "{address}");
        }
    }
}
