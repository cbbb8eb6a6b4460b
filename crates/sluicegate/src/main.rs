//! The `sluicegate` command.

mod cli;
mod config;
mod file;
mod out;
mod process;
mod secret;
mod verbs;
#[cfg(feature = "lab")]
mod view;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Verb};

fn main() -> ExitCode {
    let cli = Cli::parse();
    logging(&cli);
    let log = log_options(&cli);
    match verbs::run(cli.verb, &log) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sluicegate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The log options of this process, for its children.
fn log_options(cli: &Cli) -> Vec<String> {
    let json = cli.log_json.then(|| "--log-json".to_owned());
    ["--log".to_owned(), cli.log.clone()].into_iter().chain(json).collect()
}

/// Log lines go to standard error; standard output belongs to what a verb prints.
fn logging(cli: &Cli) {
    let quiet = match cli.verb {
        Verb::AgentChild { .. } | Verb::AgentRestore { .. } | Verb::Completions { .. } | Verb::Man { .. } => true,
        #[cfg(feature = "lab")]
        Verb::Lab(cli::LabVerb::LabWorker { .. }) => true,
        _ => false,
    };
    if quiet {
        return;
    }
    let filter =
        tracing_subscriber::EnvFilter::try_new(&cli.log).unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    if cli.log_json {
        builder.json().init();
    } else {
        builder.init();
    }
}
