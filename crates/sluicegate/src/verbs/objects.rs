//! `group`, `service`, `grant`, `policy`: objects of a running node, through its control socket.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use sluicegate_api::{self as api, Endpoint, GrantStatus, PolicyTest, Revoke};
use sluicegate_policy::{Group, PortProtocol, Service};

use super::{
    control::{Node, cell, list, print_json},
    keys::now,
};
use crate::{
    cli::{GateAction, GrantAction, GroupAction, Named, PolicyAction, ServiceAction, ServiceFile},
    out,
};

pub(crate) fn group(action: GroupAction) -> Result<()> {
    match action {
        GroupAction::Add(Named { name, node }) => {
            let group = Group { name, description: String::new() };
            Node::of(&node.config)?.ask(&api::GROUP_ADD.ask(&group))?;
            out::line(format_args!("added group {}", group.name));
        }
        GroupAction::Ls(reading) => list(&reading, &api::GROUPS, ["GROUP"], |group| [group.name])?,
        GroupAction::Rm(of) => remove(&api::GROUP_REMOVE, "group", &of)?,
    }
    Ok(())
}

pub(crate) fn service(action: ServiceAction) -> Result<()> {
    match action {
        ServiceAction::Add(ServiceFile { file, node }) => {
            let node = Node::of(&node.config)?;
            let services = crate::config::services(&file)?;
            node.ask(&api::SERVICES_ADD.ask(&services))?;
            services.iter().for_each(|service| out::line(format_args!("added service {}", service.name)));
        }
        ServiceAction::Mod(ServiceFile { file, node }) => {
            let node = Node::of(&node.config)?;
            let services = crate::config::services(&file)?;
            let moved = node.ask(&api::SERVICES_REPLACE.ask(&services))?;
            for service in &services {
                let ended = if moved.contains(&service.name) { "; its grants were revoked" } else { "" };
                out::line(format_args!("changed service {}{ended}", service.name));
            }
        }
        ServiceAction::Ls(reading) => {
            let row = |service: Service| {
                let Service { name, kind, mode, address, ports, allow, .. } = service;
                [name, cell(&kind), cell(&mode), address.to_string(), cell(&ports), cell(&allow)]
            };
            list(&reading, &api::SERVICES, ["SERVICE", "KIND", "MODE", "ADDRESS", "PORTS", "ALLOW"], row)?;
        }
        ServiceAction::Rm(of) => remove(&api::SERVICE_REMOVE, "service", &of)?,
    }
    Ok(())
}

pub(crate) fn gate(action: GateAction) -> Result<()> {
    match action {
        GateAction::Ls(reading) => {
            let row = |gate: api::Gate| [gate.name, cell(&gate.connected), cell(&gate.seen_at)];
            list(&reading, &api::GATES, ["GATE", "CONNECTED", "LAST FROM"], row)?;
        }
        GateAction::Rm(of) => remove(&api::GATE_REMOVE, "gate", &of)?,
    }
    Ok(())
}

pub(super) fn remove(endpoint: &Endpoint<(), ()>, kind: &str, Named { name, node }: &Named) -> Result<()> {
    Node::of(&node.config)?.ask(&endpoint.ask_of(name, &()))?;
    out::line(format_args!("removed {kind} {name}"));
    Ok(())
}

pub(crate) fn grant(action: GrantAction) -> Result<()> {
    match action {
        GrantAction::Ls(reading) => {
            let unix = now().0;
            let headings = ["GRANT", "USER", "SERVICE", "PORTS", "MODE", "CLIENT", "GATE", "USED", "OF", "ENDS IN"];
            list(&reading, &api::GRANTS, headings, |grant| for_people(grant, unix))?;
        }
        GrantAction::Revoke { id, user, service, node } => {
            let of = [("grant", &id), ("user", &user), ("service", &service)];
            let of = of.into_iter().filter_map(|(what, which)| Some(format!("{what} {}", which.as_ref()?)));
            let of = of.collect::<Vec<_>>().join(", ");
            let selected = Revoke { grant: id, user, service };
            let count = Node::of(&node.config)?.ask(&api::GRANTS_REVOKE.ask(&selected))?.revoked;
            ensure!(count > 0, "nothing revoked: no grant is open of {of}; `sluicegate grant ls` shows those that are");
            out::line(format_args!("revoked {count} grants"));
        }
    }
    Ok(())
}

/// A grant with its ports and its end as a person writes them.
fn for_people(grant: GrantStatus, unix: u64) -> [String; 10] {
    let protocol = PortProtocol::from_number(grant.protocol).map_or_else(String::new, |known| known.to_string());
    let ports = match grant.target_ports {
        (0, _) => protocol,
        (first, last) if first == last => format!("{protocol}/{first}"),
        (first, last) => format!("{protocol}/{first}-{last}"),
    };
    let left = grant.not_after.saturating_sub(unix);
    let ends_in = if left < 60 { format!("{left}s") } else { format!("{}m{:02}s", left / 60, left % 60) };
    let (used, of) = (cell(&grant.bytes_used), grant.bytes_max.to_string());
    let GrantStatus { id, user, service, mode, client, gate, .. } = grant;
    [id.to_string(), user, service, ports, mode.to_string(), client.to_string(), gate, used, of, ends_in]
}

/// Asks whether a user may use a service; exit status 1 if not.
pub(crate) fn policy(action: PolicyAction) -> Result<ExitCode> {
    let PolicyAction::Test { user, service, proves, reading } = action;
    let test = PolicyTest { user, service, proves: Some(proves) };
    let decision = Node::of(&reading.node.config)?.ask(&api::POLICY_TEST.ask(&test))?;
    let status = if decision.outcome == "allow" { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if reading.json {
        return print_json(&decision).map(|()| status);
    }
    out::line(&decision.outcome);
    decision.steps.iter().for_each(|step| out::line(format_args!("  {step}")));
    Ok(status)
}

#[cfg(test)]
mod tests {
    use sluicegate_api::GrantState;
    use sluicegate_grant::DataMode;

    use super::*;

    #[test]
    fn a_grant_is_shown_with_what_it_opens_and_when_it_ends() {
        let grant = GrantStatus {
            id: "00112233445566778899aabbccddeeff".parse().unwrap(),
            user: "alice".into(),
            service: "web".into(),
            gate: "west".into(),
            client: [198, 51, 100, 7].into(),
            mode: DataMode::Mac,
            protocol: 17,
            target: [10, 0, 0, 2].into(),
            target_ports: (5004, 5007),
            gate_address: None,
            gate_ports: (0, 0),
            not_before: 1_000,
            not_after: 1_100,
            bytes_max: 10,
            bytes_used: Some(7),
            flows: Some(1),
            state: GrantState::Open,
        };
        let shown = for_people(grant.clone(), 1_005);
        let expected = ["alice", "web", "udp/5004-5007", "mac", "198.51.100.7", "west", "7", "10", "1m35s"];
        assert_eq!(shown[1..], expected);
        let esp = GrantStatus { protocol: 50, target_ports: (0, 0), bytes_used: None, ..grant };
        let shown = for_people(esp, 1_070);
        assert_eq!((&*shown[3], &*shown[7], &*shown[9]), ("esp", "-", "30s"));
    }
}
