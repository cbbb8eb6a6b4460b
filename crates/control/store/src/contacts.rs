//! Where users' telephones are, for a frontend that starts anew: a log of changes, whose last word on each user counts.
//!
//! It has a file of its own. What is in it comes back by itself within the hour, so it goes into no backup, and a file that
//! is damaged costs no more than that; and a hundred thousand telephones that register again and again have nothing of what
//! operators wrote written anew.
//!
//! Record under a growing number: version 1 | users, one behind the other, each with the time at which it was written.

use std::{collections::HashMap, net::SocketAddr, path::Path};

use serde::{Deserialize, Serialize};

use crate::{Entry, Store, StoreError, Txn, VALUE_LEN_MAX};

const PREFIX: &str = "contacts/";
const VERSION: u8 = 1;
/// Records read or written at a time.
const PART_LEN: usize = 64;
/// Users in the log besides twice as many as there are, before it is written anew.
const SPARE: usize = 1_024;
/// Records of a log, unless fewer are asked for. Each has a user, so that they are bounded by what
/// [`ContactLog::is_long`] says of users long before.
pub const CONTACT_RECORDS_MAX: u64 = 1 << 23;

/// One contact of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptContact {
    /// The frontend's own address that it is reached from.
    pub own: SocketAddr,
    /// Its address.
    pub peer: SocketAddr,
    /// Its URI.
    pub uri: Vec<u8>,
    /// What stood behind that.
    pub tail: Vec<u8>,
    /// Proxies on the way to it.
    pub route: Vec<Vec<u8>>,
    /// Its preference in thousandths.
    pub q: u16,
    /// Keyed hash of the Call-ID of its last REGISTER.
    pub call_id: u64,
    /// CSeq of that.
    pub cseq: u32,
    /// For how long that was granted, in seconds.
    pub granted_s: u32,
    /// Unix second at which it ends.
    pub expires_at: u64,
}

/// The contacts of one user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptUser {
    /// The user's name.
    pub user: String,
    /// All contacts; none: the user is registered nowhere.
    pub contacts: Vec<KeptContact>,
    /// Unix second at which that was written, by the clock of then.
    pub written_at: u64,
}

/// What a log held when it was opened.
#[derive(Debug, Default)]
pub struct KeptUsers {
    /// Users that were registered somewhere.
    pub users: Vec<KeptUser>,
    /// The latest Unix second at which something was written.
    pub written_at: u64,
    /// Records that could not be read.
    pub unreadable: usize,
}

/// The log. Every write is on disk when it returns.
pub struct ContactLog {
    store: Store,
    /// The number of the next record.
    next: u64,
    /// Users in all records, each as often as it is there.
    users: usize,
}

impl ContactLog {
    /// Opens the log in the file `path`, or begins one. It takes no more than `records_max` records.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(path: &Path, records_max: u64) -> Result<(Self, KeptUsers), StoreError> {
        let mut log = Self { store: Store::open(path, records_max)?, next: 0, users: 0 };
        let mut last: HashMap<String, KeptUser> = HashMap::new();
        let mut kept = KeptUsers::default();
        log.each(|log, entry| {
            log.next = number(&entry.key).map_or(log.next, |number| number + 1);
            let Some(users) = decode(&entry.value) else {
                kept.unreadable += 1;
                // Whom it ended is not known, so nobody is called where it may have ended something.
                last.clear();
                return;
            };
            log.users += users.len();
            for user in users {
                kept.written_at = kept.written_at.max(user.written_at);
                last.insert(user.user.clone(), user);
            }
        })?;
        kept.users = last.into_values().filter(|user| !user.contacts.is_empty()).collect();
        Ok((log, kept))
    }

    /// Adds what changed.
    ///
    /// # Errors
    /// If the store fails: then a part may be written, and all of it is to be added again.
    pub fn append(&mut self, users: impl IntoIterator<Item = KeptUser>) -> Result<(), StoreError> {
        let mut values: Vec<Vec<u8>> = Vec::new();
        for user in users {
            let bytes = encode(&user)?;
            self.users += 1;
            if let Some(value) = values.last_mut().filter(|value| value.len() + bytes.len() <= VALUE_LEN_MAX) {
                value.extend(bytes);
                continue;
            }
            if values.len() == PART_LEN {
                self.put(std::mem::take(&mut values))?;
            }
            values.push([&[VERSION], &bytes[..]].concat());
        }
        self.put(values)
    }

    /// Writes the log anew with these users, who are all that there are.
    ///
    /// # Errors
    /// If the store fails: what was there and a part of this may stand side by side then, in their order.
    pub fn replace(&mut self, users: impl IntoIterator<Item = KeptUser>) -> Result<(), StoreError> {
        let (first, before) = (self.next, self.users);
        self.append(users)?;
        // Not before what replaces it is there. A crash in between leaves both, and the later counts.
        self.store.remove(PREFIX, &key(first))?;
        self.users -= before;
        Ok(())
    }

    fn put(&mut self, values: Vec<Vec<u8>>) -> Result<(), StoreError> {
        if values.is_empty() {
            return Ok(());
        }
        let (first, count) = (self.next, values.len() as u64);
        let numbered = values.into_iter().zip(first..);
        let txn = numbered.fold(Txn::default(), |txn, (value, number)| txn.put(&key(number), value.into()));
        self.store.txn(&txn)?;
        self.next += count;
        Ok(())
    }

    /// Whether it is worth writing anew, if `users` are registered.
    #[must_use]
    pub const fn is_long(&self, users: usize) -> bool {
        self.users > 2 * users + SPARE
    }

    fn each(&mut self, mut look: impl FnMut(&mut Self, &Entry)) -> Result<(), StoreError> {
        let mut after = String::new();
        loop {
            let page = self.store.range(PREFIX, &after, PART_LEN)?;
            page.iter().for_each(|entry| look(self, entry));
            match page.last() {
                Some(last) => after.clone_from(&last.key),
                None => return Ok(()),
            }
        }
    }
}

/// In the order of their numbers.
fn key(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

fn number(key: &str) -> Option<u64> {
    u64::from_str_radix(key.strip_prefix(PREFIX)?, 16).ok()
}

fn encode(user: &KeptUser) -> Result<Vec<u8>, StoreError> {
    // Only a map of unknown length or a failing `Serialize` can fail here, and there is neither.
    let bytes = postcard::to_allocvec(user).unwrap_or_default();
    let (len, max) = (bytes.len(), VALUE_LEN_MAX - 1);
    if len > max { Err(StoreError::TooLarge { what: "a user's contacts", len, max }) } else { Ok(bytes) }
}

fn decode(value: &[u8]) -> Option<Vec<KeptUser>> {
    let (&VERSION, mut rest) = value.split_first()? else { return None };
    let mut users = Vec::new();
    while !rest.is_empty() {
        let (user, after) = postcard::take_from_bytes(rest).ok()?;
        users.push(user);
        rest = after;
    }
    Some(users)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn user(name: &str, contacts: usize, written_at: u64) -> KeptUser {
        let contact = KeptContact {
            own: "203.0.113.1:5060".parse().unwrap(),
            peer: "[2001:db8::7]:65535".parse().unwrap(),
            uri: vec![b'u'; 512],
            tail: vec![b't'; 512],
            route: vec![vec![b'r'; 128]; 8],
            q: 1_000,
            call_id: u64::MAX,
            cseq: u32::MAX,
            granted_s: 86_400,
            expires_at: 4_000_000_000,
        };
        KeptUser { user: name.to_owned(), contacts: vec![contact; contacts], written_at }
    }

    fn path(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().join("contacts.redb")
    }

    /// Names and numbers of contacts, in the order of the names.
    fn read(dir: &tempfile::TempDir) -> (ContactLog, Vec<(String, usize)>, KeptUsers) {
        let (log, mut kept) = ContactLog::open(&path(dir), CONTACT_RECORDS_MAX).unwrap();
        kept.users.sort_by(|one, other| one.user.cmp(&other.user));
        let known = kept.users.iter().map(|user| (user.user.clone(), user.contacts.len())).collect();
        (log, known, kept)
    }

    #[test]
    fn the_last_word_on_each_user_counts_also_after_the_log_was_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, known, _) = read(&dir);
        assert_eq!(known, []);
        log.append([user("alice", 1, 100), user("bob", 1, 100), user("carol", 1, 100)]).unwrap();
        log.append([user("bob", 2, 101)]).unwrap();
        log.append([user("carol", 0, 99)]).unwrap();
        drop(log);
        let expected = [("alice".to_owned(), 1), ("bob".to_owned(), 2)];
        let (mut log, known, kept) = read(&dir);
        assert_eq!((&known[..], kept.written_at, kept.unreadable), (&expected[..], 101, 0));
        log.replace(kept.users).unwrap();
        log.append([user("alice", 0, 102)]).unwrap();
        drop(log);
        assert_eq!(read(&dir).1, expected[1..]);
    }

    #[test]
    fn a_crash_while_the_log_is_written_anew_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, ..) = read(&dir);
        log.append([user("alice", 1, 100), user("bob", 1, 100)]).unwrap();
        log.append([user("bob", 0, 101)]).unwrap();
        // All of the new is there, and all of the old.
        log.append([user("alice", 2, 102)]).unwrap();
        drop(log);
        assert_eq!(read(&dir).1, [("alice".to_owned(), 2)]);
    }

    #[test]
    fn the_log_is_long_when_most_of_it_is_old_and_as_long_as_it_must_be_when_it_was_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, ..) = read(&dir);
        let users: Vec<_> = (0..300).map(|nth| user(&format!("user-{nth}"), 1, 100)).collect();
        for _ in 0..6 {
            assert!(!log.is_long(300));
            log.append(users.clone()).unwrap();
        }
        assert!(log.is_long(300));
        drop(log);
        let (mut log, known, kept) = read(&dir);
        assert!(log.is_long(300) && known.len() == 300);
        log.replace(kept.users).unwrap();
        assert!(!log.is_long(300));
        drop(log);
        assert!(!read(&dir).0.is_long(0));
    }

    #[test]
    fn a_user_with_as_many_and_as_long_contacts_as_may_be_fits() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, ..) = read(&dir);
        let name = "u".repeat(64);
        log.append([user("alice", 1, 1), user(&name, 30, u64::MAX), user("bob", 1, 1)]).unwrap();
        drop(log);
        assert_eq!(read(&dir).1[2], (name, 30));
    }

    #[test]
    fn a_record_that_cannot_be_read_takes_with_it_what_it_may_have_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, ..) = read(&dir);
        log.append([user("alice", 1, 100)]).unwrap();
        log.store.txn(&Txn::default().put(&key(7), vec![9, 9].into()).put(&key(8), Vec::new().into())).unwrap();
        log.next = 9;
        log.append([user("bob", 1, 100)]).unwrap();
        drop(log);
        let (_, known, kept) = read(&dir);
        assert_eq!((known, kept.unreadable), (vec![("bob".to_owned(), 1)], 2));
    }
}
