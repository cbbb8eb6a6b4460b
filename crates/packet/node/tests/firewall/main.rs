//! A gate's firewall between clients, strangers and its services: permission, translation, fragments and errors.

mod explain;
mod filter;
mod fragments;
mod grants;
mod icmp;
mod mac;
mod memory;
mod model;
mod moves;
mod one_address;
mod passing;
mod proof;
mod relayed;
mod restart;
mod robustness;
mod shares;
mod site;
mod tables;
mod tcp_conversations;
mod tcp_states;
mod toy_transport;
mod transports;
mod udp_mapping;
mod work;
