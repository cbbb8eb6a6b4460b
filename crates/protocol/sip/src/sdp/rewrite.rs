use alloc::vec::Vec;
use core::net::IpAddr;

use super::{Media, Session, parse};
use crate::write::push_args;

/// New whereabouts of one media line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaEdit {
    /// Position of the media line.
    pub media: usize,
    /// Goes into its `c=` line.
    pub address: IpAddr,
    /// Goes into its `m=` line; 0 refuses it.
    pub port: u16,
    /// Where its RTCP is now, if that is not on the same port.
    pub rtcp_port: Option<u16>,
}

/// A description on its way through the gate: the service's addresses and ports become the gate's.
#[derive(Debug, Clone, Copy)]
pub struct Rewrite<'m, 'a> {
    /// As it came.
    pub session: &'m Session<'a>,
    /// Goes into `o=` and the session's own `c=`, so that no inside address shows.
    pub address: IpAddr,
    /// At most one for each media line. Media without one keep address and port.
    pub edits: &'m [MediaEdit],
}

impl Rewrite<'_, '_> {
    /// Writes the description to the end of `out`. ICE candidates are left out: they name ways around the gate.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut position = None;
        // The `c=` of a media line stands behind its `i=`, and its attributes behind `b=` and `k=` (RFC 8866 section 5): due
        // until another line comes.
        let (mut due, mut rtcp_due) = (false, false);
        for line in parse::lines(self.session.as_bytes()).map_while(Result::ok) {
            if due && line.letter != b'i' {
                due = false;
                self.push_media_connection(out, position);
            }
            if rtcp_due && matches!(line.letter, b'a' | b'm') {
                rtcp_due = false;
                self.push_rtcp(out, position);
            }
            match (line.letter, position.and_then(|position| self.edit(position))) {
                (b'm', _) => {
                    let next = position.map_or(0, |position| position + 1);
                    position = Some(next);
                    self.push_media(out, next, line.text);
                    (due, rtcp_due) = (true, true);
                }
                (b'o', _) => self.push_origin(out),
                (b'c', None) if position.is_none() => push_connection(out, self.address),
                // Written by `push_media_connection`.
                (b'c', Some(_)) => {}
                (b'a', Some(_)) if parse::attribute(line.value).0 == b"rtcp" => {}
                (b'a', _) if is_ice(line.value) => {}
                _ => push_line(out, line.text),
            }
        }
        if due {
            self.push_media_connection(out, position);
        }
        if rtcp_due {
            self.push_rtcp(out, position);
        }
    }

    fn edit(&self, position: usize) -> Option<&MediaEdit> {
        self.edits.iter().find(|edit| edit.media == position)
    }

    fn push_origin(&self, out: &mut Vec<u8>) {
        let origin = self.session.origin;
        out.extend_from_slice(b"o=");
        for part in [origin.username, origin.session_id, origin.version] {
            out.extend_from_slice(part);
            out.push(b' ');
        }
        push_args(out, format_args!("IN {} {}\r\n", family(self.address), self.address));
    }

    fn push_media(&self, out: &mut Vec<u8>, position: usize, text: &[u8]) {
        let Some(media) = self.session.media().get(position) else { return };
        let Some(edit) = self.edit(position) else {
            push_line(out, text);
            return;
        };
        push_media_line(out, media, edit.port);
    }

    fn push_media_connection(&self, out: &mut Vec<u8>, position: Option<usize>) {
        let Some((position, media)) = position.and_then(|at| Some((at, self.session.media().get(at)?))) else { return };
        let Some(edit) = self.edit(position) else {
            // The session's own address changes; what hung on it must not.
            if let (false, Some(address)) = (media.has_own_connection, media.address) {
                push_connection(out, address);
            }
            return;
        };
        push_connection(out, edit.address);
    }

    fn push_rtcp(&self, out: &mut Vec<u8>, position: Option<usize>) {
        let Some(edit) = position.and_then(|position| self.edit(position)) else { return };
        if let Some(rtcp) = edit.rtcp_port.filter(|rtcp| edit.port.checked_add(1) != Some(*rtcp)) {
            push_args(out, format_args!("a=rtcp:{rtcp} IN {} {}\r\n", family(edit.address), edit.address));
        }
    }
}

const fn family(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IP4",
        IpAddr::V6(_) => "IP6",
    }
}

pub(super) fn push_connection(out: &mut Vec<u8>, address: IpAddr) {
    push_args(out, format_args!("c=IN {} {address}\r\n", family(address)));
}

/// All that stands before the first media line of a description of ours.
pub(super) fn push_session(out: &mut Vec<u8>, session_id: u64, version: u64, address: IpAddr) {
    push_args(out, format_args!("v=0\r\no=- {session_id} {version} IN {} {address}\r\ns=-\r\n", family(address)));
    push_connection(out, address);
    out.extend_from_slice(b"t=0 0\r\n");
}

/// The line of `media` with another port; 0 refuses it.
pub(super) fn push_media_line(out: &mut Vec<u8>, media: &Media<'_>, port: u16) {
    out.extend_from_slice(b"m=");
    out.extend_from_slice(media.kind);
    push_args(out, format_args!(" {port}"));
    if media.port_count > 1 && port != 0 {
        push_args(out, format_args!("/{}", media.port_count));
    }
    for part in [media.protocol, media.formats] {
        out.push(b' ');
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

fn push_line(out: &mut Vec<u8>, text: &[u8]) {
    let line = text.strip_suffix(b"\n").unwrap_or(text);
    out.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
    out.extend_from_slice(b"\r\n");
}

fn is_ice(value: &[u8]) -> bool {
    let (name, _) = parse::attribute(value);
    name.starts_with(b"ice-") || matches!(name, b"candidate" | b"remote-candidates" | b"end-of-candidates")
}
