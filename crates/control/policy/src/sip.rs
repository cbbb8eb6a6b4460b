use core::{fmt, net::IpAddr, str::FromStr};

use sluicegate_sip::message::Transport;

use crate::{TextError, text::serde_as_text};

/// A way by which a SIP server takes SIP. Text form: `udp/5060`, `tcp/5060`, `tls/5061`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SipPort {
    /// What carries the messages.
    pub transport: Transport,
    /// Where it listens, 1 to 65535.
    pub port: u16,
}

impl fmt::Display for SipPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.transport.param(), self.port)
    }
}

impl FromStr for SipPort {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let read = || {
            let (transport, port) = text.split_once('/')?;
            Some(Self { transport: Transport::named(transport.as_bytes())?, port: port.parse().ok()? })
        };
        let is_right = |read: &Self| read.port != 0 && read.to_string() == text;
        read()
            .filter(is_right)
            .ok_or_else(|| TextError::new(text, "way to take SIP", "write \"udp/5060\", \"tcp/5060\" or \"tls/5061\""))
    }
}

serde_as_text!(SipPort, "a way to take SIP such as \"udp/5060\", \"tcp/5060\" or \"tls/5061\"");

/// The certificate by which a SIP server is known over TLS. Text form: a name that stands in it, `pbx.example.net` or an
/// address; or `sha256:` and the SHA-256 of it (DER) in hexadecimal digits, with or without colons.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SipCertificate {
    /// One for this name, of an authority that the frontend believes.
    Name(String),
    /// This one, whoever signed it and whatever stands in it.
    Sha256([u8; 32]),
}

/// Longest name in a certificate, in bytes (RFC 1035 section 2.3.4).
const NAME_LEN_MAX: usize = 253;
const SHA256: &str = "sha256:";

impl SipCertificate {
    /// The one of a server that is known by nothing but its address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self::Name(address.to_string())
    }
}

impl fmt::Display for SipCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Sha256(hash) => {
                f.write_str(SHA256)?;
                hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for SipCertificate {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let hint = "write the name in it, such as \"pbx.example.net\", or \"sha256:\" and its fingerprint";
        let wrong = || TextError::new(text, "certificate", hint);
        if let Some(digits) = text.strip_prefix(SHA256) {
            let hash = sha256(digits).ok_or_else(wrong)?;
            return Ok(Self::Sha256(hash));
        }
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_address = text.parse::<IpAddr>().is_ok();
        let is_name = (1..=NAME_LEN_MAX).contains(&text.len()) && text.bytes().all(is_name_byte);
        if is_address || is_name { Ok(Self::Name(text.to_ascii_lowercase())) } else { Err(wrong()) }
    }
}

/// 64 hexadecimal digits, two by two, with or without colons between.
fn sha256(digits: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b':').collect();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes = digits.chunks(2).map(|pair| match *pair {
        [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
        _ => None,
    });
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

serde_as_text!(SipCertificate, "a name such as \"pbx.example.net\", or \"sha256:\" and a certificate's fingerprint");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_take_sip_are_read_back_and_others_refused_with_an_example() {
        for text in ["udp/5060", "tcp/5060", "tls/5061"] {
            assert_eq!(text.parse::<SipPort>().unwrap().to_string(), text);
        }
        for text in
            ["", "5060", "udp", "udp/", "udp/0", "udp/+1", "udp/70000", "UDP/5060", "sctp/5060", "tcp/5060-5061"]
        {
            let error = text.parse::<SipPort>().unwrap_err().to_string();
            assert!(error.contains("\"tcp/5060\""), "{text}: {error}");
        }
    }

    #[test]
    fn certificates_are_named_or_pinned() {
        for text in ["pbx.example.net", "10.4.0.2", "fd00::1"] {
            let read: SipCertificate = text.parse().unwrap();
            assert_eq!((read.to_string().as_str(), read), (text, SipCertificate::Name(text.into())));
        }
        let plain = format!("sha256:{}", "0a".repeat(32));
        let as_openssl_prints_it = format!("sha256:{}", ["0A"; 32].join(":"));
        for text in [&plain, &as_openssl_prints_it] {
            let read: SipCertificate = text.parse().unwrap();
            assert_eq!((read.to_string(), read), (plain.clone(), SipCertificate::Sha256([10; 32])));
        }
        for text in ["", "a b", "sha256:", "sha256:0a", &format!("sha256:{}", "zz".repeat(32)), &"a".repeat(254)] {
            assert!(text.parse::<SipCertificate>().unwrap_err().to_string().contains("pbx.example.net"), "{text}");
        }
    }
}
