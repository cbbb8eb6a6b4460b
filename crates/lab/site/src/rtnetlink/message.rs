use std::net::IpAddr;

/// `nlmsg_flags`: this is a request.
pub(super) const REQUEST: u16 = 0x001;
/// `nlmsg_flags`: answer with an acknowledgement.
pub(super) const ACK: u16 = 0x004;
/// `nlmsg_flags`: dump all objects.
pub(super) const DUMP: u16 = 0x300;
/// `nlmsg_flags`: replace an object that exists.
pub(super) const REPLACE: u16 = 0x100;
/// `nlmsg_flags`: fail if the object exists.
pub(super) const EXCLUSIVE: u16 = 0x200;
/// `nlmsg_flags`: create the object.
pub(super) const CREATE: u16 = 0x400;

pub(super) const HEADER_LEN: usize = 16;
const NESTED: u16 = 0x8000;

/// One netlink request under construction: header, fixed part, attributes.
#[derive(Debug, Clone)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A request of `kind` (`RTM_*` or a generic family) with `fixed`, the structure that follows the header.
    pub(super) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(fixed);
        let mut message = Self { bytes };
        message.pad();
        message
    }

    /// Appends one attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(value.len() + 4).expect("attributes are built from short values");
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// Appends a zero-terminated string.
    pub(super) fn string(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Appends an address as 4 or 16 bytes.
    pub(super) fn address(&mut self, kind: u16, address: IpAddr) -> &mut Self {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    /// Appends an attribute that holds what `fill` appends.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        let len = u16::try_from(self.bytes.len() - start).expect("nests are built from short values");
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&(kind | NESTED).to_ne_bytes());
        self
    }

    /// Appends bytes without an attribute header: the fixed part of a nested message.
    pub(super) fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// Adds `nlmsg_flags`.
    pub(super) fn add_flags(&mut self, flags: u16) {
        self.bytes[6] |= flags.to_ne_bytes()[0];
        self.bytes[7] |= flags.to_ne_bytes()[1];
    }

    /// The finished message with its length and sequence number.
    pub(super) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).expect("a request is short");
        self.bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The attributes in `bytes` as (kind without flags, value); stops at the first malformed one.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.first_chunk::<2>().copied()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    })
}

/// The native-endian u32 at `offset` of `bytes`.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// The native-endian u64 at `offset` of `bytes`.
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_they_were_written() {
        let mut message = Message::new(16, ACK, &[0; 16]);
        message.string(3, "eth0").nest(18, |m| {
            m.string(1, "veth");
        });
        let bytes = message.finish(7);
        assert_eq!(u32_at(&bytes, 0), Some(bytes.len() as u32));
        let read: Vec<_> = attributes(&bytes[32..]).collect();
        assert_eq!(read[0], (3, b"eth0\0".as_slice()));
        let inner: Vec<_> = attributes(read[1].1).collect();
        assert_eq!(inner, [(1, b"veth\0".as_slice())]);
    }

    #[test]
    fn a_cut_attribute_ends_the_list() {
        let mut message = Message::new(16, 0, &[]);
        message.string(3, "eth0");
        let bytes = message.finish(0);
        assert_eq!(attributes(&bytes[HEADER_LEN..bytes.len() - 6]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0);
    }
}
