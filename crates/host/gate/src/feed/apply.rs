//! Does what a feed says: installs, revokes and services become commands; their results become answers.

use super::FeedSlot;
use crate::{
    clock,
    ledger::{Entry, IssuerId, Ledger, Listed, Record},
    packets::{Command, Installed},
    shared::Shared,
};
use sluicegate_feed::{
    ACTIVE_GRANTS_MAX, ActiveGrant, Event, FeedService, FeedSip, FromGate, GrantDelta, Resume, Selector,
};
use sluicegate_grant::GrantId;
use sluicegate_pinhole::{InstallError, PinholeSpec, StandingSpec};
use sluicegate_policy::ServiceMode;
use std::net::SocketAddr;
use tokio::sync::oneshot;

/// An install whose answer is on its way.
struct Asked {
    id: GrantId,
    delta: GrantDelta,
    answer: oneshot::Receiver<Result<Installed, InstallError>>,
}

/// Applies the events of one message, in order.
pub(crate) struct Applier<'a> {
    shared: &'a Shared,
    feed: &'a FeedSlot,
    issuer: IssuerId,
    asked: Vec<Asked>,
    /// Revokes whose answers are on their way.
    revoking: Vec<oneshot::Receiver<usize>>,
    answers: Vec<FromGate>,
}

impl<'a> Applier<'a> {
    pub(crate) const fn new(shared: &'a Shared, feed: &'a FeedSlot) -> Self {
        Self { shared, feed, issuer: feed.issuer, asked: Vec::new(), revoking: Vec::new(), answers: Vec::new() }
    }

    /// Does what the events say and returns the answers. Installs and revokes that follow each other are on their way together:
    /// where many calls begin and end, none waits for a turn of the packet thread. Installs are answered when the journal has
    /// them. Also says up to where everything is applied, if the events say so.
    pub(crate) async fn apply(mut self, events: Vec<Event>) -> (Vec<FromGate>, Option<Resume>) {
        let mut applied = None;
        for event in events {
            match event {
                Event::Install(install) => {
                    self.ask(*install).await;
                    continue;
                }
                Event::Refuse(id, reason) => self.refuse(id, "invalid", reason),
                Event::Reply(answer) => self.answers.push(answer),
                Event::Skew(skew_s) => {
                    tracing::warn!(skew_s, "the frontend's clock and this one differ; set both by NTP");
                    self.feed.skew(Some(skew_s));
                }
                Event::Service(service) => {
                    self.settle().await;
                    self.announce(service).await;
                }
                Event::ServiceGone(name) => {
                    self.settle().await;
                    self.withdraw(&name).await;
                }
                Event::Revoke(selector) => self.revoke(&selector).await,
                Event::UpToDate(resume) => {
                    self.settle().await;
                    applied = Some(resume);
                    self.shared.books.write(&[Record::Applied(resume)]);
                }
            }
        }
        self.settle().await;
        (self.answers, applied)
    }

    /// Puts an install on its way, or refuses it.
    async fn ask(&mut self, delta: GrantDelta) {
        let id = delta.grant.id;
        let spec = match self.spec(&delta) {
            Ok(spec) => spec,
            Err(reason) => return self.refuse(id, "not_permitted", reason),
        };
        let unix = clock::unix();
        let install = |spec| move |answer| Command::Install { spec: Box::new(spec), unix, answer };
        let mut sent = self.shared.commander.ask(install(spec.clone()));
        if sent.is_err() {
            // The queue is full of what this feed asked before: wait for that.
            self.settle().await;
            sent = self.shared.commander.ask(install(spec));
        }
        match sent {
            // The packet thread alone keeps the key.
            Ok(answer) => self.asked.push(Asked { id, delta: delta.without_keys(), answer }),
            Err(error) => self.refuse(id, "queue_full", error.to_string()),
        }
    }

    /// Puts a revoke on its way. What it is about has to be in the books first.
    async fn revoke(&mut self, selector: &Selector) {
        let is_meant = |Asked { delta, .. }: &Asked| selector.selects(&delta.grant, &delta.user, &delta.service);
        if self.asked.iter().any(is_meant) {
            self.settle().await;
        }
        let ids = self.shared.books.read().select(selector, Some(self.issuer));
        if ids.is_empty() {
            return;
        }
        let revoke = |ids| move |answer| Command::Revoke { ids, answer };
        let mut sent = self.shared.commander.ask(revoke(ids.clone()));
        if sent.is_err() {
            self.settle().await;
            sent = self.shared.commander.ask(revoke(ids));
        }
        match sent {
            Ok(answer) => self.revoking.push(answer),
            Err(error) => tracing::error!(%error, "a revoke was not carried out"),
        }
    }

    fn spec(&self, delta: &GrantDelta) -> Result<PinholeSpec, String> {
        let ledger = self.shared.books.read();
        let Some(listed) = ledger.service(&delta.service).filter(|listed| listed.issuers.contains(&self.issuer)) else {
            return Err(format!("this gate knows no service {:?} of this frontend", delta.service));
        };
        self.shared.config.permits_grant(clock::unix(), &listed.service, delta)?;
        let known = ledger.grant(delta.grant.id).map(|entry| &entry.delta);
        if let Some(known) = known.filter(|known| known.grant.issuer != self.issuer) {
            goes_on(known, delta)?;
        }
        Ok(PinholeSpec {
            grant: delta.grant.clone(),
            service: listed.number,
            target: delta.target,
            target_ports: delta.target_ports,
            filter: delta.mode == ServiceMode::Filter,
            keys: delta.keys.clone(),
        })
    }

    /// Awaits what is on its way, writes what is installed to the journal, and answers.
    async fn settle(&mut self) {
        for ended in std::mem::take(&mut self.revoking) {
            if ended.await.is_err() {
                tracing::error!("a revoke was not carried out: the gate is stopping");
            }
        }
        if self.asked.is_empty() {
            return;
        }
        let mut records = Vec::with_capacity(self.asked.len());
        let mut opened = Vec::with_capacity(self.asked.len());
        for Asked { id, delta, answer } in std::mem::take(&mut self.asked) {
            match answer.await {
                Ok(Ok(Installed { opened: at, stamp })) => {
                    opened.push(FromGate::Opened { id, address: at.address, ports: at.ports });
                    let entry = Entry { delta, address: at.address, ports: at.ports, stamp };
                    records.push(Record::Opened(Box::new(entry)));
                }
                Ok(Err(error)) => self.refuse(id, error.name(), error.to_string()),
                Err(_) => self.refuse(id, "stopping", "the gate is stopping".into()),
            }
        }
        self.feed.opened(opened.len() as u64);
        self.shared.books.write(&records);
        self.answers.append(&mut opened);
    }

    fn refuse(&mut self, id: GrantId, name: &'static str, reason: String) {
        tracing::debug!(%id, reason, "grant refused");
        self.feed.refused(name);
        self.answers.push(FromGate::Refused { id, reason });
    }

    async fn announce(&mut self, service: FeedService) {
        let name = service.name.clone();
        if let Err(reason) = self.take_service(service).await {
            tracing::warn!(service = name, reason, "service refused");
            self.answers.push(FromGate::ServiceRefused { service: name, reason });
        }
    }

    async fn take_service(&mut self, service: FeedService) -> Result<(), String> {
        self.shared.config.permits_service(self.issuer, &service)?;
        let sip = service.sip.clone();
        // What is written down has no keys.
        let announce = |ledger: &Ledger| {
            let listed = ledger.announced(self.issuer, service.without_keys()).map_err(|error| error.to_string())?;
            let is_known = ledger.service(&listed.service.name) == Some(&listed);
            Ok((listed.clone(), (!is_known).then_some(Record::Service(listed))))
        };
        let listed = self.shared.change_services(announce).await?;
        match &sip {
            Some(sip) => self.open_standing(&listed, sip).await,
            None => Ok(()),
        }
    }

    async fn open_standing(&mut self, listed: &Listed, sip: &FeedSip) -> Result<(), String> {
        let target = listed.service.address;
        // What the gate's own file says, or else the frontend at the other end of the feed: not whom it names.
        let frontend = [self.feed.address.address.ip()];
        let named = self.shared.config.sip_from(self.issuer).unwrap_or(&frontend);
        let named = named.iter().copied().filter(|peer| peer.is_ipv4() == target.is_ipv4()).collect();
        let (peers, relays, salt) = self.shared.standing_frontends(&listed.service.name, self.issuer, (named, sip))?;
        let spec = StandingSpec {
            service: listed.number,
            target,
            target_port: sip.port,
            peers,
            rate_bytes_per_s: sip.rate_bps / 8,
            relays,
        };
        let answer = self.shared.commander.call(|answer| Command::Standing { spec, answer }).await;
        let opened = answer.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let (service, port) = (listed.service.name.clone(), opened.ports.0);
        self.shared.set_standing(&service, Some(SocketAddr::new(opened.address, port)));
        self.answers.push(FromGate::Standing { service, address: opened.address, port, salt });
        Ok(())
    }

    async fn withdraw(&mut self, name: &str) {
        let withdraw = |ledger: &Ledger| Ok(((), ledger.withdrawn(self.issuer, name)));
        if let Err(error) = self.shared.change_services(withdraw).await {
            tracing::warn!(service = name, error, "service not withdrawn");
        }
    }
}

/// Whether a frontend may go on with the grant of another: of the same user to the same service, with whose keys the user's
/// agent has just proved itself anew.
fn goes_on(known: &GrantDelta, new: &GrantDelta) -> Result<(), String> {
    let is_same = (&known.user, &known.service) == (&new.user, &new.service);
    let is_agents = known.grant.proves_address() && new.grant.proves_address() && new.keys.is_some();
    if is_same && is_agents && new.grant.not_after > known.grant.not_after {
        return Ok(());
    }
    Err("another frontend has issued a grant with this id, and this does not go on with it".to_owned())
}

/// What is open here for one issuer, in as many messages as it takes.
pub(crate) async fn active(shared: &Shared, issuer: IssuerId) -> Vec<FromGate> {
    let ids = shared.books.read().of_issuer(issuer);
    let usage = super::usage::of(shared, &ids).await;
    let grants: Vec<ActiveGrant> = {
        let ledger = shared.books.read();
        let described = ids.iter().filter_map(|id| {
            let entry = ledger.grant(*id)?;
            let used = usage.get(id);
            Some(ActiveGrant {
                delta: entry.delta.clone(),
                address: entry.address,
                ports: entry.ports,
                bytes_used: used.map_or(0, |used| used.bytes_used),
                flows: used.map_or(0, |used| u16::try_from(used.flows).unwrap_or(u16::MAX)),
            })
        });
        described.collect()
    };
    // Half of what may be in one message: names may be long.
    let chunks: Vec<Vec<ActiveGrant>> = grants.chunks(ACTIVE_GRANTS_MAX / 2).map(<[ActiveGrant]>::to_vec).collect();
    let last = chunks.len().saturating_sub(1);
    if chunks.is_empty() {
        return vec![FromGate::Active { grants: Vec::new(), more: false }];
    }
    let message = |(index, grants)| FromGate::Active { grants, more: index < last };
    chunks.into_iter().enumerate().map(message).collect()
}
