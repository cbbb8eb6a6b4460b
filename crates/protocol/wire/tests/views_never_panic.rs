//! Every view stands every input: random bytes, and the seeds of the fuzz targets with bytes changed and cut off.

mod exercise;

use std::{fs, path::PathBuf};

use proptest::{prelude::*, sample::Index};

type Exercise = fn(&[u8]);

/// The fuzz targets and what each exercises.
const TARGETS: [(&str, &[Exercise]); 6] = [
    ("wire_ethernet", &[exercise::ethernet]),
    ("wire_ipv4", &[exercise::ipv4]),
    ("wire_ipv6", &[exercise::ipv6]),
    ("wire_transport", &[exercise::udp, exercise::tcp, exercise::udplite, exercise::dccp]),
    ("wire_icmp", &[exercise::icmp]),
    ("wire_capability", &[exercise::capability, exercise::ipv4, exercise::ipv6]),
];

/// The committed seeds of a fuzz target.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn every_seed_is_stood_whole_and_cut_anywhere() {
    for (target, functions) in TARGETS {
        let seeds = seeds(target);
        assert!(!seeds.is_empty(), "{target} has no seeds");
        for seed in &seeds {
            for len in 0..=seed.len() {
                functions.iter().for_each(|exercise| exercise(&seed[..len]));
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_stood(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for (_, functions) in TARGETS {
            functions.iter().for_each(|exercise| exercise(&bytes));
        }
    }

    #[test]
    fn changed_seeds_are_stood(
        pick: Index, changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 1..6), cut: Index,
    ) {
        for (target, functions) in TARGETS {
            let seeds = seeds(target);
            let mut bytes = pick.get(&seeds).clone();
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            functions.iter().for_each(|exercise| exercise(&bytes));
            bytes.truncate(cut.index(bytes.len()));
            functions.iter().for_each(|exercise| exercise(&bytes));
        }
    }
}
