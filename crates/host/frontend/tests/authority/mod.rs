//! Who signs certificates for tests, and the files that they are in.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tempfile::TempDir;

pub(crate) struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let authority = Self { dir: TempDir::new().unwrap(), issuer: Issuer::new(params, key), certificate };
        authority.write("ca.pem", &authority.certificate.pem());
        authority
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A file for its owner alone.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// A certificate for this address, and its key.
    pub(crate) fn sign(&self, name: &str, address: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![address.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let certificate = self.write(&format!("{name}.pem"), &certificate.pem());
        (certificate, self.write(&format!("{name}.key"), &key.serialize_pem()))
    }

    /// A server with a certificate for this name, which asks for one of this authority.
    pub(crate) fn server(&self, name: &str) -> Arc<ServerConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
        let (certificate, key) = self.sign("server", name);
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_client_cert_verifier(clients.unwrap());
        Arc::new(builder.with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap())
    }

    /// The certificate of the authority itself.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A client that believes this authority, and shows a certificate of `shown`, if it is to show one.
    pub(crate) fn client(&self, shown: Option<&Self>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let Some(shown) = shown else { return Arc::new(builder.with_no_client_auth()) };
        let (certificate, key) = shown.sign("client", "client.example.net");
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        Arc::new(builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap())
    }
}
