//! The hashes, computed once more from their published definition with general implementations, give what the library
//! and the documentation say.

use std::{
    fs,
    hash::Hasher as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use aes::{
    Aes128Enc,
    cipher::{BlockCipherEncrypt, KeyInit},
};
use hkdf::Hkdf;
use sha2::Sha256;
use siphasher::sip::SipHasher24;
use sluicegate_capability::secrets::{self, PathTagger, Secrets, Seed};
use sluicegate_wire::capability::{Algorithm, Capability, ClientId, Limits};

const SECONDS: u64 = 1_000;
const CLIENT: u32 = 0x0102_0304;
const KILOBYTES: u16 = 100;
const SECONDS_VALID: u8 = 10;
const V4: (IpAddr, IpAddr) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)));
const V6: (IpAddr, IpAddr) = (
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2)),
);

fn seed() -> [u8; 32] {
    std::array::from_fn(|index| index as u8)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn expand(seed: &[u8; 32], info: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    Hkdf::<Sha256>::new(None, seed).expand(info.as_bytes(), &mut bytes).unwrap();
    bytes
}

/// Both keys of the period, by the definition: the seed is that of the period before.
fn keys() -> ([u8; 16], [u8; 16]) {
    let keys = expand(&expand(&seed(), "sluicegate router seed v2"), "sluicegate router secret v2");
    (keys[..16].try_into().unwrap(), keys[16..].try_into().unwrap())
}

/// What the first hash covers, by the definition.
fn message((src, dst): (IpAddr, IpAddr)) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let version = if src.is_ipv4() { 4 } else { 6 };
    [&[version], &octets(src)[..], &octets(dst), &CLIENT.to_be_bytes(), &[SECONDS as u8]].concat()
}

fn siphash(key: &[u8; 16], message: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(message);
    hasher.finish()
}

fn aes(key: &[u8; 16], block: [u8; 16]) -> [u8; 16] {
    let mut block = block.into();
    Aes128Enc::new(&(*key).into()).encrypt_block(&mut block);
    block.into()
}

fn xor(a: [u8; 16], b: &[u8]) -> [u8; 16] {
    std::array::from_fn(|index| a[index] ^ b.get(index).copied().unwrap_or(0))
}

fn first_eight(block: [u8; 16]) -> u64 {
    u64::from_be_bytes(block[..8].try_into().unwrap())
}

fn limits() -> Limits {
    Limits::new(KILOBYTES, SECONDS_VALID).unwrap()
}

/// Pre-capability and capability, by the definition.
fn defined(algorithm: Algorithm, path: (IpAddr, IpAddr)) -> [u64; 2] {
    const LOW_56: u64 = (1 << 56) - 1;
    let (message, time) = (message(path), u64::from(SECONDS as u8) << 56);
    let n_and_t = (KILOBYTES << 6 | u16::from(SECONDS_VALID)).to_be_bytes();
    match algorithm {
        Algorithm::SipHash => {
            let pre = time | siphash(&keys().0, &message) & LOW_56;
            let key: [u8; 16] = [pre.to_be_bytes(), [0; 8]].concat().try_into().unwrap();
            [pre, time | siphash(&key, &n_and_t) & LOW_56]
        }
        Algorithm::Aes => {
            let chained = message.chunks(16).fold([0; 16], |chain, chunk| aes(&keys().1, xor(chain, chunk)));
            let pre = time | first_eight(chained) & LOW_56;
            let block = xor([0; 16], &[&pre.to_be_bytes()[..], &n_and_t].concat());
            [pre, time | first_eight(xor(aes(b"sluicegate mmo 1", block), &block)) & LOW_56]
        }
    }
}

/// Pre-capability and capability, by the library.
fn computed(algorithm: Algorithm, (src, dst): (IpAddr, IpAddr)) -> [u64; 2] {
    let secrets = Secrets::new(&Seed(seed()), SECONDS);
    let pre = secrets.mint(algorithm, src, dst, ClientId(CLIENT));
    let Capability(sealed) = secrets::seal(algorithm, pre, limits());
    [pre.0, sealed]
}

/// The lines that the documentation must hold.
fn published() -> String {
    let (siphash_key, aes_key) = keys();
    let mut lines = vec![
        format!("seed of period {}         {}", SECONDS / 128 - 1, hex(&seed())),
        format!("router clock             {SECONDS} s (period {}, timestamp {:02x})", SECONDS / 128, SECONDS as u8),
        format!("SipHash key              {}", hex(&siphash_key)),
        format!("AES key                  {}", hex(&aes_key)),
        format!("client id                {CLIENT:08x}"),
        format!("N, T                     {KILOBYTES} KB, {SECONDS_VALID} s = {:04x}", limits().bits()),
    ];
    for (name, path) in [("IPv4", V4), ("IPv6", V6)] {
        lines.push(String::new());
        lines.push(format!("{name} path                {} -> {}", path.0, path.1));
        lines.push(format!("message                  {}", hex(&message(path))));
        for (label, algorithm) in [("SipHash", Algorithm::SipHash), ("AES    ", Algorithm::Aes)] {
            let [pre, sealed] = computed(algorithm, path);
            lines.push(format!("{label} pre-capability   {pre:016x}"));
            lines.push(format!("{label} capability       {sealed:016x}"));
        }
    }
    let tag = PathTagger::new(seed()[..16].try_into().unwrap()).tag(2);
    lines.push(String::new());
    lines.push(format!("path identifier          {:04x} of ingress 2, key {}", tag.0, hex(&seed()[..16])));
    lines.join("\n")
}

#[test]
fn the_library_hashes_as_defined() {
    for path in [V4, V6] {
        for algorithm in [Algorithm::SipHash, Algorithm::Aes] {
            assert_eq!(computed(algorithm, path), defined(algorithm, path), "{algorithm:?} {path:?}");
        }
    }
    let key: [u8; 16] = seed()[..16].try_into().unwrap();
    let expected = siphash(&key, &2u64.to_be_bytes()) % 65_535 + 1;
    assert_eq!(u64::from(PathTagger::new(key).tag(2).0), expected);
}

#[test]
fn the_documentation_publishes_what_the_library_computes() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/reference/capability-header.md");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let published = published();
    assert!(text.contains(&published), "{} should hold these test vectors:\n{published}", path.display());
}
