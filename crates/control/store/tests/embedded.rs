//! The embedded store: transactions, leases, watches, bounds, and what it says about files that it cannot use.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, thread, time::Duration};

use sluicegate_store::{
    Change, ChangeKind, Embedded, EmbeddedOptions, Expect, KEY_LEN_MAX, LEASES_MAX, OPS_MAX, Store, StoreError, Txn,
    VALUE_LEN_MAX,
};
use sluicegate_wire::UnixTime;
use tempfile::TempDir;
use zeroize::Zeroizing;

const NOW: UnixTime = UnixTime(1_000);

fn value(text: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(text.as_bytes().to_vec())
}

fn put(key: &str, text: &str) -> Txn {
    Txn::default().put(key, value(text))
}

fn open(directory: &TempDir, options: EmbeddedOptions) -> Embedded {
    Embedded::open(&directory.path().join("store"), options).unwrap()
}

fn store() -> (TempDir, Embedded) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, EmbeddedOptions::default());
    (directory, store)
}

fn text(store: &Embedded, now: UnixTime, key: &str) -> Option<String> {
    store.get(now, key).unwrap().map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
}

fn keys(changes: &[Change]) -> Vec<(u64, &str, ChangeKind)> {
    changes.iter().map(|change| (change.revision, change.key.as_str(), change.kind)).collect()
}

#[test]
fn what_was_written_is_read_back_also_after_reopening() {
    let (directory, store) = store();
    assert_eq!(store.txn(NOW, &put("user/alice", "1")).unwrap(), 1);
    assert_eq!(store.txn(NOW, &put("user/bob", "2").delete("user/alice")).unwrap(), 2);
    drop(store);
    let store = open(&directory, EmbeddedOptions::default());
    assert_eq!((text(&store, NOW, "user/alice"), text(&store, NOW, "user/bob")), (None, Some("2".into())));
    assert_eq!((store.revision().unwrap(), store.get(NOW, "user/bob").unwrap().unwrap().revision), (2, 2));
}

#[test]
fn a_transaction_whose_condition_fails_changes_nothing() {
    let (_directory, store) = store();
    store.txn(NOW, &put("a", "1")).unwrap();
    for (key, expect) in [("a", Expect::Absent), ("a", Expect::At(7)), ("b", Expect::Present), ("b", Expect::At(1))] {
        let txn = put("c", "x").delete("a").when("a", Expect::Present).when(key, expect);
        assert!(matches!(store.txn(NOW, &txn), Err(StoreError::Conflict { key: named }) if named == key));
    }
    assert_eq!((text(&store, NOW, "a"), text(&store, NOW, "c")), (Some("1".into()), None));
    assert_eq!(store.revision().unwrap(), 1);
    store.txn(NOW, &put("a", "2").when("a", Expect::At(1)).when("b", Expect::Absent)).unwrap();
    assert_eq!(text(&store, NOW, "a"), Some("2".into()));
}

#[test]
fn of_two_who_read_the_same_only_one_writes() {
    let (_directory, store) = store();
    store.txn(NOW, &put("counter", "0")).unwrap();
    let wins = thread::scope(|scope| {
        let race = || store.txn(NOW, &put("counter", "1").when("counter", Expect::At(1))).is_ok();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(race)).collect();
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
    });
    assert_eq!(wins, 1);
}

#[test]
fn a_range_holds_one_prefix_in_order_and_in_pages() {
    let (_directory, store) = store();
    for key in ["group/x", "user/b", "user/a", "user/c", "userx", "user0"] {
        store.txn(NOW, &put(key, key)).unwrap();
    }
    let page = |after: &str, limit| -> Vec<String> {
        store.range(NOW, "user/", after, limit).unwrap().into_iter().map(|entry| entry.key).collect()
    };
    assert_eq!(page("", 10), ["user/a", "user/b", "user/c"]);
    assert_eq!(page("", 2), ["user/a", "user/b"]);
    assert_eq!(page("user/b", 2), ["user/c"]);
    assert!(page("user/c", 2).is_empty() && page("", 0).is_empty());
}

#[test]
fn records_end_with_their_lease() {
    let (_directory, store) = store();
    let lease = store.lease(NOW, 60).unwrap();
    store.txn(NOW, &Txn::default().put_leased("a", value("1"), lease).put_leased("b", value("1"), lease)).unwrap();
    store.txn(NOW, &put("b", "for good")).unwrap();
    store.renew(NOW.plus_secs(50), lease, 60).unwrap();
    assert!(text(&store, NOW.plus_secs(109), "a").is_some());

    let after = NOW.plus_secs(110);
    assert_eq!((text(&store, after, "a"), store.range(after, "a", "", 9).unwrap().len()), (None, 0));
    assert_eq!(text(&store, after, "b"), Some("for good".into()));
    assert!(matches!(store.renew(after, lease, 60), Err(StoreError::LeaseEnded)));
    // The next transaction finds the record absent and tells those who watch.
    let mut watch = store.watch(store.revision().unwrap()).unwrap();
    store.txn(after, &put("c", "1").when("a", Expect::Absent)).unwrap();
    let changes = watch.next(Duration::ZERO).unwrap();
    assert_eq!(keys(&changes), [(3, "a", ChangeKind::Deleted), (3, "c", ChangeKind::Put)]);
    let under_ended = Txn::default().put_leased("d", value("1"), lease);
    assert!(matches!(store.txn(after, &under_ended), Err(StoreError::LeaseEnded)));
}

#[test]
fn there_are_as_many_leases_as_may_be_and_ended_ones_make_room() {
    let (_directory, store) = store();
    for _ in 0..LEASES_MAX {
        store.lease(NOW, 60).unwrap();
    }
    assert!(matches!(store.lease(NOW, 60), Err(StoreError::LeasesFull)));
    assert_eq!(store.gauges().unwrap()[2], ("store_leases", LEASES_MAX, LEASES_MAX));
    store.lease(NOW.plus_secs(60), 60).unwrap();
    assert_eq!(store.gauges().unwrap()[2].1, 1);
}

#[test]
fn a_watch_sees_every_change_once_and_in_order() {
    let (directory, store) = store();
    store.txn(NOW, &put("a", "1")).unwrap();
    let mut watch = store.watch(0).unwrap();
    assert_eq!(keys(&watch.next(Duration::ZERO).unwrap()), [(1, "a", ChangeKind::Put)]);
    assert!(watch.next(Duration::ZERO).unwrap().is_empty());
    store.txn(NOW, &put("b", "1").delete("a").delete("never")).unwrap();
    store.txn(NOW, &Txn::default()).unwrap();
    let expected = [(2, "b", ChangeKind::Put), (2, "a", ChangeKind::Deleted)];
    assert_eq!(keys(&watch.next(Duration::ZERO).unwrap()), expected);
    drop((watch, store));
    let store = open(&directory, EmbeddedOptions::default());
    assert_eq!(keys(&store.watch(1).unwrap().next(Duration::ZERO).unwrap()), expected);
}

#[test]
fn a_waiting_watch_is_woken_by_the_next_change() {
    let (_directory, store) = store();
    let mut watch = store.watch(0).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || watch.next(Duration::from_secs(600)).unwrap());
        store.txn(NOW, &put("a", "1")).unwrap();
        assert_eq!(keys(&waiting.join().unwrap()), [(1, "a", ChangeKind::Put)]);
    });
}

#[test]
fn a_watch_that_is_too_slow_is_told_to_read_anew() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, EmbeddedOptions { log_len_max: 3, ..EmbeddedOptions::default() });
    let mut slow = store.watch(0).unwrap();
    for _ in 0..5 {
        store.txn(NOW, &put("a", "1")).unwrap();
    }
    assert!(matches!(slow.next(Duration::ZERO), Err(StoreError::Compacted { from: 0 })));
    assert!(matches!(store.watch(1), Err(StoreError::Compacted { from: 1 })));
    assert_eq!(store.watch(2).unwrap().next(Duration::ZERO).unwrap().len(), 3);
    assert_eq!(store.gauges().unwrap()[1], ("store_log", 3, 3));
}

#[test]
fn a_watch_returns_long_histories_in_whole_transactions() {
    let (_directory, store) = store();
    for round in 0..20 {
        let txn = (0..100).fold(Txn::default(), |txn, n| txn.put(&format!("{round}/{n}"), value("")));
        store.txn(NOW, &txn).unwrap();
    }
    let mut watch = store.watch(0).unwrap();
    let mut seen = 0;
    loop {
        let changes = watch.next(Duration::ZERO).unwrap();
        assert_eq!(changes.len() % 100, 0);
        seen += changes.len();
        if changes.is_empty() {
            break;
        }
    }
    assert_eq!(seen, 2_000);
}

#[test]
fn a_full_store_refuses_new_records_and_still_changes_old_ones() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, EmbeddedOptions { entries_max: 2, ..EmbeddedOptions::default() });
    store.txn(NOW, &put("a", "1").put("b", value("1"))).unwrap();
    assert!(matches!(store.txn(NOW, &put("c", "1")), Err(StoreError::Full { max: 2 })));
    assert_eq!(store.gauges().unwrap()[0], ("store_entries", 2, 2));
    store.txn(NOW, &put("a", "2")).unwrap();
    store.txn(NOW, &Txn::default().delete("a").put("c", value("1"))).unwrap();
}

#[test]
fn what_exceeds_a_bound_is_refused() {
    let (_directory, store) = store();
    let long_key = "k".repeat(KEY_LEN_MAX + 1);
    let long_value = "v".repeat(VALUE_LEN_MAX + 1);
    let many = (0..=OPS_MAX).fold(Txn::default(), |txn, n| txn.delete(&n.to_string()));
    for txn in [put(&long_key, ""), put("k", &long_value), many] {
        assert!(matches!(store.txn(NOW, &txn), Err(StoreError::TooLarge { .. })));
    }
    store.txn(NOW, &put(&long_key[1..], &long_value[1..])).unwrap();
}

#[test]
fn the_file_is_for_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    drop(Embedded::open(&path, EmbeddedOptions::default()).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let error = Embedded::open(&path, EmbeddedOptions::default()).err().unwrap().to_string();
    assert!(error.contains("mode 0640") && error.contains("chmod 600"), "{error}");
}

#[test]
fn a_file_in_use_is_refused_with_what_to_do() {
    let (directory, _store) = store();
    let error = Embedded::open(&directory.path().join("store"), EmbeddedOptions::default()).err().unwrap();
    assert!(matches!(error, StoreError::InUse { .. }) && error.to_string().contains("control socket"), "{error}");
}

#[test]
fn a_missing_directory_is_named() {
    let error = Embedded::open(Path::new("/nonexistent/store"), EmbeddedOptions::default()).err().unwrap();
    assert!(matches!(error, StoreError::Open { .. }) && error.to_string().contains("/nonexistent/store"), "{error}");
}

#[test]
fn a_damaged_file_is_refused_and_left_as_it_is() {
    let (directory, store) = store();
    for n in 0..100 {
        store.txn(NOW, &put(&format!("user/{n}"), &"x".repeat(1_000))).unwrap();
    }
    drop(store);
    let whole = fs::read(directory.path().join("store")).unwrap();
    let damages = [
        b"this is no store at all".to_vec(),
        vec![0; 8_192],
        whole[..100].to_vec(),
        whole[..whole.len() / 2].to_vec(),
        [&[0xFF; 16][..], &whole[16..]].concat(),
    ];
    for (index, damaged) in damages.iter().enumerate() {
        let path = directory.path().join(format!("damaged-{index}"));
        fs::write(&path, damaged).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = Embedded::open(&path, EmbeddedOptions::default()).err();
        let error = error.unwrap_or_else(|| panic!("damage {index} went unnoticed"));
        assert!(matches!(error, StoreError::Corrupt { .. }), "{index}: {error}");
        assert!(error.to_string().contains("restore a copy"), "{error}");
        assert_eq!(&fs::read(&path).unwrap(), damaged, "{index}");
    }
}
