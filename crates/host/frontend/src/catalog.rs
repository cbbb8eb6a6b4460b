//! Users, groups, services and rules, from configuration and store together: read as one policy, edited through the
//! store. Works in a running frontend and, while none runs, for commands on their own.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use sluicegate_api::{self as api, Configured, NewUser, UserChange};
use sluicegate_policy::{Bounds, Draft, Finding, Group, PerUser, Policy, Service, Severity, SipPeer, Subject, User};
use sluicegate_store::{
    Directory, DirectoryError, ENTRIES_MAX, Kind, OPS_MAX, Store, StoreError,
    password::{PasswordError, credentials},
};

use crate::holder::{Holder, HolderError, KeyHolder};

/// The store's file in the state directory.
pub(crate) const STORE_FILE: &str = "store.redb";

/// Why something cannot be added, changed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The store failed or refused.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The password cannot be used.
    #[error(transparent)]
    Password(#[from] PasswordError),
    /// The key holder did not do it.
    #[error(transparent)]
    Holder(#[from] HolderError),
    /// With the change, users, services and rules would not fit together; nothing was changed.
    #[error("{}", list(.0))]
    Policy(Vec<Finding>),
    /// A user who is to be added is there.
    #[error("user {0:?} exists; change it with `sluicegate user mod`, `user passwd`, `user disable` or `user enable`")]
    UserExists(String),
    /// A group that is not there.
    #[error("there is no group {0:?}; `sluicegate group ls` lists them, `sluicegate group add {0}` makes it")]
    NoGroup(String),
    /// Something else needs it.
    #[error(
        "{kind} {name:?} is still used by {by}; change those first (`user mod`, `service mod`), nothing was removed"
    )]
    Used {
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
        /// By what, the first few by name.
        by: String,
    },
    /// More than fit into one change.
    #[error("{0} services are too many for one change; give at most {OPS_MAX} in one file, nothing was changed")]
    TooMany(usize),
    /// They are another frontend's to change.
    #[error(
        "users, groups and stored services of this frontend are those of the frontend that has the site's key holder; change \
         them there: what was changed is here once it is sent, or issued and loaded (`key issue`, `key load`)"
    )]
    Replica,
    /// It stands in the configuration file, where it has to be changed.
    #[error("{kind} {name:?} stands in the configuration file; change it there, then `sluicegate reload`")]
    Configured {
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
    },
}

/// What follows from an edit where a frontend runs.
#[derive(Debug, Default)]
pub struct Edited {
    /// What agents sign in with is other than it was.
    pub(crate) agents: bool,
    /// Users whose grants end: disabled, or removed.
    pub(crate) users: Vec<String>,
    /// Services whose grants end: gone, or reached otherwise now.
    pub services: Vec<String>,
    /// Peers whose grants end, as users are named: gone, or known otherwise now.
    pub(crate) peers: Vec<String>,
}

fn list(findings: &[Finding]) -> String {
    let lines = findings.iter().filter(|finding| finding.severity == Severity::Error);
    lines
        .map(|finding| format!("{}: {}; {}", finding.subject, finding.message, finding.hint))
        .collect::<Vec<_>>()
        .join("\n")
}

/// `user` with its changed groups, or its right to log in.
fn apply(change: &UserChange, user: &mut User) {
    let mut groups = change.groups.clone().unwrap_or_else(|| user.groups.clone());
    groups.extend(change.add.iter().cloned());
    groups.retain(|group| !change.remove.contains(group));
    groups.sort();
    groups.dedup();
    user.groups = groups;
    user.enabled = change.enabled.unwrap_or(user.enabled);
}

/// The site's users, groups, services and rules.
#[derive(Clone)]
pub struct Catalog {
    directory: Directory,
    holder: Arc<Holder>,
    realm: String,
    configured: Arc<ArcSwap<Configured>>,
    per_user: PerUser,
    bounds: Bounds,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").field("realm", &self.realm).finish_non_exhaustive()
    }
}

impl Catalog {
    /// Opens the store in `state_dir`, to be read together with what the configuration file says. What
    /// agents sign in with is held by `keyholder`.
    ///
    /// # Errors
    /// If the store cannot be opened, for example because a running frontend has it open.
    pub fn open(
        state_dir: &Path,
        realm: &str,
        (configured, per_user): (Configured, PerUser),
        keyholder: &KeyHolder,
    ) -> Result<Self, StoreError> {
        let path: PathBuf = state_dir.join(STORE_FILE);
        let store = Store::open(&path, ENTRIES_MAX)?;
        let directory = Directory::new(Arc::new(store));
        let holder = Arc::new(Holder::new(keyholder.clone(), realm));
        let configured = Arc::new(ArcSwap::from_pointee(configured));
        Ok(Self { directory, holder, realm: realm.to_owned(), configured, per_user, bounds: Bounds::default() })
    }

    /// The store underneath.
    #[must_use]
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Where the secrets of agents' users are.
    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Everything as one policy, and what looks wrong with it.
    ///
    /// # Errors
    /// If the store cannot be read, or with all findings if one of them is an error.
    pub fn policy(&self) -> Result<(Policy, Vec<Finding>), EditError> {
        Policy::build(self.draft()?, self.bounds).map_err(EditError::Policy)
    }

    /// What configuration and store say, unchecked. A name in the configuration file hides the same one in the store.
    pub(crate) fn draft(&self) -> Result<Draft, EditError> {
        self.draft_with(&self.configured.load())
    }

    fn draft_with(&self, configured: &Configured) -> Result<Draft, EditError> {
        Ok(self.completed(self.directory.draft()?, configured))
    }

    /// What is stored, with what the configuration says.
    pub(crate) fn with_configured(&self, stored: Draft) -> Draft {
        self.completed(stored, &self.configured.load())
    }

    fn completed(&self, mut draft: Draft, configured: &Configured) -> Draft {
        draft.services.retain(|stored| configured.services.iter().all(|own| own.name != stored.name));
        draft.rules.retain(|stored| configured.rules.iter().all(|own| own.name != stored.name));
        draft.services.splice(0..0, configured.services.iter().cloned());
        draft.rules.splice(0..0, configured.rules.iter().cloned());
        draft.peers.clone_from(&configured.peers);
        draft.per_user = self.per_user;
        draft
    }

    pub(crate) const fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Puts other services and rules in the place of those that the configuration file had.
    ///
    /// # Errors
    /// If they do not fit together with each other and the store; nothing was changed then.
    pub fn configure(&self, new: &Configured) -> Result<Edited, EditError> {
        let (before, after) = (self.services()?, self.draft_with(new)?);
        let (moved, peers) = (moved(&before, &after.services), unknown(&self.configured.load().peers, &after.peers));
        Policy::build(after, self.bounds).map_err(EditError::Policy)?;
        self.configured.store(Arc::new(new.clone()));
        Ok(Edited { services: moved, peers, ..Edited::default() })
    }

    /// Whether the site would still fit together after `change`; errors that are there already do not count.
    fn try_change(&self, change: impl FnOnce(&mut Draft)) -> Result<(), EditError> {
        let mut draft = self.draft()?;
        let before = draft.check(&self.bounds);
        change(&mut draft);
        let mut new = draft.check(&self.bounds);
        new.retain(|finding| finding.severity == Severity::Error && !before.contains(finding));
        if new.is_empty() { Ok(()) } else { Err(EditError::Policy(new)) }
    }

    /// Adds these users, or none of them; at most [`OPS_MAX`](sluicegate_store::OPS_MAX) at once.
    ///
    /// # Errors
    /// If a name is taken or given twice, or a password cannot be used; or if the key holder does not take the secrets,
    /// and then the users are not there either.
    pub fn users_add(&self, new: &[NewUser]) -> Result<Edited, EditError> {
        self.own()?;
        let users = new.iter().map(|new| self.user(new)).collect::<Result<Vec<User>, _>>()?;
        let draft = self.draft()?;
        if let Some(known) = users.iter().find(|new| draft.users.iter().any(|known| known.name == new.name)) {
            return Err(EditError::UserExists(known.name.clone()));
        }
        groups_exist(&draft, users.iter().flat_map(|user| &user.groups))?;
        self.try_change(|draft| draft.users.extend(users.iter().cloned()))?;
        self.directory.add_all(&users)?;
        let secrets = new.iter().filter_map(|new| Some((new.name.as_str(), new.key.as_deref()?)));
        if let Err(error) = self.holder.put(secrets) {
            for user in &users {
                self.directory.remove::<User>(&user.name)?;
            }
            return Err(error.into());
        }
        Ok(Edited { agents: true, ..Edited::default() })
    }

    fn user(&self, new: &NewUser) -> Result<User, PasswordError> {
        let password = new.password.as_ref();
        let credentials = password.map(|password| credentials(&new.name, &self.realm, password)).transpose()?;
        let groups = new.groups.clone();
        Ok(User { phone: credentials.is_some(), credentials, groups, ..User::new(&new.name) })
    }

    /// Changes a user's groups, or whether the user may log in.
    ///
    /// # Errors
    /// If there is no such user or group.
    pub fn user_change(&self, name: &str, change: &UserChange) -> Result<Edited, EditError> {
        self.own()?;
        groups_exist(&self.draft()?, change.groups.iter().flatten().chain(&change.add))?;
        self.directory.change(name, |user: &mut User| apply(change, user))?;
        let is_disabled = change.enabled == Some(false);
        Ok(Edited { users: is_disabled.then(|| name.to_owned()).into_iter().collect(), ..Edited::default() })
    }

    /// Replaces what a user signs in with: the password of phones if the user has any, and the secret of agents.
    ///
    /// # Errors
    /// If there is no such user, or the password cannot be used; or if the key holder does not take the secret, and then
    /// the old password is good again.
    pub fn user_password(&self, new: &NewUser) -> Result<Edited, EditError> {
        self.own()?;
        let credentials = self.user(new)?.credentials;
        let mut before = None;
        self.directory.change(&new.name, |user: &mut User| {
            before = Some(user.credentials.clone());
            if user.phone && credentials.is_some() {
                user.credentials.clone_from(&credentials);
            }
        })?;
        let secret = new.key.iter().map(|key| (new.name.as_str(), &**key));
        if let Err(error) = self.holder.put(secret) {
            let before = before.flatten();
            self.directory.change(&new.name, |user: &mut User| user.credentials.clone_from(&before))?;
            return Err(error.into());
        }
        Ok(Edited { agents: true, ..Edited::default() })
    }

    /// Removes a user.
    ///
    /// # Errors
    /// If there is none, or something still names it.
    pub fn user_remove(&self, name: &str) -> Result<Edited, EditError> {
        self.own()?;
        self.try_change(|draft| draft.users.retain(|user| user.name != name))?;
        self.directory.remove::<User>(name)?;
        self.holder.remove(name)?;
        Ok(Edited { agents: true, users: vec![name.to_owned()], ..Edited::default() })
    }

    /// All users, without what their passwords are checked against.
    ///
    /// # Errors
    /// If the store fails.
    pub fn users(&self) -> Result<Vec<api::User>, EditError> {
        Ok(self.directory.all()?.into_iter().map(shown).collect())
    }

    /// One user.
    ///
    /// # Errors
    /// If there is none.
    pub fn user_named(&self, name: &str) -> Result<api::User, EditError> {
        let missing = || DirectoryError::Missing { kind: Kind::User, name: name.to_owned() };
        Ok(shown(self.directory.find(name)?.ok_or_else(missing)?))
    }

    /// Adds a group.
    ///
    /// # Errors
    /// If the name is taken or none.
    pub fn group_add(&self, group: &Group) -> Result<Edited, EditError> {
        self.own()?;
        self.try_change(|draft| draft.groups.push(group.clone()))?;
        self.directory.add(group)?;
        Ok(Edited::default())
    }

    /// Removes a group.
    ///
    /// # Errors
    /// If there is none, or something still names it.
    pub fn group_remove(&self, name: &str) -> Result<Edited, EditError> {
        self.own()?;
        let draft = self.draft()?;
        if let Some(by) = users_of(&draft, name) {
            return Err(EditError::Used { kind: Kind::Group, name: name.to_owned(), by });
        }
        self.directory.remove::<Group>(name)?;
        Ok(Edited::default())
    }

    /// All groups.
    ///
    /// # Errors
    /// If the store fails.
    pub fn groups(&self) -> Result<Vec<Group>, EditError> {
        Ok(self.directory.all()?)
    }

    /// Adds these services to the store, or none of them.
    ///
    /// # Errors
    /// If a name is taken, one does not fit with the others, or they are more than [`OPS_MAX`].
    pub fn services_add(&self, services: &[Service]) -> Result<Edited, EditError> {
        self.may_change(services)?;
        self.try_change(|draft| draft.services.extend(services.iter().cloned()))?;
        self.directory.add_all(services)?;
        Ok(Edited::default())
    }

    /// Replaces the services of the same names in the store, or none of them.
    ///
    /// # Errors
    /// If there is none of a name, one does not fit with the others, or they are more than [`OPS_MAX`].
    pub fn services_replace(&self, services: &[Service]) -> Result<Edited, EditError> {
        self.may_change(services)?;
        let known = self.services()?;
        self.try_change(|draft| {
            for service in &mut draft.services {
                if let Some(new) = services.iter().find(|new| new.name == service.name) {
                    service.clone_from(new);
                }
            }
        })?;
        self.directory.replace_all(services)?;
        let known: Vec<Service> =
            known.into_iter().filter(|old| services.iter().any(|new| new.name == old.name)).collect();
        Ok(Edited { services: moved(&known, services), ..Edited::default() })
    }

    fn may_change(&self, services: &[Service]) -> Result<(), EditError> {
        self.own()?;
        if services.len() > OPS_MAX {
            return Err(EditError::TooMany(services.len()));
        }
        services.iter().try_for_each(|service| self.not_configured(&service.name))
    }

    /// Removes a service from the store.
    ///
    /// # Errors
    /// If there is none, something still names it, or it stands in the configuration file.
    pub fn service_remove(&self, name: &str) -> Result<Edited, EditError> {
        self.own()?;
        self.not_configured(name)?;
        self.try_change(|draft| draft.services.retain(|service| service.name != name))?;
        self.directory.remove::<Service>(name)?;
        Ok(Edited { services: vec![name.to_owned()], ..Edited::default() })
    }

    /// All services, those of the configuration file first.
    ///
    /// # Errors
    /// If the store fails.
    pub fn services(&self) -> Result<Vec<Service>, EditError> {
        Ok(self.draft()?.services)
    }

    fn not_configured(&self, name: &str) -> Result<(), EditError> {
        if self.configured.load().services.iter().any(|own| own.name == name) {
            return Err(EditError::Configured { kind: Kind::Service, name: name.to_owned() });
        }
        Ok(())
    }
}

/// A user, without what its passwords are checked against.
fn shown(User { name, groups, enabled, phone, .. }: User) -> api::User {
    api::User { name, groups, enabled, phone }
}

/// The services of `before` that `after` does not have, or that are reached otherwise there.
pub(crate) fn moved(before: &[Service], after: &[Service]) -> Vec<String> {
    let reached = |service: &Service| (service.address, service.mode, service.kind, service.ports.clone());
    let stands = |old: &Service| after.iter().any(|new| new.name == old.name && reached(new) == reached(old));
    before.iter().filter(|old| !stands(old)).map(|old| old.name.clone()).collect()
}

/// The peers of `before` that `after` does not have, or that are known or sent to otherwise there.
fn unknown(before: &[SipPeer], after: &[SipPeer]) -> Vec<String> {
    let known = |peer: &SipPeer| (peer.addresses.clone(), peer.certificate.clone(), peer.sip, peer.media().to_vec());
    let stands = |old: &SipPeer| after.iter().any(|new| new.name == old.name && known(new) == known(old));
    before.iter().filter(|old| !stands(old)).map(SipPeer::party).collect()
}

fn groups_exist<'a>(draft: &Draft, mut groups: impl Iterator<Item = &'a String>) -> Result<(), EditError> {
    let unknown = groups.find(|group| draft.groups.iter().all(|known| known.name != **group));
    unknown.map_or(Ok(()), |group| Err(EditError::NoGroup(group.clone())))
}

/// What names a group: the first few by name, and how many more.
fn users_of(draft: &Draft, group: &str) -> Option<String> {
    const NAMED_MAX: usize = 5;
    let names = |subjects: &[Subject]| subjects.contains(&Subject::Group(group.to_owned()));
    let users = draft.users.iter().filter(|user| user.groups.iter().any(|of| of == group));
    let services = draft.services.iter().filter(|service| names(&service.allow));
    let rules = draft.rules.iter().filter(|rule| names(&rule.subjects));
    let mut used = users.map(|user| format!("user {}", user.name)).collect::<Vec<_>>();
    used.extend(services.map(|service| format!("service {}", service.name)));
    used.extend(rules.map(|rule| format!("rule {}", rule.name)));
    let more = used.len().saturating_sub(NAMED_MAX);
    used.truncate(NAMED_MAX);
    let named = used.join(", ");
    (!named.is_empty()).then(|| if more > 0 { format!("{named} and {more} more") } else { named })
}
