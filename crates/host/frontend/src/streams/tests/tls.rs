//! TLS inside: handshakes, certificates, and what is none.

use std::{fs, os::unix::fs::PermissionsExt as _};

use rustls::{ClientConfig, StreamOwned};

use super::*;
use crate::{TlsFileError, TlsFiles};
use authority::Authority;

#[path = "../../../tests/authority/mod.rs"]
mod authority;

fn files(authority: &Authority) -> TlsFiles {
    let (certificate, key) = authority.sign("own", "127.0.0.1");
    TlsFiles { certificate, key, client_ca: None, server_ca: None }
}

/// A thread that shows a certificate of this authority.
fn thread_of(authority: &Authority, change: impl FnOnce(&mut TlsFiles)) -> Thread {
    let mut files = files(authority);
    change(&mut files);
    Thread::with(Connections::default(), Some(Arc::new(files.load().unwrap())))
}

type Peer = StreamOwned<ClientConnection, TcpStream>;

fn connect(thread: &Thread, config: Arc<ClientConfig>) -> Peer {
    let tls = ClientConnection::new(config, ServerName::from(thread.address.ip())).unwrap();
    StreamOwned::new(tls, thread.connect())
}

/// Has a peer do something while the thread takes its turns.
fn while_turning<T: Send>(thread: &mut Thread, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(act);
        thread.until("the peer is done", |_| acting.is_finished());
        acting.join().unwrap()
    })
}

#[test]
fn messages_go_both_ways_inside_tls() {
    let authority = Authority::new();
    let mut thread = thread_of(&authority, |_| {});
    let mut peer = connect(&thread, authority.client(None));
    while_turning(&mut thread, || peer.write_all((options(1) + &options(2)).as_bytes()).unwrap());
    thread.hears(2);
    let long = "x".repeat(20_000);
    thread.streams.send(NOW, thread.heard[0].0, long.as_bytes());
    let answer = while_turning(&mut thread, || {
        let mut bytes = vec![0; long.len()];
        peer.read_exact(&mut bytes).unwrap();
        bytes
    });
    assert_eq!(answer, long.as_bytes());
    assert_eq!((thread.counted("opened tls peer"), thread.streams.gauges()[1].used), (1, 1));
}

#[test]
fn who_shows_a_certificate_of_the_right_authority_is_no_stranger_and_others_are_not_heard() {
    let (authority, other) = (Authority::new(), Authority::new());
    let mut thread = thread_of(&authority, |files| files.client_ca = Some(authority.ca()));
    let mut known = connect(&thread, authority.client(Some(&authority)));
    while_turning(&mut thread, || known.write_all(options(1).as_bytes()).unwrap());
    thread.hears(1);
    assert_eq!(thread.streams.gauges().map(|gauge| gauge.used), [1, 0]);
    for config in [authority.client(None), authority.client(Some(&other))] {
        let mut stranger = connect(&thread, config);
        while_turning(&mut thread, || {
            // TLS 1.3: the client learns of it when it reads.
            let _ = stranger.write_all(options(2).as_bytes());
            assert!(stranger.read(&mut [0; 16]).is_err());
        });
    }
    assert_eq!((thread.heard.len(), thread.open(), thread.counted("ended tls")), (1, 1, 2));
}

#[test]
fn what_is_no_tls_is_cut_and_a_handshake_has_its_time() {
    let authority = Authority::new();
    let mut thread = thread_of(&authority, |_| {});
    let mut plain = thread.connect();
    plain.write_all(options(1).as_bytes()).unwrap();
    thread.until("it is cut", |thread| thread.counted("ended tls") == 1);
    let mut silent = thread.connect();
    // The beginning of a ClientHello.
    silent.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).unwrap();
    thread.until("it is taken", |thread| thread.open() == 1);
    thread.pass(Duration::from_secs(11));
    assert!(is_cut(&mut silent));
    assert_eq!((thread.open(), thread.counted("ended silent"), thread.heard.len()), (0, 1, 0));
}

#[test]
fn a_server_is_dialled_over_tls_if_it_shows_a_certificate_for_its_address() {
    let (authority, other) = (Authority::new(), Authority::new());
    let mut server = thread_of(&authority, |_| {});
    let flow = Flow::datagrams(LISTENER, server.address);
    for (ca, reached) in [(&authority, true), (&other, false)] {
        let mut thread = thread_of(&authority, |files| files.server_ca = Some(ca.ca()));
        thread.streams.send(NOW, flow, options(1).as_bytes());
        thread.until("it is over", |thread| {
            server.turn();
            thread.open() == 0 || !server.heard.is_empty()
        });
        assert_eq!(server.heard.len(), usize::from(reached));
        assert_eq!(thread.counted("unsent unreached"), u64::from(!reached));
        server.heard.clear();
    }
    let mut without = thread_of(&authority, |_| {});
    without.streams.send(NOW, flow, options(1).as_bytes());
    assert_eq!((without.counted("unsent unreached"), without.open()), (1, 0), "nobody to believe");
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_is_wrong() {
    let authority = Authority::new();
    let good = files(&authority);
    good.check().unwrap();
    let (_, foreign_key) = authority.sign("foreign", "127.0.0.1");
    let readable = authority.write("readable.key", &fs::read_to_string(&good.key).unwrap());
    fs::set_permissions(&readable, fs::Permissions::from_mode(0o644)).unwrap();
    let (absent, empty) = (authority.dir().join("absent"), authority.write("empty", "nothing\n"));
    let with = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = good.clone();
        change(&mut files);
        files.check().unwrap_err()
    };
    let cases: [(TlsFileError, &str); 8] = [
        (with(&|files| files.certificate.clone_from(&absent)), "the `certificate`: No such file"),
        (with(&|files| files.certificate.clone_from(&empty)), "empty holds no certificates in PEM"),
        (with(&|files| files.key.clone_from(&absent)), "cannot read"),
        (with(&|files| files.key.clone_from(&readable)), "run: chmod 600"),
        (with(&|files| files.key.clone_from(&empty)), "holds no private key in PEM"),
        (with(&|files| files.key.clone_from(&foreign_key)), "was only one of the two renewed?"),
        (with(&|files| files.client_ca = Some(absent.clone())), "the `client_ca`: No such file"),
        (with(&|files| files.server_ca = Some(empty.clone())), "`server_ca` needs some between BEGIN CERTIFICATE"),
    ];
    for (error, text) in cases {
        let error = error.to_string();
        assert!(error.starts_with("tls: ") && error.contains(text), "{error}");
    }
}
