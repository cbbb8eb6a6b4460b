//! The running daemon over loopback: real sockets, real TLS, and the real receiver of the feed at the other end.

mod authority;
mod gate;
#[path = "../../../../control/proxy/tests/site/mod.rs"]
mod site;

use std::{net::SocketAddr, path::Path, time::Duration};

use gate::{Gate, Told};
use site::{AUDIO, Caller, PASSWORD, REALM, status};
use sluicegate_api::{GrantState, NewUser};
use sluicegate_feed::{Selected, Selector};
use sluicegate_frontend::{Config, Control, Frontend, GateSite};
use sluicegate_policy::Service;
use tempfile::TempDir;
use tokio::{net::UdpSocket, task::JoinHandle, time::timeout};
use zeroize::Zeroizing;

const PATIENCE: Duration = Duration::from_secs(20);
const WEB: &str = "sip:web@example.net";

/// A running frontend.
struct Running {
    control: Control,
    stop: tokio::sync::oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Running {
    async fn start(dir: &Path, change: impl FnOnce(&mut Config)) -> Self {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new("f1", REALM, any, any, dir);
        config.shards = 2;
        config.configured.services = vec![service("web"), service("other")];
        change(&mut config);
        let frontend = Frontend::start(config).await.unwrap();
        let control = frontend.control();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let ended = tokio::spawn(frontend.run(async {
            let _ = stopped.await;
        }));
        Self { control, stop, ended }
    }

    fn add_user(&self, name: &str, groups: &[&str]) {
        let new = NewUser {
            name: name.into(),
            password: Some(Zeroizing::new(PASSWORD.into())),
            key: None,
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        };
        self.control.edit(|catalog| catalog.users_add(&[new])).unwrap();
    }

    fn sip(&self) -> SocketAddr {
        self.control.status().listen[0].strip_prefix("udp/").unwrap().parse().unwrap()
    }

    /// A gate that has joined and is up to date.
    async fn gate(&self, name: &str) -> Gate {
        let token = self.control.join_token().unwrap();
        let mut gate = Gate::new(name, &token);
        gate.dial(&token, Some(token.secret.clone())).await.unwrap();
        gate.until(|told| matches!(told, Told::UpToDate)).await;
        gate
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap();
    }
}

fn service(name: &str) -> Service {
    toml::from_str(&format!(
        "name='{name}'\naddress='10.0.{}.1'\nports=['udp/5004-5005']\nallow=['user:alice', 'user:bob']",
        name.len()
    ))
    .unwrap()
}

/// A telephone on a socket.
struct Phone {
    socket: UdpSocket,
    sip: SocketAddr,
    caller: Caller,
}

impl Phone {
    async fn new(running: &Running, user: &str) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let caller = Caller::new(user, &socket.local_addr().unwrap().to_string());
        Self { socket, sip: running.sip(), caller }
    }

    async fn ask(&self, request: &str) -> String {
        self.socket.send_to(request.as_bytes(), self.sip).await.unwrap();
        self.answer().await
    }

    async fn answer(&self) -> String {
        let mut buffer = vec![0; 65_535];
        let (len, from) = timeout(PATIENCE, self.socket.recv_from(&mut buffer)).await.unwrap().unwrap();
        assert_eq!(from, self.sip);
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    }

    /// Calls; the final answer.
    async fn call(&mut self, uri: &str) -> String {
        self.caller.to = uri.to_owned();
        let plain = self.caller.request("INVITE", uri, "", AUDIO);
        let challenge = self.ask(&plain).await;
        assert_eq!(status(&challenge), 407, "{challenge}");
        let credentials = self.caller.authorization(&challenge, "INVITE", uri);
        let signed = self.caller.request("INVITE", uri, &credentials, AUDIO);
        let mut answer = self.ask(&signed).await;
        while status(&answer) < 200 {
            answer = self.answer().await;
        }
        if status(&answer) == 200 {
            self.caller.take_dialog(&answer);
            let ack = self.caller.request("ACK", uri, "", "");
            self.socket.send_to(ack.as_bytes(), self.sip).await.unwrap();
        }
        answer
    }

    async fn bye(&mut self, uri: &str) -> String {
        let bye = self.caller.request("BYE", uri, "", "");
        let mut answer = self.ask(&bye).await;
        // A 200 that crossed its ACK is not the answer.
        while !answer.contains("BYE") {
            answer = self.answer().await;
        }
        answer
    }
}

/// Follows the feed while a call is made, so that its grants are opened.
async fn call_through(gate: &mut Gate, phone: &mut Phone, uri: &str) -> String {
    let follow = gate.until(|told| matches!(told, Told::Install));
    tokio::join!(phone.call(uri), follow).0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_opened_at_the_gate_and_its_bye_closes_it() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    let mut gate = running.gate("gate-1").await;
    assert_eq!(gate.services, ["other", "web"]);
    let mut alice = Phone::new(&running, "alice").await;
    let ok = call_through(&mut gate, &mut alice, WEB).await;
    assert_eq!(status(&ok), 200, "{ok}");
    assert!(ok.contains("c=IN IP4 203.0.113.9") && ok.contains("m=audio 20000"));
    let grants = running.control.grants();
    assert_eq!((grants.len(), grants[0].state, grants[0].gate.as_str()), (1, GrantState::Open, "gate-1"));
    assert_eq!((grants[0].client.to_string().as_str(), grants[0].user.as_str()), ("127.0.0.1", "alice"));
    let traced = running.control.trace_user("alice");
    assert_eq!((&*traced[0].outcome, traced[0].status), ("admitted", 200));
    let bye = alice.bye(WEB).await;
    assert_eq!(status(&bye), 200);
    gate.until(|told| matches!(told, Told::Revoke(_))).await;
    assert!(gate.open.is_empty());
    assert!(running.control.grants().is_empty());
    assert_eq!(running.control.status().events["calls_opened"], 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_closes_nothing_and_the_old_tag_still_ends_the_call() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    let mut gate = running.gate("gate-1").await;
    let mut alice = Phone::new(&running, "alice").await;
    assert_eq!(status(&call_through(&mut gate, &mut alice, WEB).await), 200);
    running.stop().await;

    let running = Running::start(dir.path(), |_| {}).await;
    let token = running.control.join_token().unwrap();
    gate.dial(&token, None).await.unwrap();
    gate.until(|told| matches!(told, Told::UpToDate)).await;
    assert_eq!(gate.open.len(), 1, "a snapshot only adds");
    alice.sip = running.sip();
    // Another call proves that the gate's report has arrived: messages of one gate are taken in order.
    let mut other = Phone::new(&running, "alice").await;
    other.caller.call_id = "other".into();
    assert_eq!(status(&call_through(&mut gate, &mut other, WEB).await), 200);
    assert_eq!(running.control.grants().len(), 2);
    assert_eq!(status(&alice.bye(WEB).await), 200);
    gate.until(|told| matches!(told, Told::Revoke(_))).await;
    assert_eq!(running.control.grants().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_authorisation_is_refused_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    let mut alice = Phone::new(&running, "alice").await;
    let plain = alice.caller.request("INVITE", WEB, "", AUDIO);
    let challenge = alice.ask(&plain).await;
    let credentials = alice.caller.authorization(&challenge, "INVITE", WEB);
    let signed = alice.caller.request("INVITE", WEB, &credentials, AUDIO);
    running.stop().await;
    let running = Running::start(dir.path(), |_| {}).await;
    alice.sip = running.sip();
    let answer = alice.ask(&signed).await;
    assert!(status(&answer) == 407 && answer.contains("stale=true"), "{answer}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_gate_a_call_is_answered_503() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    let mut alice = Phone::new(&running, "alice").await;
    assert_eq!(status(&alice.call(WEB).await), 503);
    assert!(running.control.grants().is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_assigned_gate_opens_a_service_and_no_other() {
    let dir = TempDir::new().unwrap();
    let web = GateSite { name: "gate-2".into(), services: vec!["web".into()], addresses: Vec::new() };
    let assign = |config: &mut Config| config.gates = vec![web];
    let running = Running::start(dir.path(), assign).await;
    running.add_user("alice", &[]);
    let mut first = running.gate("gate-1").await;
    let mut second = running.gate("gate-2").await;
    let mut alice = Phone::new(&running, "alice").await;
    assert_eq!(status(&call_through(&mut second, &mut alice, WEB).await), 200);
    let mut other = Phone::new(&running, "alice").await;
    other.caller.call_id = "other".into();
    assert_eq!(status(&call_through(&mut first, &mut other, "sip:other@example.net").await), 200);
    assert_eq!((first.open.len(), second.open.len()), (1, 1));
    assert_eq!(first.open[0].delta.service, "other");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_user_ends_their_calls_and_their_logins() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    running.add_user("bob", &[]);
    let mut gate = running.gate("gate-1").await;
    let mut alice = Phone::new(&running, "alice").await;
    assert_eq!(status(&call_through(&mut gate, &mut alice, WEB).await), 200);
    running.control.edit(|catalog| catalog.user_remove("alice")).unwrap();
    gate.until(|told| matches!(told, Told::Revoke(s) if s.what == Selected::User("alice".into()))).await;
    assert!(gate.open.is_empty());
    let mut again = Phone::new(&running, "alice").await;
    again.caller.call_id = "again".into();
    assert_eq!(status(&again.call(WEB).await), 407);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_by_the_administrator_reaches_the_gate() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    let mut gate = running.gate("gate-1").await;
    let mut alice = Phone::new(&running, "alice").await;
    call_through(&mut gate, &mut alice, WEB).await;
    let id = running.control.grants()[0].id;
    let ended = running.control.revoke(Selector::all(Selected::Grant(id))).unwrap();
    assert_eq!(ended.len(), 1);
    gate.until(|told| matches!(told, Told::Revoke(_))).await;
    assert!(gate.open.is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_was_away_is_told_of_the_revoke_when_it_comes_back() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    let token = running.control.join_token().unwrap();
    let mut gate = running.gate("gate-1").await;
    let mut alice = Phone::new(&running, "alice").await;
    call_through(&mut gate, &mut alice, WEB).await;
    gate.hang_up();
    assert_eq!(status(&alice.bye(WEB).await), 200);
    gate.dial(&token, None).await.unwrap();
    gate.until(|told| matches!(told, Told::Revoke(_))).await;
    assert!(gate.open.is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_was_away_is_told_of_an_operators_revoke_after_a_restart_too() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    running.add_user("bob", &[]);
    let mut gate = running.gate("gate-1").await;
    for user in ["alice", "bob"] {
        call_through(&mut gate, &mut Phone::new(&running, user).await, WEB).await;
    }
    gate.hang_up();
    let alices = Selector::all(Selected::User("alice".into()));
    assert_eq!(running.control.revoke(alices).unwrap().len(), 1);
    running.stop().await;

    let running = Running::start(dir.path(), |_| {}).await;
    let token = running.control.join_token().unwrap();
    gate.dial(&token, None).await.unwrap();
    gate.until(|told| matches!(told, Told::UpToDate)).await;
    assert_eq!(gate.open.len(), 1, "alice's was ended, bob's was not");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_lets_one_gate_in_once_and_strangers_never() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    let token = running.control.join_token().unwrap();
    let mut gate = Gate::new("gate-1", &token);
    gate.dial(&token, Some(token.secret.clone())).await.unwrap();
    gate.until(|told| matches!(told, Told::UpToDate)).await;
    // The secret was used up, and with it the reason to listen to strangers.
    let mut thief = Gate::new("gate-2", &token);
    let refused = match thief.dial(&token, Some(token.secret.clone())).await {
        Ok(()) => thief.told().await.map(drop),
        refused => refused,
    };
    assert!(refused.is_err());
    // While another token is out, a stranger gets as far as being told no.
    let other = running.control.join_token().unwrap();
    let mut stranger = Gate::new("gate-3", &other);
    stranger.dial(&other, None).await.unwrap();
    let told = stranger.told().await.unwrap_err();
    assert!(told.contains("has joined"), "{told}");
    // Nor does a known gate pass under another's name.
    gate.hang_up();
    gate.name = "gate-9".into();
    let mut renamed = Gate::new("gate-9", &other);
    std::mem::swap(&mut renamed.identity, &mut gate.identity);
    renamed.dial(&other, None).await.unwrap();
    assert!(renamed.told().await.is_err());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_gate_is_cut_off() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    let mut gate = running.gate("gate-1").await;
    running.control.gate_remove("gate-1").unwrap();
    assert!(gate.told().await.is_err());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_come_and_go_are_told_to_the_gate() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(dir.path(), |_| {}).await;
    running.add_user("alice", &[]);
    let mut gate = running.gate("gate-1").await;
    running.control.edit(|catalog| catalog.services_add(&[service("another")])).unwrap();
    gate.until(|told| matches!(told, Told::Service(name) if name == "another")).await;
    running.control.edit(|catalog| catalog.service_remove("another")).unwrap();
    gate.until(|told| matches!(told, Told::ServiceGone(name) if name == "another")).await;
    assert!(
        running
            .control
            .edit(|catalog| catalog.service_remove("web"))
            .unwrap_err()
            .to_string()
            .contains("configuration file")
    );
    running.stop().await;
}
