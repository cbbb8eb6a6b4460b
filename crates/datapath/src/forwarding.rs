//! Whether the kernel would forward packets past the gate, and how to stop it.
//!
//! IPv4 decides by the interface on which a packet arrives. IPv6 has one switch for the whole namespace, and since Linux
//! 6.17 one more per interface.

use std::{fs, io};

/// Whether the kernel forwards IPv4 or IPv6 packets that arrive on `interface`, in the calling thread's namespace.
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

/// Switches forwarding of what arrives on `interface` off; for IPv6 that means everywhere in the namespace.
///
/// # Errors
/// No right to, or `/proc/sys` is read-only (a container): the message names the file.
pub fn switch_off(interface: &str) -> io::Result<()> {
    for path in settings(interface) {
        match fs::read_to_string(&path) {
            Ok(value) if value.trim() != "0" => fs::write(&path, "0")
                .map_err(|error| io::Error::new(error.kind(), format!("writing 0 to {path}: {error}")))?,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// `/proc/sys/net` shows the namespace of the thread that reads it.
fn settings(interface: &str) -> [String; 3] {
    [
        format!("/proc/sys/net/ipv4/conf/{interface}/forwarding"),
        format!("/proc/sys/net/ipv6/conf/{interface}/force_forwarding"),
        "/proc/sys/net/ipv6/conf/all/forwarding".into(),
    ]
}
