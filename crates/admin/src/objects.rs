//! Users, groups and services: of a running frontend, or of the store of one that does not run.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, State},
    routing::{delete, get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use sluicegate_frontend::{Catalog, Control, NewUser};
use sluicegate_policy::{Group, Service, User};
use sluicegate_signin::UserSecret;
use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

use crate::{
    Api,
    api::{Answer, Refused, bad, json_of},
    beside::QUESTION_BYTES_MAX,
};

pub(crate) fn router() -> Router<Api> {
    Router::new()
        .route("/v1/users", get(users).post(add_users))
        .route("/v1/users/{name}", delete(remove_user))
        .route("/v1/keys", post(load_keys).layer(DefaultBodyLimit::max(QUESTION_BYTES_MAX)))
        .route("/v1/groups", get(groups).post(add_group))
        .route("/v1/groups/{name}", delete(remove_group))
        .route("/v1/services", get(services).post(add_service))
        .route("/v1/services/{name}", delete(remove_service))
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

async fn add_users(State(api): State<Api>, Json(users): Json<Vec<UserBody>>) -> Answer {
    let users: Vec<NewUser> = users.into_iter().map(NewUser::from).collect();
    edit!(&api, users_add(&users));
    Ok(Json(Value::Null))
}

async fn remove_user(State(api): State<Api>, Path(name): Path<String>) -> Answer {
    edit!(&api, user_remove(&name));
    Ok(Json(Value::Null))
}

/// Keys that a key holder on another host issued; answers with pairs of an epoch and a number of users.
async fn load_keys(State(api): State<Api>, Json(file): Json<String>) -> Answer {
    match &api.frontend {
        Some(control) => json_of(&control.keys_load(file.as_bytes()).map_err(bad)?),
        None => Err(bad("no frontend runs here; it reads the file when it starts")),
    }
}

async fn groups(State(api): State<Api>) -> Answer {
    json_of(&edit!(&api, groups()))
}

async fn add_group(State(api): State<Api>, Json(group): Json<Group>) -> Answer {
    edit!(&api, group_add(&group));
    Ok(Json(Value::Null))
}

async fn remove_group(State(api): State<Api>, Path(name): Path<String>) -> Answer {
    edit!(&api, group_remove(&name));
    Ok(Json(Value::Null))
}

async fn services(State(api): State<Api>) -> Answer {
    json_of(&edit!(&api, services()))
}

async fn add_service(State(api): State<Api>, Json(service): Json<Service>) -> Answer {
    edit!(&api, service_add(&service));
    Ok(Json(Value::Null))
}

async fn remove_service(State(api): State<Api>, Path(name): Path<String>) -> Answer {
    edit!(&api, service_remove(&name));
    Ok(Json(Value::Null))
}
