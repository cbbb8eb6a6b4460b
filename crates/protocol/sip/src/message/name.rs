//! Names of header fields, found by (length, first byte).

macro_rules! header_names {
    ($($name:ident, $long:literal $(, $compact:literal)?;)*) => {
        /// A header field that some part of Sluicegate reads or writes. All others are [`HeaderName::Other`] and are
        /// passed on as they are. To add one, add a line to this list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum HeaderName {
            $(#[doc = concat!("`", $long, "`")] $name,)*
            /// Any header field that has no name here.
            Other,
        }

        impl HeaderName {
            /// Every header field that has a name here.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The long form, as written by us; empty for [`HeaderName::Other`].
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $long,)* Self::Other => "" }
            }

            /// The compact form (RFC 3261 section 7.3.3), if there is one.
            #[must_use]
            pub const fn compact(self) -> Option<u8> {
                match self { $($(Self::$name => Some($compact),)?)* _ => None }
            }
        }
    };
}

header_names! {
    Accept, "Accept";
    Allow, "Allow";
    AllowEvents, "Allow-Events", b'u';
    Authorization, "Authorization";
    CallId, "Call-ID", b'i';
    Contact, "Contact", b'm';
    ContentDisposition, "Content-Disposition";
    ContentEncoding, "Content-Encoding", b'e';
    ContentLength, "Content-Length", b'l';
    ContentType, "Content-Type", b'c';
    CSeq, "CSeq";
    Diversion, "Diversion";
    Event, "Event", b'o';
    Expires, "Expires";
    From, "From", b'f';
    HistoryInfo, "History-Info";
    MaxBreadth, "Max-Breadth";
    MaxForwards, "Max-Forwards";
    MinExpires, "Min-Expires";
    MinSe, "Min-SE";
    PAssertedIdentity, "P-Asserted-Identity";
    Path, "Path";
    PCalledPartyId, "P-Called-Party-ID";
    PChargingVector, "P-Charging-Vector";
    PPreferredIdentity, "P-Preferred-Identity";
    Priority, "Priority";
    ProxyAuthenticate, "Proxy-Authenticate";
    ProxyAuthorization, "Proxy-Authorization";
    ProxyRequire, "Proxy-Require";
    PServedUser, "P-Served-User";
    RAck, "RAck";
    Reason, "Reason";
    RecordRoute, "Record-Route";
    ReferTo, "Refer-To", b'r';
    RemotePartyId, "Remote-Party-ID";
    Require, "Require";
    ResourcePriority, "Resource-Priority";
    RetryAfter, "Retry-After";
    Route, "Route";
    RSeq, "RSeq";
    Server, "Server";
    ServiceRoute, "Service-Route";
    SessionExpires, "Session-Expires", b'x';
    SluicegateContinues, "Sluicegate-Continues";
    SluicegateNoise, "Sluicegate-Noise";
    Subject, "Subject", b's';
    Supported, "Supported", b'k';
    Timestamp, "Timestamp";
    To, "To", b't';
    Unsupported, "Unsupported";
    UserAgent, "User-Agent";
    Via, "Via", b'v';
    Warning, "Warning";
    WwwAuthenticate, "WWW-Authenticate";
}

const BUCKETS: usize = 1024;
const NONE: u8 = u8::MAX;
/// Index into `ALL` by length, first and last letter, with linear probing.
static BUCKET: [u8; BUCKETS] = buckets();
/// The long forms, in the order of `ALL`.
static LONG: [Long; HeaderName::ALL.len()] = longs();

/// A long form, and its ends: of a name of up to 16 bytes they are all of it, and two comparisons tell whether it is that.
#[derive(Clone, Copy)]
struct Long {
    text: &'static [u8],
    ends: (u64, u64),
}

/// The first bytes and the last, which may overlap: as many as a register takes.
const fn ends(name: &[u8]) -> (u64, u64) {
    if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        (u32::from_le_bytes(*first) as u64, u32::from_le_bytes(*last) as u64)
    } else if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        (u16::from_le_bytes(*first) as u64, u16::from_le_bytes(*last) as u64)
    } else {
        (0, 0)
    }
}

/// Letters differ in their low five bits whatever their case.
const fn bucket(len: usize, first: u8, last: u8) -> usize {
    (((first & 31) as usize) << 5 | (last & 31) as usize) ^ ((len & 31) << 3)
}

const fn buckets() -> [u8; BUCKETS] {
    let mut table = [NONE; BUCKETS];
    let mut index = 0;
    while index < HeaderName::ALL.len() {
        let long = HeaderName::ALL[index].as_str().as_bytes();
        insert(&mut table, bucket(long.len(), long[0], long[long.len() - 1]), index);
        if let Some(compact) = HeaderName::ALL[index].compact() {
            insert(&mut table, bucket(1, compact, compact), index);
        }
        index += 1;
    }
    table
}

const fn longs() -> [Long; HeaderName::ALL.len()] {
    let mut table = [Long { text: &[], ends: (0, 0) }; HeaderName::ALL.len()];
    let mut index = 0;
    while index < table.len() {
        let text = HeaderName::ALL[index].as_str().as_bytes();
        table[index] = Long { text, ends: ends(text) };
        index += 1;
    }
    table
}

const fn insert(table: &mut [u8; BUCKETS], mut slot: usize, index: usize) {
    // `of` follows the same path. The table is nearly empty, so paths are short.
    while table[slot] != NONE {
        slot = (slot + 1) % BUCKETS;
    }
    table[slot] = index as u8;
}

impl HeaderName {
    /// Which header field `name` is, in any case, long or compact form.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        let (Some(first), Some(last)) = (name.first(), name.last()) else { return Self::Other };
        let mut slot = bucket(name.len(), *first, *last);
        let own = ends(name);
        loop {
            let index = usize::from(BUCKET[slot]);
            let (Some(long), Some(candidate)) = (LONG.get(index), Self::ALL.get(index)) else { return Self::Other };
            // Nearly all senders write names as the RFC does, and equality is the cheaper test.
            let is_as_written = own == long.ends && name.len() == long.text.len();
            let matches = match name {
                [letter] => candidate.compact() == Some(letter.to_ascii_lowercase()),
                _ if is_as_written && name.len() <= 16 => true,
                _ => name.eq_ignore_ascii_case(long.text),
            };
            if matches {
                return *candidate;
            }
            slot = (slot + 1) % BUCKETS;
        }
    }

    /// Whether several values may stand in one line, separated by commas.
    #[must_use]
    pub const fn is_list(self) -> bool {
        matches!(
            self,
            Self::Accept
                | Self::Allow
                | Self::AllowEvents
                | Self::Contact
                | Self::ContentEncoding
                | Self::PAssertedIdentity
                | Self::Path
                | Self::ProxyRequire
                | Self::Reason
                | Self::RecordRoute
                | Self::Require
                | Self::ResourcePriority
                | Self::Route
                | Self::ServiceRoute
                | Self::Supported
                | Self::Unsupported
                | Self::Via
                | Self::Warning
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_long_and_compact_form_and_any_case() {
        for name in HeaderName::ALL {
            let long = name.as_str();
            assert_eq!(HeaderName::of(long.as_bytes()), *name);
            assert_eq!(HeaderName::of(long.to_ascii_lowercase().as_bytes()), *name);
            assert_eq!(HeaderName::of(long.to_ascii_uppercase().as_bytes()), *name);
            if let Some(letter) = name.compact() {
                assert_eq!(HeaderName::of(&[letter]), *name);
                assert_eq!(HeaderName::of(&[letter.to_ascii_uppercase()]), *name);
            }
        }
    }

    #[test]
    fn unknown_names_are_other() {
        for name in [
            &b""[..],
            b"z",
            b"Vis",
            b"Max-Fxrwards",
            b"Proxy-AuthXrization",
            b"CXeq",
            b"To-Do",
            b"C%6Fntact",
            b"Q",
            b"Call-IX",
            &[b'V'; 255],
        ] {
            assert_eq!(HeaderName::of(name), HeaderName::Other);
        }
    }
}
