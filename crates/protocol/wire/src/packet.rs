//! An IP packet of which is known what its headers say.

use crate::{
    Reason,
    capability::shim::{self, Found},
    ip::Summary,
};

/// What a node knows of an IP packet: parsed once when it comes, and once more where a header was taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// What stands in front of its transport header.
    pub ip: Summary,
    /// Its capability header, or that what looks like one is none: what follows from that is the asker's matter.
    pub header: Result<Option<Found>, Reason>,
}

impl Packet {
    /// Of no packet yet: what [`Self::read`] fills.
    pub const UNREAD: Self = Self { ip: Summary::UNREAD, header: Ok(None) };

    /// Parses a packet that starts at `bytes[0]`.
    ///
    /// # Errors
    /// Those of [`Summary::parse`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let mut packet = Self::UNREAD;
        packet.read(bytes)?;
        Ok(packet)
    }

    /// [`Self::parse`] where the packet is to stay, which saves the packet path a third of the time. What stands here
    /// after an error means nothing.
    ///
    /// # Errors
    /// Those of [`Summary::parse`].
    #[inline]
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        self.ip.read(bytes)?;
        self.header = shim::find(&self.ip, bytes);
        Ok(())
    }

    /// Parses what is left of a packet whose capability header, or that of the packet that it quotes, was taken off. There is
    /// never a second one.
    ///
    /// # Errors
    /// Those of [`Summary::parse`].
    pub fn parse_rest(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        self.header = Ok(None);
        self.ip.read(bytes)
    }
}
