//! What a site has: users, keys, groups, services, grants, rules.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Subcommand};
use ipnet::IpNet;
use sluicegate_grant::DataMode;

use super::{NodeAddress, Password, Reading};

#[derive(Debug, Subcommand)]
pub(crate) enum UserAction {
    /// Add a user; the password is asked for, or read from a file or descriptor. Or add many from a list.
    Add(NewUsers),
    /// List users.
    Ls(Reading),
    /// Show a user, and where its telephones are registered.
    Show {
        /// The user's name.
        name: String,
        #[command(flatten)]
        reading: Reading,
    },
    /// End a user's registrations: nobody is called there until a telephone registers again, which `user disable` prevents.
    Unregister(Named),
    /// Change a user's groups.
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Mod {
        /// The user's name.
        name: String,
        /// The user is in exactly these groups; may be repeated.
        #[arg(long = "group", value_name = "GROUP", group = "what")]
        groups: Option<Vec<String>>,
        /// The user is in this group too; may be repeated.
        #[arg(long, value_name = "GROUP", group = "what")]
        add_group: Vec<String>,
        /// The user is in this group no longer; may be repeated.
        #[arg(long, value_name = "GROUP", group = "what")]
        remove_group: Vec<String>,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Set another password, asked for or read from a file or descriptor. What is open with the old one stays until it ends.
    Passwd {
        /// The user's name.
        name: String,
        /// The user has phones only: hold no key for agents.
        #[arg(long)]
        no_agent: bool,
        #[command(flatten)]
        password: Password,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Stop a user now: revoke the user's grants, and let the user sign in no more.
    Disable(Named),
    /// Let a disabled user sign in again.
    Enable(Named),
    /// Remove a user and revoke the user's grants.
    Rm(Named),
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) node: NodeAddress,
}

#[derive(Debug, Args)]
pub(crate) struct NewUsers {
    /// The user's name.
    #[arg(required_unless_present = "from")]
    pub(crate) name: Option<String>,
    /// Add all users of this list (`-` for standard input) instead: one NAME:PASSWORD a line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "key", "password_file", "password_fd"])]
    pub(crate) from: Option<PathBuf>,
    /// A group the user belongs to; may be repeated.
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// The user has no phone: refuse the plain digest realm, accept agents only.
    #[arg(long)]
    pub(crate) no_phone: bool,
    /// The user has no agent: accept phones only, and hold no key for agents.
    #[arg(long, conflicts_with_all = ["no_phone", "key"])]
    pub(crate) no_agent: bool,
    /// The user signs in with a key, agents only: the one in this file, which is made if it is not there.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["password_file", "password_fd"])]
    pub(crate) key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) password: Password,
    #[command(flatten)]
    pub(crate) node: NodeAddress,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyAction {
    /// Print the site's key, for `site_key` of frontends and agents. Makes it the first time.
    Show(NodeAddress),
    /// Write the keys of this epoch, in its last hour of the next too, for each frontend of `[[keyholder.frontend]]`; at a
    /// frontend also its users, for each of `[[frontend.replica]]`.
    Issue {
        /// Where to: NAME.keys for each.
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// At a frontend: take the keys, and users, that were copied here.
    Load {
        /// The file; what `keys` in `[frontend]` says unless given.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        node: NodeAddress,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupAction {
    /// Add a group.
    Add(Named),
    /// List groups.
    Ls(Reading),
    /// Remove a group.
    Rm(Named),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceAction {
    /// Add the services of a TOML file that holds `[[service]]` tables: all of them or none.
    Add(ServiceFile),
    /// List services.
    Ls(Reading),
    /// Replace the services of the same names by those of a TOML file: all or none. A service with another address, mode,
    /// kind or other ports loses its grants.
    Mod(ServiceFile),
    /// Remove a service and revoke its grants.
    Rm(Named),
}

#[derive(Debug, Args)]
pub(crate) struct ServiceFile {
    /// The file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) node: NodeAddress,
}

/// Gates that have joined a frontend.
#[derive(Debug, Subcommand)]
pub(crate) enum GateAction {
    /// List the gates that have joined.
    Ls(Reading),
    /// Remove a gate: it is cut off, and comes back with a new token only.
    Rm(Named),
}

#[derive(Debug, Subcommand)]
pub(crate) enum GrantAction {
    /// List live grants.
    Ls(Reading),
    /// Revoke grants; every gate acts within a second. Who lost a grant may sign in again: `user disable` stops a person.
    Revoke {
        /// The grant's id, as `grant ls` shows it.
        #[arg(value_name = "GRANT", required_unless_present_any = ["user", "service"])]
        id: Option<String>,
        /// Revoke all grants of this user.
        #[arg(long, conflicts_with_all = ["id", "service"])]
        user: Option<String>,
        /// Revoke all grants for this service.
        #[arg(long, conflicts_with = "id")]
        service: Option<String>,
        #[command(flatten)]
        node: NodeAddress,
    },
}

/// Limits that senders of a frontend are held to.
#[derive(Debug, Subcommand)]
pub(crate) enum LimitAction {
    /// List who was refused in the last minute since it sends more than others while more comes than can be served, or since too many
    /// wrong passwords came; and whom that is lifted for.
    Ls(Reading),
    /// Refuse nobody at an address or network for load, for a time: it is an office, not an attack.
    Lift {
        /// The address or network.
        #[arg(value_name = "SOURCE", value_parser = source)]
        source: IpNet,
        /// For how many minutes; at most 30 days.
        #[arg(long = "for", value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=43_200))]
        minutes: u64,
        /// Why, for whoever lists it later.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// End that.
    Restore {
        /// The address or network.
        #[arg(value_name = "SOURCE", value_parser = source)]
        source: IpNet,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Forget wrong passwords of a user, who may try again at once.
    Forgive(Named),
}

fn source(text: &str) -> Result<IpNet, String> {
    let network = text.parse().or_else(|error| text.parse().map(|address: IpAddr| address.into()).map_err(|_| error));
    network.map_err(|_| "write an address, such as 198.51.100.7, or a network, such as 198.51.100.0/24".to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyAction {
    /// Decide for this user and service, now, and explain each step.
    Test {
        /// The user's name.
        user: String,
        /// The service's name.
        service: String,
        /// The most that the client can prove: `pinhole` as a telephone, `mac` as `connect`, or `capability` as `agent tun`.
        #[arg(long, value_name = "MODE", default_value = "capability", value_parser = data_mode)]
        proves: DataMode,
        #[command(flatten)]
        reading: Reading,
    },
}

fn data_mode(label: &str) -> Result<DataMode, String> {
    DataMode::from_label(label).ok_or_else(|| "there is no such data mode; write pinhole, mac or capability".to_owned())
}
