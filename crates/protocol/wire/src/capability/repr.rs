//! The header as a value.

use super::{
    Algorithm, CAPABILITIES_MAX, Capability, CapabilityList, ClientId, FlowNonce, Kind, Limits, MALFORMED, NONCE_LEN,
    NOTICE_LEN, Packet, Slot, SlotList,
    packet::{
        CLIENT_ID_AT, DEMOTED, LIMITS_AT, NONCE_AT, REGULAR_COUNT_AT, REQUEST_COUNT_AT, RETURN, RETURN_DEMOTED,
        RETURN_LIST, RETURN_LIST_AT,
    },
    regular_len, request_len, return_len,
};
use crate::{IpProtocol, Reason};

/// What a packet tells its destination about packets of the other direction. At least one of the two is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Return {
    /// A packet arrived demoted: the destination's routers must be shown capabilities again.
    pub demoted: bool,
    /// The answer to a request or renewal. An empty list refuses; any other one comes with its N and T.
    pub list: Option<(Option<Limits>, CapabilityList)>,
}

impl Return {
    /// Capabilities, each sealed with these limits.
    #[must_use]
    pub const fn granted(limits: Limits, list: CapabilityList) -> Self {
        Self { demoted: false, list: Some((Some(limits), list)) }
    }

    /// The refusal of a request.
    #[must_use]
    pub fn refused() -> Self {
        Self { demoted: false, list: Some((None, CapabilityList::new())) }
    }

    /// The notice that a packet arrived demoted.
    #[must_use]
    pub const fn demotion() -> Self {
        Self { demoted: true, list: None }
    }

    /// Bytes that it takes in a header.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        match &self.list {
            Some((_, list)) => return_len(list.len()),
            None => NOTICE_LEN,
        }
    }

    const fn is_possible(&self) -> bool {
        match &self.list {
            Some((limits, list)) => list.is_empty() || limits.is_some(),
            None => self.demoted,
        }
    }
}

/// A capability header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repr {
    /// Asks the destination for a capability.
    Request {
        /// How routers are to hash.
        algorithm: Algorithm,
        /// The client.
        client_id: ClientId,
        /// How many routers may add to it: filled and blank slots, at most [`CAPABILITIES_MAX`].
        slots: u8,
        /// What routers have added so far. The header's pointer is its length.
        entries: SlotList,
        /// Whether a router found the packet wanting.
        demoted: bool,
        /// What follows the header.
        upper: IpProtocol,
        /// What the packet tells about the other direction.
        ret: Option<Return>,
    },
    /// A packet that the destination has allowed.
    Regular {
        /// How its capabilities were hashed.
        algorithm: Algorithm,
        /// [`Kind::Capabilities`], [`Kind::Nonce`] or [`Kind::Renewal`].
        kind: Kind,
        /// The flow.
        nonce: FlowNonce,
        /// The client.
        client_id: ClientId,
        /// N and T of the capabilities; `None` with only a nonce.
        limits: Option<Limits>,
        /// One for each capability router, at least one; empty with only a nonce.
        list: CapabilityList,
        /// The capability that the next router checks; 0 with only a nonce.
        pointer: u8,
        /// Whether a router found the packet wanting.
        demoted: bool,
        /// What follows the header.
        upper: IpProtocol,
        /// What the packet tells about the other direction.
        ret: Option<Return>,
    },
}

impl Repr {
    /// A fresh request with blank slots.
    #[must_use]
    pub fn request(algorithm: Algorithm, client_id: ClientId, slots: u8, upper: IpProtocol) -> Self {
        let entries = SlotList::new();
        Self::Request { algorithm, client_id, slots, entries, demoted: false, upper, ret: None }
    }

    /// A regular header with only the flow nonce.
    #[must_use]
    pub fn nonce_only(algorithm: Algorithm, client_id: ClientId, nonce: FlowNonce, upper: IpProtocol) -> Self {
        Self::Regular {
            algorithm,
            kind: Kind::Nonce,
            nonce,
            client_id,
            limits: None,
            list: CapabilityList::new(),
            pointer: 0,
            demoted: false,
            upper,
            ret: None,
        }
    }

    /// The same regular header of this kind, with limits and capabilities. A request stays what it is.
    #[must_use]
    pub fn with_list(mut self, as_kind: Kind, new_limits: Limits, new_list: CapabilityList) -> Self {
        if let Self::Regular { kind, limits, list, .. } = &mut self {
            (*kind, *limits, *list) = (as_kind, Some(new_limits), new_list);
        }
        self
    }

    /// The same header with this return information.
    #[must_use]
    pub const fn with_return(mut self, new: Option<Return>) -> Self {
        match &mut self {
            Self::Request { ret, .. } | Self::Regular { ret, .. } => *ret = new,
        }
        self
    }

    /// Reads a header with its return information.
    ///
    /// # Errors
    /// [`Reason::CapabilityHeader`], as [`Packet::check_len`].
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Self, Reason> {
        packet.check_len()?;
        let (algorithm, client_id, demoted) = (packet.algorithm(), packet.client_id(), packet.is_demoted());
        let (upper, ret, pointer) = (packet.upper_protocol(), packet.return_info(), packet.pointer());
        Ok(match packet.kind() {
            Kind::Request => {
                let slot = |index| {
                    let capability = packet.capability(index)?;
                    Some(Slot { path_id: packet.path_id(index)?, capability })
                };
                let entries = (0..usize::from(pointer)).map_while(slot).collect();
                Self::Request { algorithm, client_id, slots: packet.count(), entries, demoted, upper, ret }
            }
            kind => {
                let list = (0..CAPABILITIES_MAX).map_while(|index| packet.capability(index)).collect();
                let (nonce, limits) = (packet.nonce(), packet.limits());
                Self::Regular { algorithm, kind, nonce, client_id, limits, list, pointer, demoted, upper, ret }
            }
        })
    }

    /// Whether [`Self::emit`] writes a header that [`Self::parse`] reads back as the same value.
    ///
    /// # Errors
    /// [`Reason::CapabilityHeader`] if the parts contradict each other, such as more entries than slots, a list
    /// without limits, or return information that says nothing.
    pub fn check(&self) -> Result<(), Reason> {
        let (possible, ret) = match self {
            Self::Request { slots, entries, ret, .. } => {
                (usize::from(*slots) <= CAPABILITIES_MAX && entries.len() <= usize::from(*slots), ret)
            }
            Self::Regular { kind: Kind::Request, ret, .. } => (false, ret),
            Self::Regular { kind: Kind::Nonce, limits, list, pointer, nonce, ret, .. } => {
                (limits.is_none() && list.is_empty() && *pointer == 0 && nonce.0 <= FlowNonce::MASK, ret)
            }
            Self::Regular { limits, list, pointer, nonce, ret, .. } => {
                let points_inside = usize::from(*pointer) <= list.len();
                (limits.is_some() && !list.is_empty() && points_inside && nonce.0 <= FlowNonce::MASK, ret)
            }
        };
        if possible && ret.is_none_or(|ret| ret.is_possible()) { Ok(()) } else { Err(MALFORMED) }
    }

    /// Bytes that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        let ret_len = match self {
            Self::Request { ret: Some(ret), .. } | Self::Regular { ret: Some(ret), .. } => ret.buffer_len(),
            _ => 0,
        };
        self.return_at() + ret_len
    }

    const fn return_at(&self) -> usize {
        match self {
            Self::Request { slots, .. } => request_len(*slots as usize),
            Self::Regular { kind, list, .. } if kind.has_list() => regular_len(list.len()),
            Self::Regular { .. } => NONCE_LEN,
        }
    }

    /// Writes a header that passes [`Self::check`]. Every byte of it is written, reserved ones as zero.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        match self {
            Self::Request { algorithm, client_id, slots, entries, demoted, upper, ret } => {
                emit_common(packet, *algorithm, Kind::Request, *demoted, *upper, ret.is_some());
                packet.put(REQUEST_COUNT_AT, &[*slots, entries.len() as u8, 0, 0, 0, 0]);
                packet.put(CLIENT_ID_AT, &client_id.0.to_be_bytes());
                for index in 0..usize::from(*slots) {
                    let slot = entries.get(index).unwrap_or_default();
                    packet.put(request_len(index), &slot.path_id.0.to_be_bytes());
                    packet.put(request_len(index) + 2, &slot.capability.0.to_be_bytes());
                }
            }
            Self::Regular { algorithm, kind, nonce, client_id, limits, list, pointer, demoted, upper, ret } => {
                emit_common(packet, *algorithm, *kind, *demoted, *upper, ret.is_some());
                let [_, _, nonce @ ..] = nonce.0.to_be_bytes();
                packet.put(NONCE_AT, &nonce);
                packet.put(CLIENT_ID_AT, &client_id.0.to_be_bytes());
                if kind.has_list() {
                    packet.put(REGULAR_COUNT_AT, &[list.len() as u8, *pointer]);
                    packet.put(LIMITS_AT, &limits.map_or(0, Limits::bits).to_be_bytes());
                    emit_list(packet, regular_len(0), list);
                }
            }
        }
        if let Self::Request { ret: Some(ret), .. } | Self::Regular { ret: Some(ret), .. } = self {
            emit_return(packet, self.return_at(), ret);
        }
    }
}

fn emit_common<T: AsRef<[u8]> + AsMut<[u8]>>(
    packet: &mut Packet<T>,
    algorithm: Algorithm,
    kind: Kind,
    demoted: bool,
    upper: IpProtocol,
    returns: bool,
) {
    let flags = if demoted { DEMOTED } else { 0 } | if returns { RETURN } else { 0 };
    packet.put(0, &[(algorithm as u8) << 4 | flags | kind as u8, upper.0]);
}

fn emit_list<T: AsRef<[u8]> + AsMut<[u8]>>(packet: &mut Packet<T>, at: usize, list: &CapabilityList) {
    for (index, Capability(value)) in list.iter().enumerate() {
        packet.put(at + index * size_of::<u64>(), &value.to_be_bytes());
    }
}

fn emit_return<T: AsRef<[u8]> + AsMut<[u8]>>(packet: &mut Packet<T>, at: usize, ret: &Return) {
    let demoted = if ret.demoted { RETURN_DEMOTED } else { 0 };
    let Some((limits, list)) = &ret.list else {
        packet.put(at, &[demoted]);
        return;
    };
    let [high, low] = limits.map_or(0, Limits::bits).to_be_bytes();
    packet.put(at, &[demoted | RETURN_LIST, list.len() as u8, high, low]);
    emit_list(packet, at + RETURN_LIST_AT, list);
}
