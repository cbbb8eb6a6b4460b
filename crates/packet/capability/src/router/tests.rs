use core::{net::IpAddr, time::Duration};
use std::vec::Vec;

use crate::secrets::{Seed, seal};
use sluicegate_wire::{
    Frame, FrameBuf, Instant, IpProtocol, Packet, Port, Reason, build,
    capability::{
        Algorithm, Capability, CapabilityList, ClientId, FlowNonce, Kind, Limits, PathId, Repr, SlotList,
        shim::{self, Carriage},
    },
    icmp, ip, ipv4, udp,
};

use super::{Arrival, Class, PATH_MAX, Router, RouterConfig};

mod misuse;
mod passing;
mod pressure;

pub(super) const CLIENT: &str = "198.51.100.9";
pub(super) const SERVER: &str = "203.0.113.5";
pub(super) const CLIENT6: &str = "2001:db8:1::9";
pub(super) const SERVER6: &str = "2001:db8:2::5";
pub(super) const ID: ClientId = ClientId(0x0102_0304);
pub(super) const NONCE: FlowNonce = FlowNonce(0x1234_5678_9abc);
pub(super) const OUTSIDE: Arrival =
    Arrival { port: Port::OUTSIDE, neighbour: 0x0200_0000_0001, verified_source: false };
pub(super) const REGULAR: Result<Class, Reason> = Ok(Class::Regular { capability: true });
pub(super) const CARRIAGES: [Carriage; 2] = [Carriage::Native, Carriage::Encapsulated { src_port: 40_000 }];
pub(super) const ALGORITHMS: [Algorithm; 2] = [Algorithm::SipHash, Algorithm::Aes];

pub(super) fn demoted(reason: Reason) -> Result<Class, Reason> {
    Ok(Class::Legacy { demoted: Some(reason) })
}

pub(super) fn limits(kilobytes: u16, seconds: u8) -> Limits {
    Limits::new(kilobytes, seconds).unwrap()
}

pub(super) fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

pub(super) fn config(seed: u8) -> RouterConfig {
    RouterConfig {
        lines_max: 100,
        lines6_max: 100,
        revocations_max: 100,
        boundary: [true, false],
        least: limits(1, 63),
        seed: Seed([seed; 32]),
        tag_key: [seed; 16],
        first_seconds: 12_345,
        started_at: Instant::ZERO,
    }
}

pub(super) fn router(seed: u8) -> Router {
    Router::new(config(seed), [seed; 16])
}

/// Two ends, and how packets between them carry their capabilities.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) algorithm: Algorithm,
    pub(super) carriage: Carriage,
    pub(super) client: ClientId,
}

impl Pair {
    pub(super) fn new() -> Self {
        let (src, dst) = (CLIENT.parse().unwrap(), SERVER.parse().unwrap());
        Self { src, dst, algorithm: Algorithm::SipHash, carriage: Carriage::Native, client: ID }
    }

    /// Both versions, both carriages, both algorithms.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let ends = [(CLIENT, SERVER), (CLIENT6, SERVER6)];
        ends.into_iter().flat_map(|(src, dst)| {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            CARRIAGES.into_iter().flat_map(move |carriage| {
                ALGORITHMS.map(|algorithm| Self { src, dst, algorithm, carriage, client: ID })
            })
        })
    }

    pub(super) fn plain(&self, payload: usize) -> FrameBuf {
        FrameBuf::from_bytes(&udp_packet(self.src, self.dst, 5_000, payload))
    }

    pub(super) fn with(&self, repr: &Repr, payload: usize) -> FrameBuf {
        let mut frame = self.plain(payload);
        frame.with(|frame| shim::insert(frame, repr, self.carriage)).unwrap();
        frame
    }

    pub(super) fn request(&self, slots: u8) -> FrameBuf {
        self.with(&Repr::request(self.algorithm, self.client, slots, IpProtocol::UDP), 10)
    }

    pub(super) fn nonce_only(&self, nonce: FlowNonce, payload: usize) -> FrameBuf {
        self.with(&Repr::nonce_only(self.algorithm, self.client, nonce, IpProtocol::UDP), payload)
    }

    pub(super) fn regular(&self, kind: Kind, nonce: FlowNonce, granted: &Granted, payload: usize) -> FrameBuf {
        let repr = Repr::Regular {
            algorithm: self.algorithm,
            kind,
            nonce,
            client_id: self.client,
            limits: Some(granted.limits),
            list: granted.list,
            pointer: 0,
            demoted: false,
            upper: IpProtocol::UDP,
            ret: None,
        };
        self.with(&repr, payload)
    }

    /// A request over `routers`, granted by the destination.
    pub(super) fn acquire(&self, now: Instant, routers: &mut [&mut Router], limits: Limits) -> Granted {
        let mut frame = self.request(8);
        for router in &mut *routers {
            assert!(matches!(judge(router, now, &mut frame), Ok(Class::Request { .. })));
        }
        let slots = routers.len();
        let header = header(&frame);
        let pre = (0..slots).map(|slot| header.capability(slot).unwrap());
        Granted { limits, list: pre.map(|pre| seal(self.algorithm, pre, limits)).collect() }
    }
}

/// What a destination returned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) limits: Limits,
    pub(super) list: CapabilityList,
}

pub(super) fn judge(router: &mut Router, now: Instant, frame: &mut FrameBuf) -> Result<Class, Reason> {
    frame.with(|frame| router.on_packet(now, &OUTSIDE, frame))
}

pub(super) fn header(frame: &FrameBuf) -> sluicegate_wire::capability::Packet<&[u8]> {
    let summary = ip::Summary::parse(frame.bytes()).unwrap();
    shim::find(&summary, frame.bytes()).unwrap().unwrap().packet(frame.bytes())
}

/// Whether IP and UDP checksums, outer and inner, are right, seen as the destination sees them.
pub(super) fn is_intact(frame: &FrameBuf) -> bool {
    let outer = ip::Summary::parse(frame.bytes()).is_ok_and(|summary| summary.verify_transport_checksum(frame.bytes()));
    let mut plain = frame.clone();
    let summary = ip::Summary::parse(frame.bytes()).unwrap();
    let found = shim::find(&summary, frame.bytes()).unwrap().unwrap();
    plain.with(|frame| shim::strip(frame, &found)).unwrap();
    let inner = ip::Summary::parse(plain.bytes()).is_ok_and(|summary| summary.verify_transport_checksum(plain.bytes()));
    outer && inner
}

pub(super) fn udp_packet(src: IpAddr, dst: IpAddr, dst_port: u16, payload: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload).map(|n| n as u8).collect();
    let repr = udp::Repr { src_port: 9_999, dst_port, payload: &payload };
    build::packet(src, dst, &repr)
}

pub(super) fn ip_packet(src: IpAddr, dst: IpAddr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &(protocol, payload))
}
