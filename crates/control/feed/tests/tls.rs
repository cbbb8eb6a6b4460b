//! Two ends of a feed recognise each other by pinned certificates and prove that they hold the keys.

use std::{fmt, fs, os::unix::fs::PermissionsExt, sync::Arc};

use rustls::{ClientConnection, Error, ProtocolVersion, ServerConnection, pki_types::ServerName};
use sluicegate_feed::tls::{Admission, Identity, Peer, SERVER_NAME, TlsError, client_config, server_config};

struct Only(Vec<[u8; 32]>);

impl fmt::Debug for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Only")
    }
}

impl Admission for Only {
    fn admits(&self, peer: &Peer) -> bool {
        self.0.contains(&peer.cert_hash)
    }
}

fn ends(
    gate: &Identity,
    pinned: [u8; 32],
    frontend: &Identity,
    known: Vec<[u8; 32]>,
) -> (ClientConnection, ServerConnection) {
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    let client = ClientConnection::new(client_config(gate, pinned).unwrap(), name).unwrap();
    let server = ServerConnection::new(server_config(frontend, Arc::new(Only(known))).unwrap()).unwrap();
    (client, server)
}

/// Carries bytes both ways until both ends have nothing more to say.
fn shake_hands(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), Error> {
    for _ in 0..10 {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets()?;
        wire.clear();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(())
}

#[test]
fn two_ends_that_know_each_other_talk() {
    let (gate, frontend) = (Identity::generate("ams-1").unwrap(), Identity::generate("frontend").unwrap());
    let (mut client, mut server) = ends(&gate, frontend.fingerprint(), &frontend, vec![gate.fingerprint()]);
    shake_hands(&mut client, &mut server).unwrap();
    assert_eq!(server.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(Peer::of(server.peer_certificates()), Some(Peer { cert_hash: gate.fingerprint() }));
    assert_eq!(Peer::of(client.peer_certificates()), Some(Peer { cert_hash: frontend.fingerprint() }));
    assert_eq!(Peer::of(None), None);
}

#[test]
fn a_gate_does_not_talk_to_another_frontend() {
    let (gate, frontend) = (Identity::generate("ams-1").unwrap(), Identity::generate("frontend").unwrap());
    let impostor = Identity::generate("frontend").unwrap();
    let (mut client, mut server) = ends(&gate, frontend.fingerprint(), &impostor, vec![gate.fingerprint()]);
    assert!(matches!(shake_hands(&mut client, &mut server), Err(Error::InvalidCertificate(_))));
}

#[test]
fn a_frontend_does_not_talk_to_a_gate_that_is_not_admitted() {
    let (gate, frontend) = (Identity::generate("ams-1").unwrap(), Identity::generate("frontend").unwrap());
    let (mut client, mut server) = ends(&gate, frontend.fingerprint(), &frontend, vec![]);
    assert!(matches!(shake_hands(&mut client, &mut server), Err(Error::InvalidCertificate(_))));
}

#[test]
fn a_copied_certificate_without_its_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pem = |name: &str| {
        let path = folder.path().join(name);
        Identity::load_or_create(&path, name).unwrap();
        fs::read_to_string(&path).unwrap()
    };
    let (theirs, own) = (pem("frontend"), pem("impostor"));
    let section = |text: &str, label: &str| {
        let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----\n"));
        text[text.find(&begin).unwrap()..text.find(&end).unwrap() + end.len()].to_owned()
    };
    let mixed = section(&theirs, "CERTIFICATE") + &section(&own, "PRIVATE KEY");
    let path = folder.path().join("mixed");
    fs::write(&path, mixed).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let impostor = Identity::load_or_create(&path, "mixed").unwrap();
    assert_eq!(
        impostor.fingerprint(),
        Identity::load_or_create(&folder.path().join("frontend"), "").unwrap().fingerprint()
    );
    // rustls itself refuses to use a certificate with another's key.
    assert!(matches!(server_config(&impostor, Arc::new(Only(vec![]))), Err(TlsError::Config(_))));
    assert!(matches!(client_config(&impostor, [0; 32]), Err(TlsError::Config(_))));
}

#[test]
fn an_identity_is_made_once_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("feed.pem");
    let first = Identity::load_or_create(&path, "ams-1").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let second = Identity::load_or_create(&path, "ams-1").unwrap();
    assert_eq!(first.fingerprint(), second.fingerprint());
    let (mut client, mut server) = ends(&second, first.fingerprint(), &first, vec![first.fingerprint()]);
    shake_hands(&mut client, &mut server).unwrap();

    fs::write(&path, "no PEM").unwrap();
    assert!(matches!(Identity::load_or_create(&path, "ams-1"), Err(TlsError::Content(_))));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(Identity::load_or_create(&path, "ams-1"), Err(TlsError::File(_))));
}

#[test]
fn debug_output_holds_the_fingerprint_only() {
    let identity = Identity::generate("ams-1").unwrap();
    let hex: String = identity.fingerprint().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(format!("{identity:?}"), format!("Identity {hex}"));
}
