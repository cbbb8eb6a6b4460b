//! A frontend in a process of its own, which this node asks over that process's API socket.

use std::path::{Path, PathBuf};

use axum::{
    Json,
    extract::{Request, State},
    http::{Method, StatusCode},
};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use crate::{
    Api,
    actor::Actor,
    api::{Answer, Refused, bad},
    client::{self, CallError},
};

/// Where a process says its metrics to the one beside it.
pub(crate) const METRICS: &str = "/v1/metrics";
/// Longest question that is handed on, in bytes.
pub(crate) const QUESTION_BYTES_MAX: usize = 32 << 20;

/// The frontend beside this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Beside {
    socket: PathBuf,
}

impl Beside {
    /// The frontend whose API socket is at `socket`.
    #[must_use]
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    async fn call(
        &self,
        method: Method,
        uri: &str,
        body: Option<&Value>,
        actor: Option<Actor>,
    ) -> Result<Value, Refused> {
        client::call_for(&self.socket, method, uri, body, actor).await.map_err(|error| match error {
            CallError::Refused { status, message } => {
                Refused(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY), message)
            }
            other => Refused(StatusCode::BAD_GATEWAY, format!("the frontend's process: {other}")),
        })
    }

    pub(crate) async fn get(&self, uri: &str) -> Result<Value, Refused> {
        self.call(Method::GET, uri, None, None).await
    }

    /// Has the frontend revoke what `body` selects; how many grants there were.
    pub(crate) async fn revoke(&self, actor: Actor, body: &Value) -> Result<usize, Refused> {
        let answer = self.call(Method::POST, "/v1/grants/revoke", Some(body), Some(actor)).await?;
        Ok(answer["revoked"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
    }

    /// Its metrics as OpenMetrics text; `None`, and a line in the log, if it does not answer.
    pub(crate) async fn metrics(&self) -> Option<String> {
        let answer = client::text(&self.socket, METRICS).await;
        answer.inspect_err(|error| tracing::warn!(%error, "the frontend's metrics are missing")).ok()
    }
}

/// Hands a question on, and its answer back.
pub(crate) async fn forward(State(api): State<Api>, actor: Actor, request: Request) -> Answer {
    let beside = api.beside.ok_or_else(|| bad("this node is no frontend; ask the frontend's node"))?;
    let (parts, body) = request.into_parts();
    let bytes = Limited::new(body, QUESTION_BYTES_MAX).collect().await.map_err(bad)?.to_bytes();
    let body = if bytes.is_empty() { None } else { Some(serde_json::from_slice(&bytes).map_err(bad)?) };
    beside.call(parts.method, &parts.uri.to_string(), body.as_ref(), Some(actor)).await.map(Json)
}
