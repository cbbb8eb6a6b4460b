//! Whose certificates are believed: those that the agent was given by their hash, and those that somebody signed whom it was
//! given. Nobody else's: without either there is no TLS.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use hex::FromHex as _;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use sha2::{Digest as _, Sha256};

/// Certificates that an agent can be given.
const CERTIFICATES_MAX: usize = 64;
/// Longest file of certificates, in bytes.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Why a certificate that was given cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustedError {
    /// None, or too many.
    #[error("give 1 to {CERTIFICATES_MAX} certificates")]
    Number,
    /// No hash.
    #[error(
        "`{0}` is no hash of a certificate: `sha256:` and 64 hexadecimal digits, as `openssl x509 -noout -fingerprint -sha256` prints them"
    )]
    Hash(String),
    /// The file cannot be read.
    #[error("cannot read certificates from {}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// The file holds none.
    #[error("{} holds no certificates in PEM, or some that cannot be used", .0.display())]
    Content(PathBuf),
}

/// Which certificates are a site's.
#[derive(Debug, Clone)]
pub struct Trust(pub(super) Arc<ClientConfig>);

impl Trust {
    /// Of texts that are each `sha256:` and the hash of a certificate, or a file of certificates (PEM) that sign others. Those
    /// have to be for the address that is dialled, or for one of `names`.
    ///
    /// # Errors
    /// [`TrustedError`]: which one cannot be used.
    pub fn of(texts: &[String], names: &[String]) -> Result<Self, TrustedError> {
        if !(1..=CERTIFICATES_MAX).contains(&texts.len()) {
            return Err(TrustedError::Number);
        }
        let (mut pins, mut roots) = (Vec::new(), RootCertStore::empty());
        for text in texts {
            match text.strip_prefix("sha256:") {
                Some(digits) => {
                    let hash = <[u8; 32]>::from_hex(digits.replace(':', ""));
                    pins.push(hash.map_err(|_| TrustedError::Hash(text.clone()))?);
                }
                None => read(Path::new(text), &mut roots)?,
            }
        }
        let provider = Arc::new(ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let build =
            || WebPkiServerVerifier::builder_with_provider(Arc::new(roots.clone()), Arc::clone(&provider)).build();
        let signed = (!roots.is_empty()).then(build).transpose().map_err(|_| TrustedError::Number)?;
        let names = names.iter().filter_map(|name| ServerName::try_from(name.clone()).ok()).collect();
        let known = Known { pins, signed, names, algorithms };
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|_| TrustedError::Number)?.dangerous();
        let mut config = config.with_custom_certificate_verifier(Arc::new(known)).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }
}

fn read(path: &Path, roots: &mut RootCertStore) -> Result<(), TrustedError> {
    let failed = |why| TrustedError::Read { path: path.to_owned(), why };
    let wrong = || TrustedError::Content(path.to_owned());
    if fs::metadata(path).map_err(failed)?.len() > FILE_LEN_MAX {
        return Err(wrong());
    }
    let text = fs::read(path).map_err(failed)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(|_| wrong())?;
    if found.is_empty() {
        return Err(wrong());
    }
    found.into_iter().try_for_each(|certificate| roots.add(certificate)).map_err(|_| wrong())
}

#[derive(Debug)]
struct Known {
    pins: Vec<[u8; 32]>,
    signed: Option<Arc<WebPkiServerVerifier>>,
    /// Besides the address that is dialled.
    names: Vec<ServerName<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        dialled: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let hash: [u8; 32] = Sha256::digest(certificate).into();
        if self.pins.contains(&hash) {
            return Ok(ServerCertVerified::assertion());
        }
        let Some(signed) = &self.signed else {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        };
        let verify = |name: &ServerName<'_>| signed.verify_server_cert(certificate, between, name, ocsp, now);
        let refused = match verify(dialled) {
            Ok(verified) => return Ok(verified),
            Err(error) => error,
        };
        self.names.iter().find_map(|name| verify(name).ok()).ok_or(refused)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_a_hash_or_a_file_and_there_is_at_least_one() {
        let of = |texts: &[&str]| Trust::of(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), &[]);
        assert!(of(&[&format!("sha256:{}", "AB:".repeat(31) + "AB")]).is_ok());
        assert!(matches!(of(&[]), Err(TrustedError::Number)));
        assert!(matches!(of(&["sha256:12"]), Err(TrustedError::Hash(_))));
        assert!(matches!(of(&["/nowhere"]), Err(TrustedError::Read { .. })));
        assert!(matches!(of(&["/dev/null"]), Err(TrustedError::Content(_))));
    }
}
