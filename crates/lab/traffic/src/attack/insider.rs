use std::{io, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{PER_S_MAX, SECONDS_MAX, begin};
use crate::{
    datagrams::{BATCH, Batch},
    sockets::connected,
};
use sluicegate_site::{During, LabError, clock::Pacer, worker::Context};

/// Specification of the worker `insider`: a client floods the pinholes that it was granted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InsiderSpec {
    /// Where its pinholes are.
    pub to: Vec<SocketAddr>,
    /// The port that each is opened for.
    pub from_ports: Vec<u16>,
    /// Bytes of each datagram's payload.
    pub bytes: u16,
    /// Datagrams a second; 0: as fast as it can.
    #[serde(default)]
    pub per_s: u64,
    /// How long to send.
    pub seconds: u32,
    /// The most bytes of payload to send in all.
    pub bytes_max: u64,
}

/// Runs the worker `insider`: prints datagrams and bytes sent.
pub(crate) fn insider(spec: &InsiderSpec, context: &Context) -> Result<(), LabError> {
    let fits = !spec.to.is_empty()
        && spec.to.len() == spec.from_ports.len()
        && (1..=1_472).contains(&spec.bytes)
        && spec.seconds <= SECONDS_MAX;
    let wrong = || "`to` must not be empty, `from_ports` one for each, `bytes` 1 to 1472".to_owned();
    begin(context, if fits { Ok(()) } else { Err(wrong()) })?;
    let sockets: Vec<_> = spec
        .to
        .iter()
        .zip(&spec.from_ports)
        .map(|(to, port)| connected(*to, *port))
        .collect::<io::Result<_>>()
        .during(|| "opening the insider's sockets".to_owned())?;
    context.ready();
    let payload = vec![b'!'; spec.bytes.into()];
    let payloads: Vec<&[u8]> = vec![&payload; BATCH];
    let mut sender = Batch::new();
    let pacer = Pacer::new(if spec.per_s == 0 { PER_S_MAX } else { spec.per_s.min(PER_S_MAX) }, BATCH as u64);
    let mut paced = context.paced(pacer, Duration::from_secs(spec.seconds.into()));
    let (mut sent, mut round, mut done) = (0u64, 0, Ok(()));
    while sent * u64::from(spec.bytes) < spec.bytes_max
        && done.is_ok()
        && let Some(due) = paced.next()
    {
        round += 1;
        let due = usize::try_from(due).unwrap_or(BATCH).min(BATCH);
        let taken = sender.send(&sockets[round % sockets.len()], &payloads[..due]);
        done = taken.map(|taken| sent += taken as u64).during(|| "sending".to_owned());
    }
    let ms = paced.elapsed_ms();
    context.result(&json!({ "datagrams": sent, "bytes": sent * u64::from(spec.bytes), "ms": ms }));
    done
}
