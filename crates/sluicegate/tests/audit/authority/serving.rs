//! Places at a service's agent, and what phones may say they are.

use super::own_frontend;
use crate::support::{
    BINARY,
    lab::{CLIENT, CLIENT_ALIAS, Lab, SERVICE},
    node::{Config, Node, REALM, password_file, service},
    pbx::Pbx,
    phone::{Phone, Wish, token},
    program::Program,
    until,
};

on_packet!(alone security_06_no_user_keeps_the_places_of_a_service_agent, &[], places);
on_packet!(security_24_a_caller_is_called_by_its_own_name_only, &[], names);

const WISH: Wish = Wish::Udp(7000, 7000);

fn places(datapath: &'static str) {
    let lab = Lab::new();
    let config = service("host", "\"udp/7000\"", "kind = \"agent\"\nregistrar = \"host-agent\"\n");
    let node = Node::up(&lab, &Config::new(datapath, &config));
    node.add_user(&lab, "host-agent", None);
    let password = password_file(&lab);
    let text = format!(
        "[agent]\nfrontend = \"{}\"\nrealm = \"{REALM}\"\nuser = \"host-agent\"\npassword_file = \"{}\"\n\
         service = \"host\"\naddress = \"{SERVICE}\"\nports = [\"udp/7000\"]\nclients_max = 4\n\
         clients_per_user_max = 3\n",
        own_frontend(),
        password.display(),
    );
    let file = lab.write("agent.toml", &text).display().to_string();
    let agent = Program::start(&lab, "service", "agent", BINARY, &["agent", &file, "--serve"]);
    agent.says("registered");
    let alice = Phone::new(&lab, "client", CLIENT, own_frontend(), "alice");
    for _ in 0..8 {
        // A BYE that no hop is left for: it reaches nobody, so it ends nothing.
        let mut call = alice.call("host", WISH);
        call.cseq += 1;
        let bye = String::from_utf8(alice.in_dialog(&call, "BYE", call.cseq)).expect("text");
        assert_eq!(alice.ask(bye.replacen("Max-Forwards: 70", "Max-Forwards: 0", 1).as_bytes()).status, 483);
    }
    until("the grants of calls that gave way are gone", || (node.grants().len() == 3).then_some(()));
    let bob = Phone::new(&lab, "client", CLIENT_ALIAS, own_frontend(), "bob");
    bob.call("host", WISH);
    // All places are taken now, and revoking gives them back: the agent is told.
    node.cli(&["grant", "revoke", "--user", "alice"]).expect("grant revoke");
    until("the agent heard of it", || (node.grants().len() == 1).then_some(()));
    (0..3).for_each(|_| drop(bob.call("host", WISH)));
}

fn names(datapath: &'static str) {
    let lab = Lab::new();
    let config = service("pbx", "\"udp/10000-10009\"", "kind = \"sip\"\n");
    let node = Node::up(&lab, &Config::new(datapath, &config));
    let pbx = Pbx::start(&lab);
    let alice = Phone::new(&lab, "client", CLIENT, own_frontend(), "alice");
    let uri = format!("sip:pbx@{REALM}");
    let sign_in = |claims: &str, edit: &dyn Fn(String) -> String| {
        let (call_id, tag) = (token(), token());
        let invite = |cseq, headers: &str| {
            let invite = alice.invite("pbx", Wish::Audio, (&call_id, &tag, cseq), headers);
            edit(String::from_utf8(invite).expect("text"))
        };
        let challenge = alice.ask(invite(1, "").as_bytes());
        let credentials = alice.credentials(&challenge, "INVITE", &uri);
        alice.ask(invite(2, &format!("{claims}{credentials}")).as_bytes())
    };
    let as_bob = |text: String| text.replacen("From: <sip:alice@", "From: <sip:bob@", 1);
    assert_eq!(sign_in("", &as_bob).status, 403);
    assert_eq!(pbx.heard().len(), 0, "nothing of it reached the SIP server");
    let claims = "Remote-Party-ID: <sip:boss@example.net>\r\nP-Preferred-Identity: <sip:boss@example.net>\r\n\
        History-Info: <sip:boss@example.net>;index=1\r\nDiversion: <sip:boss@example.net>\r\n";
    let ok = sign_in(claims, &|text| text);
    assert_eq!(ok.status, 200);
    assert_eq!((pbx.heard_of("boss"), pbx.heard_of("P-Asserted-Identity: <sip:alice@example.net>")), (0, 1));
    drop(node);
}
