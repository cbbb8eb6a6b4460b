//! Users, groups and services: of a running frontend, or of the store of one that does not run.

use sluicegate_api::{
    self as api, Configured, Forgiven, Gate, LimitLift, NewUser, Unregistered, UserChange, UserStatus,
};
use sluicegate_frontend::{Catalog, Control, EditError, Edited};
use sluicegate_policy::{Group, Service};

use crate::{
    Api,
    beside::NO_FRONTEND,
    routes::{Asked, Refused, Routes, bad},
};

/// Those of objects, besides `routes`.
pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .on(&api::USERS, async |asked| catalog(&asked.api)?.users().map_err(bad))
        .on(&api::USERS_ADD, add_users)
        .on(&api::USER, user)
        .on(&api::USER_UNREGISTER, unregister)
        .on(&api::USER_CHANGE, change_user)
        .on(&api::USER_PASSWORD, password)
        .on(&api::USER_REMOVE, remove_user)
        .on(&api::KEYS_LOAD, load_keys)
        .on(&api::KEYS_ISSUE, issue_keys)
        .on(&api::GROUPS, async |asked| catalog(&asked.api)?.groups().map_err(bad))
        .on(&api::GROUP_ADD, add_group)
        .on(&api::GROUP_REMOVE, remove_group)
        .on(&api::SERVICES, async |asked| catalog(&asked.api)?.services().map_err(bad))
        .on(&api::SERVICES_ADD, add_services)
        .on(&api::SERVICES_REPLACE, replace_services)
        .on(&api::SERVICE_REMOVE, remove_service)
        .on(&api::CONFIGURE, configure)
        .on(&api::LIMITS, async |asked| Ok(asked.api.frontend()?.limits()))
        .on(&api::LIMIT_LIFT, lift_limit)
        .on(&api::LIMIT_FORGIVE, forgive)
        .on(&api::GATES, gates)
        .on(&api::GATE_REMOVE, remove_gate)
}

/// The users, groups and services of a running frontend, or of the store of one that does not run.
fn catalog(api: &Api) -> Result<&Catalog, Refused> {
    let running = api.frontend.as_ref().map(Control::catalog);
    running.or(api.catalog.as_ref()).ok_or_else(|| bad(NO_FRONTEND))
}

/// Edits them. A running frontend applies the change at once.
fn edit(api: &Api, edit: impl FnOnce(&Catalog) -> Result<Edited, EditError>) -> Result<Edited, Refused> {
    match &api.frontend {
        Some(control) => control.edit(edit).map_err(bad),
        None => edit(catalog(api)?).map_err(bad),
    }
}

async fn add_users(asked: Asked<Vec<NewUser>>) -> Result<(), Refused> {
    edit(&asked.api, |catalog| catalog.users_add(&asked.body))?;
    asked.body.iter().for_each(|user| asked.changed("user add", &user.name));
    Ok(())
}

async fn user(asked: Asked<()>) -> Result<UserStatus, Refused> {
    let user = catalog(&asked.api)?.user_named(&asked.name).map_err(bad)?;
    let contacts = asked.api.frontend.as_ref().map(|control| control.contacts_of(&asked.name));
    Ok(UserStatus { user, contacts })
}

async fn unregister(asked: Asked<()>) -> Result<Unregistered, Refused> {
    let control = asked.api.frontend.as_ref();
    let control = control.ok_or_else(|| bad("no frontend runs here; start it, then end what is registered"))?;
    catalog(&asked.api)?.user_named(&asked.name).map_err(bad)?;
    let contacts = control.unregister(&asked.name).map_err(bad)?;
    asked.changed("user unregister", &asked.name);
    Ok(Unregistered { contacts })
}

async fn change_user(asked: Asked<UserChange>) -> Result<(), Refused> {
    edit(&asked.api, |catalog| catalog.user_change(&asked.name, &asked.body))?;
    let change = asked.body.enabled.map_or("user mod", |on| if on { "user enable" } else { "user disable" });
    asked.changed(change, &asked.name);
    Ok(())
}

async fn password(asked: Asked<NewUser>) -> Result<(), Refused> {
    if asked.body.name != asked.name {
        return Err(bad("the password is another user's"));
    }
    edit(&asked.api, |catalog| catalog.user_password(&asked.body))?;
    asked.changed("user passwd", &asked.name);
    Ok(())
}

async fn remove_user(asked: Asked<()>) -> Result<(), Refused> {
    edit(&asked.api, |catalog| catalog.user_remove(&asked.name))?;
    asked.changed("user rm", &asked.name);
    Ok(())
}

async fn load_keys(asked: Asked<String>) -> Result<Vec<(u32, usize)>, Refused> {
    let control = asked.api.frontend.as_ref();
    let control = control.ok_or_else(|| bad("no frontend runs here; it reads the file when it starts"))?;
    let loaded = control.keys_load(asked.body.as_bytes()).map_err(bad)?;
    asked.changed("key load", "");
    Ok(loaded)
}

async fn issue_keys(asked: Asked<()>) -> Result<String, Refused> {
    let issued = asked.api.frontend()?.keys_issue(&asked.name).map_err(bad)?;
    asked.changed("key issue", &asked.name);
    Ok(issued.text)
}

async fn lift_limit(asked: Asked<LimitLift>) -> Result<bool, Refused> {
    let is_changed = asked.api.frontend()?.lift_limit(&asked.body).map_err(bad)?;
    let change = if asked.body.seconds > 0 { "limit lift" } else { "limit restore" };
    asked.changed(change, &asked.body.source.to_string());
    Ok(is_changed)
}

async fn forgive(asked: Asked<()>) -> Result<Forgiven, Refused> {
    let control = asked.api.frontend()?;
    catalog(&asked.api)?.user_named(&asked.name).map_err(bad)?;
    let sources = control.forgive(&asked.name);
    asked.changed("limit forgive", &asked.name);
    Ok(Forgiven { sources })
}

async fn add_group(asked: Asked<Group>) -> Result<(), Refused> {
    edit(&asked.api, |catalog| catalog.group_add(&asked.body))?;
    asked.changed("group add", &asked.body.name);
    Ok(())
}

async fn remove_group(asked: Asked<()>) -> Result<(), Refused> {
    edit(&asked.api, |catalog| catalog.group_remove(&asked.name))?;
    asked.changed("group rm", &asked.name);
    Ok(())
}

async fn add_services(asked: Asked<Vec<Service>>) -> Result<(), Refused> {
    edit(&asked.api, |catalog| catalog.services_add(&asked.body))?;
    asked.body.iter().for_each(|service| asked.changed("service add", &service.name));
    Ok(())
}

async fn replace_services(asked: Asked<Vec<Service>>) -> Result<Vec<String>, Refused> {
    let edited = edit(&asked.api, |catalog| catalog.services_replace(&asked.body))?;
    asked.body.iter().for_each(|service| asked.changed("service mod", &service.name));
    Ok(edited.services)
}

async fn remove_service(asked: Asked<()>) -> Result<(), Refused> {
    edit(&asked.api, |catalog| catalog.service_remove(&asked.name))?;
    asked.changed("service rm", &asked.name);
    Ok(())
}

async fn configure(asked: Asked<Configured>) -> Result<Vec<String>, Refused> {
    let edited = asked.api.frontend()?.edit(|catalog| catalog.configure(&asked.body)).map_err(bad)?;
    asked.changed("reload", "");
    Ok(edited.services)
}

async fn gates(asked: Asked<()>) -> Result<Vec<Gate>, Refused> {
    let frontend = asked.api.frontend()?;
    let connected = frontend.status().gates;
    let row = |gate: sluicegate_store::Gate| {
        let connected = connected.iter().any(|known| known.gate == gate.name && known.connected);
        Gate { name: gate.name, connected, joined_at: gate.joined_at, seen_at: gate.seen_at }
    };
    Ok(frontend.gates().map_err(bad)?.into_iter().map(row).collect())
}

async fn remove_gate(asked: Asked<()>) -> Result<(), Refused> {
    asked.api.frontend()?.gate_remove(&asked.name).map_err(bad)?;
    asked.changed("gate rm", &asked.name);
    Ok(())
}
