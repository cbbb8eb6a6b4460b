//! The service side: registers a service, answers its invitations, ends clients that misbehave.

mod clients;
mod meter;
mod registration;

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    task::Poll,
    time::Duration,
};

use sluicegate_policy::{PortProtocol, PortRange};
use sluicegate_sip::{
    message::{HeaderName, Message, NameAddr, part},
    sdp::{Answer, MediaAnswer, Session, Transport, Wanted},
    ua::{Content, Event},
    uri::Uri,
};
use tokio::{sync::mpsc, time::Instant};
use tracing::{info, warn};

pub use self::meter::Limit;
use self::{
    clients::{Admission, Clients, Place, Refusal},
    registration::Registration,
};
use crate::{
    account::{Account, TrustError},
    endpoint::Endpoint,
};

/// Seconds that a registration asks for.
const EXPIRES_S: u32 = 60;
/// Answers remembered at once, each for half a minute: 250 calls a second, with their ends.
const ANSWERS_MAX: usize = 16_384;
/// How long a client stays in of whom the frontend does not say it.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(3_600);
/// How long the end of a registration may take.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// Everything the service side agent is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// SIP addresses of the frontends: it registers at each.
    pub frontends: Vec<SocketAddr>,
    /// The service's `registrar`.
    pub account: Account,
    /// The service's name.
    pub service: String,
    /// The service's address as the gate reaches it, and the agent's own SIP port.
    pub sip: SocketAddr,
    /// What may be opened.
    pub ports: Vec<PortRange>,
    /// Users let in; empty: all whom the policy lets in.
    pub allow: Vec<String>,
    /// Users refused.
    pub deny: Vec<String>,
    /// Clients at once.
    pub clients_max: usize,
    /// Clients of one user at once: the next ends the oldest of them.
    pub clients_per_user_max: usize,
    /// How much one client may send before it is ended.
    pub limit: Option<Limit>,
}

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The SIP port cannot be used.
    #[error("cannot listen for SIP at udp/{0}: {1}; is the address this host's, and the port free?")]
    Listen(SocketAddr, io::Error),
    /// Traffic cannot be measured.
    #[error("cannot measure traffic on interface {0:?}: {1}; abuse_rate needs CAP_NET_RAW and an existing interface")]
    Meter(String, io::Error),
    /// The frontend does not let this user register.
    #[error("the frontend refused to register {service}: {code} {reason}; is {user} its registrar?")]
    Refused {
        /// The service.
        service: String,
        /// The user.
        user: String,
        /// SIP status code.
        code: u16,
        /// Reason phrase.
        reason: String,
    },
    /// The frontend is not believed.
    #[error("not registered: {0}")]
    Trust(#[from] TrustError),
    /// The socket failed.
    #[error("cannot talk to the frontend: {0}")]
    Socket(io::Error),
}

/// Runs until `shutdown` resolves. `ready` is called when the service is registered for the first time.
///
/// # Errors
/// See [`ServeError`]. A frontend that does not answer is not an error: the agent keeps trying.
pub async fn serve(config: Config, ready: impl FnOnce(), shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    let mut fronts = Vec::with_capacity(config.frontends.len());
    for frontend in &config.frontends {
        let opened = Endpoint::open(config.sip, *frontend, ANSWERS_MAX).await;
        let endpoint = opened.map_err(|error| ServeError::Listen(config.sip, error))?;
        fronts.push(Front { endpoint, registration: Registration::new(&config) });
    }
    let (abusers, mut abusive) = mpsc::channel(64);
    let _meter = match &config.limit {
        Some(limit) => Some(
            meter::start(limit, config.sip.ip(), abusers)
                .map_err(|error| ServeError::Meter(limit.interface.clone(), error))?,
        ),
        None => None,
    };
    let clients =
        Clients::new((config.clients_max, config.clients_per_user_max), config.allow.clone(), config.deny.clone());
    let mut server = Server { fronts, clients, config };
    let mut ready = Some(ready);
    tokio::pin!(shutdown);
    loop {
        for front in server.fronts.iter_mut().filter(|front| front.registration.is_due()) {
            front.registration.send(&mut front.endpoint, EXPIRES_S);
        }
        server.expire();
        let due = server.fronts.iter().filter_map(|front| front.registration.due());
        let until = due.chain(server.clients.next_end()).min();
        tokio::select! {
            () = &mut shutdown => break,
            Some(client) = abusive.recv() => server.end(client),
            (at, event) = next_event(&mut server.fronts, until) => match event.map_err(ServeError::Socket)? {
                Some(Event::Invited { leg, is_new, request }) => server.invited((at, leg), is_new, &request),
                Some(Event::Ended { leg }) => server.clients.remove((at, leg)),
                Some(event) => {
                    if server.answered(at, event)?
                        && let Some(ready) = ready.take()
                    {
                        ready();
                    }
                }
                None => {}
            },
        }
    }
    // Expires 0: nobody is sent here any more.
    let _ = tokio::time::timeout(LEAVING_MAX, server.leave()).await;
    Ok(())
}

/// One of the frontends.
struct Front {
    endpoint: Endpoint,
    registration: Registration,
}

/// What happens next at any of the frontends, and at which; `None` when `until` has passed.
async fn next_event(fronts: &mut [Front], until: Option<Instant>) -> (usize, io::Result<Option<Event>>) {
    let mut waiting: Vec<_> = fronts.iter_mut().map(|front| Box::pin(front.endpoint.event(until))).collect();
    poll_fn(|context| {
        let ready = waiting.iter_mut().enumerate().find_map(|(at, event)| match event.as_mut().poll(context) {
            Poll::Ready(event) => Some((at, event)),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

struct Server {
    fronts: Vec<Front>,
    clients: Clients,
    config: Config,
}

impl Server {
    /// Takes the answer to a registration; whether the service is registered there now. One of several frontends that refuses
    /// is asked again: it may not have this user yet.
    fn answered(&mut self, at: usize, event: Event) -> Result<bool, ServeError> {
        let (alone, frontend) = (self.fronts.len() == 1, self.config.frontends.get(at));
        let Some(Front { endpoint, registration }) = self.fronts.get_mut(at) else { return Ok(false) };
        match registration.answered(endpoint, event) {
            Ok(Some(is_first)) => {
                if is_first {
                    info!(service = self.config.service, ?frontend, "registered");
                }
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) if alone => Err(error),
            Err(error) => {
                warn!(?frontend, %error, "trying again, and serving those who come by the others");
                registration.refused();
                Ok(false)
            }
        }
    }

    /// Ends the registration, and waits until the frontend has taken note.
    async fn leave(&mut self) -> Result<(), ServeError> {
        for front in &mut self.fronts {
            front.registration.send(&mut front.endpoint, 0);
        }
        while self.fronts.iter().any(|front| front.registration.is_under_way()) {
            let (at, event) = next_event(&mut self.fronts, None).await;
            if let (Some(event), Some(front)) = (event.map_err(ServeError::Socket)?, self.fronts.get_mut(at)) {
                front.registration.answered(&mut front.endpoint, event)?;
            }
        }
        Ok(())
    }

    /// Lets go whom nothing is open for any more.
    fn expire(&mut self) {
        let ended = self.clients.expire(Instant::now());
        if !ended.is_empty() {
            info!(ended = ended.len(), "what was opened for them is over");
        }
        for (at, leg) in ended {
            self.fronts[at].endpoint.forget(leg);
        }
    }

    fn invited(&mut self, place: Place, is_new: bool, request: &[u8]) {
        let (mut content, mut given_up) = (Content::default(), None);
        let code = match Message::parse(request) {
            Ok(message) => match self.admit(place, is_new, &message) {
                Ok((description, oldest)) => {
                    (content, given_up) = (content.body("application/sdp", description), oldest);
                    200
                }
                Err(code) => code,
            },
            Err(_) => 400,
        };
        let (at, leg) = place;
        self.fronts[at].endpoint.respond(leg, code, &self.config.service, &content);
        if let Some(admission) = given_up {
            self.hang_up(&admission, "its user has as many clients as clients_per_user_max allows");
        }
    }

    /// Decides about an invitation: the session description of the answer and who has to go for it, or the status that
    /// refuses it.
    fn admit(
        &mut self,
        place: Place,
        is_new: bool,
        message: &Message<'_>,
    ) -> Result<(Vec<u8>, Option<Admission>), u16> {
        let user = asserted_user(message).unwrap_or_default();
        let lifetime = session_expires(message).unwrap_or(LIFETIME_DEFAULT);
        let is_renewal = !is_new && self.clients.renew(Instant::now(), place, lifetime);
        let offer = part(message, "application/sdp").and_then(|text| Session::parse(text).ok()).ok_or(488_u16)?;
        let media = self.answers(&offer);
        if !media.iter().any(|media| matches!(media, MediaAnswer::Accepted { .. })) {
            warn!(user, "refused: asks for ports that this service does not offer");
            return Err(488);
        }
        let mut given_up = None;
        if !is_renewal {
            let client = offer.media().iter().find_map(|media| media.address).or(offer.address).ok_or(400_u16)?;
            let admission = Admission { user: user.clone(), client, place, lifetime };
            given_up = self.clients.admit(Instant::now(), admission).map_err(|refusal| {
                warn!(user, %client, %refusal, "refused");
                if refusal == Refusal::Full { 486_u16 } else { 603 }
            })?;
            info!(user, %client, "let in");
        }
        let mut description = Vec::new();
        let answer = Answer { offer: &offer, session_id: 1, version: 1, address: self.config.sip.ip(), media: &media };
        answer.write(&mut description);
        Ok((description, given_up))
    }

    /// One answer for each offered media line: ports of this service are accepted as they are.
    fn answers(&self, offer: &Session<'_>) -> Vec<MediaAnswer> {
        let mut answers = vec![MediaAnswer::Refused; offer.media().len()];
        for wanted in offer.wanted() {
            let Wanted::Service { media, transport, first, last } = wanted else { continue };
            let protocol = match transport {
                Transport::Tcp => PortProtocol::Tcp,
                Transport::Udp => PortProtocol::Udp,
                // An agent hands over connections and datagrams, and nothing else.
                Transport::Ip(_) | Transport::Other => continue,
            };
            let range = PortRange { protocol, first, last };
            if self.config.ports.iter().any(|own| own.contains(&range))
                && let Some(answer) = answers.get_mut(media)
            {
                *answer = MediaAnswer::Accepted { address: self.config.sip.ip(), port: first };
            }
        }
        answers
    }

    /// Ends everything that a client has open: BYE to the frontend, which revokes the grants.
    fn end(&mut self, client: IpAddr) {
        for admission in self.clients.remove_client(client) {
            self.hang_up(&admission, "it sent faster than abuse_rate");
        }
    }

    fn hang_up(&mut self, admission: &Admission, why: &str) {
        let client = admission.client;
        warn!(user = admission.user, %client, why, "ended");
        // The client may never answer, and nobody else waits for it: the frontend acts on the BYE as it passes it on.
        let (at, leg) = admission.place;
        if let Err(error) = self.fronts[at].endpoint.end(leg, Content::default()) {
            warn!(%client, %error, "the frontend is not told that the client is ended");
        }
    }
}

/// How long what is opened for this invitation lasts, as the frontend says (the field of RFC 4028).
fn session_expires(message: &Message<'_>) -> Option<Duration> {
    let value = message.header(HeaderName::SessionExpires)?;
    let digits = value.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok().map(Duration::from_secs)
}

/// The user that the frontend authenticated (RFC 3325). The socket hears the frontend's address only, and what comes from
/// there through a gate has proved to be the frontend's. Whoever forges that address *inside*, past the gate, can be
/// anybody here: the network between gate and service is trusted for that.
fn asserted_user(message: &Message<'_>) -> Option<String> {
    let value = message.header(HeaderName::PAssertedIdentity)?;
    let uri = Uri::parse(NameAddr::parse(value)?.uri).ok()?;
    String::from_utf8(uri.user?.to_vec()).ok()
}
