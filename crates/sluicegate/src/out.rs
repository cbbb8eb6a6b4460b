//! Standard output, which the reader may close at any time (`sluicegate status | head`).

use std::{
    fmt::Display,
    io::{Write, stdout},
};

/// Writes one line to standard output. A reader that has gone away has all it wants: the process ends.
pub(crate) fn line(text: impl Display) {
    if writeln!(stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}
