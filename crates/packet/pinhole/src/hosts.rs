//! The hosts behind the gate: what the services' addresses may do.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use sluicegate_bounded::Index;
use sluicegate_flow::Hasher;
use sluicegate_wire::ip::octets;

use crate::config::{Service, ServiceMode, ServicesError};

/// One inside address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Its own address.
    pub address: IpAddr,
    /// Translated or only filtered.
    pub mode: ServiceMode,
    /// Whether it needs no pinholes.
    pub open: bool,
    /// The first service at this address that may start flows.
    pub outbound: Option<u16>,
}

/// The services' addresses, replaced as a whole.
#[derive(Debug)]
pub struct Hosts {
    services: Vec<Service>,
    hosts: Vec<Host>,
    by_address: Index,
    hasher: Hasher,
    services_max: u16,
    /// Hosts that need no pinholes.
    open: usize,
}

impl Hosts {
    /// So many services, none yet.
    pub fn new(services_max: u16, hash_key: &[u8; 16]) -> Self {
        let services_max = services_max.max(1);
        Self {
            services: Vec::with_capacity(services_max.into()),
            hosts: Vec::with_capacity(services_max.into()),
            by_address: Index::new("services", services_max.into(), services_max.into()),
            hasher: Hasher::new(hash_key),
            services_max,
            open: 0,
        }
    }

    /// Whether a list of services may take the place of this one.
    ///
    /// # Errors
    /// See [`ServicesError`].
    pub fn check(&self, services: &[Service], gate_address: Ipv4Addr) -> Result<(), ServicesError> {
        if services.len() > self.services_max.into() {
            return Err(ServicesError::TooMany(self.services_max));
        }
        let mut by_address: Vec<&Service> = services.iter().collect();
        // Stable: the first of an address stands for the others, which must agree with it.
        by_address.sort_by_key(|service| service.address);
        for service in services {
            let address = service.address;
            let first = by_address[by_address.partition_point(|other| other.address < address)];
            if !is_host(address) || address == IpAddr::V4(gate_address) {
                return Err(ServicesError::Address(address));
            }
            if service.mode == ServiceMode::Nat && !address.is_ipv4() {
                return Err(ServicesError::NatIpv6(address));
            }
            if service.mode == ServiceMode::Nat && gate_address.is_unspecified() {
                return Err(ServicesError::NoGateAddress);
            }
            if service.mode == ServiceMode::Nat && service.open {
                return Err(ServicesError::NatOpen(address));
            }
            if first.mode != service.mode {
                return Err(ServicesError::ModeConflict(address));
            }
            if first.open != service.open {
                return Err(ServicesError::DefaultConflict(address));
            }
        }
        Ok(())
    }

    /// Replaces the list, which was checked.
    pub fn replace(&mut self, services: &[Service]) {
        for index in 0..self.hosts.len() {
            self.by_address.remove(index as u32);
        }
        self.hosts.clear();
        self.services.clear();
        for service in services {
            self.services.push(*service);
            let outbound = service.outbound_all.then_some(service.id);
            let hash = self.hasher.hash(&octets(service.address));
            let is_it =
                |index: &u32| self.hosts.get(*index as usize).is_some_and(|host| host.address == service.address);
            let known = self.by_address.matches(hash).find(is_it);
            match known.and_then(|index| self.hosts.get_mut(index as usize)) {
                Some(host) => host.outbound = host.outbound.or(outbound),
                None => {
                    self.by_address.insert(hash, self.hosts.len() as u32);
                    let Service { address, mode, open, .. } = *service;
                    self.hosts.push(Host { address, mode, open, outbound });
                }
            }
        }
        self.open = self.hosts.iter().filter(|host| host.open).count();
    }

    /// The host at an inside address.
    #[inline]
    pub fn find(&self, address: IpAddr) -> Option<Host> {
        let hash = self.hasher.hash(&octets(address));
        let hosts = self.by_address.matches(hash).filter_map(|index| self.hosts.get(index as usize));
        hosts.copied().find(|host| host.address == address)
    }

    /// Whether the host at this address needs no pinholes.
    #[inline]
    pub fn is_open(&self, address: IpAddr) -> bool {
        self.open > 0 && self.find(address).is_some_and(|host| host.open)
    }

    /// The service with this number.
    pub fn service(&self, id: u16) -> Option<&Service> {
        self.services.iter().find(|service| service.id == id)
    }

    /// All services.
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// Services that there is room for.
    pub const fn max(&self) -> u16 {
        self.services_max
    }
}

fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified() || v4.is_loopback() || v4.is_multicast() || v4.is_broadcast() || v4.is_link_local())
        }
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_loopback() || v6.is_multicast()),
    }
}
