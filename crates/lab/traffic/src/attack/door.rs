//! Somebody who keeps a front end's feed door occupied, and somebody who stands between an agent and its front end.

use std::{
    net::{SocketAddr, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{SECONDS_MAX, require_lab};
use sluicegate_site::{During, LabError, worker::Context};

const CONNECTIONS_MAX: u16 = 1_024;
const POLL: Duration = Duration::from_millis(5);
const CONNECT_MAX: Duration = Duration::from_millis(500);
const DATAGRAM_MAX: usize = 65_535;

/// Specification of the worker `idle`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleSpec {
    /// Where to connect.
    pub to: SocketAddr,
    /// Connections held at one time; those that are closed are opened again.
    pub connections: u16,
    /// How long.
    pub seconds: u32,
}

/// Runs the worker `idle`: holds connections on which it says nothing. The result says how many it opened.
pub(crate) fn idle(spec: &IdleSpec, context: &Context) -> Result<(), LabError> {
    require_lab()?;
    if spec.connections > CONNECTIONS_MAX || spec.seconds > SECONDS_MAX {
        return Err(context.refuse(&format!("at most {CONNECTIONS_MAX} connections for {SECONDS_MAX} s")));
    }
    context.ready();
    let end = Instant::now() + Duration::from_secs(spec.seconds.into());
    let (mut open, mut opened): (Vec<TcpStream>, u64) = (Vec::new(), 0);
    while Instant::now() < end && !context.stopped() {
        open.retain(is_open);
        while open.len() < usize::from(spec.connections) && Instant::now() < end && !context.stopped() {
            let Ok(stream) = TcpStream::connect_timeout(&spec.to, CONNECT_MAX) else { break };
            if stream.set_nonblocking(true).is_err() {
                break;
            }
            opened += 1;
            open.push(stream);
        }
        thread::sleep(POLL);
    }
    context.result(&json!({ "opened": opened }));
    Ok(())
}

/// Whether the other side still holds the connection.
fn is_open(stream: &TcpStream) -> bool {
    let mut byte = [0];
    matches!(stream.peek(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Specification of the worker `relay`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelaySpec {
    /// Where the agent thinks that its front end is.
    pub listen: SocketAddr,
    /// The front end.
    pub to: SocketAddr,
    /// Whether to take out of the agent's requests what says that it is one.
    pub downgrade: bool,
    /// How long.
    pub seconds: u32,
}

/// Runs the worker `relay`: passes an agent's SIP on to the front end from this host's own address, and the answers
/// back, so that what the agent signs in for is asked for by this host. The result says how many requests it passed on
/// and how many of the front end's answers were a success.
pub(crate) fn relay(spec: &RelaySpec, context: &Context) -> Result<(), LabError> {
    require_lab()?;
    let bind = |address: SocketAddr| {
        let socket = UdpSocket::bind(address).during(|| format!("binding {address}"))?;
        socket.set_nonblocking(true).during(|| "making a socket nonblocking".to_owned())?;
        Ok::<_, LabError>(socket)
    };
    let (front, back) = (bind(spec.listen)?, bind(SocketAddr::new(spec.listen.ip(), 0))?);
    context.ready();
    let end = Instant::now() + Duration::from_secs(spec.seconds.min(SECONDS_MAX).into());
    let (mut agent, mut requests, mut successes) = (None, 0u64, 0u64);
    let mut bytes = vec![0; DATAGRAM_MAX];
    while Instant::now() < end && !context.stopped() {
        if let Ok((len, from)) = front.recv_from(&mut bytes) {
            (agent, requests) = (Some(from), requests + 1);
            let request = if spec.downgrade { without_supported(&bytes[..len]) } else { bytes[..len].to_vec() };
            let _ = back.send_to(&request, spec.to);
        } else if let Ok((len, _)) = back.recv_from(&mut bytes) {
            successes += u64::from(bytes[..len].starts_with(b"SIP/2.0 2"));
            if let Some(agent) = agent {
                let _ = front.send_to(&bytes[..len], agent);
            }
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }
    context.result(&json!({ "requests": requests, "successes": successes }));
    Ok(())
}

/// The request without its `Supported` lines.
fn without_supported(request: &[u8]) -> Vec<u8> {
    let lines = request.split_inclusive(|byte| *byte == b'\n');
    let kept = lines.filter(|line| !line.to_ascii_lowercase().starts_with(b"supported:"));
    kept.flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_supported_lines_are_taken_out() {
        let request =
            b"INVITE sip:a@b SIP/2.0\r\nSupported: sluicegate\r\nsupported: x\r\nCSeq: 1 INVITE\r\n\r\nv=0\r\n";
        assert_eq!(without_supported(request), b"INVITE sip:a@b SIP/2.0\r\nCSeq: 1 INVITE\r\n\r\nv=0\r\n");
    }
}
