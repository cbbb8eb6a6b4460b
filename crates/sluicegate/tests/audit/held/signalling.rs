//! Signalling that asks for what is not its own, and what is left on disk.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::Path,
};

use crate::support::{
    capture::Capture,
    lab::{CLIENT, GATE, Lab, STRANGER},
    node::{Config, Node, PASSWORD, REALM, service},
    phone::{Phone, Wish, token},
};

on_packet!(alone held_a_call_opens_for_its_own_source_and_the_offered_ports_alone, &[], foreign_wishes);
on_packet!(alone held_no_unproved_request_is_answered_with_more_than_three_times_its_bytes, &[], amplification);
on_packet!(alone held_the_state_directory_is_its_owners_alone, &[], modes);
on_packet!(alone held_no_secret_is_in_arguments_environment_or_log, &[], secrets);

fn node(lab: &Lab, datapath: &'static str) -> Node {
    Node::up(lab, &Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")))
}

fn phone(lab: &Lab) -> Phone {
    Phone::new(lab, "client", CLIENT, SocketAddr::new(GATE.into(), 5060), "alice")
}

/// The final status of an INVITE that is changed before it is sent, with credentials.
fn asked(phone: &Phone, wish: Wish, change: impl Fn(&str) -> String) -> u16 {
    let (call_id, tag) = (token(), token());
    let text = |cseq, credentials: &str| {
        let bytes = phone.invite("echo", wish, (&call_id, &tag, cseq), credentials);
        change(&String::from_utf8(bytes).expect("text"))
    };
    let first = text(1, "");
    let challenge = phone.ask(first.as_bytes());
    if challenge.status != 407 {
        return challenge.status;
    }
    phone.acknowledge(first.as_bytes(), &challenge);
    let uri = first.split(' ').nth(1).expect("a Request-URI").to_owned();
    phone.ask(text(2, &phone.credentials(&challenge, "INVITE", &uri)).as_bytes()).status
}

fn foreign_wishes(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let phone = phone(&lab);
    let at_stranger = Capture::start(&lab, ("stranger", "eth0"), |seen| seen.from == GATE);
    // Somebody else's address in the offer: the call opens for where it came from.
    let foreign = asked(&phone, Wish::Audio, |text| {
        let (head, body) = text.split_once("\r\n\r\n").expect("a body");
        let body = body.replace(&format!("c=IN IP4 {CLIENT}"), &format!("c=IN IP4 {STRANGER}"));
        let lines = head.lines().filter(|line| !line.starts_with("Content-Length"));
        let head: Vec<&str> = lines.collect();
        format!("{}\r\nContent-Length: {}\r\n\r\n{body}", head.join("\r\n"), body.len())
    });
    assert_eq!(foreign, 200);
    let rows = node.json(&["grant", "ls"]);
    let clients: Vec<IpAddr> =
        rows.as_array().expect("a list").iter().filter_map(|row| row["client"].as_str()?.parse().ok()).collect();
    assert_eq!(clients, [IpAddr::from(CLIENT)], "{rows}");
    // A route through somebody else is not followed, whatever is answered.
    let route = format!("Route: <sip:{STRANGER};lr>\r\nMax-Forwards");
    asked(&phone, Wish::Audio, |text| text.replacen("Max-Forwards", &route, 1));
    // Another domain, ports that are not offered, all ports, a service that does not exist: the same answer.
    let elsewhere = |text: &str| text.replacen(&format!("sip:echo@{REALM}"), "sip:echo@example.org", 1);
    let unknown = |text: &str| text.replacen(&format!("sip:echo@{REALM}"), &format!("sip:nothing@{REALM}"), 1);
    let same = |text: &str| text.to_owned();
    let before = node.grants().len();
    let answers = [
        asked(&phone, Wish::Audio, elsewhere),
        asked(&phone, Wish::Udp(22, 22), same),
        asked(&phone, Wish::Udp(1, 65_535), same),
        asked(&phone, Wish::Tcp(7000, 7000), same),
        asked(&phone, Wish::Audio, unknown),
    ];
    assert_eq!(answers, [403; 5]);
    assert_eq!(node.grants().len(), before, "none of them opened anything");
    assert_eq!(at_stranger.count(), 0, "{:?}", at_stranger.seen().first());
}

fn amplification(datapath: &'static str) {
    let lab = Lab::new();
    let _node = node(&lab, datapath);
    let phone = phone(&lab);
    let invite = || String::from_utf8(phone.invite("echo", Wish::Audio, (&token(), &token(), 1), "")).expect("text");
    let plain = invite();
    let method = |name: &str| plain.replace("INVITE", name).replace("z9hG4bK", &format!("z9hG4bK{}", token()));
    // The shortest that is a request at all: what an attacker would send.
    let local = phone.local();
    let short = |method: &str| {
        format!(
            "{method} sip:e SIP/2.0\r\nv:SIP/2.0/UDP {local};branch=z9hG4bK{}\r\nf:<sip:a>;tag=1\r\nt:<sip:e>\r\ni:{}\r\n\
             CSeq:1 {method}\r\n\r\n",
            token(),
            token()
        )
    };
    let wrong = {
        let challenge = phone.ask(invite().as_bytes());
        let mut credentials = phone.credentials(&challenge, "INVITE", &format!("sip:echo@{REALM}"));
        let at = credentials.find("response=\"").expect("a response") + 10;
        credentials.replace_range(at..at + 4, "0000");
        String::from_utf8(phone.invite("echo", Wish::Audio, (&token(), &token(), 2), &credentials)).expect("text")
    };
    let methods = ["INVITE", "REGISTER", "OPTIONS", "BYE", "MESSAGE", "SUBSCRIBE", "FROBNICATE"];
    let requests = [wrong, invite()].into_iter().chain(methods.map(method)).chain(methods.map(short));
    for request in requests {
        let answers = phone.try_ask(request.as_bytes());
        let bytes: usize = answers.iter().map(|answer| answer.bytes.len()).sum();
        assert!(bytes <= 3 * request.len(), "{bytes} bytes to {} of\n{request}", request.len());
    }
}

fn modes(datapath: &'static str) {
    let lab = Lab::new();
    let _node = node(&lab, datapath);
    phone(&lab).call("echo", Wish::Audio);
    let state = lab.path("up.state");
    assert_eq!(mode(&state) & 0o077, 0, "{}", state.display());
    let mut files = 0;
    look_below(&state, &mut files);
    assert!(files >= 8, "only {files} files");
}

fn secrets(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let mut wrong = phone(&lab);
    phone(&lab).call("echo", Wish::Audio);
    wrong.password = format!("not {PASSWORD}");
    assert!(wrong.try_call("echo", Wish::Audio).is_err());
    let directory = lab.dir.path().display().to_string();
    let mut looked = 0;
    for process in fs::read_dir("/proc").expect("/proc").filter_map(Result::ok) {
        let read = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&read("cmdline")).into_owned();
        if arguments.contains(&directory) {
            let environment = String::from_utf8_lossy(&read("environ")).into_owned();
            assert!(!arguments.contains(PASSWORD) && !environment.contains(PASSWORD), "{arguments:?}");
            looked += 1;
        }
    }
    assert!(looked > 0, "the node's process was found");
    assert!(!node.program.log().contains(PASSWORD));
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777
}

/// Nothing below may be read or written by others; what a name in a mounted file system is, is its own affair.
fn look_below(directory: &Path, files: &mut usize) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let kind = fs::symlink_metadata(&path).expect("it is there").file_type();
        if kind.is_dir() {
            look_below(&path, files);
        } else if kind.is_file() || kind.is_socket() {
            assert_eq!(mode(&path) & 0o077, 0, "{} is open to others", path.display());
            *files += 1;
        }
    }
}
