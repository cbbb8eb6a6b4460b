//! `trace --user NAME --pcap FILE`: a user's SIP messages as packets in a capture file.
//!
//! Each message stands behind an IP and a UDP header with the addresses that it went between, whatever has carried it: so
//! that the messages of TCP and TLS can be read like those of UDP.

use std::{
    fs::OpenOptions,
    io::{self, IsTerminal as _, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use sluicegate_api::{MessagesWanted, TRACE_MESSAGES, TracedMessage, TracedMessages};
use sluicegate_wire::{build, udp};

use super::control::Node;

/// Between two questions to the node.
const INTERVAL: Duration = Duration::from_millis(250);
/// Captures with microseconds, of packets that begin with their IP header.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
const LINKTYPE_RAW: u32 = 101;
/// Longest packet, in bytes.
const PACKET_BYTES_MAX: usize = 65_535;

/// Writes what comes and goes for so long.
pub(super) fn write(node: &Node, user: &str, path: &Path, seconds: u64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut after, mut written, mut lost) = (ask(node, user, 0)?.next, 0, 0);
    let mut capture = Capture::begin(open(path)?)?;
    loop {
        let is_over = Instant::now() >= end;
        let answer = ask(node, user, after)?;
        after = answer.next;
        lost += answer.lost;
        written += answer.messages.len();
        match capture.add(&answer.messages) {
            // Whoever reads it has all that it wants.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            added => added.with_context(|| format!("cannot write {}", path.display()))?,
        }
        if is_over {
            break;
        }
        thread::sleep(INTERVAL.min(end.saturating_duration_since(Instant::now())));
    }
    let missing = if lost > 0 { format!("; {lost} more came too fast and are missing") } else { String::new() };
    // Standard output may be the capture.
    eprintln!("{written} messages{missing}");
    Ok(())
}

fn ask(node: &Node, user: &str, after: u64) -> Result<TracedMessages> {
    node.ask(&TRACE_MESSAGES.ask_of(user, &MessagesWanted { after }))
}

/// A new file for its owner alone, or standard output.
fn open(path: &Path) -> Result<Box<dyn Write>> {
    if path == Path::new("-") {
        // It would obey what anybody wrote into a message.
        if io::stdout().is_terminal() {
            bail!("standard output is a terminal; name a file, or another program to read it: `| wireshark -k -i -`");
        }
        return Ok(Box::new(io::stdout()));
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = made.with_context(|| format!("cannot make {}; name a file that does not exist yet", path.display()))?;
    Ok(Box::new(file))
}

/// A capture that can be read at any time as far as it goes.
struct Capture<W> {
    to: W,
    packet: Vec<u8>,
}

impl<W: Write> Capture<W> {
    fn begin(mut to: W) -> io::Result<Self> {
        let mut header = MAGIC.to_le_bytes().to_vec();
        VERSION.iter().for_each(|part| header.extend(part.to_le_bytes()));
        // Time zone and precision, which nobody uses; length and kind of packets.
        let rest = [0, 0, PACKET_BYTES_MAX as u32, LINKTYPE_RAW];
        rest.iter().for_each(|part| header.extend(part.to_le_bytes()));
        to.write_all(&header)?;
        to.flush()?;
        Ok(Self { to, packet: vec![0; PACKET_BYTES_MAX] })
    }

    fn add(&mut self, messages: &[TracedMessage]) -> io::Result<()> {
        for message in messages {
            let TracedMessage { unix_us, from, to, bytes, .. } = message;
            let datagram = udp::Repr { src_port: from.port(), dst_port: to.port(), payload: bytes };
            let len = build::write(&mut self.packet, from.ip(), to.ip(), &datagram);
            let Some(packet) = len.and_then(|len| self.packet.get(..len)) else { continue };
            let len = packet.len() as u32;
            let head = [(unix_us / 1_000_000) as u32, (unix_us % 1_000_000) as u32, len, len];
            let record = [head.map(u32::to_le_bytes).as_flattened(), packet].concat();
            self.to.write_all(&record)?;
        }
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_a_packet_between_its_addresses_at_its_time() {
        let message = |from: &str, to: &str| TracedMessage {
            unix_us: 1_767_225_600_000_007,
            transport: "TLS".into(),
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            bytes: b"OPTIONS sip:a SIP/2.0\r\n\r\n".to_vec(),
        };
        let messages = [
            message("198.51.100.7:40000", "203.0.113.1:5061"),
            message("[2001:db8::1]:5060", "[2001:db8::2]:5060"),
            message("[2001:db8::1]:5060", "203.0.113.1:5061"),
        ];
        let mut capture = Capture::begin(Vec::new()).unwrap();
        capture.add(&messages).unwrap();
        let (header, records) = capture.to.split_at(24);
        assert_eq!((&header[..4], header[20]), (&[0xd4, 0xc3, 0xb2, 0xa1][..], 101));
        let lens = [20, 40].map(|ip| ip + 8 + messages[0].bytes.len());
        assert_eq!(records.len(), 2 * 16 + lens[0] + lens[1], "no packet goes between versions");
        assert_eq!(records[..8], [1_767_225_600_u32.to_le_bytes(), 7_u32.to_le_bytes()].concat());
        assert_eq!(records[8..12], (lens[0] as u32).to_le_bytes());
        assert_eq!((records[16], records[16 + lens[0] + 16]), (0x45, 0x60));
        assert_eq!(records[16 + 12..16 + 24], [198, 51, 100, 7, 203, 0, 113, 1, 0x9c, 0x40, 0x13, 0xc5]);
    }
}
