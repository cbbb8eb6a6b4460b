//! The XDP program: loaded, told its rules, attached to both interfaces, and pinned so that it outlives the process.
//!
//! Fails closed in every order of events: the program drops until the first heartbeat; a killed gate leaves it attached
//! and the heartbeat ages; a restarted gate replaces it atomically, by another that drops until its first heartbeat.

use std::{
    fs, io,
    os::{fd::AsRawFd, linux::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData, PerCpuArray, XskMap},
    programs::{
        ProgramError, Xdp, XdpMode,
        links::{FdLink, PinnedLink},
        xdp::XdpLink,
    },
};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};
use sluicegate_wire::Reason;

use super::{
    layout::{Config, PINGS_WORDS, Place, QUEUES_MAX, REASONS},
    socket::Socket,
};
use crate::{Interface, OpenError, Rules};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/gate.bpf.o"));
/// Maps pinned beside the links, for whoever wants to look at a running program.
const PINNED_MAPS: [&str; 2] = ["counters", "heartbeat"];

pub(super) struct Program {
    ebpf: Ebpf,
    heartbeat: Array<MapData, u64>,
    counters: PerCpuArray<MapData, u64>,
    pings: Array<MapData, u64>,
    /// What stands there.
    told: Vec<u64>,
    fragments: Array<MapData, Place>,
    sockets: XskMap<MapData>,
    pins: Pins,
    /// Dropped without detaching: the pins keep them alive.
    links: Vec<PinnedLink>,
    /// How the program runs on each interface.
    pub(super) modes: [&'static str; 2],
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("pins", &self.pins).field("modes", &self.modes).finish_non_exhaustive()
    }
}

impl Program {
    /// Loads the program and tells it its rules. Attaches nothing.
    pub(super) fn load(ports: &[Interface; 2], rules: &Rules, state_dir: &Path) -> Result<Self, OpenError> {
        let mut ebpf = configured(&Config::new(ports, rules))?;
        let pins = Pins::open(state_dir, ports)?;
        for name in PINNED_MAPS {
            let path = pins.directory.join(name);
            let _ = fs::remove_file(&path);
            let map = ebpf.map(name).ok_or_else(|| refused("the object lacks a map"))?;
            map.pin(&path).map_err(|error| OpenError::Pin { path, source: io::Error::other(error) })?;
        }
        Ok(Self {
            heartbeat: take(&mut ebpf, "heartbeat")?,
            counters: take(&mut ebpf, "counters")?,
            pings: take(&mut ebpf, "pings")?,
            told: vec![0; PINGS_WORDS],
            fragments: take(&mut ebpf, "fragments")?,
            sockets: take(&mut ebpf, "sockets")?,
            ebpf,
            pins,
            links: Vec::new(),
            modes: [""; 2],
        })
    }

    /// Hands the frames of one queue of one port to a socket.
    pub(super) fn connect(&mut self, port: u32, queue: u32, socket: &Socket) -> Result<(), OpenError> {
        self.sockets.set(port * QUEUES_MAX + queue, socket.as_raw_fd(), 0).map_err(|error| refused(&error))
    }

    /// Attaches the program to both interfaces, or puts it atomically in the place of a former gate's.
    pub(super) fn attach(&mut self, ports: &[Interface; 2]) -> Result<(), OpenError> {
        for (number, port) in ports.iter().enumerate() {
            let path = self.pins.link(port);
            let (link, mode) = match self.replace(&path)? {
                Some(link) => (link, "in place of the former program"),
                None => self.attach_new(port)?,
            };
            self.links.push(link);
            self.modes[number] = mode;
        }
        Ok(())
    }

    /// Puts the program into a link that a former gate pinned; `None` if there is none, or its interface is gone.
    fn replace(&mut self, path: &Path) -> Result<Option<PinnedLink>, OpenError> {
        let Ok(pinned) = PinnedLink::from_pin(path) else {
            let _ = fs::remove_file(path);
            return Ok(None);
        };
        let link = XdpLink::try_from(FdLink::from(pinned)).map_err(|error| refused(&error))?;
        let program = program(&mut self.ebpf, "gate")?;
        match program.attach_to_link(link) {
            // The program keeps its copy of the link only until the pinned one is opened: see below.
            Ok(id) => drop(program.take_link(id).map_err(|error| refused(&error))?),
            Err(_) => {
                fs::remove_file(path).map_err(|source| OpenError::Pin { path: path.into(), source })?;
                return Ok(None);
            }
        }
        PinnedLink::from_pin(path).map(Some).map_err(|error| refused(&error))
    }

    fn attach_new(&mut self, port: &Interface) -> Result<(PinnedLink, &'static str), OpenError> {
        let (link, mode) = attach(program(&mut self.ebpf, "gate")?, port)?;
        let link = FdLink::try_from(link).map_err(|error| refused(&error))?;
        let path = self.pins.link(port);
        let pinned =
            link.pin(&path).map_err(|error| OpenError::Pin { path: path.clone(), source: io::Error::other(error) })?;
        Ok((pinned, mode))
    }

    /// Tells the program when the gate was last alive, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn heartbeat(&mut self, now_ns: u64) {
        if let Err(error) = self.heartbeat.set(0, now_ns, 0) {
            tracing::error!(%error, "cannot tell the kernel program that the gate is alive; it will drop");
        }
    }

    /// Tells the program which identifiers of pings the gate translates.
    pub(super) fn translates_pings(&mut self, words: impl Iterator<Item = u64>) {
        for ((at, told), word) in (0..).zip(&mut self.told).zip(words).filter(|((_, told), word)| **told != *word) {
            match self.pings.set(at, word, 0) {
                Ok(()) => *told = word,
                Err(error) => tracing::error!(%error, "cannot tell the kernel program which pings are translated"),
            }
        }
    }

    /// What the program dropped, by reason.
    pub(super) fn counters(&self) -> Vec<(Reason, u64)> {
        let total = |reason: Reason| self.counters.get(&(reason as u32), 0).map_or(0, |counts| counts.iter().sum());
        let counted = REASONS.map(|(_, reason)| (reason, total(reason)));
        counted.into_iter().filter(|(_, total)| *total > 0).collect()
    }

    /// Datagrams for the host of which fragments may still come.
    pub(super) fn fragmented(&self, now_ns: u64) -> usize {
        self.fragments.iter().flatten().map(|place| place.expected(now_ns)).sum()
    }

    /// Detaches the program from both interfaces, which the kernel then receives wholly again.
    pub(super) fn detach(mut self) -> Result<(), OpenError> {
        for link in self.links.drain(..) {
            let unpinned = link.unpin();
            unpinned.map_err(|source| OpenError::Pin { path: self.pins.directory.clone(), source })?;
        }
        for name in PINNED_MAPS {
            let _ = fs::remove_file(self.pins.directory.join(name));
        }
        self.pins.close();
        Ok(())
    }
}

/// Removes what a former gate with the `xdp` back end left attached to these interfaces.
pub(crate) fn remove_pinned(state_dir: &Path, ports: &[Interface; 2]) {
    let Some(pins) = Pins::existing(state_dir, ports) else { return };
    for port in ports {
        let _ = fs::remove_file(pins.link(port));
    }
    for name in PINNED_MAPS {
        let _ = fs::remove_file(pins.directory.join(name));
    }
    pins.close();
}

/// Loads the program and its configuration into the kernel.
pub(super) fn configured(config: &Config) -> Result<Ebpf, OpenError> {
    let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(|error| refused(&error))?;
    program(&mut ebpf, "gate")?.load().map_err(|error| refused(&error))?;
    let mut map: Array<MapData, Config> = take(&mut ebpf, "config")?;
    map.set(0, config, 0).map_err(|error| refused(&error))?;
    Ok(ebpf)
}

pub(super) fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Xdp, OpenError> {
    let program = ebpf.program_mut(name).ok_or_else(|| refused("the object lacks its program"))?;
    program.try_into().map_err(|error: ProgramError| refused(&error))
}

/// Attaches a program to an interface that has none, in the driver if that can; in which mode it runs. It is detached when the
/// link is dropped.
pub(super) fn attach(program: &mut Xdp, port: &Interface) -> Result<(XdpLink, &'static str), OpenError> {
    match program.attach_to_if_index(port.index, XdpMode::Driver) {
        Ok(id) => Ok((program.take_link(id).map_err(|error| refused(&error))?, "native")),
        Err(error) if is_busy(&error) => Err(busy(port)),
        Err(_) => attach_generic(program, port),
    }
}

/// The same, in front of the kernel's network stack whatever the driver can.
pub(super) fn attach_generic(program: &mut Xdp, port: &Interface) -> Result<(XdpLink, &'static str), OpenError> {
    match program.attach_to_if_index(port.index, XdpMode::Skb) {
        Ok(id) => Ok((program.take_link(id).map_err(|error| refused(&error))?, "generic")),
        Err(error) if is_busy(&error) => Err(busy(port)),
        Err(error) => Err(refused(&error)),
    }
}

pub(super) fn take<M: TryFrom<aya::maps::Map>>(ebpf: &mut Ebpf, name: &str) -> Result<M, OpenError> {
    let map = ebpf.take_map(name).ok_or_else(|| refused("the object lacks a map"))?;
    M::try_from(map).map_err(|_| refused("a map of the object has another type"))
}

/// An error with all its causes, on one line.
pub(super) fn refused(error: &(impl ToString + ?Sized)) -> OpenError {
    OpenError::Program(error.to_string().replace('\n', " "))
}

fn busy(port: &Interface) -> OpenError {
    OpenError::Busy { interface: port.name.clone(), holder: "another XDP program".into() }
}

fn is_busy(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::EBUSY))
}

/// Where the links and maps are pinned.
#[derive(Debug)]
struct Pins {
    directory: PathBuf,
    /// A BPF file system that is mounted for this gate alone, and goes with its last pin.
    own_mount: Option<PathBuf>,
}

impl Pins {
    /// `STATE/bpf`, where a BPF file system is mounted if there is none. A process in a mount namespace of its own (a
    /// sandboxed service, or `ip netns exec`) would lose such a mount with its last process, and the program with it:
    /// a kill would open the host. There the host's own BPF file system is used, and without one there is no XDP.
    fn open(state_dir: &Path, ports: &[Interface; 2]) -> Result<Self, OpenError> {
        if let Some(existing) = Self::existing(state_dir, ports) {
            return Ok(existing);
        }
        if let Some(directory) = Self::host_directory(ports) {
            fs::create_dir_all(&directory).map_err(|source| OpenError::Pin { path: directory.clone(), source })?;
            return Ok(Self { directory, own_mount: None });
        }
        if Self::is_sandboxed() {
            return Err(OpenError::PrivateMounts);
        }
        let directory = state_dir.join("bpf");
        let failed = |source| OpenError::Pin { path: directory.clone(), source };
        fs::create_dir_all(&directory).map_err(failed)?;
        mount_bpf(&directory).map_err(failed)?;
        Ok(Self { own_mount: Some(directory.clone()), directory })
    }

    /// The directory of a former gate, if there is one. A mount of a sandbox does not count: it goes with the process.
    fn existing(state_dir: &Path, ports: &[Interface; 2]) -> Option<Self> {
        let directory = state_dir.join("bpf");
        if is_bpf(&directory) && !Self::is_sandboxed() {
            return Some(Self { own_mount: Some(directory.clone()), directory });
        }
        let directory = Self::host_directory(ports)?;
        directory.exists().then_some(Self { directory, own_mount: None })
    }

    /// In the host's BPF file system, named after this network namespace and its interfaces.
    fn host_directory(ports: &[Interface; 2]) -> Option<PathBuf> {
        let host = Path::new("/sys/fs/bpf");
        let network = inode("/proc/thread-self/ns/net")?;
        (Self::is_sandboxed() && is_bpf(host))
            .then(|| host.join(format!("sluicegate/{network}_{}_{}", ports[0].name, ports[1].name)))
    }

    /// Whether mounts of this process are its own, and end with it. The first process tells; where that may not be looked
    /// at (some containers), whoever started this one. Answered once: a process that has given up its rights may look at
    /// neither.
    fn is_sandboxed() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        *ANSWER.get_or_init(|| {
            let parent = std::os::unix::process::parent_id();
            let outer = inode("/proc/1/ns/mnt").or_else(|| inode(&format!("/proc/{parent}/ns/mnt")));
            inode("/proc/self/ns/mnt") != outer
        })
    }

    fn link(&self, port: &Interface) -> PathBuf {
        self.directory.join(format!("link_{}", port.name))
    }

    fn close(self) {
        match self.own_mount {
            // A mount that is still used stays.
            Some(mounted) => drop(umount2(&mounted, MntFlags::UMOUNT_NOFOLLOW)),
            None => drop(fs::remove_dir(&self.directory)),
        }
    }
}

fn inode(path: &str) -> Option<u64> {
    fs::metadata(path).map(|metadata| metadata.st_ino()).ok()
}

/// Does what takes more rights than attaching programs does, as far as it can be done: mounts the BPF file system in
/// which [`Pins::open`] pins.
pub(crate) fn prepare(state_dir: &Path) {
    let directory = state_dir.join("bpf");
    if !Pins::is_sandboxed() && !is_bpf(&directory) {
        let mounted = fs::create_dir_all(&directory).and_then(|()| mount_bpf(&directory));
        if let Err(error) = mounted {
            tracing::debug!(%error, "no BPF file system could be mounted");
        }
    }
}

/// Whether this process may use the `xdp` back end: load the program, and pin it somewhere. For laboratories, whose wires carry
/// nothing beside the packets: [`crate::Backend::Auto`] cannot know that and takes `packet` there.
#[must_use]
pub fn xdp_works() -> bool {
    (!Pins::is_sandboxed() || is_bpf(Path::new("/sys/fs/bpf")))
        && configured(&Config::new(&Default::default(), &Rules::default())).is_ok()
}

fn is_bpf(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| status.filesystem_type() == BPF_FS_MAGIC)
}

fn mount_bpf(path: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(Some("bpf"), path, Some("bpf"), flags, Some("mode=0700"))?)
}
