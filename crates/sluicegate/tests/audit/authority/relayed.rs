//! SIP between a frontend and a service behind a gate: nobody else's address is enough to write it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{apart, far_frontend};
use sluicegate_wire::build;

use crate::support::{
    capture::Capture,
    forger::Forger,
    lab::{CLIENT, FRONTEND, Lab},
    let_run,
    node::{Config, Node, service},
    pbx::Pbx,
    phone::{Phone, Wish},
    until,
};

// Also conformance 3.
on_each_datapath!(
    security_02_a_forged_frontend_gets_nothing_through_and_takes_nothing_from_the_true_one,
    &[],
    super::forged_frontend
);

/// The protected link, and what is forged: ten times that.
const LINK: &str = "2Mbit";
const FLOOD_BYTES_PER_S: u64 = 10 * 2_000_000 / 8;
const FORGED_LEN: usize = 1_250;
/// What the true frontend relays meanwhile, 20 a second.
const RELAYED: u32 = 100;
const MARK: &str = "X-Mark: this-was-forged";

fn forged_frontend(datapath: &'static str) {
    let lab = Lab::new();
    let pbx = service("pbx", "\"udp/10000-10009\"", "kind = \"sip\"\n");
    let config = Config::new(datapath, &pbx).gate(&format!("link_rate = \"{LINK}\"\n"));
    let (_frontend, gate) = apart(&lab, &config);
    let pbx = Pbx::start(&lab);
    let arrived = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == FRONTEND && seen.protocol == 17);
    let standing = until("the gate opens the way for signalling", || standing(&gate));
    let phone = Phone::new(&lab, "client", CLIENT, far_frontend(), "alice");
    let mut call = phone.call("pbx", Wish::Audio);

    let stop = Arc::new(AtomicBool::new(false));
    let (flag, mut forger) = (Arc::clone(&stop), Forger::new(&lab));
    let flood = thread::spawn(move || {
        let (start, mut sent) = (Instant::now(), 0_u64);
        while !flag.load(Ordering::Relaxed) {
            let due = FLOOD_BYTES_PER_S * start.elapsed().as_millis() as u64 / 1_000 / FORGED_LEN as u64;
            let forged: Vec<Vec<u8>> = (sent..due).map(|number| forged(number, standing)).collect();
            sent = due.max(sent);
            forger.send(&forged);
            thread::sleep(Duration::from_millis(2));
        }
        sent
    });
    let marked = |number: u32| format!("CSeq: {number} OPTIONS");
    for _ in 0..RELAYED {
        call.cseq += 1;
        phone.send(&phone.in_dialog(&call, "OPTIONS", call.cseq));
        let_run(Duration::from_millis(50));
    }
    stop.store(true, Ordering::Relaxed);
    let forged = flood.join().expect("the flood");
    let_run(Duration::from_millis(500));

    let seen = arrived.seen();
    let is_forged = |bytes: &[u8]| bytes.windows(MARK.len()).any(|window| window == MARK.as_bytes());
    let through = seen.iter().filter(|seen| is_forged(&seen.bytes)).count();
    let relayed = (0..RELAYED).filter(|number| pbx.heard_of(&marked(call.cseq - number)) > 0).count();
    let control = control_lane(&gate);
    println!("{forged} forged, {through} through; {relayed} of {RELAYED} relayed; {control} in the control lane");
    assert!(forged > 5_000, "it was a flood: {forged}");
    assert_eq!(through, 0, "nothing forged reaches the SIP server");
    assert_eq!(relayed, RELAYED as usize, "nothing that the frontend relays is lost");
    assert_eq!(control, seen.len() as u64, "the control lane carries what proved itself, and all of that");
}

/// An INVITE from the frontend's own address and port, with a caller of the forger's choice.
fn forged(number: u64, standing: SocketAddr) -> Vec<u8> {
    let head = format!(
        "INVITE sip:pbx@10.4.0.2:5060 SIP/2.0\r\nVia: SIP/2.0/UDP {FRONTEND}:5060;branch=z9hG4bKf{number}\r\n\
         Max-Forwards: 69\r\nFrom: <sip:bob@example.net>;tag=f{number}\r\nTo: <sip:pbx@example.net>\r\n\
         Call-ID: forged-{number}\r\nCSeq: 1 INVITE\r\nP-Asserted-Identity: <sip:bob@example.net>\r\n{MARK}\r\n\
         Content-Length: 0\r\n\r\n"
    );
    let mut payload = head.into_bytes();
    payload.resize(FORGED_LEN - 28, b'x');
    build::datagram(SocketAddr::new(FRONTEND.into(), 5060), standing, &payload)
}

/// Where the gate takes SIP for the first service.
fn standing(gate: &Node) -> Option<SocketAddr> {
    gate.json(&["status"])["gate"]["services"][0]["signalling"].as_str()?.parse().ok()
}

/// Packets that left inwards by the control lane.
fn control_lane(gate: &Node) -> u64 {
    let lanes = gate.json(&["status"])["gate"]["lanes"].clone();
    let lanes = lanes.as_array().expect("lanes").iter();
    lanes
        .filter(|lane| lane["port"] == "inside" && lane["lane"] == "control")
        .filter_map(|lane| lane["packets"].as_u64())
        .sum()
}
