use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};
use sluicegate_policy::{Draft, Group, Rule, Service, User, is_name};
use zeroize::Zeroizing;

use crate::{Expect, Gate, Store, StoreError, Txn};

/// The version byte in front of every stored record.
const RECORD_VERSION: u8 = 4;
/// Versions before, whose services ended so many fields earlier. Nothing, empty and no are a zero byte each.
const EARLIER: [(u8, usize); 2] = [(2, 5), (3, 1)];
/// Records read from the store at a time.
pub(crate) const PAGE_LEN: usize = 1_024;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A [`User`].
    User,
    /// A [`Group`].
    Group,
    /// A [`Service`].
    Service,
    /// A [`Rule`].
    Rule,
    /// A [`Gate`].
    Gate,
}

impl Kind {
    /// The name in commands and messages, and the first part of its keys.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Service => "service",
            Self::Rule => "rule",
            Self::Gate => "gate",
        }
    }

    pub(crate) fn key(self, name: &str) -> String {
        format!("{}/{name}", self.label())
    }
}

impl core::fmt::Display for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.label())
    }
}

/// Something that the directory keeps by name.
pub trait Record: Serialize + DeserializeOwned {
    /// What it is.
    const KIND: Kind;

    /// Its name, unique among its kind.
    fn name(&self) -> &str;
}

macro_rules! records {
    ($($type:ident),*) => {$(
        impl Record for $type {
            const KIND: Kind = Kind::$type;

            fn name(&self) -> &str {
                &self.name
            }
        }
    )*};
}

records!(User, Group, Service, Rule, Gate);

/// Why the directory could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The store failed or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The name is taken.
    #[error("{kind} {name:?} exists already; remove it first, or choose another name")]
    Exists {
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// There is no such thing.
    #[error("there is no {kind} {name:?}; `sluicegate {kind} ls` lists them")]
    Missing {
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// No name that can be used.
    #[error(
        "{name:?} cannot name a {kind}: use 1 to 64 letters, digits, '.', '_', '-' or '+', not starting with '.' or '-'"
    )]
    Name {
        /// What it is.
        kind: Kind,
        /// The name, cut to a sane length.
        name: String,
    },
    /// A record that this version cannot read.
    #[error(
        "the stored record {key:?} cannot be read ({detail}); upgrade sluicegate, or remove the record and add it anew"
    )]
    Unreadable {
        /// Its key.
        key: String,
        /// What was found.
        detail: &'static str,
    },
}

/// Users, groups, services, rules and gates by name, on top of a [`Store`].
#[derive(Clone)]
pub struct Directory {
    store: Arc<Store>,
}

impl Directory {
    /// The directory in this store.
    #[must_use]
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    /// The store underneath.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Adds something new.
    ///
    /// # Errors
    /// [`DirectoryError::Exists`] if the name is taken, [`DirectoryError::Name`] if it is none.
    pub fn add<R: Record>(&self, record: &R) -> Result<(), DirectoryError> {
        self.add_all(std::slice::from_ref(record))
    }

    /// Adds all of these or none, at most [`OPS_MAX`](crate::OPS_MAX).
    ///
    /// # Errors
    /// As [`Directory::add`], about the first that cannot be added.
    pub fn add_all<R: Record>(&self, records: &[R]) -> Result<(), DirectoryError> {
        self.put_all(records, Expect::Absent, |name| DirectoryError::Exists { kind: R::KIND, name })
    }

    /// Replaces what has the same name.
    ///
    /// # Errors
    /// [`DirectoryError::Missing`] if nothing has.
    pub fn replace<R: Record>(&self, record: &R) -> Result<(), DirectoryError> {
        self.replace_all(std::slice::from_ref(record))
    }

    /// Replaces what has the same names, all or none, at most [`OPS_MAX`](crate::OPS_MAX).
    ///
    /// # Errors
    /// As [`Directory::replace`], about the first that is missing.
    pub fn replace_all<R: Record>(&self, records: &[R]) -> Result<(), DirectoryError> {
        self.put_all(records, Expect::Present, |name| DirectoryError::Missing { kind: R::KIND, name })
    }

    /// Writes all of these if `expect` is true of each; `otherwise` says of the first that it is not.
    fn put_all<R: Record>(
        &self,
        records: &[R],
        expect: Expect,
        otherwise: impl FnOnce(String) -> DirectoryError,
    ) -> Result<(), DirectoryError> {
        let mut txn = Txn::default();
        for record in records {
            let key = checked_key(record)?;
            txn = txn.when(&key, expect).put(&key, encode(record));
        }
        self.run(&txn, |key| otherwise(key.strip_prefix(&R::KIND.key("")).unwrap_or(&key).to_owned()))
    }

    /// Reads, changes and writes one record, and again if someone else changed it meanwhile.
    ///
    /// # Errors
    /// [`DirectoryError::Missing`] if there is none.
    pub fn change<R: Record>(&self, name: &str, mut f: impl FnMut(&mut R)) -> Result<(), DirectoryError> {
        let missing = || DirectoryError::Missing { kind: R::KIND, name: name.into() };
        let key = R::KIND.key(name);
        loop {
            let entry = self.store.get(&key)?.ok_or_else(missing)?;
            let mut record: R = decode(&key, &entry.value)?;
            f(&mut record);
            if record.name() != name {
                return Err(DirectoryError::Name { kind: R::KIND, name: record.name().chars().take(80).collect() });
            }
            let txn = Txn::default().when(&key, Expect::At(entry.revision)).put(&key, encode(&record));
            match self.store.txn(&txn) {
                // Whoever was faster made progress, so this ends.
                Err(StoreError::Conflict { .. }) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }

    /// Removes what has this name.
    ///
    /// # Errors
    /// [`DirectoryError::Missing`] if nothing has.
    pub fn remove<R: Record>(&self, name: &str) -> Result<(), DirectoryError> {
        let key = R::KIND.key(name);
        let txn = Txn::default().when(&key, Expect::Present).delete(&key);
        self.run(&txn, |_| DirectoryError::Missing { kind: R::KIND, name: name.into() })
    }

    /// What has this name.
    ///
    /// # Errors
    /// If the store fails or the record cannot be read.
    pub fn find<R: Record>(&self, name: &str) -> Result<Option<R>, DirectoryError> {
        let key = R::KIND.key(name);
        self.store.get(&key)?.map(|entry| decode(&key, &entry.value)).transpose()
    }

    /// All of one kind, in the order of their names.
    ///
    /// # Errors
    /// If the store fails or a record cannot be read.
    pub fn all<R: Record>(&self) -> Result<Vec<R>, DirectoryError> {
        let prefix = R::KIND.key("");
        let mut after = String::new();
        let mut records = Vec::new();
        loop {
            let page = self.store.range(&prefix, &after, PAGE_LEN)?;
            for entry in &page {
                records.push(decode(&entry.key, &entry.value)?);
            }
            match page.last() {
                Some(last) if page.len() == PAGE_LEN => after.clone_from(&last.key),
                _ => return Ok(records),
            }
        }
    }

    /// Everything that a policy is made from.
    ///
    /// # Errors
    /// If the store fails or a record cannot be read.
    pub fn draft(&self) -> Result<Draft, DirectoryError> {
        Ok(Draft {
            users: self.all()?,
            groups: self.all()?,
            services: self.all()?,
            rules: self.all()?,
            ..Draft::default()
        })
    }

    pub(crate) fn run(&self, txn: &Txn, conflict: impl FnOnce(String) -> DirectoryError) -> Result<(), DirectoryError> {
        match self.store.txn(txn) {
            Err(StoreError::Conflict { key }) => Err(conflict(key)),
            other => Ok(other.map(drop)?),
        }
    }
}

pub(crate) fn checked_key<R: Record>(record: &R) -> Result<String, DirectoryError> {
    let name = record.name();
    if !is_name(name) {
        return Err(DirectoryError::Name { kind: R::KIND, name: name.chars().take(80).collect() });
    }
    Ok(R::KIND.key(name))
}

pub(crate) fn encode<R: Serialize>(record: &R) -> Zeroizing<Vec<u8>> {
    // Room from the start: growing would leave copies of credentials behind.
    let mut bytes = Vec::with_capacity(4_096);
    bytes.push(RECORD_VERSION);
    // Only a map of unknown length or a failing `Serialize` can fail here, and our records have neither.
    let bytes = postcard::to_extend(record, bytes).unwrap_or_default();
    debug_assert!(!bytes.is_empty());
    Zeroizing::new(bytes)
}

pub(crate) fn decode<R: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<R, DirectoryError> {
    let unreadable = |detail| DirectoryError::Unreadable { key: key.into(), detail };
    let exactly = |record: &[u8]| match postcard::take_from_bytes(record) {
        Ok((record, [])) => Ok(record),
        Ok(_) => Err(unreadable("longer than its content")),
        Err(_) => Err(unreadable("its content is damaged")),
    };
    match bytes.split_first() {
        Some((&RECORD_VERSION, record)) => exactly(record),
        Some((version, record)) => {
            let earlier = EARLIER.iter().find(|(earlier, _)| earlier == version);
            let (_, missing) = earlier.ok_or_else(|| unreadable("another version wrote it"))?;
            exactly(record).or_else(|_| exactly(&Zeroizing::new([record, &vec![0; *missing]].concat())))
        }
        None => Err(unreadable("it is empty")),
    }
}
