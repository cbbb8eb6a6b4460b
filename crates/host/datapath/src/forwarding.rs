//! Whether the kernel would forward packets past the gate, and how to stop it; and whether it would let its neighbours
//! teach it routes.
//!
//! IPv4 decides by the interface on which a packet arrives, and gives a new interface what `default` says: one that is
//! made anew would forward. IPv6 has one switch for the whole namespace, and since Linux 6.17 one more per interface.

use std::{fs, io};

use crate::FRAGMENT_WAIT;

/// Whether the kernel forwards IPv4 or IPv6 packets that arrive on `interface`, or would once that interface was made
/// anew, in the calling thread's namespace.
///
/// # Errors
/// If the settings cannot be read. A kernel without one of the protocols does not forward it.
pub fn is_on(interface: &str) -> io::Result<bool> {
    for path in settings(interface) {
        match fs::read_to_string(&path) {
            Ok(value) if value.trim() != "0" => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Switches forwarding off: of all interfaces and of those to come.
///
/// # Errors
/// No right to, or `/proc/sys` is read-only (a container): the message names the file.
pub fn switch_off(interface: &str) -> io::Result<()> {
    settings(interface).iter().try_for_each(|path| clear(path))
}

/// Has the kernel learn no route from router advertisements and redirects that arrive on `interface`.
///
/// # Errors
/// As [`switch_off`].
pub fn refuse_advice(interface: &str) -> io::Result<()> {
    [
        format!("/proc/sys/net/ipv6/conf/{interface}/accept_ra"),
        format!("/proc/sys/net/ipv6/conf/{interface}/accept_redirects"),
        format!("/proc/sys/net/ipv4/conf/{interface}/accept_redirects"),
        // IPv4 takes redirects where either this or the interface says so.
        "/proc/sys/net/ipv4/conf/all/accept_redirects".to_owned(),
    ]
    .iter()
    .try_for_each(|path| clear(path))
}

/// Has the kernel keep fragments for the host no longer than the filter lets others follow, so that those of datagrams that
/// never become whole fill its memory for no longer.
///
/// # Errors
/// As [`switch_off`].
pub fn shorten_reassembly() -> io::Result<()> {
    let wait = FRAGMENT_WAIT.as_secs();
    for path in ["/proc/sys/net/ipv4/ipfrag_time", "/proc/sys/net/ipv6/ip6frag_time"] {
        match fs::read_to_string(path) {
            Ok(value) if value.trim().parse().is_ok_and(|seconds: u64| seconds <= wait) => {}
            Ok(_) => write(path, &wait.to_string())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write(path: &str, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(|error| io::Error::new(error.kind(), format!("writing {value} to {path}: {error}")))
}

/// Writes 0 where there is something else; a setting that this kernel does not have is off.
fn clear(path: &str) -> io::Result<()> {
    match fs::read_to_string(path) {
        Ok(value) if value.trim() != "0" => write(path, "0"),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// `/proc/sys/net` shows the namespace of the thread that reads it. `all` comes first: writing it sets every other.
fn settings(interface: &str) -> [String; 5] {
    [
        "/proc/sys/net/ipv4/conf/all/forwarding".into(),
        "/proc/sys/net/ipv4/conf/default/forwarding".into(),
        format!("/proc/sys/net/ipv4/conf/{interface}/forwarding"),
        format!("/proc/sys/net/ipv6/conf/{interface}/force_forwarding"),
        "/proc/sys/net/ipv6/conf/all/forwarding".into(),
    ]
}
