//! Requests within a dialog: from whom, and for how long.

use std::time::Duration;

use super::own_frontend;
use crate::support::{
    lab::{CLIENT, Lab, STRANGER},
    let_run,
    node::{Config, Node, service},
    pbx::Pbx,
    phone::{Call, Phone, Wish},
};

on_packet!(security_10_only_the_flow_that_signed_in_or_its_user_ends_a_call, &[], bye);
on_packet!(security_08_a_dialog_cookie_ends_with_its_call_and_serves_its_own_flow_only, &[], cookies);

fn bye(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")));
    let phone = Phone::new(&lab, "client", CLIENT, own_frontend(), "alice");
    let call = phone.call("echo", Wish::Audio);
    for (host, address) in [("stranger", STRANGER), ("client", CLIENT)] {
        // The second is another program at the client's own address.
        let other = Phone::new(&lab, host, address, own_frontend(), "alice");
        let refused = other.ask(&other.in_dialog(&call, "BYE", call.cseq + 1));
        assert_eq!(refused.status, 407, "from {address}");
        assert_eq!(node.grants().len(), 1, "the call goes on");
    }
    assert_eq!(phone.bye(call).status, 200);
    assert_eq!(node.grants().len(), 0);
}

fn cookies(datapath: &'static str) {
    let lab = Lab::new();
    let config = Config::new(datapath, &service("pbx", "\"udp/10000-10009\"", "kind = \"sip\"\n"));
    let node = Node::up(&lab, &config);
    let pbx = Pbx::start(&lab);
    let phone = Phone::new(&lab, "client", CLIENT, own_frontend(), "bob");
    let stranger = Phone::new(&lab, "stranger", STRANGER, own_frontend(), "bob");
    let mut call = phone.call("pbx", Wish::Audio);
    call.cseq += 1;
    let status = |phone: &Phone, call: &Call, method: &str| phone.ask(&phone.in_dialog(call, method, call.cseq)).status;
    assert_eq!(status(&phone, &call, "OPTIONS"), 200, "the call's own flow");
    call.cseq += 1;
    let heard = pbx.heard().len();
    assert_eq!(status(&stranger, &call, "INFO"), 407, "somebody else's");
    let mut over = call.clone();
    assert_eq!(phone.bye(call).status, 200);
    let_run(Duration::from_millis(200));
    assert_eq!(pbx.heard().len(), heard + 1, "the BYE");
    over.cseq += 2;
    for (who, phone) in [("the caller", &phone), ("a stranger", &stranger)] {
        for method in ["MESSAGE", "INFO", "OPTIONS", "REFER", "BYE"] {
            over.cseq += 1;
            assert_eq!(status(phone, &over, method), 481, "{method} of {who} after the end");
        }
    }
    let_run(Duration::from_millis(200));
    assert_eq!(pbx.heard().len(), heard + 1, "nothing reaches the SIP server for a call that is over");
    assert_eq!(node.grants().len(), 0);
}
