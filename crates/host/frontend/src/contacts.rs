//! Where users' telephones are, on disk: a frontend that starts anew calls them where the one before would have.
//!
//! What changed is written together, so that a hundred thousand telephones cost a write every few seconds. A process that is
//! killed loses what changed since the last one: a telephone that registered then is called again when it next registers.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sluicegate_api::ContactStatus;
use sluicegate_policy::Policy;
use sluicegate_proxy::{Contact, Contacts, Flow, Listening, Locations, Tables};
use sluicegate_sip::message::Transport;
use sluicegate_store::{CONTACT_RECORDS_MAX, ContactLog, KeptContact, KeptUser, KeptUsers, StoreError};
use sluicegate_wire::{Instant, Pace, UnixTime};

use crate::clock::Clock;

/// Their file in the state directory. It is in no backup.
const FILE: &str = "contacts.redb";
/// What is appended to the name of one that cannot be read.
const DAMAGED: &str = ".damaged";
/// Between two writes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Between two writes to a disk that takes long for one.
const INTERVAL_MAX: Duration = Duration::from_secs(30);
/// The disk is busy with them for one part in so many at most.
const SHARE: u32 = 20;
/// A wall clock that is off by so much from what it was at the last write was set.
const CLOCK_STEP_S: u64 = 5;

/// Lines about a disk that takes nothing.
static NOT_WRITTEN: Pace = Pace::per_second(1);

/// Keeps the file.
pub(crate) struct ContactFile {
    clock: Clock,
    /// Where users can be called now.
    pub(crate) locations: Arc<Locations>,
    listening: Vec<Listening>,
    writing: Mutex<Writing>,
    /// Why the last write failed. Not behind what a slow disk holds up.
    error: Mutex<Option<String>>,
}

struct Writing {
    log: ContactLog,
    /// Unix second of the clock's start, as the wall clock said at the last write: it changes when that is set.
    epoch: u64,
}

/// A file that is open, and what was in it.
pub(crate) struct OpenedContacts {
    log: ContactLog,
    kept: KeptUsers,
}

impl OpenedContacts {
    /// Opens the file in `state_dir`, or begins one. A damaged one is moved away: the telephones are called again when they
    /// next register.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join(FILE);
        let opened = match ContactLog::open(&path, CONTACT_RECORDS_MAX) {
            Err(error @ (StoreError::Corrupt { .. } | StoreError::Format { .. } | StoreError::Failed(_))) => {
                tracing::error!(%error, "no telephone is called until it registers again");
                let away = state_dir.join([FILE, DAMAGED].concat());
                fs::rename(&path, &away).map_err(|source| StoreError::Open { path: path.clone(), source })?;
                ContactLog::open(&path, CONTACT_RECORDS_MAX)
            }
            opened => opened,
        };
        opened.map(|(log, kept)| Self { log, kept })
    }

    /// Puts back who was registered where, of those who may be registered now, and keeps the file from here on.
    pub(crate) fn restore(
        self,
        clock: Clock,
        tables: &Tables,
        listening: Vec<Listening>,
        policy: &Policy,
    ) -> ContactFile {
        let Self { log, kept } = self;
        let locations = Arc::new(Locations::new(tables.contacts_max, tables.contacts_per_user_max));
        if kept.unreadable > 0 {
            tracing::warn!(records = kept.unreadable, "some telephones are called only when they register again");
        }
        let (now, unix) = (clock.now(), clock.unix());
        // Set back since, it would have them live longer: then it counts as if no time had passed.
        let at = unix.0.max(kept.written_at);
        for KeptUser { user, contacts, .. } in kept.users {
            if policy.user(&user).is_some_and(|user| user.may_register()) {
                let contacts = contacts.into_iter().filter_map(|kept| contact(kept, &listening, (now, at)));
                locations.restore(now, &user, contacts.collect());
            }
        }
        let restored = locations.gauge().used;
        tracing::info!(contacts = restored, "telephones that were registered before are called where they were");
        let writing = Mutex::new(Writing { log, epoch: epoch(now, unix) });
        ContactFile { clock, locations, listening, writing, error: Mutex::default() }
    }
}

impl ContactFile {
    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what has ended, and writes down what has changed. It is on disk when this returns.
    pub(crate) fn write(&self) {
        let mut writing = self.writing();
        let (now, unix) = (self.clock.now(), self.clock.unix());
        self.locations.expire(now);
        let was_set = writing.epoch.abs_diff(epoch(now, unix)) > CLOCK_STEP_S;
        let is_anew = was_set || writing.log.is_long(self.locations.users());
        let changed = if is_anew { self.locations.take_all() } else { self.locations.take_changed() };
        let users = changed.iter().map(|user| self.kept(user, (now, unix)));
        let written = if is_anew { writing.log.replace(users) } else { writing.log.append(users) };
        match &written {
            Ok(()) => writing.epoch = epoch(now, unix),
            Err(error) => {
                self.locations.change_again(changed.into_iter().map(|(user, _)| user));
                if let Some(left_out) = NOT_WRITTEN.admit(now) {
                    tracing::error!(%error, left_out, "where telephones are registered was not written down");
                }
            }
        }
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = written.err().map(|error| error.to_string());
    }

    /// Ends all contacts of a user, on disk too; how many there were.
    pub(crate) fn end(&self, user: &str) -> usize {
        let ended = self.locations.end(self.clock.now(), user);
        self.write();
        ended
    }

    /// Where a user is called now, preferred first.
    pub(crate) fn of(&self, user: &str) -> Vec<ContactStatus> {
        let (now, unix) = (self.clock.now(), self.clock.unix());
        self.locations.of(now, user).iter().map(|contact| shown(contact, (now, unix))).collect()
    }

    /// Why the disk does not have what it should.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn kept(&self, (user, contacts): &(Arc<str>, Contacts), (now, unix): (Instant, UnixTime)) -> KeptUser {
        let contacts = contacts.iter().filter_map(|contact| kept(contact, &self.listening, (now, unix)));
        KeptUser { user: user.to_string(), contacts: contacts.collect(), written_at: unix.0 }
    }
}

/// Writes down what changes, as often as the disk takes it.
pub(crate) async fn keep(file: Arc<ContactFile>) {
    let mut pause = INTERVAL;
    loop {
        tokio::time::sleep(pause).await;
        let file = Arc::clone(&file);
        let writing = tokio::task::spawn_blocking(move || {
            let begun = std::time::Instant::now();
            file.write();
            begun.elapsed()
        });
        let took = writing.await.unwrap_or(INTERVAL_MAX);
        pause = took.saturating_mul(SHARE).clamp(INTERVAL, INTERVAL_MAX);
    }
}

fn shown(contact: &Contact, (now, unix): (Instant, UnixTime)) -> ContactStatus {
    let printed = |bytes: &[u8]| bytes.escape_ascii().to_string();
    ContactStatus {
        uri: printed(&contact.uri),
        peer: contact.flow.peer,
        connected: contact.flow.connection.is_some(),
        q: f64::from(contact.q) / 1_000.0,
        expires_at: unix.plus_secs(contact.expires.since(now).as_secs()).0,
        path: contact.route.iter().map(|value| printed(value)).collect(),
    }
}

/// Unix second of the clock's start.
fn epoch(now: Instant, unix: UnixTime) -> u64 {
    unix.0.saturating_sub(now.since(Instant::ZERO).as_secs())
}

/// A contact as it is written down. A connection ends with the process, and what is reached over it with that.
fn kept(contact: &Contact, listening: &[Listening], (now, unix): (Instant, UnixTime)) -> Option<KeptContact> {
    let Flow { listener, peer, connection: None } = contact.flow else { return None };
    let own = listening.get(usize::from(listener)).filter(|own| own.transport == Transport::Udp)?.address;
    Some(KeptContact {
        own,
        peer,
        uri: contact.uri.clone(),
        tail: contact.tail.clone(),
        route: contact.route.clone(),
        q: contact.q,
        call_id: contact.call_id,
        cseq: contact.cseq,
        granted_s: contact.granted_s,
        expires_at: unix.plus_secs(contact.expires.since(now).as_secs()).0,
    })
}

/// A contact as it was, if there still is the address that it is reached from; `at` is the Unix second that counts.
fn contact(kept: KeptContact, listening: &[Listening], (now, at): (Instant, u64)) -> Option<Contact> {
    let listener = listening.iter().position(|own| own.transport == Transport::Udp && own.address == kept.own)?;
    let left = kept.expires_at.saturating_sub(at).min(kept.granted_s.into());
    Some(Contact {
        flow: Flow::datagrams(u8::try_from(listener).ok()?, kept.peer),
        uri: kept.uri,
        route: kept.route,
        q: kept.q,
        expires: now + Duration::from_secs(left),
        tail: kept.tail,
        call_id: kept.call_id,
        cseq: kept.cseq,
        granted_s: kept.granted_s,
    })
}

#[cfg(test)]
mod tests;
