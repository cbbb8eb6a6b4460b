//! Users, groups, services, rules and gates by name; gates join with a secret that works once.

use std::sync::Arc;

use sluicegate_feed::JoinSecret;
use sluicegate_policy::{Bounds, Group, Policy, Rule, Service, User};
use sluicegate_store::{
    Directory, DirectoryError, Embedded, EmbeddedOptions, Gate, JOIN_LIFETIME_S, JOINS_MAX, JoinError, Kind, Txn,
    password,
};
use sluicegate_wire::UnixTime;
use tempfile::TempDir;
use zeroize::Zeroizing;

const NOW: UnixTime = UnixTime(1_800_000_000);

fn directory() -> (TempDir, Directory) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("store"), EmbeddedOptions::default()).unwrap();
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
    directory.add(NOW, &alice).unwrap();
    assert_eq!(directory.find::<User>(NOW, "alice").unwrap(), Some(alice.clone()));
    assert!(matches!(directory.add(NOW, &alice), Err(DirectoryError::Exists { kind: Kind::User, .. })));

    directory.change::<User>(NOW, "alice", |user| user.enabled = false).unwrap();
    assert!(!directory.find::<User>(NOW, "alice").unwrap().unwrap().enabled);
    directory.replace(NOW, &alice).unwrap();
    assert!(directory.find::<User>(NOW, "alice").unwrap().unwrap().enabled);

    directory.remove::<User>(NOW, "alice").unwrap();
    assert_eq!(directory.find::<User>(NOW, "alice").unwrap(), None);
    assert!(matches!(directory.remove::<User>(NOW, "alice"), Err(DirectoryError::Missing { .. })));
    assert!(matches!(directory.replace(NOW, &alice), Err(DirectoryError::Missing { .. })));
    assert!(matches!(directory.change::<User>(NOW, "alice", |_| ()), Err(DirectoryError::Missing { .. })));
}

#[test]
fn a_name_that_cannot_be_used_is_refused() {
    let (_folder, directory) = directory();
    for name in ["", "a/b", "a b", "-a", "ä", &"x".repeat(65)] {
        assert!(matches!(directory.add(NOW, &group(name)), Err(DirectoryError::Name { .. })), "{name}");
    }
    directory.add(NOW, &group("staff")).unwrap();
    let rename = directory.change::<Group>(NOW, "staff", |group| group.name = "other".into());
    assert!(matches!(rename, Err(DirectoryError::Name { .. })));
}

#[test]
fn a_change_that_was_overtaken_is_made_again() {
    let (_folder, directory) = directory();
    directory.add(NOW, &User::new("alice")).unwrap();
    let mut calls = 0;
    let change = |user: &mut User| {
        calls += 1;
        if calls == 1 {
            directory.change::<User>(NOW, "alice", |user| user.phone = true).unwrap();
        }
        user.enabled = false;
    };
    directory.change::<User>(NOW, "alice", change).unwrap();
    let alice = directory.find::<User>(NOW, "alice").unwrap().unwrap();
    assert_eq!((calls, alice.phone, alice.enabled), (2, true, false));
}

#[test]
fn the_draft_of_a_policy_holds_everything_and_where_to_watch_from() {
    let (_folder, directory) = directory();
    let service: Service = Service {
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
    };
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
    directory.add(NOW, &group("staff")).unwrap();
    directory.add(NOW, &service).unwrap();
    directory.add(NOW, &rule).unwrap();
    // More than one page, in few transactions.
    let users: Vec<_> =
        (0..1_500).map(|n| User { groups: vec!["staff".into()], ..User::new(&format!("u{n}")) }).collect();
    for chunk in users.chunks(250) {
        let put = |txn: Txn, user: &User| txn.put(&format!("user/{}", user.name), postcard_record(user));
        directory.store().txn(NOW, &chunk.iter().fold(Txn::default(), put)).unwrap();
    }
    let (draft, revision) = directory.draft(NOW).unwrap();
    assert_eq!((draft.users.len(), draft.groups.len(), draft.services.len(), draft.rules.len()), (1_500, 1, 1, 1));
    let mut watch = directory.store().watch(revision).unwrap();
    let (policy, _) = Policy::build(draft, Bounds::default()).unwrap();
    assert_eq!(policy.service("web").map(|web| &**web), Some(&service));
    directory.remove::<User>(NOW, "u7").unwrap();
    let changes = watch.next(std::time::Duration::ZERO).unwrap();
    assert_eq!(changes.iter().map(|change| Kind::of_key(&change.key)).collect::<Vec<_>>(), [Some((Kind::User, "u7"))]);
    assert_eq!(Kind::of_key("join/0011"), None);
}

/// A record as the directory stores it: version 1, then postcard.
/// The version of records that these tests write by themselves.
const RECORD_VERSION: u8 = 2;

fn postcard_record(user: &User) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(postcard::to_extend(user, vec![RECORD_VERSION]).unwrap())
}

#[test]
fn an_unreadable_record_is_named() {
    let (_folder, directory) = directory();
    let mut longer = postcard_record(&User::new("alice"));
    longer.push(0);
    for bytes in [vec![], vec![1, 1, 2], vec![RECORD_VERSION], vec![RECORD_VERSION, 255, 255], longer.to_vec()] {
        directory.store().txn(NOW, &Txn::default().put("user/alice", Zeroizing::new(bytes))).unwrap();
        let error = directory.find::<User>(NOW, "alice").unwrap_err().to_string();
        assert!(error.contains("\"user/alice\""), "{error}");
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
    assert_eq!(directory.gate_of_certificate(NOW, &[1; 32]).unwrap(), Some(gate));
    assert_eq!(directory.gate_of_certificate(NOW, &[2; 32]).unwrap(), None);
    assert_eq!(directory.open_joins(NOW).unwrap(), 0);
    assert!(matches!(directory.join(NOW, &secret, "ams-2", [2; 32]), Err(JoinError::Secret)));
    assert_eq!(directory.all::<Gate>(NOW).unwrap().len(), 1);
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
