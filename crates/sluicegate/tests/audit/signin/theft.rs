//! What a thief of a frontend's directory has, and what comes of it.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use sluicegate_api::NewUser;
use sluicegate_frontend::{Config, Control, Frontend, KeyHolder, Vault, keyholder_directory};
use sluicegate_grant::epoch::{EPOCH_SECS, Epoch};
use sluicegate_signin::{Certificate, CertificateError, EpochHa1, ReplicaKey, SitePublic, UserSecret, unseal};
use sluicegate_sip::digest::{Algorithm, ha1};
use sluicegate_wire::UnixTime;
use tempfile::TempDir;
use zeroize::Zeroizing;

use super::site::{self, Caller, PHONE, PORTS, Site, status};
use crate::support::BINARY;

/// Seconds after the end of an epoch in which its nonces live on.
const GRACE_S: u64 = 60;

pub(super) fn files_under(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match (path.is_dir(), path.is_file()) {
            (true, _) => files_under(&path),
            // A socket has nothing to read.
            (false, is_file) => is_file.then_some(path).into_iter().collect(),
        })
        .collect()
}

pub(super) fn holds(directory: &Path, needle: &[u8]) -> bool {
    let hex: String = needle.iter().map(|byte| format!("{byte:02x}")).collect();
    let within = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    files_under(directory).iter().any(|path| {
        let bytes = fs::read(path).unwrap();
        within(&bytes, needle) || within(&bytes, hex.as_bytes())
    })
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() { copy(&entry.path(), &to) } else { drop(fs::copy(entry.path(), to)) }
    }
}

/// A frontend of its own, whose key holder is on another host, and the day's keys for it.
struct Apart {
    /// Both hosts' directories, and the thief's.
    root: TempDir,
    vault: Vault,
    epoch: Epoch,
}

impl Apart {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let vault = Vault::open(&root.path().join("keyholder"), site::REALM).unwrap();
        let epoch = Epoch::at(UnixTime(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()));
        vault.put(&[("dave".into(), site::secret_of("dave", site::PASSWORD))]).unwrap();
        Self { root, vault, epoch }
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("frontend")
    }

    /// What the frontend is given around noon: this epoch's keys.
    fn keys(&self, replica: &ReplicaKey) -> String {
        self.vault.issue(self.epoch.start().plus_secs(EPOCH_SECS / 2), replica.public()).unwrap().text
    }

    async fn start(&self, state: &Path) -> Frontend {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new("f1", site::REALM, any, any, state);
        config.keyholder = KeyHolder::Elsewhere { file: Some(state.join("f1.keys")), site: self.vault.site() };
        config.shards = 1;
        Frontend::start(config).await.unwrap()
    }
}

async fn blocking<T: Send + 'static>(control: &Control, ask: impl FnOnce(&Control) -> T + Send + 'static) -> T {
    let control = control.clone();
    tokio::task::spawn_blocking(move || ask(&control)).await.unwrap()
}

/// By epoch, what users' digests are checked against.
type Keys = Vec<(u32, Vec<(String, [u8; 32])>)>;

/// What the thief finds in a directory: by epoch, users and what their digests are checked against; the certificate.
fn found(state: &Path, site: &SitePublic) -> (String, Keys) {
    let seed: [u8; 32] = fs::read(state.join("frontend-noise.key")).unwrap().try_into().unwrap();
    let file = fs::read(state.join("f1.keys")).unwrap();
    let (_, content) = unseal(&file, site::REALM, &ReplicaKey::from_seed(&seed), site).unwrap();
    postcard::from_bytes(&content).unwrap()
}

/// Signs in as dave's agent with what was stolen; the status.
fn sign_in(site: &mut Site, stolen: &EpochHa1, nth: u32) -> u16 {
    let mut thief = Caller::new("dave", PHONE).agent();
    (thief.stolen, thief.call_id) = (Some(stolen.clone()), format!("theft-{nth}"));
    let uri = thief.to.clone();
    status(&thief.sign_in(site, "INVITE", &uri, "", PORTS))
}

#[tokio::test(flavor = "multi_thread")]
async fn theft_the_whole_directory_of_a_frontend_signs_in_neither_in_the_next_epoch_nor_at_another_frontend() {
    let apart = Apart::new();
    let state = apart.state();
    // The true frontend, with a key of its own that the sites below have too.
    fs::DirBuilder::new().create(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    sluicegate_keys::create(&state.join("frontend-noise.key"), &[8; 32]).unwrap();
    let frontend = apart.start(&state).await;
    let control = frontend.control();
    assert_eq!(control.status().agent_epochs, [0; 0], "it has no keys yet");
    let keys = apart.keys(&site::replica());
    fs::write(state.join("f1.keys"), &keys).unwrap();
    let loaded = blocking(&control, move |control| control.keys_load(keys.as_bytes()).unwrap()).await;
    assert_eq!(loaded, [(apart.epoch.0, 1)]);
    // Neither a secret of a user nor the site's key was ever on its host.
    assert!(!holds(&state, site::secret_of("dave", site::PASSWORD).expose()));
    assert!(!holds(&state, &fs::read(apart.root.path().join("keyholder/site.key")).unwrap()));
    let dave = |key| NewUser { name: "dave".into(), key, ..NewUser::default() };
    let (with, without) = (dave(Some(Zeroizing::new([1; 32]))), dave(None));
    assert!(
        blocking(&control, move |control| control.edit(|catalog| catalog.users_add(&[with]))).await.is_err(),
        "it takes none either"
    );
    blocking(&control, move |control| control.edit(|catalog| catalog.users_add(&[without])).unwrap()).await;
    drop(frontend);

    // The thief's frontend, on a copy of everything: it is the frontend today, and has nothing to make tomorrow from.
    let copied = apart.root.path().join("thief");
    copy(&state, &copied);
    let thiefs = apart.start(&copied).await;
    assert_eq!(thiefs.control().status().agent_epochs, [apart.epoch.0]);
    let (certificate, epochs) = found(&copied, &apart.vault.site());
    assert_eq!(epochs.len(), 1);
    let (today, next) = (Epoch(epochs[0].0), apart.epoch.next());
    assert_eq!((today, epochs[0].1[0].0.as_str()), (apart.epoch, "dave"));
    let stolen = EpochHa1::from_bytes(epochs[0].1[0].1);
    let certificate = Certificate::from_text(certificate.as_bytes()).unwrap();
    assert_eq!(certificate.verify(site::REALM, today.start()), Ok(()));
    let over = next.start().plus_secs(GRACE_S + 1);
    assert_eq!(certificate.verify(site::REALM, over), Err(CertificateError::Expired), "agents refuse it tomorrow");

    // This epoch, at this frontend: this is what is stolen.
    let at = |unix: UnixTime, replica: ReplicaKey| {
        let mut site = Site::new();
        site.unix = unix;
        let epochs = [Epoch::at(unix), Epoch::at(unix.plus_secs(EPOCH_SECS))];
        site.agents = Arc::new(site::agent_keys_of(&replica, &epochs));
        site.replica_key = Arc::new(replica);
        site.start(1);
        site
    };
    let noon = today.start().plus_secs(EPOCH_SECS / 2);
    assert_eq!(sign_in(&mut at(noon, site::replica()), &stolen, 0), 100);
    // At another frontend; in the next epoch; after roll-over, with a challenge from before.
    assert_eq!(sign_in(&mut at(noon, ReplicaKey::from_seed(&[9; 32])), &stolen, 1), 407);
    assert_eq!(sign_in(&mut at(next.start(), site::replica()), &stolen, 2), 407);
    assert_eq!(sign_in(&mut at(over, site::replica()), &stolen, 3), 407);
    let mut site = at(UnixTime(next.start().0 - 1), site::replica());
    let mut thief = Caller { stolen: Some(stolen), ..Caller::new("dave", PHONE).agent() };
    let uri = thief.to.clone();
    let late = thief.signed(&mut site, "INVITE", &uri, "", PORTS);
    site.pass(Duration::from_secs(GRACE_S + 1));
    let answer = site.send(PHONE, late).pop().unwrap().1;
    assert!(status(&answer) == 407 && answer.contains("stale=true"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_another_frontend_site_realm_or_day_and_older_ones_are_not_taken() {
    let apart = Apart::new();
    let frontend = apart.start(&apart.state()).await;
    let control = frontend.control();
    let replica = sluicegate_signin::key_of(&control.status().frontend_key).unwrap();
    let noon = apart.epoch.start().plus_secs(EPOCH_SECS / 2);
    let other = Vault::open(&apart.root.path().join("other"), site::REALM).unwrap();
    let elsewhere = Vault::open(&apart.root.path().join("elsewhere"), "example.org").unwrap();
    let issue = |vault: &Vault, at: UnixTime, replica: &[u8; 32]| vault.issue(at, replica).unwrap().text;
    let yesterday = UnixTime(noon.0 - EPOCH_SECS);
    for (file, why) in [
        (issue(&apart.vault, noon, &[7; 32]), "for another frontend"),
        (issue(&other, noon, &replica), "issued by the site"),
        (issue(&elsewhere, noon, &replica), "issued by the site"),
        (issue(&apart.vault, yesterday, &replica), "that is over"),
        (issue(&apart.vault, noon.plus_secs(EPOCH_SECS), &replica), "not come yet"),
        ("nothing".to_owned(), "no file of keys"),
    ] {
        let refused =
            blocking(&control, move |control| control.keys_load(file.as_bytes()).unwrap_err().to_string()).await;
        assert!(refused.contains(why), "{refused}");
        assert!(control.status().agent_epochs.is_empty());
    }
    // Issued one after the other, the later one with a clock that was set back.
    let (older, newer) = (issue(&apart.vault, noon, &replica), issue(&apart.vault, apart.epoch.start(), &replica));
    let again = newer.clone();
    blocking(&control, move |control| control.keys_load(newer.as_bytes()).unwrap()).await;
    let refused = blocking(&control, move |control| control.keys_load(older.as_bytes()).unwrap_err().to_string()).await;
    assert!(refused.contains("older"), "{refused}");
    blocking(&control, move |control| control.keys_load(again.as_bytes()).unwrap()).await;
}

/// The directory of a running frontend with an agent's user.
struct Stolen {
    directory: TempDir,
    secret: UserSecret,
}

impl Stolen {
    fn frontend(&self) -> PathBuf {
        self.directory.path().join("frontend")
    }

    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new("f1", site::REALM, any, any, directory.path().join("frontend"));
        let holder = keyholder_directory(directory.path());
        config.keyholder = KeyHolder::Process { program: BINARY.into(), directory: holder };
        config.shards = 1;
        let frontend = Frontend::start(config).await.unwrap();
        let password = "correct-horse-battery-staple";
        let secret = UserSecret::from_password("dave", site::REALM, password.as_bytes());
        let key = Some(Zeroizing::new(*secret.expose()));
        let dave = NewUser { name: "dave".into(), key, ..NewUser::default() };
        let control = frontend.control();
        tokio::task::spawn_blocking(move || control.edit(|catalog| catalog.users_add(&[dave])).unwrap()).await.unwrap();
        Self { directory, secret }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sip_d08_a_frontends_store_holds_no_secret_of_an_agents_user() {
    let stolen = Stolen::new().await;
    assert!(!holds(&stolen.frontend(), stolen.secret.expose()));
    let text = b"dave:example.net:correct-horse-battery-staple";
    assert!(!holds(
        &stolen.frontend(),
        ha1(Algorithm::Sha256, "dave", site::REALM, "correct-horse-battery-staple").as_bytes()
    ));
    assert!(!holds(&stolen.frontend(), text));
    // The key holder has it, for its owner alone: this is what the test looks for.
    let holder = keyholder_directory(stolen.directory.path());
    assert!(holds(&holder, stolen.secret.expose()));
    for path in files_under(&holder).iter().chain([&holder]) {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
    }
}

/// Runs the binary with this on its standard input: whether it did well, and what it said.
fn sluicegate(arguments: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(BINARY);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let done = child.wait_with_output().expect("it ends");
    (done.status.success(), [done.stdout, done.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat())
}

#[test]
fn many_users_are_added_at_once_and_nothing_is_made_for_agents_of_those_who_have_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("frontend.toml");
    let listens = "listen = [\"udp/127.0.0.1:5060\"]\nfeed = \"127.0.0.1:7443\"";
    let text = format!("[node]\nstate = {:?}\n[frontend]\n{listens}\nrealm = \"{}\"\n", directory.path(), site::REALM);
    fs::write(&file, text).unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let add = |more: &[&str], list: &str| sluicegate(&[&["user", "add", "--from", "-"], more, &config].concat(), list);
    let names = || {
        let (done, users) = sluicegate(&[&["user", "ls", "--json"][..], &config].concat(), "");
        assert!(done, "{users}");
        users.matches("\"name\"").count()
    };
    let phones: String = (0..300).map(|number| format!("phone{number}:correct:horse{number}\n")).collect();
    let (done, said) = add(&["--no-agent"], &format!("# phones\n\n{phones}"));
    assert!(done && names() == 300, "{said}");
    // Nobody is added, and nothing is said, of a list with something wrong in it.
    for wrong in
        ["erin:correct horse\nwith no colon", "erin:correct horse\nfrank:short", "erin:same twice\nerin:same twice"]
    {
        let (done, said) = add(&["--no-agent"], wrong);
        assert!(!done && !said.contains("correct horse") && !said.contains("with no colon"), "{said}");
    }
    assert!(!add(&["--no-agent"], "phone7:correct horse").0, "the name is taken");
    assert_eq!(names(), 300);
    let (done, said) = add(&["--no-phone"], "erin:correct horse");
    assert!(done, "{said}");
    // Agents' secrets are with the key holder; telephones have none.
    let secret =
        |user: &str, password: &str| *UserSecret::from_password(user, site::REALM, password.as_bytes()).expose();
    let holder = keyholder_directory(directory.path());
    assert!(holds(&holder, &secret("erin", "correct horse")) && !holds(&holder, &secret("phone7", "correct:horse7")));
    assert!(holds(&directory.path().join("frontend"), b"phone7") && !holds(&holder, b"phone7"));
}
