use core::{fmt, net::IpAddr};

use sluicegate_grant::DataMode;
use sluicegate_wire::UnixTime;

use crate::{
    Effect, Limits, Policy, PortRange, Service, ServiceKind, ServiceMode, Share, User,
    check::{BYTES_MIN, RATE_BPS_MIN},
    data_mode,
};

/// Port ranges that one request may name, and that one service may offer.
pub const WANTED_MAX: usize = 32;

/// One question to the policy.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The authenticated user.
    pub user: &'a str,
    /// The service that is called.
    pub service: &'a str,
    /// Where the packets will come from.
    pub client: IpAddr,
    /// What to open.
    pub wanted: &'a [PortRange],
    /// The most that the client's packets can prove.
    pub proves: DataMode,
    /// The present time.
    pub now: UnixTime,
    /// What the user's grants hold already, without those that this request renews.
    pub held: Share,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Yes within limits, or no with its reason.
    pub outcome: Outcome,
    /// How it came about, in order; the last step decided.
    pub steps: Vec<Step>,
}

/// Yes or no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Grants within these limits may be issued.
    Allow(Limits),
    /// Nothing may be issued.
    Deny(DenyReason),
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Whether it spoke for the request.
    pub passed: bool,
    /// What was found, for a person.
    pub text: String,
}

/// Why a request is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DenyReason {
    /// There is no such user.
    #[error("the user does not exist")]
    UnknownUser,
    /// The user may not log in.
    #[error("the user is disabled")]
    UserDisabled,
    /// There is no such service.
    #[error("the service does not exist")]
    UnknownService,
    /// The client's address is of another family than the service's.
    #[error("client and service have addresses of different families (IPv4, IPv6)")]
    AddressFamily,
    /// The request names nothing to open.
    #[error("the request names no port to open")]
    NothingWanted,
    /// The request names more port ranges than one request may.
    #[error("the request names more than {WANTED_MAX} port ranges")]
    TooManyPorts,
    /// The service does not offer these ports.
    #[error("the service does not offer {0}")]
    PortNotOffered(PortRange),
    /// This rule denies it now.
    #[error("rule {0:?} denies it")]
    DeniedByRule(String),
    /// This rule would allow it, at another time.
    #[error("rule {0:?} allows it at other times only")]
    OutsideHours(String),
    /// Nothing allows it.
    #[error("nothing allows this user to use this service")]
    NotAllowed,
    /// Packets of this client would prove less than the service or a rule demands.
    #[error(
        "packets to {range} would prove {proves}, and the least that is demanded is {least}: \
         telephones prove pinhole, `connect` mac (UDP only), `agent tun` and `agent run` capability"
    )]
    ModeTooWeak {
        /// What was to be opened.
        range: PortRange,
        /// What its packets would prove.
        proves: DataMode,
        /// What they must.
        least: DataMode,
    },
    /// The user's grants would hold more than one user's may.
    #[error("the user's grants hold {held} {what} already, and with {more} more would hold more than {max}")]
    OverShare {
        /// Of what.
        what: &'static str,
        /// Now.
        held: u64,
        /// As asked.
        more: u64,
        /// At most.
        max: u64,
    },
}

impl DenyReason {
    /// The stable name in counters and logs (`snake_case`).
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::UnknownUser => "unknown_user",
            Self::UserDisabled => "user_disabled",
            Self::UnknownService => "unknown_service",
            Self::AddressFamily => "address_family",
            Self::NothingWanted => "nothing_wanted",
            Self::TooManyPorts => "too_many_ports",
            Self::PortNotOffered(_) => "port_not_offered",
            Self::DeniedByRule(_) => "denied_by_rule",
            Self::OutsideHours(_) => "outside_hours",
            Self::NotAllowed => "not_allowed",
            Self::ModeTooWeak { .. } => "mode_too_weak",
            Self::OverShare { .. } => "over_share",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.passed { "+" } else { "-" }, self.text)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        match &self.outcome {
            Outcome::Allow(_) => f.write_str("= allowed"),
            Outcome::Deny(reason) => write!(f, "= denied: {reason}"),
        }
    }
}

/// Decides a request. Depends on its arguments alone; what nothing allows is denied, and a rule that denies wins.
///
/// The limits are the strictest of the service, every rule that allows it now, and an even part of what the user's other
/// grants leave of the user's share; the lifetime ends no later than the permission itself does.
#[must_use]
pub fn decide(policy: &Policy, request: &Request<'_>) -> Decision {
    let mut steps = Vec::new();
    let outcome = match judge(policy, request, &mut steps) {
        Ok(limits) => Outcome::Allow(limits),
        Err(reason) => {
            steps.push(Step { passed: false, text: reason.to_string() });
            Outcome::Deny(reason)
        }
    };
    Decision { outcome, steps }
}

fn judge(policy: &Policy, request: &Request<'_>, steps: &mut Vec<Step>) -> Result<Limits, DenyReason> {
    let mut pass = |text: String| steps.push(Step { passed: true, text });

    let user = policy.party(request.user).ok_or(DenyReason::UnknownUser)?;
    if !user.enabled {
        return Err(DenyReason::UserDisabled);
    }
    pass(format!("user {:?} exists and is enabled", user.name));

    let service = policy.service(request.service).ok_or(DenyReason::UnknownService)?;
    if service.address.is_ipv4() != request.client.to_canonical().is_ipv4() {
        return Err(DenyReason::AddressFamily);
    }
    check_wanted(service, request.wanted)?;
    pass(format!("service {:?} offers what was asked for", service.name));

    let permission = Permission::of(policy, user, service, request.now, &mut pass)?;
    check_modes(request, permission.limits.least_mode)?;

    let mut limits = within_share(policy, service, request, permission.limits)?;
    if let Some(ends_in_secs) = permission.ends_in_secs.filter(|secs| *secs < limits.lifetime_s.into()) {
        limits.lifetime_s = u32::try_from(ends_in_secs).unwrap_or(limits.lifetime_s);
        pass(format!("the permission ends in {ends_in_secs} s, and the grant with it"));
    }
    pass(format!(
        "limits: {}, {} s, rate {}, {} flows, least mode {}",
        crate::Bytes(limits.bytes_max),
        limits.lifetime_s,
        crate::Rate(limits.rate_bps),
        limits.flows_max,
        limits.least_mode
    ));
    Ok(limits)
}

fn check_wanted(service: &Service, wanted: &[PortRange]) -> Result<(), DenyReason> {
    if wanted.is_empty() {
        return Err(DenyReason::NothingWanted);
    }
    if wanted.len() > WANTED_MAX {
        return Err(DenyReason::TooManyPorts);
    }
    match wanted.iter().find(|range| !service.offers(range)) {
        Some(range) => Err(DenyReason::PortNotOffered(*range)),
        None => Ok(()),
    }
}

/// The limits of each grant, so that all those which the request asks for stay within the user's share together.
fn within_share(
    policy: &Policy,
    service: &Service,
    request: &Request<'_>,
    limits: Limits,
) -> Result<Limits, DenyReason> {
    // What a relayed service opens, its answer will name: ports that it could name are not held.
    let takes_ports = service.mode == ServiceMode::Nat && service.kind == ServiceKind::Declared;
    let with_ports = request.wanted.iter().filter(|range| takes_ports && range.protocol.has_ports());
    let wants = request.wanted.len() as u64;
    let share = policy.share_of(request.user);
    let part = share.each(&request.held, wants);
    let limits = Limits {
        bytes_max: limits.bytes_max.min(part.bytes),
        rate_bps: limits.rate_bps.min(part.rate_bps),
        flows_max: u16::try_from(part.flows).map_or(limits.flows_max, |flows| limits.flows_max.min(flows)),
        ..limits
    };
    // Less than this is no grant: it is refused rather than given.
    let each = (limits.flows_max.max(1).into(), limits.bytes_max.max(BYTES_MIN), limits.rate_bps.max(RATE_BPS_MIN));
    let ports = with_ports.map(|range| u64::from(range.len())).sum();
    share.admit(&request.held, &Share::of_limits(wants, ports, each))?;
    Ok(limits)
}

fn check_modes(request: &Request<'_>, least: DataMode) -> Result<(), DenyReason> {
    let proves = |range: &PortRange| data_mode(request.proves, range.protocol);
    match request.wanted.iter().find(|range| proves(range) < least) {
        Some(range) => Err(DenyReason::ModeTooWeak { range: *range, proves: proves(range), least }),
        None => Ok(()),
    }
}

/// What the service and the rules give a user now, and for how long.
struct Permission {
    limits: Limits,
    ends_in_secs: Option<u64>,
}

impl Permission {
    fn of(
        policy: &Policy,
        user: &User,
        service: &Service,
        now: UnixTime,
        pass: &mut impl FnMut(String),
    ) -> Result<Self, DenyReason> {
        let mut limits = service.limits;
        let listed = service.allow.iter().find(|subject| user.is(subject));
        if let Some(subject) = listed {
            pass(format!("the service allows {subject}"));
        }
        let mut closed: Option<&str> = None;
        // The permission ends with the last of what allows it, or with the first refusal to come.
        let mut allowed = listed.is_some();
        let mut allowed_secs = listed.map(|_| u64::MAX);
        let mut refused_in_secs: Option<u64> = None;
        for rule in policy.rules().iter().filter(|rule| rule.is_about(user, &service.name)) {
            let schedule = rule.schedule();
            match (rule.effect, schedule.includes(now)) {
                (Effect::Deny, true) => return Err(DenyReason::DeniedByRule(rule.name.clone())),
                (Effect::Deny, false) => refused_in_secs = earliest(refused_in_secs, schedule.secs_until_start(now)),
                (Effect::Allow, true) => {
                    pass(format!("rule {:?} allows it ({schedule})", rule.name));
                    allowed = true;
                    allowed_secs = allowed_secs.max(Some(schedule.secs_until_end(now).unwrap_or(u64::MAX)));
                    limits = limits.strictest(rule.limits.unwrap_or(Limits::UNLIMITED));
                }
                (Effect::Allow, false) => closed = closed.or(Some(&rule.name)),
            }
        }
        if !allowed {
            return Err(closed.map_or(DenyReason::NotAllowed, |name| DenyReason::OutsideHours(name.into())));
        }
        Ok(Self { limits, ends_in_secs: earliest(allowed_secs, refused_in_secs) })
    }
}

fn earliest(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    [a, b].into_iter().flatten().min()
}
