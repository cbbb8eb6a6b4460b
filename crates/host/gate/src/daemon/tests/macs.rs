//! Keys of packet MACs: from the feed to the packet thread, and nowhere else.

use super::{
    CLIENT, SERVICE,
    site::{Frontend, Running, config, install, start, until},
};
use crate::samples::{read_udp, udp_frame};
use sluicegate_feed::{Delta, FromGate};
use sluicegate_grant::{
    DataMode, FLAG_PROVES_ADDRESS,
    mac::{Ends, Purpose, SessionKeys},
};
use sluicegate_wire::Port;
use std::{fs, net::SocketAddrV4, path::Path};

const KEY: [u8; 16] = *b"a session's key!";
const CLIENT_ID: u32 = 7;

/// Grant number `number` of mode `mac`, with its key.
fn install_mac(number: u8) -> Delta {
    let Delta::Install(mut delta) = install(number) else { panic!("an install") };
    let grant = &mut delta.grant;
    (grant.flags, grant.least_mode, grant.client_id) = (FLAG_PROVES_ADDRESS, DataMode::Mac, CLIENT_ID);
    delta.keys = Some(SessionKeys::from_bytes([KEY; 2]));
    Delta::Install(delta)
}

/// Sends a datagram with its trailer; the service gets it without.
async fn send_sealed(gate: &Running, seq: u64, to: SocketAddrV4) {
    let text = format!("datagram {seq}");
    let ends = Ends { client: (CLIENT.ip().to_owned().into(), CLIENT.port()), gate_port: to.port() };
    let key = SessionKeys::from_bytes([KEY; 2]).to_service;
    let trailer = key.trailer(CLIENT_ID, Purpose::Datagram, seq, &ends, text.as_bytes());
    let sealed = [text.as_bytes(), &trailer].concat();
    assert!(gate.cables.inject(Port::OUTSIDE, &udp_frame(Port::OUTSIDE, CLIENT, to, &sealed)));
    let frame = until("the datagram passes", || gate.cables.take(Port::INSIDE)).await;
    let (_, service, payload, _) = read_udp(&frame);
    assert_eq!((service, payload), (SERVICE, text.into_bytes()));
}

/// Whether any file below `dir` has the key in it.
fn is_key_on_disk(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return is_key_on_disk(&path);
        }
        fs::read(path).unwrap().windows(KEY.len()).any(|window| window == KEY)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_gate_has_no_keys_says_so_and_gets_them_with_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    frontend.push(&mut feed, [install_mac(1)]).await;
    let opened = feed.opened().await;
    send_sealed(&gate, 1, opened).await;
    gate.send_in_vain(CLIENT, opened, &["mac_missing"]).await;
    assert_eq!(gate.control.grants().await[0].mode, DataMode::Mac);
    assert!(!is_key_on_disk(dir.path()), "in no journal");
    gate.stop().await;
    assert!(!is_key_on_disk(dir.path()), "and in no checkpoint");

    // Nobody serves its feed yet.
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    gate.send_in_vain(CLIENT, opened, &["mode_too_weak"]).await;
    frontend.state.push(install_mac(1));
    let (_feed, resume, before) = frontend.welcome().await;
    assert_eq!(resume, None, "it asks for everything, because batches that it has seen do not bring keys again");
    let reported = before.iter().find_map(|message| match message {
        FromGate::Active { grants, .. } => Some(grants[0].delta.keys.clone()),
        _ => None,
    });
    assert_eq!(reported, Some(None), "no key goes back");
    send_sealed(&gate, 2, opened).await;
    gate.stop().await;
}
