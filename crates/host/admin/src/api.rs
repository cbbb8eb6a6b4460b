//! The routes.

use std::{net::IpAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use sluicegate_gate::{Probe, Selected, Selector};
use sluicegate_grant::DataMode;
use sluicegate_wire::Port;
use tokio::sync::Notify;

use crate::{
    actor::Actor,
    beside::{self, Beside},
    metrics::{self, Series, of_frontend},
    objects,
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

/// A refusal: status and text.
pub(crate) struct Refused(pub(crate) StatusCode, pub(crate) String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

pub(crate) type Answer = Result<Json<Value>, Refused>;

pub(crate) fn bad(error: impl std::fmt::Display) -> Refused {
    Refused(StatusCode::BAD_REQUEST, error.to_string())
}

pub(crate) fn json_of(value: &impl serde::Serialize) -> Answer {
    serde_json::to_value(value).map(Json).map_err(|error| Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

impl Api {
    fn gate(&self) -> Result<&sluicegate_gate::Control, Refused> {
        self.gate.as_ref().ok_or_else(|| bad("this node is no gate; ask the gate's node"))
    }

    pub(crate) fn frontend(&self) -> Result<&sluicegate_frontend::Control, Refused> {
        self.frontend.as_ref().ok_or_else(|| bad("this node is no frontend; ask the frontend's node"))
    }

    /// All metrics, read now.
    pub(crate) fn metrics(&self) -> Vec<Series> {
        let gate = self.gate.iter().flat_map(sluicegate_gate::Control::metrics).map(Series::from);
        gate.chain(self.frontend.iter().flat_map(of_frontend)).collect()
    }
}

pub(crate) fn router(api: Api) -> Router {
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/grants/revoke", post(revoke))
        .route("/v1/observe", post(observe))
        .route("/v1/confirm", post(confirm))
        .route("/v1/trace/flow", post(trace_flow));
    let router = if api.beside.is_some() {
        // All else is the frontend's to answer.
        router.fallback(beside::forward)
    } else {
        router
            .route("/v1/grants", get(grants))
            .route("/v1/trace/user/{user}", get(trace_user))
            .route("/v1/policy/test", get(policy_test))
            .route("/v1/join-token", post(join_token))
            .route(beside::METRICS, get(|State(api): State<Api>| async move { metrics::answer(api).await }))
            .merge(objects::router())
    };
    router.with_state(api)
}

async fn confirm(State(api): State<Api>, actor: Actor) -> Answer {
    let waits =
        api.confirmed.as_ref().ok_or_else(|| bad("this node was started without --confirm; it stays as it is"))?;
    waits.notify_one();
    api.changed(actor, "confirm", "");
    Ok(Json(Value::Null))
}

async fn status(State(api): State<Api>) -> Answer {
    let frontend = match (&api.frontend, &api.beside) {
        (Some(frontend), _) => frontend_status(frontend),
        (None, Some(beside)) => beside.get("/v1/status").await?["frontend"].take(),
        (None, None) => Value::Null,
    };
    let mut status = json!({ "gate": api.gate.as_ref().map(sluicegate_gate::Control::status), "frontend": frontend });
    if let Some(error) = api.audit.as_ref().and_then(sluicegate_store::audit::Audit::error) {
        let alarm = json!(format!("the audit log is not written ({error}); its lines are in this node's log alone"));
        let part = &mut status[if api.gate.is_some() { "gate" } else { "frontend" }]["alarms"];
        match part.as_array_mut() {
            Some(alarms) => alarms.push(alarm),
            None => *part = json!([alarm]),
        }
    }
    json_of(&status)
}

/// The frontend's status with its requests by method and outcome, other events, and tables; zeros are left out.
fn frontend_status(frontend: &sluicegate_frontend::Control) -> Value {
    let mut status = json!(frontend.status());
    for sample in frontend.metrics().samples {
        let name: Vec<&str> = sample.labels.iter().map(|(_, value)| value.as_str()).collect();
        let part = match sample.name {
            "requests_total" => "requests",
            "events_total" => "events",
            "table_used" => "tables",
            _ => continue,
        };
        if sample.value > 0 {
            status[part][name.join(" ")] = json!(sample.value);
        }
    }
    status
}

async fn grants(State(api): State<Api>) -> Answer {
    match (&api.frontend, &api.gate) {
        (Some(frontend), _) => json_of(&frontend.grants()),
        (None, Some(gate)) => json_of(&gate.grants().await),
        (None, None) => json_of(&json!([])),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Revoke {
    grant: Option<String>,
    user: Option<String>,
    service: Option<String>,
}

async fn revoke(State(api): State<Api>, actor: Actor, Json(body): Json<Value>) -> Answer {
    let parsed: Revoke = serde_json::from_value(body.clone()).map_err(bad)?;
    let what = match (parsed.grant, parsed.user, parsed.service) {
        (Some(grant), None, None) => Selected::Grant(grant.parse().map_err(bad)?),
        (None, Some(user), None) => Selected::User(user),
        (None, None, Some(service)) => Selected::Service(service),
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
        (None, Some(beside)) => beside.revoke(actor, &body).await?,
        (None, None) => 0,
    };
    if let Some(gate) = &api.gate {
        revoked = revoked.max(gate.revoke(&selector).await.map_err(bad)?);
    }
    if api.beside.is_none() {
        api.changed(actor, "grant revoke", &of);
    }
    json_of(&json!({ "revoked": revoked }))
}

#[derive(Deserialize)]
struct Observe {
    on: bool,
}

async fn observe(State(api): State<Api>, actor: Actor, Json(body): Json<Observe>) -> Answer {
    api.gate()?.observe(body.on).await.map_err(bad)?;
    api.changed(actor, "observe", if body.on { "on" } else { "off" });
    json_of(&json!({ "on": body.on }))
}

#[derive(Deserialize)]
struct Flow {
    protocol: u8,
    source: IpAddr,
    source_port: u16,
    destination: IpAddr,
    destination_port: u16,
    inside: bool,
}

async fn trace_flow(State(api): State<Api>, Json(flow): Json<Flow>) -> Answer {
    let probe = Probe {
        protocol: flow.protocol,
        src: flow.source,
        src_port: flow.source_port,
        dst: flow.destination,
        dst_port: flow.destination_port,
        port: if flow.inside { Port::INSIDE } else { Port::OUTSIDE },
    };
    json_of(&api.gate()?.trace(probe).await.map_err(bad)?)
}

async fn trace_user(State(api): State<Api>, Path(user): Path<String>) -> Answer {
    json_of(&api.frontend()?.trace_user(&user))
}

#[derive(Deserialize)]
struct PolicyTest {
    user: String,
    service: String,
    /// The most that the client's packets can prove; everything unless given.
    proves: Option<String>,
}

async fn policy_test(State(api): State<Api>, Query(test): Query<PolicyTest>) -> Answer {
    let proves = test.proves.as_deref().unwrap_or(DataMode::Capability.label());
    let proves = DataMode::from_label(proves)
        .ok_or_else(|| bad(format!("there is no data mode {proves:?}; write pinhole, mac or capability")))?;
    let decision = api.frontend()?.policy_test((&test.user, &test.service), None, &[], proves);
    let outcome = match &decision.outcome {
        sluicegate_policy::Outcome::Allow(_) => "allow".to_owned(),
        sluicegate_policy::Outcome::Deny(reason) => format!("deny: {reason}"),
    };
    let steps: Vec<String> = decision
        .steps
        .iter()
        .map(|step| format!("{} {}", if step.passed { "yes:" } else { "no:" }, step.text))
        .collect();
    json_of(&json!({ "outcome": outcome, "steps": steps }))
}

async fn join_token(State(api): State<Api>, actor: Actor) -> Answer {
    let token = api.frontend()?.join_token().map_err(bad)?;
    api.changed(actor, "gate-join --new", "");
    json_of(&json!({ "token": token.to_text().as_str() }))
}
