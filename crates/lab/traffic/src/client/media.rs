//! Media of calls: each sends datagrams to where its gate lets them in, and counts what comes back.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use sluicegate_sip::ua::LegId;
use sluicegate_wire::Instant;

/// As much as 20 ms of G.711.
const PAYLOAD: [u8; 172] = [b'~'; 172];
/// What a call sends last comes back before it ends.
const UNDER_WAY_MAX: Duration = Duration::from_millis(400);

/// What one call has sent, and what of it has come back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) sent: u32,
    pub(super) heard: u32,
}

#[derive(Debug)]
struct Talk {
    /// From which of the ports it speaks.
    socket: usize,
    gate: SocketAddr,
    next: Instant,
    /// When it says nothing more.
    until: Option<Instant>,
    carried: Carried,
}

/// Ports for calls, which take turns. Two that spoke from one to the same callee at a time would be one flow to it.
const PORTS: u16 = 256;

/// The media of all calls of a worker.
#[derive(Debug)]
pub(super) struct Media {
    sockets: Vec<UdpSocket>,
    every: Duration,
    talks: HashMap<LegId, Talk>,
    by_gate: HashMap<SocketAddr, LegId>,
}

impl Media {
    /// A datagram of each call after so many milliseconds, from this port on.
    pub(super) fn open(first: u16, every_ms: u32) -> io::Result<Self> {
        let open = |turn: usize| {
            let socket = UdpSocket::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), port(first, turn)))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let sockets = (0..usize::from(PORTS)).map(open).collect::<io::Result<_>>()?;
        let every = Duration::from_millis(every_ms.into());
        Ok(Self { sockets, every, talks: HashMap::new(), by_gate: HashMap::new() })
    }

    /// The call of this turn stands until then, and its gate lets it in here.
    pub(super) fn begin(
        &mut self,
        (now, end): (Instant, Option<Instant>),
        (leg, turn): (LegId, usize),
        gate: SocketAddr,
    ) {
        let until = end.map(|end| end - UNDER_WAY_MAX);
        let socket = turn % self.sockets.len();
        self.talks.insert(leg, Talk { socket, gate, next: now, until, carried: Carried::default() });
        self.by_gate.insert(gate, leg);
    }

    /// The call is over: what it carried.
    pub(super) fn end(&mut self, leg: LegId) -> Carried {
        let Some(talk) = self.talks.remove(&leg) else { return Carried::default() };
        // Where the gate gave its port to another call meanwhile, that one goes on.
        if self.by_gate.get(&talk.gate) == Some(&leg) {
            self.by_gate.remove(&talk.gate);
        }
        talk.carried
    }

    /// Reads what came, and sends what is due.
    pub(super) fn turn(&mut self, now: Instant) {
        let mut buffer = [0; 2_048];
        for socket in &self.sockets {
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let talk = self.by_gate.get(&from).and_then(|leg| self.talks.get_mut(leg));
                talk.into_iter().for_each(|talk| talk.carried.heard += 1);
            }
        }
        let is_due = |talk: &&mut Talk| talk.next <= now && talk.until.is_none_or(|until| now < until);
        for talk in self.talks.values_mut().filter(is_due) {
            // What the kernel does not take is lost.
            let _ = self.sockets[talk.socket].send_to(&PAYLOAD, talk.gate);
            talk.carried.sent += 1;
            talk.next = now + self.every;
        }
    }
}

/// The port of the call of this turn; 0: any.
pub(super) fn port(first: u16, turn: usize) -> u16 {
    let further = u16::try_from(turn % usize::from(PORTS)).unwrap_or_default();
    if first == 0 { 0 } else { first + further }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_sends_at_its_pace_and_counts_what_comes_back_from_its_gate_alone() {
        let gate = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut media = Media::open(0, 100).unwrap();
        let port = media.sockets[3].local_addr().unwrap().port();
        let leg = LegId::of_tag(&[b'a'; 32]).unwrap();
        let start = Instant::from_secs(7);
        let end = start + Duration::from_millis(650);
        media.begin((start, Some(end)), (leg, 3 + usize::from(PORTS)), gate.local_addr().unwrap());
        (0..650).for_each(|ms| media.turn(start + Duration::from_millis(ms)));
        let mut buffer = [0; 2_048];
        for _ in 0..3 {
            let (len, _) = gate.recv_from(&mut buffer).unwrap();
            gate.send_to(&buffer[..len], ("127.0.0.1", port)).unwrap();
        }
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"a stranger", ("127.0.0.1", port)).unwrap();
        media.turn(end);
        assert_eq!(media.end(leg), Carried { sent: 3, heard: 3 });
        assert_eq!(media.end(leg), Carried::default());
    }
}
