//! Users, groups, services, rules and gates by name; gates join with a secret that works once.

use std::sync::Arc;

use sluicegate_feed::JoinSecret;
use sluicegate_policy::{Bounds, Group, Policy, Rule, Service, User};
use sluicegate_store::{
    Directory, DirectoryError, ENTRIES_MAX, Gate, JOIN_LIFETIME_S, JOINS_MAX, JoinError, Kind, Store, Txn, password,
};
use sluicegate_wire::UnixTime;
use tempfile::TempDir;
use zeroize::Zeroizing;

const NOW: UnixTime = UnixTime(1_800_000_000);

fn directory() -> (TempDir, Directory) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store"), ENTRIES_MAX).unwrap();
    (folder, Directory::new(Arc::new(store)))
}

fn group(name: &str) -> Group {
    Group { name: name.into(), description: String::new() }
}

#[test]
fn a_user_is_added_found_changed_and_removed() {
    let (_folder, directory) = directory();
    let credentials = password::credentials("alice", "example.net", "correct horse").unwrap();
    let alice = User { credentials: Some(credentials), ..User::new("alice") };
    directory.add(&alice).unwrap();
    assert_eq!(directory.find::<User>("alice").unwrap(), Some(alice.clone()));
    assert!(matches!(directory.add(&alice), Err(DirectoryError::Exists { kind: Kind::User, .. })));

    directory.change::<User>("alice", |user| user.enabled = false).unwrap();
    assert!(!directory.find::<User>("alice").unwrap().unwrap().enabled);
    directory.replace(&alice).unwrap();
    assert!(directory.find::<User>("alice").unwrap().unwrap().enabled);

    directory.remove::<User>("alice").unwrap();
    assert_eq!(directory.find::<User>("alice").unwrap(), None);
    assert!(matches!(directory.remove::<User>("alice"), Err(DirectoryError::Missing { .. })));
    assert!(matches!(directory.replace(&alice), Err(DirectoryError::Missing { .. })));
    assert!(matches!(directory.change::<User>("alice", |_| ()), Err(DirectoryError::Missing { .. })));
}

#[test]
fn a_name_that_cannot_be_used_is_refused() {
    let (_folder, directory) = directory();
    for name in ["", "a/b", "a b", "-a", "ä", &"x".repeat(65)] {
        assert!(matches!(directory.add(&group(name)), Err(DirectoryError::Name { .. })), "{name}");
    }
    directory.add(&group("staff")).unwrap();
    let rename = directory.change::<Group>("staff", |group| group.name = "other".into());
    assert!(matches!(rename, Err(DirectoryError::Name { .. })));
}

#[test]
fn a_change_that_was_overtaken_is_made_again() {
    let (_folder, directory) = directory();
    directory.add(&User::new("alice")).unwrap();
    let mut calls = 0;
    let change = |user: &mut User| {
        calls += 1;
        if calls == 1 {
            directory.change::<User>("alice", |user| user.phone = true).unwrap();
        }
        user.enabled = false;
    };
    directory.change::<User>("alice", change).unwrap();
    let alice = directory.find::<User>("alice").unwrap().unwrap();
    assert_eq!((calls, alice.phone, alice.enabled), (2, true, false));
}

fn web() -> Service {
    Service {
        name: "web".into(),
        kind: Default::default(),
        mode: Default::default(),
        address: [10, 0, 0, 1].into(),
        default: Default::default(),
        ports: vec!["tcp/80".parse().unwrap()],
        sip_port: None,
        outbound: Default::default(),
        limits: Default::default(),
        allow: vec!["group:staff".parse().unwrap()],
        registrar: None,
        numbers: Vec::new(),
        sip: Vec::new(),
        certificate: None,
        register: Default::default(),
        backups: Vec::new(),
    }
}

#[test]
fn the_draft_of_a_policy_holds_everything() {
    let (_folder, directory) = directory();
    let service = web();
    let rule = Rule {
        name: "night".into(),
        services: vec!["web".into()],
        subjects: vec!["group:staff".parse().unwrap()],
        effect: sluicegate_policy::Effect::Deny,
        days: vec![],
        from: "22:00".parse().ok(),
        to: "06:00".parse().ok(),
        limits: None,
    };
    directory.add(&group("staff")).unwrap();
    directory.add(&service).unwrap();
    directory.add(&rule).unwrap();
    // More than one page, in few transactions.
    let users: Vec<_> =
        (0..1_500).map(|n| User { groups: vec!["staff".into()], ..User::new(&format!("u{n}")) }).collect();
    for chunk in users.chunks(250) {
        let put = |txn: Txn, user: &User| txn.put(&format!("user/{}", user.name), postcard_record(user));
        directory.store().txn(&chunk.iter().fold(Txn::default(), put)).unwrap();
    }
    let draft = directory.draft().unwrap();
    assert_eq!((draft.users.len(), draft.groups.len(), draft.services.len(), draft.rules.len()), (1_500, 1, 1, 1));
    let (policy, _) = Policy::build(draft, Bounds::default()).unwrap();
    assert_eq!(policy.service("web").map(|web| &**web), Some(&service));
}

/// The version of records that these tests write by themselves.
const RECORD_VERSION: u8 = 3;

/// A record as the directory stores it: its version, then postcard.
fn postcard_record(user: &User) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(postcard::to_extend(user, vec![RECORD_VERSION]).unwrap())
}

#[test]
fn an_unreadable_record_is_named() {
    let (_folder, directory) = directory();
    let mut longer = postcard_record(&User::new("alice"));
    longer.push(0);
    for bytes in [vec![], vec![1, 1, 2], vec![RECORD_VERSION], vec![RECORD_VERSION, 255, 255], longer.to_vec()] {
        directory.store().txn(&Txn::default().put("user/alice", Zeroizing::new(bytes))).unwrap();
        let error = directory.find::<User>("alice").unwrap_err().to_string();
        assert!(error.contains("\"user/alice\""), "{error}");
    }
}

#[test]
fn records_of_earlier_versions_are_read_and_those_that_were_cut_are_not() {
    let (_folder, directory) = directory();
    let put = |key: &str, bytes: &[u8]| {
        directory.store().txn(&Txn::default().put(key, Zeroizing::new(bytes.to_vec()))).unwrap();
    };
    let user = postcard::to_extend(&User::new("alice"), vec![2]).unwrap();
    put("user/alice", &user);
    assert_eq!(directory.find::<User>("alice").unwrap(), Some(User::new("alice")));
    // Without `backups`; and without `numbers`, `sip`, `certificate` and `register`, of which there is nothing, either.
    for (version, missing) in [(3, 1), (2, 5)] {
        let service = postcard::to_extend(&web(), vec![version]).unwrap();
        put("service/web", &service[..service.len() - missing]);
        assert_eq!(directory.find::<Service>("web").unwrap(), Some(web()));
        put("service/web", &service[..service.len() - missing - 1]);
        assert!(directory.find::<Service>("web").is_err());
    }
}

#[test]
fn a_gate_joins_once_with_each_secret() {
    let (_folder, directory) = directory();
    let secret = JoinSecret::new([7; 16]);
    assert!(matches!(directory.join(NOW, &secret, "ams-1", [1; 32]), Err(JoinError::Secret)));
    directory.open_join(NOW, &secret).unwrap();
    assert_eq!(directory.open_joins(NOW).unwrap(), 1);
    assert!(matches!(directory.join(NOW, &JoinSecret::new([8; 16]), "ams-1", [1; 32]), Err(JoinError::Secret)));
    assert!(matches!(directory.join(NOW, &secret, "a b", [1; 32]), Err(JoinError::Name)));

    let gate = directory.join(NOW, &secret, "ams-1", [1; 32]).unwrap();
    assert_eq!(directory.gate_of_certificate(&[1; 32]).unwrap(), Some(gate));
    assert_eq!(directory.gate_of_certificate(&[2; 32]).unwrap(), None);
    assert_eq!(directory.open_joins(NOW).unwrap(), 0);
    assert!(matches!(directory.join(NOW, &secret, "ams-2", [2; 32]), Err(JoinError::Secret)));
    assert_eq!(directory.all::<Gate>().unwrap().len(), 1);
}

#[test]
fn a_join_secret_ends_after_an_hour() {
    let (_folder, directory) = directory();
    let secret = JoinSecret::new([7; 16]);
    directory.open_join(NOW, &secret).unwrap();
    let too_late = NOW.plus_secs(JOIN_LIFETIME_S);
    assert!(matches!(directory.join(too_late, &secret, "ams-1", [1; 32]), Err(JoinError::Secret)));
    directory.open_join(NOW, &secret).unwrap();
    directory.join(NOW.plus_secs(JOIN_LIFETIME_S - 1), &secret, "ams-1", [1; 32]).unwrap();
}

#[test]
fn no_gate_takes_the_name_of_another() {
    let (_folder, directory) = directory();
    let secret = JoinSecret::new([7; 16]);
    directory.open_join(NOW, &secret).unwrap();
    directory.join(NOW, &secret, "ams-1", [1; 32]).unwrap();
    directory.open_join(NOW, &secret).unwrap();
    assert!(matches!(directory.join(NOW, &secret, "ams-1", [2; 32]), Err(JoinError::NameTaken(_))));
    // The refusal did not use the secret up, and the gate itself may join again.
    directory.join(NOW, &secret, "ams-1", [1; 32]).unwrap();
}

#[test]
fn as_many_join_secrets_are_open_as_may_be() {
    let (_folder, directory) = directory();
    for n in 0..JOINS_MAX {
        directory.open_join(NOW, &JoinSecret::new([u8::try_from(n).unwrap(); 16])).unwrap();
    }
    assert!(matches!(directory.open_join(NOW, &JoinSecret::new([200; 16])), Err(JoinError::Full)));
    directory.open_join(NOW.plus_secs(JOIN_LIFETIME_S), &JoinSecret::new([200; 16])).unwrap();
}
