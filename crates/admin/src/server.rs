//! Listens: a unix socket for the API, TCP on loopback for metrics.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use axum::{Router, routing::get};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::{Api, api, metrics};

/// Why the API or the metrics endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A node listens on this socket already.
    #[error("another node listens on {0}; stop it, or set another [node] state")]
    InUse(PathBuf),
    /// The socket cannot be made.
    #[error("cannot open the control socket {0}: {1}")]
    Socket(PathBuf, io::Error),
    /// The metrics address cannot be used.
    #[error("cannot serve metrics at {0}: {1}; set [metrics] listen to a free loopback address")]
    Metrics(SocketAddr, io::Error),
}

/// Serves the API on a unix socket at `path` until the returned future is dropped.
///
/// # Errors
/// When another node listens there, or the socket cannot be made.
pub async fn serve_api(path: &Path, api: Api) -> Result<impl Future<Output = io::Result<()>> + use<>, ServerError> {
    let failed = |error| ServerError::Socket(path.to_owned(), error);
    if UnixStream::connect(path).await.is_ok() {
        return Err(ServerError::InUse(path.to_owned()));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // Made under another name with its final mode, so that there is no moment at which others may connect.
    let hidden = path.with_extension("new");
    let _ = fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden).map_err(failed)?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    fs::rename(&hidden, path).map_err(failed)?;
    Ok(axum::serve(listener, api::router(api)).into_future())
}

/// Serves `/metrics` on `address` until the returned future is dropped.
///
/// # Errors
/// When the address cannot be used.
pub async fn serve_metrics(
    address: SocketAddr,
    api: Api,
) -> Result<impl Future<Output = io::Result<()>> + use<>, ServerError> {
    let listener = TcpListener::bind(address).await.map_err(|error| ServerError::Metrics(address, error))?;
    let router = Router::new().route(
        "/metrics",
        get(move || {
            let text = metrics::text(&api);
            async move { ([("content-type", metrics::CONTENT_TYPE)], text) }
        }),
    );
    Ok(axum::serve(listener, router).into_future())
}
