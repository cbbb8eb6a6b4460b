//! What a shard asks of its surroundings, and what it is told by them.

use std::{net::IpAddr, sync::Arc};

use sluicegate_feed::{GrantDelta, Selector};
use sluicegate_grant::GrantId;
use sluicegate_policy::Policy;
use sluicegate_wire::Instant;

use crate::{
    agents::AgentKeys,
    calls::CallId,
    decisions::Decided,
    links::Standing,
    stories::Happened,
    transmits::{ConnectionId, Flow},
};

/// What a shard asks for. Comes out of [`crate::Shard::poll_event`].
#[derive(Debug, Clone)]
pub enum Event {
    /// Open the grants of one call at the gates of this service, all or none. A grant that stands there already is
    /// changed. The answers come back as [`Input::Gate`], one for each grant.
    Open {
        /// The service.
        service: String,
        /// One delta per grant.
        deltas: Vec<GrantDelta>,
    },
    /// End grants at once, wherever they stand. Nobody waits for an answer.
    Revoke(Selector),
    /// An agent registered a service, or took it back: to be told to all other shards.
    Bind(Binding),
    /// A datagram that belongs to a transaction of another shard.
    HandOver {
        /// The shard that owns it.
        shard: u8,
        /// Where the datagram came from.
        flow: Flow,
        /// The datagram.
        datagram: Vec<u8>,
    },
    /// Somebody signed in over a connection: it is no stranger's any more.
    Proved {
        /// The connection.
        connection: ConnectionId,
        /// Who.
        user: Arc<str>,
    },
    /// For the memory behind `trace --user`, and the call's story.
    Decided(Decided),
    /// Something happened to a call, for its story.
    Told(CallId, Happened),
}

/// A gate's answer to one grant of a [`Event::Open`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateAnswer {
    /// The grant.
    pub id: GrantId,
    /// The gate's address, and the first and last of its ports; or why it would not, or that there is no gate: for the log
    /// and `trace`, never shown to the client.
    pub opened: Result<(IpAddr, (u16, u16)), String>,
}

/// Where a service can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The service.
    pub service: String,
    /// Where its agent sent the registration from.
    pub flow: Flow,
    /// The agent's Contact URI: the Request-URI of what is relayed to it.
    pub contact: Vec<u8>,
    /// When the registration ends; not after now if it was taken back.
    pub expires: Instant,
}

/// What a shard is told besides datagrams.
#[derive(Debug, Clone)]
pub enum Input {
    /// What agents' digests are checked against from now on.
    Agents(Arc<AgentKeys>),
    /// A gate has answered.
    Gate(GateAnswer),
    /// Another shard took a registration.
    Bind(Binding),
    /// A connection has ended. It is enough to tell one shard.
    Closed(ConnectionId),
    /// A message of ours cannot be sent: nobody is reached there.
    Undelivered {
        /// Where it should have gone.
        flow: Flow,
        /// All of it.
        message: Vec<u8>,
    },
    /// These calls are over, because somebody revoked what they have.
    Over(Arc<[[u8; 12]]>),
    /// Another shard received a datagram of ours.
    Datagram {
        /// Where it came from.
        flow: Flow,
        /// The datagram.
        bytes: Vec<u8>,
    },
    /// A distant gate tells where a service takes SIP, and what seals it; `None`: reach the service itself.
    Standing {
        /// The service.
        service: String,
        /// The gate's address and port for it, and the keys.
        standing: Option<Standing>,
    },
    /// Users, services or rules have changed.
    Policy(Arc<Policy>),
}
