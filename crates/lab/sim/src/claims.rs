//! The papers' claims as checks: what a paper states, what the software does, and how far apart they may be.
//!
//! One file a claim or group of claims. A check runs the product's own objects, by a function that needs nothing but a
//! seed; the same functions are tests of this crate (in their short form) and lines of `sluicegate lab check`.

use std::{fmt, str::FromStr};

mod arithmetic;
mod burn;
mod bytes;
mod clock;
mod layout;
mod nutss;
mod overload;
mod replicas;
mod requests;
mod restart;

/// How strictly a claim is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Holds exactly.
    Exact,
    /// Holds within a tolerance, over random draws.
    Statistical,
    /// An order or shape holds.
    Ordinal,
    /// A matter of the machine: the paper's figure by a model of its machine, ours beside it.
    Machine,
}

impl Level {
    /// The letter in tables: X, S, O or H.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Exact => "X",
            Self::Statistical => "S",
            Self::Ordinal => "O",
            Self::Machine => "H",
        }
    }
}

/// Which paper a claim is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paper {
    /// Yang, Wetherall, Anderson: TVA, a DoS-limiting network architecture (IEEE/ACM ToN 2008).
    Tva,
    /// Sisalem, Floroiu: Protecting VoIP Services Against DoS Using Overload Control.
    Rsoca,
    /// Using NUTSS to stop DDoS.
    Nutss,
}

impl Paper {
    /// All papers.
    pub const ALL: &'static [Self] = &[Self::Tva, Self::Rsoca, Self::Nutss];

    /// The paper's short name.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tva => "tva",
            Self::Rsoca => "r-soca",
            Self::Nutss => "nutss",
        }
    }

    /// What the ids of its claims begin with.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Tva => "TVA-",
            Self::Rsoca => "RS-",
            Self::Nutss => "NU-",
        }
    }
}

impl fmt::Display for Paper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl FromStr for Paper {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|paper| paper.label().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|paper| paper.label()).collect();
            format!("no paper is called {text}; there is {}", known.join(", "))
        })
    }
}

/// How a check is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Seed of everything random.
    pub seed: u64,
    /// Fewer repetitions, for tests.
    pub short: bool,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What ours does, to be read beside [`Claim::expected`].
    pub ours: String,
    /// Whether that lies within the tolerance.
    pub pass: bool,
}

impl Outcome {
    pub(crate) const fn new(pass: bool, ours: String) -> Self {
        Self { ours, pass }
    }
}

/// One claim.
#[derive(Debug)]
pub struct Claim {
    /// Such as `TVA-13`.
    pub id: &'static str,
    /// The paper.
    pub paper: Paper,
    /// Section or figure of the paper.
    pub source: &'static str,
    /// What the paper states, or what follows from it.
    pub expected: &'static str,
    /// How far ours may be from it.
    pub tolerance: &'static str,
    /// How strictly it is held.
    pub level: Level,
    /// The check.
    pub run: fn(&Setting) -> Outcome,
}

impl Claim {
    const fn of(
        paper: Paper,
        id: &'static str,
        source: &'static str,
        (expected, tolerance, level): (&'static str, &'static str, Level),
        run: fn(&Setting) -> Outcome,
    ) -> Self {
        Self { id, paper, source, expected, tolerance, level, run }
    }

    /// The command that repeats one check.
    #[must_use]
    pub fn command(&self, setting: &Setting) -> String {
        let short = if setting.short { " --short" } else { "" };
        format!("sluicegate lab check --only {} --seed {}{short}", self.id, setting.seed)
    }
}

/// All claims, in the order of their ids.
pub const ALL: &[Claim] = &[
    burn::TVA_10,
    bytes::TVA_12,
    arithmetic::TVA_13,
    requests::TVA_14,
    requests::TVA_15,
    clock::TVA_16,
    restart::TVA_20,
    layout::TVA_21,
    overload::RS_1,
    overload::RS_2,
    overload::RS_3,
    overload::RS_4,
    overload::RS_5,
    overload::RS_6,
    overload::RS_7,
    overload::RS_8,
    overload::RS_9,
    overload::RS_10,
    nutss::NU_1,
    nutss::NU_2,
    nutss::NU_3,
    nutss::NU_4,
    replicas::NU_5,
    replicas::NU_6,
    replicas::NU_7,
];

/// The claim with this id, whatever the case of its letters.
#[must_use]
pub fn find(id: &str) -> Option<&'static Claim> {
    ALL.iter().find(|claim| claim.id.eq_ignore_ascii_case(id))
}
