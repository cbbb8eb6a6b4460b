//! What lies between a socket and the messages on it: nothing, or TLS. Neither blocks, and neither holds more than it says.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::TcpStream,
};

use rustls::{Connection, pki_types::CertificateDer};

/// Bytes that are read from one socket before others get their turn.
pub(super) const READ_BYTES_MAX: usize = 4_096;
/// Bytes that a TLS handshake may take: a client's certificate with those of its issuers is the longest part.
const HANDSHAKE_BYTES_MAX: usize = 32_768;

/// Why nothing more can be read or written.
#[derive(Debug)]
pub(super) enum Failed {
    /// The peer closed its side.
    Closed,
    /// The connection broke.
    Broken,
    /// What came is no TLS that is spoken here, or shows no certificate that counts.
    Tls(rustls::Error),
    /// More waits for the peer than may.
    Unread,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::UnexpectedEof { Self::Closed } else { Self::Broken }
    }
}

/// TCP as it is, or with TLS inside.
#[derive(Debug)]
pub(super) enum Carrier {
    /// What waits to be sent.
    Plain(Vec<u8>),
    /// TLS, how many bytes of its handshake have come, and how many of anything since the last text.
    Tls(Box<Connection>, usize, usize),
}

impl Carrier {
    /// TLS that queues no more than `unsent_bytes_max` bytes.
    pub(super) fn tls(mut connection: Connection, unsent_bytes_max: usize) -> Self {
        connection.set_buffer_limit(Some(unsent_bytes_max));
        Self::Tls(Box::new(connection), 0, 0)
    }

    /// Reads what has come, at most [`READ_BYTES_MAX`] bytes of the socket, into `chunk`, which holds as many; hands the text
    /// in it to `heard`, in pieces, with the certificates that the peer has shown.
    ///
    /// # Errors
    /// [`Failed`]: nothing more will come. What came before was handed over.
    pub(super) fn read(
        &mut self,
        socket: &TcpStream,
        chunk: &mut [u8],
        mut heard: impl FnMut(&[CertificateDer<'_>], &[u8]),
    ) -> Result<(), Failed> {
        match self {
            Self::Plain(_) => match (&mut &*socket).read(chunk) {
                Ok(0) => Err(Failed::Closed),
                Ok(len) => {
                    heard(&[], chunk.get(..len).unwrap_or_default());
                    Ok(())
                }
                Err(error) => again_later(error).map(drop),
            },
            Self::Tls(tls, handshake, silent) => {
                let is_handshaking = tls.is_handshaking();
                let len = match tls.read_tls(&mut &*socket) {
                    Ok(0) => return Err(Failed::Closed),
                    Ok(len) => len,
                    Err(error) => return again_later(error).map(drop),
                };
                *silent += len;
                *handshake += if is_handshaking { len } else { 0 };
                if *handshake > HANDSHAKE_BYTES_MAX {
                    return Err(Failed::Tls(rustls::Error::General("the handshake is too long".into())));
                }
                let state = tls.process_new_packets().map_err(Failed::Tls)?;
                loop {
                    match tls.reader().read(chunk) {
                        Ok(0) | Err(_) => break,
                        Ok(len) => {
                            *silent = 0;
                            let shown = tls.peer_certificates().unwrap_or_default();
                            heard(shown, chunk.get(..len).unwrap_or_default());
                        }
                    }
                }
                if state.peer_has_closed() { Err(Failed::Closed) } else { Ok(()) }
            }
        }
    }

    /// Takes bytes to be sent. What does not fit behind what waits is tried to be sent at once.
    ///
    /// # Errors
    /// [`Failed::Unread`] if the peer reads too slowly for it.
    pub(super) fn queue(&mut self, socket: &TcpStream, bytes: &[u8], unsent_bytes_max: usize) -> Result<(), Failed> {
        match self {
            Self::Plain(waiting) => {
                waiting.extend_from_slice(bytes);
                if waiting.len() > unsent_bytes_max {
                    self.write(socket)?;
                }
                if self.unsent() > unsent_bytes_max { Err(Failed::Unread) } else { Ok(()) }
            }
            Self::Tls(tls, ..) => {
                let taken = tls.writer().write(bytes)?;
                let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) else { return Ok(()) };
                write_tls(tls, socket)?;
                let taken = tls.writer().write(rest)?;
                if taken < rest.len() { Err(Failed::Unread) } else { Ok(()) }
            }
        }
    }

    /// Sends what waits, as far as the socket takes it; whether it took any.
    pub(super) fn write(&mut self, socket: &TcpStream) -> Result<bool, Failed> {
        match self {
            Self::Plain(waiting) => {
                let mut sent = 0;
                while let Some(rest) = waiting.get(sent..).filter(|rest| !rest.is_empty()) {
                    match (&mut &*socket).write(rest) {
                        Ok(len) => sent += len,
                        Err(error) => {
                            again_later(error)?;
                            break;
                        }
                    }
                }
                waiting.drain(..sent);
                if waiting.is_empty() {
                    // A connection that is idle costs no more than it has to.
                    *waiting = Vec::new();
                }
                Ok(sent > 0)
            }
            Self::Tls(tls, ..) => write_tls(tls, socket),
        }
    }

    /// Whether something waits to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(waiting) => !waiting.is_empty(),
            Self::Tls(tls, ..) => tls.wants_write(),
        }
    }

    const fn unsent(&self) -> usize {
        match self {
            Self::Plain(waiting) => waiting.len(),
            Self::Tls(..) => 0,
        }
    }

    /// Bytes that have come and made no text yet, at most.
    pub(super) const fn unfinished(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(_, _, silent) => *silent,
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(tls, ..) if tls.is_handshaking())
    }

    /// The certificates that the peer has shown, with proof that it holds the key of the first.
    pub(super) fn shown(&self) -> &[CertificateDer<'_>] {
        match self {
            Self::Tls(tls, ..) if !tls.is_handshaking() => tls.peer_certificates().unwrap_or_default(),
            Self::Plain(_) | Self::Tls(..) => &[],
        }
    }

    /// Says that nothing more will be sent.
    pub(super) fn say_goodbye(&mut self) {
        if let Self::Tls(tls, ..) = self {
            tls.send_close_notify();
        }
    }
}

fn write_tls(tls: &mut Connection, socket: &TcpStream) -> Result<bool, Failed> {
    let mut has_sent = false;
    while tls.wants_write() {
        match tls.write_tls(&mut &*socket) {
            Ok(0) => break,
            Ok(_) => has_sent = true,
            Err(error) => {
                again_later(error)?;
                break;
            }
        }
    }
    Ok(has_sent)
}

/// `Ok` if the socket may take or have more at another time.
fn again_later(error: io::Error) -> Result<(), Failed> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(error.into()),
    }
}
