//! ICMP errors on a wire, to an address that the gate's host and its translations share.

use std::{io::ErrorKind, net::UdpSocket, time::Duration};

use crate::support::{
    lab::{CLIENT, GATE, Lab, SERVICE},
    let_run,
    node::{Config, Node, service},
    phone::{AUDIO_PORT, Phone, Wish},
};

on_each_datapath!(nat_09_errors_reach_the_host_and_translated_flows_whatever_local_says, &[], super::errors);

/// A port of the client at which nobody listens.
const CLOSED: u16 = 9;

fn errors(datapath: &'static str) {
    for local in ["local = [\"udp/5060\"]\n", "local = [\"udp/5060\", \"icmp\"]\n"] {
        let lab = Lab::new();
        let _node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")).gate(local));
        let host = lab.udp("gate", GATE, 40_000);
        host.connect((CLIENT, CLOSED)).expect("a socket");
        assert!(is_refused(&host), "the host hears that nobody listens: {local}");

        let served = lab.udp("service", SERVICE, 5004);
        let call = Phone::new(&lab, "client", CLIENT, (GATE, 5060).into(), "alice").call("echo", Wish::Audio);
        let client = lab.udp("client", CLIENT, AUDIO_PORT);
        client.send_to(b"hello", call.gate).expect("sent");
        served.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let (_, from) = served.recv_from(&mut [0; 64]).expect("the client's packet");
        drop(client);
        served.connect(from).expect("a socket");
        assert!(is_refused(&served), "a service hears that its client is gone: {local}");
    }
}

/// Whether a datagram is answered by an ICMP error that reaches its socket.
fn is_refused(socket: &UdpSocket) -> bool {
    socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    (0..5).any(|_| {
        // The answer to the one before may be told here as well.
        let sent = socket.send(b"anybody there?");
        let_run(Duration::from_millis(20));
        let heard = socket.recv(&mut [0; 64]);
        [sent.err(), heard.err()].into_iter().flatten().any(|error| error.kind() == ErrorKind::ConnectionRefused)
    })
}
