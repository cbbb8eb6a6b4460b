//! The header as it lies in a packet.

use core::fmt;

use super::{
    Algorithm, CAPABILITIES_MAX, Capability, CapabilityList, ClientId, FlowNonce, Kind, Limits, MALFORMED, NONCE_LEN,
    NOTICE_LEN, PROTOCOL, PathId, Return, regular_len, request_len, return_len,
};
use crate::{
    IpProtocol, Reason,
    field::{array, packet_view, put, u8_at, u16_at},
};

pub(super) const DEMOTED: u8 = 0b1000;
pub(super) const RETURN: u8 = 0b0100;
const KIND: u8 = 0b0011;

pub(super) const UPPER_AT: usize = 1;
pub(super) const SLOTS_AT: usize = 12;
pub(super) const SLOT_LEN: usize = 10;
pub(super) const NONCE_AT: usize = 2;
pub(super) const CLIENT_ID_AT: usize = 8;
pub(super) const LIMITS_AT: usize = 14;
pub(super) const LIST_AT: usize = 16;
pub(super) const CAPABILITY_LEN: usize = 8;
/// Where a request says how many slots it has; the pointer follows.
pub(super) const REQUEST_COUNT_AT: usize = 2;
/// Where a regular header says how many capabilities it has; the pointer follows.
pub(super) const REGULAR_COUNT_AT: usize = 12;
/// Where the capabilities of return information start, from its first byte.
pub(super) const RETURN_LIST_AT: usize = 4;

/// Return information: the sender's packets were demoted.
pub(super) const RETURN_DEMOTED: u8 = 1;
/// Return information: a list of capabilities follows.
pub(super) const RETURN_LIST: u8 = 2;

packet_view! {
    /// A capability header at the start of the buffer; what lies behind it belongs to no accessor.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Packet {
        /// The protocol that follows the header.
        upper_protocol: IpProtocol = UPPER_AT;
        /// The client.
        client_id: ClientId = CLIENT_ID_AT;
    }
}

/// Where the parts of a valid header end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Where the return information starts, if there is any.
    pub(super) return_at: usize,
    /// Header and return information, in bytes.
    pub(super) len: usize,
}

impl Layout {
    /// Checks the whole header: the only place that decides what is valid. Reads each field once.
    #[inline]
    pub(super) fn of(bytes: &[u8]) -> Result<Self, Reason> {
        let fixed: &[u8; NONCE_LEN] = bytes.first_chunk().ok_or(MALFORMED)?;
        if !matches!(fixed[0] >> 4, 1 | 2) || !may_follow(IpProtocol(fixed[UPPER_AT])) {
            return Err(MALFORMED);
        }
        let return_at = match Kind::from_low_bits(fixed[0]) {
            Kind::Nonce => NONCE_LEN,
            Kind::Request => {
                let (count, pointer) = (fixed[REQUEST_COUNT_AT], fixed[REQUEST_COUNT_AT + 1]);
                request_len(checked_count(count, pointer)?)
            }
            Kind::Capabilities | Kind::Renewal => {
                let [count, pointer, limits @ ..] =
                    *bytes.get(REGULAR_COUNT_AT..).and_then(|rest| rest.first_chunk::<4>()).ok_or(MALFORMED)?;
                if count == 0 || Limits::from_bits(u16::from_be_bytes(limits)).is_none() {
                    return Err(MALFORMED);
                }
                regular_len(checked_count(count, pointer)?)
            }
        };
        let len = if fixed[0] & RETURN == 0 {
            return_at
        } else {
            return_at + checked_return_len(bytes.get(return_at..).unwrap_or_default())?
        };
        if bytes.len() < len { Err(MALFORMED) } else { Ok(Self { return_at, len }) }
    }
}

#[inline]
fn checked_count(count: u8, pointer: u8) -> Result<usize, Reason> {
    if usize::from(count) > CAPABILITIES_MAX || pointer > count { Err(MALFORMED) } else { Ok(usize::from(count)) }
}

fn checked_return_len(bytes: &[u8]) -> Result<usize, Reason> {
    match *bytes.first().ok_or(MALFORMED)? {
        RETURN_DEMOTED => Ok(NOTICE_LEN),
        kind if kind & !RETURN_DEMOTED == RETURN_LIST => {
            let [_, count, limits @ ..] = *bytes.first_chunk::<RETURN_LIST_AT>().ok_or(MALFORMED)?;
            let bits = u16::from_be_bytes(limits);
            let refused = count == 0 && bits == 0;
            if !refused && Limits::from_bits(bits).is_none() {
                return Err(MALFORMED);
            }
            Ok(return_len(checked_count(count, 0)?))
        }
        _ => Err(MALFORMED),
    }
}

/// Whether this may follow a capability header. No second one, and no IPv6 extension header: what a router cannot see
/// without walking, such as a source route, must not appear once the header is taken out.
#[inline]
pub(super) const fn may_follow(upper: IpProtocol) -> bool {
    !matches!(
        upper,
        PROTOCOL
            | IpProtocol::HOP_BY_HOP
            | IpProtocol::IPV6_ROUTE
            | IpProtocol::IPV6_FRAGMENT
            | IpProtocol::AUTHENTICATION
            | IpProtocol::DESTINATION_OPTIONS
    )
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether the header, return information included, is whole and valid. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::CapabilityHeader`] for another version, more than 8 capabilities, a pointer behind the list, N or T
    /// of zero, an upper protocol that cannot follow, unknown return information, or a buffer that ends too soon.
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        Layout::of(self.bytes()).map(|_| ())
    }

    /// The version: how the capabilities were hashed.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        Algorithm::from_version(u8_at(self.bytes(), 0) >> 4).unwrap_or_default()
    }

    /// What the header is for.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::from_low_bits(u8_at(self.bytes(), 0) & KIND)
    }

    /// Whether a router found the packet's capabilities wanting.
    #[inline]
    pub fn is_demoted(&self) -> bool {
        u8_at(self.bytes(), 0) & DEMOTED != 0
    }

    /// Whether return information follows.
    #[inline]
    pub fn has_return_info(&self) -> bool {
        u8_at(self.bytes(), 0) & RETURN != 0
    }

    /// The flow nonce of a regular packet; zero in a request.
    #[inline]
    pub fn nonce(&self) -> FlowNonce {
        match self.kind() {
            Kind::Request => FlowNonce::default(),
            _ => FlowNonce(u64::from_be_bytes(array(self.bytes(), 0)) & FlowNonce::MASK),
        }
    }

    /// How many slots the request has, or how many capabilities the regular packet carries.
    #[inline]
    pub fn count(&self) -> u8 {
        self.count_at().map_or(0, |at| u8_at(self.bytes(), at))
    }

    /// The next slot to fill, or the next capability to check: 0 to [`Self::count`].
    #[inline]
    pub fn pointer(&self) -> u8 {
        self.count_at().map_or(0, |at| u8_at(self.bytes(), at + 1))
    }

    #[inline]
    fn count_at(&self) -> Option<usize> {
        match self.kind() {
            Kind::Request => Some(REQUEST_COUNT_AT),
            Kind::Capabilities | Kind::Renewal => Some(REGULAR_COUNT_AT),
            Kind::Nonce => None,
        }
    }

    /// N and T of a packet that carries capabilities.
    #[inline]
    pub fn limits(&self) -> Option<Limits> {
        if self.kind().has_list() { Limits::from_bits(u16_at(self.bytes(), LIMITS_AT)) } else { None }
    }

    /// The capability at `index`; of a request, what its slot holds, filled or not. `None` behind the last.
    #[inline]
    pub fn capability(&self, index: usize) -> Option<Capability> {
        let at = self.capability_at(index)?;
        Some(Capability(u64::from_be_bytes(array(self.bytes(), at))))
    }

    #[inline]
    fn capability_at(&self, index: usize) -> Option<usize> {
        if index >= usize::from(self.count()).min(CAPABILITIES_MAX) {
            return None;
        }
        Some(match self.kind() {
            Kind::Request => request_len(index) + 2,
            _ => regular_len(index),
        })
    }

    /// The path identifier in a request's slot. `None` behind the last, and in all other packets.
    #[inline]
    pub fn path_id(&self, index: usize) -> Option<PathId> {
        let is_slot = self.kind() == Kind::Request && index < usize::from(self.count()).min(CAPABILITIES_MAX);
        is_slot.then(|| PathId(u16_at(self.bytes(), request_len(index))))
    }

    /// Header and return information, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        Layout::of(self.bytes()).map_or(0, |layout| layout.len)
    }

    /// What the packet tells its destination about packets of the other direction.
    pub fn return_info(&self) -> Option<Return> {
        if !self.has_return_info() {
            return None;
        }
        let bytes = self.bytes();
        let return_info = bytes.get(Layout::of(bytes).ok()?.return_at..)?;
        let kind = u8_at(return_info, 0);
        let list = (kind & RETURN_LIST != 0).then(|| {
            let (capabilities, _) = return_info.get(RETURN_LIST_AT..).unwrap_or_default().as_chunks();
            let count = usize::from(u8_at(return_info, 1));
            let list: CapabilityList =
                capabilities.iter().take(count).map(|chunk| Capability(u64::from_be_bytes(*chunk))).collect();
            (Limits::from_bits(u16_at(return_info, 2)), list)
        });
        Some(Return { demoted: kind & RETURN_DEMOTED != 0, list })
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Marks the packet as demoted, or not.
    #[inline]
    pub fn set_demoted(&mut self, demoted: bool) {
        let rest = u8_at(self.bytes(), 0) & !DEMOTED;
        put(self.buffer.as_mut(), 0, &[if demoted { rest | DEMOTED } else { rest }]);
    }

    /// Writes the capability at `index`; no change behind the last.
    #[inline]
    pub fn set_capability(&mut self, index: usize, capability: Capability) {
        if let Some(at) = self.capability_at(index) {
            put(self.buffer.as_mut(), at, &capability.0.to_be_bytes());
        }
    }

    /// Writes the path identifier of a request's slot; no change behind the last and in all other packets.
    #[inline]
    pub fn set_path_id(&mut self, index: usize, path_id: PathId) {
        if self.path_id(index).is_some() {
            put(self.buffer.as_mut(), request_len(index), &path_id.0.to_be_bytes());
        }
    }

    /// Writes the pointer; more than [`Self::count`] becomes that. No change in a packet with only a nonce.
    #[inline]
    pub fn set_pointer(&mut self, pointer: u8) {
        let pointer = pointer.min(self.count());
        if let Some(at) = self.count_at() {
            put(self.buffer.as_mut(), at + 1, &[pointer]);
        }
    }

    /// Writes `bytes` at `at`, for [`super::Repr::emit`].
    #[inline]
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        put(self.buffer.as_mut(), at, bytes);
    }
}

/// Shows what the header is, and no capability or nonce.
impl<T: AsRef<[u8]>> fmt::Debug for Packet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.check_len().is_err() {
            return f.write_str("Packet(invalid)");
        }
        f.debug_struct("Packet")
            .field("algorithm", &self.algorithm())
            .field("kind", &self.kind())
            .field("demoted", &self.is_demoted())
            .field("upper_protocol", &self.upper_protocol())
            .field("client_id", &self.client_id())
            .field("count", &self.count())
            .field("pointer", &self.pointer())
            .field("limits", &self.limits())
            .finish_non_exhaustive()
    }
}
