//! Credentials for several servers in one request (RFC 3261 section 22.3).

use crate::site::{AUDIO, PBX, PHONE, Site, header, phone, status};

const URI: &str = "sip:pbx@example.net";

/// Credentials of other servers, none of which we could read.
const OTHERS: [&str; 3] = [
    "Digest username=\"a\", realm=\"other.example\", nonce=\"n\", uri=\"sip:x\", response=\"0123456789abcdef0123456789abcdef\"",
    "Digest username=\"a\", realm=\"other.example\", nonce=\"n\", uri=\"sip:x\", response=\"00\", algorithm=SHA-512-256, \
     qop=auth, nc=00000001, cnonce=\"c\"",
    "Basic YTpi",
];

#[test]
fn d13_credentials_for_other_servers_disturb_nobody_and_are_passed_on() {
    for other in OTHERS {
        for is_first in [true, false] {
            let mut site = Site::new();
            let mut alice = phone();
            let (_, challenge) = site.send(PHONE, alice.request("INVITE", URI, "", AUDIO)).pop().unwrap();
            let own = alice.authorization(&challenge, "INVITE", URI);
            let other = format!("Proxy-Authorization: {other}\r\n");
            let both = if is_first { format!("{other}{own}") } else { format!("{own}{other}") };
            let sent = site.send(PHONE, alice.request("INVITE", URI, &both, AUDIO));
            assert_eq!(sent[0].0.to_string(), PBX, "{both}{}", sent[0].1);
            assert!(sent[0].1.contains(&other) && !sent[0].1.contains(&own), "{}", sent[0].1);
        }
    }
}

#[test]
fn d13_credentials_for_others_alone_are_answered_by_a_challenge() {
    let mut site = Site::new();
    for other in OTHERS {
        let request = phone().request("INVITE", URI, &format!("Proxy-Authorization: {other}\r\n"), AUDIO);
        let (_, answer) = site.send(PHONE, request).pop().unwrap();
        assert_eq!(status(&answer), 407);
        assert!(header(&answer, "Proxy-Authenticate").unwrap().contains("realm=\"example.net\""));
    }
}
