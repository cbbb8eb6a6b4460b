//! A TUN device: IP packets that the kernel routes to it come out of [`Tun::read`], and what [`Tun::write`] gets
//! arrives at the kernel as if from a wire.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::OpenOptionsExt,
    },
};

use sluicegate_wire::{Frame, HEADROOM};

pub use crate::sys::wait_readable;
use crate::{error::OpenError, sys};

/// Where the kernel offers TUN devices.
const CLONE_DEVICE: &str = "/dev/net/tun";
/// Bytes that a buffer for [`Tun::read`] needs beyond the device's MTU: room for headers in front and trailers behind.
pub const BUFFER_MARGIN: usize = 2 * HEADROOM;

/// An open TUN device. It lives in the network namespace of the thread that opened it, and disappears with this value
/// (or its process), and its routes with it.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
}

impl Tun {
    /// Creates the device `name` (`%d` in it stands for the first free number) in the calling thread's network
    /// namespace, down and without addresses. Reads never block.
    ///
    /// # Errors
    /// [`OpenError::NoPermission`] without CAP_NET_ADMIN; [`OpenError::Busy`] if an interface has that name;
    /// [`OpenError::System`] if the kernel has no TUN devices.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let action = format!("create the TUN device {name}");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(CLONE_DEVICE)
            .map_err(|error| OpenError::system(format!("open {CLONE_DEVICE}"), error))?;
        let mut request = libc::ifreq {
            ifr_name: sys::interface_name(name).map_err(|error| OpenError::system(&action, error))?,
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: (libc::IFF_TUN | libc::IFF_NO_PI) as i16 },
        };
        // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives during the call; the descriptor is open.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        match sys::check(result) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(OpenError::Busy { interface: name.to_owned(), holder: "another program".to_owned() });
            }
            Err(error) => return Err(OpenError::system(action, error)),
        }
        let bytes = request.ifr_name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
        Ok(Self { file, name: String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned()) })
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next packet that the kernel routed here, with [`HEADROOM`] bytes in front; `None` if none waits. A packet
    /// longer than `buffer` has room for is cut.
    ///
    /// # Errors
    /// `EBADFD` when the device is gone; `EIO` while it is down.
    pub fn read<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<Frame<'b>>> {
        let room = buffer.get_mut(HEADROOM..).ok_or(io::ErrorKind::InvalidInput)?;
        match (&self.file).read(room) {
            Ok(len) => Ok(Frame::new(buffer, HEADROOM, len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives an IP packet to the kernel.
    ///
    /// # Errors
    /// `EIO` while the device is down; `EINVAL` for bytes that are no IP packet.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
