//! A telephone exchange that answers every call at once, or none, for services of kind `sip`.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_sip::{
    message::{Message, Method},
    sdp::{Answer, MediaAnswer, Session},
    uri::Uri,
    write::Response,
};

use sluicegate_site::{During, LabError, worker::Context};

const DATAGRAM_MAX: usize = 65_535;
/// How often it tells whose requests came.
const TELL: Duration = Duration::from_millis(200);
/// Callers that are told apart.
const CALLERS_MAX: usize = 1_024;

/// Specification of the worker `answer`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerSpec {
    /// Where it takes SIP.
    pub listen: SocketAddr,
    /// Where calls are to send their media: the first line of each offer is accepted there.
    pub media: SocketAddr,
    /// Let every call ring for ever.
    #[serde(default)]
    pub rings: bool,
    /// How many branches of requests to print, for attackers that have seen them.
    #[serde(default)]
    pub record: u32,
    /// How long to answer.
    pub seconds: u32,
}

/// Runs the worker `answer`: 200 to INVITE, BYE and OPTIONS, 481 to CANCEL, nothing to ACK. It keeps no state: a request
/// that comes again is answered again with the same tag. Prints `{"event":"branch","branch"}` for the first `record` requests,
/// and while requests come `{"event":"callers","messages":{USER:COUNT}}`: how many came so far, by the user in From. The result
/// says how many INVITEs, BYEs and others came.
pub(crate) fn answer(spec: &AnswerSpec, context: &Context) -> Result<(), LabError> {
    let socket = UdpSocket::bind(spec.listen).during(|| format!("binding {}", spec.listen))?;
    socket.set_read_timeout(Some(Duration::from_millis(50))).during(|| "setting a timeout".to_owned())?;
    context.ready();
    let (mut invites, mut byes, mut others, mut recorded) = (0u64, 0u64, 0u64, 0);
    let (mut bytes, mut out) = (vec![0; DATAGRAM_MAX], Vec::new());
    let (mut callers, mut told, mut is_told) = (BTreeMap::<String, u64>::new(), Instant::now(), true);
    let end = Instant::now() + Duration::from_secs(spec.seconds.into());
    while Instant::now() < end && !context.stopped() {
        if !is_told && told.elapsed() >= TELL {
            context.print(&json!({ "event": "callers", "messages": callers }));
            (told, is_told) = (Instant::now(), true);
        }
        let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
        let Ok(message) = Message::parse(&bytes[..len]) else { continue };
        match message.method() {
            Some(Method::Invite) => invites += 1,
            Some(Method::Bye) => byes += 1,
            _ => others += 1,
        }
        let from_uri = message.from().ok().and_then(|from| Uri::parse(from.uri).ok());
        let caller = from_uri.and_then(|uri| uri.user).map(String::from_utf8_lossy);
        let caller = caller.unwrap_or_default();
        if let Some(count) = callers.get_mut(&*caller) {
            *count += 1;
        } else if callers.len() < CALLERS_MAX {
            callers.insert(caller.into_owned(), 1);
        }
        is_told = false;
        if recorded < spec.record
            && let Ok(Some(branch)) = message.top_via().map(|via| via.branch)
        {
            recorded += 1;
            context.print(&json!({ "event": "branch", "branch": String::from_utf8_lossy(branch) }));
        }
        if respond(spec, &message, from, &mut out) {
            // A caller that is gone is the next request's business.
            let _ = socket.send_to(&out, from);
        }
    }
    context.result(&json!({ "invites": invites, "byes": byes, "others": others }));
    Ok(())
}

/// Writes the answer to a request; `false` if there is none.
fn respond(spec: &AnswerSpec, message: &Message<'_>, from: SocketAddr, out: &mut Vec<u8>) -> bool {
    const TAG: &[u8] = b"exchange";
    let code = match message.method() {
        Some(Method::Invite) if spec.rings => 180,
        Some(Method::Invite | Method::Bye | Method::Options) => 200,
        Some(Method::Cancel) => 481,
        Some(Method::Ack) | None => return false,
        Some(_) => 405,
    };
    let response = Response::to(message, code).source(from).to_tag(TAG);
    if code != 200 || message.method() != Some(Method::Invite) {
        response.begin(out).finish();
        return true;
    }
    let Ok(offer) = Session::parse(message.body()) else {
        Response::to(message, 488).source(from).to_tag(TAG).begin(out).finish();
        return true;
    };
    let media = [MediaAnswer::Accepted { address: spec.media.ip(), port: spec.media.port() }];
    let mut description = Vec::new();
    let address = spec.media.ip();
    Answer { offer: &offer, session_id: 1, version: 1, address, media: &media }.write(&mut description);
    let contact = format!("<sip:exchange@{}>", spec.listen);
    response.record_route().begin(out).header("Contact", contact).body("application/sdp", &description);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invite_is_answered_with_the_exchanges_media_and_an_ack_with_nothing() {
        let spec = AnswerSpec {
            listen: "10.4.3.2:5060".parse().unwrap(),
            media: "10.4.3.2:5024".parse().unwrap(),
            rings: false,
            record: 0,
            seconds: 1,
        };
        let sdp = "v=0\r\no=a 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n";
        let request = |method: &str| {
            format!(
                "{method} sip:office@lab.example SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK1\r\n\
                 From: <sip:a@lab.example>;tag=1\r\nTo: <sip:office@lab.example>\r\nCall-ID: 1\r\nCSeq: 1 {method}\r\n\
                 Max-Forwards: 70\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
                sdp.len()
            )
        };
        let from = "192.0.2.9:5060".parse().unwrap();
        let mut out = Vec::new();
        assert!(respond(&spec, &Message::parse(request("INVITE").as_bytes()).unwrap(), from, &mut out));
        let answer = Message::parse(&out).unwrap();
        let session = Session::parse(answer.body()).unwrap();
        assert_eq!((answer.status(), session.media()[0].port), (Some(200), 5024));
        assert!(!respond(&spec, &Message::parse(request("ACK").as_bytes()).unwrap(), from, &mut out));
        let rings = AnswerSpec { rings: true, ..spec };
        assert!(respond(&rings, &Message::parse(request("INVITE").as_bytes()).unwrap(), from, &mut out));
        assert_eq!(Message::parse(&out).unwrap().status(), Some(180));
    }
}
