//! The store: transactions, bounds, and what it says about files that it cannot use.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, thread};

use sluicegate_store::{ENTRIES_MAX, Expect, KEY_LEN_MAX, OPS_MAX, Store, StoreError, Txn, VALUE_LEN_MAX};
use tempfile::TempDir;
use zeroize::Zeroizing;

fn value(text: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(text.as_bytes().to_vec())
}

fn put(key: &str, text: &str) -> Txn {
    Txn::default().put(key, value(text))
}

fn open(directory: &TempDir, entries_max: u64) -> Store {
    Store::open(&directory.path().join("store"), entries_max).unwrap()
}

fn store() -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, ENTRIES_MAX);
    (directory, store)
}

fn text(store: &Store, key: &str) -> Option<String> {
    store.get(key).unwrap().map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
}

#[test]
fn what_was_written_is_read_back_also_after_reopening() {
    let (directory, store) = store();
    assert_eq!(store.txn(&put("user/alice", "1")).unwrap(), 1);
    assert_eq!(store.txn(&put("user/bob", "2").delete("user/alice")).unwrap(), 2);
    drop(store);
    let store = open(&directory, ENTRIES_MAX);
    assert_eq!((text(&store, "user/alice"), text(&store, "user/bob")), (None, Some("2".into())));
    assert_eq!((store.revision().unwrap(), store.get("user/bob").unwrap().unwrap().revision), (2, 2));
}

#[test]
fn a_transaction_whose_condition_fails_changes_nothing() {
    let (_directory, store) = store();
    store.txn(&put("a", "1")).unwrap();
    for (key, expect) in [("a", Expect::Absent), ("a", Expect::At(7)), ("b", Expect::Present), ("b", Expect::At(1))] {
        let txn = put("c", "x").delete("a").when("a", Expect::Present).when(key, expect);
        assert!(matches!(store.txn(&txn), Err(StoreError::Conflict { key: named }) if named == key));
    }
    assert_eq!((text(&store, "a"), text(&store, "c")), (Some("1".into()), None));
    assert_eq!(store.revision().unwrap(), 1);
    store.txn(&put("a", "2").when("a", Expect::At(1)).when("b", Expect::Absent)).unwrap();
    assert_eq!(text(&store, "a"), Some("2".into()));
}

#[test]
fn of_two_who_read_the_same_only_one_writes() {
    let (_directory, store) = store();
    store.txn(&put("counter", "0")).unwrap();
    let wins = thread::scope(|scope| {
        let race = || store.txn(&put("counter", "1").when("counter", Expect::At(1))).is_ok();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(race)).collect();
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
    });
    assert_eq!(wins, 1);
}

#[test]
fn a_range_holds_one_prefix_in_order_and_in_pages() {
    let (_directory, store) = store();
    for key in ["group/x", "user/b", "user/a", "user/c", "userx", "user0"] {
        store.txn(&put(key, key)).unwrap();
    }
    let page = |after: &str, limit| -> Vec<String> {
        store.range("user/", after, limit).unwrap().into_iter().map(|entry| entry.key).collect()
    };
    assert_eq!(page("", 10), ["user/a", "user/b", "user/c"]);
    assert_eq!(page("", 2), ["user/a", "user/b"]);
    assert_eq!(page("user/b", 2), ["user/c"]);
    assert!(page("user/c", 2).is_empty() && page("", 0).is_empty());
}

#[test]
fn a_full_store_refuses_new_records_and_still_changes_old_ones() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, 2);
    store.txn(&put("a", "1").put("b", value("1"))).unwrap();
    assert!(matches!(store.txn(&put("c", "1")), Err(StoreError::Full { max: 2 })));
    store.txn(&put("a", "2")).unwrap();
    store.txn(&Txn::default().delete("a").put("c", value("1"))).unwrap();
}

#[test]
fn what_exceeds_a_bound_is_refused() {
    let (_directory, store) = store();
    let long_key = "k".repeat(KEY_LEN_MAX + 1);
    let long_value = "v".repeat(VALUE_LEN_MAX + 1);
    let many = (0..=OPS_MAX).fold(Txn::default(), |txn, n| txn.delete(&n.to_string()));
    for txn in [put(&long_key, ""), put("k", &long_value), many] {
        assert!(matches!(store.txn(&txn), Err(StoreError::TooLarge { .. })));
    }
    store.txn(&put(&long_key[1..], &long_value[1..])).unwrap();
}

#[test]
fn the_file_is_for_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    drop(Store::open(&path, ENTRIES_MAX).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let error = Store::open(&path, ENTRIES_MAX).err().unwrap().to_string();
    assert!(error.contains("mode 0640") && error.contains("chmod 600"), "{error}");
}

#[test]
fn a_file_in_use_is_refused_with_what_to_do() {
    let (directory, _store) = store();
    let error = Store::open(&directory.path().join("store"), ENTRIES_MAX).err().unwrap();
    assert!(matches!(error, StoreError::InUse { .. }) && error.to_string().contains("control socket"), "{error}");
}

#[test]
fn a_missing_directory_is_named() {
    let error = Store::open(Path::new("/nonexistent/store"), ENTRIES_MAX).err().unwrap();
    assert!(matches!(error, StoreError::Open { .. }) && error.to_string().contains("/nonexistent/store"), "{error}");
}

#[test]
fn a_damaged_file_is_refused_and_left_as_it_is() {
    let (directory, store) = store();
    for n in 0..100 {
        store.txn(&put(&format!("user/{n}"), &"x".repeat(1_000))).unwrap();
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
        let error = Store::open(&path, ENTRIES_MAX).err();
        let error = error.unwrap_or_else(|| panic!("damage {index} went unnoticed"));
        assert!(matches!(error, StoreError::Corrupt { .. }), "{index}: {error}");
        assert!(error.to_string().contains("restore a copy"), "{error}");
        assert_eq!(&fs::read(&path).unwrap(), damaged, "{index}");
    }
}
