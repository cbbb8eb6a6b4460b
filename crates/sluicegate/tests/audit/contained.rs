//! What stays closed when interfaces, processes and the host do not behave.

mod forwarding;
mod processes;
mod receiving;
mod tags;
