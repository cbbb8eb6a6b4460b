use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Direction, MEDIA_MAX, Media, Origin, SdpError, Session, Setup};
use crate::message::{
    BODY_LEN_MAX,
    scan::{decimal_u16, split_once},
};

const NO_MEDIA: Media<'static> = Media {
    kind: &[],
    port: 0,
    port_count: 1,
    protocol: &[],
    formats: &[],
    address: None,
    direction: Direction::SendRecv,
    rtcp_port: None,
    rtcp_address: None,
    rtcp_mux: false,
    setup: None,
    service_ports: None,
    has_own_connection: false,
};

/// One line: its letter, its value, and the whole of it with its line break.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) letter: u8,
    pub(super) value: &'a [u8],
    pub(super) text: &'a [u8],
}

/// The lines of a description; an error ends it. Empty lines are left out, lines may end in LF alone.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = Result<Line<'_>, SdpError>> {
    text.split_inclusive(|byte| *byte == b'\n').filter_map(|text| {
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match line {
            [] => None,
            [letter, b'=', value @ ..] if letter.is_ascii_lowercase() && !value.contains(&b'\r') => {
                Some(Ok(Line { letter: *letter, value, text }))
            }
            _ => Some(Err(SdpError::Line)),
        }
    })
}

impl<'a> Session<'a> {
    /// Parses a description.
    ///
    /// # Errors
    /// See [`SdpError`].
    pub fn parse(text: &'a [u8]) -> Result<Self, SdpError> {
        if text.len() > BODY_LEN_MAX {
            return Err(SdpError::Length);
        }
        let mut lines = lines(text);
        let version = lines.next().ok_or(SdpError::Line)??;
        if (version.letter, version.value) != (b'v', b"0") {
            return Err(SdpError::Line);
        }
        let mut origin = None;
        let mut address = None;
        let mut direction = Direction::SendRecv;
        let mut setup = None;
        let mut media = [NO_MEDIA; MEDIA_MAX];
        let mut used = 0_usize;
        for line in lines {
            let line = line?;
            if line.letter == b'm' {
                *media.get_mut(used).ok_or(SdpError::MediaCount)? =
                    Media { address, direction, setup, ..parse_media(line.value)? };
                used += 1;
                continue;
            }
            let current = used.checked_sub(1).and_then(|last| media.get_mut(last));
            match (line.letter, current) {
                (b'o', None) if origin.is_none() => origin = Some(parse_origin(line.value)?),
                (b'o', _) => return Err(SdpError::Origin),
                (b'c', None) => address = parse_connection(line.value)?,
                (b'c', Some(media)) => {
                    media.address = parse_connection(line.value)?;
                    media.has_own_connection = true;
                }
                (b'a', None) => read_session_attribute(line.value, &mut direction, &mut setup),
                (b'a', Some(media)) => read_attribute(line.value, media)?,
                _ => {}
            }
        }
        Ok(Self { text, origin: origin.ok_or(SdpError::Origin)?, address, media, used })
    }
}

fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

fn parse_origin(value: &[u8]) -> Result<Origin<'_>, SdpError> {
    let mut words = words(value);
    let mut next = || words.next().ok_or(SdpError::Origin);
    let (username, session_id, version) = (next()?, next()?, next()?);
    let (_network, family, address) = (next()?, next()?, next()?);
    Ok(Origin { username, session_id, version, address: parse_address(family, address) })
}

/// `IN IP4 192.0.2.1/127` or `IN IP6 2001:db8::1`.
fn parse_connection(value: &[u8]) -> Result<Option<IpAddr>, SdpError> {
    let mut words = words(value);
    let mut next = || words.next().ok_or(SdpError::Connection);
    let (_network, family, address) = (next()?, next()?, next()?);
    let address = address.split(|byte| *byte == b'/').next().unwrap_or_default();
    Ok(parse_address(family, address))
}

/// `None` for a host name or an unknown family.
fn parse_address(family: &[u8], text: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(text).ok()?;
    match family {
        _ if family.eq_ignore_ascii_case(b"IP4") => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        _ if family.eq_ignore_ascii_case(b"IP6") => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => None,
    }
}

/// `audio 49170/2 RTP/AVP 0 8`.
fn parse_media(value: &[u8]) -> Result<Media<'_>, SdpError> {
    let mut parts = value.splitn(4, |byte| *byte == b' ');
    let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or(SdpError::Media);
    let (kind, ports, protocol, formats) = (next()?, next()?, next()?, next()?);
    let mut numbers = ports.splitn(2, |byte| *byte == b'/');
    let port = numbers.next().and_then(decimal_u16).ok_or(SdpError::Media)?;
    let port_count = match numbers.next() {
        Some(count) => decimal_u16(count).filter(|count| *count > 0).ok_or(SdpError::Media)?,
        None => 1,
    };
    Ok(Media { kind, port, port_count, protocol, formats, ..NO_MEDIA })
}

/// `name:value` or `name`.
pub(super) fn attribute(value: &[u8]) -> (&[u8], &[u8]) {
    split_once(b':', value).unwrap_or((value, &[]))
}

fn direction_of(name: &[u8]) -> Option<Direction> {
    [Direction::SendRecv, Direction::SendOnly, Direction::RecvOnly, Direction::Inactive]
        .into_iter()
        .find(|direction| direction.name().as_bytes() == name)
}

fn setup_of(value: &[u8]) -> Option<Setup> {
    [Setup::Active, Setup::Passive, Setup::ActPass, Setup::HoldConn]
        .into_iter()
        .find(|setup| setup.name().as_bytes() == value.trim_ascii())
}

fn read_session_attribute(value: &[u8], direction: &mut Direction, setup: &mut Option<Setup>) {
    let (name, value) = attribute(value);
    if let Some(found) = direction_of(name) {
        *direction = found;
    } else if name == b"setup" {
        *setup = setup_of(value);
    }
}

fn read_attribute(value: &[u8], media: &mut Media<'_>) -> Result<(), SdpError> {
    let (name, value) = attribute(value);
    match name {
        b"rtcp" => {
            let mut words = words(value);
            media.rtcp_port = Some(words.next().and_then(decimal_u16).ok_or(SdpError::Attribute)?);
            media.rtcp_address = match (words.next(), words.next(), words.next()) {
                (Some(_network), Some(family), Some(address)) => parse_address(family, address),
                _ => None,
            };
        }
        b"rtcp-mux" => media.rtcp_mux = true,
        b"setup" => media.setup = setup_of(value),
        b"service-ports" => media.service_ports = Some(parse_service_ports(value).ok_or(SdpError::Attribute)?),
        name => {
            if let Some(direction) = direction_of(name) {
                media.direction = direction;
            }
        }
    }
    Ok(())
}

/// `22` or `22-30`.
fn parse_service_ports(value: &[u8]) -> Option<(u16, u16)> {
    let mut numbers = value.trim_ascii().splitn(2, |byte| *byte == b'-');
    let first = numbers.next().and_then(decimal_u16)?;
    let last = numbers.next().map_or(Some(first), decimal_u16)?;
    (first != 0 && first <= last).then_some((first, last))
}
