//! Network namespaces, held by a file descriptor and a thread.

use std::{
    fs::{self, File},
    io,
    net::Ipv6Addr,
    os::fd::{AsFd, BorrowedFd},
    process::{Child, Command},
    sync::mpsc,
    thread::{self, JoinHandle},
};

use nix::{
    sched::{CloneFlags, setns, unshare},
    unistd::{getegid, geteuid},
};

use sluicegate_netlink::{Error, Rtnetlink};

use crate::{During, LabError, process::Process};

/// On the loopback interface of every namespace of a lab, and nowhere else: how a process sees that it is in one.
pub const MARKER: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x6c75, 0x6963, 0x6567, 0x6174, 0x656c, 0x6162, 1);

/// Kernel settings of every namespace. Reverse-path filters would hide spoofed packets from the gate, and duplicate
/// address detection would delay the start.
const SETTINGS: [(&str, &str); 12] = [
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/conf/all/accept_local", "1"),
    ("net/ipv4/conf/default/accept_local", "1"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/default/send_redirects", "0"),
    ("net/ipv6/conf/all/disable_ipv6", "0"),
    ("net/ipv6/conf/default/disable_ipv6", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/all/accept_ra", "0"),
    // As in IPv4, an address by a local route can be bound to.
    ("net/ipv6/ip_nonlocal_bind", "1"),
];

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace. Processes started in it end with it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
    jobs: Option<mpsc::Sender<Job>>,
    keeper: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Makes a namespace with loopback on, IPv6 on, reverse-path filters off and the lab's [`MARKER`].
    ///
    /// # Errors
    /// [`LabError::Namespace`] without the right to make one; [`LabError::Kernel`] if setting it up fails.
    pub fn new(name: &str) -> Result<Self, LabError> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, made) = mpsc::channel();
        let keeper = thread::Builder::new()
            .name(format!("netns {name}"))
            .spawn(move || keep(&ready, &queue))
            .map_err(LabError::Namespace)?;
        let file = made
            .recv()
            .map_err(|_| LabError::Namespace(io::Error::other("its thread ended")))?
            .map_err(LabError::Namespace)?;
        let namespace = Self { name: name.to_owned(), file, jobs: Some(jobs), keeper: Some(keeper) };
        namespace.run_in(prepare).map_err(LabError::Namespace)??;
        Ok(namespace)
    }

    /// The name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `f` on a new thread in the namespace and waits for it.
    ///
    /// # Errors
    /// If the thread cannot be made or cannot enter the namespace.
    ///
    /// # Panics
    /// If `f` does.
    pub fn run_in<R: Send>(&self, f: impl FnOnce() -> R + Send) -> io::Result<R> {
        thread::scope(|scope| {
            let entered = thread::Builder::new().spawn_scoped(scope, || -> io::Result<R> {
                setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)?;
                Ok(f())
            })?;
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a thread that stays in the namespace.
    ///
    /// # Errors
    /// If the thread cannot be made; its own errors come out of its handle.
    pub fn thread<R: Send + 'static>(
        &self,
        name: &str,
        f: impl FnOnce() -> io::Result<R> + Send + 'static,
    ) -> io::Result<JoinHandle<io::Result<R>>> {
        let file = self.file.try_clone()?;
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET)?;
            drop(file);
            f()
        })
    }

    /// Starts a process in the namespace.
    ///
    /// It is started from the namespace's own thread, which lives as long as the namespace: a process that asks the
    /// kernel to be killed when its parent thread ends (as lab workers do) therefore ends with the namespace.
    ///
    /// # Errors
    /// [`LabError::Process`] if the command cannot be started.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process, LabError> {
        let failed = |error| LabError::process(name, format!("did not start: {error}"));
        Process::start(name, command, |command| self.start(command)).map_err(failed)
    }

    fn start(&self, mut command: Command) -> io::Result<Child> {
        let (sender, answer) = mpsc::channel();
        let gone = || io::Error::other("the namespace's thread ended");
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        let job = move || {
            // The receiver waits below; without it the child would have been started for nobody.
            if let Err(mpsc::SendError(Ok(mut orphan))) = sender.send(command.spawn()) {
                let _ = orphan.kill();
            }
        };
        jobs.send(Box::new(job)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }

    /// Runs `f` with a netlink socket of the namespace; `what` names the step in errors.
    ///
    /// # Errors
    /// [`LabError::Kernel`] with what `f` returned.
    pub fn netlink<R: Send>(
        &self,
        what: &str,
        f: impl FnOnce(&mut Rtnetlink) -> Result<R, Error> + Send,
    ) -> Result<R, LabError> {
        self.run_in(|| Ok(f(&mut Rtnetlink::open()?)?))
            .and_then(|result| result)
            .during(|| format!("{}: {what}", self.name))
    }

    /// Writes a kernel setting of the namespace, such as `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// [`LabError::Kernel`] if there is no such setting or it refuses the value.
    pub fn set(&self, setting: &str, value: &str) -> Result<(), LabError> {
        self.run_in(|| write_setting(setting, value))
            .and_then(|result| result)
            .during(|| format!("{}: writing {value} to {setting}", self.name))
    }

    /// Switches kernel forwarding of IPv4 and IPv6 on or off.
    ///
    /// # Errors
    /// [`LabError::Kernel`] if the settings cannot be written.
    pub fn forward(&self, on: bool) -> Result<(), LabError> {
        let value = if on { "1" } else { "0" };
        self.set("net/ipv4/ip_forward", value)?;
        self.set("net/ipv6/conf/all/forwarding", value)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// The namespace's own thread: makes it, and starts its processes until the [`Namespace`] is dropped.
fn keep(ready: &mpsc::Sender<io::Result<File>>, queue: &mpsc::Receiver<Job>) {
    let made = unshare(CloneFlags::CLONE_NEWNET)
        .map_err(io::Error::from)
        .and_then(|()| File::open("/proc/thread-self/ns/net"));
    let failed = made.is_err();
    if ready.send(made).is_err() || failed {
        return;
    }
    while let Ok(job) = queue.recv() {
        job();
    }
}

fn prepare() -> Result<(), LabError> {
    for (setting, value) in SETTINGS {
        write_setting(setting, value).during(|| format!("writing {value} to {setting}"))?;
    }
    let loopback_on = || {
        let mut netlink = Rtnetlink::open()?;
        netlink.set_up("lo")?;
        netlink.add_address("lo", MARKER.into(), 128)
    };
    loopback_on().during(|| "switching loopback on".to_owned())
}

fn write_setting(setting: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/{setting}"), value)
}

/// Enters a new user namespace (and a network namespace owned by it) in which this process may make labs.
///
/// Does nothing for root. Must be called while the process has one thread: first thing in `main`.
///
/// # Errors
/// [`LabError::Namespace`] where the system forbids user namespaces.
pub fn enter_user_namespace() -> Result<(), LabError> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        return Ok(());
    }
    let enter = || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1"))
    };
    enter().map_err(LabError::Namespace)
}

/// Whether this process may make namespaces now: it is root, here or in a user namespace of its own.
#[must_use]
pub fn may_make_namespaces() -> bool {
    thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET).is_ok()).join().unwrap_or(false)
}
