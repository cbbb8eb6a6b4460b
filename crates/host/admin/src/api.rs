//! What a node answers from, and its routes: status, grants, traces.

use std::sync::Arc;

use axum::{Router, http::StatusCode};
use sluicegate_api::{
    self as api, FlowTrace, GrantStatus, JoinToken, MessagesWanted, NodeStatus, Observe, PolicyAnswer, PolicyTest,
    Revoke, Revoked, TracedMessages,
};
use sluicegate_gate::{Probe, Selected, Selector, Tuple};
use sluicegate_grant::DataMode;
use sluicegate_policy::{Outcome, Step};
use sluicegate_telemetry::Metric;
use sluicegate_wire::Port;
use tokio::sync::Notify;

use crate::{
    beside::{self, Beside},
    metrics, objects,
    routes::{Asked, Refused, Routes, bad},
};

/// What a node runs. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Api {
    /// The gate, if this node is one.
    pub gate: Option<sluicegate_gate::Control>,
    /// The frontend, if this process is one.
    pub frontend: Option<sluicegate_frontend::Control>,
    /// The frontend of this node in a process of its own; then there is no `frontend`.
    pub beside: Option<Beside>,
    /// Users, groups and services of a frontend that does not run; then there is no `frontend`.
    pub catalog: Option<sluicegate_frontend::Catalog>,
    /// Where changes are written down.
    pub audit: Option<sluicegate_store::audit::Audit>,
    /// Told when an operator confirms that the host can still be reached, if that is waited for.
    pub confirmed: Option<Arc<Notify>>,
    /// Whether it is this node's gate alone that asks, and names for whom.
    pub is_beside: bool,
}

impl Api {
    fn gate(&self) -> Result<&sluicegate_gate::Control, Refused> {
        self.gate.as_ref().ok_or_else(|| bad("this node is no gate; ask the gate's node"))
    }

    pub(crate) fn frontend(&self) -> Result<&sluicegate_frontend::Control, Refused> {
        self.frontend.as_ref().ok_or_else(|| bad(beside::NO_FRONTEND))
    }

    /// All metrics, read now.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let gate = self.gate.iter().flat_map(sluicegate_gate::Control::metrics);
        gate.chain(self.frontend.iter().flat_map(sluicegate_frontend::Control::metrics)).collect()
    }
}

pub(crate) fn router(api: Api) -> Router {
    let routes = Routes::default()
        .on(&api::STATUS, status)
        .on(&api::GRANTS_REVOKE, revoke)
        .on(&api::OBSERVE, observe)
        .on(&api::CONFIRM, confirm)
        .on(&api::TRACE_FLOW, trace_flow);
    if api.beside.is_some() {
        // All else is the frontend's to answer.
        return routes.or(beside::forward).with_state(api);
    }
    let routes = routes
        .on(&api::GRANTS, grants)
        .on(&api::TRACE_USER, async |asked| Ok(asked.api.frontend()?.trace_user(&asked.name)))
        .on(&api::TRACE_CALL, async |asked| Ok(asked.api.frontend()?.trace_call(&asked.name)))
        .on(&api::TRACE_MESSAGES, trace_messages)
        .on(&api::POLICY_TEST, policy_test)
        .on(&api::JOIN_TOKEN, join_token);
    metrics::beside(objects::routes(routes).or_refused()).with_state(api)
}

async fn confirm(asked: Asked<()>) -> Result<(), Refused> {
    let waits = asked.api.confirmed.as_ref();
    waits.ok_or_else(|| bad("this node was started without --confirm; it stays as it is"))?.notify_one();
    asked.changed("confirm", "");
    Ok(())
}

async fn status(Asked { api, .. }: Asked<()>) -> Result<NodeStatus, Refused> {
    let frontend = match (&api.frontend, &api.beside) {
        (Some(frontend), _) => Some(frontend.status()),
        (None, Some(beside)) => beside.ask(&api::STATUS.ask(&()), None).await?.frontend,
        (None, None) => None,
    };
    let mut status = NodeStatus { gate: api.gate.as_ref().map(sluicegate_gate::Control::status), frontend };
    if let Some(error) = api.audit.as_ref().and_then(sluicegate_store::audit::Audit::error) {
        let alarm = format!("the audit log is not written ({error}); its lines are in this node's log alone");
        let gate = status.gate.as_mut().map(|gate| &mut gate.alarms);
        if let Some(alarms) = gate.or(status.frontend.as_mut().map(|frontend| &mut frontend.alarms)) {
            alarms.push(alarm);
        }
    }
    Ok(status)
}

async fn grants(Asked { api, .. }: Asked<()>) -> Result<Vec<GrantStatus>, Refused> {
    Ok(match (&api.frontend, &api.gate) {
        (Some(frontend), _) => frontend.grants(),
        (None, Some(gate)) => gate.grants().await,
        (None, None) => Vec::new(),
    })
}

async fn revoke(asked: Asked<Revoke>) -> Result<Revoked, Refused> {
    let api = &asked.api;
    let what = match asked.body.clone() {
        Revoke { grant: Some(grant), user: None, service: None } => Selected::Grant(grant.parse().map_err(bad)?),
        Revoke { grant: None, user: Some(user), service: None } => Selected::User(user),
        Revoke { grant: None, user: None, service: Some(service) } => Selected::Service(service),
        _ => return Err(bad("name one of grant, user or service")),
    };
    let of = match &what {
        Selected::Grant(id) => format!("grant {id}"),
        Selected::User(name) => format!("user {name}"),
        Selected::Service(name) => format!("service {name}"),
        Selected::Call(_) => return Err(bad("a call is ended by who made it")),
    };
    let selector = Selector::all(what);
    // The frontend first: it tells every gate, and issues nothing for what it revoked.
    let mut revoked = match (&api.frontend, &api.beside) {
        (Some(frontend), _) => frontend.revoke(selector.clone()).map_err(bad)?.len(),
        (None, Some(beside)) => beside.ask(&api::GRANTS_REVOKE.ask(&asked.body), Some(asked.actor)).await?.revoked,
        (None, None) => 0,
    };
    if let Some(gate) = &api.gate {
        revoked = revoked.max(gate.revoke(&selector).await.map_err(bad)?);
    }
    if api.beside.is_none() {
        asked.changed("grant revoke", &of);
    }
    Ok(Revoked { revoked })
}

async fn observe(asked: Asked<Observe>) -> Result<Observe, Refused> {
    asked.api.gate()?.observe(asked.body.on).await.map_err(bad)?;
    asked.changed("observe", if asked.body.on { "on" } else { "off" });
    Ok(asked.body)
}

async fn trace_flow(Asked { api, body: flow, .. }: Asked<api::Flow>) -> Result<FlowTrace, Refused> {
    let (src, dst) = ((flow.source, flow.source_port), (flow.destination, flow.destination_port));
    let port = if flow.inside { Port::INSIDE } else { Port::OUTSIDE };
    let probe = Probe { tuple: Tuple { protocol: flow.protocol, src, dst }, port };
    api.gate()?.trace(probe).await.map_err(bad)
}

async fn trace_messages(asked: Asked<MessagesWanted>) -> Result<TracedMessages, Refused> {
    let read = asked.api.frontend()?.trace_messages(&asked.name, asked.body.after);
    let (messages, begun) = read.map_err(bad)?;
    if begun {
        asked.changed("trace --pcap", &asked.name);
    }
    Ok(messages)
}

async fn policy_test(Asked { api, body: test, .. }: Asked<PolicyTest>) -> Result<PolicyAnswer, Refused> {
    let PolicyTest { user, service, proves } = test;
    let decision = api.frontend()?.policy_test((&user, &service), None, &[], proves.unwrap_or(DataMode::Capability));
    let outcome = match &decision.outcome {
        Outcome::Allow(_) => "allow".to_owned(),
        Outcome::Deny(reason) => format!("deny: {reason}"),
    };
    let step = |step: &Step| format!("{} {}", if step.passed { "yes:" } else { "no:" }, step.text);
    Ok(PolicyAnswer { outcome, steps: decision.steps.iter().map(step).collect() })
}

async fn join_token(asked: Asked<()>) -> Result<JoinToken, Refused> {
    let token = asked.api.frontend()?.join_token().map_err(bad)?.to_text().to_string();
    asked.changed("gate-join --new", "");
    Ok(JoinToken { token })
}

impl Refused {
    /// What the process beside this one said, or that it said nothing.
    pub(crate) fn elsewhere(error: crate::client::CallError) -> Self {
        match error {
            crate::client::CallError::Refused { status, message } => {
                Self(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY), message)
            }
            other => Self(StatusCode::BAD_GATEWAY, format!("the frontend's process: {other}")),
        }
    }
}
