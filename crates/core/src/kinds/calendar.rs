//! Calendar windows: whole local dates of a time zone, daylight saving included.
//!
//! Computes the starts of windows and the number of windows between two instants; the tokens are the fixed window's.
//! The rules of the time zones are those of the bundled [IANA database], never the system's. Dates end with the year
//! 9999: a later instant counts as that end, after which no window begins.
//!
//! [IANA database]: https://www.iana.org/time-zones

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp};

use crate::Micros;

/// Windows of `every` days or months. Window k begins at the first instant of the local date k periods after `start`;
/// in a month without such a day, of its last day.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    /// The unit of `every`.
    pub unit: Unit,
    /// The number of units in a window, at most 100 years.
    pub every: i64,
    /// The time zone of the dates.
    pub zone: TimeZone,
    /// The date from which windows are counted, forwards and backwards.
    pub start: Date,
}

/// The unit of calendar windows: a week is 7 days, a year 12 months.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Local dates, each as long as the clocks make it.
    Days,
    /// Calendar months.
    Months,
}

/// The time zone of an IANA name, spelled exactly as there.
pub fn zone(name: &str) -> Option<TimeZone> {
    let zone = TimeZoneDatabase::bundled().get(name).ok()?;
    (zone.iana_name() == Some(name) && !zone.is_unknown()).then_some(zone)
}

/// The local date of an instant; `None` outside the years -9999 to 9999.
pub fn local_date(zone: &TimeZone, at: Micros) -> Option<Date> {
    Timestamp::from_microsecond(at.0).ok().map(|at| zone.to_datetime(at).date())
}

impl Calendar {
    /// The length of a window, a day counted as 24 hours; `None` for months.
    pub(super) fn length(&self) -> Option<Micros> {
        const DAY: i64 = 86_400_000_000;
        (self.unit == Unit::Days).then(|| Micros(self.every.saturating_mul(DAY)))
    }

    /// The start of the window that contains `at`.
    pub(super) fn window_start(&self, at: Micros) -> Micros {
        self.boundary(self.window(at)).unwrap_or(at)
    }

    /// The number of windows that have begun after `ts` and by `now`, and the start of the last of them.
    pub(super) fn turns(&self, ts: Micros, now: Micros) -> (i64, Micros) {
        let current = self.window(now);
        let Some(begun) = self.boundary(current).filter(|&begun| begun > ts) else {
            return (0, ts);
        };
        match current.saturating_sub(self.next(ts)) + 1 {
            windows @ 1.. => (windows, begun),
            _ => (0, ts),
        }
    }

    /// The start of the window that begins `windows` windows after `ts`; `None` past the year 9999.
    pub(super) fn after(&self, ts: Micros, windows: f64) -> Option<Micros> {
        // Saturates; a saturated number has no date.
        match windows as i64 {
            ..1 => Some(ts),
            windows => self.boundary(self.next(ts).saturating_add(windows - 1)),
        }
    }

    /// The number of the window after the one that began at `ts`. If `ts` is no boundary, because the config changed
    /// over a live row, the first window to begin at least a whole period later.
    fn next(&self, ts: Micros) -> i64 {
        let window = self.window(ts);
        if self.boundary(window) == Some(ts) {
            return window + 1;
        }
        let Some(end) = self.period_after(ts) else { return i64::MAX };
        let window = self.window(end);
        if self.boundary(window) == Some(end) { window } else { window + 1 }
    }

    /// A period after `ts` by the local clock. Last days of months are followed by last days, because a last day may
    /// stand for any day that the month doesn't have.
    fn period_after(&self, ts: Micros) -> Option<Micros> {
        let local = self.zone.to_datetime(timestamp(ts));
        let date = local.date();
        let mut end = date.checked_add(self.span(1)?).ok()?;
        if self.unit == Unit::Months && date == date.last_of_month() {
            end = end.last_of_month();
        }
        self.first_instant(end.to_datetime(local.time()))
    }

    /// The last window that begins at or before `at`.
    fn window(&self, at: Micros) -> i64 {
        let date = self.zone.to_datetime(timestamp(at)).date();
        let window = match self.unit {
            Unit::Days => (date.duration_since(self.start).as_hours() / 24).div_euclid(self.every),
            Unit::Months => {
                let months = |date: Date| i64::from(date.year()) * 12 + i64::from(date.month());
                let window = (months(date) - months(self.start)).div_euclid(self.every);
                window - i64::from(self.date(window).is_some_and(|begun| begun > date))
            }
        };
        // A clock that is set back over midnight shows the earlier date once more.
        window + i64::from(self.boundary(window + 1).is_some_and(|next| next <= at))
    }

    /// The instant at which a window begins; `None` outside the years -9999 to 9999. A window on a date that the zone
    /// skipped begins with the next date.
    fn boundary(&self, window: i64) -> Option<Micros> {
        self.first_instant(self.date(window)?.to_datetime(Time::midnight()))
    }

    /// Counted from `start` each time, so that a day missing from one month is back in the next.
    fn date(&self, window: i64) -> Option<Date> {
        self.start.checked_add(self.span(window)?).ok()
    }

    fn span(&self, windows: i64) -> Option<Span> {
        let units = windows.checked_mul(self.every)?;
        match self.unit {
            Unit::Days => Span::new().try_days(units).ok(),
            Unit::Months => Span::new().try_months(units).ok(),
        }
    }

    /// The first instant at which the local clock shows this time, or, if the clock skips it, the first later time.
    fn first_instant(&self, local: DateTime) -> Option<Micros> {
        let ambiguous = self.zone.to_ambiguous_timestamp(local);
        let skipped = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
        let mut first = ambiguous.earlier().ok()?;
        if skipped {
            // The computed instant is before the jump, where the clock doesn't show that time.
            let mut jumps = self.zone.following(first).map(|jump| jump.timestamp());
            first = jumps.find(|&jump| self.zone.to_datetime(jump) >= local)?;
        }
        Some(Micros(first.as_microsecond()))
    }
}

/// An instant, or the nearest one that has a date.
fn timestamp(at: Micros) -> Timestamp {
    let nearest = if at.0 < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(at.0).unwrap_or(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Micros {
        Micros(text.parse::<Timestamp>().unwrap().as_microsecond())
    }

    fn calendar(every: i64, unit: Unit, name: &str, start: &str) -> Calendar {
        Calendar { unit, every, zone: zone(name).unwrap(), start: start.parse().unwrap() }
    }

    fn daily(zone: &str) -> Calendar {
        calendar(1, Unit::Days, zone, "1970-01-05")
    }

    /// The local dates on which `count` windows begin, from the date of `from` on.
    fn dates(calendar: &Calendar, from: &str, count: i64) -> Vec<String> {
        let first = calendar.window(at(from));
        let begun = |window| calendar.boundary(window).unwrap();
        (first..first + count)
            .map(|window| local_date(&calendar.zone, begun(window)).unwrap().to_string())
            .collect()
    }

    #[test]
    fn a_day_begins_with_the_first_instant_of_its_date() {
        for (zone, date, begins) in [
            ("UTC", "2027-01-01", "2027-01-01T00:00:00Z"),
            ("Asia/Kathmandu", "2027-01-01", "2026-12-31T18:15:00Z"),
            ("Europe/Berlin", "2027-01-01", "2026-12-31T23:00:00Z"),
            ("Europe/Berlin", "2027-07-01", "2027-06-30T22:00:00Z"),
            ("Africa/Casablanca", "2023-03-19", "2023-03-18T23:00:00Z"),
            ("Africa/Casablanca", "2023-03-20", "2023-03-20T00:00:00Z"),
            // By the rule that applies after the last listed change.
            ("America/New_York", "2500-07-04", "2500-07-04T04:00:00Z"),
            // Midnight is skipped: from 24:00 to 1:00, or to 0:15, or from 23:30 to 0:30.
            ("America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00:00Z"),
            ("America/Havana", "2023-03-12", "2023-03-12T05:00:00Z"),
            ("Asia/Beirut", "2022-03-27", "2022-03-26T22:00:00Z"),
            ("Asia/Kathmandu", "1986-01-01", "1985-12-31T18:30:00Z"),
            ("America/Toronto", "1919-03-31", "1919-03-31T04:30:00Z"),
            // Midnight is repeated: from 1:00 to 0:00, and from 0:01 to the 23:01 of the day before.
            ("America/Havana", "2023-11-05", "2023-11-05T04:00:00Z"),
            ("America/St_Johns", "2010-11-07", "2010-11-07T02:30:00Z"),
            // Not repeated: 24:00 became 23:00.
            ("Asia/Beirut", "2022-10-30", "2022-10-29T22:00:00Z"),
            // A date that never existed, and the one after it; a date that existed twice.
            ("Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00Z"),
            ("Pacific/Apia", "2011-12-31", "2011-12-30T10:00:00Z"),
            ("America/Juneau", "1867-10-18", "1867-10-17T08:57:41Z"),
            ("America/Juneau", "1867-10-19", "1867-10-18T08:57:41Z"),
            ("America/Juneau", "1867-10-20", "1867-10-20T08:57:41Z"),
        ] {
            let calendar = Calendar { start: date.parse().unwrap(), ..daily(zone) };
            assert_eq!(calendar.boundary(0), Some(at(begins)), "{date} in {zone}");
        }
    }

    #[test]
    fn a_date_that_has_begun_stays_begun_when_the_clock_is_set_back_over_midnight() {
        for (zone, begins, back, ends) in [
            (
                "America/St_Johns",
                "2010-11-07T02:30:00Z",
                "2010-11-07T02:31:00Z",
                "2010-11-08T03:30:00Z",
            ),
            (
                "America/Juneau",
                "1867-10-18T08:57:41Z",
                "1867-10-19T00:31:13Z",
                "1867-10-20T08:57:41Z",
            ),
        ] {
            let calendar = daily(zone);
            for now in [begins, back].map(at) {
                assert_eq!(calendar.window_start(now), at(begins), "{zone}");
                assert_eq!(calendar.turns(at(begins), now), (0, at(begins)), "{zone}");
            }
            assert_eq!(calendar.after(at(begins), 1.0), Some(at(ends)), "{zone}");
        }
    }

    #[test]
    fn a_day_is_as_long_as_the_clocks_make_it() {
        for (zone, noon, hours) in [
            ("America/New_York", "2027-03-14T16:00:00Z", 23.0),
            ("America/New_York", "2027-11-07T16:00:00Z", 25.0),
            ("Europe/Berlin", "2027-03-28T12:00:00Z", 23.0),
            ("Europe/Berlin", "2027-10-31T12:00:00Z", 25.0),
            ("Australia/Lord_Howe", "2027-04-04T02:00:00Z", 24.5),
            ("Antarctica/Troll", "2027-03-28T12:00:00Z", 22.0),
            ("America/Juneau", "1867-10-18T20:00:00Z", 48.0),
            ("Pacific/Apia", "2011-12-29T20:00:00Z", 24.0),
            ("Asia/Kathmandu", "2027-03-28T06:00:00Z", 24.0),
        ] {
            let (calendar, noon) = (daily(zone), at(noon));
            let begun = calendar.window_start(noon);
            let length = calendar.after(begun, 1.0).unwrap().minus(begun);
            assert_eq!(length, Micros((hours * 3.6e9) as i64), "{zone}");
        }
    }

    #[test]
    fn a_day_that_a_month_lacks_is_its_last() {
        let monthly = calendar(1, Unit::Months, "Europe/Berlin", "2027-01-31");
        assert_eq!(
            dates(&monthly, "2027-02-01T12:00:00Z", 5),
            ["2027-01-31", "2027-02-28", "2027-03-31", "2027-04-30", "2027-05-31"]
        );
        assert_eq!(
            dates(&monthly, "2028-02-28T12:00:00Z", 3),
            ["2028-01-31", "2028-02-29", "2028-03-31"]
        );
        // And before the start.
        assert_eq!(dates(&monthly, "1900-02-28T12:00:00Z", 2), ["1900-02-28", "1900-03-31"]);
        let quarterly = calendar(3, Unit::Months, "Asia/Tokyo", "2026-11-30");
        assert_eq!(
            dates(&quarterly, "2027-05-29T12:00:00Z", 3),
            ["2027-02-28", "2027-05-30", "2027-08-30"]
        );
        let yearly = calendar(12, Unit::Months, "America/New_York", "2024-02-29");
        assert_eq!(
            dates(&yearly, "2026-12-31T12:00:00Z", 4),
            ["2026-02-28", "2027-02-28", "2028-02-29", "2029-02-28"]
        );
        assert_eq!(dates(&yearly, "2100-03-01T12:00:00Z", 1), ["2100-02-28"]);
        let weekly = calendar(7, Unit::Days, "Africa/Casablanca", "2024-02-29");
        assert_eq!(
            dates(&weekly, "2024-03-06T23:59:59Z", 2),
            ["2024-03-07", "2024-03-14"] // 0:59 by the local clock
        );
    }

    #[test]
    fn windows_are_counted_and_found_by_number() {
        for calendar in [
            daily("Europe/Berlin"),
            daily("Pacific/Apia"),
            calendar(3, Unit::Months, "Pacific/Apia", "2000-08-31"),
            calendar(14, Unit::Days, "America/Havana", "2030-01-01"),
        ] {
            let ts = calendar.window_start(at("2011-03-14T15:09:26Z"));
            assert_eq!(calendar.after(ts, 0.0), Some(ts));
            for windows in [1, 2, 100, 1000] {
                let turn = calendar.after(ts, windows as f64).unwrap();
                let just_before = Micros(turn.0 - 1);
                assert_eq!(calendar.turns(ts, turn), (windows, turn), "{calendar:?}");
                assert_eq!(calendar.turns(ts, just_before).0, windows - 1, "{calendar:?}");
            }
            assert_eq!(calendar.turns(ts, Micros(ts.0 - 1)), (0, ts));
            assert_eq!(calendar.after(ts, 1e9), None);
            assert_eq!(calendar.after(ts, f64::INFINITY), None);
        }
        // A skipped date ends with the next one.
        let apia = daily("Pacific/Apia");
        let ts = apia.window_start(at("2011-12-29T20:00:00Z"));
        assert_eq!(apia.turns(ts, at("2011-12-30T10:00:00Z")).0, 2);
        assert_eq!(apia.turns(ts, at("2011-12-30T09:59:59Z")).0, 0);
    }

    #[test]
    fn the_window_of_another_config_lasts_a_period_at_least() {
        let next = |calendar: &Calendar, ts: &str| calendar.after(at(ts), 1.0);
        // A day that began in Berlin ends with the day of New York in which its 24 hours end.
        let new_york = daily("America/New_York");
        assert_eq!(next(&new_york, "2027-01-01T23:00:00Z"), Some(at("2027-01-03T05:00:00Z")));
        // A day that began in New York, in Berlin.
        let berlin = daily("Europe/Berlin");
        assert_eq!(next(&berlin, "2027-01-01T05:00:00Z"), Some(at("2027-01-02T23:00:00Z")));
        // Midnight is a boundary of both.
        assert_eq!(next(&daily("UTC"), "2027-01-01T00:00:00Z"), Some(at("2027-01-02T00:00:00Z")));
        // The week began on a Monday, and now does on Wednesdays.
        let weekly = calendar(7, Unit::Days, "UTC", "2027-01-06");
        assert_eq!(next(&weekly, "2027-01-11T00:00:00Z"), Some(at("2027-01-20T00:00:00Z")));
        assert_eq!(
            weekly.turns(at("2027-01-11T00:00:00Z"), at("2027-01-28T00:00:00Z")),
            (2, at("2027-01-27T00:00:00Z"))
        );
        // A month from the 1st; and one from the 28th of February, which may stand for the 31st.
        let monthly = calendar(1, Unit::Months, "Asia/Tokyo", "2027-01-31");
        assert_eq!(next(&monthly, "2026-12-31T15:00:00Z"), Some(at("2027-02-27T15:00:00Z")));
        assert_eq!(next(&monthly, "2027-02-28T00:00:00Z"), Some(at("2027-04-29T15:00:00Z")));
        // One from the 30th of March ends on a 30th, which is April's last day.
        assert_eq!(next(&monthly, "2027-03-29T15:00:00Z"), Some(at("2027-04-29T15:00:00Z")));
    }

    #[test]
    fn nothing_overflows_and_windows_end_with_the_year_9999() {
        let instants =
            [i64::MIN, i64::MIN / 2, -377_705_023_201_000_000, 0, 253_402_207_200_999_999]
                .into_iter()
                .chain([i64::MAX / 2, i64::MAX])
                .flat_map(|instant| [instant, instant.saturating_sub(1), instant.saturating_add(1)])
                .map(Micros);
        for (start, every, unit) in ["-009999-01-01", "1970-01-05", "9999-12-31"]
            .into_iter()
            .flat_map(|start| [1, 7, 36_525].map(|every| (start, every)))
            .flat_map(|(start, every)| [Unit::Days, Unit::Months].map(|unit| (start, every, unit)))
        {
            for zone in ["UTC", "Pacific/Apia", "Pacific/Pago_Pago", "Europe/Berlin"] {
                let calendar = calendar(every, unit, zone, start);
                for ts in instants.clone() {
                    for windows in [0.0, 1.0, 1e3, 1e18, 1e300] {
                        assert!(calendar.after(ts, windows).is_none_or(|turn| turn >= ts));
                    }
                    for now in instants.clone() {
                        let (windows, turn) = calendar.turns(ts, now);
                        assert!(windows >= 0 && turn >= ts, "{calendar:?} {ts:?} {now:?}");
                        assert!(windows == 0 || turn <= now, "{calendar:?} {ts:?} {now:?}");
                    }
                }
            }
        }
        let last = daily("UTC").window_start(at("9999-12-30T12:00:00Z"));
        assert_eq!(last, at("9999-12-30T00:00:00Z"));
        assert_eq!(daily("UTC").after(last, 1.0), None);
        assert_eq!(daily("UTC").turns(last, Micros(i64::MAX)), (0, last));
    }

    #[test]
    fn zones_have_their_exact_names() {
        for name in ["UTC", "Etc/UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Cuba"] {
            assert!(zone(name).is_some(), "{name}");
        }
        for name in ["", " UTC", "utc", "europe/berlin", "Berlin", "+01:00", "CEST", "Etc/Unknown"]
        {
            assert!(zone(name).is_none(), "{name}");
        }
    }
}
