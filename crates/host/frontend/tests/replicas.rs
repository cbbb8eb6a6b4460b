//! Two frontends with the same users: one has the site's key holder, the other takes what that one sends or issues.

use std::{
    future::Future,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sluicegate_api::{NewUser, UserChange};
use sluicegate_frontend::{Config, Control, Frontend, KeyHolder, ReplicaSite};
use sluicegate_policy::{Group, Service};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use zeroize::Zeroizing;

const REALM: &str = "example.net";
/// Longer than anything that works takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both hosts' directories.
struct Hosts(TempDir);

impl Hosts {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn state(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self, name: &str) -> Config {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new(name, REALM, any, any, self.state(name).join("frontend"));
        config.keyholder = KeyHolder::Thread { directory: self.state(name).join("keyholder") };
        config.shards = 1;
        std::fs::create_dir_all(self.state(name)).unwrap();
        config
    }

    /// The frontend that has the key holder; its replica is `key`.
    async fn first(&self, key: [u8; 32], feed: Option<std::net::SocketAddr>) -> Frontend {
        let mut config = self.config("first");
        config.replicas = vec![ReplicaSite { name: "second".into(), key, feed }];
        started(config).await
    }

    /// The replica of the site with this key.
    async fn second(&self, site: &str, feed: Option<std::net::SocketAddr>) -> Frontend {
        started(self.second_config(site, feed)).await
    }

    fn second_config(&self, site: &str, feed: Option<std::net::SocketAddr>) -> Config {
        let mut config = self.config("second");
        config.keyholder = KeyHolder::Elsewhere { file: None, site: site.parse().unwrap() };
        config.feed = feed.unwrap_or(config.feed);
        config
    }

    /// Both, where files are copied by hand.
    async fn both(&self) -> (Frontend, Frontend) {
        let site = site_of(&self.first([9; 32], None).await);
        let second = self.second(&site, None).await;
        let key = sluicegate_signin::key_of(&second.control().status().frontend_key).unwrap();
        (self.first(key, None).await, second)
    }
}

/// Starts a frontend as soon as the one before on its directory has let go of it.
async fn started(config: Config) -> Frontend {
    let end = Instant::now() + PATIENCE;
    loop {
        match Frontend::start(config.clone()).await {
            Ok(frontend) => return frontend,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn site_of(frontend: &Frontend) -> String {
    frontend.control().status().site_key
}

async fn blocking<T: Send + 'static>(control: &Control, ask: impl FnOnce(&Control) -> T + Send + 'static) -> T {
    let control = control.clone();
    tokio::task::spawn_blocking(move || ask(&control)).await.unwrap()
}

fn user(name: &str) -> NewUser {
    NewUser {
        name: name.into(),
        groups: vec!["staff".into()],
        password: Some(Zeroizing::new("correct horse".to_owned())),
        key: Some(Zeroizing::new([7; 32])),
    }
}

fn names(control: &Control) -> Vec<String> {
    control.catalog().users().unwrap().into_iter().map(|user| user.name).collect()
}

async fn add(control: &Control, names: &[&str]) {
    let new: Vec<NewUser> = names.iter().map(|name| user(name)).collect();
    let staff = Group { name: "staff".into(), description: String::new() };
    blocking(control, move |control| {
        let _ = control.edit(|catalog| catalog.group_add(&staff));
        control.edit(|catalog| catalog.users_add(&new)).unwrap();
    })
    .await;
}

async fn issue(control: &Control) -> String {
    blocking(control, |control| control.keys_issue("second").unwrap().text).await
}

async fn load(control: &Control, file: &str) -> Result<Vec<(u32, usize)>, String> {
    let file = file.to_owned();
    blocking(control, move |control| control.keys_load(file.as_bytes()).map_err(|error| error.to_string())).await
}

async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_has_the_users_groups_and_stored_services_of_the_site_after_a_restart_too() {
    let hosts = Hosts::new();
    let (first, second) = hosts.both().await;
    let (here, there) = (first.control(), second.control());
    add(&here, &["alice", "bob"]).await;
    let service: Service =
        toml::from_str("name = \"web\"\naddress = \"10.4.0.2\"\nports = [\"tcp/80\"]\nallow = [\"group:staff\"]\n")
            .unwrap();
    blocking(&here, move |control| control.edit(|catalog| catalog.services_add(&[service])).unwrap()).await;
    assert_eq!(load(&there, &issue(&here).await).await.unwrap().iter().map(|(_, users)| *users).max(), Some(2));
    assert_eq!(names(&there), ["alice", "bob"]);
    assert!(there.policy().service("web").is_some() && there.policy().user("alice").unwrap().credentials.is_some());
    // What nobody may any more: disabled and removed ones.
    blocking(&here, |control| {
        let off = UserChange { enabled: Some(false), ..UserChange::default() };
        control.edit(|catalog| catalog.user_change("bob", &off)).unwrap();
        control.edit(|catalog| catalog.user_remove("alice")).unwrap();
    })
    .await;
    load(&there, &issue(&here).await).await.unwrap();
    assert_eq!(names(&there), ["bob"]);
    assert!(!there.policy().user("bob").unwrap().enabled && there.policy().user("alice").is_none());
    let (site, epochs) = (site_of(&second), there.status().agent_epochs);
    drop((second, there));
    let again = hosts.second(&site, None).await;
    assert_eq!((names(&again.control()), again.control().status().agent_epochs), (vec!["bob".to_owned()], epochs));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_starts_anew_knows_when_it_heard_last() {
    let hosts = Hosts::new();
    let (first, second) = hosts.both().await;
    add(&first.control(), &["alice"]).await;
    let file = issue(&first.control()).await;
    load(&second.control(), &file).await.unwrap();
    let (site, taken) = (site_of(&second), second.control().status().users_taken.unwrap());
    drop(second);
    // Until the time, in seconds, is another one.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let second = hosts.second(&site, None).await;
    let again = second.control();
    assert_eq!(again.status().users_taken, Some(taken), "its own copy of the last file is no news");
    load(&again, &file).await.unwrap();
    assert_eq!(again.status().users_taken, Some(taken), "nor is the same file once more");
    load(&again, &issue(&first.control()).await).await.unwrap();
    assert!(again.status().users_taken.unwrap().at > taken.at);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_a_replica_are_changed_at_the_frontend_with_the_key_holder_alone() {
    let hosts = Hosts::new();
    let (first, second) = hosts.both().await;
    let there = second.control();
    add(&first.control(), &["alice"]).await;
    load(&there, &issue(&first.control()).await).await.unwrap();
    let refused = blocking(&there, |control| {
        let staff = Group { name: "other".into(), description: String::new() };
        let none = UserChange::default();
        [
            control.edit(|catalog| catalog.users_add(&[user("carol")])),
            control.edit(|catalog| catalog.user_change("alice", &none)),
            control.edit(|catalog| catalog.user_password(&user("alice"))),
            control.edit(|catalog| catalog.user_remove("alice")),
            control.edit(|catalog| catalog.group_add(&staff)),
            control.edit(|catalog| catalog.group_remove("staff")),
            control.edit(|catalog| catalog.services_add(&[])),
            control.edit(|catalog| catalog.services_replace(&[])),
            control.edit(|catalog| catalog.service_remove("web")),
        ]
        .map(|edited| edited.err().map(|error| error.to_string()).unwrap_or_default())
    })
    .await;
    assert!(refused.iter().all(|error| error.contains("change them there")), "{refused:?}");
    assert_eq!(names(&there), ["alice"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_cut_older_or_others_table_is_refused_and_nothing_is_lost() {
    let hosts = Hosts::new();
    let (first, second) = hosts.both().await;
    let (here, there) = (first.control(), second.control());
    add(&here, &["alice"]).await;
    let older = issue(&here).await;
    add(&here, &["bob"]).await;
    let newer = issue(&here).await;
    load(&there, &newer).await.unwrap();
    // Another site's, for this very frontend.
    let others = Hosts::new();
    let key = sluicegate_signin::key_of(&there.status().frontend_key).unwrap();
    let foreign = others.first(key, None).await;
    let foreign = issue(&foreign.control()).await;
    // This site's, for another frontend.
    drop((first, here));
    let elsewhere = hosts.first([9; 32], None).await;
    let misdirected = issue(&elsewhere.control()).await;
    let mut changed = newer.clone().into_bytes();
    let at = changed.len() / 2;
    changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).unwrap();
    for (file, why) in [
        (older.as_str(), "older than those that were loaded"),
        (&newer[..newer.len() - 8], "was changed"),
        (&newer[..100], "no file of keys"),
        (&changed, "was changed"),
        (&foreign, "issued by the site"),
        (&misdirected, "for another frontend"),
        ("", "no file of keys"),
    ] {
        let refused = load(&there, file).await.unwrap_err();
        assert!(refused.contains(why), "{why}: {refused}");
        assert_eq!(names(&there), ["alice", "bob"]);
    }
    load(&there, &newer).await.expect("the same again changes nothing");
    // Nor after a restart, where the older one lies as a file.
    let site = site_of(&second);
    drop((second, there));
    let file = hosts.state("second.keys");
    std::fs::write(&file, &older).unwrap();
    let mut config = hosts.second_config(&site, None);
    config.keyholder = KeyHolder::Elsewhere { file: Some(file), site: site.parse().unwrap() };
    let again = started(config).await;
    assert_eq!(names(&again.control()), ["alice", "bob"]);
    assert!(load(&again.control(), &older).await.unwrap_err().contains("older"));
    assert_eq!(names(&again.control()), ["alice", "bob"]);
}

/// Where the replica's feed is, for both ends to be told before either runs.
fn free_port() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_sent_to_the_replica_at_once_and_again_when_it_was_away() {
    let hosts = Hosts::new();
    let site = site_of(&hosts.first([9; 32], None).await);
    let feed = free_port();
    let second = hosts.second(&site, Some(feed)).await;
    let key = sluicegate_signin::key_of(&second.control().status().frontend_key).unwrap();
    let first = hosts.first(key, Some(feed)).await;
    let (here, there) = (first.control(), second.control());
    add(&here, &["alice"]).await;
    until("alice is known there", || async { names(&there) == ["alice"] }).await;
    until("and has keys", || async { !there.status().agent_epochs.is_empty() }).await;
    until("that is known here", || async { here.status().replicas[0].number.is_some() }).await;
    assert!(here.status().alarms.is_empty() && there.status().users_taken.is_some());
    drop((second, there));
    add(&here, &["bob"]).await;
    until("it is away, and that is an alarm", || async { !here.status().alarms.is_empty() }).await;
    let second = hosts.second(&site, Some(feed)).await;
    until("bob is known there", || async { names(&second.control()) == ["alice", "bob"] }).await;
    until("all is well", || async { here.status().alarms.is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_answers_in_a_replicas_place_is_not_taken_for_it() {
    let hosts = Hosts::new();
    // It takes all that comes, and says that it has it.
    let second = hosts.second(&site_of(&hosts.first([9; 32], None).await), None).await;
    let real = second.control().status();
    let impostor = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let feed = impostor.local_addr().unwrap();
    let first = hosts.first(sluicegate_signin::key_of(&real.frontend_key).unwrap(), Some(feed)).await;
    let identity = sluicegate_feed::tls::Identity::generate("impostor").unwrap();
    let tls = tokio_rustls::TlsAcceptor::from(sluicegate_feed::tls::sealed_server_config(&identity).unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = impostor.accept().await {
            let Ok(mut stream) = tls.accept(stream).await else { continue };
            let len = stream.read_u32().await.unwrap_or(0);
            let mut all = vec![0; usize::try_from(len).unwrap()];
            let _ = stream.read_exact(&mut all).await;
            let _ = stream.write_all(&[0; 17]).await;
            let _ = stream.shutdown().await;
        }
    });
    let control = first.control();
    until("that is an alarm", || async {
        control.status().alarms.iter().any(|alarm| alarm.contains("has not opened"))
    })
    .await;
    assert_eq!(control.status().replicas[0].number, None);
}

/// Sends this to a replica's feed as another frontend would; the answer.
async fn send(feed: std::net::SocketAddr, len: u32, bytes: &[u8]) -> Vec<u8> {
    let tls = tokio_rustls::TlsConnector::from(sluicegate_feed::tls::sealed_client_config().unwrap());
    let name = rustls::pki_types::ServerName::try_from(sluicegate_feed::tls::SERVER_NAME).unwrap();
    let mut stream = tls.connect(name, TcpStream::connect(feed).await.unwrap()).await.unwrap();
    let _ = stream.write_all(&len.to_be_bytes()).await;
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_send_a_replica_nothing_that_it_reads_to_the_end() {
    let hosts = Hosts::new();
    let (first, second) = hosts.both().await;
    let (here, there) = (first.control(), second.control());
    let feed = there.status().feed;
    add(&here, &["alice"]).await;
    let file = issue(&here).await;
    load(&there, &file).await.unwrap();
    let refused = |answer: Vec<u8>| String::from_utf8_lossy(answer.get(1..).unwrap_or_default()).into_owned();
    // Without the site's word, not a byte more than the head is waited for.
    let garbage = "A".repeat(sluicegate_signin::SEALED_HEAD_LEN);
    assert!(refused(send(feed, u32::MAX, garbage.as_bytes()).await).contains("issued by the site"));
    // Repeated.
    assert!(refused(send(feed, u32::try_from(file.len()).unwrap(), file.as_bytes()).await).contains("older"));
    add(&here, &["bob"]).await;
    let newer = issue(&here).await;
    let head = &newer.as_bytes()[..sluicegate_signin::SEALED_HEAD_LEN];
    assert!(refused(send(feed, u32::MAX, head).await).contains("bytes are no file"));
    // A right head with another body.
    let other = [head, &file.as_bytes()[sluicegate_signin::SEALED_HEAD_LEN..]].concat();
    assert!(refused(send(feed, u32::try_from(other.len()).unwrap(), &other).await).contains("was changed"));
    assert_eq!(names(&there), ["alice"]);
    let taken = send(feed, u32::try_from(newer.len()).unwrap(), newer.as_bytes()).await;
    assert_eq!((taken.len(), taken[0]), (17, 0));
    assert_eq!(names(&there), ["alice", "bob"]);
    assert!(is_private(&hosts.state("second")));
}

/// Whether nobody else reads what is under a directory.
fn is_private(directory: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(directory.join("frontend/store.redb")).unwrap().permissions().mode() & 0o077 == 0
}
