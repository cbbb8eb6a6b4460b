//! The API of a node: what can be asked over its control socket, and what is answered. Types only; `sluicegate-admin`
//! carries them.
//!
//! An [`Endpoint`] names a route together with the type of what goes in and of what comes out. Server, command line and
//! tests all go through it, so that none of them can read a field which another does not write. Bodies are JSON. A
//! refusal is a [`Refusal`] with an HTTP status of 400 or above.

mod endpoint;
mod grants;
mod limits;
mod objects;
mod status;
mod trace;

use std::borrow::Cow;

pub use endpoint::{Endpoint, Question, Refusal, routes::*};
pub use grants::{GrantState, GrantStatus, Revoke, Revoked};
pub use limits::{Forgiven, LimitKind, LimitLift, LimitStatus};
pub use objects::{Configured, ContactStatus, Gate, JoinToken, NewUser, Unregistered, User, UserChange, UserStatus};
pub use status::{
    Enforcement, FeedStage, FeedStatus, FrontendStatus, GateStatus, JoinedGate, LaneStatus, NodeStatus, PortStatus,
    ReplicaStatus, Role, RouterStatus, SavedStatus, ServiceStatus, TableStatus, UsersTaken,
};
pub use trace::{
    CallEnd, CallStep, CallStory, Decision, Flow, FlowTrace, MessagesWanted, Observe, PolicyAnswer, PolicyTest,
    RecentDrop, TracedMessage, TracedMessages,
};

/// A stable name, such as a reason's or a table's: written from a constant, read into a string.
pub type Label = Cow<'static, str>;
