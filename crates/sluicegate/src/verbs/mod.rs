//! What each verb does; one file a verb or family of verbs.

mod agent;
mod backup;
mod check;
#[cfg(feature = "lab")]
mod claims;
mod connect;
mod control;
#[cfg(feature = "lab")]
mod experiments;
mod frontend;
mod gate;
mod keys;
#[cfg(feature = "lab")]
mod lab;
mod limits;
mod link;
mod node;
mod objects;
mod pcap;
mod reading;
mod reload;
mod status;
mod texts;
mod users;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;

use crate::{cli::Verb, config::Role};

/// Runs a verb to its end; `log` are the log options that a child process gets.
pub(crate) fn run(verb: Verb, log: &[String]) -> Result<ExitCode> {
    match verb {
        Verb::Up { config, confirm } => node::run(&config.file, Role::Up, confirm.map(Duration::from_secs), log)?,
        Verb::Reload(config) => reload::run(&config.file)?,
        Verb::Confirm(config) => reload::confirm(&config.file)?,
        Verb::Gate { action: Some(action), .. } => objects::gate(action)?,
        Verb::Gate { config, .. } => node::run(&config.file, Role::Gate, None, log)?,
        Verb::Frontend(config) => frontend::run(&config.file)?,
        Verb::FrontendChild(config) => frontend::child(&config.file)?,
        Verb::Agent { action: Some(action), .. } => return agent::run(action),
        Verb::Agent { config, .. } => node::serve(&config.file)?,
        Verb::AgentChild { agent, command } => return Ok(agent::child(agent, &command)),
        Verb::AgentRestore { changes } => sluicegate_agent::capture::restore(&changes),
        Verb::Connect(connect) => return connect::run(*connect),
        Verb::Link { service, user, frontend, node } => link::run(&service, &user, frontend, &node.config)?,
        Verb::Check { config, json } => return check::run(&config.file, json),
        Verb::Status(reading) => status::run(&reading)?,
        Verb::Trace(trace) => reading::trace(&trace)?,
        Verb::Observe { state, node } => reading::observe(state, &node)?,
        Verb::User { action } => users::run(action)?,
        Verb::Key { action } => keys::run(action)?,
        Verb::Group { action } => objects::group(action)?,
        Verb::Service { action } => objects::service(action)?,
        Verb::Grant { action } => objects::grant(action)?,
        Verb::Limit { action } => limits::run(action)?,
        Verb::Policy { action } => return objects::policy(action),
        Verb::GateJoin(join) => gate::join(&join)?,
        Verb::GateClose(config) => gate::close(&config.file)?,
        Verb::GateOpen(config) => gate::open(&config.file)?,
        Verb::Export { file, node } => backup::export(&file, &node.config)?,
        Verb::Import { file, replace, node } => backup::import(&file, &node.config, replace)?,
        #[cfg(feature = "lab")]
        Verb::Lab(verb) => return lab::run(verb),
        Verb::KeyHolder(of) => frontend::keep_key_holder(&of.directory, &of.realm)?,
        Verb::KeyHolderChild(of) => frontend::hold_keys(&of.directory, &of.realm)?,
        Verb::Completions { shell } => texts::completions(shell),
        Verb::Man { directory } => texts::man(directory.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}
