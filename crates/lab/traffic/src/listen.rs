//! What observers have in common: an interface and a time.

use std::time::{Duration, Instant};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_site::{During, LabError, worker::Context};

/// Frames that wait for their observer, and that it takes at once.
pub(crate) const SLOTS: usize = 16_384;
/// Longest wait; also how late an observer notices that it should stop.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// Opens a raw socket.
pub(crate) fn open(interface: &str, options: &Options) -> Result<Socket, LabError> {
    Socket::open(interface, options).during(|| format!("opening {interface}"))
}

/// Gives `turn` the socket whenever frames may have come, until the time is over or the worker is to stop, and then a last
/// time. Returns how many frames the observer missed.
pub(crate) fn listen(
    (interface, options, seconds): (&str, &Options, u32),
    context: &Context,
    mut turn: impl FnMut(&mut Socket) -> Result<(), LabError>,
) -> Result<u64, LabError> {
    let mut socket = open(interface, options)?;
    context.ready();
    let end = Instant::now() + Duration::from_secs(seconds.into());
    while Instant::now() < end && !context.stopped() {
        socket.wait(WAIT_MAX).during(|| format!("waiting on {interface}"))?;
        turn(&mut socket)?;
    }
    turn(&mut socket)?;
    Ok(socket.statistics().map_or(0, |statistics| statistics.dropped))
}
