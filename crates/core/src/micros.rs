//! Time: instants and spans in whole microseconds.

use crate::text::number;

/// A whole number of microseconds: an instant counted from the Unix epoch, or a span.
///
/// Arithmetic saturates, so a state written far in the past or the future stays ordered and never
/// overflows.
///
/// ```
/// use ratelimit_core::Micros;
///
/// let now = Micros(1_798_804_800_000_000); // 2027-01-01T12:00:00Z
/// assert_eq!(now.plus(Micros::SECOND).minus(now).as_millis(), 1_000.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub i64);

impl Micros {
    /// One millisecond.
    pub const MILLISECOND: Micros = Micros(1_000);
    /// One second.
    pub const SECOND: Micros = Micros(1_000_000);
    /// A day of 24 hours.
    pub const DAY: Micros = Micros(86_400 * 1_000_000);
    /// A leap year.
    pub const YEAR: Micros = Micros(366 * Self::DAY.0);
    /// The longest wait that a reservation may run up: 10 years of 365.25 days.
    pub const TEN_YEARS: Micros = Micros(315_576_000 * 1_000_000);

    /// The nearest microsecond to a number of milliseconds. Saturates; NaN becomes 0.
    pub fn from_millis(millis: f64) -> Micros {
        // Computed separately: a product beyond 2^53 (the year 2255) has no room for the last digits.
        let whole = (millis.trunc() as i64).saturating_mul(1_000);
        Micros(whole.saturating_add((millis.fract() * 1e3).round() as i64))
    }

    /// In milliseconds, with the microseconds as a fraction.
    pub fn as_millis(self) -> f64 {
        (self.0 / 1_000) as f64 + (self.0 % 1_000) as f64 / 1e3
    }

    /// In milliseconds, as a JSON number.
    pub fn to_json(self) -> serde_json::Value {
        number(self.as_millis())
    }

    /// In seconds, with the microseconds as a fraction.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// This instant or span, later or longer by `span`.
    pub fn plus(self, span: Micros) -> Micros {
        Micros(self.0.saturating_add(span.0))
    }

    /// The wait from `now` until this instant and then for `rest`, which is asked for that instant; `None`: it never
    /// ends.
    pub fn then(self, now: Micros, rest: impl FnOnce(Micros) -> Option<Micros>) -> Option<Micros> {
        if self == Self::FOREVER { None } else { rest(self).map(|rest| self.minus(now).plus(rest)) }
    }

    /// The span since `other`, or this one shortened by it; negative if `other` is later.
    pub fn minus(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }

    /// This span multiplied by a factor, and truncated to a microsecond.
    pub(crate) fn times(self, factor: f64) -> Micros {
        Micros((factor * self.0 as f64) as i64)
    }

    /// The next whole millisecond at or after this one.
    pub fn ceil_to_millis(self) -> Micros {
        let rest = self.0.rem_euclid(Self::MILLISECOND.0);
        if rest == 0 { self } else { Micros(self.0.saturating_add(Self::MILLISECOND.0 - rest)) }
    }

    /// The end of what never ends, such as an indefinite block: the timestamptz infinity.
    pub const FOREVER: Micros = Micros(i64::MAX);

    /// The latest time in results, which stands for all later ones and for infinity: 9999-12-30 00:00:00 UTC. Drivers
    /// have no times after the year 9999, and in a zone east of Greenwich its last day begins earlier.
    pub const LATEST_SHOWN: Micros = Micros(253_402_128_000_000_000);

    /// In whole seconds, rounded up.
    pub fn ceil_to_secs(self) -> i64 {
        let rest = self.0.rem_euclid(Self::SECOND.0);
        self.0.div_euclid(Self::SECOND.0) + i64::from(rest != 0)
    }

    /// The last multiple of `period` at or before this instant.
    pub(crate) fn floor_to(self, period: Micros) -> Micros {
        Micros(self.0.saturating_sub(self.0.rem_euclid(period.0)))
    }

    /// A span computed as a float, rounded up to a microsecond; `None`: beyond the last instant (292,000 years).
    pub(crate) fn ceil_from(micros: f64) -> Option<Micros> {
        (micros < i64::MAX as f64 / 2.0).then(|| Micros(micros.ceil().max(0.0) as i64))
    }
}

/// The largest epoch milliseconds of an instant, either side of 1970 (273,000 years).
pub(crate) const MAX_EPOCH: f64 = 8.64e15;
/// The earliest instant in epoch milliseconds: 4714 BC, where PostgreSQL's timestamptz begins.
const FIRST_CLOCK: f64 = -210_866_803_200_000.0;

/// Reads an instant in the form of the setting `ratelimit.clock`: a time with its offset, or epoch milliseconds, from
/// 4714 BC on. `None` for anything else.
pub fn parse_instant(text: &str) -> Option<Micros> {
    match text.parse::<f64>() {
        Ok(millis) if (FIRST_CLOCK..=MAX_EPOCH).contains(&millis) => {
            Some(Micros::from_millis(millis))
        }
        Ok(_) => None,
        Err(_) => time_with_offset(text).filter(|at| at.as_millis() >= FIRST_CLOCK),
    }
}

/// An RFC 3339 time, or the same with a space or a short offset, as Postgres prints it: `2027-01-01 00:00:00+00`.
pub(crate) fn time_with_offset(text: &str) -> Option<Micros> {
    text.parse::<jiff::Timestamp>().ok().map(|time| Micros(time.as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_need_an_offset() {
        let noon = Some(Micros(1_798_804_800_000_000));
        for text in [
            "2027-01-01T12:00:00Z",
            "2027-01-01 12:00:00+00",
            "2027-01-01 13:00:00+01:00",
            "1798804800000",
        ] {
            assert_eq!(parse_instant(text), noon, "{text}");
        }
        for text in ["2027-01-01 12:00:00", "noon", "", "NaN", "inf", "1e300"] {
            assert_eq!(parse_instant(text), None, "{text}");
        }
    }

    #[test]
    fn rounding_up_to_milliseconds_works_on_both_sides_of_the_epoch() {
        for (micros, rounded) in
            [(0, 0), (1, 1000), (1000, 1000), (1001, 2000), (-1, 0), (-1000, -1000)]
        {
            assert_eq!(Micros(micros).ceil_to_millis(), Micros(rounded));
        }
        assert_eq!(Micros(i64::MAX).ceil_to_millis(), Micros(i64::MAX));
    }

    #[test]
    fn rounding_up_to_seconds_works_on_both_sides_of_the_epoch() {
        for (micros, seconds) in
            [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2), (-1, 0), (-1_000_001, -1)]
        {
            assert_eq!(Micros(micros).ceil_to_secs(), seconds);
        }
        assert_eq!(Micros(i64::MAX).ceil_to_secs(), 9_223_372_036_855);
    }

    #[test]
    fn milliseconds_keep_every_microsecond_that_a_float_holds() {
        for millis in [6_248_000_000_000_001i64, -6_248_000_000_000_001, 1_700_000_000_001] {
            assert_eq!(Micros::from_millis(millis as f64), Micros(millis * 1_000));
            assert_eq!(Micros(millis * 1_000).as_millis(), millis as f64);
        }
        assert_eq!(Micros::from_millis(1_700_000_000_000.125), Micros(1_700_000_000_000_125));
        assert_eq!(Micros::from_millis(-0.0015), Micros(-2));
        assert_eq!(Micros::from_millis(1e300), Micros(i64::MAX));
    }
}
