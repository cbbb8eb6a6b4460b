//! Whoever has what an agent's digests are made with, its owner or a thief.

use std::net::SocketAddr;

use sluicegate_grant::epoch::Epoch;
use sluicegate_signin::{EpochHa1, HEADER, Hello, Initiator, Proposal, joined};
use sluicegate_sip::{
    digest::{Algorithm, Authorization, Challenge, Ha1},
    message::{HeaderName, Message},
};

use crate::{frontend::REALM, telephone::Telephone};

/// The header line that says that it is an agent.
pub(crate) const SUPPORTED: &str = "Supported: sluicegate\r\n";
/// What it asks for.
pub(crate) const PORTS: &str = "v=0\r\no=- 1 1 IN IP4 192.168.0.9\r\ns=-\r\nc=IN IP4 192.168.0.9\r\nt=0 0\r\n\
    m=application 9 TCP sluicegate\r\na=setup:active\r\na=service-ports:80\r\n";

/// An INVITE with the credentials and the handshake that answer `challenge` by this secret, as if for `epoch`, at the frontend of
/// this address and key.
pub(crate) fn sign_in(
    phone: &mut Telephone,
    challenge: &[u8],
    (secret, epoch): (&EpochHa1, Epoch),
    (dialled, replica): (SocketAddr, &[u8; 32]),
) -> Option<String> {
    let message = Message::parse(challenge).ok()?;
    let challenge = Challenge::parse(message.headers_raw(HeaderName::ProxyAuthenticate).next()?).ok()?;
    let realm = format!("{REALM};e={epoch}");
    let challenge = Challenge { realm: realm.as_bytes(), algorithm: Algorithm::Sha256, ..challenge };
    phone.secret = Ha1::from_sha256(*secret.expose());
    let credentials = phone.proof(&challenge, "INVITE");
    let request = phone.request("INVITE", &format!("{SUPPORTED}{credentials}"));
    let message = Message::parse(request.as_bytes()).ok()?;
    let sent = Authorization::parse(message.headers_raw(HeaderName::ProxyAuthorization).next()?).ok()?;
    let proposal = Proposal {
        method: b"INVITE",
        uri: message.request_uri()?,
        nonces: (sent.nonce, sent.cnonce),
        supported: &joined(&message, HeaderName::Supported),
        contact: &joined(&message, HeaderName::Contact),
        body: message.body(),
        dialled,
    };
    let (_, first) = Initiator::begin([6; 32], replica, secret, &proposal).ok()?;
    let hello = Hello { message: first, dialled }.to_text();
    let line = format!("{}: {hello}\r\nContent-Length:", HEADER.as_str());
    Some(request.replacen("Content-Length:", &line, 1))
}
