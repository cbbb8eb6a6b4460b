//! TLS inside: handshakes, certificates, and what is none.

use std::{fs, os::unix::fs::PermissionsExt as _};

use rustls::{
    ClientConfig, ClientConnection, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use sluicegate_feed::tls::Peer as Shown;
use sluicegate_policy::{Bounds, Draft, Service, SipCertificate};

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

/// A policy of one SIP server at this port, known by its address or this certificate.
fn policy(port: u16, certificate: Option<&str>) -> Policy {
    let certificate = certificate.map(|text| format!("certificate = {text:?}\n")).unwrap_or_default();
    let text = format!(
        "name = \"pbx\"\nkind = \"sip\"\nmode = \"filter\"\naddress = \"127.0.0.1\"\nports = [\"udp/9\"]\n\
         sip = [\"tls/{port}\"]\n{certificate}"
    );
    let services = vec![toml::from_str::<Service>(&text).unwrap()];
    Policy::build(Draft { services, ..Draft::default() }, Bounds::default()).unwrap().0
}

/// The certificate in this file, as one pins it.
fn pin(file: &std::path::Path) -> String {
    let certificate = CertificateDer::from_pem_file(file).unwrap();
    SipCertificate::Sha256(Shown::of(Some(&[certificate])).unwrap().cert_hash).to_string()
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
    assert_eq!(thread.streams.gauges().map(|gauge| gauge.used), [1, 0, 0]);
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
fn a_server_is_dialled_over_tls_if_it_shows_the_certificate_that_it_is_known_by() {
    let (authority, other) = (Authority::new(), Authority::new());
    let named = authority.sign("server", "pbx.example.net");
    let mut at_address = thread_of(&authority, |_| {});
    let mut with_name = thread_of(&authority, |files| (files.certificate, files.key) = named.clone());
    let (of_server, of_other) = (pin(&named.0), pin(&authority.ca()));
    let cases = [
        (false, Some(&authority), None, true),
        (false, Some(&other), None, false),
        (false, None, None, false),
        (false, Some(&authority), Some("pbx.example.net"), false),
        (true, Some(&authority), Some("pbx.example.net"), true),
        (true, Some(&authority), None, false),
        (true, None, Some(&*of_server), true),
        (true, Some(&authority), Some(&*of_other), false),
    ];
    for (is_named, ca, certificate, reached) in cases {
        let server = if is_named { &mut with_name } else { &mut at_address };
        let flow = Flow::datagrams(LISTENER, server.address);
        let mut thread = thread_of(&authority, |files| files.server_ca = ca.map(Authority::ca));
        thread.streams.know(&policy(server.address.port(), certificate));
        thread.streams.send(NOW, flow, options(1).as_bytes());
        thread.until("it is over", |thread| {
            server.turn();
            thread.open() == 0 || !server.heard.is_empty()
        });
        assert_eq!(server.heard.len(), usize::from(reached), "{certificate:?}");
        assert_eq!(thread.counted("unsent unreached"), u64::from(!reached));
        // What it says over that connection is known to be the server's, and that it is our connection.
        for (back, _) in server.heard.drain(..) {
            server.streams.send(NOW, back, options(2).as_bytes());
            server.streams.flush(NOW);
            thread.hears(1);
            assert!(thread.heard[0].0.connection.unwrap().is_dialled());
            let known = certificate.map_or(SipCertificate::of(server.address.ip()), |text| text.parse().unwrap());
            assert_eq!(thread.proofs[0].certificates, [known]);
        }
    }
    let mut unknown = thread_of(&authority, |files| files.server_ca = Some(authority.ca()));
    unknown.streams.send(NOW, Flow::datagrams(LISTENER, at_address.address), options(1).as_bytes());
    assert_eq!((unknown.counted("unsent unreached"), unknown.open()), (1, 0), "no service is there");
}

#[test]
fn a_server_that_has_to_show_another_certificate_is_dialled_anew() {
    let authority = Authority::new();
    let mut server = thread_of(&authority, |_| {});
    let pinned = pin(&authority.dir().join("own.pem"));
    let (flow, port) = (Flow::datagrams(LISTENER, server.address), server.address.port());
    let mut thread = thread_of(&authority, |files| files.server_ca = Some(authority.ca()));
    for (number, certificate) in [(1, None), (2, None), (3, Some("pbx.example.net")), (4, Some(&*pinned))] {
        thread.streams.know(&policy(port, certificate));
        thread.streams.send(NOW, flow, options(number).as_bytes());
        thread.until("it is over", |thread| {
            server.turn();
            thread.open() == 0 || thread.streams.connections.iter().all(|(_, known)| !known.is_begun())
        });
    }
    thread.until("the last one comes", |_| {
        server.turn();
        server.heard.len() == 3
    });
    assert_eq!(server.heard.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>(), [1, 2, 4].map(options));
    assert_eq!((thread.counted("ended outdated"), thread.counted("opened tls us")), (1, 3));
}

#[test]
fn who_connects_with_a_servers_certificate_from_its_address_is_that_server() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = || authority.client(Some(&authority));
    let name = SipCertificate::Name("client.example.net".into());
    let pinned = pin(&authority.sign("another", "client.example.net").0);
    let cases = [
        (server(), Some("client.example.net"), Some(name)),
        (server(), None, None),
        (authority.client(None), Some("client.example.net"), None),
        (authority.client(Some(&other)), Some("client.example.net"), None),
        (authority.client(Some(&other)), Some(&*pinned), None),
    ];
    for (config, certificate, counts) in cases {
        let mut thread = thread_of(&authority, |files| files.server_ca = Some(authority.ca()));
        thread.streams.know(&policy(5061, certificate));
        let mut peer = connect(&thread, config);
        while_turning(&mut thread, || peer.write_all(options(1).as_bytes()).unwrap());
        thread.hears(1);
        assert_eq!(thread.proofs[0].certificates.first(), counts.as_ref());
        // Who is known by a certificate is no stranger.
        assert_eq!(thread.streams.gauges()[1].used, u64::from(counts.is_none()));
    }
}

#[test]
fn where_each_has_to_show_a_certificate_a_servers_will_do() {
    let (authority, other) = (Authority::new(), Authority::new());
    let mut thread = thread_of(&authority, |files| files.client_ca = Some(authority.ca()));
    let config = authority.client(Some(&other));
    let mut stranger = connect(&thread, Arc::clone(&config));
    while_turning(&mut thread, || {
        let _ = stranger.write_all(options(1).as_bytes());
        assert!(stranger.read(&mut [0; 16]).is_err());
    });
    thread.streams.know(&policy(5061, Some(&pin(&other.dir().join("client.pem")))));
    let mut server = connect(&thread, config);
    while_turning(&mut thread, || server.write_all(options(2).as_bytes()).unwrap());
    thread.hears(1);
    assert_eq!((thread.heard[0].1.clone(), thread.proofs[0].certificates.len()), (options(2), 1));
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
