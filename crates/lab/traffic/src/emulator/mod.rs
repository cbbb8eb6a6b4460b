//! A link emulator: delay, jitter, reordering and loss between two interfaces, in user space.
//!
//! For kernels without `sch_netem`. It costs a processor and has a ceiling, which [`ceiling`] measures: keep what you
//! send through it far below.

mod line;
mod run;

pub use line::{Line, LineCounters, LineOptions};
pub(crate) use run::emulate;
pub use run::{Ceiling, EmulateSpec, ceiling};
