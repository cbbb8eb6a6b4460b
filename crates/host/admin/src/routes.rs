//! Ties an [`Endpoint`] to the function that answers it: reads its body, writes its answer, and says clearly what else is
//! wrong with a request.

use axum::{
    Json, Router,
    body::to_bytes,
    extract::{FromRequestParts, Path, Query, Request, State},
    handler::Handler,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{MethodFilter, on},
};
use serde::{Serialize, de::DeserializeOwned};
use sluicegate_api::{Endpoint, Refusal};

use crate::{Api, actor::Actor};

/// A refusal: status and text.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) StatusCode, pub(crate) String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(Refusal { error: self.1 })).into_response()
    }
}

pub(crate) fn bad(error: impl std::fmt::Display) -> Refused {
    Refused(StatusCode::BAD_REQUEST, error.to_string())
}

/// One question with all that a function needs to answer it.
#[derive(Debug)]
pub(crate) struct Asked<Body> {
    pub(crate) api: Api,
    /// Who asks.
    pub(crate) actor: Actor,
    /// The object that the path names; empty if it names none.
    pub(crate) name: String,
    pub(crate) body: Body,
}

impl<Body> Asked<Body> {
    /// Writes down that somebody changed something.
    pub(crate) fn changed(&self, change: &'static str, of: &str) {
        self.api.changed(self.actor, change, of);
    }
}

/// The routes of a node.
#[derive(Debug, Default)]
pub(crate) struct Routes(Router<Api>);

impl Routes {
    /// Has `answer` answer what is asked at `endpoint`.
    pub(crate) fn on<Body, Answer, F, Answering>(self, endpoint: &'static Endpoint<Body, Answer>, answer: F) -> Self
    where
        Body: DeserializeOwned + Send + 'static,
        Answer: Serialize + 'static,
        F: Fn(Asked<Body>) -> Answering + Clone + Send + Sync + 'static,
        Answering: Future<Output = Result<Answer, Refused>> + Send,
    {
        let handler =
            async move |State(api): State<Api>, actor: Actor, name: Option<Path<String>>, request: Request| {
                let name = name.map_or_else(String::new, |Path(name)| name);
                let body = body(&endpoint.method, endpoint.body_bytes_max, request).await?;
                answer(Asked { api, actor, name, body }).await.map(Json)
            };
        // No endpoint has a method that filters do not know; it would be answered nowhere.
        let filter = MethodFilter::try_from(endpoint.method.clone()).unwrap_or(MethodFilter::TRACE);
        Self(self.0.route(endpoint.path, on(filter, handler)))
    }

    /// The router, in which `other` answers what no route does.
    pub(crate) fn or<T: 'static>(self, other: impl Handler<T, Api>) -> Router<Api> {
        self.0.method_not_allowed_fallback(other.clone()).fallback(other)
    }

    /// The router, in which what no route answers is refused.
    pub(crate) fn or_refused(self) -> Router<Api> {
        let unknown = async |uri: Uri| Refused(StatusCode::NOT_FOUND, format!("there is no {} here", uri.path()));
        let wrong = async |method: Method, uri: Uri| {
            Refused(StatusCode::METHOD_NOT_ALLOWED, format!("{} takes no {method}; see the header `allow`", uri.path()))
        };
        self.0.fallback(unknown).method_not_allowed_fallback(wrong)
    }
}

/// What a request says: in its query if it only reads, else in its body, which may be missing where nothing is to be said.
async fn body<Body: DeserializeOwned>(method: &Method, bytes_max: usize, request: Request) -> Result<Body, Refused> {
    let (mut parts, body) = request.into_parts();
    if method == Method::GET {
        let query = Query::from_request_parts(&mut parts, &()).await;
        return query.map(|Query(body)| body).map_err(|rejection| bad(rejection.body_text()));
    }
    let bytes = read(body, bytes_max).await?;
    serde_json::from_slice(if bytes.is_empty() { b"null" } else { &bytes }).map_err(bad)
}

/// A body of at most `bytes_max`.
pub(crate) async fn read(body: axum::body::Body, bytes_max: usize) -> Result<axum::body::Bytes, Refused> {
    let too_long =
        |_| Refused(StatusCode::PAYLOAD_TOO_LARGE, format!("a body may have at most {bytes_max} bytes here"));
    to_bytes(body, bytes_max).await.map_err(too_long)
}
