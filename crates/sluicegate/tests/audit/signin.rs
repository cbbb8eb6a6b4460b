//! Who signs in, as what, and what a thief of the frontend holds.

use sluicegate_frontend::{Count, Kind, Outcome, Tables};

use self::site::{AUDIO, Caller, PHONE, Site, status};

#[allow(dead_code, reason = "the frontend's own tests use the rest of it")]
#[path = "../../../frontend/tests/shard/site.rs"]
mod site;

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
        let (_, used, _) = site.shards[0].gauges().into_iter().find(|gauge| gauge.0 == "replays").unwrap();
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
        (0..2_000).for_each(|nth| drop(call(&mut site, "guess", GUESSER, nth)));
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
