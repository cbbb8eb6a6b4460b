//! Writing messages into a buffer that the caller keeps and reuses.
//!
//! Every writer clears the buffer first. Nothing that comes from outside can end a line early: carriage returns and
//! line feeds in a value are written as blanks.

mod forward;
mod parts;
mod phrase;
mod request;
mod response;

pub use forward::{ForwardError, ForwardRequest, ForwardResponse, NewBody};
pub use parts::with_part;
pub use phrase::phrase;
pub use request::{Party, Request, ViaLine, ack_for_final, cancel_for};
pub use response::Response;

use alloc::vec::Vec;
use core::{
    fmt,
    net::{IpAddr, SocketAddr},
};

/// A message whose start line is written: add header fields, then end it with [`Headers::finish`] or
/// [`Headers::body`].
#[must_use = "the message is not complete before `finish` or `body`"]
#[derive(Debug)]
pub struct Headers<'b> {
    out: &'b mut Vec<u8>,
}

impl Headers<'_> {
    /// Adds one header field.
    pub fn header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        push_header(self.out, name, value.as_ref());
        self
    }

    /// Adds one header field whose value is formatted in place: `header_args("Expires", format_args!("{n}"))`.
    pub fn header_args(self, name: &str, value: fmt::Arguments<'_>) -> Self {
        push_name(self.out, name);
        let value_at = self.out.len();
        push_args(self.out, value);
        blank_line_breaks(self.out, value_at);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Ends a message without a body.
    pub fn finish(self) {
        push_body(self.out, &[]);
    }

    /// Ends a message without a body by one more header field, whose value stands behind as many blanks as make the whole a
    /// multiple of `unit` bytes (RFC 3261 section 25.1, HCOLON): messages of many are equally long.
    pub fn finish_evenly(self, name: &str, value: impl AsRef<[u8]>, unit: usize) {
        const END: &[u8] = b"\r\nContent-Length: 0\r\n\r\n";
        let (out, value) = (self.out, value.as_ref());
        push_name(out, name);
        let len = out.len() + value.len() + END.len();
        let blanks = len.checked_next_multiple_of(unit).map_or(0, |even| even - len);
        out.resize(out.len() + blanks, b' ');
        push_value(out, value);
        out.extend_from_slice(END);
    }

    /// Ends a message with a body.
    pub fn body(self, content_type: &str, body: &[u8]) {
        push_header(self.out, "Content-Type", content_type.as_bytes());
        push_body(self.out, body);
    }
}

/// `Content-Length`, the empty line, the body.
fn push_body(out: &mut Vec<u8>, body: &[u8]) {
    push_name(out, "Content-Length");
    push_decimal(out, body.len() as u32);
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body);
}

fn push_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    push_name(out, name);
    push_value(out, value);
    out.extend_from_slice(b"\r\n");
}

fn push_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
}

/// Writes `value` so that it stays one line.
fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    let start = out.len();
    out.extend_from_slice(value);
    if memchr::memchr2(b'\r', b'\n', value).is_some() {
        blank_line_breaks(out, start);
    }
}

fn blank_line_breaks(out: &mut [u8], start: usize) {
    for byte in out.iter_mut().skip(start).filter(|byte| matches!(**byte, b'\r' | b'\n')) {
        *byte = b' ';
    }
}

/// For numbers and other text of our own, line breaks included. Never fails: a vector grows.
pub(crate) fn push_args(out: &mut Vec<u8>, args: fmt::Arguments<'_>) {
    struct Text<'b>(&'b mut Vec<u8>);
    impl fmt::Write for Text<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.extend_from_slice(text.as_bytes());
            Ok(())
        }
    }
    let _ = fmt::Write::write_fmt(&mut Text(out), args);
}

/// `host:port` as in `sent-by`, IPv6 in brackets.
fn push_socket_addr(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(_) => push_address(out, address.ip()),
        IpAddr::V6(ip) => push_args(out, format_args!("[{ip}]")),
    }
    out.push(b':');
    push_decimal(out, u32::from(address.port()));
}

fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(ip) => {
            // Four octets of three digits and a dot each, of which the last one goes.
            let (mut text, mut len) = ([0; 16], 0);
            let mut put = |byte| {
                text[len % 16] = byte;
                len += 1;
            };
            for octet in ip.octets() {
                if octet >= 100 {
                    put(b'0' + octet / 100);
                }
                if octet >= 10 {
                    put(b'0' + octet / 10 % 10);
                }
                put(b'0' + octet % 10);
                put(b'.');
            }
            out.extend_from_slice(text.get(..len - 1).unwrap_or_default());
        }
        IpAddr::V6(ip) => push_args(out, format_args!("{ip}")),
    }
}

/// What `{number}` gives, without the cost of formatting: this runs for each answer to a flood.
fn push_decimal(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests;
