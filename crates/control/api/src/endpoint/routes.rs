//! All routes.

use sluicegate_policy::{Group, Service};

use super::{
    Endpoint,
    Method::{Delete, Get, Patch, Post, Put},
};
use crate::{
    Configured, Decision, Flow, FlowTrace, Gate, GrantStatus, JoinToken, NewUser, NodeStatus, Observe, PolicyAnswer,
    PolicyTest, Revoke, Revoked, User, UserChange,
};

/// How the node is.
pub const STATUS: Endpoint<(), NodeStatus> = Endpoint::new(Get, "/v1/status");
/// What is open, and for whom.
pub const GRANTS: Endpoint<(), Vec<GrantStatus>> = Endpoint::new(Get, "/v1/grants");
/// Ends grants.
pub const GRANTS_REVOKE: Endpoint<Revoke, Revoked> = Endpoint::new(Post, "/v1/grants/revoke");
/// Whether strangers' packets are only counted; answers with the same.
pub const OBSERVE: Endpoint<Observe, Observe> = Endpoint::new(Post, "/v1/observe");
/// The node that waits for it stays as it is.
pub const CONFIRM: Endpoint<(), ()> = Endpoint::new(Post, "/v1/confirm");
/// What would become of a packet, and why.
pub const TRACE_FLOW: Endpoint<Flow, FlowTrace> = Endpoint::new(Post, "/v1/trace/flow");
/// What was decided about a user lately, newest first.
pub const TRACE_USER: Endpoint<(), Vec<Decision>> = Endpoint::new(Get, "/v1/trace/user/{name}");
/// Whether a user may use a service now, and by which rule.
pub const POLICY_TEST: Endpoint<PolicyTest, PolicyAnswer> = Endpoint::new(Get, "/v1/policy/test");
/// Makes a token with which one gate can join.
pub const JOIN_TOKEN: Endpoint<(), JoinToken> = Endpoint::new(Post, "/v1/join-token");

/// All users.
pub const USERS: Endpoint<(), Vec<User>> = Endpoint::new(Get, "/v1/users");
/// Adds all of these users, or none.
pub const USERS_ADD: Endpoint<Vec<NewUser>, ()> = Endpoint::new(Post, "/v1/users");
/// Changes a user.
pub const USER_CHANGE: Endpoint<UserChange, ()> = Endpoint::new(Patch, "/v1/users/{name}");
/// Replaces what a user signs in with.
pub const USER_PASSWORD: Endpoint<NewUser, ()> = Endpoint::new(Put, "/v1/users/{name}/password");
/// Removes a user, whose grants end.
pub const USER_REMOVE: Endpoint<(), ()> = Endpoint::new(Delete, "/v1/users/{name}");
/// Takes the text of a file of keys that a key holder on another host issued; answers with pairs of an epoch and a number
/// of users.
pub const KEYS_LOAD: Endpoint<String, Vec<(u32, usize)>> = Endpoint::new(Post, "/v1/keys").of_files();

/// All groups.
pub const GROUPS: Endpoint<(), Vec<Group>> = Endpoint::new(Get, "/v1/groups");
/// Adds a group.
pub const GROUP_ADD: Endpoint<Group, ()> = Endpoint::new(Post, "/v1/groups");
/// Removes a group.
pub const GROUP_REMOVE: Endpoint<(), ()> = Endpoint::new(Delete, "/v1/groups/{name}");

/// All services, those of the configuration file first.
pub const SERVICES: Endpoint<(), Vec<Service>> = Endpoint::new(Get, "/v1/services");
/// Adds services.
pub const SERVICES_ADD: Endpoint<Vec<Service>, ()> = Endpoint::new(Post, "/v1/services");
/// Replaces services; answers with those whose grants had to end.
pub const SERVICES_REPLACE: Endpoint<Vec<Service>, Vec<String>> = Endpoint::new(Put, "/v1/services");
/// Removes a service, whose grants end.
pub const SERVICE_REMOVE: Endpoint<(), ()> = Endpoint::new(Delete, "/v1/services/{name}");
/// Puts the services and rules of a changed configuration file in place; answers with the services whose grants had to end.
pub const CONFIGURE: Endpoint<Configured, Vec<String>> = Endpoint::new(Put, "/v1/configured").of_files();

/// The gates that have joined.
pub const GATES: Endpoint<(), Vec<Gate>> = Endpoint::new(Get, "/v1/gates");
/// Removes a gate: it is cut off, and cannot come back without a new token.
pub const GATE_REMOVE: Endpoint<(), ()> = Endpoint::new(Delete, "/v1/gates/{name}");
