//! What a file's entries capture: prefixes, and the addresses that names have at the moment.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

/// Entries of one file.
pub const CAPTURES_MAX: usize = 256;
/// Addresses of one name that are captured; more are left alone.
pub(super) const NAME_ADDRESSES_MAX: usize = 16;

/// What an entry of the file captures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Addresses.
    Prefix(IpNet),
    /// Whatever addresses this name has in the DNS.
    Name(String),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Prefix(address.into()));
        }
        if text.contains('/') {
            let prefix: IpNet =
                text.parse().map_err(|_| format!("`{text}` is no prefix; write one such as 198.51.100.0/24"))?;
            if prefix != prefix.trunc() {
                return Err(format!("`{text}` has bits behind its prefix; write its first address"));
            }
            return Ok(Self::Prefix(prefix));
        }
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        // Digits and dots alone are a mistyped address.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if text.len() > 253 || is_number || !text.trim_end_matches('.').split('.').all(label) {
            return Err(format!("`{text}` is no address, prefix or name"));
        }
        Ok(Self::Name(text.trim_end_matches('.').to_ascii_lowercase()))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) if prefix.prefix_len() == prefix.max_prefix_len() => prefix.addr().fmt(f),
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Which entry an address belongs to: the one with the longest prefix.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    /// Longest prefix first.
    rows: Vec<(IpNet, usize)>,
}

impl Destinations {
    /// The entry that captures `address`.
    pub(super) fn find(&self, address: IpAddr) -> Option<usize> {
        self.rows.iter().find(|(prefix, _)| prefix.contains(&address)).map(|(_, entry)| *entry)
    }

    /// Sets what an entry captures; returns what no entry captured before, and what none does any more.
    pub(super) fn set(&mut self, entry: usize, prefixes: &[IpNet]) -> (Vec<IpNet>, Vec<IpNet>) {
        let before: Vec<IpNet> = self.prefixes();
        self.rows.retain(|(_, owner)| *owner != entry);
        self.rows.extend(prefixes.iter().map(|prefix| (*prefix, entry)));
        self.rows.sort_by_key(|(prefix, owner)| (std::cmp::Reverse(prefix.prefix_len()), *owner));
        let after = self.prefixes();
        let missing = |from: &[IpNet], of: &[IpNet]| of.iter().filter(|one| !from.contains(one)).copied().collect();
        (missing(&before, &after), missing(&after, &before))
    }

    /// All that is captured.
    pub(super) fn prefixes(&self) -> Vec<IpNet> {
        self.rows.iter().map(|(prefix, _)| *prefix).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> IpNet {
        match text.parse() {
            Ok(Destination::Prefix(prefix)) => prefix,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_destination_is_an_address_a_prefix_or_a_name() {
        assert_eq!(prefix("192.0.2.7"), "192.0.2.7/32".parse().unwrap());
        assert_eq!(prefix("2001:db8::/32").prefix_len(), 32);
        assert_eq!("Web.Example.NET.".parse(), Ok(Destination::Name("web.example.net".to_owned())));
        for wrong in ["", "192.0.2.7/24", "192.0.2.0/33", "192.0.2.300", "a..b", "a b", "::/x", "-/3"] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn prefixes_contain_their_addresses_and_no_others() {
        let contains = |text, address: &str| prefix(text).contains(&address.parse::<IpAddr>().unwrap());
        assert!(contains("192.0.2.0/25", "192.0.2.127") && !contains("192.0.2.0/25", "192.0.2.128"));
        assert!(contains("0.0.0.0/0", "203.0.113.9") && !contains("0.0.0.0/0", "::1") && !contains("::/0", "0.0.0.1"));
    }

    #[test]
    fn the_longest_prefix_captures_and_a_name_moves_with_its_addresses() {
        let mut captured = Destinations::default();
        let (added, gone) = captured.set(0, &[prefix("192.0.2.0/24")]);
        assert_eq!((added.len(), gone.len()), (1, 0));
        captured.set(1, &[prefix("192.0.2.7")]);
        assert_eq!(captured.find("192.0.2.7".parse().unwrap()), Some(1));
        assert_eq!(captured.find("192.0.2.8".parse().unwrap()), Some(0));
        let (added, gone) = captured.set(1, &[prefix("198.51.100.1")]);
        assert_eq!((added, gone), (vec![prefix("198.51.100.1")], vec![prefix("192.0.2.7")]));
        assert_eq!(captured.find("192.0.2.7".parse().unwrap()), Some(0));
        assert_eq!(captured.find("203.0.113.1".parse().unwrap()), None);
    }
}
