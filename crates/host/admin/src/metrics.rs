//! The metrics of a node as OpenMetrics text.

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use sluicegate_telemetry::{CONTENT_TYPE, text};

use crate::{Api, beside::METRICS};

/// What the last line of an exposition says.
const END: &str = "# EOF\n";

/// The metrics as an HTTP answer; those of a frontend in a process beside this one follow this one's.
pub(crate) async fn answer(api: Api) -> impl IntoResponse {
    let mut text = text(api.metrics());
    if let Some(beside) = &api.beside
        && let Some(theirs) = beside.metrics().await
    {
        text.truncate(text.strip_suffix(END).map_or(text.len(), str::len));
        text.push_str(&theirs);
    }
    ([("content-type", CONTENT_TYPE)], text)
}

/// Adds the route by which the process beside this one reads its metrics.
pub(crate) fn beside(router: Router<Api>) -> Router<Api> {
    router.route(METRICS, get(async |State(api): State<Api>| answer(api).await))
}
