//! Clients, attackers and observers as workers of a lab ([`sluicegate_site::worker`]), by their roles.

use serde::de::DeserializeOwned;
use sluicegate_site::{
    LabError, process,
    worker::{Context, ExecSpec},
};

use crate::{attack, client, count, emulator, forward, passing, seen, sipload};

/// Runs the worker `role` with its specification, until its time is over or it is told to stop.
///
/// # Errors
/// [`LabError::Spec`] for an unknown role or a specification that does not fit it; what the role itself meets.
pub fn run(role: &str, spec_json: &str) -> Result<(), LabError> {
    process::die_with_the_lab()?;
    if role == "exec" {
        let spec: ExecSpec = parse(role, spec_json)?;
        return Err(process::become_program(&spec.program, &spec.arguments));
    }
    play(&Context::of_lab(role), spec_json)
}

/// Runs the worker `role` for a person or a script: until its time is over, whatever becomes of standard input and of
/// the process that started it.
///
/// # Errors
/// As [`run`].
pub fn run_by_hand(role: &str, spec_json: &str) -> Result<(), LabError> {
    play(&Context::by_hand(role), spec_json)
}

fn play(context: &Context, spec_json: &str) -> Result<(), LabError> {
    let role = context.role();
    match role {
        "call" => client::call::call(&parse(role, spec_json)?, context),
        "answer" => client::answer::answer(&parse(role, spec_json)?, context),
        "sink" => client::call::sink(&parse(role, spec_json)?, context),
        "transfer" => client::transfer::transfer(&parse(role, spec_json)?, context),
        "haul" => client::haul::haul(&parse(role, spec_json)?, context),
        "serve" => client::haul::serve(&parse(role, spec_json)?, context),
        "exchange" => client::exchange::exchange(&parse(role, spec_json)?, context),
        "mirror" => client::exchange::mirror(&parse(role, spec_json)?, context),
        "setup" => client::setup::setup(&parse(role, spec_json)?, context),
        "callers" => sipload::callers(&parse(role, spec_json)?, context),
        "callees" => sipload::callees(&parse(role, spec_json)?, context),
        "count" => count::count(&parse(role, spec_json)?, context),
        "forward" => forward::forward(&parse(role, spec_json)?, context),
        "emulate" => emulator::emulate(&parse(role, spec_json)?, context),
        "flood" => attack::flood(&parse(role, spec_json)?, context),
        "sip_flood" => attack::sip_flood(&parse(role, spec_json)?, context),
        "connections" => attack::connections(&parse(role, spec_json)?, context),
        "capability_flood" => attack::capability_flood(&parse(role, spec_json)?, context),
        "colluder" => attack::colluder(&parse(role, spec_json)?, context),
        "onlooker" => attack::onlooker(&parse(role, spec_json)?, context),
        "idle" => attack::idle(&parse(role, spec_json)?, context),
        "relay" => attack::relay(&parse(role, spec_json)?, context),
        "seen" => seen::seen(&parse(role, spec_json)?, context),
        "passing" => passing::passing(&parse(role, spec_json)?, context),
        "insider" => attack::insider(&parse(role, spec_json)?, context),
        _ => Err(context.refuse("there is no such role")),
    }
}

fn parse<S: DeserializeOwned>(role: &str, json: &str) -> Result<S, LabError> {
    serde_json::from_str(json).map_err(|error| LabError::Spec { role: role.to_owned(), reason: error.to_string() })
}
