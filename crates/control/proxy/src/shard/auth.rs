//! Who sent this request: nonce, digest, replay set, in that order, and nothing remembered before all three agree.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_grant::{DataMode, epoch::Epoch, mac::SessionSecret};
use sluicegate_policy::{NAME_LEN_MAX, Policy, User};
use sluicegate_signin::{
    ADDRESS_TAG, Answer, CAPABILITY_TAG, EpochHa1, HEADER, Hello, MESSAGE_LEN, Proposal, SignInError, answer_tag,
    joined, respond,
};
use sluicegate_sip::{
    digest::{self, Algorithm, Authorization, Challenge, DigestError, Ha1, verify},
    message::{HeaderName, Message, Method},
    nonce::{NonceId, NonceKey, WINDOW_S},
    replay::ReplaySet,
};
use sluicegate_wire::{Instant, UnixTime};
use zeroize::{Zeroize as _, Zeroizing};

use super::{
    context::Context,
    ladder::Asked,
    settings::{DigestName, Settings},
    transactions::{Transactions, Users},
};
use crate::{
    guesses::{Attempt, Claim},
    metrics::Outcome,
};

/// As many challenges as there are algorithms.
const ALGORITHMS_MAX: usize = 2;
/// Why who has proved itself is refused all the same, and what changes it.
pub(super) const TRANSACTIONS_OF_USER: &str = "the user has begun as many requests as one may within 32 to 64 seconds; \
    raise transactions_per_user_max in tables of [frontend] if that is too few";
const NONCES_OF_USER: &str = "the user has signed in as often as one may within one to two minutes; \
    raise replays_per_user_max in tables of [frontend] if that is too few";
const NONCES: &str = "all users together have signed in as often as they may within a minute; \
    raise replays_max in tables of [frontend]";

/// What the credentials of a request are worth.
#[derive(Debug, PartialEq, Eq)]
enum Verdict<'m> {
    /// Who sent it knows this user's password, and has not sent it before. To be accepted with [`Authenticator::accept`].
    Proved(Claimed<'m>),
    /// Ask for (other) credentials; the nonce, not the password, was at fault if `stale`.
    Challenge {
        /// Tells the client to try again without asking for a password.
        stale: bool,
        /// For the counters.
        outcome: Outcome,
        /// The name that was claimed, for `trace`, if the nonce was good.
        claimed: Option<&'m str>,
    },
    /// The credentials do not follow the grammar.
    Malformed,
    /// Too many wrong digests came for the user that is claimed: these credentials were not looked at.
    Guessing(&'m str),
}

/// Credentials whose digest is right.
#[derive(Debug, PartialEq, Eq)]
struct Claimed<'m> {
    user: &'m str,
    nonce: NonceId,
    /// Of an agent, which whoever uses the realm of an epoch is: what its handshake is made with.
    agent: Option<AgentClaim>,
}

/// What an agent's handshake is made with.
#[derive(Debug, PartialEq, Eq)]
struct AgentClaim {
    ha1: EpochHa1,
    nonces: (Vec<u8>, Vec<u8>),
}

/// Who sent a request.
#[derive(Debug)]
pub(super) struct Proof {
    /// The user's name.
    pub(super) user: String,
    /// Of an agent: what it and this frontend know since.
    pub(super) agent: Option<AgentSession>,
}

/// A finished handshake.
#[derive(Debug, Clone)]
pub(super) struct AgentSession {
    /// Session keys of packet MACs are made from it.
    pub(super) secret: SessionSecret,
    /// The most that its packets can prove, as it says under the handshake.
    pub(super) proves: DataMode,
    message: [u8; MESSAGE_LEN],
}

impl AgentSession {
    /// What the answer that lets the agent in carries: without it the agent believes nothing in that answer.
    pub(super) fn answer(&self, contact: &[u8], body: &[u8]) -> String {
        Answer { message: self.message, tag: answer_tag(&self.secret, contact, body) }.to_text()
    }
}

/// Nonces, used nonces, and the realm they are for.
#[derive(Debug)]
pub(super) struct Authenticator {
    nonces: NonceKey,
    replays: ReplaySet,
    /// Used nonces by user, so that one user does not fill the set for all.
    users: Users,
    /// Makes ephemeral keys. Each turn forgets the one before, so that who reads it later learns no session key.
    ephemerals: Zeroizing<[u8; 32]>,
    /// The realm of the challenges that are being written, and these, one behind the other.
    realm: String,
    challenges: Vec<u8>,
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
            ephemerals: Zeroizing::new(super::derive(&settings.start_key, b"ephemerals")),
            realm: String::new(),
            challenges: Vec::new(),
        }
    }

    /// Who proved to have sent this, or `None` after having asked for (other) credentials.
    pub(super) fn authenticate(
        &mut self,
        cx: &mut Context,
        transactions: &mut Transactions,
        asked: Asked<'_>,
    ) -> Option<Proof> {
        match self.judge(cx, asked) {
            Verdict::Proved(claimed) => {
                // The user is charged before the nonce is used up: else one user's requests, refused or not, would fill
                // the set of used nonces, and nobody could sign in.
                let charged = if transactions.charge(cx.now.instant, claimed.user) {
                    self.accept(cx.now.instant, &claimed)
                } else {
                    Err(TRANSACTIONS_OF_USER)
                };
                if let Err(why) = charged {
                    cx.at_limit(asked, claimed.user, why);
                    return None;
                }
                cx.unproved.proved(cx.now.instant, asked.flow.peer.ip());
                cx.note_proved(asked.flow, claimed.user);
                let Claimed { user, agent, .. } = claimed;
                // With a telephone there is no handshake.
                match agent.map(|claim| self.handshake(cx, asked, &claim)).transpose() {
                    Ok(agent) => return Some(Proof { user: user.to_owned(), agent }),
                    Err(error) => transactions.deny(cx, asked, user, Outcome::Handshake, error.to_string()),
                }
            }
            Verdict::Challenge { stale, outcome, claimed } => {
                cx.metrics.request(asked.kind, outcome);
                if let Some(user) = claimed {
                    let why = match outcome {
                        Outcome::Replay => "these credentials had been used before",
                        _ => "wrong password, disabled, or not allowed to log in this way",
                    };
                    let (status, _, _) = credential_fields(&cx.policy, asked);
                    cx.decided(asked, user, (outcome, status), [why]);
                }
                self.challenge(cx, asked, stale);
            }
            Verdict::Malformed => cx.answer(asked, (Outcome::Malformed, 400), &[]),
            Verdict::Guessing(user) => {
                if cx.policy.user(user).is_some() {
                    cx.settings.limits.refused_password(cx.now.instant, asked.flow.peer, user);
                }
                let why = "too many wrong passwords came for this user; one more is looked at every ten seconds from \
                           the same network or telephone, and every second in all";
                cx.decided(asked, user, (Outcome::Guessing, 503), [why]);
                cx.answer(asked, (Outcome::Guessing, 503), &[]);
            }
        }
        None
    }

    /// Whether a request has a nonce that was given to its address.
    pub(super) fn has_given(&self, cx: &Context, asked: Asked<'_>) -> bool {
        let (_, _, name) = credential_fields(&cx.policy, asked);
        let found = find(asked.message, name, &cx.settings.realm).ok().flatten();
        let (now, client) = (uptime(cx.now.instant), asked.flow.peer.ip());
        found.is_some_and(|(authorization, _)| self.nonces.check(authorization.nonce, now, client).is_ok())
    }

    /// Judges the credentials of a request.
    ///
    /// A wrong password and an unknown, disabled or wrongly used name cost the same: one look-up and the same hashes.
    fn judge<'m>(&mut self, cx: &Context, asked: Asked<'m>) -> Verdict<'m> {
        let Context { now, settings, policy, .. } = cx;
        let (client, message) = (asked.flow.peer, asked.message);
        let (_, _, name) = credential_fields(policy, asked);
        let ask = |stale, outcome| Verdict::Challenge { stale, outcome, claimed: None };
        let (authorization, realm) = match find(message, name, &settings.realm) {
            Ok(Some(found)) => found,
            Ok(None) => return ask(false, Outcome::Challenged),
            Err(DigestError::Malformed | DigestError::Missing(_)) => return Verdict::Malformed,
            Err(_) => return ask(false, Outcome::Challenged),
        };
        let Ok(nonce) = self.nonces.check(authorization.nonce, uptime(now.instant), client.ip()) else {
            return ask(true, Outcome::Stale);
        };
        if matches!(realm, Realm::Agent(epoch) if !is_current(epoch, now.unix)) {
            return ask(true, Outcome::Stale);
        }
        // Nobody has a name that would have to be escaped.
        let claimed = std::str::from_utf8(authorization.username).unwrap_or_default();
        let noted = claimed.char_indices().nth(NAME_LEN_MAX).map_or(claimed, |(end, _)| &claimed[..end]);
        let claim = Claim { user: claimed, peer: client, nonce: authorization.nonce };
        match settings.guesses.attempt(now.instant, &claim) {
            Attempt::Judged => {}
            Attempt::NonceSpent => return ask(true, Outcome::Stale),
            Attempt::Refused => return Verdict::Guessing(noted),
        }
        let user = policy.user(claimed).filter(|user| user.enabled);
        let offered = match realm {
            Realm::Plain => settings.algorithms.iter().any(|name| name.algorithm() == authorization.algorithm),
            Realm::Agent(_) => authorization.algorithm == Algorithm::Sha256,
        };
        let of_agent = match realm {
            Realm::Plain => None,
            Realm::Agent(epoch) => settings.agents.ha1(epoch, claimed).filter(|_| user.is_some()),
        };
        let secret = expected(user.map(|user| &**user), of_agent, realm, authorization.algorithm);
        let proved = verify(&authorization, asked.method.as_bytes(), secret.as_ref());
        let covers = message.request_uri().is_some_and(|uri| authorization.covers(uri));
        if !(proved & offered & covers) {
            settings.guesses.wrong(now.instant, &claim);
            return Verdict::Challenge { stale: false, outcome: Outcome::BadDigest, claimed: Some(noted) };
        }
        settings.guesses.right(now.instant, &claim);
        if self.replays.is_used(nonce, uptime(now.instant)) {
            return Verdict::Challenge { stale: true, outcome: Outcome::Replay, claimed: Some(claimed) };
        }
        let nonces = || (authorization.nonce.to_vec(), authorization.cnonce.to_vec());
        let agent = of_agent.map(|ha1| AgentClaim { ha1: ha1.clone(), nonces: nonces() });
        Verdict::Proved(Claimed { user: claimed, nonce, agent })
    }

    /// Uses up the nonce of proved credentials. What is refused before this takes no place; in the set one user has only
    /// so many.
    ///
    /// # Errors
    /// Which limit it is, if this user, or all together, used as many nonces as are remembered.
    fn accept(&mut self, now: Instant, claimed: &Claimed<'_>) -> Result<(), &'static str> {
        if !self.users.charge(now, claimed.user) {
            return Err(NONCES_OF_USER);
        }
        // Whether it was used before has been looked at.
        self.replays.accept(claimed.nonce, uptime(now)).map_err(|_| NONCES)
    }

    /// Answers the handshake that came with an agent's credentials. Costs three X25519 operations, so the user was charged
    /// for it before.
    ///
    /// # Errors
    /// [`SignInError`]: the request was changed or relayed on its way, or came to another address than it was sent to.
    fn handshake(&mut self, cx: &Context, asked: Asked<'_>, claim: &AgentClaim) -> Result<AgentSession, SignInError> {
        let (settings, message) = (&cx.settings, asked.message);
        let hello = Hello::of(message)?;
        if !settings.dialled().any(|own| own == hello.dialled) {
            return Err(SignInError::Handshake);
        }
        let seed = super::derive(&self.ephemerals, b"key");
        *self.ephemerals = super::derive(&self.ephemerals, b"next");
        let proposal = Proposal {
            method: asked.method.as_bytes(),
            uri: message.request_uri().unwrap_or_default(),
            nonces: (&claim.nonces.0, &claim.nonces.1),
            supported: &joined(message, HeaderName::Supported),
            contact: &joined(message, HeaderName::Contact),
            body: message.body(),
            dialled: hello.dialled,
        };
        let lists = |tag: &str| message.lists(HeaderName::Supported, tag.as_bytes());
        let proves = match (lists(CAPABILITY_TAG), lists(ADDRESS_TAG)) {
            (true, _) => DataMode::Capability,
            (false, false) => DataMode::Mac,
            (false, true) => DataMode::Pinhole,
        };
        let (message, secret) = respond(seed, &settings.replica_key, &claim.ha1, &proposal, &hello.message)?;
        Ok(AgentSession { secret, proves, message })
    }

    /// Asks for credentials, see [`credential_fields`]: agents with a challenge for this epoch, others
    /// with one for each configured algorithm.
    fn challenge(&mut self, cx: &mut Context, asked: Asked<'_>, stale: bool) {
        let Asked { flow, message, .. } = asked;
        let (code, field, _) = credential_fields(&cx.policy, asked);
        let (agents, epoch) = (Arc::clone(&cx.settings.agents), Epoch::at(cx.now.unix));
        let is_agent = message.lists(HeaderName::Supported, b"sluicegate");
        let certificate = agents.certificate(epoch).filter(|_| is_agent);
        if is_agent && certificate.is_none() {
            // The key holder is away, and the keys of this epoch with it.
            return cx.answer_stranger(asked, 503, &[]);
        }
        let nonce = self.nonces.mint(uptime(cx.now.instant), flow.peer.ip());
        let algorithms = if is_agent { &[DigestName::Sha256][..] } else { &cx.settings.algorithms };
        let (realm, out) = (&mut self.realm, &mut self.challenges);
        realm.clear();
        realm.push_str(&cx.settings.realm);
        if is_agent {
            let _ = write!(realm, ";e={epoch}");
        }
        out.clear();
        let mut ends = [0; ALGORITHMS_MAX];
        for (end, name) in ends.iter_mut().zip(algorithms) {
            let algorithm = name.algorithm();
            let challenge =
                Challenge { realm: realm.as_bytes(), nonce: nonce.as_bytes(), opaque: None, algorithm, stale };
            challenge.write(out);
            *end = out.len();
        }
        let mut fields = [(HEADER.as_str(), certificate.unwrap_or_default().as_bytes()); 1 + ALGORITHMS_MAX];
        let (mut start, challenges) = (0, usize::from(certificate.is_some()));
        let count = challenges + algorithms.len().min(ALGORITHMS_MAX);
        for (line, end) in fields.iter_mut().skip(challenges).zip(ends) {
            *line = (field, out.get(start..end).unwrap_or_default());
            start = end;
        }
        cx.answer_stranger(asked, code, fields.get(..count).unwrap_or_default());
    }

    /// The fill of the replay set.
    pub(super) fn gauge(&self) -> Gauge {
        self.replays.gauge()
    }
}

impl DigestName {
    const fn algorithm(self) -> Algorithm {
        match self {
            Self::Md5 => Algorithm::Md5,
            Self::Sha256 => Algorithm::Sha256,
        }
    }
}

/// Which header fields a challenge and its credentials stand in. Where a SIP server takes registrations we are a proxy to all
/// telephones: its 401 and ours would be told apart by nobody, and strangers do not learn whose goes there.
fn credential_fields(policy: &Policy, asked: Asked<'_>) -> (u16, &'static str, HeaderName) {
    let is_agents = || asked.message.lists(HeaderName::Supported, b"sluicegate");
    match asked.method {
        Method::Register if !policy.relays_registrations() || is_agents() => {
            (401, "WWW-Authenticate", HeaderName::Authorization)
        }
        _ => (407, "Proxy-Authenticate", HeaderName::ProxyAuthorization),
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
        let realm = match digest::realm_of(value) {
            Ok(realm) => std::str::from_utf8(realm).ok().and_then(|realm| realm_of(realm, own)),
            Err(DigestError::Scheme) => None,
            Err(error) => return Err(error),
        };
        if let Some(realm) = realm {
            return Authorization::parse(value).map(|authorization| Some((authorization, realm)));
        }
    }
    Ok(None)
}

/// This epoch, or the one before while nonces given out in it live.
fn is_current(epoch: Epoch, unix: UnixTime) -> bool {
    epoch == Epoch::at(unix) || epoch == Epoch::at(UnixTime(unix.0.saturating_sub(WINDOW_S)))
}

/// What the response is checked against; without it the digest check hashes a constant, so that an unknown name takes as
/// long as a known one.
fn expected(user: Option<&User>, of_agent: Option<&EpochHa1>, realm: Realm, algorithm: Algorithm) -> Option<Ha1> {
    let of_phone = user.filter(|user| user.phone).and_then(|user| user.credentials.as_ref());
    match (realm, algorithm) {
        (Realm::Agent(_), _) => of_agent.map(|ha1| Ha1::from_sha256(*ha1.expose())),
        (Realm::Plain, Algorithm::Sha256) => of_phone.map(|known| Ha1::from_sha256(known.ha1_sha256)),
        (Realm::Plain, Algorithm::Md5) => of_phone.map(|known| Ha1::from_md5(known.ha1_md5)),
    }
}

/// Nonces count seconds of the monotonic clock, so that setting the wall clock opens no second chance.
const fn uptime(now: Instant) -> UnixTime {
    UnixTime(now.as_nanos() / 1_000_000_000)
}
