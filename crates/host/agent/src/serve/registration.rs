//! The registration of the service, kept alive while invitations are answered: a frontend that is slow to answer, because
//! it is flooded, delays nobody who is to be let in.

use std::{net::SocketAddr, time::Duration};

use sluicegate_grant::DataMode;
use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::Message,
    transaction::Token,
    write::{Party, Request},
};
use tokio::time::Instant;
use tracing::warn;

use super::{Config, ServeError};
use crate::{
    account::{Account, Asked, Credentials, TrustError, random_token, supported},
    call::{branch, reason_phrase, via},
    endpoint::Endpoint,
};

/// A registration that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// Requests of one registration: without credentials, with them, and with a newer nonce.
const REQUESTS_MAX: u32 = 3;

/// Registers a service again and again.
pub(super) struct Registration {
    account: Account,
    service: String,
    sip: SocketAddr,
    call_id: String,
    tag: String,
    cseq: u32,
    /// When to begin again.
    at: Instant,
    under_way: Option<UnderWay>,
}

/// A REGISTER that waits for its answer.
struct UnderWay {
    token: Token,
    expires_s: u32,
    credentials: Option<Credentials>,
    requests: u32,
}

impl Registration {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            account: config.account.clone(),
            service: config.service.clone(),
            sip: config.sip,
            call_id: random_token(),
            tag: random_token(),
            cseq: 0,
            at: Instant::now(),
            under_way: None,
        }
    }

    /// The tag of this agent in dialogs of its own.
    pub(super) fn tag(&self) -> &[u8] {
        self.tag.as_bytes()
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

    /// Sends the first REGISTER of a registration.
    pub(super) async fn send(&mut self, endpoint: &mut Endpoint, expires_s: u32) {
        self.request(endpoint, expires_s, None, 1).await;
    }

    async fn request(
        &mut self,
        endpoint: &mut Endpoint,
        expires_s: u32,
        credentials: Option<Credentials>,
        requests: u32,
    ) {
        self.cseq += 1;
        let (mut request, branch) = (Vec::new(), branch());
        let (uri, aor) = (self.registrar(), format!("sip:{}@{}", self.service, self.account.realm));
        let headers = Request {
            method: b"REGISTER",
            uri: uri.as_bytes(),
            via: via(endpoint.local(), &branch),
            from: Party { uri: aor.as_bytes(), tag: Some(self.tag.as_bytes()) },
            to: Party { uri: aor.as_bytes(), tag: None },
            call_id: self.call_id.as_bytes(),
            cseq: self.cseq,
            routes: &[],
        }
        .begin(&mut request)
        .header("Contact", self.contact())
        .header("Supported", supported(DataMode::Mac))
        .header_args("Expires", format_args!("{expires_s}"));
        match &credentials {
            Some(credentials) => {
                headers
                    .header(credentials.name, &credentials.value)
                    .header(HEADER.as_str(), &credentials.hello)
                    .finish();
            }
            None => headers.finish(),
        }
        match endpoint.tell(&request).await {
            Ok(token) => self.under_way = Some(UnderWay { token, expires_s, credentials, requests }),
            Err(error) => self.failed(0, &error.to_string()),
        }
    }

    /// Takes an answer, if it is to the request that waits for one. Whether the service is registered now.
    pub(super) async fn answered(
        &mut self,
        endpoint: &mut Endpoint,
        token: Token,
        answer: Option<Vec<u8>>,
    ) -> Result<bool, ServeError> {
        let Some(asked) = self.under_way.take_if(|asked| asked.token == token) else { return Ok(false) };
        let Some(answer) = answer else {
            self.failed(0, "the frontend does not answer");
            return Ok(false);
        };
        match self.judge(endpoint, asked, &answer).await {
            // Whoever is in the way may go away again: what it sent is not believed, and that is all it achieves.
            Err(ServeError::Trust(error)) => {
                self.failed(0, &error.to_string());
                Ok(false)
            }
            judged => judged,
        }
    }

    async fn judge(&mut self, endpoint: &mut Endpoint, asked: UnderWay, answer: &[u8]) -> Result<bool, ServeError> {
        let Ok(response) = Message::parse(answer) else {
            self.failed(0, "the answer is no SIP");
            return Ok(false);
        };
        let code = response.status().unwrap_or(0);
        if code / 100 == 2 {
            asked.credentials.ok_or(TrustError::Unasked)?.accepted(&response)?;
            self.at = Instant::now() + Duration::from_secs(u64::from(asked.expires_s) / 2);
            return Ok(true);
        }
        let (uri, contact) = (self.registrar(), self.contact());
        let about = Asked {
            method: b"REGISTER",
            uri: uri.as_bytes(),
            contact: contact.as_bytes(),
            body: b"",
            proves: DataMode::Mac,
            dialled: endpoint.frontend(),
        };
        if asked.requests < REQUESTS_MAX
            && let Some(credentials) = self.account.answer(&response, about)?
        {
            self.request(endpoint, asked.expires_s, Some(credentials), asked.requests + 1).await;
            return Ok(false);
        }
        let reason = reason_phrase(&response);
        if matches!(code, 401 | 403 | 404 | 407) {
            let (service, user) = (self.service.clone(), self.account.user.clone());
            return Err(ServeError::Refused { service, user, code, reason });
        }
        self.failed(code, &reason);
        Ok(false)
    }

    fn failed(&mut self, code: u16, reason: &str) {
        warn!(code, reason, "not registered; trying again");
        self.at = Instant::now() + RETRY;
    }

    fn registrar(&self) -> String {
        format!("sip:{}", self.account.realm)
    }

    fn contact(&self) -> String {
        format!("<sip:{}@{}>", self.service, self.sip)
    }
}
