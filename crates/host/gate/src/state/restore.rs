//! Brings back what a stopped or killed gate had promised: the checkpoint, then the journals since.

use super::{checkpoint::Checkpoint, journal};
use crate::{
    config::Config,
    error::StartError,
    ledger::{Entry, Ledger, Record},
    shared::service_spec,
};
use sluicegate_grant::DataMode;
use sluicegate_nat::Translator;
use sluicegate_pinhole::{PinholeSpec, Service};
use sluicegate_policy::ServiceMode;
use sluicegate_wire::{Instant, UnixTime};
use std::{fs, path::Path};

/// What came back.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) ledger: Ledger,
    /// The first journal generation that is free.
    pub(crate) generation: u64,
    /// What could not be brought back, in sentences.
    pub(crate) losses: Vec<String>,
}

/// Fills the empty `translator` and a ledger from `dir`.
///
/// A damaged checkpoint does not keep the gate from starting: it is set aside, and what the journals have is brought
/// back. Grants that ended meanwhile stay ended, and what the configuration does not permit any more is closed.
pub(crate) fn restore(
    dir: &Path,
    now: Instant,
    unix: UnixTime,
    config: &Config,
    translator: &mut Translator,
) -> Result<Restored, StartError> {
    let unreadable =
        |problem: std::io::Error| StartError::StateFile { path: dir.to_owned(), problem: problem.to_string() };
    let mut losses = Vec::new();
    let checkpoint = match Checkpoint::read(dir) {
        Ok(checkpoint) => checkpoint.unwrap_or_default(),
        Err(problem) => {
            losses.push(set_aside(dir, &problem));
            Checkpoint::default()
        }
    };
    let mut ledger = if checkpoint.ledger.is_empty() {
        Ledger::default()
    } else {
        postcard::from_bytes(&checkpoint.ledger).unwrap_or_else(|error| {
            losses.push(format!("the ledger in the checkpoint cannot be read ({error}); the feeds will fill it again"));
            Ledger::default()
        })
    };
    set_services(&ledger, translator, &mut losses);
    if !checkpoint.tables.is_empty() {
        match sluicegate_nat::import(translator, now, unix, &checkpoint.tables) {
            Ok(imported) => tracing::info!(?imported, "state brought back"),
            Err(error) => losses.push(format!("the tables in the checkpoint: {error}")),
        }
    }
    let records = journal::read_since(dir, checkpoint.generation).map_err(unreadable)?;
    for record in records {
        match postcard::from_bytes(&record) {
            Ok(record) => replay(record, now, unix, &mut ledger, translator, &mut losses),
            Err(error) => losses.push(format!("a journal record cannot be read ({error})")),
        }
    }
    let permits = |entry: &Entry| {
        let listed = ledger.service(&entry.delta.service);
        config.still_permits(unix, entry, listed.map(|listed| &listed.service))
    };
    let closed = ledger.grants().filter(|(_, entry)| !permits(entry)).map(|(id, _)| id);
    for id in closed.collect::<Vec<_>>() {
        translator.revoke(now, id);
    }
    ledger.retain(|id| translator.usage(id).is_some());
    let lacks_key =
        |entry: &Entry| entry.delta.grant.least_mode != DataMode::Pinhole || entry.delta.grant.proves_address();
    if !losses.is_empty() || ledger.grants().any(|(_, entry)| lacks_key(entry)) {
        // The feeds begin with a snapshot, which brings back what is lost here, and the keys of packet MACs.
        ledger.forget_resumes();
    }
    let shut = ledger.services().filter(|listed| config.permits_openness(&listed.service).is_err());
    for name in shut.map(|listed| listed.service.name.clone()).collect::<Vec<_>>() {
        ledger.apply(Record::ServiceForgotten(name));
    }
    let last = journal::last_generation(dir).map_err(unreadable)?;
    let generation = last.map_or(0, |last| last + 1).max(checkpoint.generation);
    Ok(Restored { ledger, generation, losses })
}

fn set_aside(dir: &Path, problem: &str) -> String {
    let path = dir.join(super::CHECKPOINT_FILE_NAME);
    let mut aside = path.clone();
    aside.set_extension("damaged");
    let moved = match fs::rename(&path, &aside) {
        Ok(()) => format!("it is now {}", aside.display()),
        Err(error) => format!("and cannot be set aside: {error}"),
    };
    format!("{} is {problem}; {moved}; clients must call again", path.display())
}

fn set_services(ledger: &Ledger, translator: &mut Translator, losses: &mut Vec<String>) {
    let services: Vec<Service> = ledger.services().map(service_spec).collect();
    if let Err(error) = translator.set_services(&services) {
        losses.push(format!("the services are not set: {error}"));
    }
}

fn replay(
    record: Record,
    now: Instant,
    unix: UnixTime,
    ledger: &mut Ledger,
    translator: &mut Translator,
    losses: &mut Vec<String>,
) {
    match &record {
        Record::Service(_) | Record::ServiceForgotten(_) => {
            ledger.apply(record);
            set_services(ledger, translator, losses);
            return;
        }
        Record::Opened(entry) => {
            let Some(listed) = ledger.service(&entry.delta.service) else { return };
            let mut grant = entry.delta.grant.clone();
            if grant.check().is_err() {
                return;
            }
            // The ports that the client was told.
            (grant.gate_address, grant.gate_ports) = (entry.address, entry.ports);
            let spec = PinholeSpec {
                grant,
                service: listed.number,
                target: entry.delta.target,
                target_ports: entry.delta.target_ports,
                filter: entry.delta.mode == ServiceMode::Filter,
                keys: None,
            };
            match translator.install(now, unix, spec) {
                Ok(opened) if (opened.address, opened.ports) == (entry.address, entry.ports) => {}
                Ok(_) => {
                    // Better no pinhole than one that the client does not know.
                    translator.revoke(now, entry.delta.grant.id);
                    losses.push(format!("the ports of a grant of {} are taken; it must call again", entry.delta.user));
                    return;
                }
                Err(error) => {
                    // It ended while the gate was away.
                    tracing::debug!(%error, "grant not brought back");
                    return;
                }
            }
        }
        Record::Ended { id, stamp } => {
            let id = sluicegate_grant::GrantId(*id);
            if ledger.ended(id, *stamp).is_some() {
                translator.revoke(now, id);
            }
        }
        Record::Applied(_) => {}
    }
    ledger.apply(record);
}
