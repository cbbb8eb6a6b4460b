//! SOCKS5 (RFC 1928) in front of a service: CONNECT and UDP ASSOCIATE. Who names the service reaches it, at the ports that
//! the grant covers; every other host is refused, so that no browser sends other sites' requests there.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use fast_socks5::{
    ReplyError, Socks5Command, new_udp_header, parse_udp_request,
    server::{Socks5ServerProtocol, SocksServerError, run_udp_proxy_custom},
    util::target_addr::TargetAddr,
};
use sluicegate_policy::PortProtocol;
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    time::sleep,
};
use tracing::{debug, warn};

use crate::{
    forward::{self, REFUSED_PAUSE, carry, connect, moved},
    opening::Reach,
    seal::GateSocket,
    session::Session,
};

/// Largest datagram with its SOCKS header, in bytes.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// What programs may call the service.
#[derive(Debug)]
pub(crate) struct Names {
    service: String,
    realm: String,
}

impl Names {
    pub(crate) fn new(service: &str, realm: &str) -> Arc<Self> {
        Arc::new(Self { service: service.to_owned(), realm: realm.to_owned() })
    }

    /// Where the service is reached if `target` means it: by its name, alone or in its realm, as this host, or by the address
    /// at which a gate offers it, which is known only after a sign-in. `None` if it means another host.
    ///
    /// # Errors
    /// With what to tell the program's user.
    async fn reach(
        &self,
        target: &TargetAddr,
        protocol: PortProtocol,
        session: &Session,
    ) -> Result<Option<Reach>, String> {
        let (port, address) = match target {
            TargetAddr::Domain(name, _) if !self.is_name(name) => return Ok(None),
            TargetAddr::Domain(_, port) => (*port, None),
            TargetAddr::Ip(to) => (to.port(), Some(to.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())),
        };
        let reach = session.reach(protocol, port).await?;
        Ok(address.is_none_or(|address| address == reach.address.ip()).then_some(reach))
    }

    fn is_name(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let host = name.strip_suffix(&self.realm.to_ascii_lowercase()).and_then(|host| host.strip_suffix('.'));
        name == "localhost" || host.unwrap_or(&name) == self.service.to_ascii_lowercase()
    }
}

/// Serves SOCKS5 until the listener fails.
///
/// # Errors
/// When the listener fails.
pub(crate) async fn run(listener: TcpListener, session: Session, names: Arc<Names>) -> io::Result<()> {
    forward::accept(listener, "the proxy", move |stream, peer| {
        let (session, names) = (session.clone(), Arc::clone(&names));
        async move {
            if let Err(error) = serve(stream, session, &names).await {
                debug!(%peer, %error, "proxy connection ended");
            }
        }
    })
    .await
}

async fn serve(stream: TcpStream, session: Session, names: &Names) -> Result<(), SocksServerError> {
    let reply_address = stream.local_addr().map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip());
    let (proto, command, target) = Socks5ServerProtocol::accept_no_auth(stream).await?.read_command().await?;
    match command {
        Socks5Command::TCPConnect => {
            let reach = match names.reach(&target, PortProtocol::Tcp, &session).await {
                Ok(Some(reach)) => reach,
                Ok(None) => {
                    warn!(%target, service = names.service, "refused: this proxy reaches the service alone, by its name");
                    return proto.reply_error(&ReplyError::ConnectionNotAllowed).await;
                }
                Err(error) => {
                    warn!(%target, error, "not opened");
                    return proto.reply_error(&ReplyError::ConnectionNotAllowed).await;
                }
            };
            let gate = reach.address;
            match connect(&reach).await {
                Ok(mut remote) => {
                    let mut local = proto.reply_success(gate).await?;
                    if let Err(error) = carry((&mut local, &mut remote), &session, gate).await {
                        debug!(%gate, %error, "connection ended");
                    }
                    Ok(())
                }
                Err(error) => {
                    warn!(%gate, %error, "cannot reach the service through the gate");
                    proto.reply_error(&ReplyError::HostUnreachable).await
                }
            }
        }
        Socks5Command::UDPAssociate => {
            run_udp_proxy_custom(proto, &target, Some(reply_address), reply_address, |inbound| async move {
                relay(inbound.into(), &session, names)
                    .await
                    .map_err(|source| SocksServerError::Io { source, context: "relaying datagrams" })
            })
            .await?;
            Ok(())
        }
        Socks5Command::TCPBind => proto.reply_error(&ReplyError::CommandNotSupported).await,
    }
}

/// Carries datagrams between a program and the service. The first datagram fixes the program's address.
async fn relay(inbound: std::net::UdpSocket, session: &Session, names: &Names) -> io::Result<()> {
    inbound.set_nonblocking(true)?;
    let inbound = UdpSocket::from_std(inbound)?;
    let mut remote: Option<GateSocket> = None;
    let (mut opening, mut moves) = (session.opening(), 0);
    let mut program: Option<SocketAddr> = None;
    let mut request = vec![0; DATAGRAM_BYTES_MAX];
    let mut answer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            received = inbound.recv_from(&mut request) => {
                let (len, from) = received?;
                if *program.get_or_insert(from) != from {
                    continue;
                }
                let Ok((0, target, payload)) = parse_udp_request(request.get(..len).unwrap_or_default()).await else { continue };
                let reach = match names.reach(&target, PortProtocol::Udp, session).await {
                    Ok(Some(reach)) => reach,
                    Ok(None) => {
                        debug!(%target, "dropped a datagram that is not for the service");
                        continue;
                    }
                    Err(error) => {
                        debug!(%target, error, "dropped a datagram");
                        sleep(REFUSED_PAUSE).await;
                        continue;
                    }
                };
                if remote.as_ref().is_none_or(|socket| !socket.goes_with(reach.seal.as_ref())) {
                    remote = Some(GateSocket::open(&reach).await?);
                }
                if let Some(socket) = &remote {
                    socket.send(&reach, payload).await;
                }
            }
            now = moved(&mut opening, moves) => {
                moves = now;
                if let Some(socket) = &remote {
                    socket.follow().await;
                }
            }
            received = receive(remote.as_ref(), &mut answer) => {
                let (len, from) = received?;
                let (Some(program), Ok(mut datagram)) = (program, new_udp_header(from)) else { continue };
                datagram.extend_from_slice(answer.get(..len).unwrap_or_default());
                inbound.send_to(&datagram, program).await?;
            }
        }
    }
}

async fn receive(socket: Option<&GateSocket>, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.receive(buffer).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_its_name_alone_or_in_its_realm_and_no_other() {
        let names = Names::new("web", "example.net");
        for name in ["web", "WEB", "web.", "web.example.net", "Web.Example.Net.", "localhost"] {
            assert!(names.is_name(name), "{name}");
        }
        for name in ["google.com", "web.example.org", "web2", "x.web.example.net", "webexample.net", "example.net", ""]
        {
            assert!(!names.is_name(name), "{name}");
        }
    }
}
