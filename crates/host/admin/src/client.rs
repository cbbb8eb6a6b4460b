//! Calls the API of a running node through its control socket.

use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, body::Bytes};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use sluicegate_api::{Question, Refusal};
use tokio::net::UnixStream;
use tower::ServiceExt as _;

use crate::{
    Api,
    actor::{self, Actor},
    api::router,
};

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

/// Puts a question to the node that owns the control socket at `socket`.
///
/// # Errors
/// When no node listens there, the connection breaks, or the node refuses.
pub async fn ask<A: DeserializeOwned>(socket: &Path, question: &Question<A>) -> Result<A, CallError> {
    ask_for(socket, question, None).await
}

/// The same, for somebody else.
pub(crate) async fn ask_for<A: DeserializeOwned>(
    socket: &Path,
    question: &Question<A>,
    actor: Option<Actor>,
) -> Result<A, CallError> {
    let broken = |detail: String| CallError::Broken { path: socket.to_owned(), detail };
    let body = question.body.clone().map_or_else(Bytes::new, Bytes::from);
    let (status, body) = exchange(socket, question.method.clone(), &question.uri, body, actor).await?;
    answer(status, &body).unwrap_or_else(|detail| Err(broken(detail)))
}

/// Reads a text from the node that owns the control socket at `socket`.
///
/// # Errors
/// As [`ask`].
pub(crate) async fn text(socket: &Path, uri: &str) -> Result<String, CallError> {
    let (status, body) = exchange(socket, Method::GET, uri, Bytes::new(), None).await?;
    let text = String::from_utf8_lossy(&body).into_owned();
    if status == StatusCode::OK { Ok(text) } else { Err(CallError::Refused { status: status.as_u16(), message: text }) }
}

pub(crate) async fn exchange(
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

/// Puts a question to a node that does not run, over what its files hold.
///
/// # Errors
/// [`CallError::Refused`].
pub async fn ask_here<A: DeserializeOwned>(api: Api, question: &Question<A>) -> Result<A, CallError> {
    let broken = |detail: String| CallError::Refused { status: 500, message: detail };
    let body = question.body.clone().map_or_else(axum::body::Body::empty, Into::into);
    let request = Request::builder().method(&question.method).uri(&question.uri).body(body);
    let Ok(response) = router(api).oneshot(request.map_err(|error| broken(error.to_string()))?).await;
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(|error| broken(error.to_string()))?.to_bytes();
    answer(status, &bytes).unwrap_or_else(|error| Err(broken(error)))
}

/// The answer of a 200, or the refusal; `Err` if the body is neither.
fn answer<A: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<Result<A, CallError>, String> {
    if status == StatusCode::OK {
        return serde_json::from_slice(body).map(Ok).map_err(|error| error.to_string());
    }
    let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
    let message = refusal.map_or_else(|| String::from_utf8_lossy(body).into_owned(), |refusal| refusal.error);
    Ok(Err(CallError::Refused { status: status.as_u16(), message }))
}
