//! All routes.

use sluicegate_policy::{Group, Service};

use super::{Endpoint, Method};
use crate::{
    CallStory, Configured, Decision, Flow, FlowTrace, Forgiven, Gate, GrantStatus, JoinToken, LimitLift, LimitStatus,
    MessagesWanted, NewUser, NodeStatus, Observe, PolicyAnswer, PolicyTest, Revoke, Revoked, TracedMessages,
    Unregistered, User, UserChange, UserStatus,
};

/// How the node is.
pub static STATUS: Endpoint<(), NodeStatus> = Endpoint::new(Method::GET, "/v1/status");
/// What is open, and for whom.
pub static GRANTS: Endpoint<(), Vec<GrantStatus>> = Endpoint::new(Method::GET, "/v1/grants");
/// Ends grants.
pub static GRANTS_REVOKE: Endpoint<Revoke, Revoked> = Endpoint::new(Method::POST, "/v1/grants/revoke");
/// Senders that were held to a limit lately, and those for which one is lifted.
pub static LIMITS: Endpoint<(), Vec<LimitStatus>> = Endpoint::new(Method::GET, "/v1/limits");
/// Lifts the limit of load for a source, or ends that; answers whether there was anything to do.
pub static LIMIT_LIFT: Endpoint<LimitLift, bool> = Endpoint::new(Method::POST, "/v1/limits/lifted");
/// Forgets wrong passwords of a user.
pub static LIMIT_FORGIVE: Endpoint<(), Forgiven> = Endpoint::new(Method::DELETE, "/v1/limits/passwords/{name}");
/// Whether strangers' packets are only counted; answers with the same.
pub static OBSERVE: Endpoint<Observe, Observe> = Endpoint::new(Method::POST, "/v1/observe");
/// The node that waits for it stays as it is.
pub static CONFIRM: Endpoint<(), ()> = Endpoint::new(Method::POST, "/v1/confirm");
/// What would become of a packet, and why.
pub static TRACE_FLOW: Endpoint<Flow, FlowTrace> = Endpoint::new(Method::POST, "/v1/trace/flow");
/// What was decided about a user lately, newest first.
pub static TRACE_USER: Endpoint<(), Vec<Decision>> = Endpoint::new(Method::GET, "/v1/trace/user/{name}");
/// What became of calls: by a Call-ID, the id of a grant, or the part of it that a call's grants share. Newest first.
pub static TRACE_CALL: Endpoint<(), Vec<CallStory>> = Endpoint::new(Method::GET, "/v1/trace/call/{name}");
/// Messages of a user, which are copied for as long as somebody asks for them.
pub static TRACE_MESSAGES: Endpoint<MessagesWanted, TracedMessages> =
    Endpoint::new(Method::POST, "/v1/trace/user/{name}/messages");
/// Whether a user may use a service now, and by which rule.
pub static POLICY_TEST: Endpoint<PolicyTest, PolicyAnswer> = Endpoint::new(Method::GET, "/v1/policy/test");
/// Makes a token with which one gate can join.
pub static JOIN_TOKEN: Endpoint<(), JoinToken> = Endpoint::new(Method::POST, "/v1/join-token");

/// All users.
pub static USERS: Endpoint<(), Vec<User>> = Endpoint::new(Method::GET, "/v1/users");
/// Adds all of these users, or none.
pub static USERS_ADD: Endpoint<Vec<NewUser>, ()> = Endpoint::new(Method::POST, "/v1/users");
/// One user, and where its telephones are.
pub static USER: Endpoint<(), UserStatus> = Endpoint::new(Method::GET, "/v1/users/{name}");
/// Ends a user's registrations.
pub static USER_UNREGISTER: Endpoint<(), Unregistered> = Endpoint::new(Method::DELETE, "/v1/users/{name}/contacts");
/// Changes a user.
pub static USER_CHANGE: Endpoint<UserChange, ()> = Endpoint::new(Method::PATCH, "/v1/users/{name}");
/// Replaces what a user signs in with.
pub static USER_PASSWORD: Endpoint<NewUser, ()> = Endpoint::new(Method::PUT, "/v1/users/{name}/password");
/// Removes a user, whose grants end.
pub static USER_REMOVE: Endpoint<(), ()> = Endpoint::new(Method::DELETE, "/v1/users/{name}");
/// Takes the text of a file of keys that a key holder on another host issued; answers with pairs of an epoch and a number
/// of users.
pub static KEYS_LOAD: Endpoint<String, Vec<(u32, usize)>> = Endpoint::of_files(Method::POST, "/v1/keys");

/// Makes a file of keys and users for one of the frontends that have this one's users; answers with its text.
pub static KEYS_ISSUE: Endpoint<(), String> = Endpoint::new(Method::POST, "/v1/replicas/{name}/keys");

/// All groups.
pub static GROUPS: Endpoint<(), Vec<Group>> = Endpoint::new(Method::GET, "/v1/groups");
/// Adds a group.
pub static GROUP_ADD: Endpoint<Group, ()> = Endpoint::new(Method::POST, "/v1/groups");
/// Removes a group.
pub static GROUP_REMOVE: Endpoint<(), ()> = Endpoint::new(Method::DELETE, "/v1/groups/{name}");

/// All services, those of the configuration file first.
pub static SERVICES: Endpoint<(), Vec<Service>> = Endpoint::new(Method::GET, "/v1/services");
/// Adds services.
pub static SERVICES_ADD: Endpoint<Vec<Service>, ()> = Endpoint::new(Method::POST, "/v1/services");
/// Replaces services; answers with those whose grants had to end.
pub static SERVICES_REPLACE: Endpoint<Vec<Service>, Vec<String>> = Endpoint::new(Method::PUT, "/v1/services");
/// Removes a service, whose grants end.
pub static SERVICE_REMOVE: Endpoint<(), ()> = Endpoint::new(Method::DELETE, "/v1/services/{name}");
/// Puts the services and rules of a changed configuration file in place; answers with the services whose grants had to end.
pub static CONFIGURE: Endpoint<Configured, Vec<String>> = Endpoint::of_files(Method::PUT, "/v1/configured");

/// The gates that have joined.
pub static GATES: Endpoint<(), Vec<Gate>> = Endpoint::new(Method::GET, "/v1/gates");
/// Removes a gate: it is cut off, and cannot come back without a new token.
pub static GATE_REMOVE: Endpoint<(), ()> = Endpoint::new(Method::DELETE, "/v1/gates/{name}");
