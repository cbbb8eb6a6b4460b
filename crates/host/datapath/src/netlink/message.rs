//! Netlink messages: a writer with nested attributes, and a bounded reader.

/// Length of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// The attribute holds further attributes.
const NESTED: u16 = 1 << 15;
/// Mask of the attribute's kind, without the flags for nesting and byte order.
const KIND: u16 = 0x3fff;

/// A netlink message under construction.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message of type `kind` with the family's fixed header.
    pub(crate) fn new(kind: u16, flags: u16, family_header: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(family_header);
        let mut message = Self { bytes };
        message.pad();
        message
    }

    /// Adds an attribute.
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(&value[..usize::from(len) - 4]);
        self.pad();
        self
    }

    /// Adds a 32-bit attribute in host byte order (rtnetlink).
    pub(crate) fn put_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_ne_bytes())
    }

    /// Adds a 32-bit attribute in network byte order (nf_tables).
    pub(crate) fn put_be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_be_bytes())
    }

    /// Adds a 64-bit attribute in network byte order (nf_tables).
    pub(crate) fn put_be64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.put(kind, &value.to_be_bytes())
    }

    /// Adds a NUL-terminated string.
    pub(crate) fn put_text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.put(kind, &bytes)
    }

    /// Adds an attribute made of what `fill` writes into it.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.nest_after(kind | NESTED, &[], fill)
    }

    /// As [`Self::nest`], behind a fixed structure, and without the nesting flag: what old rtnetlink kinds want.
    pub(crate) fn nest_after(&mut self, kind: u16, fixed: &[u8], fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(fixed);
        self.pad();
        fill(self);
        let len = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self
    }

    /// The finished message with its length and sequence number.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One message received from the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

/// The messages of one datagram; stops at the first malformed one.
pub(crate) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let header = datagram.first_chunk::<HEADER_BYTES>()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let message = Received {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
            payload: datagram.get(HEADER_BYTES..len)?,
        };
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes `(kind, value)` in a message's payload behind its fixed header; stops at the first malformed one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// A 32-bit value in host byte order.
pub(crate) fn u32_of(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// An IPv4 or IPv6 address of four or sixteen bytes.
pub(crate) fn address_of(value: &[u8]) -> Option<std::net::IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(value) {
        return Some(bytes.into());
    }
    <[u8; 16]>::try_from(value).ok().map(Into::into)
}

/// The bytes of an address as netlink carries them.
pub(crate) fn address_bytes(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address family number of an address.
pub(crate) fn family_of(address: std::net::IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut message = Message::new(7, 1, &[9; 5]);
        message.put_text(1, "eth0").nest(2, |inner| {
            inner.put_u32(3, 42);
        });
        let bytes = message.finish(5);
        let received: Vec<_> = messages(&bytes).collect();
        assert_eq!(received.len(), 1);
        assert_eq!((received[0].kind, received[0].flags, received[0].sequence), (7, 1, 5));
        let outer: Vec<_> = attributes(&received[0].payload[8..]).collect();
        assert_eq!(outer[0], (1, &b"eth0\0"[..]));
        assert_eq!(outer[1].0, 2);
        assert_eq!(attributes(outer[1].1).next().and_then(|(_, value)| u32_of(value)), Some(42));
    }

    #[test]
    fn impossible_lengths_end_the_iteration() {
        for len in [0u16, 1, 3, 5, 9, u16::MAX] {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend([1, 0]);
            assert_eq!(attributes(&bytes).count(), 0, "attribute length {len}");
        }
        for len in [0u32, 15, 17, u32::MAX] {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend([0; 12]);
            assert_eq!(messages(&bytes).count(), 0, "message length {len}");
        }
    }
}
