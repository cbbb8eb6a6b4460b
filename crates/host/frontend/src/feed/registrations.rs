//! Registrations on disk: a frontend that starts anew knows where its services take calls before their agents tell it
//! again, which may be half a minute later.

use std::collections::BTreeMap;

use sluicegate_store::{Directory, Registration};
use sluicegate_wire::{Instant, UnixTime};
use tokio::task::JoinHandle;

use crate::{clock::Clock, config::Listen, inbox::ShardSender};
use sluicegate_proxy::{Binding, Flow, Input};

/// Writes registrations down, at most one write at a time.
pub(crate) struct Registrations {
    directory: Directory,
    unsaved: BTreeMap<String, Registration>,
    saving: Option<JoinHandle<()>>,
}

impl Registrations {
    pub(crate) const fn new(directory: Directory) -> Self {
        Self { directory, unsaved: BTreeMap::new(), saving: None }
    }

    /// A service was registered, or taken back. Only the last of each service counts.
    pub(crate) fn note(&mut self, binding: &Binding, now: Instant, unix: UnixTime) {
        let registration = Registration {
            service: binding.service.clone(),
            listener: binding.flow.listener,
            peer: binding.flow.peer,
            contact: binding.contact.clone(),
            expires_at: unix.plus_secs(binding.expires.since(now).as_secs()).0,
        };
        self.unsaved.insert(binding.service.clone(), registration);
    }

    /// Starts to write what was noted, unless the last write still goes on.
    pub(crate) fn save(&mut self, now: UnixTime) {
        if self.unsaved.is_empty() || self.saving.as_ref().is_some_and(|saving| !saving.is_finished()) {
            return;
        }
        let changed: Vec<Registration> = std::mem::take(&mut self.unsaved).into_values().collect();
        let directory = self.directory.clone();
        self.saving = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = directory.keep_registrations(now, &changed) {
                tracing::warn!(%error, "registrations were not written down; after a restart agents must register anew");
            }
        }));
    }
}

/// Tells the shards what was registered before this start. What was registered over a connection that ended with it cannot be
/// reached before it registers anew.
pub(crate) fn restore(directory: &Directory, clock: Clock, listens: &[Listen], shards: &[ShardSender]) {
    let (now, unix) = (clock.now(), clock.unix());
    let registrations = directory.registrations(unix).unwrap_or_else(|error| {
        tracing::warn!(%error, "registrations cannot be read; agents must register anew");
        Vec::new()
    });
    let is_reachable =
        |known: &Registration| listens.get(usize::from(known.listener)).is_some_and(|listen| !listen.is_stream());
    for registration in registrations.into_iter().filter(is_reachable) {
        let binding = Binding {
            service: registration.service,
            flow: Flow::datagrams(registration.listener, registration.peer),
            contact: registration.contact,
            expires: now + std::time::Duration::from_secs(registration.expires_at.saturating_sub(unix.0)),
        };
        for shard in shards {
            shard.send(Input::Bind(binding.clone()));
        }
    }
}
