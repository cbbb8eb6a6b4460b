//! A bottleneck: a token bucket filter in front of a queue limited in *packets*, so that small packets cannot fill it
//! more slowly than large ones.

use super::{Error, Message, Route};
use crate::sys;

const REQUEST: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const REPLACE: u16 = REQUEST | (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
const ROOT: u32 = 0xffff_ffff;
const TBF_HANDLE: u32 = 0x8001_0000;
const FIFO_HANDLE: u32 = 0x8002_0000;

// Attributes of linux/rtnetlink.h and linux/pkt_sched.h.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// Scheduler ticks per second: `PSCHED_TICKS_PER_SEC` with the shift of 6 that every kernel since 2.6.31 has.
const TICKS_PER_SEC: u64 = 1_000_000_000 >> 6;

impl Route {
    /// Limits what leaves by `name` to `rate_bps` (bits per second, Ethernet headers included), with bursts of
    /// `burst_bytes` and a queue of `packets` behind it. Replaces an earlier limit.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn limit_rate(&mut self, name: &str, rate_bps: u64, burst_bytes: u32, packets: u32) -> Result<(), Error> {
        let index = sys::interface_index(name)?;
        let rate = (rate_bps / 8).max(1);
        let mut tbf = Message::new(libc::RTM_NEWQDISC, REPLACE, &header(index, TBF_HANDLE, ROOT));
        tbf.put_text(TCA_KIND, "tbf").nest_after(TCA_OPTIONS, &[], |options| {
            options.put(TCA_TBF_PARMS, &tbf_parameters(rate, burst_bytes));
            if rate > u64::from(u32::MAX) {
                options.put(TCA_TBF_RATE64, &rate.to_ne_bytes());
            }
            options.put_u32(TCA_TBF_BURST, burst_bytes);
        });
        self.socket.request(&format!("limit the rate of {name}"), tbf)?;
        let mut fifo = Message::new(libc::RTM_NEWQDISC, REPLACE, &header(index, FIFO_HANDLE, TBF_HANDLE | 1));
        fifo.put_text(TCA_KIND, "pfifo").put_u32(TCA_OPTIONS, packets);
        self.socket.request(&format!("limit the queue of {name} to {packets} packets"), fifo)
    }

    /// Removes the limit that [`Self::limit_rate`] set.
    ///
    /// # Errors
    /// [`Error::is_missing`] without a limit.
    pub fn remove_limit(&mut self, name: &str) -> Result<(), Error> {
        let index = sys::interface_index(name)?;
        let message = Message::new(libc::RTM_DELQDISC, REQUEST, &header(index, 0, ROOT));
        self.socket.request(&format!("remove the rate limit of {name}"), message)
    }
}

/// `struct tcmsg`.
fn header(index: u32, handle: u32, parent: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

/// `struct tc_tbf_qopt`: two `tc_ratespec` (rate, peak rate), limit, buffer (ticks), mtu.
fn tbf_parameters(rate: u64, burst_bytes: u32) -> [u8; 36] {
    let rate32 = u32::try_from(rate).unwrap_or(u32::MAX);
    let ticks = u64::from(burst_bytes) * TICKS_PER_SEC / rate;
    let mut bytes = [0; 36];
    // tc_ratespec.linklayer at offset 1: Ethernet.
    bytes[1] = 1;
    bytes[8..12].copy_from_slice(&rate32.to_ne_bytes());
    // The limit (bytes) makes the kernel create a byte queue, which the packet queue then replaces.
    bytes[24..28].copy_from_slice(&burst_bytes.max(1 << 16).to_ne_bytes());
    bytes[28..32].copy_from_slice(&u32::try_from(ticks).unwrap_or(u32::MAX).to_ne_bytes());
    bytes
}
