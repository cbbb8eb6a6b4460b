//! Calls the API of a running node through its control socket.

use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, body::Bytes};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tower::ServiceExt as _;

use crate::actor::{self, Actor};

/// Largest answer read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Nobody listens on the control socket.
    #[error("no node runs here: {path} does not answer ({source}); start one with `sluicegate up`")]
    NotRunning {
        /// The control socket.
        path: PathBuf,
        /// What the connect said.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the node at {path} hung up: {detail}")]
    Broken {
        /// The control socket.
        path: PathBuf,
        /// What broke.
        detail: String,
    },
    /// The node refused.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What the node said, with what to do next.
        message: String,
    },
}

/// Calls `method uri` on the node that owns the control socket at `socket`; returns the JSON answer.
///
/// # Errors
/// When no node listens there, the connection breaks, or the node refuses.
pub async fn call(socket: &Path, method: Method, uri: &str, body: Option<&Value>) -> Result<Value, CallError> {
    call_for(socket, method, uri, body, None).await
}

/// The same, for somebody else.
pub(crate) async fn call_for(
    socket: &Path,
    method: Method,
    uri: &str,
    body: Option<&Value>,
    actor: Option<Actor>,
) -> Result<Value, CallError> {
    let bytes = body.map_or_else(Bytes::new, |value| Bytes::from(value.to_string()));
    let (status, body) = exchange(socket, method, uri, bytes, actor).await?;
    answer(status, &body).unwrap_or_else(|detail| Err(CallError::Broken { path: socket.to_owned(), detail }))
}

/// Reads a text from the node that owns the control socket at `socket`.
///
/// # Errors
/// As [`call`].
pub(crate) async fn text(socket: &Path, uri: &str) -> Result<String, CallError> {
    let (status, body) = exchange(socket, Method::GET, uri, Bytes::new(), None).await?;
    let text = String::from_utf8_lossy(&body).into_owned();
    if status == StatusCode::OK { Ok(text) } else { Err(CallError::Refused { status: status.as_u16(), message: text }) }
}

async fn exchange(
    socket: &Path,
    method: Method,
    uri: &str,
    body: Bytes,
    actor: Option<Actor>,
) -> Result<(StatusCode, Bytes), CallError> {
    let broken = |detail: String| CallError::Broken { path: socket.to_owned(), detail };
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| CallError::NotRunning { path: socket.to_owned(), source })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(error.to_string()))?;
    tokio::spawn(connection);
    let builder = actor.map_or_else(Request::builder, |Actor(uid)| Request::builder().header(actor::HEADER, uid));
    let request = builder
        .method(method)
        .uri(uri)
        .header("host", "sluicegate")
        .header("content-type", "application/json")
        .body(Full::new(body))
        .map_err(|error| broken(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(|error| broken(error.to_string()))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| broken(error.to_string()))?
        .to_bytes();
    Ok((status, body))
}

/// Calls the API of a node that does not run, over what its files hold.
///
/// # Errors
/// [`CallError::Refused`].
pub async fn call_here(api: crate::Api, method: Method, uri: &str, body: Option<&Value>) -> Result<Value, CallError> {
    let broken = |detail: String| CallError::Refused { status: 500, message: detail };
    let body = body.map_or_else(axum::body::Body::empty, |value| value.to_string().into());
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", "application/json")
        .body(body)
        .map_err(|error| broken(error.to_string()))?;
    let Ok(response) = crate::api::router(api).oneshot(request).await;
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(|error| broken(error.to_string()))?.to_bytes();
    answer(status, &bytes).unwrap_or_else(|error| Err(broken(error)))
}

/// The JSON of a 200, or the refusal; `Err` if the body is neither.
fn answer(status: StatusCode, body: &[u8]) -> Result<Result<Value, CallError>, String> {
    if status == StatusCode::OK {
        return serde_json::from_slice(body).map(Ok).map_err(|error| error.to_string());
    }
    let message = serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|value| value.get("error")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    Ok(Err(CallError::Refused { status: status.as_u16(), message }))
}
