//! STUN (RFC 8489) as far as a SIP port speaks it (RFC 5626 section 8): a Binding request is told where it came from. Nobody is
//! asked for credentials, and nothing is remembered.

use core::net::{IpAddr, SocketAddr};

use alloc::vec::Vec;

const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const HEADER_LEN: usize = 20;
/// Longest request: what may be sent where the path is unknown (RFC 8489 section 6.1).
const REQUEST_LEN_MAX: usize = 548;
/// Attributes that an error names. Who has more hears of the others when these are gone.
const UNKNOWN_MAX: usize = 4;
/// Where the attributes begin that whoever does not know them passes over.
const OPTIONAL: u16 = 0x8000;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const ERROR_CODE: u16 = 0x0009;
const UNKNOWN_ATTRIBUTES: u16 = 0x000a;
const FINGERPRINT: u16 = 0x8028;
/// Of credentials (RFC 8489 section 14), which nobody is asked for: USERNAME, MESSAGE-INTEGRITY, REALM, NONCE,
/// MESSAGE-INTEGRITY-SHA256, PASSWORD-ALGORITHM, USERHASH.
const CREDENTIALS: [u16; 7] = [0x0006, 0x0008, 0x0014, 0x0015, 0x001c, 0x001d, 0x001e];
const FINGERPRINT_XOR: u32 = 0x5354_554e;

/// Whether a datagram is STUN and no SIP: no message of SIP begins with such a byte, nor has the cookie in it.
#[must_use]
pub fn is_stun(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|byte| *byte < 0x40) && datagram.get(4..8) == Some(&COOKIE)
}

/// It is no Binding request, or one that contradicts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no STUN Binding request")]
pub struct NotBinding;

/// A Binding request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindingRequest {
    /// The cookie and the transaction's name.
    transaction: [u8; 16],
    /// Attributes that must be known and are not.
    unknown: [u16; UNKNOWN_MAX],
    unknown_count: usize,
    has_fingerprint: bool,
}

impl BindingRequest {
    /// The shortest request.
    pub const LEN_MIN: usize = HEADER_LEN;
    /// The longest answer: header, an IPv6 address, and a fingerprint if the request had one. It is at most 2.2 times as long as
    /// its request.
    pub const ANSWER_LEN_MAX: usize = HEADER_LEN + 24 + 8;

    /// Reads a datagram.
    ///
    /// # Errors
    /// Anything but a well-formed Binding request.
    pub fn parse(datagram: &[u8]) -> Result<Self, NotBinding> {
        let (header, mut rest) = datagram.split_first_chunk::<HEADER_LEN>().ok_or(NotBinding)?;
        let [0, 1, len @ ..] = header else { return Err(NotBinding) };
        let (len, transaction) = len.split_first_chunk::<2>().ok_or(NotBinding)?;
        let is_whole = usize::from(u16::from_be_bytes(*len)) == rest.len() && rest.len().is_multiple_of(4);
        if !is_stun(datagram) || !is_whole || datagram.len() > REQUEST_LEN_MAX {
            return Err(NotBinding);
        }
        let transaction = transaction.try_into().map_err(|_| NotBinding)?;
        let mut request = Self { transaction, unknown: [0; UNKNOWN_MAX], unknown_count: 0, has_fingerprint: false };
        while let Some(([kind_0, kind_1, len_0, len_1], behind)) = rest.split_first_chunk::<4>() {
            let (kind, len) = (u16::from_be_bytes([*kind_0, *kind_1]), u16::from_be_bytes([*len_0, *len_1]));
            let (value, behind) = behind.split_at_checked(usize::from(len).next_multiple_of(4)).ok_or(NotBinding)?;
            if kind == FINGERPRINT {
                let covered = datagram.get(..datagram.len() - 8).unwrap_or_default();
                let is_last = len == 4 && behind.is_empty();
                if !is_last || value != fingerprint(covered) {
                    return Err(NotBinding);
                }
                request.has_fingerprint = true;
            } else if kind < OPTIONAL && !CREDENTIALS.contains(&kind) {
                request.note_unknown(kind);
            }
            rest = behind;
        }
        Ok(request)
    }

    fn note_unknown(&mut self, kind: u16) {
        if let Some(place) = self.unknown.get_mut(self.unknown_count) {
            *place = kind;
            self.unknown_count += 1;
        }
    }

    /// Writes the answer to who sent it from there, in place of what `out` holds: its address, or which attributes are unknown
    /// (RFC 8489 section 6.3.1).
    pub fn answer(&self, from: SocketAddr, out: &mut Vec<u8>) {
        out.clear();
        let kind = if self.unknown_count == 0 { 0x0101_u16 } else { 0x0111 };
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.transaction);
        if self.unknown_count == 0 {
            self.write_address(from, out);
        } else {
            // 420, Unknown Attribute.
            attribute(out, ERROR_CODE, &[0, 0, 4, 20]);
            let unknown = self.unknown.map(u16::to_be_bytes);
            let named = unknown.get(..self.unknown_count).unwrap_or_default();
            attribute(out, UNKNOWN_ATTRIBUTES, named.as_flattened());
        }
        let fingerprint_len = if self.has_fingerprint { 8 } else { 0 };
        let len = (out.len() - HEADER_LEN + fingerprint_len) as u16;
        for (place, byte) in out.iter_mut().skip(2).zip(len.to_be_bytes()) {
            *place = byte;
        }
        if self.has_fingerprint {
            let value = fingerprint(out);
            attribute(out, FINGERPRINT, &value);
        }
    }

    /// XOR-MAPPED-ADDRESS (RFC 8489 section 14.2).
    fn write_address(&self, from: SocketAddr, out: &mut Vec<u8>) {
        let mut octets = [0; 16];
        let (family, len) = match from.ip().to_canonical() {
            IpAddr::V4(ip) => (1, put(&mut octets, &ip.octets())),
            IpAddr::V6(ip) => (2, put(&mut octets, &ip.octets())),
        };
        octets.iter_mut().zip(self.transaction).for_each(|(byte, mask)| *byte ^= mask);
        let port = (from.port() ^ u16::from_be_bytes([COOKIE[0], COOKIE[1]])).to_be_bytes();
        let mut value = [0; 20];
        put(&mut value, &[0, family, port[0], port[1]]);
        put(value.get_mut(4..).unwrap_or_default(), &octets);
        attribute(out, XOR_MAPPED_ADDRESS, value.get(..4 + len).unwrap_or_default());
    }
}

/// Copies `from` to where `to` begins; its length.
fn put(to: &mut [u8], from: &[u8]) -> usize {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    from.len()
}

/// Appends an attribute, padded to whole words.
fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// FINGERPRINT of what stands before it (RFC 8489 section 14.7).
fn fingerprint(covered: &[u8]) -> [u8; 4] {
    (crc32(covered) ^ FINGERPRINT_XOR).to_be_bytes()
}

/// The CRC-32 of ITU V.42.
fn crc32(bytes: &[u8]) -> u32 {
    static TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |crc: u32, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mut crc, mut bit) = (at as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// RFC 5769 section 2.1: of ICE, with credentials and an attribute that is none of a SIP port's (PRIORITY).
    const SAMPLE: &[u8] = b"\x00\x01\x00\x58\x21\x12\xa4\x42\xb7\xe7\xa7\x01\xbc\x34\xd6\x86\xfa\x87\xdf\xae\
        \x80\x22\x00\x10STUN test client\x00\x24\x00\x04\x6e\x00\x01\xff\x80\x29\x00\x08\x93\x2f\xf9\xb1\x51\x26\x3b\x36\
        \x00\x06\x00\x09evtj:h6vY\x20\x20\x20\x00\x08\x00\x14\x9a\xea\xa7\x0c\xbf\xd8\xcb\x56\x78\x1e\xf2\xb5\xb2\xd3\xf2\x49\
        \xc1\xb5\x71\xa2\x80\x28\x00\x04\xe5\x7a\x3b\xcf";
    const V4: &str = "192.0.2.1:32853";
    const V6: &str = "[2001:db8:1234:5678:11:2233:4455:6677]:32853";

    /// A Binding request with these attributes, and a fingerprint if that is asked for.
    fn request(attributes: &[u8], has_fingerprint: bool) -> Vec<u8> {
        let len = attributes.len() + if has_fingerprint { 8 } else { 0 };
        let mut request = [&[0, 1, 0, len as u8][..], &SAMPLE[4..20], attributes].concat();
        if has_fingerprint {
            let value = fingerprint(&request);
            attribute(&mut request, FINGERPRINT, &value);
        }
        request
    }

    fn answer(request: &[u8], from: &str) -> Vec<u8> {
        let mut out = b"left over".to_vec();
        BindingRequest::parse(request).unwrap().answer(from.parse().unwrap(), &mut out);
        out
    }

    #[test]
    fn a_request_is_told_its_address_as_in_the_sample_responses_of_rfc_5769() {
        let v4 = answer(&request(&[], false), V4);
        assert_eq!(v4[..4], [1, 1, 0, 12]);
        assert_eq!(v4[4..20], SAMPLE[4..20]);
        assert_eq!(v4[20..], *b"\x00\x20\x00\x08\x00\x01\xa1\x47\xe1\x12\xa6\x43", "section 2.2");
        let v6 = answer(&request(&[], false), V6);
        let expected =
            b"\x00\x20\x00\x14\x00\x02\xa1\x47\x01\x13\xa9\xfa\xa5\xd3\xf1\x79\xbc\x25\xf4\xb5\xbe\xd2\xb9\xd9";
        assert_eq!(v6[20..], *expected, "section 2.3");
        assert_eq!(answer(&request(&[], false), "[::ffff:192.0.2.1]:32853"), v4);
    }

    /// RFC 5769 section 2.2.
    const RESPONSE: &[u8] = b"\x01\x01\x00\x3c\x21\x12\xa4\x42\xb7\xe7\xa7\x01\xbc\x34\xd6\x86\xfa\x87\xdf\xae\
        \x80\x22\x00\x0btest vector \x00\x20\x00\x08\x00\x01\xa1\x47\xe1\x12\xa6\x43\x00\x08\x00\x14\x2b\x91\xf5\x99\xfd\x9e\x90\xc3\
        \x8c\x74\x89\xf9\x2a\xf9\xba\x53\xf0\x6b\xe7\xd7\x80\x28\x00\x04\xc0\x7d\x4c\x96";

    #[test]
    fn a_fingerprint_is_checked_and_answered_with_one() {
        let (covered, own) = RESPONSE.split_at(RESPONSE.len() - 8);
        assert_eq!(own[4..], fingerprint(covered));
        let sample = BindingRequest::parse(SAMPLE).unwrap();
        assert!(sample.has_fingerprint);
        // One that is called otherwise is no fingerprint.
        let name = SAMPLE.len() - 8..SAMPLE.len() - 6;
        for (at, byte) in SAMPLE.iter().enumerate().skip(4).filter(|(at, _)| !name.contains(at)) {
            let mut changed = SAMPLE.to_vec();
            changed[at] = byte ^ 1;
            assert_eq!(BindingRequest::parse(&changed), Err(NotBinding), "byte {at}");
        }
        let answered = answer(&request(&[], true), V4);
        let (covered, own) = answered.split_at(answered.len() - 8);
        assert_eq!(own, [&[0x80, 0x28, 0, 4], &fingerprint(covered)[..]].concat());
        assert_eq!(usize::from(covered[3]), answered.len() - HEADER_LEN);
    }

    #[test]
    fn what_must_be_known_and_is_not_is_named_in_a_420() {
        let error = answer(SAMPLE, V4);
        assert_eq!(error[..4], [1, 0x11, 0, 24]);
        assert_eq!(error[20..36], *b"\x00\x09\x00\x04\x00\x00\x04\x14\x00\x0a\x00\x02\x00\x24\x00\x00");
        let many = answer(&request(&[0, 3, 0, 0].repeat(100 / 4), false), V4);
        assert_eq!(many.len(), HEADER_LEN + 8 + 4 + 2 * UNKNOWN_MAX);
    }

    #[test]
    fn whatever_else_is_stun_is_no_request() {
        let good = request(&[0x80, 0x22, 0, 1, b'a', 0, 0, 0], false);
        BindingRequest::parse(&good).unwrap();
        let with = |at: usize, byte| {
            let mut changed = good.clone();
            changed[at] = byte;
            changed
        };
        let long = request(&[], false).into_iter().chain(vec![0; REQUEST_LEN_MAX]).collect();
        for (what, bytes) in [
            ("nothing", Vec::new()),
            ("half a header", good[..19].to_vec()),
            ("an indication", with(1, 0x11)),
            ("a response", with(0, 1)),
            ("another method", with(1, 3)),
            ("too short for what it says", good[..24].to_vec()),
            ("longer than it says", [&good[..], &[0; 4]].concat()),
            ("no whole words", [&with(3, 9)[..], &[0]].concat()),
            ("an attribute without end", with(23, 5)),
            ("a fingerprint that is not the last", request(&[0x80, 0x28, 0, 4, 1, 2, 3, 4, 0x80, 0x22, 0, 0], false)),
            ("no cookie", with(4, 0)),
            ("too long", long),
        ] {
            assert_eq!(BindingRequest::parse(&bytes), Err(NotBinding), "{what}");
        }
    }

    #[test]
    fn no_answer_is_much_longer_than_its_request() {
        for has_fingerprint in [false, true] {
            for attributes in [&[][..], &[0, 3, 0, 0], &[0, 3, 0, 0, 0, 4, 0, 0], &[0, 3, 0, 0].repeat(9)] {
                let request = request(attributes, has_fingerprint);
                for from in [V4, V6] {
                    let answer = answer(&request, from).len();
                    assert!(answer * 10 <= request.len() * 22 && answer <= BindingRequest::ANSWER_LEN_MAX);
                }
            }
        }
    }
}
