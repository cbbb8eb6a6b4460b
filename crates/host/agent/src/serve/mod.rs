//! The service side: registers a service, answers its invitations, ends clients that misbehave.

mod clients;
mod meter;
mod registration;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use sluicegate_policy::{PortProtocol, PortRange};
use sluicegate_sip::{
    dialog::Dialog,
    message::{HeaderName, Message, Method},
    sdp::{Answer, MediaAnswer, Session, Transport, Wanted},
    uri::Uri,
    write::Response,
};
use tokio::{sync::mpsc, time::Instant};
use tracing::{info, warn};

pub use self::meter::Limit;
use self::{
    clients::{Admission, Clients, Refusal},
    registration::Registration,
};
use crate::{
    account::{Account, TrustError, random_token},
    call::{branch, via},
    endpoint::{Endpoint, Event, Incoming},
    multipart::part,
};

/// Seconds that a registration asks for.
const EXPIRES_S: u32 = 60;
/// How long a client stays in of whom the frontend does not say it.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(3_600);
/// How long the end of a registration may take.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// Everything the service side agent is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// The frontend's SIP address.
    pub frontend: SocketAddr,
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
    let endpoint = Endpoint::open(Some(config.sip), config.frontend)
        .await
        .map_err(|error| ServeError::Listen(config.sip, error))?;
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
    let registration = Registration::new(&config);
    let mut server = Server { endpoint, clients, config, registration };
    let mut ready = Some(ready);
    tokio::pin!(shutdown);
    loop {
        if server.registration.is_due() {
            server.registration.send(&mut server.endpoint, EXPIRES_S).await;
        }
        let ended = server.clients.expire(Instant::now());
        if ended > 0 {
            info!(ended, "what was opened for them is over");
        }
        let until = [server.clients.next_end(), server.registration.due()].into_iter().flatten().min();
        tokio::select! {
            () = &mut shutdown => break,
            Some(client) = abusive.recv() => server.end(client).await,
            event = server.endpoint.event(until) => match event.map_err(ServeError::Socket)? {
                Some(Event::Request(request)) => server.request(request).await,
                Some(Event::Answer(token, answer)) => {
                    if server.registration.answered(&mut server.endpoint, token, answer).await?
                        && let Some(ready) = ready.take()
                    {
                        info!(service = server.config.service, frontend = %server.config.frontend, "registered");
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

struct Server {
    endpoint: Endpoint,
    clients: Clients,
    config: Config,
    registration: Registration,
}

impl Server {
    /// Ends the registration, and waits until the frontend has taken note.
    async fn leave(&mut self) -> Result<(), ServeError> {
        self.registration.send(&mut self.endpoint, 0).await;
        while self.registration.is_under_way() {
            if let Some(Event::Answer(token, answer)) = self.endpoint.event(None).await.map_err(ServeError::Socket)? {
                self.registration.answered(&mut self.endpoint, token, answer).await?;
            }
        }
        Ok(())
    }

    async fn request(&mut self, incoming: Incoming) {
        let Incoming { bytes, token: Some(token) } = incoming else { return };
        let Ok(message) = Message::parse(&bytes) else { return };
        let mut response = Vec::new();
        let mut given_up = None;
        let code = match message.method() {
            Some(Method::Invite) => self.invite(&message, &mut response, &mut given_up),
            Some(Method::Bye) => {
                let code = if self.clients.remove_by_request(&message) { 200 } else { 481 };
                Response::to(&message, code).begin(&mut response).finish();
                code
            }
            Some(Method::Options) => {
                Response::to(&message, 200).to_tag(self.registration.tag()).begin(&mut response).finish();
                200
            }
            Some(Method::Cancel) => {
                Response::to(&message, 481).to_tag(self.registration.tag()).begin(&mut response).finish();
                481
            }
            _ => {
                Response::to(&message, 405).to_tag(self.registration.tag()).begin(&mut response).finish();
                405
            }
        };
        self.endpoint.respond(token, code, &response).await;
        if let Some(admission) = given_up {
            self.hang_up(admission, "its user has as many clients as clients_per_user_max allows").await;
        }
    }

    /// Decides about an invitation, writes the answer, and returns its code. `given_up`: who has to go for it.
    fn invite(&mut self, message: &Message<'_>, response: &mut Vec<u8>, given_up: &mut Option<Admission>) -> u16 {
        let user = asserted_user(message).unwrap_or_default();
        let lifetime = session_expires(message).unwrap_or(LIFETIME_DEFAULT);
        let is_renewal = self.clients.renew(Instant::now(), message, lifetime);
        let offer = part(message, "application/sdp").and_then(|text| Session::parse(text).ok());
        let Some(offer) = offer else { return refuse(message, 488, response) };
        let media = self.answers(&offer);
        if !media.iter().any(|media| matches!(media, MediaAnswer::Accepted { .. })) {
            warn!(user, "refused: asks for ports that this service does not offer");
            return refuse(message, 488, response);
        }
        let tag = random_token();
        if !is_renewal {
            let client = offer.media().iter().find_map(|media| media.address).or(offer.address);
            let (Some(client), Ok(dialog)) = (client, Dialog::from_request(message, tag.as_bytes())) else {
                return refuse(message, 400, response);
            };
            match self.clients.admit(Instant::now(), Admission { user: user.clone(), client, dialog, lifetime }) {
                Ok(oldest) => *given_up = oldest,
                Err(refusal) => {
                    warn!(user, %client, %refusal, "refused");
                    return refuse(message, if refusal == Refusal::Full { 486 } else { 603 }, response);
                }
            }
            info!(user, %client, "let in");
        }
        let mut description = Vec::new();
        let answer = Answer { offer: &offer, session_id: 1, version: 1, address: self.config.sip.ip(), media: &media };
        answer.write(&mut description);
        Response::to(message, 200)
            .to_tag(tag.as_bytes())
            .record_route()
            .begin(response)
            .header("Contact", format!("<sip:{}@{}>", self.config.service, self.config.sip))
            .body("application/sdp", &description);
        200
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
    async fn end(&mut self, client: IpAddr) {
        for admission in self.clients.remove_client(client) {
            self.hang_up(admission, "it sent faster than abuse_rate").await;
        }
    }

    async fn hang_up(&mut self, mut admission: Admission, why: &str) {
        let client = admission.client;
        warn!(user = admission.user, %client, why, "ended");
        let (mut bye, branch) = (Vec::new(), branch());
        admission.dialog.begin(b"BYE", via(self.endpoint.local(), &branch), &mut bye).finish();
        // The client may never answer, and nobody else waits for it: the frontend acts on the BYE as it passes it on.
        if let Err(error) = self.endpoint.tell(&bye).await {
            warn!(%client, %error, "the frontend is not told that the client is ended");
        }
    }
}

fn refuse(message: &Message<'_>, code: u16, response: &mut Vec<u8>) -> u16 {
    Response::to(message, code).to_tag(random_token().as_bytes()).begin(response).finish();
    code
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
    let uri = Uri::parse(sluicegate_sip::message::NameAddr::parse(value)?.uri).ok()?;
    String::from_utf8(uri.user?.to_vec()).ok()
}
