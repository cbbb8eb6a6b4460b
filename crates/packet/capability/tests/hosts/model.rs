use std::{cell::RefCell, rc::Rc, time::Duration};

use proptest::prelude::*;
use sluicegate_capability::host::{Inbound, ServerConfig};
use sluicegate_wire::capability::Kind;

use super::{
    client, limits, server,
    world::{A, B, World, datagram},
};

/// A small deterministic generator for fates of packets.
#[derive(Clone)]
struct Dice(Rc<RefCell<u64>>);

impl Dice {
    fn roll(&self, sides: u64) -> u64 {
        let mut state = self.0.borrow_mut();
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % sides
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize, usize),
    Wait(u64),
    Restart(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..2usize, 0..1_400usize).prop_map(|(side, len)| Step::Send(side, len)),
        4 => (0..60u64).prop_map(Step::Wait),
        1 => (300..3_000u64).prop_map(Step::Wait),
        1 => (0..2usize).prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With loss, reordering and restarts no capability ever carries more than its N, and no router ever has to
    /// demote a packet for it: the sender's own model stops first.
    #[test]
    fn no_sender_uses_a_capability_for_more_than_n_bytes(
        steps in steps(),
        seed in any::<u64>(),
        kilobytes in 3u16..60,
        seconds in 1u8..5,
        loss in 0u64..30,
    ) {
        let config = ServerConfig { limits: limits(kilobytes, seconds), ..ServerConfig::default() };
        let mut world = World::new(client(7), server(config), 2);
        for _ in 0..20 {
            world.send(A, &datagram(A, 10)).unwrap();
            world.run(5);
            world.send(B, &datagram(B, 10)).unwrap();
            world.run(5);
        }
        let dice = Dice(Rc::new(RefCell::new(seed)));
        let fates = dice.clone();
        world.fate = Box::new(move |_, _| {
            let delay = Duration::from_millis(20 + fates.roll(15));
            (fates.roll(100) >= loss).then_some(delay)
        });
        for step in steps {
            match step {
                Step::Send(from, len) => world.send(from, &datagram(from, len)).unwrap(),
                Step::Wait(ms) => world.run(ms),
                Step::Restart(router) => world.routers[router].restart(dice.roll(250) as u8),
            }
        }
        world.run(5_000);
        for router in &world.routers {
            prop_assert_eq!(router.overrun, 0, "a router had to stop a sender at N");
            for (used, most) in router.charged.values() {
                prop_assert!(used <= most);
            }
        }
        let mtu = 1_500;
        prop_assert!(world.wire.iter().all(|seen| seen.len <= mtu));

        // On a path that works again the flow soon does as well.
        world.fate = Box::new(|_, _| Some(Duration::from_millis(20)));
        for n in 0..600 {
            if n == 400 {
                world.wire.clear();
                world.delivered.clear();
            }
            world.send(A, &datagram(A, 400)).unwrap();
            world.send(B, &datagram(B, 400)).unwrap();
            world.run(10);
        }
        for side in [A, B] {
            let regular = world.count(side, Some(Kind::Nonce)) + world.count(side, Some(Kind::Capabilities));
            prop_assert!(regular > 0, "side {} found no way back", side);
            prop_assert!(world.delivered.iter().all(|delivery| !delivery.demoted || delivery.how == Inbound::Plain));
        }
    }

    /// Whatever two hosts exchange comes out as it went in.
    #[test]
    fn every_packet_comes_out_as_it_went_in(lens in prop::collection::vec((0..2usize, 0..1_400usize), 1..60)) {
        let mut world = World::new(client(7), server(ServerConfig::default()), 3);
        for (from, len) in &lens {
            world.send(*from, &datagram(*from, *len)).unwrap();
            world.run(7);
        }
        world.run(1_000);
        for side in [A, B] {
            let got: Vec<_> = world.got(side).into_iter().map(|delivery| delivery.bytes.clone()).collect();
            let sent: Vec<_> =
                lens.iter().filter(|(from, _)| *from != side).map(|(from, len)| datagram(*from, *len)).collect();
            prop_assert_eq!(got, sent);
        }
    }
}
