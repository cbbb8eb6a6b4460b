use std::num::NonZeroU32;

use sluicegate_policy::{Bounds, Draft, User};
use sluicegate_proxy::ConnectionId;

use super::*;

const OWN: &str = "203.0.113.1:5060";

fn policy(users: impl IntoIterator<Item = User>) -> Policy {
    let draft = Draft { users: users.into_iter().collect(), ..Draft::default() };
    Policy::build(draft, Bounds::default()).unwrap().0
}

fn phone(name: &str) -> User {
    User { phone: true, ..User::new(name) }
}

/// alice and bob have telephones, carol is disabled, and dave has an agent only.
fn people() -> Policy {
    let carol = User { enabled: false, ..phone("carol") };
    policy([phone("alice"), phone("bob"), carol, User::new("dave")])
}

fn listening(address: &str) -> Vec<Listening> {
    vec![Listening::udp("192.0.2.1:5060".parse().unwrap()), Listening::udp(address.parse().unwrap())]
}

/// The file as a frontend that starts opens it. It has been up for a while already.
fn start_at(dir: &Path, address: &str) -> ContactFile {
    let opened = OpenedContacts::open(dir).unwrap();
    opened.restore(Clock::start(), &Tables::default(), listening(address), &people())
}

fn start(dir: &Path) -> ContactFile {
    start_at(dir, OWN)
}

fn known(file: &ContactFile, user: &str) -> Vec<Contact> {
    file.locations.of(file.clock.now(), user).iter().map(|contact| Contact::clone(contact)).collect()
}

/// Seconds for which a contact lives on, rounded up.
fn left_s(file: &ContactFile, contact: &Contact) -> u64 {
    contact.expires.since(file.clock.now()).as_millis().div_ceil(1_000) as u64
}

fn registered(file: &ContactFile, secs: u64, connection: Option<u32>) -> Contact {
    let connection = connection.and_then(NonZeroU32::new).map(ConnectionId);
    Contact {
        flow: Flow { connection, ..Flow::datagrams(1, "198.51.100.7:40000".parse().unwrap()) },
        uri: b"sip:alice@192.168.0.9:5060;transport=udp".to_vec(),
        route: vec![b"<sip:edge.example;lr>".to_vec()],
        q: 500,
        expires: file.clock.now() + Duration::from_secs(secs),
        tail: b">;+sip.instance=\"<urn:uuid:1>\"".to_vec(),
        call_id: 7,
        cseq: 9,
        granted_s: 600,
    }
}

/// Registers, as far as the file can see.
fn register(file: &ContactFile, user: &str, contacts: Vec<Contact>) {
    file.locations.end(file.clock.now(), user);
    file.locations.restore(file.clock.now(), user, contacts);
    file.locations.change_again([Arc::from(user)]);
}

#[test]
fn who_was_registered_is_called_after_a_restart_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let file = start(dir.path());
    let contact = registered(&file, 600, None);
    register(&file, "alice", vec![contact.clone()]);
    register(&file, "bob", vec![registered(&file, 600, None)]);
    file.write();
    assert_eq!(file.end("bob"), 1);
    register(&file, "carol", vec![registered(&file, 600, None)]);
    register(&file, "dave", vec![registered(&file, 600, None)]);
    register(&file, "erin", vec![registered(&file, 600, None)]);
    file.write();
    assert_eq!(file.error(), None);
    drop(file);

    let file = start(dir.path());
    let [again] = &known(&file, "alice")[..] else { panic!("one contact") };
    assert!((590..=600).contains(&left_s(&file, again)));
    assert_eq!(Contact { expires: contact.expires, ..again.clone() }, contact);
    for user in ["bob", "carol", "dave", "erin"] {
        assert_eq!(known(&file, user), [], "{user}");
    }
    drop(file);
    // The address that it was reached from is another's now.
    let moved = start_at(dir.path(), "203.0.113.2:5060");
    assert_eq!(moved.locations.gauge().used, 0);
}

#[test]
fn what_was_reached_over_a_connection_is_not_called_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = start(dir.path());
    register(&file, "alice", vec![registered(&file, 600, None), registered(&file, 600, Some(7))]);
    register(&file, "bob", vec![registered(&file, 600, None)]);
    file.write();
    // It came over datagrams before.
    register(&file, "bob", vec![registered(&file, 600, Some(8))]);
    file.write();
    drop(file);
    let file = start(dir.path());
    assert_eq!(known(&file, "alice").iter().map(|contact| contact.flow.connection).collect::<Vec<_>>(), [None]);
    assert_eq!(known(&file, "bob"), []);
}

/// Writes one contact of alice as a frontend did whose clock said `written_at` seconds from now.
fn written(dir: &Path, written_at: i64, expires_at: i64) -> ContactFile {
    let file = start(dir);
    let unix = file.clock.unix().0;
    let at = |offset: i64| unix.saturating_add_signed(offset);
    register(&file, "alice", vec![registered(&file, 600, None)]);
    let (_, contacts) = file.locations.take_all().remove(0);
    let kept = kept(&contacts[0], &file.listening, (file.clock.now(), file.clock.unix())).unwrap();
    let contacts = vec![KeptContact { expires_at: at(expires_at), ..kept }];
    let user = KeptUser { user: "alice".into(), contacts, written_at: at(written_at) };
    file.writing().log.append([user]).unwrap();
    drop(file);
    start(dir)
}

#[test]
fn a_clock_that_was_set_back_prolongs_nothing_and_one_that_was_set_forward_ends_what_it_says() {
    for (written_at, expires_at, expected) in [
        (-10, 300, Some(300)),
        (-10, 0, None),
        (-7_200, -6_600, None),
        // Set back by an hour: as much is left as there was.
        (3_600, 3_600 + 300, Some(300)),
        (3_600, 3_600, None),
        (3_600, 300, None),
        // Nothing lives longer than it was granted.
        (0, 1_000_000, Some(600)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = written(dir.path(), written_at, expires_at);
        let left = known(&file, "alice").first().map(|contact| left_s(&file, contact));
        let fits = left.zip(expected).map_or(left == expected, |(left, expected)| left.abs_diff(expected) <= 5);
        assert!(fits, "{written_at} {expires_at}: {left:?}");
    }
}

#[test]
fn a_clock_that_was_set_has_all_times_on_disk_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = start(dir.path());
    register(&file, "alice", vec![registered(&file, 600, None)]);
    // Some of what another clock said is there, and nothing of it is to count.
    let user = KeptUser { user: "bob".into(), contacts: Vec::new(), written_at: u64::MAX };
    file.writing().log.append([user]).unwrap();
    file.write();
    file.writing().epoch += 3_600;
    file.write();
    assert_eq!(file.writing().epoch, epoch(file.clock.now(), file.clock.unix()));
    drop(file);
    let opened = OpenedContacts::open(dir.path()).unwrap();
    assert!(opened.kept.written_at < u64::MAX && opened.kept.users.len() == 1);
}

#[test]
fn a_damaged_file_is_moved_away_and_telephones_register_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = start(dir.path());
    register(&file, "alice", vec![registered(&file, 600, None)]);
    file.write();
    drop(file);
    let path = dir.path().join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&path, &bytes).unwrap();
    let file = start(dir.path());
    assert_eq!(known(&file, "alice"), []);
    assert!(dir.path().join("contacts.redb.damaged").exists());
    register(&file, "alice", vec![registered(&file, 600, None)]);
    file.write();
    drop(file);
    assert_eq!(known(&start(dir.path()), "alice").len(), 1);
}

#[test]
fn what_the_disk_does_not_take_is_an_error_until_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let open = |records_max| {
        let (log, kept) = ContactLog::open(&dir.path().join(FILE), records_max).unwrap();
        OpenedContacts { log, kept }.restore(Clock::start(), &Tables::default(), listening(OWN), &people())
    };
    let file = open(1);
    register(&file, "alice", vec![registered(&file, 600, None)]);
    file.write();
    assert_eq!(file.error(), None);
    register(&file, "bob", vec![registered(&file, 600, None)]);
    file.write();
    assert!(file.error().is_some_and(|error| error.contains("1 records")));
    // It is called all the same, and comes to the disk when that takes it.
    assert_eq!(known(&file, "bob").len(), 1);
    let roomy = open_other(&dir, file);
    roomy.write();
    assert_eq!(roomy.error(), None);
    drop(roomy);
    assert_eq!(known(&start(dir.path()), "bob").len(), 1);
}

/// The same table before a disk that takes more.
fn open_other(dir: &tempfile::TempDir, file: ContactFile) -> ContactFile {
    let ContactFile { clock, locations, listening, writing, error } = file;
    drop(writing);
    let (log, _) = ContactLog::open(&dir.path().join(FILE), CONTACT_RECORDS_MAX).unwrap();
    let writing = Mutex::new(Writing { log, epoch: epoch(clock.now(), clock.unix()) });
    ContactFile { clock, locations, listening, writing, error }
}

#[test]
fn a_process_that_is_killed_at_any_moment_leaves_what_it_wrote_before() {
    let dir = tempfile::tempdir().unwrap();
    let file = start(dir.path());
    register(&file, "alice", vec![registered(&file, 600, None)]);
    file.write();
    // What a killed process leaves is its file, at whatever state the kernel has it.
    let copy = tempfile::tempdir().unwrap();
    fs::copy(dir.path().join(FILE), copy.path().join(FILE)).unwrap();
    assert_eq!(known(&start(copy.path()), "alice").len(), 1);
}

/// Bytes that this process had written to disks.
fn on_disk() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|line| line.parse().ok()).unwrap_or(0)
}

/// A hundred thousand telephones that register anew every half hour, for two hours.
#[test]
fn a_hundred_thousand_telephones_cost_little_more_disk_than_what_they_say() {
    const USERS: usize = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let file = start(dir.path());
    let contact = registered(&file, 600, None);
    let names: Vec<Arc<str>> = (0..USERS).map(|nth| Arc::from(format!("user-{nth:06}"))).collect();
    for name in &names {
        file.locations.restore(file.clock.now(), name, vec![contact.clone()]);
    }
    let len = || fs::metadata(dir.path().join(FILE)).unwrap().len();
    let before = on_disk();
    let all = std::time::Instant::now();
    file.locations.change_again(names.iter().cloned());
    file.write();
    let said = len();
    println!("all at once: {:?}, {} kB in {} kB", all.elapsed(), (on_disk() - before) / 1_024, said / 1_024);
    let before = on_disk();
    let some = std::time::Instant::now();
    for part in names.chunks(USERS / 20).cycle().take(80) {
        file.locations.change_again(part.iter().cloned());
        file.write();
    }
    let (each, bytes) = (some.elapsed() / 80, (on_disk() - before) / 80);
    println!("{} of them, 80 times: {each:?} and {} kB each, in {} kB", USERS / 20, bytes / 1_024, len() / 1_024);
    assert!(len() < 8 * said, "{} bytes, {said} at first", len());
    drop(file);
    let again = std::time::Instant::now();
    let policy = policy(names.iter().map(|name| phone(name)));
    let file =
        OpenedContacts::open(dir.path()).unwrap().restore(Clock::start(), &Tables::default(), listening(OWN), &policy);
    println!("read back: {:?}", again.elapsed());
    assert_eq!(file.locations.users(), USERS);
}
