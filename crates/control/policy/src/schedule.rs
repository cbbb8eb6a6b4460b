use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sluicegate_wire::UnixTime;

use crate::{TextError, text::serde_as_text};

const DAY_SECS: u64 = 86_400;

/// A day of the week, in UTC. Text form: `mon` to `sun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the days say it themselves")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Day {
    const WEEK: [Self; 7] = [Self::Mon, Self::Tue, Self::Wed, Self::Thu, Self::Fri, Self::Sat, Self::Sun];

    /// The day of the week of day number `day` since 1970-01-01, which was a Thursday.
    fn of(day: u64) -> Self {
        Self::WEEK[(day % 7 + 3) as usize % 7]
    }

    /// The name in configuration.
    #[must_use]
    pub const fn label(self) -> &'static str {
        ["mon", "tue", "wed", "thu", "fri", "sat", "sun"][self as usize]
    }
}

/// A time of day in UTC, in minutes since midnight. Text form: `08:30`; `24:00` is the end of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    /// The start of the day, `00:00`.
    pub const START: Self = Self(0);
    /// The end of the day, `24:00`.
    pub const END: Self = Self(24 * 60);

    const fn secs(self) -> u64 {
        self.0 as u64 * 60
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl FromStr for TimeOfDay {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let number = |digits: &str| {
            (digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse::<u16>().ok())?
        };
        text.split_once(':')
            .and_then(|(hours, minutes)| Some((number(hours)?, number(minutes)?)))
            .filter(|(hours, minutes)| *minutes < 60 && (*hours < 24 || (*hours, *minutes) == (24, 0)))
            .map(|(hours, minutes)| Self(hours * 60 + minutes))
            .ok_or_else(|| TextError::new(text, "time of day", "write \"08:30\" (UTC, 00:00 to 24:00)"))
    }
}

serde_as_text!(TimeOfDay, "a time of day in UTC such as \"08:30\"");

/// When a rule applies: on these days, from one time of day to another, all in UTC.
///
/// A window that ends before it begins passes midnight and belongs to the day on which it began.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schedule {
    days: [bool; 7],
    from: TimeOfDay,
    to: TimeOfDay,
}

impl Schedule {
    /// The schedule of a rule. No days stand for every day, no times for the whole day.
    #[must_use]
    pub fn new(days: &[Day], from: Option<TimeOfDay>, to: Option<TimeOfDay>) -> Self {
        let mut set = [days.is_empty(); 7];
        for day in days {
            set[*day as usize] = true;
        }
        Self { days: set, from: from.unwrap_or(TimeOfDay::START), to: to.unwrap_or(TimeOfDay::END) }
    }

    /// Whether `now` lies in it.
    #[must_use]
    pub fn includes(&self, now: UnixTime) -> bool {
        self.window_end(now.0).is_some()
    }

    /// Seconds until it no longer includes the time, from a time that it includes; `None` if it does not include `now`,
    /// or will not end within a week.
    #[must_use]
    pub fn secs_until_end(&self, now: UnixTime) -> Option<u64> {
        let mut end = self.window_end(now.0)?;
        // Windows of consecutive days may touch; a week of touching windows has no end.
        for _ in 0..7 {
            match self.window_end(end) {
                Some(later) => end = later,
                None => return Some(end - now.0),
            }
        }
        None
    }

    /// Seconds until it next begins, from a time that it does not include; `None` if it includes `now` or never begins.
    #[must_use]
    pub fn secs_until_start(&self, now: UnixTime) -> Option<u64> {
        if self.includes(now) {
            return None;
        }
        let today = now.0 / DAY_SECS;
        (today..=today.saturating_add(7))
            .filter(|day| self.days[Day::of(*day) as usize])
            .filter_map(|day| day.checked_mul(DAY_SECS)?.checked_add(self.from.secs()))
            .find(|start| *start > now.0)
            .map(|start| start - now.0)
    }

    fn len_secs(&self) -> u64 {
        let (from, to) = (self.from.secs(), self.to.secs());
        if from < to { to - from } else { to + DAY_SECS - from }
    }

    /// The end of the window that `now` lies in: one that began today, or yesterday and passed midnight.
    fn window_end(&self, now: u64) -> Option<u64> {
        let today = now / DAY_SECS;
        [Some(today), today.checked_sub(1)].into_iter().flatten().find_map(|day| {
            let start = (day * DAY_SECS).saturating_add(self.from.secs());
            let end = start.saturating_add(self.len_secs());
            (self.days[Day::of(day) as usize] && start <= now && now < end).then_some(end)
        })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days == [true; 7] {
            f.write_str("every day")?;
        } else {
            let days: Vec<_> =
                Day::WEEK.iter().filter(|day| self.days[**day as usize]).map(|day| day.label()).collect();
            f.write_str(&days.join(","))?;
        }
        write!(f, " {}-{} UTC", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-20 00:00 UTC, a Friday.
    const FRIDAY: u64 = 1_795_132_800;

    fn at(day: u64, hours: u64, minutes: u64) -> UnixTime {
        UnixTime(FRIDAY + day * DAY_SECS + hours * 3600 + minutes * 60)
    }

    fn schedule(days: &[Day], from: &str, to: &str) -> Schedule {
        Schedule::new(days, from.parse().ok(), to.parse().ok())
    }

    #[test]
    fn times_of_day_are_read_back() {
        for text in ["00:00", "08:30", "23:59", "24:00"] {
            assert_eq!(text.parse::<TimeOfDay>().unwrap().to_string(), text);
        }
        for text in ["", "8:30", "08.30", "24:01", "25:00", "08:60", "+8:00", "08:30:00"] {
            assert!(text.parse::<TimeOfDay>().unwrap_err().to_string().contains("\"08:30\""), "{text}");
        }
    }

    #[test]
    fn a_day_window_includes_its_first_second_and_excludes_its_last() {
        let office = schedule(&[Day::Fri], "08:00", "18:00");
        assert!(!office.includes(at(0, 7, 59)));
        assert!(office.includes(at(0, 8, 0)));
        assert!(!office.includes(at(0, 18, 0)));
        assert!(!office.includes(at(1, 9, 0)));
        assert_eq!(office.secs_until_end(at(0, 17, 58)), Some(120));
        assert_eq!(office.secs_until_start(at(0, 18, 0)), Some(6 * DAY_SECS + 14 * 3600));
    }

    #[test]
    fn a_window_past_midnight_belongs_to_the_day_on_which_it_began() {
        let night = schedule(&[Day::Fri], "22:00", "06:00");
        assert!(night.includes(at(0, 23, 0)));
        assert!(night.includes(at(1, 5, 59)));
        assert!(!night.includes(at(0, 5, 0)));
        assert!(!night.includes(at(1, 22, 0)));
        assert_eq!(night.secs_until_end(at(0, 22, 0)), Some(8 * 3600));
        assert_eq!(night.secs_until_start(at(0, 21, 0)), Some(3600));
    }

    #[test]
    fn touching_days_are_one_window() {
        let weekend = Schedule::new(&[Day::Sat, Day::Sun], None, None);
        assert_eq!(weekend.secs_until_end(at(1, 12, 0)), Some(DAY_SECS + DAY_SECS / 2));
        assert_eq!(weekend.secs_until_start(at(0, 0, 0)), Some(DAY_SECS));
        let always = Schedule::new(&[], None, None);
        assert!(always.includes(UnixTime(0)) && always.includes(at(3, 3, 3)));
        assert_eq!(always.secs_until_end(at(0, 0, 0)), None);
        assert_eq!(always.secs_until_start(at(0, 0, 0)), None);
    }

    #[test]
    fn the_end_of_time_is_no_panic() {
        let office = schedule(&[], "08:00", "18:00");
        for now in [0, u64::MAX, u64::MAX - DAY_SECS, u64::MAX - 7 * DAY_SECS] {
            let _ = (
                office.includes(UnixTime(now)),
                office.secs_until_end(UnixTime(now)),
                office.secs_until_start(UnixTime(now)),
            );
        }
    }
}
