use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::{Options, Transmitted};

use super::{
    begin, bounded,
    frames::{Forged, Kind, Path},
};
use crate::{listen::open, sockets::any_like};
use sluicegate_site::{
    During, LabError, Prefix,
    clock::{FLOOD_REST, Pacer},
    nth,
    worker::Context,
};

/// Forged frames that are kept and sent again and again with new sources.
const POOL_FRAMES: usize = 2_048;
/// Frames sent at once; a flood that is smooth to a millisecond fills a queue as a real one does.
const BURST_FRAMES: u64 = 256;
const FRAME_LEN_MAX: usize = 1_514;

/// Specification of the worker `flood`: raw frames with forged sources.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FloodSpec {
    /// The interface to send from.
    pub interface: String,
    /// Ethernet address of the next hop.
    pub destination_mac: [u8; 6],
    /// Ethernet address to send from.
    pub source_mac: [u8; 6],
    /// Where the packets go.
    pub targets: Vec<Target>,
    /// What they are: (kind, how often relative to the others).
    #[serde(default)]
    pub mix: Vec<(Kind, u32)>,
    /// UDP payloads to send besides, such as recorded SIP requests: (source or none for a forged one, payload).
    #[serde(default)]
    pub datagrams: Vec<(Option<SocketAddr>, String)>,
    /// Sources are drawn from these; one of each IP version that `targets` have.
    pub sources: Vec<Prefix>,
    /// Addresses of honest clients to forge as well.
    #[serde(default)]
    pub clients: Vec<IpAddr>,
    /// Share of the packets, in percent, that come from `clients`.
    #[serde(default)]
    pub clients_percent: u8,
    /// Traffic class of the packets, by which a counter tells them from those of the clients whose address they bear.
    #[serde(default)]
    pub mark: u8,
    /// Sizes of the frames in bytes, Ethernet header included; drawn at random.
    pub frame_bytes: Vec<u16>,
    /// Frames a second.
    pub per_s: u64,
    /// How long to send.
    pub seconds: u32,
    /// The most frames to send in all.
    pub frames_max: u64,
    /// Seed of everything random.
    pub seed: u64,
}

/// Addresses and ports under attack.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Address.
    pub address: IpAddr,
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

/// Runs the worker `flood`: prints `{"event":"tick","frames","bytes"}` every second, totals in the result.
pub(crate) fn flood(spec: &FloodSpec, context: &Context) -> Result<(), LabError> {
    begin(context, check(spec))?;
    let mut socket = open(&spec.interface, &Options::send_only())?;
    let mut random = Rng::with_seed(spec.seed);
    let mut pool = Pool::new(spec, &mut random);
    context.ready();
    let mut totals = Totals::default();
    let pacer = Pacer::new(spec.per_s, BURST_FRAMES).resting(FLOOD_REST);
    let mut paced = context.paced(pacer, Duration::from_secs(spec.seconds.into()));
    let (mut frames_left, mut done) = (spec.frames_max, Ok(()));
    while frames_left > 0
        && done.is_ok()
        && let Some(due) = paced.next()
    {
        let batch = pool.next(due.min(frames_left), &mut random);
        frames_left -= batch.len() as u64;
        let bytes: u64 = batch.iter().map(|frame| frame.as_ref().len() as u64).sum();
        let sent = socket.send(batch).during(|| format!("sending from {}", spec.interface));
        done = sent.map(|sent| totals.add(sent, bytes));
        if done.is_ok() && paced.has_ticked() {
            totals.print(context);
        }
    }
    context.result(&json!({
        "frames": totals.frames, "bytes": totals.bytes, "full": totals.full, "refused": totals.refused,
        "ms": paced.elapsed_ms(),
    }));
    done
}

fn check(spec: &FloodSpec) -> Result<(), String> {
    if spec.targets.is_empty() || spec.sources.is_empty() || spec.frame_bytes.is_empty() {
        return Err("targets, sources and frame_bytes must not be empty".to_owned());
    }
    if spec.mix.iter().all(|(_, weight)| *weight == 0) && spec.datagrams.is_empty() {
        return Err("mix and datagrams are empty: there is nothing to send".to_owned());
    }
    bounded(spec.seconds, spec.per_s, "frames")?;
    if spec.frame_bytes.iter().any(|len| usize::from(*len) > FRAME_LEN_MAX) {
        return Err(format!("frame_bytes: at most {FRAME_LEN_MAX}"));
    }
    if spec.targets.iter().any(|target| target.first > target.last) {
        return Err("a target's first port is above its last".to_owned());
    }
    let of_version = |v4: bool| spec.sources.iter().any(|prefix| prefix.addr().is_ipv4() == v4);
    match spec.targets.iter().find(|target| !of_version(target.address.is_ipv4())) {
        Some(target) => Err(format!("no sources of the IP version of {}", target.address)),
        None => Ok(()),
    }
}

/// Frames made once; each time one is sent it gets a new source.
struct Pool<'a> {
    spec: &'a FloodSpec,
    frames: Vec<Forged>,
    /// For each frame: the target's address, or `None` if the source stays as it is.
    respoof: Vec<Option<IpAddr>>,
    next: usize,
}

impl<'a> Pool<'a> {
    fn new(spec: &'a FloodSpec, random: &mut Rng) -> Self {
        let mut pool = Self { spec, frames: Vec::new(), respoof: Vec::new(), next: 0 };
        let kinds: u64 = spec.mix.iter().map(|(_, weight)| u64::from(*weight)).sum();
        // Datagrams together weigh as much as one kind.
        let all = kinds + u64::from(!spec.datagrams.is_empty()) * (kinds / spec.mix.len().max(1) as u64).max(1);
        for _ in 0..POOL_FRAMES {
            let path = pool.path(random);
            let drawn = random.u64(..all);
            let (mut forged, keeps_source) = match kind_at(&spec.mix, drawn) {
                Some(kind) => {
                    let len = random.choice(&spec.frame_bytes).copied().unwrap_or(64);
                    (Forged::new(kind, &path, len.into(), random), false)
                }
                None => pool.datagram(path, random),
            };
            forged.mark(spec.mark);
            pool.frames.push(forged);
            pool.respoof.push((!keeps_source).then_some(path.dst));
        }
        pool
    }

    /// The next frames, at most `count` and at most up to the pool's end.
    fn next(&mut self, count: u64, random: &mut Rng) -> &[Forged] {
        let first = self.next;
        let end = first.saturating_add(usize::try_from(count).unwrap_or(usize::MAX)).min(self.frames.len());
        self.next = end % self.frames.len();
        for index in first..end {
            if let Some(dst) = self.respoof[index] {
                let src = self.source(dst, random);
                self.frames[index].respoof(src);
            }
        }
        &self.frames[first..end]
    }

    fn path(&self, random: &mut Rng) -> Path {
        let target = self.spec.targets[random.usize(..self.spec.targets.len())];
        Path {
            destination_mac: self.spec.destination_mac,
            source_mac: self.spec.source_mac,
            src: self.source(target.address, random),
            dst: target.address,
            dst_port: random.u16(target.first..=target.last),
        }
    }

    fn datagram(&self, mut path: Path, random: &mut Rng) -> (Forged, bool) {
        let Some((from, payload)) = random.choice(&self.spec.datagrams) else {
            return (Forged::datagram(&path, 5_060, b""), false);
        };
        let same_version = from.filter(|from| from.is_ipv4() == path.dst.is_ipv4());
        if let Some(from) = same_version {
            path.src = from.ip();
        }
        let port = same_version.map_or(5_060, |from| from.port());
        (Forged::datagram(&path, port, payload.as_bytes()), same_version.is_some())
    }

    fn source(&self, dst: IpAddr, random: &mut Rng) -> IpAddr {
        let same = |address: &IpAddr| address.is_ipv4() == dst.is_ipv4();
        if random.u8(..100) < self.spec.clients_percent {
            let clients = self.spec.clients.iter().filter(|client| same(client));
            let count = clients.clone().count();
            if let Some(client) = clients.clone().nth(random.usize(..count.max(1))) {
                return *client;
            }
        }
        let prefix = self.spec.sources.iter().find(|prefix| same(&prefix.addr()));
        prefix.map_or_else(|| any_like(dst), |prefix| nth(*prefix, random.u64(..)))
    }
}

fn kind_at(mix: &[(Kind, u32)], mut drawn: u64) -> Option<Kind> {
    for (kind, weight) in mix {
        match drawn.checked_sub(u64::from(*weight)) {
            Some(rest) => drawn = rest,
            None => return Some(*kind),
        }
    }
    None
}

#[derive(Default)]
struct Totals {
    frames: u64,
    bytes: u64,
    full: u64,
    refused: u64,
    printed: (u64, u64),
}

impl Totals {
    fn add(&mut self, sent: Transmitted, bytes: u64) {
        let offered = (sent.sent + sent.full + sent.refused) as u64;
        self.frames += sent.sent as u64;
        // A batch is sent whole or, rarely, in part: then its bytes count in proportion.
        self.bytes += bytes * sent.sent as u64 / offered.max(1);
        self.full += sent.full as u64;
        self.refused += sent.refused as u64;
    }

    /// Prints what was sent since the last time.
    fn print(&mut self, context: &Context) {
        let (frames, bytes) = (self.frames - self.printed.0, self.bytes - self.printed.1);
        self.printed = (self.frames, self.bytes);
        context.print(&json!({ "event": "tick", "frames": frames, "bytes": bytes }));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use sluicegate_wire::ip::Summary;

    use super::{super::SECONDS_MAX, *};

    fn spec() -> FloodSpec {
        FloodSpec {
            interface: "eth0".to_owned(),
            destination_mac: [2; 6],
            source_mac: [4; 6],
            targets: vec![Target { address: "203.0.113.10".parse().unwrap(), first: 5_000, last: 5_009 }],
            mix: vec![(Kind::Udp, 1)],
            datagrams: Vec::new(),
            sources: vec!["198.18.0.0/15".parse().unwrap()],
            clients: vec!["198.51.100.2".parse().unwrap()],
            clients_percent: 25,
            mark: 0,
            frame_bytes: vec![100],
            per_s: 1_000,
            seconds: 1,
            frames_max: 10,
            seed: 1,
        }
    }

    fn sources(frames: &[Forged]) -> Vec<IpAddr> {
        frames.iter().map(|frame| Summary::parse(&frame.as_ref()[14..]).unwrap().src).collect()
    }

    #[test]
    fn every_round_of_the_pool_has_new_sources_and_the_asked_share_of_clients() {
        let spec = spec();
        let mut random = Rng::with_seed(spec.seed);
        let mut pool = Pool::new(&spec, &mut random);
        let mut all = HashSet::new();
        let mut clients = 0;
        for _ in 0..10 {
            let batch = sources(pool.next(POOL_FRAMES as u64, &mut random));
            assert_eq!(batch.len(), POOL_FRAMES);
            clients += batch.iter().filter(|source| spec.clients.contains(source)).count();
            all.extend(batch);
        }
        assert!(all.len() > 10_000, "{}", all.len());
        let share = clients * 100 / (10 * POOL_FRAMES);
        assert!((20..=30).contains(&share), "{share} %");
    }

    #[test]
    fn a_batch_is_never_larger_than_asked_for() {
        let spec = spec();
        let mut random = Rng::with_seed(spec.seed);
        let mut pool = Pool::new(&spec, &mut random);
        for _ in 0..1_000 {
            assert!(pool.next(7, &mut random).len() <= 7);
        }
    }

    #[test]
    fn recorded_datagrams_keep_the_source_that_they_were_recorded_with() {
        let mut spec = spec();
        spec.mix.clear();
        spec.datagrams = vec![(Some("198.51.100.2:5060".parse().unwrap()), "INVITE".to_owned())];
        let mut random = Rng::with_seed(1);
        let mut pool = Pool::new(&spec, &mut random);
        assert!(sources(pool.next(100, &mut random)).iter().all(|source| source.to_string() == "198.51.100.2"));
    }

    #[test]
    fn a_specification_that_cannot_be_sent_is_refused_with_the_reason() {
        let refused = |change: fn(&mut FloodSpec)| {
            let mut spec = spec();
            change(&mut spec);
            check(&spec).unwrap_err()
        };
        assert!(refused(|spec| spec.mix.clear()).contains("nothing to send"));
        assert!(refused(|spec| spec.seconds = SECONDS_MAX + 1).contains("at most"));
        assert!(refused(|spec| spec.targets[0].first = u16::MAX).contains("first port"));
        assert!(refused(|spec| spec.sources[0] = "::/0".parse().unwrap()).contains("IP version"));
        assert!(check(&spec()).is_ok());
    }
}
