//! Runs a command once the gate is open.

use std::{io, net::SocketAddr, process::ExitStatus};

use tokio::process::Command;

/// The command's words with `{host}` and `{port}` replaced by the gate's address and port. In front of a colon an IPv6
/// address stands in brackets, as in URLs (RFC 3986 section 3.2.2).
#[must_use]
pub(crate) fn words(command: &[String], gate: SocketAddr) -> Vec<String> {
    let (host, port) = (gate.ip().to_string(), gate.port().to_string());
    let before_colon = if gate.is_ipv6() { format!("[{host}]:") } else { format!("{host}:") };
    let filled =
        |word: &String| word.replace("{host}:", &before_colon).replace("{host}", &host).replace("{port}", &port);
    command.iter().map(filled).collect()
}

/// Runs it to its end. The environment variables `SLUICEGATE_HOST` and `SLUICEGATE_PORT` say the same as the
/// placeholders.
///
/// # Errors
/// When it cannot be started.
pub(crate) async fn run(command: &[String], gate: SocketAddr) -> io::Result<ExitStatus> {
    let words = words(command, gate);
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("SLUICEGATE_HOST", gate.ip().to_string())
        .env("SLUICEGATE_PORT", gate.port().to_string())
        .kill_on_drop(true)
        .spawn()?;
    child.wait().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placeholders_are_replaced_wherever_they_stand() {
        let command = ["ssh", "-p", "{port}", "me@{host}"].map(str::to_owned);
        let words = words(&command, "192.0.2.1:31022".parse().unwrap());
        assert_eq!(words, ["ssh", "-p", "31022", "me@192.0.2.1"]);
    }

    #[test]
    fn an_ipv6_address_has_brackets_where_a_port_follows() {
        let command = ["curl", "http://{host}:{port}/", "me@{host}"].map(str::to_owned);
        let filled = |gate: &str| words(&command, gate.parse().unwrap());
        assert_eq!(filled("[2001:db8::1]:80"), ["curl", "http://[2001:db8::1]:80/", "me@2001:db8::1"]);
        assert_eq!(filled("192.0.2.1:80"), ["curl", "http://192.0.2.1:80/", "me@192.0.2.1"]);
    }
}
