use alloc::vec::Vec;

use hashbrown::HashTable;
use sluicegate_wire::capability::PathId;
use thiserror::Error;

use super::{DEPTH_MAX, fold};

/// The path identifiers that the operator knows to exist, most recent tag first in each: where requests came from in
/// times without attack, or the router's own view of the routing system.
///
/// They give a request queue its weight (the number of known paths behind it, OUR-1) and tell which queues a spoofer
/// cannot have made up (OUR-2). Built once, by [`KnownPaths::build`]; look-ups touch one or two lines of memory.
#[derive(Debug, Clone, Default)]
pub struct KnownPaths {
    prefixes: HashTable<Known>,
    paths: u32,
}

/// A prefix of known paths, of so many tags, and how many of them start with it.
#[derive(Debug, Clone)]
struct Known {
    tags: [u16; DEPTH_MAX],
    level: u16,
    paths: u32,
}

impl Known {
    fn prefix(&self) -> &[u16] {
        &self.tags[..usize::from(self.level)]
    }
}

/// Why a table of known paths was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KnownPathsError {
    /// More paths than the table may hold.
    #[error("more than {0} known paths: give a shorter list or raise the maximum")]
    TooMany(u32),
    /// A path without a tag, or with an empty tag before a tag.
    #[error("known path {0} (counted from 0) has no tag, or a zero before its last tag")]
    Gap(u32),
}

impl KnownPaths {
    /// The most paths of a table, whatever the caller allows.
    pub const PATHS_MAX: u32 = 1 << 20;

    /// A table of `paths`, each most recent tag first and ended by [`PathId::NONE`] if it is short. A path given twice
    /// counts once. Allocates; done once, away from the packets.
    ///
    /// # Errors
    /// [`KnownPathsError::TooMany`] beyond `paths_max` or [`Self::PATHS_MAX`]; [`KnownPathsError::Gap`].
    pub fn build(
        paths: impl IntoIterator<Item = [PathId; DEPTH_MAX]>,
        paths_max: u32,
    ) -> Result<Self, KnownPathsError> {
        let paths_max = paths_max.min(Self::PATHS_MAX);
        let mut sorted: Vec<[u16; DEPTH_MAX]> = Vec::new();
        for (index, path) in (0..).zip(paths) {
            if index >= paths_max {
                return Err(KnownPathsError::TooMany(paths_max));
            }
            let tags = path.map(|tag| tag.0);
            let len = tags.iter().position(|tag| *tag == 0).unwrap_or(DEPTH_MAX);
            if len == 0 || tags[len..].iter().any(|tag| *tag != 0) {
                return Err(KnownPathsError::Gap(index));
            }
            sorted.push(tags);
        }
        sorted.sort_unstable();
        sorted.dedup();
        let prefixes: usize = sorted.iter().map(|tags| tags.iter().filter(|tag| **tag != 0).count()).sum();
        let mut table = HashTable::with_capacity(prefixes);
        for tags in &sorted {
            for level in (1..=DEPTH_MAX).take_while(|level| tags[level - 1] != 0) {
                let prefix = &tags[..level];
                let is_it = |known: &Known| known.prefix() == prefix;
                let place = table.entry(hash(prefix), is_it, |known| hash(known.prefix()));
                place.or_insert(Known { tags: *tags, level: level as u16, paths: 0 }).into_mut().paths += 1;
            }
        }
        Ok(Self { prefixes: table, paths: sorted.len() as u32 })
    }

    /// Known paths.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.paths
    }

    /// Whether no path is known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.paths == 0
    }

    /// How many known paths start with these tags (most recent first); 0 for an unknown prefix.
    #[must_use]
    pub fn paths_behind(&self, prefix: &[PathId]) -> u32 {
        let mut tags = [0; DEPTH_MAX];
        for (tag, path_id) in tags.iter_mut().zip(prefix) {
            *tag = path_id.0;
        }
        self.weight(&tags[..prefix.len().min(DEPTH_MAX)])
    }

    #[inline]
    pub(super) fn weight(&self, prefix: &[u16]) -> u32 {
        self.prefixes.find(hash(prefix), |known| known.prefix() == prefix).map_or(0, |known| known.paths)
    }
}

/// The list is the operator's, so the hash needs no key.
fn hash(prefix: &[u16]) -> u64 {
    prefix.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, tag| fold(hash ^ u64::from(*tag), 0xd6e8_feb8_6659_fd93))
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn path(tags: &[u16]) -> [PathId; DEPTH_MAX] {
        let mut path = [PathId(0); DEPTH_MAX];
        for (slot, tag) in path.iter_mut().zip(tags) {
            *slot = PathId(*tag);
        }
        path
    }

    #[test]
    fn a_prefix_weighs_as_many_paths_as_start_with_it() {
        let paths = vec![path(&[1, 2, 3]), path(&[1, 2, 4]), path(&[1, 5]), path(&[1, 5]), path(&[9])];
        let known = KnownPaths::build(paths, 100).unwrap();
        assert_eq!(known.len(), 4);
        let weights = [&[1][..], &[1, 2], &[1, 2, 4], &[1, 5], &[9], &[7], &[1, 9], &[1, 2, 3, 4]];
        let weights = weights.map(|tags| known.weight(tags));
        assert_eq!(weights, [3, 2, 1, 1, 1, 0, 0, 0]);
        assert_eq!(known.paths_behind(&[PathId(1), PathId(2)]), 2);
    }

    #[test]
    fn a_list_that_is_too_long_or_has_gaps_is_refused() {
        let three = vec![path(&[1]), path(&[2]), path(&[3])];
        assert_eq!(KnownPaths::build(three, 2).unwrap_err(), KnownPathsError::TooMany(2));
        assert_eq!(KnownPaths::build(vec![path(&[1]), path(&[])], 9).unwrap_err(), KnownPathsError::Gap(1));
        assert_eq!(KnownPaths::build(vec![path(&[1, 0, 2])], 9).unwrap_err(), KnownPathsError::Gap(0));
        let none = KnownPaths::build(vec![], 9).unwrap();
        assert!(none.is_empty() && none.weight(&[1]) == 0);
    }
}
