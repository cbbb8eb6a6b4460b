//! DCCP (RFC 4340) as a NAT sees it (RFC 5597): by the type of packet. Sequence numbers are not followed; a reset or close
//! that somebody forged at most has an idle flow end sooner.

use sluicegate_flow::Kind;
use sluicegate_wire::{
    IpProtocol, Reason,
    dccp::{Packet, Type},
};

use super::{Header, Selector, Signal, State, Tracking, Transport, quoted_ports, real_ports};

pub(super) const DCCP: Transport = Transport {
    protocol: IpProtocol::DCCP,
    selector: Selector::Ports,
    space: Some("external_ports_dccp"),
    checksum: IpProtocol::DCCP.checksum(),
    parse,
    quoted: quoted_ports,
    tracking: Tracking::ByType(|state, from, kind| advance(state, from, Type(kind))),
    // RFC 5597 REQ-4 asks for 124 minutes where both handshakes are done, and for 4 to 8 else.
    idle: |state, timers| if state.is_lasting() { timers.tcp_established } else { timers.tcp_transitory },
    ..Transport::BY_ADDRESSES
};

fn parse(transport: &[u8], is_cut: bool) -> Result<Header, Reason> {
    let packet = Packet::new_unchecked(transport);
    if is_cut { packet.check_header() } else { packet.check_len() }?;
    let kind = packet.kind();
    Ok(Header { ports: real_ports(transport)?, opens: kind == Type::REQUEST, signal: Signal::Typed(kind.0) })
}

fn advance(state: State, from: Kind, kind: Type) -> Result<State, Reason> {
    let inbound = from == Kind::Inbound;
    let is_openers = match state {
        State::SynIn | State::AnsweredIn => inbound,
        State::SynOut | State::AnsweredOut => !inbound,
        _ => false,
    };
    match (state, kind) {
        // A connection that stands is not opened again; its end answers with a sync, which needs no request to pass.
        (State::None | State::Closing | State::Reset, Type::REQUEST) => {
            Ok(if inbound { State::SynIn } else { State::SynOut })
        }
        (State::SynIn | State::SynOut, Type::REQUEST) if is_openers => Ok(state),
        (State::SynIn | State::AnsweredIn, Type::RESPONSE) if !is_openers => Ok(State::AnsweredIn),
        (State::SynOut | State::AnsweredOut, Type::RESPONSE) if !is_openers => Ok(State::AnsweredOut),
        (State::None, _) | (_, Type::REQUEST | Type::RESPONSE) => Err(Reason::TcpState),
        (_, Type::RESET) => Ok(State::Reset),
        (State::SynIn | State::SynOut, _) => Err(Reason::TcpState),
        (State::Closing | State::Reset, _) => Ok(state),
        (_, Type::CLOSE | Type::CLOSE_REQ) => Ok(State::Closing),
        (State::AnsweredIn | State::AnsweredOut, _) if is_openers => Ok(State::Established),
        _ => Ok(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_opens_lasts_and_closes() {
        let mut state = State::None;
        let steps = [
            (Kind::Inbound, Type::REQUEST, State::SynIn),
            (Kind::Inbound, Type::REQUEST, State::SynIn),
            (Kind::Outbound, Type::RESPONSE, State::AnsweredIn),
            (Kind::Outbound, Type::DATA, State::AnsweredIn),
            (Kind::Inbound, Type::ACK, State::Established),
            (Kind::Outbound, Type::DATA, State::Established),
            (Kind::Inbound, Type::SYNC, State::Established),
            (Kind::Outbound, Type::CLOSE_REQ, State::Closing),
            (Kind::Inbound, Type::CLOSE, State::Closing),
            (Kind::Outbound, Type::RESET, State::Reset),
            (Kind::Outbound, Type::REQUEST, State::SynOut),
        ];
        for (from, kind, after) in steps {
            state = advance(state, from, kind).unwrap();
            assert_eq!(state, after, "{kind:?}");
        }
    }

    #[test]
    fn what_has_no_place_in_a_state_is_refused() {
        for (state, from, kind) in [
            (State::None, Kind::Inbound, Type::DATA),
            (State::None, Kind::Inbound, Type::RESET),
            (State::SynIn, Kind::Inbound, Type::ACK),
            (State::SynIn, Kind::Inbound, Type::RESPONSE),
            (State::SynIn, Kind::Outbound, Type::REQUEST),
            (State::Established, Kind::Inbound, Type::REQUEST),
            (State::Established, Kind::Outbound, Type::RESPONSE),
        ] {
            assert_eq!(advance(state, from, kind), Err(Reason::TcpState), "{state:?} {kind:?}");
        }
    }
}
