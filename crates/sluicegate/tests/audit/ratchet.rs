//! The file from which a node makes its capabilities, in the hands of a thief.

use std::{
    fs,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use sluicegate_capability::secrets::{PERIOD_SECS, Seed};

use crate::support::{self, lab::Lab, node::Node, until};

/// How long before the roll-over the node starts.
const BEFORE_S: u64 = 3;
const PLANTED: Seed = Seed([0x5a; 32]);

struct Router {
    lab: Lab,
    config: PathBuf,
    /// What the router's clock is ahead of Unix time.
    ahead_s: u64,
}

impl Router {
    fn new() -> Self {
        let lab = Lab::new();
        let state = lab.path("state");
        let text = format!(
            "[node]\nname = \"r1\"\nstate = \"{}\"\n[gate]\nrole = \"router\"\ndatapath = \"packet\"\n\
             outside = \"outside\"\ninside = \"inside\"\nlink_rate = \"none\"\n",
            state.display()
        );
        let config = lab.write("r1.toml", &text);
        fs::create_dir_all(state.join("gate")).expect("the lab's directory is writable");
        Self { lab, config, ahead_s: 2 * PERIOD_SECS - BEFORE_S - unix() % PERIOD_SECS }
    }

    fn directory(&self) -> PathBuf {
        self.lab.path("state").join("gate")
    }

    /// The period that the router's clock shows.
    fn period(&self) -> u64 {
        (unix() + self.ahead_s) / PERIOD_SECS
    }

    fn plant(&self, seed: &Seed, period: u64) {
        let fields = [&self.ahead_s.to_be_bytes()[..], &period.to_be_bytes(), &seed.0].concat();
        let bytes = [&b"sgseed2\0"[..], &[7; 16], &fields].concat();
        fs::write(self.directory().join("router.seed"), bytes).expect("the state directory is writable");
    }

    fn stored(&self) -> Option<[u8; 32]> {
        fs::read(self.directory().join("router.seed")).ok()?.last_chunk().copied()
    }

    fn start(&self) -> Node {
        let node = Node::start(&self.lab, "gate", "gate", &self.config);
        let answers = || node.cli(&["status", "--json"]).status.success().then_some(());
        until("the router answers", answers);
        node
    }
}

fn unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

#[test]
fn conformance_13_who_steals_the_seed_learns_no_earlier_secret_and_a_clock_set_back_revives_none() {
    let Some(_turn) = support::turn(&[]) else { return };
    let router = Router::new();
    router.plant(&PLANTED, router.period() - 1);
    let node = router.start();
    until("the next period's seed is in the file", || (router.stored()? == PLANTED.next().0).then_some(()));
    for entry in fs::read_dir(router.directory()).expect("the state directory") {
        let path = entry.expect("an entry").path();
        let bytes = fs::read(&path).unwrap_or_default();
        assert!(!bytes.windows(32).any(|window| window == PLANTED.0), "{} tells the past", path.display());
    }
    drop(node);
    let node = router.start();
    assert_eq!(router.stored(), Some(PLANTED.next().0), "what may still hold goes on over a restart");
    drop(node);
    // The file of somebody whose clock was an hour ahead, as it is found when that has been put right.
    let later = router.period() + 3_600 / PERIOD_SECS;
    router.plant(&PLANTED, later);
    let _node = router.start();
    let (stored, mut seed) = (router.stored().expect("a seed"), PLANTED);
    for _ in 0..3_600 / PERIOD_SECS + 4 {
        assert_ne!(stored, seed.0, "no secret of the hour that comes again is the old one");
        seed = seed.next();
    }
}
