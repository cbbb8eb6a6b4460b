//! What strangers do with connections: hold many and say nothing, say it slowly, begin what they never end.

use std::{fmt::Write as _, io, net::SocketAddr, sync::Arc, time::Duration};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{begin, bounded};
use crate::stream::{Connecting, Over, Stream};
use sluicegate_site::{
    During, LabError, Prefix,
    clock::{FLOOD_REST, Pacer},
    nth,
    worker::Context,
};

const CONNECTIONS_MAX: u16 = 4_096;
/// Files of a worker beside its connections.
const FILES: u64 = 64;
/// How long a message lasts that comes a byte at a time: each connection is looked at so often.
const SLOW_EVERY: Duration = Duration::from_millis(250);
/// Bytes that wait for a connection to take them before no more are written.
const UNSENT_MAX: usize = 65_536;
/// What stops before its end has so many bytes, of the 16 KB that a message or a TLS record may have.
const HALF_LEN: usize = 15_000;
/// The beginning of a TLS handshake: a record of 16,128 bytes that holds a greeting of 16,124.
const HELLO: &[u8] = &[22, 3, 1, 0x3f, 0, 1, 0, 0x3e, 0xfc, 3, 3];
/// What a turn writes on a connection that is to be full always.
const PIPELINED: usize = 64;

/// What an attacker does with each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// Nothing.
    Silent,
    /// Sends a request, a byte now and then.
    Slow,
    /// Sends most of a long request, and then nothing.
    Half,
    /// Sends most of the first message of a TLS handshake, and then nothing.
    Begun,
    /// Ends the TLS handshake, closes, and begins anew.
    Handshakes,
    /// Sends what is no SIP without end.
    Garbage,
    /// Announces a body of four gigabytes, and sends it.
    Endless,
    /// Sends requests without end and reads no answer.
    Deaf,
}

/// Specification of the worker `connections`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionsSpec {
    /// The front end.
    pub to: SocketAddr,
    /// What carries SIP there, other than UDP.
    pub way: Connecting,
    /// Addresses of this host to connect from.
    pub sources: Prefix,
    /// Connections held at one time; those that are closed are opened again.
    pub connections: u16,
    /// Connections opened a second at most.
    pub per_s: u64,
    /// What is done with each.
    pub manner: Manner,
    /// Realm of the front end.
    pub realm: String,
    /// How long.
    pub seconds: u32,
}

/// Runs the worker `connections`. The result says how many it opened, how many of these were closed by the front end, and
/// how many TLS handshakes came to their end.
pub(crate) fn connections(spec: &ConnectionsSpec, context: &Context) -> Result<(), LabError> {
    begin(context, check(spec))?;
    let files = u64::from(spec.connections) + FILES;
    getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(soft, hard)| setrlimit(Resource::RLIMIT_NOFILE, files.clamp(soft, hard.max(soft)), hard))
        .map_err(io::Error::from)
        .during(|| format!("asking for {files} files"))?;
    let tls = spec.way.tls().during(|| "preparing TLS".to_owned())?;
    // What comes before TLS comes without.
    let tls = tls.filter(|_| spec.manner != Manner::Begun);
    let mut crowd = Crowd { spec, tls, held: Vec::new(), opened: 0, closed: 0, handshakes: 0, failed: 0 };
    context.ready();
    let pacer = Pacer::new(spec.per_s, 256).resting(FLOOD_REST);
    let mut paced = context.paced(pacer, Duration::from_secs(spec.seconds.into()));
    let mut looked = (0, Duration::ZERO);
    while let Some(due) = paced.next() {
        for _ in 0..due {
            if crowd.held.len() >= usize::from(spec.connections) {
                break;
            }
            crowd.open();
        }
        // Not all of them each time: looking at a thousand takes longer than a turn.
        let elapsed = paced.elapsed();
        let share = (elapsed - looked.1).as_secs_f64() / crowd.every().as_secs_f64();
        let count = (crowd.held.len() as f64 * share).ceil() as usize;
        looked = (crowd.look(looked.0, count.min(crowd.held.len())), elapsed);
    }
    let ms = paced.elapsed_ms();
    let Crowd { opened, closed, handshakes, failed, .. } = crowd;
    context
        .result(&json!({ "requests": opened, "closed": closed, "handshakes": handshakes, "failed": failed, "ms": ms }));
    Ok(())
}

fn check(spec: &ConnectionsSpec) -> Result<(), String> {
    if spec.connections == 0 || spec.connections > CONNECTIONS_MAX || !spec.way.over.is_stream() {
        return Err(format!("`connections` is 1 to {CONNECTIONS_MAX}, and `way` TCP or TLS"));
    }
    if spec.manner == Manner::Handshakes && spec.way.over != Over::Tls {
        return Err("`handshakes` need TLS".to_owned());
    }
    bounded(spec.seconds, spec.per_s, "connections")
}

struct Held {
    stream: Stream,
    /// Bytes of a slow request that were sent.
    said: usize,
}

struct Crowd<'a> {
    spec: &'a ConnectionsSpec,
    tls: Option<Arc<ClientConfig>>,
    held: Vec<Held>,
    opened: u64,
    closed: u64,
    handshakes: u64,
    failed: u64,
}

impl Crowd<'_> {
    /// How often each connection is looked at.
    const fn every(&self) -> Duration {
        match self.spec.manner {
            Manner::Silent | Manner::Slow | Manner::Half | Manner::Begun => SLOW_EVERY,
            Manner::Handshakes | Manner::Garbage | Manner::Endless | Manner::Deaf => FLOOD_REST,
        }
    }

    fn open(&mut self) {
        // The network's own and its broadcast address are left out, where there are such.
        let sources = self.spec.sources;
        let most = if sources.prefix_len() == sources.max_prefix_len() { 1 } else { 250 };
        let first = u64::from(most > 1);
        let from = SocketAddr::new(nth(sources, first + self.opened % most), 0);
        match Stream::open(from, self.spec.to, self.tls.as_ref()) {
            Ok(mut stream) => {
                stream.will_reset();
                self.opened += 1;
                if self.spec.manner == Manner::Begun {
                    stream.send(&[HELLO, &[b'x'; HALF_LEN]].concat());
                }
                self.held.push(Held { stream, said: 0 });
            }
            Err(_) => self.failed += 1,
        }
    }

    /// Looks at so many, from there on; where to go on.
    fn look(&mut self, from: usize, count: usize) -> usize {
        let mut at = from;
        for _ in 0..count {
            if self.held.is_empty() {
                return 0;
            }
            at %= self.held.len();
            self.act(at);
            if self.held[at].stream.is_over() {
                self.closed += 1;
                self.held.swap_remove(at);
            } else if self.spec.manner == Manner::Handshakes && !self.held[at].stream.is_handshaking() {
                self.handshakes += 1;
                self.held.swap_remove(at);
            } else {
                at += 1;
            }
        }
        at
    }

    fn act(&mut self, at: usize) {
        let (realm, manner, transport) = (&self.spec.realm, self.spec.manner, self.spec.way.over.transport().name());
        let Held { stream, said } = &mut self.held[at];
        if manner != Manner::Deaf || stream.is_handshaking() {
            stream.read(&mut |_| ());
        }
        stream.push();
        if stream.is_handshaking() || stream.unsent() > UNSENT_MAX {
            return;
        }
        let request = |number: usize| {
            format!(
                "OPTIONS sip:{realm} SIP/2.0\r\nVia: SIP/2.0/{transport} h;branch=z9hG4bK{number};rport\r\n\
                 From: <sip:a@{realm}>;tag=a\r\nTo: <sip:a@{realm}>\r\nCall-ID: {number}\r\nCSeq: 1 OPTIONS\r\n\
                 Max-Forwards: 9\r\n"
            )
        };
        match manner {
            Manner::Silent | Manner::Begun | Manner::Handshakes => {}
            Manner::Slow => {
                let byte = request(1).as_bytes().get(*said).copied().unwrap_or(b'x');
                stream.send(&[byte]);
                *said += 1;
            }
            Manner::Half if *said > 0 => {}
            Manner::Half => {
                let head = request(1) + "Content-Length: 8000\r\nX-Long: ";
                stream.send(format!("{head}{:x<1$}", "", HALF_LEN.saturating_sub(head.len())).as_bytes());
                *said = HALF_LEN;
            }
            Manner::Garbage => stream.send(&b"\r\n\x16\x03 no message at all \0\xff: \r\n\r\n".repeat(PIPELINED)),
            Manner::Endless => {
                let head = request(*said) + "Content-Length: 4294967295\r\n\r\n";
                stream.send(head.as_bytes());
                stream.send(&[b'x'; 4_096]);
            }
            Manner::Deaf => {
                let mut requests = String::new();
                for _ in 0..PIPELINED {
                    *said += 1;
                    // Writing to a `String` cannot fail.
                    let _ = write!(requests, "{}Content-Length: 0\r\n\r\n", request(*said));
                }
                stream.send(requests.as_bytes());
            }
        }
    }
}
