//! Certificates of SIP over TLS: ours, and whose we believe.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, Error, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier},
};
use serde::Deserialize;
use sluicegate_keys::{self as keys, KeyError};
use zeroize::Zeroize as _;

/// Longest file of certificates, in bytes. The list of all that browsers believe has a fourth of it.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Where the certificates of SIP over TLS lie, all of them PEM. They are read at the start.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// This frontend's certificate, and those between it and one that clients believe.
    pub certificate: PathBuf,
    /// Its key, mode 0600.
    pub key: PathBuf,
    /// Who signs the certificates of clients. With it every client has to show one.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
    /// Who signs the certificates of the SIP servers that this frontend dials. Without it none is dialled over TLS.
    #[serde(default)]
    pub server_ca: Option<PathBuf>,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFileError {
    /// A file of certificates cannot be read.
    #[error("tls: cannot read {}, the `{field}`: {source}", path.display())]
    Read {
        /// Which setting names it.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds no certificates, or something besides that is none.
    #[error("tls: {} holds no certificates in PEM; `{field}` needs some between BEGIN CERTIFICATE and END CERTIFICATE", path.display())]
    NoCertificate {
        /// Which setting names it.
        field: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The file with the key cannot be used.
    #[error("tls: {0}")]
    Key(#[from] KeyError),
    /// The file with the key holds none.
    #[error("tls: {} holds no private key in PEM that can be used without a password", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// Key and certificate are of two pairs.
    #[error("tls: the key in {} is not that of the first certificate in {}; was only one of the two renewed?", key.display(), certificate.display())]
    OfTwoPairs {
        /// The file with the key.
        key: PathBuf,
        /// The file with the certificate.
        certificate: PathBuf,
    },
    /// A certificate cannot be used.
    #[error("tls: the `{field}` in {} cannot be used: {why}", path.display())]
    Unusable {
        /// Which setting names it.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// TLS as this frontend speaks it.
pub(crate) struct Tls {
    /// With those that connect.
    pub(crate) server: Arc<ServerConfig>,
    /// With those that it dials, if it believes anybody's certificates.
    pub(crate) client: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("dials", &self.client.is_some()).finish_non_exhaustive()
    }
}

impl TlsFiles {
    /// Whether all of them can be used.
    ///
    /// # Errors
    /// [`TlsFileError`]: which one cannot, and why.
    pub fn check(&self) -> Result<(), TlsFileError> {
        self.load().map(drop)
    }

    pub(crate) fn load(&self) -> Result<Tls, TlsFileError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates("certificate", &self.certificate)?;
        let mut key = self.read_key()?;
        let unusable = |error| self.unusable(&error);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(roots("client_ca", path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| no_verifier(path, &error))?)
            }
        };
        let mut server = builder.with_single_cert(chain.clone(), key.clone_key()).map_err(unusable)?;
        // A session that is taken up again would not be asked for its certificate, and would have to be remembered.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let client = self.server_ca.as_ref().map(|path| self.client(provider, path, (chain, key.clone_key())));
        let client = client.transpose();
        key.zeroize();
        let client = client?;
        Ok(Tls { server: Arc::new(server), client: client.map(Arc::new) })
    }

    fn client(
        &self,
        provider: Arc<CryptoProvider>,
        server_ca: &Path,
        (chain, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
    ) -> Result<ClientConfig, TlsFileError> {
        let unusable = |error| self.unusable(&error);
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = builder.with_root_certificates(roots("server_ca", server_ca)?);
        let mut client = builder.with_client_auth_cert(chain, key).map_err(unusable)?;
        client.resumption = Resumption::disabled();
        Ok(client)
    }

    fn read_key(&self) -> Result<PrivateKeyDer<'static>, TlsFileError> {
        let content = keys::read(&self.key)?;
        PrivateKeyDer::from_pem_slice(&content).map_err(|_| TlsFileError::NoKey { path: self.key.clone() })
    }

    fn unusable(&self, error: &Error) -> TlsFileError {
        match error {
            Error::InconsistentKeys(_) => {
                TlsFileError::OfTwoPairs { key: self.key.clone(), certificate: self.certificate.clone() }
            }
            other => {
                TlsFileError::Unusable { field: "certificate", path: self.certificate.clone(), why: other.to_string() }
            }
        }
    }
}

/// The certificates in a file, in their order.
fn certificates(field: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let read = |source| TlsFileError::Read { field, path: path.to_owned(), source };
    let len = fs::metadata(path).map_err(read)?.len();
    if len > FILE_LEN_MAX {
        let why = format!("it has {len} bytes, and certificates at most {FILE_LEN_MAX}");
        return Err(TlsFileError::Unusable { field, path: path.to_owned(), why });
    }
    let text = fs::read(path).map_err(read)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| TlsFileError::NoCertificate { field, path: path.to_owned() })
}

fn roots(field: &'static str, path: &Path) -> Result<RootCertStore, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(field, path)? {
        let unusable = |error: Error| TlsFileError::Unusable { field, path: path.to_owned(), why: error.to_string() };
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

fn no_verifier(path: &Path, error: &VerifierBuilderError) -> TlsFileError {
    TlsFileError::Unusable { field: "client_ca", path: path.to_owned(), why: error.to_string() }
}
