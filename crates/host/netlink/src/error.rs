use std::io;

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket could not be opened or used.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
    /// The kernel refused the request.
    #[error("the kernel refused to {request}: {source}{detail}")]
    Refused {
        /// What was asked for.
        request: String,
        /// The kernel's error number.
        source: io::Error,
        /// The kernel's own words, in parentheses, or nothing.
        detail: String,
    },
    /// No answer within five seconds.
    #[error("the kernel did not answer the request to {0}")]
    Timeout(String),
}

impl Error {
    pub(crate) fn refused(request: &str, code: i32) -> Self {
        Self::Refused { request: request.into(), source: io::Error::from_raw_os_error(code), detail: String::new() }
    }

    /// The kernel's error number, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Socket(source) | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Timeout(_) => None,
        }
    }

    /// Whether the thing to create existed already.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether there is no route.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.errno() == Some(libc::ENETUNREACH)
    }

    /// Whether the thing to change or delete does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::ENXIO))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Socket(source) => source,
            Error::Refused { ref source, .. } => Self::new(source.kind(), error),
            Error::Timeout(_) => Self::new(io::ErrorKind::TimedOut, error),
        }
    }
}
