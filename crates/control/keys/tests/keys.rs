//! Secret files are made once, for their owner alone, and refused when others can read them.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, thread};

use sluicegate_keys::{self as keys, KeyError};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_secret_is_made_once_and_read_ever_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuer.key");
    let secret = keys::load_or_create_seed(&path).unwrap();
    assert_eq!((fs::read(&path).unwrap(), mode(&path)), (secret.to_vec(), 0o600));
    assert_ne!(*secret, [0; 32]);
    assert_eq!(keys::load_or_create_seed(&path).unwrap(), secret);
    let made_anew = || -> Result<_, KeyError> { panic!("there is one") };
    assert_eq!(keys::read_or_create(&path, made_anew).unwrap()[..], secret[..]);
    assert_ne!(keys::load_or_create_seed(&folder.path().join("other.key")).unwrap(), secret);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no unfinished file is left behind");
}

#[test]
fn all_who_come_at_once_get_the_same_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuer.key");
    let secrets: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| keys::load_or_create_seed(&path).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(secrets.iter().all(|secret| *secret == secrets[0]));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_others_can_read_is_refused_with_the_command_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuer.key");
    keys::create(&path, &[1; 32]).unwrap();
    for bits in [0o640, 0o604, 0o620, 0o644] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        let error = keys::load_or_create_seed(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("mode {bits:04o}")) && error.contains("chmod 600"), "{error}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    keys::load_or_create_seed(&path).unwrap();
}

#[test]
fn an_existing_secret_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuer.key");
    keys::create(&path, &[1; 31]).unwrap();
    assert!(matches!(keys::create(&path, &[2; 32]), Err(KeyError::Create { .. })));
    assert!(matches!(keys::load_or_create_seed(&path), Err(KeyError::Length { found: 31, expected: 32, .. })));
    assert_eq!(*keys::read(&path).unwrap(), vec![1; 31]);
}

#[test]
fn what_is_no_secret_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(keys::read(folder.path()), Err(KeyError::NotAFile { .. } | KeyError::Read { .. })));
    assert!(matches!(keys::read(&folder.path().join("none")), Err(KeyError::Read { .. })));
    assert!(matches!(keys::load_or_create_seed(&folder.path().join("no/such/key")), Err(KeyError::Create { .. })));
    let path = folder.path().join("long");
    keys::create(&path, &vec![b'x'; keys::SECRET_LEN_MAX + 1]).unwrap();
    assert!(matches!(keys::read(&path), Err(KeyError::TooLong { .. })));
}

#[test]
fn a_password_is_the_first_line() {
    let folder = tempfile::tempdir().unwrap();
    for (index, (content, password)) in
        [("correct horse\n", "correct horse"), ("pass\r\nword", "pass"), (" kept ", " kept "), ("", "")]
            .iter()
            .enumerate()
    {
        let path = folder.path().join(index.to_string());
        keys::create(&path, content.as_bytes()).unwrap();
        assert_eq!(**keys::read_password(&path).unwrap(), **password);
        assert_eq!(**keys::read_password_from(content.as_bytes(), Path::new("fd 3")).unwrap(), **password);
    }
    assert!(matches!(keys::read_password_from(&[0xFF, 0xFE][..], Path::new("fd 3")), Err(KeyError::NotText { .. })));
}

#[test]
fn a_directory_for_secrets_is_made_for_its_owner_and_refused_when_others_can_write_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("var/lib/sluicegate");
    keys::private_directory(&path).unwrap();
    assert_eq!(mode(&path), 0o700);
    keys::private_directory(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(keys::private_directory(&path).unwrap_err().to_string().contains("chmod 700"));
}
