//! The sockets of all SIP threads: each thread has its own, at the same addresses.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc, thread};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sluicegate_sip::message::Transport;

use crate::{
    config::{Config, Listen, SHARDS_MAX},
    daemon::StartError,
    frames::Ports,
    streams::StreamListener,
    tls::Tls,
    udp::Udp,
};

/// Files of a frontend that are no SIP connections: sockets, gates, the store, its API.
const OTHER_FILES: u64 = 1_024;

/// Those of one thread, by listener number.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    pub(crate) udp: Vec<(u8, Udp)>,
    /// Interfaces where the thread takes or refuses something; the first one's, and then there is no other.
    pub(crate) ports: Ports,
    pub(crate) streams: HashMap<u8, StreamListener>,
}

/// One of them.
enum Bound {
    Udp(Udp),
    Stream(StreamListener),
}

impl Bound {
    fn at(listen: Listen, shared: bool, tls: Option<&Arc<Tls>>) -> io::Result<Self> {
        match listen.transport {
            Transport::Udp => Udp::bind(listen.address, shared).map(Self::Udp),
            Transport::Tcp => StreamListener::bind(listen.address, shared, None).map(Self::Stream),
            Transport::Tls => StreamListener::bind(listen.address, shared, tls.cloned()).map(Self::Stream),
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Udp(udp) => udp.local_addr(),
            Self::Stream(listener) => listener.local_addr(),
        }
    }
}

/// Binds the sockets of every thread. Gives besides what they are bound to, which all threads share.
///
/// # Errors
/// See [`StartError`].
pub(crate) fn bind_all(config: &Config) -> Result<(Vec<Sockets>, Vec<Listen>), StartError> {
    let count = match config.shards {
        _ if config.has_one_thread() => 1,
        0 => thread::available_parallelism().map_or(1, usize::from).min(SHARDS_MAX),
        count => count,
    };
    if config.listen.iter().any(Listen::is_stream) {
        make_room(config.connections.total_max.saturating_mul(count) as u64)?;
    }
    let tls = config.tls.as_ref().map(crate::TlsFiles::load).transpose()?.map(Arc::new);
    let mut listens = config.listen.clone();
    let mut threads = Vec::with_capacity(count);
    for number in 0..count {
        let sockets = bind(&mut listens, (number == 0, count > 1), tls.as_ref())?;
        threads.push(sockets);
    }
    Ok((threads, listens))
}

/// The sockets of one thread. A port left to the system by the first thread is the same for the others.
fn bind(
    listens: &mut [Listen],
    (is_first, is_shared): (bool, bool),
    tls: Option<&Arc<Tls>>,
) -> Result<Sockets, StartError> {
    let mut sockets = Sockets::default();
    for (listen, number) in listens.iter_mut().zip(0..) {
        let failed = |source| StartError::Listen { what: listen.to_string(), source };
        // Threads share a port, and so would another process: this one must be free of others first.
        if is_first {
            drop(Bound::at(*listen, false, tls).map_err(failed)?);
        }
        let bound = Bound::at(*listen, is_shared, tls).map_err(failed)?;
        listen.address = bound.local_addr().map_err(StartError::Thread)?;
        match bound {
            Bound::Udp(udp) => sockets.udp.push((number, udp)),
            Bound::Stream(listener) => drop(sockets.streams.insert(number, listener)),
        }
    }
    Ok(sockets)
}

/// Lets this process have so many connections, as far as it may.
fn make_room(connections: u64) -> Result<(), StartError> {
    let needed = connections + OTHER_FILES;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|errno| StartError::Thread(errno.into()))?;
    if hard < needed {
        return Err(StartError::Files { needed, hard });
    }
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed, hard).map_err(|errno| StartError::Thread(errno.into()))?;
    }
    Ok(())
}
