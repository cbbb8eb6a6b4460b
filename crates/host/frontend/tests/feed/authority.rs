//! Which gate is believed what, and which is told what.

use std::net::SocketAddr;

use sluicegate_feed::{FromGate, GrantUsage};

use super::*;

const PBX: &str = "sip:pbx@example.net";

/// A gate that has joined from an address of its own, and is up to date.
async fn gate_at(running: &Running, name: &str, from: [u8; 4]) -> Gate {
    let token = running.control.join_token().unwrap();
    let mut gate = Gate::new(name, &token);
    gate.from = from.into();
    gate.dial(&token, Some(token.secret.clone())).await.unwrap();
    gate.until(|told| matches!(told, Told::UpToDate)).await;
    gate
}

/// Whether this gate's messages have been taken so far.
async fn heard(running: &Running, gate: &mut Gate) {
    let id = gate.open[0].delta.grant.id;
    let before = running.control.grants()[0].bytes_used.unwrap();
    gate.say(&FromGate::Usage { grants: vec![GrantUsage { id, bytes_used: before + 1, error_bytes: 0, flows: 0 }] })
        .await
        .unwrap();
    let taken = async {
        while running.control.grants()[0].bytes_used != Some(before + 1) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, taken).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn security_18_a_service_stays_with_the_gate_that_joined_first() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    let mut first = running.gate("the-gate").await;
    let mut newcomer = running.gate("a-newcomer").await;
    let mut alice = Phone::new(&running, "alice").await;
    assert_eq!(status(&call_through(&mut first, &mut alice, WEB).await), 200);
    assert_eq!((first.open.len(), newcomer.open.len()), (1, 0));
    // Not even while the service's gate is away does another one get its grants.
    first.hang_up();
    let away = async {
        while running.control.status().gates.iter().any(|gate| gate.gate == "the-gate" && gate.connected) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, away).await.unwrap();
    let mut other = Phone::new(&running, "alice").await;
    other.caller.call_id = "other".into();
    assert_eq!(status(&other.call(WEB).await), 503);
    // What the newcomer was told ends with a revoke, and has no grant in it.
    let grants = running.control.grants();
    running.control.revoke(Selector::all(Selected::Grant(grants[0].id))).unwrap();
    newcomer.until(|told| matches!(told, Told::Revoke(_))).await;
    assert!(newcomer.open.is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn security_18_where_a_service_takes_sip_is_believed_of_its_own_gate_alone() {
    let dir = TempDir::new().unwrap();
    let pbx = "name='pbx'\nkind='sip'\naddress='127.0.0.9'\nports=['udp/5004-5005']\nallow=['user:alice']";
    let running =
        Running::start(dir.path(), |config| config.configured.services.push(toml::from_str(pbx).unwrap())).await;
    running.add_user("alice", &[]);
    let mut own = gate_at(&running, "own", [127, 0, 0, 2]).await;
    let mut other = gate_at(&running, "other", [127, 0, 0, 3]).await;
    let mut alice = Phone::new(&running, "alice").await;
    assert_eq!(status(&call_through(&mut own, &mut alice, WEB).await), 200);
    let [here, elsewhere, third] = [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4]].map(any_port);
    let sockets = [UdpSocket::bind(here).await.unwrap(), UdpSocket::bind(elsewhere).await.unwrap()];
    let third = UdpSocket::bind(third).await.unwrap();
    let standing = |socket: &UdpSocket| {
        let at = socket.local_addr().unwrap();
        FromGate::Standing { service: "pbx".into(), address: at.ip(), port: at.port(), salt: 7 }
    };
    own.say(&standing(&sockets[0])).await.unwrap();
    heard(&running, &mut own).await;
    // Another gate for this service, and its own gate for an address that is not its own.
    other.say(&standing(&sockets[1])).await.unwrap();
    own.say(&standing(&third)).await.unwrap();
    heard(&running, &mut own).await;
    let mut caller = Phone::new(&running, "alice").await;
    caller.caller.call_id = "to-the-pbx".into();
    caller.caller.to = PBX.to_owned();
    let plain = caller.caller.request("INVITE", PBX, "", AUDIO);
    let challenge = caller.ask(&plain).await;
    let credentials = caller.caller.authorization(&challenge, "INVITE", PBX);
    let signed = caller.caller.request("INVITE", PBX, &credentials, AUDIO);
    caller.socket.send_to(signed.as_bytes(), caller.sip).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let (len, _) = timeout(PATIENCE, sockets[0].recv_from(&mut buffer)).await.unwrap().unwrap();
    assert!(buffer[..len].starts_with(b"INVITE "));
    assert!(sockets[1].try_recv(&mut buffer).is_err() && third.try_recv(&mut buffer).is_err());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn security_18_what_another_gate_says_is_open_at_it_counts_for_nothing() {
    let dir = TempDir::new().unwrap();
    let web = GateSite { name: "own".into(), services: vec!["web".into()], addresses: Vec::new() };
    let running = Running::start(dir.path(), |config| config.gates = vec![web]).await;
    running.add_user("alice", &[]);
    let mut own = running.gate("own").await;
    let mut other = running.gate("other").await;
    let mut alice = Phone::new(&running, "alice").await;
    assert_eq!(status(&call_through(&mut own, &mut alice, WEB).await), 200);
    let mut invented = own.open[0].clone();
    let mut grant = invented.delta.grant.clone();
    grant.id.0[0] ^= 1;
    invented.delta.grant = grant.clone();
    other.say(&FromGate::Active { grants: vec![invented.clone()], more: false }).await.unwrap();
    // One of another issuer, from the right gate.
    grant.issuer[0] ^= 1;
    invented.delta.grant = grant.clone();
    own.say(&FromGate::Active { grants: vec![invented], more: false }).await.unwrap();
    heard(&running, &mut own).await;
    let mut second = Phone::new(&running, "alice").await;
    second.caller.call_id = "second".into();
    // Another call of the other gate's shows that what it said before was taken, too.
    assert_eq!(status(&call_through(&mut other, &mut second, "sip:other@example.net").await), 200);
    assert_eq!(running.control.grants().len(), 2, "the two that were asked for");
    running.stop().await;
}

/// Any port of a loopback address.
fn any_port(host: [u8; 4]) -> SocketAddr {
    (host, 0).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn security_09_a_gate_gets_in_through_any_number_of_connections_that_say_nothing() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    let token = running.control.join_token().unwrap();
    // From many addresses, as many as there are places and more, and never closed by those who opened them.
    let mut silent = Vec::new();
    for host in 10..60 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(any_port([127, 0, 0, host])).unwrap();
        silent.push(socket.connect(token.feed).await.unwrap());
    }
    let mut gate = Gate::new("gate-1", &token);
    gate.dial(&token, Some(token.secret.clone())).await.unwrap();
    gate.until(|told| matches!(told, Told::UpToDate)).await;
    // And those are gone before long.
    for mut silent in silent {
        let mut byte = [0];
        let closed = tokio::io::AsyncReadExt::read(&mut silent, &mut byte);
        assert!(!matches!(timeout(PATIENCE, closed).await.unwrap(), Ok(1..)));
    }
    running.stop().await;
}
