//! Packet I/O back ends: xdp, packet, loopback.
