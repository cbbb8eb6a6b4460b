//! What is played: the paper's scenarios, in multiples of the load that the target is engineered for.

use super::{Mode, site::Callee};

/// One scenario.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// In a sentence.
    pub(super) about: &'static str,
    /// The paper's pictures and table of it, when the target does as R-SOCA does and when it says 503.
    pub(super) figures: [&'static str; 2],
    pub(super) calls: Calls,
    /// BYEs of an attacker, in multiples of the engineered load (the paper's 12,000 of 1,000).
    pub(super) byes: f64,
    pub(super) callee: Callee,
    /// How long calls begin, in seconds, and in the short form.
    pub(super) seconds: (u32, u32),
    /// How long what has begun may take to end while the attack goes on, in seconds.
    pub(super) ends_s: u32,
}

/// How many calls begin, in multiples of the engineered load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Calls {
    /// So many all the time.
    Steady(f64),
    /// From one to so many and back, evenly.
    Ramp(u32),
}

/// BYEs for each call of the engineered load (section IV-B-c).
const BYES: f64 = 12.0;
/// As long as a BYE is sent again (RFC 3261 section 17.1.2.2: 64 times T1), and a little.
const BYES_END_S: u32 = 34;

const fn steady(name: &'static str, about: &'static str, figures: [&'static str; 2], times: f64) -> Scene {
    let (calls, callee) = (Calls::Steady(times), Callee::Replying);
    Scene { name, about, figures, calls, byes: 0.0, callee, seconds: (40, 15), ends_s: 4 }
}

pub(super) const RAMP: Scene = Scene {
    calls: Calls::Ramp(5),
    seconds: (90, 36),
    ..steady("ramp", "from once to five times the engineered load and back", ["fig-03-04", "fig-05-06"], 1.0)
};
pub(super) const HEAVY: Scene = steady("heavy", "ten times the engineered load", ["fig-07-08", ""], 10.0);
pub(super) const BYES_1: Scene = Scene {
    byes: BYES,
    seconds: (40, 20),
    ends_s: BYES_END_S,
    ..steady("byes", "twelve BYEs of an attacker for each call", ["fig-09-10-tab-1", "fig-13-14-tab-3"], 1.0)
};
pub(super) const BYES_2: Scene = Scene {
    calls: Calls::Steady(2.0),
    name: "byes-2",
    about: "the same and twice the engineered load",
    figures: ["fig-11-12-tab-2", ""],
    ..BYES_1
};
pub(super) const SILENT_1: Scene = Scene {
    callee: Callee::Silent,
    seconds: (100, 60),
    ends_s: 0,
    ..steady("silent", "callees that say nothing", ["fig-15-16", ""], 1.0)
};
pub(super) const SILENT_2: Scene = Scene {
    calls: Calls::Steady(2.0),
    name: "silent-2",
    about: "twice as many calls to callees that say nothing",
    figures: ["fig-17-18", "fig-19-20"],
    ..SILENT_1
};
/// Under 503 all of them come in waves, each as long as a call may take and the pause that its senders were told: over few of these
/// the mean says where the first and the last one were cut.
const SILENT_2_WAVES: Scene = Scene { seconds: (240, 240), ..SILENT_2 };

impl Mode {
    /// What is played, and how the target meets it.
    pub(super) const fn plays(self) -> &'static [(Scene, Self)] {
        match self {
            Self::Paper => &[
                (RAMP, Self::Paper),
                (HEAVY, Self::Paper),
                (BYES_1, Self::Paper),
                (BYES_2, Self::Paper),
                (SILENT_1, Self::Paper),
                (SILENT_2, Self::Paper),
            ],
            // R-SOCA first: its swing is what that of the baseline is compared with.
            Self::Unavailable => &[
                (HEAVY, Self::Paper),
                (HEAVY, Self::Unavailable),
                (BYES_1, Self::Unavailable),
                (RAMP, Self::Unavailable),
                (SILENT_2_WAVES, Self::Unavailable),
            ],
            Self::Default => &[
                (RAMP, Self::Default),
                (HEAVY, Self::Default),
                (BYES_1, Self::Default),
                (BYES_2, Self::Default),
                (SILENT_1, Self::Default),
                (SILENT_2, Self::Default),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_scenarios_of_a_mode_are_called_alike() {
        for mode in [Mode::Paper, Mode::Unavailable, Mode::Default] {
            let names: Vec<_> = mode.plays().iter().map(|(scene, by)| (scene.name, by.label())).collect();
            for (place, name) in names.iter().enumerate() {
                assert!(!names[..place].contains(name), "{name:?}");
            }
        }
    }
}
