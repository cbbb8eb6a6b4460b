//! Who signs in, as what, and what a thief of the frontend holds.

mod holder;
mod theft;

use sluicegate_grant::mac::{Direction, SessionSecret};
use sluicegate_proxy::{Count, GateAnswer, Input, Kind, Outcome, Tables};
use sluicegate_signin::{Hello, Initiator, Proposal, joined, respond};
use sluicegate_sip::{
    digest::Authorization,
    message::{HeaderName, Message},
};

use self::site::{AUDIO, Caller, PHONE, PORTS, Site, status};

#[path = "../../../../control/proxy/tests/site/mod.rs"]
pub(crate) mod site;

const GUESSER: &str = "198.51.100.66:5060";

/// Signs in once, in a dialog and from a port of its own; the status.
fn sign_in(site: &mut Site, user: &str, password: &str, nth: u16) -> u16 {
    let from = format!("203.0.113.77:{}", 10_000 + nth);
    let mut caller = Caller { password: password.into(), ..Caller::new(user, &from) };
    caller.call_id = format!("call-{user}-{nth}");
    status(&caller.invite(site, AUDIO))
}

#[test]
fn security_05_one_user_fills_no_table_of_used_nonces() {
    let limits = Tables { replays_max: 64, replays_per_user_max: 16, ..Tables::default() };
    for tables in [limits, Tables { transactions_per_user_max: 16, ..limits }] {
        let mut site = Site::with(1, tables);
        let let_in = (0..500).filter(|nth| sign_in(&mut site, "alice", "correct horse", *nth) == 100).count();
        assert_eq!(let_in, 16);
        let used = site.shards[0].gauges(site.instant).into_iter().find(|gauge| gauge.name == "replays").unwrap().used;
        assert_eq!(used, 16, "what is refused takes no place");
        assert_eq!(site.metrics[0].count(Count::TableFull), 484);
        assert_eq!(sign_in(&mut site, "bob", "correct horse", 0), 403, "bob is judged, and refused by policy only");
    }
}

#[test]
fn security_12_a_guesser_is_stopped_and_the_user_signs_in() {
    for user in ["alice", "nomad"] {
        let mut site = Site::new();
        // The user signed in before, from behind the same address as the guesser.
        let neighbour = GUESSER.replace(":5060", ":40000");
        let call = |site: &mut Site, password: &str, from: &str, id: u32| {
            let mut caller = Caller { password: password.into(), ..Caller::new(user, from) };
            caller.call_id = format!("call-{id}");
            status(&caller.invite(site, AUDIO))
        };
        let known = call(&mut site, "correct horse", &neighbour, 9_000);
        assert_eq!(known, if user == "alice" { 100 } else { 407 });
        for nth in 0..2_000 {
            call(&mut site, "guess", GUESSER, nth);
        }
        let judged = site.metrics[0].requests(Kind::Invite, Outcome::BadDigest);
        assert!(judged <= 12, "{judged} guesses were looked at");
        assert!(call(&mut site, "correct horse", GUESSER, 9_001) == 503, "nor is the right password");
        if user == "alice" {
            assert_eq!(call(&mut site, "correct horse", &neighbour, 9_002), 100);
            assert_eq!(call(&mut site, "correct horse", PHONE.replace("100.7", "200.7").as_str(), 9_003), 100);
        }
    }
}

#[test]
fn sip_d16_a_nonce_dies_after_three_wrong_digests() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let uri = alice.to.clone();
    let plain = alice.request("INVITE", &uri, "", AUDIO);
    let challenge = site.send(PHONE, plain).pop().unwrap().1;
    let wrong = Caller { password: "guess".into(), ..Caller::new("alice", PHONE) };
    let (guess, right) =
        (wrong.authorization(&challenge, "INVITE", &uri), alice.authorization(&challenge, "INVITE", &uri));
    for credentials in [&guess, &guess, &guess, &right] {
        let request = alice.request("INVITE", &uri, credentials, AUDIO);
        let answer = site.send(PHONE, request).pop().unwrap().1;
        assert_eq!((status(&answer), answer.contains("stale=true")), (407, *credentials == right));
    }
}

#[test]
fn security_34_a_nonce_tells_neither_uptime_nor_shard_nor_how_many_were_challenged() {
    let mut site = Site::with(2, Tables::default());
    let mut nonces = Vec::new();
    for nth in 0..64 {
        let mut caller = Caller::new("alice", PHONE);
        caller.call_id = format!("call-{nth}");
        let uri = caller.to.clone();
        let plain = caller.request("INVITE", &uri, "", AUDIO);
        let challenge = site.send_to(nth % 2, PHONE, plain).pop().unwrap().1;
        let nonce = challenge.split("nonce=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        nonces.push(nonce.as_bytes().to_vec());
    }
    // No character of the text is the same in all of them, nor in all of one shard.
    for of_shard in 0..2 {
        let all: Vec<&Vec<u8>> = nonces.iter().skip(of_shard).step_by(2).collect();
        assert!((0..all[0].len()).all(|at| all.iter().any(|nonce| nonce[at] != all[0][at])));
    }
}

/// A request as somebody in the way changes it: without the lines that begin with `name`.
fn without(name: &str, text: &str) -> String {
    text.split_inclusive("\r\n").filter(|line| !line.starts_with(name)).collect()
}

#[test]
fn security_04_a_relayed_or_downgraded_sign_in_opens_nothing_and_its_answer_is_not_believed() {
    const RELAY: &str = "203.0.113.66:5060";
    let udp = PORTS.replace("TCP sluicegate", "UDP sluicegate").replace("service-ports:80", "service-ports:5004");
    let mut site = Site::new();
    // Somebody fetches a nonce for an address of its own and hands it to the victim's agent, which dialled it.
    let mut victim = Caller { dialled: RELAY.parse().unwrap(), ..Caller::new("alice", RELAY).agent() };
    let uri = victim.to.clone();
    let signed = victim.signed(&mut site, "INVITE", &uri, "", &udp);
    let changes = [signed.clone(), without("Supported", &signed), signed.replace("5004", "5005")];
    // Or it is on the path, so that the address that was dialled is the frontend's.
    let mut on_path = Caller { call_id: "another".into(), ..Caller::new("alice", RELAY).agent() };
    let signed = on_path.signed(&mut site, "INVITE", &uri, "", &udp);
    let others = [without("Supported", &signed), without("Sluicegate-Noise", &signed), signed.replace("5004", "5005")];
    for (nth, relayed) in changes.into_iter().chain(others).enumerate() {
        let again = relayed.replace("z9hG4bKalice", &format!("z9hG4bKrelay{nth}"));
        let answer = site.send(RELAY, again).pop().unwrap().1;
        // The first uses the nonce up; what comes with it again is stale.
        assert!([403, 407].contains(&status(&answer)), "{answer}");
        assert!(site.asked().is_empty(), "nothing is opened");
    }
    // Changed answers are not believed, nor those of somebody who is not the frontend.
    let mut agent = Caller { call_id: "third".into(), ..Caller::new("alice", PHONE).agent() };
    agent.sign_in(&mut site, "INVITE", &uri, "", PORTS);
    site.gate_opens();
    let text: String = site.last.iter().map(|byte| char::from(*byte)).collect();
    let altered = text.replace("c=IN IP4 203.0.113.9", "c=IN IP4 203.0.113.6");
    assert_ne!(text, altered);
    let bytes: Vec<u8> = altered.chars().map(|byte| u8::try_from(byte).unwrap()).collect();
    assert!(agent.believes(&bytes).is_err());
}

/// What a thief of everything but the ephemeral keys computes from a recorded sign-in.
#[test]
fn security_11_a_recorded_sign_in_and_the_password_later_do_not_give_the_session_key() {
    let udp = PORTS.replace("TCP sluicegate", "UDP sluicegate").replace("service-ports:80", "service-ports:5004");
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    let uri = alice.to.clone();
    let signed = alice.signed(&mut site, "INVITE", &uri, "", &udp);
    assert_eq!(status(&site.send(PHONE, &signed).pop().unwrap().1), 100);
    let delta = site.asked().remove(0);
    let grant = delta.grant.clone();
    site.ledger.opening(&delta, "gate-1", 0).unwrap();
    let key = delta.keys.unwrap().to_service;
    // The recording, the user's secret and the frontend's stored key: all that there is but what both ends forgot.
    let message = Message::parse(signed.as_bytes()).unwrap();
    let sent = Authorization::parse(message.header(HeaderName::ProxyAuthorization).unwrap()).unwrap();
    let realm = sent.realm_text().unwrap().into_owned();
    let epoch = realm.split_once(";e=").unwrap().1.parse().unwrap();
    let ha1 = site::secret_of("alice", site::PASSWORD).ha1("alice", site::REALM, epoch, site::replica().public());
    let proposal = Proposal {
        method: b"INVITE",
        uri: message.request_uri().unwrap(),
        nonces: (sent.nonce, sent.cnonce),
        supported: b"sluicegate",
        contact: &joined(&message, HeaderName::Contact),
        body: message.body(),
        dialled: site::FRONTEND.parse().unwrap(),
    };
    let hello = Hello::of(&message).unwrap();
    for seed in [[0; 32], [1; 32], [0xff; 32]] {
        let (_, thiefs) = respond(seed, &site::replica(), &ha1, &proposal, &hello.message).unwrap();
        assert!(thiefs.key(grant.id, Direction::ToService) != key, "the handshake is the thief's own");
    }
    // What it was before: from HA1 and the nonces, which anybody can try passwords with.
    let (nonce, cnonce) = (sent.nonce, sent.cnonce);
    let old = SessionSecret::extract(&[nonce, cnonce].concat(), (ha1.expose(), ha1.expose()));
    assert!(old.key(grant.id, Direction::ToService) != key);
    // And with the recorded answer, in the agent's place: message 2 fits the ephemeral key that the agent forgot alone.
    let (id, address, ports) = (grant.id, site::GATE.parse().unwrap(), (20_000, 20_000));
    site.ledger.opened("gate-1", id, address, ports);
    site.tell(0, Input::Gate(GateAnswer { id, opened: Ok((address, ports)) }));
    let answer = Message::parse(&site.last).unwrap();
    for seed in [[0; 32], [1; 32], [0xff; 32]] {
        let (thief, _) = Initiator::begin(seed, site::replica().public(), &ha1, &proposal).unwrap();
        assert!(thief.finish(&answer).is_err());
    }
    assert!(alice.believes(&site.last).unwrap().key(grant.id, Direction::ToService) == key, "as the agent itself");
}
