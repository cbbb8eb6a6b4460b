//! Who the agent is, and how it proves that to a frontend and has the frontend prove itself.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sluicegate_grant::{DataMode, epoch::Epoch, mac::SessionSecret};
use sluicegate_signin::{Certificate, CertificateError, HEADER, Hello, Initiator, Proposal, SignInError, UserSecret};
use sluicegate_sip::{
    digest::{Algorithm, Answer, Challenge, Ha1, strongest},
    message::{HeaderName, Message},
    ua::{Challenged, Credentials, Field},
};
use sluicegate_wire::UnixTime;
use tracing::warn;

use crate::pin::{Pin, PinError};

/// How far the clock of this host may be ahead.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(3 * 86_400);
/// No certificate is issued for longer.
const CERTIFIED_FOR_MAX: Duration = Duration::from_secs(2 * 86_400);

/// The value of Supported in every request of an agent whose packets can prove so much: what it cannot be downgraded from,
/// it says where the handshake covers it.
pub(crate) const fn supported(proves: DataMode) -> &'static str {
    match proves {
        DataMode::Capability => "sluicegate, sluicegate-capability",
        DataMode::Mac => "sluicegate",
        DataMode::Pinhole => "sluicegate, sluicegate-address",
    }
}

/// A user's name, realm and secret, and the site to trust. The password itself is not kept.
#[derive(Clone)]
pub struct Account {
    /// The user's name.
    pub user: String,
    /// The realm.
    pub realm: String,
    secret: UserSecret,
    pin: Pin,
    /// When the certificate ends that ends last of those which were believed, in seconds of Unix time.
    newest: Arc<AtomicU64>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("user", &self.user).field("realm", &self.realm).finish_non_exhaustive()
    }
}

/// Why a challenge is not answered, or an answer not believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The challenge names no certificate.
    #[error("the frontend does not prove to belong to the site: it names no key; is it a frontend of this version?")]
    NoCertificate,
    /// The certificate does not hold.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// It is another site's.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The handshake fails.
    #[error("what came is not believed: {0}")]
    SignIn(#[from] SignInError),
    /// Let in without having been asked who we are.
    #[error("the frontend let this agent in without asking who it is, so it is not the frontend")]
    Unasked,
}

impl Account {
    /// The account of `user` in `realm`, at the site that `pin` names.
    #[must_use]
    pub fn new(user: &str, realm: &str, secret: UserSecret, pin: Pin) -> Self {
        let (user, realm) = (user.to_owned(), realm.to_owned());
        Self { user, realm, secret, pin, newest: Arc::default() }
    }

    /// The URI of this user.
    pub(crate) fn uri(&self) -> String {
        format!("sip:{}@{}", self.user, self.realm)
    }

    /// What answers the challenge in a 401 or 407, and the handshake that it begins; `None` if it asks for nothing that an
    /// agent of this realm answers. A challenge for another realm, or of a frontend that the pinned site does not know, gets
    /// no answer: its sender would learn a hash of this user's secret.
    ///
    /// # Errors
    /// [`TrustError`] if it is not a frontend of the pinned site that asks.
    fn answer(&self, challenged: Challenged<'_, '_>) -> Result<Option<(Vec<Field>, Initiator)>, TrustError> {
        let Challenged { token, target, request, response } = challenged;
        let (asks, answers) = challenged.fields();
        let Some((challenge, epoch)) = self.challenge(response, asks) else { return Ok(None) };
        let (Some(method), Some(uri)) = (request.method(), request.request_uri()) else { return Ok(None) };
        let text = response.header(HEADER).ok_or(TrustError::NoCertificate)?;
        let certificate = Certificate::from_text(text.trim_ascii())?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        certificate.verify(&self.realm, self.least_time(now))?;
        self.pin.check(&self.realm, &certificate)?;
        self.newest.fetch_max(certificate.not_after().0, Relaxed);
        if certificate.not_after().0 < now.as_secs() {
            let days = (now.as_secs() - certificate.not_after().0) / 86_400 + 1;
            warn!(
                realm = self.realm,
                "the clock of this host is {days} days or more ahead of the site's; set it right"
            );
        }
        let epoch_ha1 = self.secret.ha1(&self.user, &self.realm, epoch, &certificate.replica);
        let (method, nonces) = (method.as_bytes(), (challenge.nonce, token.as_bytes()));
        let proposal = Proposal {
            method,
            uri,
            nonces,
            supported: request.header(HeaderName::Supported).unwrap_or_default(),
            contact: request.header(HeaderName::Contact).unwrap_or_default(),
            body: request.body(),
            dialled: target,
        };
        let (initiator, message) = Initiator::begin(random(), &certificate.replica, &epoch_ha1, &proposal)?;
        let ha1 = Ha1::from_sha256(*epoch_ha1.expose());
        let mut value = Vec::new();
        Answer { challenge: &challenge, username: &self.user, ha1: &ha1, method, uri, cnonce: token, nc: 1 }
            .write(&mut value);
        let hello = Hello { message, dialled: target }.to_text();
        Ok(Some((vec![(answers.as_str(), value), (HEADER.as_str(), hello.into_bytes())], initiator)))
    }

    /// A time that it certainly is, or later. Clocks of hosts are wrong by days; but no certificate is worth anything beside one
    /// that was issued after its end.
    fn least_time(&self, now: Duration) -> UnixTime {
        let newest = self.newest.load(Relaxed);
        UnixTime(now.saturating_sub(CLOCK_AHEAD_MAX).as_secs().max(newest.saturating_sub(CERTIFIED_FOR_MAX.as_secs())))
    }

    fn challenge<'a>(&self, response: &Message<'a>, asks: HeaderName) -> Option<(Challenge<'a>, Epoch)> {
        let challenge = strongest(response.headers_raw(asks)).filter(|own| own.algorithm == Algorithm::Sha256)?;
        let epoch = challenge.realm_text()?.strip_prefix(self.realm.as_str())?.strip_prefix(";e=")?.parse().ok()?;
        Some((challenge, epoch))
    }
}

/// How one call or registration signs in: digest with the secret of the epoch, and a handshake in a field of its own.
#[derive(Debug)]
pub(crate) struct SignIn {
    account: Account,
    /// Waits for the frontend's part.
    initiator: Option<Initiator>,
    /// What the last handshake left behind, until somebody takes it.
    pub(crate) secret: Option<SessionSecret>,
    /// Why the last challenge was not answered, or the last answer not believed.
    pub(crate) error: Option<TrustError>,
}

impl SignIn {
    pub(crate) fn new(account: &Account) -> Self {
        Self { account: account.clone(), initiator: None, secret: None, error: None }
    }

    fn finish(&mut self, response: &Message<'_>) -> Result<SessionSecret, TrustError> {
        Ok(self.initiator.take().ok_or(TrustError::Unasked)?.finish(response)?)
    }
}

impl Credentials for SignIn {
    fn answer(&mut self, challenged: Challenged<'_, '_>) -> Option<Vec<Field>> {
        let answer = self.account.answer(challenged).map_err(|error| self.error = Some(error));
        let (fields, initiator) = answer.ok().flatten()?;
        self.initiator = Some(initiator);
        Some(fields)
    }

    fn believe(&mut self, response: &Message<'_>) -> bool {
        let finished = self.finish(response).map(|secret| self.secret = Some(secret));
        finished.map_err(|error| self.error = Some(error)).is_ok()
    }
}

/// Random bytes.
///
/// # Panics
/// If the kernel gives no random bytes, without which nothing here is safe.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[allow(clippy::expect_used, reason = "without random numbers nothing here is safe")]
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use sluicegate_signin::SiteKey;

    use super::*;

    fn account() -> Account {
        let pin = Pin::Key(SiteKey::from_seed(&[1; 32]).public());
        Account::new("alice", "example.net", UserSecret::from_bytes([2; 32]), pin)
    }

    fn answer(realm: &str, certificate: &str) -> Result<bool, TrustError> {
        answer_of(&account(), realm, certificate)
    }

    fn answer_of(account: &Account, realm: &str, certificate: &str) -> Result<bool, TrustError> {
        let text = format!(
            "SIP/2.0 407 x\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:c@b>;tag=2\r\n\
             Call-ID: 1\r\nCSeq: 1 INVITE\r\nProxy-Authenticate: Digest realm=\"{realm}\", nonce=\"n\", \
             algorithm=SHA-256, qop=\"auth\"\r\n{certificate}Content-Length: 0\r\n\r\n"
        );
        let request = format!(
            "INVITE sip:web@example.net SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\n\
             To: <sip:c@b>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\nSupported: {}\r\nContact: <sip:a@b>\r\n\r\n",
            supported(DataMode::Mac)
        );
        let request = Message::parse(request.as_bytes()).unwrap();
        let response = Message::parse(text.as_bytes()).unwrap();
        let target = "203.0.113.1:5060".parse().unwrap();
        let challenged = Challenged { token: "c", target, request: &request, response: &response };
        account.answer(challenged).map(|answer| answer.is_some())
    }

    fn certificate(site: u8, realm: &str, not_after: u64) -> String {
        let certificate = SiteKey::from_seed(&[site; 32]).certify(realm, [7; 32], UnixTime(not_after));
        format!("{}: {}\r\n", HEADER.as_str(), certificate.to_text())
    }

    #[test]
    fn only_an_agents_challenge_of_the_own_realm_and_the_pinned_site_is_answered() {
        let good = certificate(1, "example.net", u64::from(u32::MAX));
        assert!(answer("example.net;e=20000", &good).unwrap());
        for realm in ["example.net", "evil.example;e=20000", "example.net;e=x"] {
            assert!(!answer(realm, &good).unwrap(), "{realm}");
        }
        let refused = |certificate: &str| answer("example.net;e=20000", certificate).unwrap_err();
        assert!(matches!(refused(""), TrustError::NoCertificate));
        let others = [certificate(1, "example.net", 1), certificate(1, "example.org", u64::from(u32::MAX))];
        assert!(others.iter().all(|other| matches!(refused(other), TrustError::Certificate(_))));
        assert!(matches!(refused(&certificate(2, "example.net", u64::from(u32::MAX))), TrustError::Pin(_)));
    }

    #[test]
    fn a_clock_may_be_days_ahead_and_a_later_certificate_ends_what_that_lets_through() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let ended = |days: u64| certificate(1, "example.net", now - days * 86_400 + 60);
        let account = account();
        let answer = |days| answer_of(&account, "example.net;e=20000", &ended(days));
        assert!(answer(3).unwrap());
        assert!(matches!(answer(4), Err(TrustError::Certificate(CertificateError::Expired))));
        assert!(answer(0).unwrap());
        assert!(matches!(answer(3), Err(TrustError::Certificate(CertificateError::Expired))), "it is later than that");
        assert!(answer(2).unwrap());
    }

    #[test]
    fn an_agent_with_capabilities_says_so_by_the_name_that_frontends_look_for() {
        let tags = |proves| supported(proves).split(", ").collect::<Vec<_>>();
        assert_eq!(tags(DataMode::Mac), ["sluicegate"]);
        assert_eq!(tags(DataMode::Pinhole), ["sluicegate", sluicegate_signin::ADDRESS_TAG]);
        assert_eq!(tags(DataMode::Capability), ["sluicegate", sluicegate_signin::CAPABILITY_TAG]);
    }

    #[test]
    fn an_account_never_prints_its_secret() {
        assert_eq!(format!("{:?}", account()), "Account { user: \"alice\", realm: \"example.net\", .. }");
    }
}
