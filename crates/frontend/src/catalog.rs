//! Users, groups, services and rules, from configuration and store together: read as one policy, edited through the
//! store. Works in a running frontend and, while none runs, for commands on their own.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use sluicegate_policy::{Bounds, Draft, Finding, Group, PerUser, Policy, Rule, Service, Severity, User};
use sluicegate_signin::UserSecret;
use sluicegate_store::{
    Directory, DirectoryError, Embedded, EmbeddedOptions, Kind, StoreError,
    password::{PasswordError, credentials},
};
use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

use crate::holder::{Holder, HolderError, KeyHolder};

/// The store's file in the state directory.
const STORE_FILE: &str = "store.redb";

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
    /// It stands in the configuration file, where it has to be changed.
    #[error("{kind} {name:?} stands in the configuration file; change it there and restart")]
    Configured {
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
    },
}

fn list(findings: &[Finding]) -> String {
    let lines = findings.iter().filter(|finding| finding.severity == Severity::Error);
    lines
        .map(|finding| format!("{}: {}; {}", finding.subject, finding.message, finding.hint))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A user to be added.
#[derive(Debug)]
pub struct NewUser {
    /// The name.
    pub name: String,
    /// The password of the user's telephones; without one the user has none.
    pub password: Option<Zeroizing<String>>,
    /// What the user's agents sign in with; without it no agent of the user is let in.
    pub secret: Option<UserSecret>,
    /// Groups that exist.
    pub groups: Vec<String>,
}

/// The site's users, groups, services and rules.
#[derive(Clone)]
pub struct Catalog {
    directory: Directory,
    holder: Arc<Holder>,
    realm: String,
    services: Vec<Service>,
    rules: Vec<Rule>,
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
        (services, rules, per_user): (Vec<Service>, Vec<Rule>, PerUser),
        keyholder: &KeyHolder,
    ) -> Result<Self, StoreError> {
        let path: PathBuf = state_dir.join(STORE_FILE);
        let store = Embedded::open(&path, EmbeddedOptions::default())?;
        let directory = Directory::new(Arc::new(store));
        let holder = Arc::new(Holder::new(keyholder.clone(), realm));
        Ok(Self { directory, holder, realm: realm.to_owned(), services, rules, per_user, bounds: Bounds::default() })
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
    pub fn policy(&self, now: UnixTime) -> Result<(Policy, Vec<Finding>), EditError> {
        Policy::build(self.draft(now)?, self.bounds).map_err(EditError::Policy)
    }

    /// What configuration and store say, unchecked. A name in the configuration file hides the same one in the store.
    fn draft(&self, now: UnixTime) -> Result<Draft, EditError> {
        let (mut draft, _) = self.directory.draft(now)?;
        draft.services.retain(|stored| self.services.iter().all(|own| own.name != stored.name));
        draft.rules.retain(|stored| self.rules.iter().all(|own| own.name != stored.name));
        draft.services.splice(0..0, self.services.iter().cloned());
        draft.rules.splice(0..0, self.rules.iter().cloned());
        draft.per_user = self.per_user;
        Ok(draft)
    }

    /// Whether the site would still fit together after `change`; errors that are there already do not count.
    fn try_change(&self, now: UnixTime, change: impl FnOnce(&mut Draft)) -> Result<(), EditError> {
        let mut draft = self.draft(now)?;
        let is_error = |finding: &Finding| finding.severity == Severity::Error;
        let before: Vec<Finding> = draft.check(&self.bounds).into_iter().filter(is_error).collect();
        change(&mut draft);
        let new: Vec<Finding> = draft
            .check(&self.bounds)
            .into_iter()
            .filter(is_error)
            .filter(|finding| !before.contains(finding))
            .collect();
        if new.is_empty() { Ok(()) } else { Err(EditError::Policy(new)) }
    }

    /// Adds these users, or none of them; at most [`OPS_MAX`](sluicegate_store::OPS_MAX) at once.
    ///
    /// # Errors
    /// If a name is taken or given twice, or a password cannot be used; or if the key holder does not take the secrets,
    /// and then the users are not there either.
    pub fn users_add(&self, now: UnixTime, new: &[NewUser]) -> Result<(), EditError> {
        let users = new.iter().map(|new| self.user(new)).collect::<Result<Vec<User>, _>>()?;
        self.try_change(now, |draft| draft.users.extend(users.iter().cloned()))?;
        self.directory.add_all(now, &users)?;
        let secrets = new.iter().filter_map(|new| Some((new.name.as_str(), new.secret.as_ref()?)));
        if let Err(error) = self.holder.put(secrets) {
            for user in &users {
                self.directory.remove::<User>(now, &user.name)?;
            }
            return Err(error.into());
        }
        Ok(())
    }

    fn user(&self, new: &NewUser) -> Result<User, PasswordError> {
        let password = new.password.as_ref();
        let credentials = password.map(|password| credentials(&new.name, &self.realm, password)).transpose()?;
        let groups = new.groups.clone();
        Ok(User { phone: credentials.is_some(), credentials, groups, ..User::new(&new.name) })
    }

    /// Lets a user log in, or no longer.
    ///
    /// # Errors
    /// If there is no such user.
    pub fn user_enable(&self, now: UnixTime, name: &str, enabled: bool) -> Result<(), EditError> {
        self.directory.change(now, name, |user: &mut User| user.enabled = enabled)?;
        Ok(())
    }

    /// Removes a user.
    ///
    /// # Errors
    /// If there is none, or something still names it.
    pub fn user_remove(&self, now: UnixTime, name: &str) -> Result<(), EditError> {
        self.try_change(now, |draft| draft.users.retain(|user| user.name != name))?;
        self.directory.remove::<User>(now, name)?;
        Ok(self.holder.remove(name)?)
    }

    /// All users, without what their passwords are checked against.
    ///
    /// # Errors
    /// If the store fails.
    pub fn users(&self, now: UnixTime) -> Result<Vec<User>, EditError> {
        let mut users: Vec<User> = self.directory.all(now)?;
        users.iter_mut().for_each(|user| user.credentials = None);
        Ok(users)
    }

    /// Adds a group.
    ///
    /// # Errors
    /// If the name is taken or none.
    pub fn group_add(&self, now: UnixTime, group: &Group) -> Result<(), EditError> {
        self.try_change(now, |draft| draft.groups.push(group.clone()))?;
        self.directory.add(now, group)?;
        Ok(())
    }

    /// Removes a group.
    ///
    /// # Errors
    /// If there is none, or something still names it.
    pub fn group_remove(&self, now: UnixTime, name: &str) -> Result<(), EditError> {
        self.try_change(now, |draft| draft.groups.retain(|group| group.name != name))?;
        self.directory.remove::<Group>(now, name)?;
        Ok(())
    }

    /// All groups.
    ///
    /// # Errors
    /// If the store fails.
    pub fn groups(&self, now: UnixTime) -> Result<Vec<Group>, EditError> {
        Ok(self.directory.all(now)?)
    }

    /// Adds a service to the store.
    ///
    /// # Errors
    /// If the name is taken, or it does not fit with the others.
    pub fn service_add(&self, now: UnixTime, service: &Service) -> Result<(), EditError> {
        self.not_configured(&service.name)?;
        self.try_change(now, |draft| draft.services.push(service.clone()))?;
        self.directory.add(now, service)?;
        Ok(())
    }

    /// Removes a service from the store.
    ///
    /// # Errors
    /// If there is none, something still names it, or it stands in the configuration file.
    pub fn service_remove(&self, now: UnixTime, name: &str) -> Result<(), EditError> {
        self.not_configured(name)?;
        self.try_change(now, |draft| draft.services.retain(|service| service.name != name))?;
        self.directory.remove::<Service>(now, name)?;
        Ok(())
    }

    /// All services, those of the configuration file first.
    ///
    /// # Errors
    /// If the store fails.
    pub fn services(&self, now: UnixTime) -> Result<Vec<Service>, EditError> {
        Ok(self.draft(now)?.services)
    }

    fn not_configured(&self, name: &str) -> Result<(), EditError> {
        if self.services.iter().any(|own| own.name == name) {
            return Err(EditError::Configured { kind: Kind::Service, name: name.to_owned() });
        }
        Ok(())
    }
}
