//! When packets passed an interface without a capability that held: what a change of their path costs.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::Options;
use sluicegate_wire::{
    capability::{CAPABILITIES_MAX, CAPABILITY_ONLY, Kind, shim},
    ethernet,
    ip::Summary,
};

use crate::listen::{SLOTS, listen};
use sluicegate_site::{LabError, Prefix, clock::unix_ns, worker::Context};

const PRINT_EVERY: Duration = Duration::from_millis(500);
/// Packets named between two prints.
const NAMED_MAX: usize = 16_384;
/// The high bit of a capability's time tells which of a router's two secrets made it.
const SECRET_BIT: u8 = 7;

/// Specification of the worker `passing`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassingSpec {
    /// The interface; what it receives is looked at.
    pub interface: String,
    /// Sources whose packets count.
    pub sources: Vec<Prefix>,
    /// How long.
    pub seconds: u32,
}

/// What a packet is without a capability that held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weak {
    /// Its capability held at no or not at every router.
    Demoted,
    /// A request with a payload: its sender holds no capability.
    Request,
    /// It has no capability header, or one that shows nothing and asks for nothing: its sender marked it.
    Plain,
}

/// The clocks of the routers on the path, as fresh entries of lists show them: slot by slot, the sender's own first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// Seconds modulo 256 in the last list.
    pub seconds: Vec<u8>,
    /// How often the secret was another one than in the list before.
    pub turns: Vec<u32>,
}

impl Clocks {
    fn learn(&mut self, seconds: &[u8]) {
        if self.seconds.len() != seconds.len() {
            *self = Self { seconds: seconds.to_vec(), turns: vec![0; seconds.len()] };
        }
        for ((turns, before), now) in self.turns.iter_mut().zip(&mut self.seconds).zip(seconds) {
            *turns += u32::from((*before ^ now) >> SECRET_BIT);
            *before = *now;
        }
    }
}

/// Runs the worker `passing`: prints `{"event":"passing","ns","regular","weak":[[ns, what], …]}` twice a second, with
/// what came since, and in the result the routers' `clocks` and what the listener `lost`.
pub(crate) fn passing(spec: &PassingSpec, context: &Context) -> Result<(), LabError> {
    let options = Options { receive_slots: SLOTS, promiscuous: true, ..Options::default() };
    let (mut regular, mut weak, mut clocks) = (0u64, Vec::new(), Clocks::default());
    let mut printed = Instant::now();
    let lost = listen((&spec.interface, &options, spec.seconds), context, |socket| {
        socket.receive(SLOTS, &mut |frame| match judge(spec, frame.bytes, &mut clocks) {
            Some(None) => regular += 1,
            Some(Some(what)) if weak.len() < NAMED_MAX => weak.push((frame.timestamp_ns, what)),
            _ => {}
        });
        if printed.elapsed() >= PRINT_EVERY {
            printed = Instant::now();
            print(context, regular, &weak);
            (regular, weak) = (0, Vec::new());
        }
        Ok(())
    })?;
    print(context, regular, &weak);
    context.result(&json!({ "clocks": clocks, "lost": lost }));
    Ok(())
}

fn print(context: &Context, regular: u64, weak: &[(u64, Weak)]) {
    context.print(&json!({ "event": "passing", "ns": unix_ns(), "regular": regular, "weak": weak }));
}

/// `None`: not of a source that counts. `Some(None)`: regular, or nothing but a header.
fn judge(spec: &PassingSpec, frame: &[u8], clocks: &mut Clocks) -> Option<Option<Weak>> {
    let packet = frame.get(ethernet::HEADER_LEN..)?;
    let summary = Summary::parse(packet).ok()?;
    if !spec.sources.iter().any(|prefix| prefix.contains(&summary.src)) {
        return None;
    }
    let Ok(Some(found)) = shim::find(&summary, packet) else { return Some(Some(Weak::Plain)) };
    let header = found.packet(packet);
    let is_alone = header.upper_protocol() == CAPABILITY_ONLY;
    if header.kind() == Kind::Request && header.count() == 0 {
        return Some((!is_alone).then_some(Weak::Plain));
    }
    if header.is_demoted() {
        return Some(Some(Weak::Demoted));
    }
    // Before the pointer each router has put its own fresh entry.
    if matches!(header.kind(), Kind::Request | Kind::Renewal) && header.pointer() > 1 {
        let mut seconds = [0; CAPABILITIES_MAX];
        let stamped = usize::from(header.pointer()).min(CAPABILITIES_MAX);
        for (index, seconds) in seconds.iter_mut().take(stamped).enumerate() {
            *seconds = header.capability(index)?.timestamp();
        }
        clocks.learn(&seconds[..stamped]);
    }
    Some((header.kind() == Kind::Request && !is_alone).then_some(Weak::Request))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use sluicegate_wire::{
        FrameBuf, IpProtocol, build,
        capability::{Algorithm, ClientId, FlowNonce, Repr, SlotList, shim::Carriage},
    };

    use super::*;

    fn judged(repr: &Repr) -> Option<Option<Weak>> {
        let packet =
            build::packet(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), &(IpProtocol::TCP, &[0; 20][..]));
        let mut frame = FrameBuf::from_bytes(&packet);
        frame.with(|frame| shim::insert(frame, repr, Carriage::Native)).unwrap();
        let spec = PassingSpec { interface: String::new(), sources: vec!["10.0.0.1/32".parse().unwrap()], seconds: 0 };
        judge(&spec, &[&[0; ethernet::HEADER_LEN], frame.bytes()].concat(), &mut Clocks::default())
    }

    #[test]
    fn what_its_sender_marked_is_not_what_a_router_demoted() {
        let (algorithm, client_id, upper) = (Algorithm::SipHash, ClientId(1), IpProtocol::TCP);
        let request = |slots, demoted| {
            judged(&Repr::Request { algorithm, client_id, slots, entries: SlotList::new(), demoted, upper, ret: None })
        };
        assert_eq!(request(0, true), Some(Some(Weak::Plain)));
        assert_eq!(request(3, true), Some(Some(Weak::Demoted)));
        assert_eq!(request(3, false), Some(Some(Weak::Request)));
        assert_eq!(judged(&Repr::nonce_only(algorithm, client_id, FlowNonce(7), upper)), Some(None));
    }

    #[test]
    fn a_clock_turns_when_the_secret_is_another_and_starts_anew_on_another_path() {
        let mut clocks = Clocks::default();
        clocks.learn(&[9, 127, 200]);
        clocks.learn(&[8, 128, 210]);
        clocks.learn(&[7, 250, 10]);
        assert_eq!((clocks.turns.clone(), clocks.seconds.clone()), (vec![0, 1, 1], vec![7, 250, 10]));
        clocks.learn(&[7, 1]);
        assert_eq!(clocks.turns, [0, 0]);
    }
}
