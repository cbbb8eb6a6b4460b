//! One lab worker, as `sluicegate lab-worker` runs it: for the tests of this crate, which do not build that binary.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let [_, verb, role, spec] = arguments.as_slice() else {
        eprintln!("usage: lab-worker lab-worker ROLE JSON");
        return ExitCode::FAILURE;
    };
    if verb != "lab-worker" {
        eprintln!("unknown verb {verb}");
        return ExitCode::FAILURE;
    }
    match sluicegate_traffic::worker::run(role, spec) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
