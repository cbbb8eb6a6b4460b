//! What one frontend has of another: users, groups and services as records, and the file that brought them.

use serde::{Deserialize, Serialize};
use sluicegate_policy::{Draft, Group, Service, User};
use zeroize::Zeroizing;

use crate::{
    DirectoryError, Kind, Record, VALUE_LEN_MAX,
    directory::{checked_key, decode},
};

pub(crate) const PREFIX: &str = "issued/";
pub(crate) const TAKEN: &str = "issued/taken";
pub(crate) const PART_PREFIX: &str = "issued/part/";
/// Longest file, in bytes.
pub const ISSUED_BYTES_MAX: usize = 24 << 20;
/// What a table is made of, in this order.
pub(crate) const KINDS: [Kind; 3] = [Kind::User, Kind::Group, Kind::Service];

/// Records of users, groups and services by their keys, as one frontend stores them and another is to.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct UserTable(pub(crate) Vec<(String, Zeroizing<Vec<u8>>)>);

/// The last file that was taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenFile {
    /// Its number.
    pub number: u64,
    /// When that was, in Unix seconds.
    pub at: u64,
    /// Whether it had users, which are the other frontend's to change then.
    pub has_users: bool,
}

impl UserTable {
    /// How many records it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// How many bytes they take, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.len() + 8).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The users, groups and services in it.
    ///
    /// # Errors
    /// If one cannot be read, is not what its key says, or stands where it may not.
    pub fn read(&self) -> Result<Draft, DirectoryError> {
        let mut draft = Draft::default();
        let mut before = "";
        for (key, bytes) in &self.0 {
            let wrong = |detail| DirectoryError::Unreadable { key: key.chars().take(80).collect(), detail };
            let kind = KINDS.into_iter().find(|kind| key.starts_with(&kind.key("")));
            match kind.ok_or_else(|| wrong("it is none of a user, group or service"))? {
                Kind::User => draft.users.push(read::<User>(key, bytes)?),
                Kind::Group => draft.groups.push(read::<Group>(key, bytes)?),
                _ => draft.services.push(read::<Service>(key, bytes)?),
            }
            if bytes.len() > VALUE_LEN_MAX {
                return Err(wrong("it is longer than a record may be"));
            }
            if key.as_str() == before {
                return Err(wrong("it is there twice"));
            }
            before = key;
        }
        Ok(draft)
    }
}

fn read<R: Record>(key: &str, bytes: &[u8]) -> Result<R, DirectoryError> {
    let record: R = decode(key, bytes)?;
    if checked_key(&record)? == key {
        return Ok(record);
    }
    Err(DirectoryError::Unreadable { key: key.to_owned(), detail: "it is another's" })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Directory, Store, StoreError, directory::encode};

    fn directory(dir: &tempfile::TempDir, name: &str, entries_max: u64) -> Directory {
        Directory::new(Arc::new(Store::open(&dir.path().join(name), entries_max).unwrap()))
    }

    fn taken(number: u64) -> TakenFile {
        TakenFile { number, at: 7, has_users: true }
    }

    #[test]
    fn a_table_takes_the_place_of_what_there_was_and_is_read_back_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (directory(&dir, "a", 10_000), directory(&dir, "b", 10_000));
        let names = |count: u32| (0..count).map(|number| User::new(&format!("user-{number:05}"))).collect::<Vec<_>>();
        for some in names(2_100).chunks(200) {
            from.add_all(some).unwrap();
        }
        from.add(&Group { name: "staff".into(), description: String::new() }).unwrap();
        to.add_all(&[User::new("bob"), User::new("user-00001")]).unwrap();
        let table = from.table().unwrap();
        assert_eq!((table.len(), table.read().unwrap().users.len()), (2_101, 2_100));
        assert_eq!(to.taken().unwrap(), None);
        let file = vec![3; VALUE_LEN_MAX + 1];
        to.take(taken(5), &file, Some(&table)).unwrap();
        assert_eq!((to.taken().unwrap(), to.taken_file().unwrap()), (Some(taken(5)), file));
        assert_eq!(to.all::<User>().unwrap(), names(2_100), "and bob is gone");
        from.remove::<User>("user-00007").unwrap();
        to.take(taken(6), b"short", Some(&from.table().unwrap())).unwrap();
        assert_eq!((to.all::<User>().unwrap().len(), to.taken_file().unwrap()), (2_099, b"short".to_vec()));
        to.take(taken(7), b"", None).unwrap();
        assert_eq!(to.all::<User>().unwrap().len(), 2_099, "a file without users leaves them alone");
    }

    #[test]
    fn a_table_that_does_not_fit_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (directory(&dir, "a", 100), directory(&dir, "b", 4));
        from.add_all(&(0..9).map(|number| User::new(&format!("user-{number}"))).collect::<Vec<_>>()).unwrap();
        to.add(&User::new("bob")).unwrap();
        let full = to.take(taken(1), b"file", Some(&from.table().unwrap())).unwrap_err();
        assert!(matches!(full, DirectoryError::Store(StoreError::Full { max: 4 })), "{full}");
        assert_eq!((to.taken().unwrap(), to.all::<User>().unwrap().len()), (None, 1));
    }

    #[test]
    fn records_that_stand_where_they_may_not_are_not_read() {
        let record = |name: &str| encode(&User::new(name));
        for (key, value) in [
            ("gate/west", record("west")),
            ("user/alice", record("bob")),
            ("user/../alice", record("../alice")),
            ("user/alice", Zeroizing::new(vec![1, 2, 3])),
            ("revoke/1", record("alice")),
        ] {
            assert!(UserTable(vec![(key.to_owned(), value)]).read().is_err(), "{key}");
        }
        let twice = UserTable(vec![("user/a".into(), record("a")), ("user/a".into(), record("a"))]);
        assert!(twice.read().is_err());
    }
}
