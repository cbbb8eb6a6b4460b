use std::{io, path::PathBuf};

use sluicegate_netlink::Error;

/// Why a [`crate::Device`] or [`crate::UdpQueue`] could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no interface of this name.
    #[error("there is no interface `{0}`; `ip link` lists those that exist")]
    NoInterface(String),
    /// Outside and inside are the same interface.
    #[error("`outside` and `inside` are both `{0}`; a gate needs two interfaces")]
    SameInterface(String),
    /// The interface has no Ethernet address.
    #[error("`{0}` is no Ethernet interface; a gate works on Ethernet only")]
    NotEthernet(String),
    /// The interface is set down.
    #[error("`{0}` is down; set it up with `ip link set {0} up`")]
    Down(String),
    /// The process lacks a right.
    #[error(
        "no permission to {action}: {source}; run as root, or grant the service CAP_NET_ADMIN and CAP_NET_RAW \
         (and CAP_BPF for the xdp back end)"
    )]
    NoPermission {
        /// What was attempted.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel would forward packets past the gate.
    #[error(
        "the kernel forwards packets that arrive on `{0}`, or would if it was made anew, past the gate; set \
         `manage_forwarding = true`, or switch it off with `sysctl net.ipv4.conf.all.forwarding=0 \
         net.ipv4.conf.default.forwarding=0 net.ipv6.conf.all.forwarding=0`"
    )]
    ForwardingOn(String),
    /// Somebody else has the interface's XDP hook or its queue.
    #[error("`{interface}` is in use by {holder}; stop that program, or choose a `datapath` without XDP")]
    Busy {
        /// The interface.
        interface: String,
        /// Who has it, as far as known.
        holder: String,
    },
    /// More rules than the fixed tables hold.
    #[error("{given} entries in `{table}`, but it holds at most {max}; merge port ranges or drop entries")]
    TooMany {
        /// `local`, `own` or `peers`.
        table: &'static str,
        /// Entries given.
        given: usize,
        /// Entries it holds.
        max: usize,
    },
    /// The interface's frames do not fit the back end's buffers.
    #[error("`{interface}` has an MTU of {mtu} bytes, the {backend} back end carries at most {max}; lower the MTU")]
    MtuTooLarge {
        /// The interface.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// The largest MTU that works, in bytes.
        max: u32,
        /// The back end.
        backend: &'static str,
    },
    /// An XDP program would take packets of another VLAN for untagged ones.
    #[error(
        "`{0}` may hand over packets with their VLAN tags beside them, where an XDP program does not see them; \
         choose a `datapath` without XDP"
    )]
    TagsHidden(String),
    /// The state directory cannot hold the pins of the kernel program.
    #[error("cannot pin the kernel program under {path}: {source}; choose a directory on a local disk for `state`", path = path.display())]
    Pin {
        /// Where it was to be pinned.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The process has mounts of its own and no BPF file system of the host: a pinned program would end with it.
    #[error(
        "this process has its own mounts (a sandboxed service, or `ip netns exec`) and no BPF file system at \
         /sys/fs/bpf, so a kernel program would not outlive it; mount one there, or choose `datapath = \"packet\"`"
    )]
    PrivateMounts,
    /// The kernel cannot filter at the ingress of an interface.
    #[error(
        "the kernel has no nf_tables ingress filter ({0}); load the module `nf_tables`, or use a kernel with \
         CONFIG_NF_TABLES_NETDEV, or choose `datapath = \"xdp\"`"
    )]
    NoFilter(#[source] io::Error),
    /// The kernel refused the XDP program.
    #[error("the kernel refused the XDP program: {0}; choose a `datapath` without XDP")]
    Program(String),
    /// Netlink failed otherwise.
    #[error(transparent)]
    Netlink(#[from] Error),
    /// Another system call failed.
    #[error("{action} failed: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl OpenError {
    /// Sorts an error of a system call that did `action` (an infinitive) into the right variant.
    pub(crate) fn system(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Self::NoPermission { action, source };
        }
        Self::System { action: format!("to {action}"), source }
    }

    /// As [`Self::system`], for netlink.
    pub(crate) fn netlink(action: &str, error: Error) -> Self {
        match error.errno() {
            Some(code @ (libc::EPERM | libc::EACCES)) => {
                Self::NoPermission { action: action.into(), source: io::Error::from_raw_os_error(code) }
            }
            Some(code @ (libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT)) => {
                Self::NoFilter(io::Error::from_raw_os_error(code))
            }
            _ => Self::Netlink(error),
        }
    }
}
