//! Keeps what a program needs open, and open for as long as it runs: one call for each range of ports.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use sluicegate_grant::DataMode;
use sluicegate_policy::{PortProtocol, PortRange};
use sluicegate_sip::ua::{Content, Event, LegId};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::Instant,
};
use tracing::{info, warn};

use crate::{
    account::Account,
    call::{Call, CallError},
    endpoint::{Endpoint, ExchangeError},
    fallback::Fallback,
    frontends::Frontends,
    opening::{Opening, Reach},
    seal::{self, Sealer},
};

/// Ranges of ports that one session keeps open.
const CALLS_MAX: usize = 64;
/// Questions that wait.
const ASKS_MAX: usize = 64;
/// How often open calls are looked at, at least and at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// After an error of the connection to the frontend.
const RETRY: Duration = Duration::from_secs(2);
/// A frontend that answers a renewal with 500 or 503 so many times in a row is given up for another.
const OUT_OF_ORDER_MAX: u32 = 2;
/// How often it is tried whether UDP passes again, once it did not.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

struct Ask {
    range: PortRange,
    answer: oneshot::Sender<Result<Reach, String>>,
}

/// A signed-in user's way to a service. Cheap to clone; the calls end when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    asks: mpsc::Sender<Ask>,
    opening: watch::Receiver<Opening>,
    standing: Weak<()>,
}

impl Session {
    /// Starts a session with whichever of `frontends` answers, for packets that can prove as much as `proves`: grants have to
    /// demand that, or nothing is opened. Nothing is opened before somebody asks for it. Its own packets leave by what
    /// `interface` says now, whatever the routes say.
    ///
    /// # Errors
    /// When no UDP socket can be had, or it cannot be bound to the interface.
    pub(crate) async fn start(
        interface: Option<watch::Receiver<String>>,
        frontends: Frontends,
        account: Account,
        fallback: Option<Fallback>,
        (service, proves): (&str, DataMode),
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let several = frontends.are_several() || fallback.is_some();
        let leaves_by = interface.as_ref().map(|interface| interface.borrow().clone());
        let leaves_by = leaves_by.as_deref();
        let answering = if frontends.are_several() { frontends.answering(leaves_by, None).await } else { None };
        let frontend = answering.unwrap_or_else(|| frontends.first());
        let endpoint = Endpoint::open_on(leaves_by, frontend, several).await?;
        let (asks, questions) = mpsc::channel(ASKS_MAX);
        let (publish, opening) = watch::channel(Opening::default());
        let service = service.to_owned();
        let standing = Arc::new(());
        let session = Self { asks, opening, standing: Arc::downgrade(&standing) };
        let keeper = Keeper {
            endpoint,
            frontends,
            fallback,
            probe: None,
            probed_at: Instant::now(),
            is_fallen_back: false,
            tls_failed: None,
            interface,
            account,
            service,
            proves,
            calls: Vec::new(),
            moves: 0,
            standing,
            publish,
        };
        let task = tokio::spawn(keeper.run(questions));
        Ok((session, task))
    }

    /// Opens these ports, or this protocol, of the service if no grant covers them yet; says where.
    ///
    /// # Errors
    /// Why the frontend or the gate refused, for a person.
    pub(crate) async fn open(&self, range: PortRange) -> Result<Reach, String> {
        if let Some(reach) = self.opening.borrow().reach(range.protocol, range.first) {
            return Ok(reach);
        }
        let (answer, answered) = oneshot::channel();
        let stopped = || "the session has ended".to_owned();
        self.asks.send(Ask { range, answer }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Where to send traffic for `port` of the service; signs in first if no grant covers it yet.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub(crate) async fn reach(&self, protocol: PortProtocol, port: u16) -> Result<Reach, String> {
        self.open(PortRange::single(protocol, port)).await
    }

    /// A connection, or a program that has some, stands for as long as it keeps this. Meanwhile this host's address is proved
    /// often: whoever only waits for data does not notice that a translator on the way has another.
    pub(crate) fn stand(&self) -> Option<Arc<()>> {
        self.standing.upgrade()
    }

    /// What is open, whenever that changes.
    pub(crate) fn opening(&self) -> watch::Receiver<Opening> {
        self.opening.clone()
    }
}

mod fallen;

struct Keeper {
    endpoint: Endpoint,
    frontends: Frontends,
    fallback: Option<Fallback>,
    /// Whether a frontend answers over UDP, while it is asked.
    probe: Option<JoinHandle<Option<SocketAddr>>>,
    probed_at: Instant,
    is_fallen_back: bool,
    /// Why there was no SIP over TLS.
    tls_failed: Option<String>,
    interface: Option<watch::Receiver<String>>,
    account: Account,
    service: String,
    proves: DataMode,
    calls: Vec<Call>,
    /// How often this host's address has changed.
    moves: u32,
    /// Shared with what stands under any of the calls.
    standing: Arc<()>,
    publish: watch::Sender<Opening>,
}

impl Keeper {
    async fn run(mut self, mut questions: mpsc::Receiver<Ask>) {
        loop {
            let now = Instant::now();
            let wait = if self.calls.is_empty() { Duration::from_secs(3_600) } else { LOOK_INTERVAL };
            let stands = self.stands();
            let wakes = self.calls.iter().map(|call| call.wakes_at(stands).max(now + LOOK_INTERVAL_MIN));
            let wake = wakes.fold(now + wait, Instant::min);
            tokio::select! {
                ask = questions.recv() => match ask {
                    Some(ask) => self.answer(ask).await,
                    None => break,
                },
                event = self.endpoint.event(Some(wake)) => match event {
                    Ok(Some(Event::Ended { leg })) => self.ended(leg),
                    // Nobody calls an agent that only signs in.
                    Ok(Some(Event::Invited { leg, is_new, .. })) => {
                        self.endpoint.respond(leg, if is_new { 481 } else { 405 }, "", &Content::default());
                    }
                    // Whoever asked has given up.
                    Ok(Some(Event::Answered { .. } | Event::Failed { .. })) => {}
                    Ok(None) => {
                        self.look_for_udp().await;
                        self.tunnel_again().await;
                        self.follow_address().await;
                        self.prove();
                        self.renew().await;
                    }
                    Err(error) => {
                        warn!(%error, "the connection to the frontend failed; open flows go on until their grants end");
                        tokio::time::sleep(RETRY).await;
                        if self.endpoint.is_fallen_back() {
                            self.fail_over().await;
                        }
                        self.follow_address().await;
                    }
                },
            }
        }
        for call in self.calls {
            call.bye(&mut self.endpoint).await;
        }
    }

    async fn answer(&mut self, ask: Ask) {
        self.follow_address().await;
        let known = self.publish.borrow().reach(ask.range.protocol, ask.range.first);
        let result = match known {
            Some(reach) => Ok(reach),
            None => self.open(ask.range, None).await,
        };
        // Whoever asked may have gone away meanwhile.
        let _ = ask.answer.send(result);
    }

    async fn open(&mut self, range: PortRange, before: Option<Arc<Sealer>>) -> Result<Reach, String> {
        if self.calls.len() >= CALLS_MAX {
            return Err(format!("this session has {CALLS_MAX} ranges open, which is the most it may have"));
        }
        let mut called = self.call(range, before.clone()).await;
        let is_elsewhere_better =
            |error: &CallError| error.is_unanswered() || (error.is_out_of_order() && self.frontends.are_several());
        if called.as_ref().is_err_and(is_elsewhere_better) && self.fail_over().await {
            called = self.call(range, before).await;
        }
        let call = called.map_err(|error| self.explained(error))?;
        if self.endpoint.is_fallen_back()
            && let Err(error) = self.tunnel(&call).await
        {
            call.bye(&mut self.endpoint).await;
            return Err(error);
        }
        let address = SocketAddr::new(call.open.address, call.open.external_first);
        let reach = Reach { address, client_id: call.open.client_id, seal: call.open.seal.clone() };
        let lasts_s = call.ends_at.saturating_duration_since(Instant::now()).as_secs();
        let mode = call.open.mode;
        info!(service = %self.service, %range, gate = %address, %mode, lasts_s, "open");
        self.calls.push(call);
        self.publish();
        Ok(reach)
    }

    /// Signs in; what was open under the grant of `before`, at another frontend, goes on if it can.
    async fn call(&mut self, range: PortRange, before: Option<Arc<Sealer>>) -> Result<Call, CallError> {
        Call::open(&mut self.endpoint, &self.account, (&self.service, self.proves), (range, before.as_ref())).await
    }

    fn leaves_by(&self) -> Option<String> {
        self.interface.as_ref().map(|interface| interface.borrow().clone())
    }

    /// Goes on with another frontend if one answers, else over TLS.
    async fn fail_over(&mut self) -> bool {
        let (interface, silent) = (self.leaves_by(), self.endpoint.frontend());
        let interface = interface.as_deref();
        let but = (!self.endpoint.is_fallen_back()).then_some(silent);
        let Some(frontend) = self.frontends.answering(interface, but).await else { return self.fall_back().await };
        if self.endpoint.fail_over(interface, frontend).await.is_err() {
            return false;
        }
        if std::mem::take(&mut self.is_fallen_back) {
            self.tell("over UDP");
            self.calls.iter().filter_map(|call| call.open.seal.as_ref()).for_each(|sealer| sealer.goes_by(None));
        }
        info!(%silent, %frontend, "another frontend answers");
        true
    }

    /// Where packets to the frontend leave from another address than before, as of a laptop in another network: grants are
    /// renewed from there. Connections from the old address are over.
    async fn follow_address(&mut self) {
        let (from, interface) = (self.endpoint.local().ip(), self.leaves_by());
        if !self.endpoint.follow(interface).await {
            return;
        }
        info!(%from, to = %self.endpoint.local().ip(), "this host's address has changed");
        self.moves += 1;
        self.calls.iter_mut().for_each(Call::moved);
        self.publish();
        // The gate first: what is under way to the old address is lost.
        self.prove();
        self.renew().await;
        self.prove();
    }

    /// Proves this host's address again where that is due.
    fn prove(&mut self) {
        let (now, stands, interface) = (Instant::now(), self.stands(), self.leaves_by());
        for call in &mut self.calls {
            let gate = SocketAddr::new(call.open.address, call.open.external_first);
            if let Some(sealer) = call.proof_due(now, stands) {
                let interface = interface.clone();
                tokio::spawn(async move { seal::prove_again(interface.as_deref(), gate, &sealer).await });
            }
        }
    }

    fn stands(&self) -> bool {
        Arc::strong_count(&self.standing) > 1
    }

    async fn renew(&mut self) {
        let now = Instant::now();
        let (mut ended, mut silent, mut unanswered, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (index, call) in self.calls.iter_mut().enumerate() {
            // A frontend that does not answer is not waited for by each.
            if !unanswered.is_empty() {
                break;
            }
            let Some(because) = call.renew_because(now) else { continue };
            if call.is_of_another(self.endpoint.frontend()) {
                // Tried again later if it does not go on here.
                if call.failed(now) {
                    ended.push(index);
                }
                elsewhere.push(index);
                continue;
            }
            match call.renew(&mut self.endpoint, &self.account).await {
                Ok(()) => info!(service = %self.service, range = %call.open.service, because, "renewed"),
                Err(error) => {
                    warn!(service = %self.service, range = %call.open.service, because, %error, "not renewed");
                    let is_gone = matches!(error, CallError::Refused { code: 481, .. } | CallError::Key);
                    let is_elsewhere_better = error.is_out_of_order() && call.failures() + 1 >= OUT_OF_ORDER_MAX;
                    if (error.is_unanswered() && (self.frontends.are_several() || self.fallback.is_some()))
                        || (is_elsewhere_better && self.frontends.are_several())
                    {
                        unanswered.push(index);
                    }
                    if call.failed(Instant::now()) || is_gone {
                        ended.push(index);
                    } else if call.is_silent() {
                        silent.push(index);
                    }
                }
            }
        }
        if !unanswered.is_empty() && self.fail_over().await {
            elsewhere.append(&mut unanswered);
        }
        // This frontend knows nothing of these, and is asked to go on with them.
        for index in &elsewhere {
            if self.replace(*index, false).await.is_ok() {
                ended.retain(|ended| ended != index);
            }
            silent.retain(|silent| silent != index);
        }
        for index in &silent {
            if self.replace(*index, true).await.is_err_and(|error| error.is_refusal()) {
                ended.push(*index);
            }
        }
        ended.sort_unstable();
        let mut over = Vec::new();
        for index in ended.iter().rev() {
            let call = self.calls.swap_remove(*index);
            self.endpoint.forget(call.leg());
            over.push((call, silent.contains(index)));
        }
        for (call, is_refused) in over {
            let range = call.open.service;
            let before = call.is_of_another(self.endpoint.frontend()).then(|| call.open.seal.clone()).flatten();
            if is_refused {
                warn!(service = %self.service, %range, "closed: this is no longer permitted");
            } else if let Err(error) = self.open(range, before).await {
                warn!(service = %self.service, %range, error, "closed; the next use signs in again");
            }
        }
        self.publish();
    }

    /// Signs in anew where the gate acknowledges nothing and the grant cannot be renewed, so that it may know nothing of it
    /// any more, or where the frontend is another, which then is not told of the end of the last call.
    async fn replace(&mut self, index: usize, goodbye: bool) -> Result<(), CallError> {
        let Some(range) = self.calls.get(index).map(|call| call.open.service) else { return Ok(()) };
        let before = self.calls.get(index).filter(|_| !goodbye).map(|call| call.open.seal.clone());
        let new = self.call(range, before.flatten()).await.inspect_err(
            |error| warn!(service = %self.service, %range, %error, "the grant may be lost, and there is no other"),
        )?;
        info!(service = %self.service, %range, "signed in again: the last grant cannot be renewed");
        let Some(old) = self.calls.get_mut(index) else { return Ok(()) };
        let old = std::mem::replace(old, new);
        if goodbye {
            old.bye(&mut self.endpoint).await;
        } else {
            self.endpoint.forget(old.leg());
        }
        self.publish();
        self.prove();
        Ok(())
    }

    /// The service or the frontend ended a call.
    fn ended(&mut self, leg: LegId) {
        let Some(index) = self.calls.iter().position(|call| call.leg() == leg) else { return };
        let call = self.calls.swap_remove(index);
        warn!(service = %self.service, range = %call.open.service, "the service ended this");
        self.publish();
    }

    fn publish(&self) {
        let ranges = self.calls.iter().map(|call| call.open.clone()).collect();
        self.publish.send_replace(Opening { ranges, moves: self.moves });
    }
}
