//! Listens: a unix socket for the API, TCP on loopback for metrics.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use axum::{Router, routing::get};

use crate::{Api, actor::Actor, api, metrics};

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

/// A unix socket at `path` for [`serve_api`]. Needs no runtime, so that it can be made before privileges are given up.
///
/// # Errors
/// When another node listens there, or the socket cannot be made.
pub fn bind_api(path: &Path) -> Result<UnixListener, ServerError> {
    let failed = |error| ServerError::Socket(path.to_owned(), error);
    if UnixStream::connect(path).is_ok() {
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
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Serves the API on a socket of [`bind_api`] until the returned future is dropped.
///
/// # Errors
/// When the runtime cannot take the socket.
pub fn serve_api(listener: UnixListener, api: Api) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let service = api::router(api).into_make_service_with_connect_info::<Actor>();
    Ok(axum::serve(listener, service).into_future())
}

/// A TCP socket at `address` for [`serve_metrics`].
///
/// # Errors
/// When the address cannot be used.
pub fn bind_metrics(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let failed = |error| ServerError::Metrics(address, error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Serves `/metrics` on a socket of [`bind_metrics`] until the returned future is dropped.
///
/// # Errors
/// When the runtime cannot take the socket.
pub fn serve_metrics(listener: TcpListener, api: Api) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let router = Router::new().route("/metrics", get(move || metrics::answer(api.clone())));
    Ok(axum::serve(listener, router).into_future())
}
