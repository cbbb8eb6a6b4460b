//! Where users can be called: the location service of RFC 3261 section 10. All shards of a process share it, so a telephone
//! that registers with one of them is known to each, in one step and in the order of its requests.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluicegate_bounded::Gauge;
use sluicegate_sip::uri::Uri;
use sluicegate_wire::Instant;

use crate::transmits::{ConnectionId, Flow};

/// One binding of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Where requests for it go: over the flow that its REGISTER came over, whatever host its URI names.
    pub flow: Flow,
    /// The Request-URI of what goes there.
    pub uri: Vec<u8>,
    /// The Route of what goes there: Path of its REGISTER (RFC 3327).
    pub route: Vec<Vec<u8>>,
    /// Its preference in thousandths, 0 to 1,000.
    pub q: u16,
    /// When it ends unless it is registered again.
    pub expires: Instant,
    /// What stood behind the URI in its Contact, but for `expires`: header fields of the URI, `>`, parameters.
    pub tail: Vec<u8>,
    /// Keyed hash of the Call-ID of its last REGISTER.
    pub call_id: u64,
    /// CSeq of that.
    pub cseq: u32,
    /// For how long that was granted, in seconds.
    pub granted_s: u32,
}

impl Contact {
    /// The highest preference.
    pub(crate) const Q_MAX: u16 = 1_000;

    /// Whether a call can go there.
    pub(crate) fn is_sip(&self) -> bool {
        Uri::parse(&self.uri).is_ok_and(|uri| uri.is_sip())
    }

    /// As a Contact value, without `expires`.
    pub(crate) fn value(&self) -> Vec<u8> {
        [b"<", &self.uri[..], &self.tail].concat()
    }
}

/// The bindings of one user, preferred first.
pub type Contacts = Arc<[Arc<Contact>]>;

/// Why bindings are not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocationsFull {
    /// The user has as many as one may.
    OfUser,
    /// All users together have as many as there may be.
    OfAll,
}

/// The bindings of all users. Never more than a maximum of all together and of one user, so no user takes another's place.
#[derive(Debug)]
pub struct Locations {
    table: Mutex<Table>,
    max: usize,
    per_user_max: usize,
}

#[derive(Debug, Default)]
struct Table {
    users: HashMap<Arc<str>, Contacts>,
    /// Of each user, when the first of the bindings ends.
    by_end: BTreeSet<(Instant, Arc<str>)>,
    /// Over which connections users are reached.
    by_connection: BTreeSet<(NonZeroU32, Arc<str>)>,
    /// Whose bindings are others than were written down last. Never more than there are users who can sign in.
    changed: HashSet<Arc<str>>,
    used: usize,
}

impl Locations {
    /// An empty table for at most `max` bindings, and `per_user_max` of one user.
    #[must_use]
    pub fn new(max: usize, per_user_max: usize) -> Self {
        Self { table: Mutex::default(), max, per_user_max }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Most bindings of one user.
    pub(crate) const fn per_user_max(&self) -> usize {
        self.per_user_max
    }

    /// The bindings of a user that have not ended, preferred first.
    pub fn of(&self, now: Instant, user: &str) -> Contacts {
        let contacts = self.table().users.get(user).cloned().unwrap_or_default();
        if contacts.iter().all(|contact| contact.expires > now) { contacts } else { alive(now, &contacts) }
    }

    /// Replaces the bindings of a user by what `change` makes of those that have not ended: all of it, or on an error
    /// nothing. Other changes of the same user come before or after.
    ///
    /// # Errors
    /// That of `change`, or that there is no room.
    pub(crate) fn update<E: From<LocationsFull>>(
        &self,
        now: Instant,
        user: &str,
        change: impl FnOnce(&[Arc<Contact>]) -> Result<Vec<Arc<Contact>>, E>,
    ) -> Result<Contacts, E> {
        let mut table = self.table();
        table.end(now, user);
        let before = table.users.get(user).map_or(0, |contacts| contacts.len());
        let known = table.users.get(user).cloned().unwrap_or_default();
        let mut changed = change(&known)?;
        let more = changed.len().saturating_sub(before);
        if more > 0 && changed.len() > self.per_user_max {
            return Err(LocationsFull::OfUser.into());
        }
        if more > self.max.saturating_sub(table.used) {
            table.expire(now);
            if more > self.max.saturating_sub(table.used) {
                return Err(LocationsFull::OfAll.into());
            }
        }
        changed.sort_by_key(|contact| std::cmp::Reverse(contact.q));
        let contacts = Contacts::from(changed);
        table.put(user, contacts.clone());
        Ok(contacts)
    }

    /// A connection has ended, and with it every binding that is reached over it (RFC 5626 section 7).
    pub(crate) fn close(&self, connection: ConnectionId) {
        let mut table = self.table();
        let from = (connection.0, Arc::from(""));
        let over = table.by_connection.range(from..).take_while(|(number, _)| *number == connection.0);
        let users: Vec<Arc<str>> = over.map(|(_, user)| Arc::clone(user)).collect();
        for user in users {
            table.retain(&user, |contact| contact.flow.connection != Some(connection));
        }
    }

    /// Forgets what has ended by itself.
    pub fn expire(&self, now: Instant) {
        self.table().expire(now);
    }

    /// Ends all bindings of a user; how many there were.
    pub fn end(&self, now: Instant, user: &str) -> usize {
        let mut table = self.table();
        table.end(now, user);
        let before = table.users.get(user).map_or(0, |contacts| contacts.len());
        if before > 0 {
            table.put(user, Contacts::default());
        }
        before
    }

    /// Puts back what was known of a user before this start, as far as there is room. It is not noted as a change.
    pub fn restore(&self, now: Instant, user: &str, contacts: Vec<Contact>) {
        let mut table = self.table();
        let room = self.per_user_max.min(self.max - table.used.min(self.max));
        let live = contacts.into_iter().filter(|contact| contact.expires > now);
        let contacts: Contacts = live.take(room).map(Arc::new).collect();
        if !contacts.is_empty() && !table.users.contains_key(user) {
            table.put(user, contacts);
            table.changed.remove(user);
        }
    }

    /// Users whose bindings changed since this was last asked, with what they are now.
    pub fn take_changed(&self) -> Vec<(Arc<str>, Contacts)> {
        let mut table = self.table();
        let changed = std::mem::take(&mut table.changed);
        let known = |user: Arc<str>| {
            let contacts = table.users.get(&user).cloned().unwrap_or_default();
            (user, contacts)
        };
        changed.into_iter().map(known).collect()
    }

    /// Notes as changed what could not be written down.
    pub fn change_again(&self, users: impl IntoIterator<Item = Arc<str>>) {
        self.table().changed.extend(users);
    }

    /// Everybody's bindings; whatever changed until now is in it.
    pub fn take_all(&self) -> Vec<(Arc<str>, Contacts)> {
        let mut table = self.table();
        table.changed.clear();
        table.users.iter().map(|(user, contacts)| (Arc::clone(user), Arc::clone(contacts))).collect()
    }

    /// How many users have bindings.
    #[must_use]
    pub fn users(&self) -> usize {
        self.table().users.len()
    }

    /// How many bindings there are.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge::of("contacts", self.table().used, self.max)
    }
}

impl Table {
    fn expire(&mut self, now: Instant) {
        while let Some((_, user)) = self.by_end.first().filter(|(end, _)| *end <= now).cloned() {
            self.end(now, &user);
        }
    }

    /// Forgets what of a user has ended.
    fn end(&mut self, now: Instant, user: &str) {
        self.retain(user, |contact| contact.expires > now);
    }

    fn retain(&mut self, user: &str, is_kept: impl Fn(&Contact) -> bool) {
        let Some(contacts) = self.users.get(user) else { return };
        if contacts.iter().any(|contact| !is_kept(contact)) {
            let kept = contacts.iter().filter(|contact| is_kept(contact)).cloned().collect();
            self.put(user, kept);
        }
    }

    /// The one place where bindings change, so that the indices fit them.
    fn put(&mut self, user: &str, contacts: Contacts) {
        let known = self.users.remove_entry(user);
        let (name, old) = known.unwrap_or_else(|| (Arc::from(user), Contacts::default()));
        if let Some(end) = first_end(&old) {
            self.by_end.remove(&(end, Arc::clone(&name)));
        }
        for connection in connections(&old) {
            self.by_connection.remove(&(connection, Arc::clone(&name)));
        }
        self.used = self.used - old.len() + contacts.len();
        self.by_connection.extend(connections(&contacts).map(|connection| (connection, Arc::clone(&name))));
        self.changed.insert(Arc::clone(&name));
        if let Some(end) = first_end(&contacts) {
            self.by_end.insert((end, Arc::clone(&name)));
            self.users.insert(name, contacts);
        }
    }
}

fn alive(now: Instant, contacts: &[Arc<Contact>]) -> Contacts {
    contacts.iter().filter(|contact| contact.expires > now).cloned().collect()
}

fn first_end(contacts: &[Arc<Contact>]) -> Option<Instant> {
    contacts.iter().map(|contact| contact.expires).min()
}

fn connections(contacts: &[Arc<Contact>]) -> impl Iterator<Item = NonZeroU32> {
    contacts.iter().filter_map(|contact| contact.flow.connection).map(|connection| connection.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Instant = Instant::from_secs(100);

    fn contact(uri: &str, secs: u64, connection: Option<u32>) -> Arc<Contact> {
        let flow = Flow::datagrams(0, "198.51.100.7:5060".parse().unwrap());
        let connection = connection.and_then(NonZeroU32::new).map(ConnectionId);
        Arc::new(Contact {
            flow: Flow { connection, ..flow },
            uri: uri.into(),
            route: Vec::new(),
            q: 1_000,
            expires: NOW + Duration::from_secs(secs),
            tail: b">".to_vec(),
            call_id: 1,
            cseq: 1,
            granted_s: 60,
        })
    }

    fn add(locations: &Locations, user: &str, contact: Arc<Contact>) -> Result<Contacts, LocationsFull> {
        locations.update(NOW, user, |known| Ok([known, &[contact]].concat()))
    }

    fn uris(locations: &Locations, now: Instant, user: &str) -> Vec<String> {
        let text = |contact: &Arc<Contact>| String::from_utf8(contact.uri.clone()).unwrap();
        locations.of(now, user).iter().map(text).collect()
    }

    /// What the indices hold, which nobody sees otherwise.
    fn indexed(locations: &Locations) -> (usize, usize, usize) {
        let table = locations.table();
        (table.users.len(), table.by_end.len(), table.by_connection.len())
    }

    #[test]
    fn bindings_end_by_their_time_one_by_one_and_leave_nothing_behind() {
        let locations = Locations::new(10, 10);
        add(&locations, "alice", contact("sip:a@1", 60, None)).unwrap();
        add(&locations, "alice", contact("sip:a@2", 120, Some(7))).unwrap();
        let (before, after) = (NOW + Duration::from_secs(59), NOW + Duration::from_secs(60));
        assert_eq!(uris(&locations, before, "alice"), ["sip:a@1", "sip:a@2"]);
        assert_eq!(uris(&locations, after, "alice"), ["sip:a@2"], "nobody is called there, swept or not");
        locations.expire(after);
        assert_eq!((locations.gauge().used, indexed(&locations)), (1, (1, 1, 1)));
        locations.expire(NOW + Duration::from_secs(120));
        assert_eq!((locations.gauge().used, indexed(&locations)), (0, (0, 0, 0)));
    }

    #[test]
    fn a_connection_takes_with_it_what_was_reached_over_it_of_all_users() {
        let locations = Locations::new(10, 10);
        for (user, uri, connection) in [
            ("alice", "sip:a@1", Some(7)),
            ("alice", "sip:a@2", None),
            ("bob", "sip:b@1", Some(7)),
            ("bob", "sip:b@2", Some(8)),
        ] {
            add(&locations, user, contact(uri, 60, connection)).unwrap();
        }
        locations.close(ConnectionId(NonZeroU32::new(7).unwrap()));
        assert_eq!(uris(&locations, NOW, "alice"), ["sip:a@2"]);
        assert_eq!(uris(&locations, NOW, "bob"), ["sip:b@2"]);
        assert_eq!(indexed(&locations), (2, 2, 1));
    }

    #[test]
    fn one_user_fills_its_own_share_and_all_together_the_table() {
        let locations = Locations::new(3, 2);
        let more = |user: &str, nth: usize| add(&locations, user, contact(&format!("sip:{nth}@1"), 60, None));
        assert!(more("alice", 0).is_ok() && more("alice", 1).is_ok());
        assert_eq!(more("alice", 2).unwrap_err(), LocationsFull::OfUser);
        assert!(more("bob", 0).is_ok());
        assert_eq!(more("bob", 1).unwrap_err(), LocationsFull::OfAll);
        assert_eq!(locations.gauge(), Gauge { name: "contacts", used: 3, max: 3 });
        // What has ended makes room, also before anybody swept.
        let later = NOW + Duration::from_secs(60);
        let late = |known: &[Arc<Contact>]| {
            assert!(known.is_empty());
            Ok::<_, LocationsFull>(vec![contact("sip:c@1", 120, None)])
        };
        assert!(locations.update(later, "carol", late).is_ok());
        assert_eq!(locations.gauge().used, 1);
    }

    #[test]
    fn a_change_that_fails_changes_nothing() {
        let locations = Locations::new(10, 10);
        add(&locations, "alice", contact("sip:a@1", 60, None)).unwrap();
        let refused = locations.update(NOW, "alice", |_| Err(LocationsFull::OfUser));
        assert!(refused.is_err());
        assert_eq!(uris(&locations, NOW, "alice"), ["sip:a@1"]);
    }
}
