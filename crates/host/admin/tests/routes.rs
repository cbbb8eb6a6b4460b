//! Every route of a node, over its socket: what a question is answered with, and what is no question.

use std::{net::SocketAddr, path::PathBuf};

use http_body_util::{BodyExt, Full};
use hyper::{Request, body::Bytes};
use hyper_util::rt::TokioIo;
use sluicegate_admin::{
    Api, Beside, bind_api,
    client::{CallError, ask, ask_here},
    serve_api,
};
use sluicegate_api::{
    self as api, Configured, Flow, NewUser, NodeStatus, Observe, PolicyTest, Question, Refusal, Revoke, UserChange,
};
use sluicegate_frontend::{Config, Frontend};
use sluicegate_grant::DataMode;
use sluicegate_policy::{Group, PortRange, Service, ServiceDefault, ServiceKind, ServiceMode, Subject};
use tempfile::TempDir;
use tokio::task::JoinHandle;

const PASSWORD: &str = "correct-horse-battery-staple";

/// A frontend that runs, and its API.
struct Running {
    dir: TempDir,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new("f1", "example.net", any, any, dir.path().join("state"));
        (config.shards, config.configured.services) = (1, vec![service("web")]);
        let frontend = Frontend::start(config).await.unwrap();
        let api = Api { frontend: Some(frontend.control()), ..Api::default() };
        let mut running = Self { tasks: vec![tokio::spawn(frontend.run(std::future::pending()))], dir };
        running.serve("frontend.sock", api);
        running
    }

    fn serve(&mut self, name: &str, api: Api) {
        let served = serve_api(bind_api(&self.socket(name)).unwrap(), api).unwrap();
        self.tasks.push(tokio::spawn(async move { drop(served.await) }));
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn ask<A: serde::de::DeserializeOwned>(&self, question: &Question<A>) -> Result<A, (u16, String)> {
        ask(&self.socket("frontend.sock"), question).await.map_err(refusal)
    }

    /// Sends what no typed question says; the status and the refusal.
    async fn raw(&self, socket: &str, (method, uri): (&str, &str), body: Vec<u8>) -> (u16, String) {
        let stream = tokio::net::UnixStream::connect(self.socket(socket)).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(uri).header("host", "node");
        let answer = sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice::<Refusal>(&body).unwrap().error)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn refusal(error: CallError) -> (u16, String) {
    match error {
        CallError::Refused { status, message } => (status, message),
        other => panic!("{other}"),
    }
}

fn service(name: &str) -> Service {
    Service {
        name: name.into(),
        kind: ServiceKind::Declared,
        mode: ServiceMode::Nat,
        address: [10, 0, 0, if name == "web" { 2 } else { 4 }].into(),
        default: ServiceDefault::Off,
        ports: vec!["udp/5004".parse::<PortRange>().unwrap()],
        sip_port: None,
        outbound: sluicegate_policy::Outbound::None,
        limits: sluicegate_policy::Limits::DEFAULT,
        allow: vec![Subject::Group("staff".into())],
        registrar: None,
        numbers: Vec::new(),
        sip: Vec::new(),
        certificate: None,
        register: Default::default(),
        backups: Vec::new(),
    }
}

fn alice() -> NewUser {
    NewUser { name: "alice".into(), password: Some(PASSWORD.to_owned().into()), ..NewUser::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_added_listed_changed_and_removed() {
    let node = Running::start().await;
    let staff = Group { name: "staff".into(), description: "all".into() };
    node.ask(&api::GROUP_ADD.ask(&staff)).await.unwrap();
    assert_eq!(node.ask(&api::GROUPS.ask(&())).await.unwrap(), [staff]);
    node.ask(&api::USERS_ADD.ask(&vec![alice()])).await.unwrap();
    let change = UserChange { add: vec!["staff".into()], enabled: Some(false), ..UserChange::default() };
    node.ask(&api::USER_CHANGE.ask_of("alice", &change)).await.unwrap();
    let [user] = &node.ask(&api::USERS.ask(&())).await.unwrap()[..] else { panic!("one user") };
    assert_eq!(
        (&*user.name, &user.groups[..], user.enabled, user.phone),
        ("alice", &["staff".to_owned()][..], false, true)
    );
    node.ask(&api::USER_PASSWORD.ask_of("alice", &alice())).await.unwrap();
    let other = node.ask(&api::USER_PASSWORD.ask_of("bob", &alice())).await.unwrap_err();
    assert_eq!(other, (400, "the password is another user's".into()));
    node.ask(&api::SERVICES_ADD.ask(&vec![service("mail")])).await.unwrap();
    let names = |services: Vec<Service>| services.into_iter().map(|service| service.name).collect::<Vec<_>>();
    assert_eq!(names(node.ask(&api::SERVICES.ask(&())).await.unwrap()), ["web", "mail"]);
    let moved = Service { address: [10, 0, 0, 3].into(), ..service("mail") };
    assert_eq!(node.ask(&api::SERVICES_REPLACE.ask(&vec![moved])).await.unwrap(), ["mail"]);
    node.ask(&api::SERVICE_REMOVE.ask_of("mail", &())).await.unwrap();
    let configured = Configured::default();
    assert_eq!(node.ask(&api::CONFIGURE.ask(&configured)).await.unwrap(), ["web"]);
    node.ask(&api::USER_REMOVE.ask_of("alice", &())).await.unwrap();
    node.ask(&api::GROUP_REMOVE.ask_of("staff", &())).await.unwrap();
    assert!(node.ask(&api::GROUPS.ask(&())).await.unwrap().is_empty());
    let (status, said) = node.ask(&api::USER_REMOVE.ask_of("al/ice?", &())).await.unwrap_err();
    assert!(status == 400 && said.contains("al/ice?"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frontend_says_how_it_is_and_what_its_policy_decides() {
    let node = Running::start().await;
    let NodeStatus { gate: None, frontend: Some(status) } = node.ask(&api::STATUS.ask(&())).await.unwrap() else {
        panic!("a frontend alone")
    };
    assert_eq!((&*status.name, &*status.realm, status.services, status.shards), ("f1", "example.net", 1, 1));
    assert!(status.tables.iter().any(|table| table.table == "grants" && table.max > 0), "{:?}", status.tables);
    assert!(node.ask(&api::GRANTS.ask(&())).await.unwrap().is_empty());
    assert!(node.ask(&api::TRACE_USER.ask_of("alice", &())).await.unwrap().is_empty());
    assert!(node.ask(&api::GATES.ask(&())).await.unwrap().is_empty());
    assert!(!node.ask(&api::JOIN_TOKEN.ask(&())).await.unwrap().token.is_empty());
    let (status, _) = node.ask(&api::GATE_REMOVE.ask_of("west", &())).await.unwrap_err();
    assert_eq!(status, 400);
    let test = PolicyTest { user: "a&b".into(), service: "web".into(), proves: Some(DataMode::Mac) };
    let answer = node.ask(&api::POLICY_TEST.ask(&test)).await.unwrap();
    assert!(answer.outcome.starts_with("deny: ") && !answer.steps.is_empty(), "{answer:?}");
    assert!(node.ask(&api::KEYS_LOAD.ask(&"no keys".to_owned())).await.is_err());
    let revoke = Revoke { user: Some("alice".into()), ..Revoke::default() };
    assert_eq!(node.ask(&api::GRANTS_REVOKE.ask(&revoke)).await.unwrap().revoked, 0);
    let both = Revoke { service: Some("web".into()), ..revoke };
    let (status, said) = node.ask(&api::GRANTS_REVOKE.ask(&both)).await.unwrap_err();
    assert_eq!((status, &*said), (400, "name one of grant, user or service"));
    let (_, said) = node.ask(&api::CONFIRM.ask(&())).await.unwrap_err();
    assert!(said.contains("--confirm"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_a_gate_can_do_is_refused_elsewhere() {
    let node = Running::start().await;
    let client = [198, 51, 100, 7].into();
    let flow =
        Flow { protocol: 17, source: client, source_port: 1, destination: client, destination_port: 2, inside: false };
    for refused in [
        node.ask(&api::TRACE_FLOW.ask(&flow)).await.unwrap_err(),
        node.ask(&api::OBSERVE.ask(&Observe { on: true })).await.unwrap_err(),
    ] {
        assert_eq!(refused, (400, "this node is no gate; ask the gate's node".into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gates_process_hands_on_what_the_frontends_is_to_answer() {
    let mut node = Running::start().await;
    let beside = Beside::at(&node.socket("frontend.sock"));
    node.serve("control.sock", Api { beside: Some(beside), ..Api::default() });
    let socket = node.socket("control.sock");
    ask(&socket, &api::USERS_ADD.ask(&vec![alice()])).await.unwrap();
    assert_eq!(ask(&socket, &api::USERS.ask(&())).await.unwrap().len(), 1);
    assert_eq!(ask(&socket, &api::STATUS.ask(&())).await.unwrap().frontend.unwrap().users, 1);
    let error = ask(&socket, &api::USERS_ADD.ask(&vec![alice()])).await.unwrap_err();
    assert!(matches!(&error, CallError::Refused { status: 400, message } if message.contains("alice")), "{error}");
    let (status, said) = node.raw("control.sock", ("GET", "/v1/nothing"), Vec::new()).await;
    assert_eq!((status, &*said), (404, "there is no /v1/nothing here"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_question_is_refused_with_its_reason() {
    let node = Running::start().await;
    let raw = async |question, body: &[u8]| node.raw("frontend.sock", question, body.to_vec()).await;
    assert_eq!(raw(("GET", "/v1/nothing"), b"").await, (404, "there is no /v1/nothing here".into()));
    let (status, said) = raw(("PUT", "/v1/users"), b"[]").await;
    assert!(status == 405 && said.starts_with("/v1/users takes no PUT"), "{said}");
    for (question, body) in [
        (("POST", "/v1/users"), &b"{"[..]),
        (("POST", "/v1/users"), b"[{\"name\":\"a\",\"nmae\":\"b\"}]"),
        (("POST", "/v1/groups"), b""),
        (("GET", "/v1/policy/test?user=alice"), b""),
        (("GET", "/v1/policy/test?user=alice&service=web&proves=nothing"), b""),
    ] {
        let (status, said) = raw(question, body).await;
        assert!(status == 400 && !said.is_empty(), "{question:?}: {status} {said}");
    }
    let long = vec![b' '; (2 << 20) + 1];
    let (status, said) = raw(("POST", "/v1/groups"), &long).await;
    assert_eq!((status, &*said), (413, "a body may have at most 2097152 bytes here"));
    // A file of keys may be as long as that.
    assert_eq!(raw(("POST", "/v1/keys"), &long).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_run_is_asked_over_its_files() {
    let nobody = Api::default();
    let error = ask_here(nobody.clone(), &api::USERS.ask(&())).await.map_err(refusal).unwrap_err();
    assert_eq!(error, (400, "this node is no frontend; ask the frontend's node".into()));
    assert_eq!(ask_here(nobody, &api::STATUS.ask(&())).await.unwrap(), NodeStatus::default());
}
