//! A frontend in a process of its own, which this node asks over that process's API socket.

use std::path::{Path, PathBuf};

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::de::DeserializeOwned;
use sluicegate_api::Question;

use crate::{
    Api,
    actor::Actor,
    client::{self, ask_for, exchange},
    routes::{Refused, bad, read},
};

/// Where a process says its metrics to the one beside it.
pub(crate) const METRICS: &str = "/v1/metrics";
/// Longest question that is handed on, in bytes.
const QUESTION_BYTES_MAX: usize = 32 << 20;
/// What a node without a frontend says.
pub(crate) const NO_FRONTEND: &str = "this node is no frontend; ask the frontend's node";

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

    pub(crate) async fn ask<A: DeserializeOwned>(
        &self,
        question: &Question<A>,
        actor: Option<Actor>,
    ) -> Result<A, Refused> {
        ask_for(&self.socket, question, actor).await.map_err(Refused::elsewhere)
    }

    /// Its metrics as OpenMetrics text; `None`, and a line in the log, if it does not answer.
    pub(crate) async fn metrics(&self) -> Option<String> {
        let answer = client::text(&self.socket, METRICS).await;
        answer.inspect_err(|error| tracing::warn!(%error, "the frontend's metrics are missing")).ok()
    }
}

/// Hands a question on, and its answer back.
pub(crate) async fn forward(State(api): State<Api>, actor: Actor, request: Request) -> Result<Response, Refused> {
    let beside = api.beside.ok_or_else(|| bad(NO_FRONTEND))?;
    let (parts, body) = request.into_parts();
    let body = read(body, QUESTION_BYTES_MAX).await?;
    let answer = exchange(&beside.socket, parts.method, &parts.uri.to_string(), body, Some(actor)).await;
    let (status, body) = answer.map_err(Refused::elsewhere)?;
    let answer = Response::builder().status(status).header("content-type", "application/json");
    answer.body(body.into()).map_err(bad)
}
