//! TCP and TLS connections of workers. Nothing here blocks.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use rustix::io::Errno;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    client::Resumption,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde::{Deserialize, Serialize};
use sluicegate_sip::message::Transport;
use socket2::{Domain, SockRef, Socket, Type};

/// Bytes that are read from one connection before others get their turn.
const READ_MAX: usize = 16_384;

/// What carries SIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Datagrams.
    #[default]
    Udp,
    /// A TCP connection.
    Tcp,
    /// TLS on one.
    Tls,
}

impl Over {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Udp, Self::Tcp, Self::Tls];

    /// Its name in configuration and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.transport().param()
    }

    /// Whether it has connections.
    #[must_use]
    pub const fn is_stream(self) -> bool {
        self.transport().is_reliable()
    }

    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Udp => Transport::Udp,
            Self::Tcp => Transport::Tcp,
            Self::Tls => Transport::Tls,
        }
    }
}

impl FromStr for Over {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|over| over.name() == text);
        found.ok_or_else(|| format!("{text:?} carries no SIP here; write udp, tcp or tls"))
    }
}

/// How to connect to a front end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connecting {
    /// What carries the messages.
    pub over: Over,
    /// The certificate that the front end has to show over TLS, a file in PEM.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// What to show over TLS, if anything: files in PEM of a certificate and its key.
    #[serde(default)]
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Connecting {
    /// What TLS needs, if it is spoken.
    pub(crate) fn tls(&self) -> io::Result<Option<Arc<ClientConfig>>> {
        match (&self.certificate, self.over) {
            (Some(path), Over::Tls) => believing(path, self.own.as_ref()).map(Some),
            (None, Over::Tls) => {
                Err(io::Error::new(ErrorKind::InvalidInput, "TLS needs the front end's `certificate`"))
            }
            (_, Over::Udp | Over::Tcp) => Ok(None),
        }
    }
}

/// TLS with whoever shows this certificate. Nothing is remembered: each handshake is a whole one.
fn believing(certificate: &Path, own: Option<&(PathBuf, PathBuf)>) -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(certificate).map_err(io::Error::other)?;
    roots.add(certificate).map_err(io::Error::other)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((shown, key)) => {
            let shown = CertificateDer::from_pem_file(shown).map_err(io::Error::other)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
            builder.with_client_auth_cert(vec![shown], key).map_err(io::Error::other)?
        }
    };
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// One connection, from the moment when it was begun.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// What was not given to the system yet.
    unsent: Vec<u8>,
    is_over: bool,
}

impl Stream {
    /// Begins to connect.
    pub(crate) fn open(from: SocketAddr, to: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => return Err(error),
            _ => {}
        }
        let client = |config: &Arc<ClientConfig>| ClientConnection::new(Arc::clone(config), ServerName::from(to.ip()));
        let tls = tls.map(client).transpose().map_err(io::Error::other)?.map(Box::new);
        Ok(Self { socket: socket.into(), tls, unsent: Vec::new(), is_over: false })
    }

    /// Bytes that wait to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Whether the other side has ended it, or it broke.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the handshake of TLS is still to come.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether something waits for the system to take it.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Leaves nothing behind when it is dropped, neither here nor there.
    pub(crate) fn will_reset(&self) {
        let _ = SockRef::from(&self.socket).set_linger(Some(std::time::Duration::ZERO));
    }

    /// Has `bytes` sent behind what waits, once something is sent.
    pub(crate) fn say_later(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
    }

    /// Sends `bytes` behind what waits.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
        self.push();
    }

    /// Sends what waits, as far as it goes.
    pub(crate) fn push(&mut self) {
        if self.is_over {
            return;
        }
        let done = match &mut self.tls {
            None => write_some(&self.socket, &mut self.unsent),
            Some(tls) => push_tls(tls, &self.socket, &mut self.unsent),
        };
        self.is_over = done.is_err();
    }

    /// Reads what has come; `heard` gets it in pieces.
    pub(crate) fn read(&mut self, heard: &mut dyn FnMut(&[u8])) {
        if self.is_over {
            return;
        }
        let mut chunk = [0; READ_MAX];
        let mut socket = &self.socket;
        let done = match &mut self.tls {
            None => socket.read(&mut chunk).inspect(|len| heard(chunk.get(..*len).unwrap_or_default())),
            Some(tls) => tls.read_tls(&mut socket).and_then(|len| {
                tls.process_new_packets().map_err(io::Error::other)?;
                while let Ok(len @ 1..) = tls.reader().read(&mut chunk) {
                    heard(chunk.get(..len).unwrap_or_default());
                }
                Ok(len)
            }),
        };
        self.is_over = match done {
            Ok(len) => len == 0,
            Err(error) => !is_for_later(&error),
        };
        // A handshake goes on by itself.
        if self.tls.is_some() {
            self.push();
        }
    }
}

fn write_some(mut socket: &TcpStream, unsent: &mut Vec<u8>) -> io::Result<()> {
    while !unsent.is_empty() {
        match socket.write(unsent) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => drop(unsent.drain(..len)),
            Err(error) if is_for_later(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn push_tls(tls: &mut ClientConnection, mut socket: &TcpStream, unsent: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let taken = if unsent.is_empty() { 0 } else { tls.writer().write(unsent)? };
        unsent.drain(..taken);
        if !tls.wants_write() {
            return Ok(());
        }
        match tls.write_tls(&mut socket) {
            Ok(_) => {}
            Err(error) if is_for_later(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Whether the connection may have or take more at another time, or does not stand yet.
fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, time::Duration};

    use super::*;

    #[test]
    fn what_carries_sip_is_named_as_in_the_configuration() {
        for over in Over::ALL {
            assert_eq!(over.name().parse(), Ok(over));
        }
        assert!("sctp".parse::<Over>().unwrap_err().contains("udp, tcp or tls"));
        assert!(!Over::Udp.is_stream() && Over::Tls.is_stream());
    }

    #[test]
    fn a_connection_sends_what_it_was_given_before_it_stood_and_notices_its_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut stream = Stream::open("127.0.0.1:0".parse().unwrap(), to, None).unwrap();
        stream.send(b"early ");
        let (mut peer, _) = listener.accept().unwrap();
        stream.send(b"and late");
        let mut heard = [0; 14];
        peer.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"early and late");
        peer.write_all(b"answer").unwrap();
        drop(peer);
        let mut answer = Vec::new();
        for _ in 0..1_000 {
            stream.read(&mut |bytes| answer.extend_from_slice(bytes));
            if stream.is_over() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((answer.as_slice(), stream.is_over()), (&b"answer"[..], true));
    }
}
