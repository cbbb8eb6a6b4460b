use sluicegate_grant::{ANY_PORTS, FLAG_PROVES_ADDRESS, mac::SessionKey};
use sluicegate_wire::UnixTime;

use super::*;

fn secret(nonce: &str) -> SessionSecret {
    SessionSecret::extract(nonce.as_bytes(), (&[1; 32], &[2; 32]))
}

fn grant(client_id: u32) -> Grant {
    let address = IpAddr::from([192, 0, 2, 1]);
    Grant {
        flags: FLAG_PROVES_ADDRESS,
        least_mode: DataMode::Mac,
        protocol: 17,
        id: GrantId([3; 16]),
        issuer: [0; 8],
        epoch: 0,
        not_before: UnixTime(1),
        not_after: UnixTime(2),
        bytes: 1,
        client_id,
        flows: 0,
        rate_100kbps: 0,
        client_address: address,
        client_ports: ANY_PORTS,
        gate_address: address,
        gate_ports: (1, 1),
        holder: [0; 32],
        user_pseudonym: [0; 8],
    }
}

const GATE: &str = "127.0.0.1:31000";

fn ends(local: SocketAddr) -> Ends {
    Ends { client: (local.ip(), local.port()), gate_port: 31_000 }
}

fn sealer() -> (Arc<Sealer>, SessionKeys) {
    let first = secret("n");
    let mut secrets = Secrets::default();
    secrets.push(first.clone());
    let grant = grant(first.client_id(GrantId([3; 16]), 0));
    (secrets.sealer(&grant, None).unwrap(), first.keys(grant.id))
}

/// A packet from the gate.
fn answer(key: &SessionKey, sealer: &Sealer, purpose: Purpose, seq: u64, local: SocketAddr, text: &[u8]) -> Vec<u8> {
    [text, &key.trailer(sealer.client_id, purpose, seq, &ends(local), text)].concat()
}

#[test]
fn each_datagram_has_a_new_number_and_a_tag_that_the_gate_accepts() {
    let (sealer, keys) = sealer();
    let (ends, mut window) = (ends("192.0.2.7:9".parse().unwrap()), ReplayWindow::default());
    for _ in 0..100 {
        let datagram = [&b"data"[..], &sealer.trailer(Purpose::Datagram, &ends, b"data")].concat();
        assert!(window.accept(keys.to_service.check(sealer.client_id, &ends, &datagram).unwrap().seq));
    }
}

#[tokio::test]
async fn a_socket_hears_only_its_gate_and_each_datagram_once() {
    let gate: SocketAddr = GATE.parse().unwrap();
    let (sealer, keys) = sealer();
    let socket = GateSocket::open_on(None, gate, None).await.unwrap();
    let data = answer(&keys.to_client, &sealer, Purpose::Datagram, 1, socket.local(), b"data");
    assert_eq!(socket.accept(gate, &data), None, "nobody was asked");
    socket.listen_to(gate, Some(&sealer));
    let stranger: SocketAddr = "127.0.0.1:31001".parse().unwrap();
    assert_eq!(socket.accept(stranger, &data), None);
    assert_eq!(socket.accept(gate, b"data without a trailer"), None);
    let own = answer(&keys.to_service, &sealer, Purpose::Datagram, 1, socket.local(), b"data");
    assert_eq!(socket.accept(gate, &own), None, "what it sent itself");
    assert_eq!(socket.accept(gate, &data), Some(4));
    assert_eq!(socket.accept(gate, &data), None, "a copy");
    // The gate has moved: what it sent from where it was is still heard.
    let moved: SocketAddr = "127.0.0.1:31002".parse().unwrap();
    socket.listen_to(moved, Some(&sealer));
    let late = answer(&keys.to_client, &sealer, Purpose::Translated, 2, socket.local(), b"late");
    assert_eq!(socket.accept(gate, &late), Some(4));
}

#[tokio::test]
async fn a_plain_socket_hears_only_the_gates_that_it_sends_to() {
    let (gate, stranger): (SocketAddr, SocketAddr) = (GATE.parse().unwrap(), "127.0.0.1:31001".parse().unwrap());
    let socket = GateSocket::open_on(None, gate, None).await.unwrap();
    socket.listen_to(gate, None);
    assert_eq!((socket.accept(gate, b"data"), socket.accept(stranger, b"data")), (Some(4), None));
    for port in 1..=PEERS_MAX as u16 {
        socket.listen_to(SocketAddr::new(gate.ip(), port), None);
    }
    assert_eq!(lock(&socket.peers).len(), PEERS_MAX);
    assert_eq!(socket.accept(gate, b"data"), None, "the one that was used longest ago gave way");
}

#[tokio::test]
async fn ports_are_covered_once_the_gate_has_said_that_it_sees_them() {
    let gate: SocketAddr = GATE.parse().unwrap();
    let (sealer, keys) = sealer();
    let socket = GateSocket::open_on(None, gate, None).await.unwrap();
    assert_eq!(socket.listen_to(gate, Some(&sealer)), (Purpose::Translated, true));
    assert_eq!(socket.listen_to(gate, Some(&sealer)), (Purpose::Translated, false));
    let ack = |seq: u64, seen: SocketAddr| {
        let text = [&[0; 8][..], &seen_as(seen), &(seq * 1_000).to_be_bytes(), &[0; 8]].concat();
        answer(&keys.to_client, &sealer, Purpose::Proof, seq, socket.local(), &text)
    };
    let behind_nat: SocketAddr = "198.51.100.2:700".parse().unwrap();
    assert_eq!(socket.accept(gate, &ack(1, behind_nat)), None);
    assert_eq!(socket.acknowledged(gate).await.unwrap(), None, "and nothing to repeat");
    assert_eq!(socket.listen_to(gate, Some(&sealer)).0, Purpose::Translated);
    assert_eq!(socket.accept(gate, &ack(2, socket.local())), None, "no program gets an acknowledgement");
    assert_eq!(sealer.left(), 2_000);
    assert_eq!(socket.listen_to(gate, Some(&sealer)).0, Purpose::Datagram);
}

#[test]
fn a_renewal_with_the_same_client_id_goes_on_and_with_another_finds_the_sign_in_that_made_the_key() {
    let id = GrantId([3; 16]);
    let mut secrets = Secrets::default();
    secrets.push(secret("first"));
    let known = secrets.sealer(&grant(secret("first").client_id(id, 0)), None).unwrap();
    let _ = known.proof(GATE.parse().unwrap(), b"");
    secrets.push(secret("second"));
    let same = secrets.sealer(&grant(known.client_id), Some(&known)).unwrap();
    assert!(Arc::ptr_eq(&known, &same));
    // A renewal that failed here had been booked by the frontend; the next one says so.
    secrets.push(secret("third"));
    let other = secrets.sealer(&grant(secret("second").client_id(id, 1)), Some(&known)).unwrap();
    assert_eq!((other.next.load(Relaxed), other.keys == secret("second").keys(id)), (1, true));
    assert_eq!(secrets.sealer(&grant(12), Some(&known)), None);
}

#[test]
fn the_longest_payload_leaves_room_for_headers_and_trailer() {
    assert_eq!(payload_max("192.0.2.1:1".parse().unwrap(), 1_500), 1_452);
    assert_eq!(payload_max("[2001:db8::1]:1".parse().unwrap(), 1_280), 1_212);
    assert_eq!(payload_max("192.0.2.1:1".parse().unwrap(), 0), 0);
}
