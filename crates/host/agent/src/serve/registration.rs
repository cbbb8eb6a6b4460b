//! The registration of the service, kept alive while invitations are answered: a frontend that is slow to answer, because
//! it is flooded, delays nobody who is to be let in.

use std::time::Duration;

use sluicegate_grant::DataMode;
use sluicegate_sip::{
    message::Method,
    ua::{Content, Event, Failure, LegId, Parties},
};
use tokio::time::Instant;
use tracing::warn;

use super::{Config, ServeError};
use crate::{
    account::{Account, SignIn, supported},
    endpoint::{Endpoint, ExchangeError, reason_phrase},
};

/// A registration that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// One that was refused, where others are not.
const RETRY_REFUSED: Duration = Duration::from_secs(10);

/// Registers a service again and again.
pub(super) struct Registration {
    account: Account,
    service: String,
    /// All registrations have one Call-ID.
    leg: Option<LegId>,
    /// When to begin again.
    at: Instant,
    /// For how many seconds the request asks that waits for its answer.
    under_way: Option<u32>,
    /// Whether the last one was let in.
    is_standing: bool,
}

impl Registration {
    pub(super) fn new(config: &Config) -> Self {
        let (account, service) = (config.account.clone(), config.service.clone());
        Self { account, service, leg: None, at: Instant::now(), under_way: None, is_standing: false }
    }

    /// When to begin again; `None` while a request waits for its answer.
    pub(super) fn due(&self) -> Option<Instant> {
        self.under_way.is_none().then_some(self.at)
    }

    pub(super) fn is_due(&self) -> bool {
        self.due().is_some_and(|at| at <= Instant::now())
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Begins a registration.
    pub(super) fn send(&mut self, endpoint: &mut Endpoint, expires_s: u32) {
        match self.request(endpoint, expires_s) {
            Ok(()) => self.under_way = Some(expires_s),
            Err(error) => self.failed(0, &error.to_string()),
        }
    }

    fn request(&mut self, endpoint: &mut Endpoint, expires_s: u32) -> Result<(), ExchangeError> {
        let content =
            Content::default().header("Supported", supported(DataMode::Mac)).header("Expires", expires_s.to_string());
        if let Some(leg) = self.leg {
            return endpoint.again(leg, content);
        }
        let (uri, aor) =
            (format!("sip:{}", self.account.realm), format!("sip:{}@{}", self.service, self.account.realm));
        let parties = Parties { from: &aor, to: &aor, uri: &uri, contact: &self.service };
        let sign_in = Some(SignIn::new(&self.account));
        self.leg = Some(endpoint.start(Method::Register, parties, content, sign_in)?);
        Ok(())
    }

    /// A frontend that refused, beside others, is asked again after a while.
    pub(super) fn refused(&mut self) {
        self.is_standing = false;
        self.at = Instant::now() + RETRY_REFUSED;
    }

    /// Takes what happened, if it is the answer that is waited for. `Some` if the service is registered now: whether it was
    /// not before.
    pub(super) fn answered(&mut self, endpoint: &mut Endpoint, event: Event) -> Result<Option<bool>, ServeError> {
        let (leg, code, reason) = match event {
            Event::Answered { leg, code, response } => (leg, code, reason_phrase(&response)),
            Event::Failed { leg, failure: Failure::Silent } => (leg, 0, "the frontend does not answer".to_owned()),
            Event::Failed { leg, .. } => (leg, 0, "the answer is not believed".to_owned()),
            Event::Invited { .. } | Event::Ended { .. } => return Ok(None),
        };
        if self.leg != Some(leg) {
            return Ok(None);
        }
        let Some(expires_s) = self.under_way.take() else { return Ok(None) };
        if code / 100 == 2 {
            self.at = Instant::now() + Duration::from_secs(u64::from(expires_s) / 2);
            return Ok(Some(!std::mem::replace(&mut self.is_standing, true)));
        }
        // Whoever is in the way may go away again: what it sent is not believed, and that is all it achieves.
        if let Some(error) = endpoint.sign_in(leg).and_then(|sign_in| sign_in.error.take()) {
            self.failed(0, &error.to_string());
            return Ok(None);
        }
        if matches!(code, 401 | 403 | 404 | 407) {
            let (service, user) = (self.service.clone(), self.account.user.clone());
            return Err(ServeError::Refused { service, user, code, reason });
        }
        self.failed(code, &reason);
        Ok(None)
    }

    fn failed(&mut self, code: u16, reason: &str) {
        self.is_standing = false;
        warn!(code, reason, "not registered; trying again");
        self.at = Instant::now() + RETRY;
    }
}
