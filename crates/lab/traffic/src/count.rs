//! What reaches an interface, by class of source address: the proof that no stranger's byte passed the gate.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::Options;
use sluicegate_wire::{ethernet, ip::Summary};

use crate::listen::{SLOTS, listen};
use sluicegate_site::{LabError, Prefix, clock::unix_ns, worker::Context};

/// How often it prints.
const PRINT_EVERY: Duration = Duration::from_millis(500);
const CLASSES_MAX: usize = 32;
/// Different strangers that are named in the result, so that a failure can be understood.
const EXAMPLES_MAX: usize = 8;

/// Specification of the worker `count`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountSpec {
    /// The interface; what it receives is counted.
    pub interface: String,
    /// Classes by source address: (name, prefixes). The first that fits counts; what fits none is `stranger`, what is
    /// no IP packet `other` (such as ARP).
    pub classes: Vec<(String, Vec<Prefix>)>,
    /// Classes by traffic class, which come before those by address: (name, traffic class). Attackers of the lab mark what
    /// they send under honest addresses.
    #[serde(default)]
    pub marks: Vec<(String, u8)>,
    /// How long to count.
    pub seconds: u32,
}

/// What one class sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Frames.
    pub packets: u64,
    /// Bytes, Ethernet headers included.
    pub bytes: u64,
}

/// Runs the worker `count`: prints `{"event":"tick","ns","classes":[{name,packets,bytes}, …]}` twice a second with what
/// came since the last, and totals with `lost` (frames the counter itself missed) in the result.
pub(crate) fn count(spec: &CountSpec, context: &Context) -> Result<(), LabError> {
    if spec.classes.len() + spec.marks.len() > CLASSES_MAX {
        return Err(context.refuse(&format!("at most {CLASSES_MAX} classes")));
    }
    let options = Options { receive_slots: SLOTS, ..Options::default() };
    let mut counter = Counter::new(&spec.marks, &spec.classes);
    let mut printed = Instant::now();
    let lost = listen((&spec.interface, &options, spec.seconds), context, |socket| {
        socket.receive(SLOTS, &mut |frame| counter.add(frame.bytes, frame.wire_len));
        if printed.elapsed() >= PRINT_EVERY {
            printed = Instant::now();
            context.print(&json!({ "event": "tick", "ns": unix_ns(), "classes": counter.take_new() }));
        }
        Ok(())
    })?;
    context.result(&json!({ "classes": counter.classes, "lost": lost, "strangers": counter.examples }));
    Ok(())
}

struct Counter<'a> {
    marks: &'a [(String, u8)],
    prefixes: Vec<&'a [Prefix]>,
    /// The marked classes, those by address, then `stranger`, then `other`.
    classes: Vec<Class>,
    printed: Vec<Class>,
    examples: Vec<IpAddr>,
}

impl<'a> Counter<'a> {
    fn new(marks: &'a [(String, u8)], classes: &'a [(String, Vec<Prefix>)]) -> Self {
        let names = marks.iter().map(|(name, _)| name.as_str());
        let names = names.chain(classes.iter().map(|(name, _)| name.as_str())).chain(["stranger", "other"]);
        let named: Vec<_> = names.map(|name| Class { name: name.to_owned(), packets: 0, bytes: 0 }).collect();
        let prefixes = classes.iter().map(|(_, prefixes)| prefixes.as_slice()).collect();
        Self { marks, prefixes, printed: named.clone(), classes: named, examples: Vec::new() }
    }

    fn add(&mut self, bytes: &[u8], wire_len: usize) {
        let source = source(bytes);
        let marked = bytes.get(ethernet::HEADER_LEN..).and_then(traffic_class);
        let marked = marked.and_then(|class| self.marks.iter().position(|(_, mark)| *mark == class));
        let stranger = self.marks.len() + self.prefixes.len();
        let index = match (source, marked) {
            (None, _) => stranger + 1,
            (Some(_), Some(marked)) => marked,
            (Some(source), None) => {
                let fits = |prefixes: &&[Prefix]| prefixes.iter().any(|prefix| prefix.contains(&source));
                self.prefixes.iter().position(fits).map_or(stranger, |index| self.marks.len() + index)
            }
        };
        if let Some(source) = source.filter(|_| index == stranger && self.examples.len() < EXAMPLES_MAX)
            && !self.examples.contains(&source)
        {
            self.examples.push(source);
        }
        self.classes[index].packets += 1;
        self.classes[index].bytes += wire_len as u64;
    }

    fn take_new(&mut self) -> Vec<Class> {
        let new = self.classes.iter().zip(&self.printed).map(|(now, before)| Class {
            name: now.name.clone(),
            packets: now.packets - before.packets,
            bytes: now.bytes - before.bytes,
        });
        let new = new.collect();
        self.printed = self.classes.clone();
        new
    }
}

/// The traffic class of an IP packet.
pub(crate) fn traffic_class(packet: &[u8]) -> Option<u8> {
    match packet.first()? >> 4 {
        4 => packet.get(1).copied(),
        6 => Some(packet.first()? << 4 | packet.get(1)? >> 4),
        _ => None,
    }
}

/// The IP source address of a frame, even if the packet behind its addresses is malformed.
fn source(frame: &[u8]) -> Option<IpAddr> {
    let packet = frame.get(ethernet::HEADER_LEN..)?;
    match frame.get(12..14)? {
        [0x08, 0x00] => {
            let parsed = Summary::parse(packet).ok().map(|summary| summary.src);
            parsed.or_else(|| Some(IpAddr::from(<[u8; 4]>::try_from(packet.get(12..16)?).ok()?)))
        }
        [0x86, 0xdd] => Some(IpAddr::from(<[u8; 16]>::try_from(packet.get(8..24)?).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame_v4(source: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend(source);
        frame.extend([10, 4, 3, 2]);
        frame
    }

    #[test]
    fn every_frame_counts_in_exactly_one_class() {
        let classes = vec![
            ("granted".to_owned(), vec!["198.51.100.2/32".parse().unwrap()]),
            ("gate".to_owned(), vec!["10.4.0.0/16".parse().unwrap(), "fe80::/10".parse().unwrap()]),
        ];
        let marks = [("forged".to_owned(), 0x2c)];
        let mut counter = Counter::new(&marks, &classes);
        let mut forged = frame_v4([198, 51, 100, 2]);
        forged[15] = 0x2c;
        counter.add(&forged, 100);
        for source in [[198, 51, 100, 2], [10, 4, 1, 1], [198, 18, 0, 1], [198, 18, 0, 1]] {
            counter.add(&frame_v4(source), 100);
        }
        counter.add(&[0; 60], 60);
        counter.add(&[], 0);
        let packets: Vec<_> =
            counter.take_new().iter().map(|class| (class.name.clone(), class.packets, class.bytes)).collect();
        let expected =
            [("forged", 1, 100), ("granted", 1, 100), ("gate", 1, 100), ("stranger", 2, 200), ("other", 2, 60)];
        assert_eq!(packets, expected.map(|(name, packets, bytes)| (name.to_owned(), packets, bytes)));
        assert_eq!(counter.examples, ["198.18.0.1".parse::<IpAddr>().unwrap()]);
        assert!(counter.take_new().iter().all(|class| class.packets == 0));
    }
}
