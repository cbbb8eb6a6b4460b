//! What a running frontend looks after by the clock: its key holder, the keys of epochs, who may join.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{control::Control, holder::Holder};

/// A key holder that gave no keys is asked again after this.
const EPOCH_RETRY: Duration = Duration::from_secs(2);
/// And it is said again after this that keys of a key holder elsewhere are missing.
const LOAD_REMINDER: Duration = Duration::from_secs(300);
/// Time between looks at the key holder and its keys.
const KEYS_INTERVAL: Duration = Duration::from_millis(500);
/// Time between looks at who may join.
const DOOR_INTERVAL: Duration = Duration::from_secs(5);

/// Join secrets end by themselves: then strangers need not even finish a handshake.
pub(crate) async fn watch_door(control: Control) {
    loop {
        tokio::time::sleep(DOOR_INTERVAL).await;
        let inner = &control.inner;
        if let Err(error) = inner.door.refresh(inner.catalog.directory(), inner.clock.unix()) {
            tracing::error!(%error, "cannot read who may join");
        }
    }
}

/// Ends the process if there is no key holder and it can start none: what starts it again starts both.
fn hold_on(holder: &Holder) {
    if let Err(error) = holder.ensure() {
        tracing::error!(%error, "the key holder is gone; the process ends, so that it is started again with one");
        std::process::exit(1);
    }
}

/// Has the keys of a new epoch, and forgets those of the one before; `asked` is when it was last tried.
fn renew_agents(control: &Control, asked: &mut Option<std::time::Instant>) {
    let is_elsewhere = control.inner.catalog.holder().is_elsewhere();
    let pause = if is_elsewhere { LOAD_REMINDER } else { EPOCH_RETRY };
    if asked.is_some_and(|at| at.elapsed() < pause) || !control.agents_are_due() {
        return;
    }
    *asked = Some(std::time::Instant::now());
    if let Err(error) = control.reload_agents() {
        tracing::error!(%error, "no keys for the epoch: agents cannot sign in without them");
    } else if is_elsewhere && control.agents_are_due() {
        tracing::warn!(
            "keys of this or the next epoch are missing: issue them at the key holder, then `sluicegate key load`"
        );
    }
}

/// Sees to it that there is a key holder and that the keys of a new epoch are in place, and tells the hub of a policy that
/// it had no room for.
pub(crate) fn watch_keys(control: Control, stop: Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
    let run = move || {
        let mut asked = None;
        while !stop.load(Ordering::Relaxed) {
            hold_on(control.inner.catalog.holder());
            renew_agents(&control, &mut asked);
            if control.inner.untold.load(Ordering::Relaxed)
                && let Err(error) = control.reload()
            {
                tracing::error!(%error, "the changed users, services and rules were not put in place");
            }
            thread::sleep(KEYS_INTERVAL);
        }
    };
    thread::Builder::new().name("keys".to_owned()).spawn(run)
}
