//! Certificates of SIP over TLS: ours, and whose we believe.

mod servers;

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    Error, RootCertStore, ServerConfig,
    client::{VerifierBuilderError, WebPkiServerVerifier},
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use serde::Deserialize;
use sluicegate_keys::{self as keys, KeyError};
use zeroize::Zeroize as _;

use self::servers::Clients;
pub(crate) use self::servers::Servers;

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
    /// Who signs the certificates of SIP servers. Without it only those are known that are pinned.
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
    /// Whether each of these has to show a certificate.
    pub(crate) demands: bool,
    /// With SIP servers.
    pub(crate) servers: Arc<Servers>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("servers", &self.servers).finish_non_exhaustive()
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
        let own = CertifiedKey::from_der(chain, key.clone_key(), &provider).map_err(unusable);
        key.zeroize();
        let own = Arc::new(SingleCertAndKey::from(own?));
        let demanded = self.client_ca.as_ref().map(|path| -> Result<Arc<dyn ClientCertVerifier>, _> {
            let roots = Arc::new(roots("client_ca", path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
            verifier.map_err(|error| no_verifier("client_ca", path, &error))
        });
        let demanded = demanded.transpose()?;
        let authorities = self.server_ca.as_ref().map(|path| {
            let roots = Arc::new(roots("server_ca", path)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
            verifier.map_err(|error| no_verifier("server_ca", path, &error))
        });
        let servers = Arc::new(Servers::new(Arc::clone(&provider), Arc::clone(&own), authorities.transpose()?));
        let demands = demanded.is_some();
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        let clients = Clients { demanded, servers: Arc::clone(&servers) };
        let mut server = builder.with_client_cert_verifier(Arc::new(clients)).with_cert_resolver(own);
        // A session that is taken up again would not be asked for its certificate, and would have to be remembered.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Tls { server: Arc::new(server), demands, servers })
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

fn no_verifier(field: &'static str, path: &Path, error: &VerifierBuilderError) -> TlsFileError {
    TlsFileError::Unusable { field, path: path.to_owned(), why: error.to_string() }
}
