//! The client's side of one call: sign in for a range of the service's ports, renew, say goodbye.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use sluicegate_grant::{DataMode, GRANT_LEN, Grant, SIGNED_GRANT_LEN};
use sluicegate_policy::{PortProtocol, PortRange, data_mode};
use sluicegate_sip::{
    message::{Message, Method, part},
    sdp::{ServiceOffer, ServicePorts, Session, Transport, Wanted},
    ua::{Content, Event, Failure, LegId, Parties},
};
use tokio::time::Instant;

use sluicegate_signin::CONTINUES;

use crate::{
    account::{Account, SignIn, TrustError, random, supported},
    endpoint::{Endpoint, ExchangeError, reason_phrase},
    opening::OpenRange,
    seal::{Sealer, Secrets},
};

/// The part of a 200 that carries the signed grants.
pub(crate) const GRANT_TYPE: &str = "application/vnd.sluicegate.grant";
/// No grant is renewed more often than at half of this.
const LIFETIME_MIN: Duration = Duration::from_secs(2);
/// How often the address of connections that stand is proved, at most and at least.
const PROVE_INTERVAL_MIN: Duration = Duration::from_millis(250);
const PROVE_INTERVAL_MAX: Duration = Duration::from_secs(15);
/// While something stands that a translator's new address would cut off: whoever only waits for data does not notice.
const PROVE_INTERVAL_IN_USE: Duration = Duration::from_secs(2);

/// A renewal that failed is tried again after this, and after twice as long so many times.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_DOUBLINGS: u32 = 4;
/// How often a gate that acknowledges nothing is asked for the grant anew.
const SILENCE_INTERVAL: Duration = Duration::from_secs(10);

/// Why a call was not opened or renewed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No answer, or no way to ask.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The frontend is not believed.
    #[error("not signed in: {0}")]
    Trust(#[from] TrustError),
    /// The answer is weaker than what was asked for.
    #[error("the frontend's answer is refused: {0}")]
    Weak(&'static str),
    /// The grant's key is from a sign-in whose answer never came.
    #[error("the grant's packet MACs have a key that this agent does not have")]
    Key,
    /// The frontend wants other credentials.
    #[error("the frontend does not accept the password of {0} in realm {1}; check the three")]
    Credentials(String, String),
    /// The frontend said no.
    #[error("the frontend refused {range} of {service}: {code} {reason}")]
    Refused {
        /// What was asked for.
        range: PortRange,
        /// The service.
        service: String,
        /// SIP status code.
        code: u16,
        /// The reason phrase.
        reason: String,
    },
    /// An answer that does not say what was opened.
    #[error("the frontend's answer cannot be used: {0}")]
    Answer(String),
}

impl CallError {
    /// Whether the frontend said nothing at all.
    pub(crate) const fn is_unanswered(&self) -> bool {
        matches!(self, Self::Exchange(ExchangeError::Silent(_) | ExchangeError::Socket(..)))
    }

    /// Whether the frontend cannot do what it is asked, and another may.
    pub(crate) const fn is_out_of_order(&self) -> bool {
        matches!(self, Self::Refused { code: 500 | 503, .. })
    }

    /// Whether the frontend knows the user and says no.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(self, Self::Credentials(..) | Self::Refused { code: 403, .. })
    }
}

/// An open call: one range of the service's ports.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) open: OpenRange,
    /// When the grant is to be renewed: at half its lifetime, or as soon as half of its budget is known to be used.
    renew_at: Instant,
    /// When it ends if it is not.
    pub(crate) ends_at: Instant,
    /// When this host's address was proved last, which also told what was left of the budget.
    proved_at: Instant,
    /// Somebody had connected before this host's address changed.
    was_used: bool,
    /// Its frontend has not been told of this host's address yet.
    has_moved: bool,
    /// Nor has its gate.
    is_unproved: bool,
    /// A renewal failed, and is not tried again before.
    failed_until: Option<Instant>,
    /// How often in a row.
    failures: u32,
    /// The gate's silence is no reason for a renewal before.
    silence_until: Instant,
    worth: Worth,
    service: String,
    /// The frontend that knows of it.
    at: IpAddr,
    leg: LegId,
    session_id: u64,
    version: u64,
    /// The most that packets can prove, and so the least that grants have to demand.
    proves: DataMode,
    secrets: Secrets,
}

impl Call {
    /// Signs in to `service` and opens `range` of its ports, for packets that can prove as much as `proves`. What was open
    /// `before` goes on under it, if the frontend, another than then, and the gate agree.
    pub(crate) async fn open(
        endpoint: &mut Endpoint,
        account: &Account,
        (service, proves): (&str, DataMode),
        (range, before): (PortRange, Option<&Arc<Sealer>>),
    ) -> Result<Self, CallError> {
        let (uri, from) = (format!("sip:{service}@{}", account.realm), account.uri());
        let session_id = u64::from(u32::from_be_bytes(random()));
        let parties = Parties { from: &from, to: &uri, uri: &uri, contact: &account.user };
        let mut wish = content(offer(endpoint.local(), range, session_id, 1), proves);
        if let Some(known) = before {
            wish = wish.header(CONTINUES.as_str(), hex(&known.grant_id().call()));
        }
        let leg = endpoint.start(Method::Invite, parties, wish, Some(SignIn::new(account)))?;
        let mut secrets = Secrets::default();
        let answered = let_in(endpoint, leg, account, (service, range), &mut secrets).await;
        let opened = answered.and_then(|answer| opened(&answer, (range, proves), &mut secrets, before));
        // What was opened for it all the same runs out by itself.
        let (open, worth) = opened.inspect_err(|_| endpoint.forget(leg))?;
        let now = Instant::now();
        Ok(Self {
            open,
            renew_at: now + worth.lifetime / 2,
            ends_at: now + worth.lifetime,
            proved_at: now,
            was_used: false,
            has_moved: false,
            // The gate has other keys now, and no proof of this host's address under them.
            is_unproved: before.is_some(),
            failed_until: None,
            failures: 0,
            silence_until: now,
            worth,
            service: service.to_owned(),
            at: endpoint.frontend().ip(),
            leg,
            session_id,
            version: 1,
            proves,
            secrets,
        })
    }

    /// Renews the grant by an INVITE within the call.
    pub(crate) async fn renew(&mut self, endpoint: &mut Endpoint, account: &Account) -> Result<(), CallError> {
        self.version += 1;
        let offer = offer(endpoint.local(), self.open.service, self.session_id, self.version);
        endpoint.again(self.leg, content(offer, self.proves))?;
        let asked = (self.service.as_str(), self.open.service);
        let answer = let_in(endpoint, self.leg, account, asked, &mut self.secrets).await?;
        let (open, worth) =
            opened(&answer, (self.open.service, self.proves), &mut self.secrets, self.open.seal.as_ref())?;
        // A gate that was told of this host's address under the last key is told under the next.
        self.is_unproved |= self.has_moved && open.seal != self.open.seal;
        (self.open, self.worth) = (open, worth);
        if let Some(sealer) = &self.open.seal {
            sealer.is_worth(self.worth.bytes);
        }
        let now = Instant::now();
        (self.renew_at, self.ends_at) = (now + self.worth.lifetime / 2, now + self.worth.lifetime);
        (self.has_moved, self.failed_until, self.failures) = (false, None, 0);
        Ok(())
    }

    /// A renewal failed: the next is tried later each time. Whether the grant ends before.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        let again = now + RETRY * 2u32.pow(self.failures.min(RETRY_DOUBLINGS));
        self.failures += 1;
        self.failed_until = Some(again);
        again >= self.ends_at
    }

    /// This host has another address: the frontend is to know it, and the gate.
    pub(crate) fn moved(&mut self) {
        (self.has_moved, self.failed_until, self.failures) = (true, None, 0);
        self.is_unproved = true;
        if let Some(sealer) = &self.open.seal {
            self.was_used |= sealer.is_used();
            sealer.forget_proof();
        }
    }

    /// Whether the gate has not acknowledged this host's address lately.
    pub(crate) fn is_silent(&self) -> bool {
        self.open.seal.as_ref().is_some_and(|sealer| sealer.is_silent())
    }

    /// Why the grant is to be renewed now; `None` if it is not.
    pub(crate) fn renew_because(&mut self, now: Instant) -> Option<&'static str> {
        if self.failed_until.is_some_and(|until| now < until) {
            return None;
        }
        if self.has_moved {
            return Some("this host's address has changed");
        }
        let is_half_spent = self.open.seal.as_ref().is_some_and(|sealer| sealer.left() < self.worth.bytes / 2);
        if is_half_spent {
            return Some("half of its budget is used");
        }
        if self.is_silent() && self.silence_until <= now {
            (self.silence_until, self.is_unproved) = (now + SILENCE_INTERVAL, true);
            return Some("the gate does not answer");
        }
        (self.renew_at <= now).then_some("half of its time is over")
    }

    /// What proves this host's address for connections that stand, if that is due now: a gate that was killed may have
    /// forgotten it, a translator on the way may have another, and the gate says what is left. A renewal may bring a new
    /// key, and then it is proved under that.
    pub(crate) fn proof_due(&mut self, now: Instant, stands: bool) -> Option<Arc<Sealer>> {
        if self.proof_at(stands).is_none_or(|at| now < at) {
            return None;
        }
        (self.proved_at, self.is_unproved) = (now, false);
        self.open.seal.clone()
    }

    /// When the next proof is due; `None` while there is nothing that needs one. `stands`: there are connections.
    fn proof_at(&self, stands: bool) -> Option<Instant> {
        let sealer = self.open.seal.as_ref()?;
        if self.is_unproved {
            return Some(self.proved_at);
        }
        let interval = self.worth.prove_interval();
        if stands || sealer.is_in_use() {
            return Some(self.proved_at + interval.min(PROVE_INTERVAL_IN_USE));
        }
        let is_kept = self.open.mode == DataMode::Pinhole && (self.was_used || sealer.is_used());
        is_kept.then(|| self.proved_at + interval)
    }

    /// When to look at this call again.
    pub(crate) fn wakes_at(&self, stands: bool) -> Instant {
        let renews_at = self.failed_until.map_or(self.renew_at, |until| self.renew_at.max(until));
        self.proof_at(stands).map_or(renews_at, |at| renews_at.min(at))
    }

    /// Ends the call: the gate closes. A frontend that does not answer lets the grant run out.
    pub(crate) async fn bye(self, endpoint: &mut Endpoint) {
        if endpoint.end(self.leg, Content::default().header("Supported", supported(self.proves))).is_ok() {
            let _ = tokio::time::timeout(Duration::from_secs(2), endpoint.outcome(self.leg)).await;
        }
        endpoint.forget(self.leg);
    }

    /// How often in a row it could not be renewed.
    pub(crate) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether another frontend than this one knows of it.
    pub(crate) fn is_of_another(&self, frontend: SocketAddr) -> bool {
        self.at != frontend.ip()
    }

    /// The call's leg.
    pub(crate) const fn leg(&self) -> LegId {
        self.leg
    }
}

/// What a grant allows, by the grant itself: no clock of this host has a say in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Worth {
    lifetime: Duration,
    bytes: u64,
    /// In bit/s; 0: no limit.
    rate_bps: u64,
}

impl Worth {
    fn of(grant: &Grant) -> Self {
        let lifetime_s = grant.not_after.0.saturating_sub(grant.not_before.0);
        let lifetime = Duration::from_secs(lifetime_s).max(LIFETIME_MIN);
        Self { lifetime, bytes: grant.bytes, rate_bps: u64::from(grant.rate_100kbps) * 100_000 }
    }

    /// How often to ask what is used: before more than a quarter of the budget can have gone.
    fn prove_interval(&self) -> Duration {
        let quarter_ms = self.bytes.saturating_mul(2_000).checked_div(self.rate_bps).unwrap_or(0);
        Duration::from_millis(quarter_ms).clamp(PROVE_INTERVAL_MIN, PROVE_INTERVAL_MAX)
    }
}

/// Waits until the frontend has let this agent in, and has proved to be the frontend; its 2xx. `secrets` gets what the
/// handshake leaves behind.
async fn let_in(
    endpoint: &mut Endpoint,
    leg: LegId,
    account: &Account,
    (service, range): (&str, PortRange),
    secrets: &mut Secrets,
) -> Result<Vec<u8>, CallError> {
    let event = endpoint.outcome(leg).await?;
    let (secret, error) =
        endpoint.sign_in(leg).map_or((None, None), |sign_in| (sign_in.secret.take(), sign_in.error.take()));
    if let Some(secret) = secret {
        secrets.push(secret);
    }
    let refused = |code, reason| Err(CallError::Refused { range, service: service.to_owned(), code, reason });
    match (event, error) {
        (Event::Answered { code: 200..=299, response, .. }, _) => Ok(response),
        (_, Some(error)) => Err(error.into()),
        (Event::Answered { code: 401 | 407, .. }, None) => {
            Err(CallError::Credentials(account.user.clone(), account.realm.clone()))
        }
        (Event::Answered { code, response, .. }, None) => refused(code, reason_phrase(&response)),
        (Event::Failed { failure: Failure::Dialog(error), .. }, None) => Err(CallError::Answer(error.to_string())),
        // The other side ended it meanwhile.
        (_, None) => refused(481, "the call is over".to_owned()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn content(offer: Vec<u8>, proves: DataMode) -> Content {
    Content::default()
        .header("Supported", supported(proves))
        .header("Accept", "application/sdp, multipart/mixed, application/vnd.sluicegate.grant")
        .body("application/sdp", offer)
}

fn offer(local: SocketAddr, range: PortRange, session_id: u64, version: u64) -> Vec<u8> {
    let transport = match range.protocol {
        PortProtocol::Tcp => Transport::Tcp,
        PortProtocol::Udp => Transport::Udp,
        other => Transport::Ip(other.number(local.ip())),
    };
    let ports = [ServicePorts { transport, first: range.first, last: range.last }];
    let mut out = Vec::new();
    ServiceOffer { session_id, version, address: local.ip(), ports: &ports }.write(&mut out);
    out
}

/// Where the gate offers `range`, from the session description in the answer, and how packets to it are proved, from the
/// grant: by what this agent asked for, and nothing weaker. `known` is the sealer so far.
fn opened(
    answer: &[u8],
    (range, proves): (PortRange, DataMode),
    secrets: &mut Secrets,
    known: Option<&Arc<Sealer>>,
) -> Result<(OpenRange, Worth), CallError> {
    let wrong = |what: &str| CallError::Answer(what.to_owned());
    let message = Message::parse(answer).map_err(|error| wrong(&error.to_string()))?;
    let text = part(&message, "application/sdp").ok_or_else(|| wrong("it has no session description"))?;
    let session = Session::parse(text).map_err(|error| wrong(&error.to_string()))?;
    let Some(Wanted::Service { media, .. }) = session.wanted().next() else {
        return Err(wrong("it opens nothing"));
    };
    let line = session.media().get(media).ok_or_else(|| wrong("it opens nothing"))?;
    let address = line.address.or(session.address).ok_or_else(|| wrong("it names no address"))?;
    let covers = |grant: &Grant| grant.gate_ports.0 == line.port && grant.gate_address == address;
    let grant = grants(&message).find(covers).ok_or(CallError::Weak("no grant stands for what it opens"))?;
    let asked = data_mode(proves, range.protocol);
    if grant.least_mode < asked || !grant.proves_address() {
        return Err(CallError::Weak("packets that prove less than this agent asked for would be let in"));
    }
    let seal = Some(secrets.sealer(&grant, known).ok_or(CallError::Key)?);
    let (client_id, mode) = (grant.client_id, grant.least_mode);
    let open = OpenRange { service: range, address, external_first: line.port, client_id, mode, seal };
    Ok((open, Worth::of(&grant)))
}

/// The readable grants in an answer.
fn grants<'a>(message: &Message<'a>) -> impl Iterator<Item = Grant> + use<'a> {
    let part = part(message, GRANT_TYPE).unwrap_or_default();
    part.chunks_exact(SIGNED_GRANT_LEN).filter_map(|grant| Grant::decode(grant.get(..GRANT_LEN)?).ok())
}

#[cfg(test)]
mod tests {
    use sluicegate_grant::{ANY_PORTS, FLAG_PROVES_ADDRESS, GrantId, mac::SessionSecret};
    use sluicegate_wire::UnixTime;

    use super::*;

    fn answer(content_type: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:c@b>;tag=2\r\n\
             Call-ID: 1\r\nCSeq: 1 INVITE\r\nContact: <sip:x@192.0.2.1>\r\nContent-Type: {content_type}\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    }

    const SDP: &str = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n\
                       m=application 31000 TCP sluicegate\r\na=service-ports:22\r\n";

    #[test]
    fn what_no_grant_stands_for_is_no_opening() {
        let range: PortRange = "tcp/22".parse().unwrap();
        let multipart = format!(
            "--b1\r\nContent-Type: application/sdp\r\n\r\n{SDP}\r\n--b1\r\nContent-Type: {GRANT_TYPE}\r\n\r\nxyz\r\n--b1--\r\n"
        );
        let multipart = multipart.as_bytes();
        let sdp = answer("application/sdp", SDP.as_bytes());
        for bytes in [sdp, answer("multipart/mixed;boundary=b1", multipart)] {
            let refused = opened(&bytes, (range, DataMode::Mac), &mut Secrets::default(), None);
            assert!(matches!(refused, Err(CallError::Weak(_))));
        }
        let bytes = answer("multipart/mixed; boundary=\"b1\"", multipart);
        assert_eq!(part(&Message::parse(&bytes).unwrap(), GRANT_TYPE), Some(&b"xyz"[..]));
    }

    #[test]
    fn a_refused_media_line_is_no_opening() {
        let bytes = answer("application/sdp", SDP.replace("31000", "0").as_bytes());
        let range = "tcp/22".parse().unwrap();
        assert!(opened(&bytes, (range, DataMode::Mac), &mut Secrets::default(), None).is_err());
    }

    /// An answer that opens one port of this protocol with a grant of this mode, and the secret behind its client id.
    fn granted(protocol: &str, least_mode: DataMode, flags: u8) -> (Vec<u8>, Secrets) {
        let secret = SessionSecret::extract(b"h", (&[1; 32], &[2; 32]));
        let id = GrantId::of_call([5; 12], 0);
        let grant = Grant {
            flags,
            least_mode,
            protocol: if protocol == "UDP" { 17 } else { 6 },
            id,
            issuer: [1; 8],
            epoch: 0,
            not_before: UnixTime(1_000),
            not_after: UnixTime(2_000),
            bytes: 1_000_000,
            client_id: secret.client_id(id, 0),
            flows: 4,
            rate_100kbps: 1,
            client_address: [198, 51, 100, 7].into(),
            client_ports: ANY_PORTS,
            gate_address: [192, 0, 2, 1].into(),
            gate_ports: (31_000, 31_000),
            holder: [0; 32],
            user_pseudonym: [0; 8],
        };
        let sdp = SDP.replace("TCP", protocol);
        let head =
            format!("--b1\r\nContent-Type: application/sdp\r\n\r\n{sdp}\r\n--b1\r\nContent-Type: {GRANT_TYPE}\r\n\r\n");
        let body = [head.as_bytes(), &grant.encode(), &[0; SIGNED_GRANT_LEN - GRANT_LEN], b"\r\n--b1--\r\n"].concat();
        let mut secrets = Secrets::default();
        secrets.push(secret);
        (answer("multipart/mixed;boundary=b1", &body), secrets)
    }

    #[test]
    fn a_grant_lasts_as_long_as_it_says_whatever_this_hosts_clock_and_is_asked_about_in_time() {
        let (bytes, mut secrets) = granted("TCP", DataMode::Pinhole, FLAG_PROVES_ADDRESS);
        let (_, worth) = opened(&bytes, ("tcp/22".parse().unwrap(), DataMode::Mac), &mut secrets, None).unwrap();
        // It ended half a century ago by this clock.
        assert_eq!(worth.lifetime, Duration::from_secs(1_000));
        let interval = |bytes, rate_bps| Worth { bytes, rate_bps, ..worth }.prove_interval();
        assert_eq!(interval(10_000_000, 8_000_000), Duration::from_millis(2_500), "a quarter of it");
        assert_eq!(interval(10_000_000, 0), PROVE_INTERVAL_MIN);
        assert_eq!(interval(u64::MAX, 1), PROVE_INTERVAL_MAX);
    }

    #[test]
    fn conformance_05_a_grant_that_demands_less_than_was_asked_for_is_refused() {
        let opens = |protocol: &str, granted_mode, flags, asked| {
            let (bytes, mut secrets) = granted(protocol, granted_mode, flags);
            let range = format!("{}/22", protocol.to_lowercase()).parse().unwrap();
            match opened(&bytes, (range, asked), &mut secrets, None) {
                Ok((open, _)) => {
                    assert!(open.mode == granted_mode && open.seal.is_some());
                    true
                }
                Err(CallError::Weak(_)) => false,
                Err(other) => panic!("{other}"),
            }
        };
        let modes = [DataMode::Pinhole, DataMode::Mac, DataMode::Capability];
        let which = |protocol, asked| modes.map(|mode| opens(protocol, mode, FLAG_PROVES_ADDRESS, asked));
        assert_eq!(which("UDP", DataMode::Capability), [false, false, true]);
        assert_eq!(which("TCP", DataMode::Capability), [false, false, true]);
        assert_eq!(which("UDP", DataMode::Mac), [false, true, true]);
        assert_eq!(which("TCP", DataMode::Mac), [true, true, true]);
        // Whatever the mode, nobody but this agent may open it.
        assert!(modes.iter().all(|mode| !opens("TCP", *mode, 0, DataMode::Mac)));
    }
}
