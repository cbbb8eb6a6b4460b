//! Runs a command once the gate is open.

use std::{io, net::SocketAddr, process::ExitStatus};

use tokio::process::Command;

/// The command's words with `{host}` and `{port}` replaced by the gate's address and port.
#[must_use]
pub(crate) fn words(command: &[String], gate: SocketAddr) -> Vec<String> {
    let (host, port) = (gate.ip().to_string(), gate.port().to_string());
    command.iter().map(|word| word.replace("{host}", &host).replace("{port}", &port)).collect()
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
}
