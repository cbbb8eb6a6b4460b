//! What every end-to-end test stands on: a lab of namespaces, nodes of the real binary, programs, phones, traffic.

/// A test that runs with both back ends: `NAME::packet` and `NAME::xdp` call `BODY("packet")` and `BODY("xdp")`. One that is
/// `alone` runs beside no other.
macro_rules! on_each_datapath {
    (alone $name:ident, $programs:expr, $body:path) => {
        on_each_datapath!(@ alone, $name, $programs, $body);
    };
    ($name:ident, $programs:expr, $body:path) => {
        on_each_datapath!(@ turn, $name, $programs, $body);
    };
    (@ $turn:ident, $name:ident, $programs:expr, $body:path) => {
        mod $name {
            #[test]
            fn packet() {
                if let Some(_turn) = $crate::support::$turn($programs) {
                    $body("packet");
                }
            }

            #[test]
            fn xdp() {
                if let Some(_turn) = $crate::support::$turn($programs) {
                    $body("xdp");
                }
            }
        }
    };
}

/// A test that runs once, with the `packet` back end; `alone` as above.
macro_rules! on_packet {
    (alone $name:ident, $programs:expr, $body:path) => {
        on_packet!(@ alone, $name, $programs, $body);
    };
    ($name:ident, $programs:expr, $body:path) => {
        on_packet!(@ turn, $name, $programs, $body);
    };
    (@ $turn:ident, $name:ident, $programs:expr, $body:path) => {
        #[test]
        fn $name() {
            if let Some(_turn) = $crate::support::$turn($programs) {
                $body("packet");
            }
        }
    };
}

pub(crate) mod agent;
pub(crate) mod capture;
pub(crate) mod forger;
pub(crate) mod lab;
pub(crate) mod line;
pub(crate) mod node;
pub(crate) mod pbx;
pub(crate) mod phone;
pub(crate) mod program;
pub(crate) mod rtp;
pub(crate) mod softphone;
pub(crate) mod stock_pbx;
pub(crate) mod stream_pbx;
pub(crate) mod traffic;
pub(crate) mod voices;

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread,
    time::{Duration, Instant},
};

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");
/// Longer than anything that works takes; a test that waits for so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Processor time that the host of this machine has taken, all processors together: what stood still meanwhile is not ours.
pub(crate) fn stolen() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    // user nice system idle iowait irq softirq steal, in hundredths of a second
    let ticks = stat.lines().next().and_then(|all| all.split_whitespace().nth(8)?.parse::<u64>().ok());
    Duration::from_millis(ticks.unwrap_or(0) * 10)
}

/// Most labs wait most of the time, and stand beside each other, as many as the harness has threads. Those that flood, or
/// measure what a flood leaves, have the machine for themselves.
static TURN: RwLock<()> = RwLock::new(());

/// The test's turn if this machine can run it: as root, with `programs` installed. `None` after saying what is missing.
///
/// # Panics
/// Instead of `None` where `SLUICEGATE_NO_SKIP=1` forbids skipping.
pub(crate) fn turn(programs: &[&str]) -> Option<RwLockReadGuard<'static, ()>> {
    can_run(programs).then(|| TURN.read().unwrap_or_else(PoisonError::into_inner))
}

/// As [`turn`], beside no other test.
pub(crate) fn alone(programs: &[&str]) -> Option<RwLockWriteGuard<'static, ()>> {
    can_run(programs).then(|| TURN.write().unwrap_or_else(PoisonError::into_inner))
}

fn can_run(programs: &[&str]) -> bool {
    let may = sluicegate_site::namespace::may_make_namespaces();
    let root = (!may).then(|| "root".to_owned());
    let missing = programs.iter().filter(|name| find(name).is_none()).map(|name| (*name).to_owned());
    let missing: Vec<String> = root.into_iter().chain(missing).collect();
    if !missing.is_empty() {
        let needs = missing.join(", ");
        assert!(
            env::var_os("SLUICEGATE_NO_SKIP").is_none_or(|value| value != "1"),
            "may not be skipped: needs {needs}"
        );
        // Past the test harness, which shows only what failing tests print.
        let _ = std::io::stderr().write_all(format!("skipped: needs {needs}\n").as_bytes());
    }
    missing.is_empty()
}

/// Where a program is installed.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"])
        .map(|dir| Path::new(dir).join(name))
        .find(|file| file.is_file())
}

/// Waits until `ready` gives something.
///
/// # Panics
/// With `what` if it does not within [`PATIENCE`].
pub(crate) fn until<T>(what: &str, ready: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, ready).unwrap_or_else(|| panic!("{what}: not within {PATIENCE:?}"))
}

/// What `ready` gives within `limit`.
pub(crate) fn within<T>(limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = ready() {
            return Some(value);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Lets the lab run on for a time whose length is what the test is about.
pub(crate) fn let_run(time: Duration) {
    thread::sleep(time);
}
