//! `limit`: who is held to limits of a frontend, and who is not to be.

use anyhow::{Result, ensure};
use sluicegate_api::{self as api, LimitKind, LimitLift, LimitStatus};

use super::{
    control::{Node, cell, list},
    keys::now,
};
use crate::{cli::LimitAction, out};

pub(crate) fn run(action: LimitAction) -> Result<()> {
    match action {
        LimitAction::Ls(reading) => {
            let unix = now().0;
            let headings = ["LIMIT", "SOURCE", "USER", "REFUSED", "LAST", "ENDS IN", "WHY"];
            list(&reading, &api::LIMITS, headings, |limit| for_people(limit, unix))?;
        }
        LimitAction::Lift { source, minutes, reason, node } => {
            let lift = LimitLift { source, seconds: minutes * 60, reason };
            Node::of(&node.config)?.ask(&api::LIMIT_LIFT.ask(&lift))?;
            out::line(format_args!("nobody at {source} is refused for load in the next {minutes} minutes"));
        }
        LimitAction::Restore { source, node } => {
            let lift = LimitLift { source, seconds: 0, reason: String::new() };
            let was_lifted = Node::of(&node.config)?.ask(&api::LIMIT_LIFT.ask(&lift))?;
            ensure!(was_lifted, "no limit is lifted for {source}; `sluicegate limit ls` shows those that are");
            out::line(format_args!("{source} is held to its limit again"));
        }
        LimitAction::Forgive(of) => {
            let forgiven = Node::of(&of.node.config)?.ask(&api::LIMIT_FORGIVE.ask_of(&of.name, &()))?;
            out::line(format_args!("wrong passwords of {} are forgotten, from {} places", of.name, forgiven.sources));
        }
    }
    Ok(())
}

fn for_people(limit: LimitStatus, unix: u64) -> [String; 7] {
    let why = match limit.kind {
        LimitKind::Load => "sends more than others".to_owned(),
        LimitKind::Passwords => "wrong passwords".to_owned(),
        LimitKind::Lifted => limit.reason.unwrap_or_default(),
    };
    let last = limit.refused_at.map_or_else(|| "-".to_owned(), |at| format!("{}s ago", unix.saturating_sub(at)));
    let ends =
        limit.until.map_or_else(|| "-".to_owned(), |until| format!("{}m", until.saturating_sub(unix).div_ceil(60)));
    [cell(&limit.kind), limit.source.to_string(), cell(&limit.user), limit.refused.to_string(), last, ends, why]
}
