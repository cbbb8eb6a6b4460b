//! Netlink messages as they are sent, and a bounded reader of what comes back.

use netlink_packet_core::{
    Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;

/// A request without its sequence number.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    /// A message of type `kind`: the family's fixed header and `attributes`.
    pub(crate) fn new(kind: u16, flags: u16, header: &[u8], attributes: Attributes) -> Self {
        Self { kind, flags, body: [header, &attributes.into_bytes()].concat() }
    }

    /// A message of rtnetlink.
    pub(crate) fn route(message: &RouteNetlinkMessage, flags: u16) -> Self {
        let mut body = vec![0; message.buffer_len()];
        message.emit(&mut body);
        Self { kind: message.message_type(), flags, body }
    }

    /// Appends the message with this sequence number, and with `flags` beside its own.
    pub(crate) fn write(&self, sequence: u32, flags: u16, bytes: &mut Vec<u8>) {
        let mut header = NetlinkHeader::default();
        header.length = (header.buffer_len() + self.body.len()) as u32;
        header.message_type = self.kind;
        header.flags = NLM_F_REQUEST | self.flags | flags;
        header.sequence_number = sequence;
        let start = bytes.len();
        bytes.resize(start + header.buffer_len(), 0);
        header.emit(&mut bytes[start..]);
        bytes.extend(&self.body);
    }
}

/// Attributes of nf_tables under construction, whose numbers are in network byte order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(NLA_HEADER_SIZE + value.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(&value[..usize::from(len) - NLA_HEADER_SIZE]);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn put_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_be_bytes())
    }

    pub(crate) fn put_u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.put(kind, &value.to_be_bytes())
    }

    /// Adds a NUL-terminated string.
    pub(crate) fn put_text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.put(kind, &[value.as_bytes(), b"\0"].concat())
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Adds an attribute made of `inner`.
    pub(crate) fn put_all(&mut self, kind: u16, inner: &Self) -> &mut Self {
        self.put(kind | NLA_F_NESTED, &inner.0)
    }

    /// Adds an attribute made of what `fill` writes into it.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self::default();
        fill(&mut inner);
        self.put_all(kind, &inner)
    }
}

/// The messages of one datagram; ends at the first malformed one.
pub(crate) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        datagram = datagram.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes (kind, value) behind a fixed header; ends at the first malformed one.
///
/// A reader takes those that it needs by their kinds. The library could read whole messages, but gives none where a newer
/// kernel writes one attribute in a way that it does not know: a link would be gone for what its driver says of itself.
pub(crate) fn attributes(payload: &[u8], header_len: usize) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(payload.get(header_len..).unwrap_or_default()).map_while(|attribute| {
        let attribute = attribute.ok()?;
        Some((attribute.kind(), attribute.into_inner().get(NLA_HEADER_SIZE..usize::from(attribute.length()))?))
    })
}

/// The value of the first attribute of this kind.
pub(crate) fn value(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes, 0).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A NUL-terminated string.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut attributes = Attributes::default();
        attributes.put_text(1, "eth0").nest(2, |inner| {
            inner.put_u32(3, 42);
        });
        let mut bytes = Vec::new();
        Message::new(7, 0x400, &[9; 4], attributes).write(5, 4, &mut bytes);
        let received: Vec<_> = messages(&bytes).collect();
        assert_eq!(received.len(), 1);
        assert_eq!((received[0].message_type(), received[0].flags(), received[0].sequence_number()), (7, 0x405, 5));
        let payload = &received[0].payload()[4..];
        assert_eq!(value(payload, 1), Some(&b"eth0\0"[..]));
        assert_eq!(value(payload, 2).and_then(|inner| value(inner, 3)), Some(&[0, 0, 0, 42][..]));
        assert_eq!(value(payload, 3), None);
    }

    #[test]
    fn impossible_lengths_end_the_iteration() {
        for len in [0u16, 1, 3, 5, 9, u16::MAX] {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend([1, 0]);
            assert_eq!(attributes(&bytes, 0).count(), 0, "attribute length {len}");
        }
        for len in [0u32, 15, 17, u32::MAX] {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend([0; 12]);
            assert_eq!(messages(&bytes).count(), 0, "message length {len}");
        }
        assert_eq!(attributes(&[1, 2, 3], 4).count(), 0, "shorter than its header");
    }
}
