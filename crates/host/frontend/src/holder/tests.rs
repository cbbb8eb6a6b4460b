use sluicegate_grant::epoch::EPOCH_SECS;

use super::*;
use crate::clock::Clock;

const REALM: &str = "example.net";
const NOON: UnixTime = UnixTime(20_000 * EPOCH_SECS + 43_200);
const LATE: UnixTime = UnixTime(20_001 * EPOCH_SECS - 60);

fn vault(dir: &Path) -> Vault {
    let vault = Vault::open(dir, REALM).unwrap();
    let put = Request::Put { users: vec![("alice".into(), [1; 32])] };
    assert!(matches!(vault.answer(NOON, &put), Response::Done));
    vault
}

fn agents(vault: &Vault, now: UnixTime, replica: u8, epoch: u32) -> Option<Vec<(String, [u8; 32])>> {
    match &vault.answer(now, &Request::Agents { replica: [replica; 32], epoch, after: String::new() }) {
        Response::Agents(users) => Some(users.clone()),
        _ => None,
    }
}

#[test]
fn only_this_epochs_keys_are_given_out_and_the_next_ones_in_its_last_hour() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir.path().join("keyholder"));
    let today = agents(&vault, NOON, 1, 20_000).unwrap();
    assert_eq!(today.len(), 1);
    for epoch in [0, 19_999, 20_001, 20_002, u32::MAX] {
        assert!(agents(&vault, NOON, 1, epoch).is_none(), "{epoch}");
    }
    let tomorrow = agents(&vault, LATE, 1, 20_001).unwrap();
    assert!(agents(&vault, LATE, 1, 20_002).is_none());
    assert_ne!(today, tomorrow);
    assert_ne!(today, agents(&vault, NOON, 2, 20_000).unwrap(), "another frontend is given something else");
}

#[test]
fn secrets_last_and_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keyholder");
    let before = { agents(&vault(&path), NOON, 1, 20_000) };
    let again = Vault::open(&path, REALM).unwrap();
    assert_eq!(agents(&again, NOON, 1, 20_000), before);
    for (file, mode) in [("", 0o700), ("site.key", 0o600), ("secrets.redb", 0o600)] {
        let found = std::fs::metadata(path.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{file}");
    }
    assert!(matches!(again.answer(NOON, &Request::Remove { user: "alice".into() }), Response::Done));
    assert_eq!(agents(&again, NOON, 1, 20_000), Some(Vec::new()));
    let wrong = Request::Put { users: vec![("bob".into(), [1; 32]), ("../x".into(), [1; 32])] };
    assert!(matches!(again.answer(NOON, &wrong), Response::Refused(_)));
    assert_eq!(agents(&again, NOON, 1, 20_000), Some(Vec::new()), "all or none");
}

#[test]
fn a_frontend_pages_through_many_users_and_starts_a_key_holder_that_died_anew() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("keyholder");
    {
        let vault = Vault::open(&directory, REALM).unwrap();
        let users: Vec<_> = (0..PAGE_LEN + 5).map(|number| (format!("user-{number}"), [1; 32])).collect();
        for some in users.chunks(250) {
            assert!(matches!(vault.answer(NOON, &Request::Put { users: some.to_vec() }), Response::Done));
        }
    }
    let holder = Holder::new(KeyHolder::Thread { directory }, REALM);
    let now = Clock::start().unix();
    let agents = holder.agents(now, [3; 32], &AgentKeys::default()).unwrap();
    assert!(agents.ha1(Epoch::at(now), "user-0").is_some() && agents.ha1(Epoch::at(now), "nomad").is_none());
    assert_eq!(holder.users(Epoch::at(now), [3; 32]).unwrap().len(), PAGE_LEN + 5);
    let stream = holder.link.lock().unwrap().as_ref().unwrap().stream.try_clone().unwrap();
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    // The old thread closes the store before the new one opens it, or the call says that it is busy.
    let again = (0..50).find_map(|_| {
        holder.site().ok().or_else(|| {
            thread::sleep(Duration::from_millis(20));
            None
        })
    });
    assert!(again.is_some());
}
