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
    gate: SocketAddr,
    next: Instant,
    /// When it says nothing more.
    until: Option<Instant>,
    carried: Carried,
}

/// The media of all calls of a worker. They share a port; a gate has another one for each.
#[derive(Debug)]
pub(super) struct Media {
    socket: UdpSocket,
    every: Duration,
    talks: HashMap<LegId, Talk>,
    by_gate: HashMap<SocketAddr, LegId>,
}

impl Media {
    /// A datagram of each call after so many milliseconds, from this port.
    pub(super) fn open(port: u16, every_ms: u32) -> io::Result<Self> {
        let socket = UdpSocket::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), port))?;
        socket.set_nonblocking(true)?;
        let every = Duration::from_millis(every_ms.into());
        Ok(Self { socket, every, talks: HashMap::new(), by_gate: HashMap::new() })
    }

    /// The call stands until then, and its gate lets it in here.
    pub(super) fn begin(&mut self, (now, end): (Instant, Option<Instant>), leg: LegId, gate: SocketAddr) {
        let until = end.map(|end| end - UNDER_WAY_MAX);
        self.talks.insert(leg, Talk { gate, next: now, until, carried: Carried::default() });
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
        while let Ok((_, from)) = self.socket.recv_from(&mut buffer) {
            let talk = self.by_gate.get(&from).and_then(|leg| self.talks.get_mut(leg));
            talk.into_iter().for_each(|talk| talk.carried.heard += 1);
        }
        let is_due = |talk: &&mut Talk| talk.next <= now && talk.until.is_none_or(|until| now < until);
        for talk in self.talks.values_mut().filter(is_due) {
            // What the kernel does not take is lost.
            let _ = self.socket.send_to(&PAYLOAD, talk.gate);
            talk.carried.sent += 1;
            talk.next = now + self.every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_sends_at_its_pace_and_counts_what_comes_back_from_its_gate_alone() {
        let gate = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut media = Media::open(0, 100).unwrap();
        let port = media.socket.local_addr().unwrap().port();
        let leg = LegId::of_tag(&[b'a'; 32]).unwrap();
        let start = Instant::from_secs(7);
        let end = start + Duration::from_millis(650);
        media.begin((start, Some(end)), leg, gate.local_addr().unwrap());
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
