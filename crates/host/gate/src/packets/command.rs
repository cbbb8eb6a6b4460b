//! What the control side may ask of the packet thread. Each question is answered on its own one-shot channel, in
//! the next turns of the packet loop; the queue is bounded, and full means [`ControlError::Busy`].

use crate::error::ControlError;
use sluicegate_datapath::Wake;
use sluicegate_grant::GrantId;
use sluicegate_nat::{Explanation, Probe};
use sluicegate_node::DroppedPacket;
use sluicegate_pinhole::{EndCause, InstallError, Opened, PinholeSpec, Service, ServicesError, StandingSpec, Usage};
use sluicegate_wire::UnixTime;
use std::{io, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot};

/// Questions that may wait.
pub(crate) const COMMANDS_MAX: usize = 1024;
/// Questions answered in one turn of the packet loop, so that packets never wait for many of them.
pub(crate) const COMMANDS_PER_TURN_MAX: usize = 64;
/// Ended grants that may wait for the control side.
pub(crate) const EVENTS_MAX: usize = 4096;

/// A question to the packet thread.
pub(crate) enum Command {
    /// Open or renew a grant.
    Install { spec: Box<PinholeSpec>, unix: UnixTime, answer: oneshot::Sender<Result<Installed, InstallError>> },
    /// Open a service's signalling port to the frontends.
    Standing { spec: StandingSpec, answer: oneshot::Sender<Result<Opened, InstallError>> },
    /// End grants; says how many there were.
    Revoke { ids: Vec<GrantId>, answer: oneshot::Sender<usize> },
    /// Replace the list of services.
    Services { services: Vec<Service>, answer: oneshot::Sender<Result<(), ServicesError>> },
    /// What would happen to this packet, and what did to those like it.
    Explain { probe: Probe, unix: UnixTime, answer: oneshot::Sender<Explained> },
    /// Open a tunnel for whoever proves to hold a grant's key: `sealed` is what its TLS connection exports, and a trailer.
    /// Answers go to `answers`. Says from which address the packets are to come.
    Tunnel { id: GrantId, sealed: Vec<u8>, answers: mpsc::Sender<Vec<u8>>, answer: oneshot::Sender<Option<Ipv4Addr>> },
    /// Only count strangers' packets (`true`), or drop them.
    Observe { on: bool, answer: oneshot::Sender<()> },
    /// What the grants have used so far; those that are not open are left out.
    Usage { ids: Vec<GrantId>, answer: oneshot::Sender<Vec<(GrantId, Usage)>> },
    /// All tables, for the checkpoint, appended to `buffer`; answered some turns later, while other questions go on. One at a
    /// time.
    Export { buffer: Vec<u8>, answer: oneshot::Sender<Exported> },
}

/// A grant was opened or renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) opened: Opened,
    pub(crate) stamp: u64,
}

/// A grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: GrantId,
    pub(crate) cause: EndCause,
    pub(crate) bytes_used: u64,
    pub(crate) stamp: u64,
}

/// The answer to [`Command::Explain`].
pub(crate) struct Explained {
    pub(crate) explanation: Explanation,
    pub(crate) recent: Vec<DroppedPacket>,
}

/// The answer to [`Command::Export`].
#[derive(Debug)]
pub(crate) struct Exported {
    pub(crate) tables: Vec<u8>,
    pub(crate) took: Duration,
}

/// The control side's end of the queue.
#[derive(Debug, Clone)]
pub(crate) struct Commander {
    queue: mpsc::Sender<Command>,
    wake: Arc<Wake>,
}

impl Commander {
    pub(crate) fn new() -> io::Result<(Self, mpsc::Receiver<Command>)> {
        let (queue, commands) = mpsc::channel(COMMANDS_MAX);
        Ok((Self { queue, wake: Arc::new(Wake::new()?) }, commands))
    }

    /// What the packet thread waits for besides packets. It is woken by each question.
    pub(crate) const fn wake(&self) -> &Arc<Wake> {
        &self.wake
    }

    /// Questions that wait.
    pub(crate) fn waiting(&self) -> usize {
        COMMANDS_MAX - self.queue.capacity()
    }

    /// Asks; the answer is awaited on the returned channel, so that many questions can be on their pipeline.
    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<oneshot::Receiver<T>, ControlError> {
        let (answer, answered) = oneshot::channel();
        self.queue.try_send(question(answer)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ControlError::Busy(COMMANDS_MAX),
            mpsc::error::TrySendError::Closed(_) => ControlError::Stopping,
        })?;
        self.wake.wake();
        Ok(answered)
    }

    /// Asks and awaits the answer.
    pub(crate) async fn call<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ControlError> {
        self.ask(question)?.await.map_err(|_| ControlError::Stopping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_queue_refuses_and_takes_again_when_there_is_room() {
        let (commander, mut commands) = Commander::new().unwrap();
        let ask = || commander.ask(|answer| Command::Observe { on: true, answer });
        for _ in 0..COMMANDS_MAX {
            assert!(ask().is_ok());
        }
        assert_eq!(commander.waiting(), COMMANDS_MAX);
        assert_eq!(ask().unwrap_err(), ControlError::Busy(COMMANDS_MAX));
        commands.try_recv().unwrap();
        assert!(ask().is_ok());
        drop(commands);
        assert_eq!(ask().unwrap_err(), ControlError::Stopping);
    }
}
