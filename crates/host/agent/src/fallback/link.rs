//! A TLS connection to one of the site's own.

use std::{io, net::SocketAddr, time::Duration};

use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{CONNECT_MAX, Trust};

/// A peer that is gone is noticed after so long, whether there is something to send or not.
const UNANSWERED_MAX: Duration = Duration::from_secs(20);
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5));

/// Connects to `to`, which has to show a certificate that `trust` knows; by `interface`, whatever the routes say.
///
/// # Errors
/// Those of the system and of TLS; `TimedOut`.
pub(super) async fn connect(
    interface: Option<&str>,
    to: SocketAddr,
    trust: &Trust,
) -> io::Result<TlsStream<TcpStream>> {
    let connected = async {
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(interface) = interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        let stream = socket.connect(to).await?;
        stream.set_nodelay(true)?;
        let options = SockRef::from(&stream);
        options.set_tcp_keepalive(&KEEPALIVE)?;
        options.set_tcp_user_timeout(Some(UNANSWERED_MAX))?;
        TlsConnector::from(trust.0.clone()).connect(ServerName::IpAddress(to.ip().into()), stream).await
    };
    timeout(CONNECT_MAX, connected).await.map_err(|_| io::ErrorKind::TimedOut)?
}
