//! SOCKS5 (RFC 1928) in front of a service: CONNECT and UDP ASSOCIATE. Whatever host a program names, it reaches the
//! service, and only the ports that the grant covers.

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
    sync::Semaphore,
    time::sleep,
};
use tracing::{debug, warn};

use crate::{
    forward::{REFUSED_PAUSE, connect},
    seal::GateSocket,
    session::Session,
};

/// Connections that the proxy carries at once.
const CONNECTIONS_MAX: usize = 1024;
/// Largest datagram with its SOCKS header, in bytes.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Serves SOCKS5 at `listen` until the listener fails.
///
/// # Errors
/// When the address cannot be used.
pub(crate) async fn run(listen: SocketAddr, session: Session) -> io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let (stream, peer) = listener.accept().await?;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            warn!(%peer, max = CONNECTIONS_MAX, "refused a connection: the proxy is full");
            continue;
        };
        let session = session.clone();
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = serve(stream, session).await {
                debug!(%peer, %error, "proxy connection ended");
            }
        });
    }
}

async fn serve(stream: TcpStream, session: Session) -> Result<(), SocksServerError> {
    let reply_address = stream.local_addr().map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip());
    let (proto, command, target) = Socks5ServerProtocol::accept_no_auth(stream).await?.read_command().await?;
    match command {
        Socks5Command::TCPConnect => {
            let gate = match session.address(PortProtocol::Tcp, port(&target)).await {
                Ok(gate) => gate,
                Err(error) => {
                    warn!(port = port(&target), error, "not opened");
                    return proto.reply_error(&ReplyError::ConnectionNotAllowed).await;
                }
            };
            match connect(gate, &session, port(&target)).await {
                Ok(mut remote) => {
                    let mut local = proto.reply_success(gate).await?;
                    if let Err(error) = tokio::io::copy_bidirectional(&mut local, &mut remote).await {
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
                relay(inbound.into(), &session)
                    .await
                    .map_err(|source| SocksServerError::Io { source, context: "relaying datagrams" })
            })
            .await?;
            Ok(())
        }
        Socks5Command::TCPBind => proto.reply_error(&ReplyError::CommandNotSupported).await,
    }
}

const fn port(target: &TargetAddr) -> u16 {
    match target {
        TargetAddr::Ip(address) => address.port(),
        TargetAddr::Domain(_, port) => *port,
    }
}

/// Carries datagrams between a program and the service. The first datagram fixes the program's address.
async fn relay(inbound: std::net::UdpSocket, session: &Session) -> io::Result<()> {
    inbound.set_nonblocking(true)?;
    let inbound = UdpSocket::from_std(inbound)?;
    let mut remote = None;
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
                let Ok(gate) = session.address(PortProtocol::Udp, port(&target)).await else {
                    sleep(REFUSED_PAUSE).await;
                    continue;
                };
                if remote.is_none() {
                    remote = Some(GateSocket::open(gate).await?);
                }
                if let Some(socket) = &remote {
                    let seal = session.seal(PortProtocol::Udp, port(&target));
                    socket.send(gate, seal.as_ref(), payload).await;
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
