//! Follows changes of links, neighbours and routes.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_sys::protocols::NETLINK_ROUTE;

use super::{Neighbour, route::parse_neighbour};
use crate::{Error, socket::Socket};

/// Links, neighbours, routes of both families. Links, because the kernel is silent about the IPv4 routes that go with one.
const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_NEIGH | libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV6_ROUTE) as u32;

/// What a notification said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// This neighbour is new or changed, or ended.
    Neighbour(Neighbour),
    /// Some route changed, or a link, and its routes with it: read them again.
    Routes,
}

/// Follows neighbours and routes of the namespace in which it was opened.
#[derive(Debug)]
pub struct Monitor {
    notifications: Socket,
}

impl Monitor {
    /// Listens from now on: what is read afterwards is complete, or a change is waiting.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { notifications: Socket::open(NETLINK_ROUTE, GROUPS)? })
    }

    /// Listens to what happens to links alone.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    pub fn of_links() -> Result<Self, Error> {
        Ok(Self { notifications: Socket::open(NETLINK_ROUTE, libc::RTMGRP_LINK as u32)? })
    }

    /// Hands over all waiting changes.
    ///
    /// # Errors
    /// `ENOBUFS` says that some were lost and all must be read again.
    pub fn changes(&mut self, each: &mut dyn FnMut(Change)) -> io::Result<()> {
        while self.notifications.notifications(&mut |answer| {
            match answer.kind {
                libc::RTM_NEWNEIGH => parse_neighbour(answer.payload, false).map(Change::Neighbour),
                libc::RTM_DELNEIGH => parse_neighbour(answer.payload, true).map(Change::Neighbour),
                libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_NEWLINK | libc::RTM_DELLINK => Some(Change::Routes),
                _ => None,
            }
            .into_iter()
            .for_each(&mut *each);
        })? {}
        Ok(())
    }
}

/// Readable when there are notifications.
impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}
