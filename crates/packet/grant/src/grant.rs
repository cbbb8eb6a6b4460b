use core::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use sluicegate_wire::{UnixTime, ip::octets};

use crate::{GrantId, ISSUER_ID_LEN};

/// The grant format described here.
pub const GRANT_VERSION: u8 = 1;
/// Length in bytes of an encoded grant without its signature.
pub const GRANT_LEN: usize = 136;
/// The client port range that stands for any port.
pub const ANY_PORTS: (u16, u16) = (0, u16::MAX);

/// The weakest data mode that a grant's packets may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum DataMode {
    /// Client address and gate ports are the proof; needs no client software.
    Pinhole = 0,
    /// Every packet carries a trailer with a tag under the session key.
    Mac = 1,
    /// Every packet carries a capability that routers on the path check too.
    Capability = 2,
}

impl DataMode {
    /// The mode with this code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Pinhole),
            1 => Some(Self::Mac),
            2 => Some(Self::Capability),
            _ => None,
        }
    }

    /// The mode with this name.
    #[must_use]
    pub fn from_label(label: &str) -> Option<Self> {
        [Self::Pinhole, Self::Mac, Self::Capability].into_iter().find(|mode| mode.label() == label)
    }

    /// The name in configuration, logs and documentation.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pinhole => "pinhole",
            Self::Mac => "mac",
            Self::Capability => "capability",
        }
    }
}

/// Why a grant has ended at a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EndCause {
    /// Its time was over.
    Expired,
    /// Its budget was spent. The pinhole stays until it expires, and a renewal refills it.
    Spent,
    /// Somebody revoked it.
    Revoked,
}

impl fmt::Display for DataMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The IP protocol numbers that a grant may name: all but those of IPv6 extension headers and of capability headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;

    /// Whether a grant may name this protocol for a client of this address family.
    const fn fits(self, ipv4: bool) -> bool {
        match self.0 {
            0 | 43 | 44 | 59 | 60 | 253 | 255 => false,
            Self::ICMP => ipv4,
            Self::ICMPV6 => !ipv4,
            _ => true,
        }
    }
}

/// The client proves to the gate which address its packets come from, with a packet under the session key. Until it has,
/// no packet may come from anywhere.
pub const FLAG_PROVES_ADDRESS: u8 = 1;

/// Signed permission, version 1: one user's client may send one protocol to one port range of one gate, N bytes until T.
///
/// Encoded as 136 bytes, big-endian, IPv4 addresses as IPv4-mapped IPv6 addresses:
/// `version 1 | flags 1 | least mode 1 | protocol 1 | grant id 16 | issuer 8 | epoch 4 | not before 4 | not after 4 |
/// bytes 8 | client id 4 | flows 2 | rate 2 | client address 16 | client ports 2+2 | gate address 16 | gate ports 2+2 |
/// holder key 32 | user pseudonym 8`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grant {
    /// [`FLAG_PROVES_ADDRESS`] or 0. A grant with an unknown flag is refused, not half understood.
    pub flags: u8,
    /// The weakest data mode that its packets may use.
    pub least_mode: DataMode,
    /// IP protocol number, see [`Protocol`].
    pub protocol: u8,
    /// Its name.
    pub id: GrantId,
    /// Who signed it: the first 8 bytes of SHA-256 of the issuer's public key.
    pub issuer: [u8; ISSUER_ID_LEN],
    /// Epoch of the user secret that the user proved, see [`crate::epoch`].
    pub epoch: u32,
    /// First second in which it is valid.
    pub not_before: UnixTime,
    /// First second in which it is no longer valid.
    pub not_after: UnixTime,
    /// Budget N: IP bytes from client to service. Never 0.
    pub bytes: u64,
    /// The client's id in capability headers; 0: no capabilities.
    pub client_id: u32,
    /// Flows that may be open at once; 0: the gate's default.
    pub flows: u16,
    /// Rate limit from client to service in units of 100 kbit/s; 0: no limit but the budget.
    pub rate_100kbps: u16,
    /// The one address that packets may come from. With [`FLAG_PROVES_ADDRESS`] only where its client signed in from.
    pub client_address: IpAddr,
    /// First and last port that packets may come from; [`ANY_PORTS`] for any.
    pub client_ports: (u16, u16),
    /// The gate's address that packets go to; unspecified until the gate has chosen it.
    pub gate_address: IpAddr,
    /// First and last gate port that packets go to; `(0, 0)` until the gate has chosen them.
    pub gate_ports: (u16, u16),
    /// Ed25519 key of the agent that may use this at other gates; zero for phones, which have none.
    pub holder: [u8; 32],
    /// Who it was given to, without the name.
    pub user_pseudonym: [u8; 8],
}

/// Why bytes are no valid grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// Not exactly 136 bytes.
    #[error("a grant is 136 bytes long, this has {0}")]
    Length(usize),
    /// Another format version.
    #[error("grant version {0} is unknown; this node understands version 1, upgrade it")]
    Version(u8),
    /// A flag that this version does not define.
    #[error("grant flags {0:#04x} are unknown; upgrade this node")]
    Flags(u8),
    /// A data mode that this version does not define.
    #[error("grant names the unknown data mode {0}; upgrade this node")]
    Mode(u8),
    /// A protocol that grants cannot open, or one of the other address family.
    #[error("grant names IP protocol {0}, which cannot be opened for this address family")]
    Protocol(u8),
    /// The validity has no length.
    #[error("grant ends before it begins")]
    Validity,
    /// A budget of no bytes.
    #[error("grant has a budget of 0 bytes")]
    Budget,
    /// A port range whose last port comes before its first.
    #[error("grant has a port range that ends before it begins")]
    Ports,
    /// A client address that is no unicast address.
    #[error("grant names a client address that is not a unicast address")]
    ClientAddress,
    /// A gate address that is multicast or broadcast.
    #[error("grant names a gate address that is not a unicast address")]
    GateAddress,
    /// Client and gate addresses of different families; there is one grant per family.
    #[error("grant mixes IPv4 and IPv6 addresses")]
    AddressFamily,
}

impl Grant {
    /// Whether the client's address is the one that it proves to the gate.
    #[must_use]
    pub const fn proves_address(&self) -> bool {
        self.flags & FLAG_PROVES_ADDRESS != 0
    }

    /// The 136 bytes that are signed. Times past the year 2106 become the last second that fits.
    #[must_use]
    pub fn encode(&self) -> [u8; GRANT_LEN] {
        let mut body = [0; GRANT_LEN];
        let mut writer = Writer { body: &mut body, at: 0 };
        writer.put(&[GRANT_VERSION, self.flags, self.least_mode as u8, self.protocol]);
        writer.put(&self.id.0);
        writer.put(&self.issuer);
        writer.put(&self.epoch.to_be_bytes());
        writer.put(&seconds(self.not_before));
        writer.put(&seconds(self.not_after));
        writer.put(&self.bytes.to_be_bytes());
        writer.put(&self.client_id.to_be_bytes());
        writer.put(&self.flows.to_be_bytes());
        writer.put(&self.rate_100kbps.to_be_bytes());
        writer.put(&octets(self.client_address));
        writer.put_ports(self.client_ports);
        writer.put(&octets(self.gate_address));
        writer.put_ports(self.gate_ports);
        writer.put(&self.holder);
        writer.put(&self.user_pseudonym);
        debug_assert_eq!(writer.at, GRANT_LEN);
        body
    }

    /// Reads and validates an encoded grant.
    ///
    /// # Errors
    /// Says which field cannot be what it is; an accepted grant encodes to the same bytes again.
    pub fn decode(bytes: &[u8]) -> Result<Self, GrantError> {
        let grant = Self::read(bytes)?;
        grant.check()?;
        Ok(grant)
    }

    /// Reads an encoded grant whose fields need not agree with each other: [`Self::check`] says whether they do.
    ///
    /// # Errors
    /// If it is of another length, version or data mode than this node knows.
    pub fn read(bytes: &[u8]) -> Result<Self, GrantError> {
        let body: &[u8; GRANT_LEN] = bytes.try_into().map_err(|_| GrantError::Length(bytes.len()))?;
        let mut reader = Reader { body, at: 0 };
        let [version, flags, mode, protocol] = reader.take();
        if version != GRANT_VERSION {
            return Err(GrantError::Version(version));
        }
        let grant = Self {
            flags,
            least_mode: DataMode::from_code(mode).ok_or(GrantError::Mode(mode))?,
            protocol,
            id: GrantId(reader.take()),
            issuer: reader.take(),
            epoch: u32::from_be_bytes(reader.take()),
            not_before: UnixTime(u32::from_be_bytes(reader.take()).into()),
            not_after: UnixTime(u32::from_be_bytes(reader.take()).into()),
            bytes: u64::from_be_bytes(reader.take()),
            client_id: u32::from_be_bytes(reader.take()),
            flows: u16::from_be_bytes(reader.take()),
            rate_100kbps: u16::from_be_bytes(reader.take()),
            client_address: canonical(reader.take()),
            client_ports: reader.take_ports(),
            gate_address: canonical(reader.take()),
            gate_ports: reader.take_ports(),
            holder: reader.take(),
            user_pseudonym: reader.take(),
        };
        debug_assert_eq!(reader.at, GRANT_LEN);
        Ok(grant)
    }

    /// Whether the fields agree with each other, as [`Self::decode`] demands of every grant.
    ///
    /// # Errors
    /// The first field that cannot be what it is.
    pub fn check(&self) -> Result<(), GrantError> {
        if self.flags & !FLAG_PROVES_ADDRESS != 0 {
            return Err(GrantError::Flags(self.flags));
        }
        if self.client_address.is_ipv4() != self.gate_address.is_ipv4() {
            return Err(GrantError::AddressFamily);
        }
        if !Protocol(self.protocol).fits(self.client_address.is_ipv4()) {
            return Err(GrantError::Protocol(self.protocol));
        }
        if self.not_before >= self.not_after {
            return Err(GrantError::Validity);
        }
        if self.bytes == 0 {
            return Err(GrantError::Budget);
        }
        if self.client_ports.0 > self.client_ports.1 || self.gate_ports.0 > self.gate_ports.1 {
            return Err(GrantError::Ports);
        }
        if self.client_address.is_unspecified() || is_group(self.client_address) {
            return Err(GrantError::ClientAddress);
        }
        if is_group(self.gate_address) {
            return Err(GrantError::GateAddress);
        }
        Ok(())
    }
}

struct Writer<'a> {
    body: &'a mut [u8; GRANT_LEN],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.body[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn put_ports(&mut self, (first, last): (u16, u16)) {
        self.put(&first.to_be_bytes());
        self.put(&last.to_be_bytes());
    }
}

/// Reads fields in order. The body's length is fixed and so is the sum of the fields, so no read can pass its end.
struct Reader<'a> {
    body: &'a [u8; GRANT_LEN],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.body[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn take_ports(&mut self) -> (u16, u16) {
        (u16::from_be_bytes(self.take()), u16::from_be_bytes(self.take()))
    }
}

fn seconds(time: UnixTime) -> [u8; 4] {
    u32::try_from(time.0).unwrap_or(u32::MAX).to_be_bytes()
}

fn canonical(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
