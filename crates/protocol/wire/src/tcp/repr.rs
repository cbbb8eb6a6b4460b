use core::net::IpAddr;

use super::{Flags, HEADER_LEN, HEADER_LEN_MAX, Packet, TcpOption, Timestamps, WindowScale};
use crate::{Reason, field::put};

/// What a segment does to its connection: at most one of these (RFC 9293 3.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Control {
    /// Data or a bare acknowledgement.
    None,
    /// Opens it.
    Syn,
    /// Ends the sender's half.
    Fin,
    /// Ends it.
    Rst,
}

/// A segment with the options that Sluicegate reads or writes; others are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// SYN, FIN, RST or none.
    pub control: Control,
    /// Whether the data is to be pushed to the receiver.
    pub push: bool,
    /// Congestion experienced and congestion window reduced (RFC 3168).
    pub congestion: (bool, bool),
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, if the segment has one.
    pub ack: Option<u32>,
    /// Window, before scaling.
    pub window: u16,
    /// Urgent pointer, if the segment has one.
    pub urgent: Option<u16>,
    /// Maximum segment size, in bytes.
    pub mss: Option<u16>,
    /// Window scale.
    pub window_scale: Option<WindowScale>,
    /// Whether selective acknowledgements are permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Data.
    pub payload: &'a [u8],
}

impl<'a> Repr<'a> {
    /// A segment without acknowledgement, options and data, to be changed from here.
    #[must_use]
    pub const fn new(src_port: u16, dst_port: u16, control: Control, seq: u32) -> Self {
        Self {
            src_port,
            dst_port,
            control,
            push: false,
            congestion: (false, false),
            seq,
            ack: None,
            window: u16::MAX,
            urgent: None,
            mss: None,
            window_scale: None,
            sack_permitted: false,
            timestamps: None,
            payload: &[],
        }
    }

    /// Reads a segment and checks its checksum.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`] if lengths, checksum or options are wrong, or more than one of SYN, FIN and
    /// RST is set.
    pub fn parse<T: AsRef<[u8]> + ?Sized>(packet: &Packet<&'a T>, src: IpAddr, dst: IpAddr) -> Result<Self, Reason> {
        packet.check_len()?;
        if !packet.verify_checksum(src, dst) {
            return Err(Reason::TransportHeaderInvalid);
        }
        let flags = packet.flags();
        let control = match (flags.has(Flags::SYN), flags.has(Flags::FIN), flags.has(Flags::RST)) {
            (false, false, false) => Control::None,
            (true, false, false) => Control::Syn,
            (false, true, false) => Control::Fin,
            (false, false, true) => Control::Rst,
            _ => return Err(Reason::TransportHeaderInvalid),
        };
        let bytes: &'a [u8] = T::as_ref(packet.buffer);
        let mut repr = Self {
            push: flags.has(Flags::PSH),
            congestion: (flags.has(Flags::ECE), flags.has(Flags::CWR)),
            ack: flags.has(Flags::ACK).then(|| packet.ack()),
            window: packet.window(),
            urgent: flags.has(Flags::URG).then(|| packet.urgent()),
            payload: bytes.get(packet.header_len()..).ok_or(Reason::TransportHeaderInvalid)?,
            ..Self::new(packet.src_port(), packet.dst_port(), control, packet.seq())
        };
        for option in packet.options() {
            match option? {
                TcpOption::MaximumSegmentSize(mss) => repr.mss = Some(mss),
                TcpOption::WindowScale(scale) => repr.window_scale = Some(scale),
                TcpOption::SackPermitted => repr.sack_permitted = true,
                TcpOption::Timestamps(timestamps) => repr.timestamps = Some(timestamps),
                TcpOption::Sack(_) | TcpOption::Other { .. } => {}
            }
        }
        Ok(repr)
    }

    /// The control bits.
    #[must_use]
    pub const fn flags(&self) -> Flags {
        let control = match self.control {
            Control::None => Flags(0),
            Control::Syn => Flags::SYN,
            Control::Fin => Flags::FIN,
            Control::Rst => Flags::RST,
        };
        let flags = set_if(control, Flags::PSH, self.push);
        let flags = set_if(flags, Flags::ACK, self.ack.is_some());
        let flags = set_if(flags, Flags::URG, self.urgent.is_some());
        let flags = set_if(flags, Flags::ECE, self.congestion.0);
        set_if(flags, Flags::CWR, self.congestion.1)
    }

    /// Bytes of header and options: each option starts at a multiple of 4.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        HEADER_LEN
            + 4 * self.mss.is_some() as usize
            + 4 * self.window_scale.is_some() as usize
            + 4 * self.sack_permitted as usize
            + 12 * self.timestamps.is_some() as usize
    }

    /// Bytes that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        self.header_len() + self.payload.len()
    }

    /// Writes the segment with its checksum. The buffer is [`Self::buffer_len`] bytes long.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>, src: IpAddr, dst: IpAddr) {
        packet.set_src_port(self.src_port);
        packet.set_dst_port(self.dst_port);
        packet.set_seq(self.seq);
        packet.set_ack(self.ack.unwrap_or(0));
        packet.set_header_len(self.header_len());
        packet.set_flags(self.flags());
        packet.set_window(self.window);
        packet.set_urgent(self.urgent.unwrap_or(0));
        packet.set_options_and_payload(&self.options(), self.payload);
        packet.fill_checksum(src, dst);
    }

    fn options(&self) -> [u8; HEADER_LEN_MAX - HEADER_LEN] {
        const NOP: u8 = 1;
        let mut options = [0; HEADER_LEN_MAX - HEADER_LEN];
        let mut at = 0;
        let mut add = |option: &[u8]| {
            put(&mut options, at, option);
            at += option.len();
        };
        if let Some(mss) = self.mss {
            let [m0, m1] = mss.to_be_bytes();
            add(&[2, 4, m0, m1]);
        }
        if let Some(scale) = self.window_scale {
            add(&[NOP, 3, 3, scale.shift()]);
        }
        if self.sack_permitted {
            add(&[NOP, NOP, 4, 2]);
        }
        if let Some(timestamps) = self.timestamps {
            add(&[NOP, NOP, 8, 10]);
            add(&timestamps.value.to_be_bytes());
            add(&timestamps.echo.to_be_bytes());
        }
        options
    }
}

#[inline]
const fn set_if(flags: Flags, more: Flags, on: bool) -> Flags {
    if on { flags.with(more) } else { flags }
}
