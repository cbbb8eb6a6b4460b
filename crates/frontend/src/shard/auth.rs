//! Who sent this request: nonce, digest, replay set, in that order, and nothing remembered before all three agree.

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use sluicegate_capability::{
    epoch::{Epoch, agent_password},
    mac::SessionSecret,
};
use sluicegate_policy::{Credentials, NAME_LEN_MAX, Policy};
use sluicegate_sip::{
    digest::{Algorithm, Authorization, Challenge, DigestError, Ha1, ha1, verify},
    message::{HeaderName, Message},
    nonce::{NonceId, NonceKey, WINDOW_S},
    replay::{ReplayError, ReplaySet},
};
use sluicegate_wire::{Instant, UnixTime};
use zeroize::Zeroize as _;

use super::{
    exchanges::Users,
    settings::{DigestName, Settings},
};
use crate::{
    guesses::{Attempt, Claim},
    metrics::Outcome,
};

/// What the credentials of a request are worth.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This user sent it, and has not done so before. To be accepted with [`Authenticator::accept`].
    Proved(Proof, NonceId),
    /// Ask for (other) credentials; the nonce, not the password, was at fault if `stale`.
    Challenge {
        /// Tells the client to try again without asking for a password.
        stale: bool,
        /// For the counters.
        outcome: Outcome,
        /// The name that was claimed, for `trace`, if the nonce was good.
        claimed: Option<String>,
    },
    /// The credentials do not follow the grammar.
    Malformed,
    /// Too many wrong digests came for the user that is claimed: these credentials were not looked at.
    Guessing(String),
}

/// Who sent a request, and what only that client and this frontend know since.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Proof {
    /// The user's name.
    pub(super) user: String,
    /// Session keys of packet MACs are made from it. The user's HA1, which it comes from, has not left the digest check.
    pub(super) session: SessionSecret,
}

/// Nonces, used nonces, and the realm they are for.
#[derive(Debug)]
pub(super) struct Authenticator {
    nonces: NonceKey,
    replays: ReplaySet,
    /// Used nonces by user, so that one user does not fill the set for all.
    users: Users,
}

impl Authenticator {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut key = super::derive(&settings.start_key, b"nonce");
        let nonces = NonceKey::new(&key, settings.replica, settings.boot, settings.shard.into());
        key.zeroize();
        Self {
            nonces,
            replays: ReplaySet::new(settings.tables.replays_max),
            users: Users::new(settings.tables.replays_per_user_max, Duration::from_secs(WINDOW_S)),
        }
    }

    /// Judges the credentials in header field `name` of a request from `client`.
    ///
    /// A wrong password and an unknown, disabled or wrongly used name cost the same: one look-up and the same hashes.
    pub(super) fn judge(
        &mut self,
        (now, unix): (Instant, UnixTime),
        settings: &Settings,
        policy: &Policy,
        (name, message): (HeaderName, &Message<'_>),
        client: SocketAddr,
    ) -> Verdict {
        let ask = |stale, outcome| Verdict::Challenge { stale, outcome, claimed: None };
        let (authorization, realm) = match find(message, name, &settings.realm) {
            Ok(Some(found)) => found,
            Ok(None) => return ask(false, Outcome::Challenged),
            Err(DigestError::Malformed | DigestError::Missing(_)) => return Verdict::Malformed,
            Err(_) => return ask(false, Outcome::Challenged),
        };
        let Ok(nonce) = self.nonces.check(authorization.nonce, uptime(now), client.ip()) else {
            return ask(true, Outcome::Stale);
        };
        if matches!(realm, Realm::Agent(epoch) if !is_current(epoch, unix)) {
            return ask(true, Outcome::Stale);
        }
        let claimed = authorization.username().unwrap_or(Cow::Borrowed(""));
        let claim = Claim { user: &claimed, peer: client, nonce: authorization.nonce };
        match settings.guesses.attempt(now, &claim) {
            Attempt::Judged => {}
            Attempt::NonceSpent => return ask(true, Outcome::Stale),
            Attempt::Refused => return Verdict::Guessing(claimed.chars().take(NAME_LEN_MAX).collect()),
        }
        let user = policy.user(&claimed);
        let usable = user.filter(|user| user.enabled && (user.phone || realm != Realm::Plain));
        let credentials = usable.and_then(|user| user.credentials.as_ref());
        let offered = match realm {
            Realm::Plain => settings.algorithms.contains(&DigestName::of(authorization.algorithm)),
            Realm::Agent(_) => authorization.algorithm == Algorithm::Sha256,
        };
        let secret = expected(credentials, realm, &authorization, &claimed);
        let method = message.method().map_or(&b""[..], |method| method.as_bytes());
        let proved = verify(&authorization, method, credentials.map(|_| &secret));
        let covers = message.request_uri().is_some_and(|uri| authorization.covers(uri));
        if !(proved & offered & covers) {
            settings.guesses.wrong(now, &claim);
            return Verdict::Challenge {
                stale: false,
                outcome: Outcome::BadDigest,
                claimed: Some(claimed.chars().take(NAME_LEN_MAX).collect()),
            };
        }
        settings.guesses.right(now, &claim);
        if self.replays.is_used(nonce, uptime(now)) {
            return Verdict::Challenge { stale: true, outcome: Outcome::Replay, claimed: Some(claimed.into_owned()) };
        }
        let session = SessionSecret::extract(secret.as_bytes(), authorization.nonce, authorization.cnonce);
        Verdict::Proved(Proof { user: claimed.into_owned(), session }, nonce)
    }

    /// Uses up the nonce of proved credentials. What is refused before this takes no place; in the set one user has only
    /// so many.
    ///
    /// # Errors
    /// [`ReplayError::Full`] if this user, or all together, used as many nonces as are remembered.
    pub(super) fn accept(&mut self, now: Instant, user: &str, nonce: NonceId) -> Result<(), ReplayError> {
        if !self.users.charge(now, user) {
            return Err(ReplayError::Full);
        }
        self.replays.accept(nonce, uptime(now))
    }

    /// Adds the challenge to an answer: to agents one for this epoch, to others one per configured algorithm.
    pub(super) fn challenges(
        &mut self,
        (now, unix): (Instant, UnixTime),
        settings: &Settings,
        (agent, stale): (bool, bool),
        client: IpAddr,
        mut add: impl FnMut(&[u8]),
    ) {
        let nonce = self.nonces.mint(uptime(now), client);
        let agent_realm = agent.then(|| format!("{};e={}", settings.realm, Epoch::at(unix)));
        let realm = agent_realm.as_deref().unwrap_or(&settings.realm).as_bytes();
        let algorithms = if agent { &[DigestName::Sha256][..] } else { &settings.algorithms };
        let mut value = Vec::with_capacity(160);
        for algorithm in algorithms {
            value.clear();
            let algorithm = algorithm.algorithm();
            Challenge { realm, nonce: nonce.as_bytes(), opaque: None, algorithm, stale }.write(&mut value);
            add(&value);
        }
    }

    /// Used and maximum of the replay set.
    pub(super) const fn gauge(&self) -> (u64, u64) {
        (self.replays.used() as u64, self.replays.max() as u64)
    }
}

impl DigestName {
    const fn of(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Md5 => Self::Md5,
            Algorithm::Sha256 => Self::Sha256,
        }
    }

    const fn algorithm(self) -> Algorithm {
        match self {
            Self::Md5 => Algorithm::Md5,
            Self::Sha256 => Algorithm::Sha256,
        }
    }
}

/// Which of our realms credentials are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Realm {
    /// `example.net`: telephones.
    Plain,
    /// `example.net;e=EPOCH`: agents.
    Agent(Epoch),
}

fn realm_of(text: &str, own: &str) -> Option<Realm> {
    let rest = text.strip_prefix(own)?;
    match rest.strip_prefix(";e=") {
        None => rest.is_empty().then_some(Realm::Plain),
        Some(epoch) => epoch.parse().ok().map(Realm::Agent),
    }
}

/// The first credentials for one of our realms. Those for other realms belong to other servers (RFC 3261 section 22.3).
fn find<'a>(
    message: &Message<'a>,
    name: HeaderName,
    own: &str,
) -> Result<Option<(Authorization<'a>, Realm)>, DigestError> {
    for value in message.headers_raw(name) {
        let authorization = match Authorization::parse(value) {
            Ok(authorization) => authorization,
            Err(DigestError::Scheme) => continue,
            Err(error) => return Err(error),
        };
        if let Some(realm) = authorization.realm_text().and_then(|text| realm_of(&text, own)) {
            return Ok(Some((authorization, realm)));
        }
    }
    Ok(None)
}

/// This epoch, or the one before while nonces given out in it live.
fn is_current(epoch: Epoch, unix: UnixTime) -> bool {
    epoch == Epoch::at(unix) || epoch == Epoch::at(UnixTime(unix.0.saturating_sub(WINDOW_S)))
}

/// What the response is checked against. Without credentials the same hashes run over a constant, so that an unknown
/// name takes as long as a known one.
fn expected(credentials: Option<&Credentials>, realm: Realm, sent: &Authorization<'_>, user: &str) -> Ha1 {
    const NOBODY: [u8; 32] = [0x5a; 32];
    match realm {
        Realm::Plain => match sent.algorithm {
            Algorithm::Sha256 => Ha1::from_sha256(credentials.map_or(NOBODY, |known| known.ha1_sha256)),
            Algorithm::Md5 => Ha1::from_md5(credentials.map_or([0x5a; 16], |known| known.ha1_md5)),
        },
        Realm::Agent(epoch) => {
            let password = agent_password(credentials.map_or(&NOBODY, |known| &known.agent_secret), epoch);
            let password = std::str::from_utf8(&*password).unwrap_or_default();
            ha1(Algorithm::Sha256, user, &sent.realm_text().unwrap_or_default(), password)
        }
    }
}

/// Nonces count seconds of the monotonic clock, so that setting the wall clock opens no second chance.
const fn uptime(now: Instant) -> UnixTime {
    UnixTime(now.as_nanos() / 1_000_000_000)
}
