//! Users, groups and services: of a running frontend, or of the store of one that does not run.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, State},
    routing::{delete, get, post, put},
};
use serde::Deserialize;
use serde_json::{Value, json};
use sluicegate_frontend::{Catalog, Control, NewUser, UserChange};
use sluicegate_policy::{Group, Rule, Service, User};
use sluicegate_signin::UserSecret;
use sluicegate_store::Gate;
use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

use crate::{
    Api,
    actor::Actor,
    api::{Answer, Refused, bad, json_of},
    beside::QUESTION_BYTES_MAX,
};

pub(crate) fn router() -> Router<Api> {
    Router::new()
        .route("/v1/users", get(users).post(add_users))
        .route("/v1/users/{name}", delete(remove_user).patch(change_user))
        .route("/v1/users/{name}/password", put(password))
        .route("/v1/keys", post(load_keys).layer(DefaultBodyLimit::max(QUESTION_BYTES_MAX)))
        .route("/v1/groups", get(groups).post(add_group))
        .route("/v1/groups/{name}", delete(remove_group))
        .route("/v1/services", get(services).post(add_services).put(replace_services))
        .route("/v1/services/{name}", delete(remove_service))
        .route("/v1/configured", put(configure).layer(DefaultBodyLimit::max(QUESTION_BYTES_MAX)))
        .route("/v1/gates", get(gates))
        .route("/v1/gates/{name}", delete(remove_gate))
}

/// Where objects are edited.
enum Objects<'a> {
    /// In a running frontend, which applies the change at once.
    Running(&'a Control),
    /// In the store, for the frontend's next start.
    Stored(&'a Catalog),
}

/// Does the same to whichever it is.
macro_rules! edit {
    ($api:expr, $method:ident($($argument:expr),*)) => {
        match objects($api)? {
            Objects::Running(control) => control.$method($($argument),*).map_err(bad)?,
            Objects::Stored(catalog) => catalog.$method(now(), $($argument),*).map_err(bad)?,
        }
    };
}

fn objects(api: &Api) -> Result<Objects<'_>, Refused> {
    match (&api.frontend, &api.catalog) {
        (Some(control), _) => Ok(Objects::Running(control)),
        (None, Some(catalog)) => Ok(Objects::Stored(catalog)),
        (None, None) => Err(bad("this node is no frontend; ask the frontend's node")),
    }
}

fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// A user, with what it signs in with: a password at telephones, a key at agents.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserBody {
    name: String,
    groups: Vec<String>,
    password: Option<Zeroizing<String>>,
    key: Option<Zeroizing<[u8; 32]>>,
}

impl From<UserBody> for NewUser {
    fn from(body: UserBody) -> Self {
        let UserBody { name, groups, password, key } = body;
        Self { name, groups, password, secret: key.map(|key| UserSecret::from_bytes(*key)) }
    }
}

async fn users(State(api): State<Api>) -> Answer {
    let users: Vec<User> = edit!(&api, users());
    let rows = users
        .iter()
        .map(|user| json!({ "name": user.name, "groups": user.groups, "enabled": user.enabled, "phone": user.phone }));
    Ok(Json(Value::Array(rows.collect())))
}

async fn add_users(State(api): State<Api>, actor: Actor, Json(users): Json<Vec<UserBody>>) -> Answer {
    let users: Vec<NewUser> = users.into_iter().map(NewUser::from).collect();
    edit!(&api, users_add(&users));
    users.iter().for_each(|user| api.changed(actor, "user add", &user.name));
    Ok(Json(Value::Null))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    groups: Option<Vec<String>>,
    #[serde(default)]
    add: Vec<String>,
    #[serde(default)]
    remove: Vec<String>,
    enabled: Option<bool>,
}

async fn change_user(
    State(api): State<Api>,
    actor: Actor,
    Path(name): Path<String>,
    Json(body): Json<ChangeBody>,
) -> Answer {
    let ChangeBody { groups, add, remove, enabled } = body;
    edit!(&api, user_change(&name, &UserChange { groups, add, remove, enabled }));
    let change = enabled.map_or("user mod", |enabled| if enabled { "user enable" } else { "user disable" });
    api.changed(actor, change, &name);
    Ok(Json(Value::Null))
}

async fn password(
    State(api): State<Api>,
    actor: Actor,
    Path(name): Path<String>,
    Json(body): Json<UserBody>,
) -> Answer {
    if body.name != name {
        return Err(bad("the password is another user's"));
    }
    edit!(&api, user_password(&body.into()));
    api.changed(actor, "user passwd", &name);
    Ok(Json(Value::Null))
}

async fn remove_user(State(api): State<Api>, actor: Actor, Path(name): Path<String>) -> Answer {
    edit!(&api, user_remove(&name));
    api.changed(actor, "user rm", &name);
    Ok(Json(Value::Null))
}

/// Keys that a key holder on another host issued; answers with pairs of an epoch and a number of users.
async fn load_keys(State(api): State<Api>, actor: Actor, Json(file): Json<String>) -> Answer {
    match &api.frontend {
        Some(control) => {
            let loaded = control.keys_load(file.as_bytes()).map_err(bad)?;
            api.changed(actor, "key load", "");
            json_of(&loaded)
        }
        None => Err(bad("no frontend runs here; it reads the file when it starts")),
    }
}

async fn groups(State(api): State<Api>) -> Answer {
    json_of(&edit!(&api, groups()))
}

async fn add_group(State(api): State<Api>, actor: Actor, Json(group): Json<Group>) -> Answer {
    edit!(&api, group_add(&group));
    api.changed(actor, "group add", &group.name);
    Ok(Json(Value::Null))
}

async fn remove_group(State(api): State<Api>, actor: Actor, Path(name): Path<String>) -> Answer {
    edit!(&api, group_remove(&name));
    api.changed(actor, "group rm", &name);
    Ok(Json(Value::Null))
}

async fn services(State(api): State<Api>) -> Answer {
    json_of(&edit!(&api, services()))
}

async fn add_services(State(api): State<Api>, actor: Actor, Json(services): Json<Vec<Service>>) -> Answer {
    edit!(&api, services_add(&services));
    services.iter().for_each(|service| api.changed(actor, "service add", &service.name));
    Ok(Json(Value::Null))
}

/// Answers with the services whose grants had to end.
async fn replace_services(State(api): State<Api>, actor: Actor, Json(services): Json<Vec<Service>>) -> Answer {
    let moved: Vec<String> = edit!(&api, services_replace(&services));
    services.iter().for_each(|service| api.changed(actor, "service mod", &service.name));
    json_of(&moved)
}

async fn remove_service(State(api): State<Api>, actor: Actor, Path(name): Path<String>) -> Answer {
    edit!(&api, service_remove(&name));
    api.changed(actor, "service rm", &name);
    Ok(Json(Value::Null))
}

/// What a changed configuration file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configured {
    services: Vec<Service>,
    rules: Vec<Rule>,
}

/// Answers with the services whose grants had to end.
async fn configure(State(api): State<Api>, actor: Actor, Json(body): Json<Configured>) -> Answer {
    let moved = api.frontend()?.configure(body.services, body.rules).map_err(bad)?;
    api.changed(actor, "reload", "");
    json_of(&moved)
}

/// The gates that have joined.
async fn gates(State(api): State<Api>) -> Answer {
    let frontend = api.frontend()?;
    let connected = frontend.status().gates;
    let row = |gate: &Gate| {
        let connected = connected.iter().any(|known| known.gate == gate.name && known.connected);
        json!({ "name": gate.name, "connected": connected, "joined_at": gate.joined_at, "seen_at": gate.seen_at })
    };
    json_of(&frontend.gates().map_err(bad)?.iter().map(row).collect::<Vec<_>>())
}

async fn remove_gate(State(api): State<Api>, actor: Actor, Path(name): Path<String>) -> Answer {
    api.frontend()?.gate_remove(&name).map_err(bad)?;
    api.changed(actor, "gate rm", &name);
    Ok(Json(Value::Null))
}
