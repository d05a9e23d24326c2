//! Fixed window: `rate` tokens are added at the start of each window, up to the capacity.
//!
//! `available = min(value + windows * rate, capacity)`, where `windows` have begun since `ts`, after the [article] and
//! [component][code] of Convex; with a capacity above the rate, unused tokens roll over. The stored `ts` is the start
//! of a window, and the next window follows from it.
//!
//! Tokens used in a window stay used when the config changes. So the state has, next to `value`, the tokens that the
//! window added ([`Tokens::added`]): this config's `min(rate, capacity)` unless the config has changed. A config that
//! adds more gives the difference at once. One that adds less takes it from the tokens left, and makes no debt; a
//! credit then counts against the use beyond it. A window that has ended keeps the tokens that it added: the new config
//! counts from the next one. A state without `added`, such as the component's, keeps its value.
//!
//! With overage a call passes when no tokens are left, and makes a debt that ends with its window.
//!
//! [article]: https://stack.convex.dev/rate-limiting
//! [code]: https://github.com/get-convex/rate-limiter/blob/main/src/shared.ts

use jiff::civil::date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::calendar::{Calendar, Unit};
use super::limit_kind::LimitKind;
use super::refill::Refill;
use super::{Level, Tokens, rounded, tolerance};
use crate::Micros;
use crate::config::times::{DATES, FIRST_REQUEST, LOCAL_DATE, PERIOD, START, ZONE};
use crate::fields::{FLAG, FieldError, Fields};
use crate::headers::CallOutcome;
use crate::numbers::{RATE, SHARDS, TOKENS};
use crate::text::number;

/// `rate` tokens a window, up to `capacity`.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    /// Tokens a window: more than 0, at most 1e15.
    pub rate: f64,
    /// The times when windows begin.
    pub windows: Windows,
    /// The maximum number of tokens that accumulate, 0 to 1e15; 0 makes sense with reservations only.
    pub capacity: f64,
    /// The largest debt, 0 to 1e15 tokens; `None`: bounded by a wait of ten years.
    pub max_reserved: Option<f64>,
    /// The number of shards, 1 to 1,024.
    pub shards: u32,
    /// Whether calls pass when no tokens are left; the debt ends with the window.
    pub overage: bool,
}

/// The times when windows begin.
#[derive(Clone, Debug, PartialEq)]
pub enum Windows {
    /// At a fixed distance. The `ts` of a state fixes the phase for its lifetime.
    Every {
        /// From a millisecond to 1e15 milliseconds.
        period: Micros,
        /// The start of a new state's windows.
        start: Start,
    },
    /// On local dates.
    Calendar(Calendar),
}

/// The start of a new state's windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// Boundaries are at this instant plus `k * period`, for every integer k.
    At(Micros),
    /// A window begins at the take that finds the limit full.
    FirstRequest,
    /// At the `phase` that the caller gives to
    /// [`initial_state`](crate::Limit::initial_state), derived from name and key.
    Derived,
}

impl Windows {
    /// The length of a window; `None` for months, which have no fixed one.
    pub(super) fn length(&self) -> Option<Micros> {
        match self {
            Windows::Every { period, .. } => Some(*period),
            Windows::Calendar(calendar) => calendar.length(),
        }
    }

    /// The start of the window that contains `now`; windows of a fixed length begin at `phase`.
    fn window_start(&self, phase: Micros, now: Micros) -> Micros {
        match self {
            Windows::Every { period, .. } => {
                let since = (now.0 as i128 - phase.0 as i128).rem_euclid(period.0 as i128);
                now.minus(Micros(since as i64))
            }
            Windows::Calendar(calendar) => calendar.window_start(now),
        }
    }

    /// The number of windows that have begun after `ts` and by `now`, and the start of the last of them, or `ts`.
    fn turns(&self, ts: Micros, now: Micros) -> (i64, Micros) {
        match self {
            Windows::Every { period, .. } => {
                let windows = now.minus(ts).0.max(0) / period.0;
                (windows, Micros(ts.0 + windows * period.0))
            }
            Windows::Calendar(calendar) => calendar.turns(ts, now),
        }
    }

    /// Counts the windows that begin after `ts` within ten years of the instant before the first of them; infinite
    /// if none does.
    fn turns_in_ten_years(&self, ts: Micros) -> f64 {
        let Some(next) = self.after(ts, 1.0) else { return f64::INFINITY };
        let last = next.minus(Micros(1)).plus(Micros::TEN_YEARS);
        self.turns(ts, last).0 as f64
    }

    /// The start of the window that is `windows` after the window of `ts`; `None` past the last instant or date.
    fn after(&self, ts: Micros, windows: f64) -> Option<Micros> {
        match self {
            Windows::Every { period, .. } => Micros::ceil_from(windows * period.0 as f64)
                .and(period.0.checked_mul(windows as i64))
                .and_then(|span| ts.0.checked_add(span))
                .map(Micros),
            Windows::Calendar(calendar) => calendar.after(ts, windows),
        }
    }
}

impl FixedWindow {
    /// The tokens that a window adds if none are left.
    fn window_adds(&self) -> f64 {
        self.rate.min(self.capacity)
    }

    /// Returns the stored tokens left when their window ends, without an overage. A config that has changed since
    /// counts from the next window.
    fn rolls_over(&self, stored: &Tokens) -> f64 {
        let tokens = self.bounded(stored.value, stored.ts);
        if self.overage { tokens.max(0.0) } else { tokens }
    }

    /// Whether windows begin with a key's request.
    fn begins_with_request(&self) -> bool {
        matches!(self.windows, Windows::Every { start: Start::FirstRequest, .. })
    }

    /// Whether no window has begun: the limit is full, and the next take begins one.
    fn awaits_request(&self, tokens: f64) -> bool {
        self.begins_with_request()
            // The tolerance of a large limit is many tokens, which a request has taken.
            && tokens >= self.capacity - tolerance(self.capacity).min(1e-6)
    }
}

impl LimitKind for FixedWindow {
    const NAME: &'static str = "fixed window";
    const WITH_ARTICLE: &'static str = "a fixed window";
    const FIELDS: &'static [&'static str] =
        &["rate", "period", "capacity", "maxReserved", "shards", "start", "timezone", "overage"];

    type State = Tokens;

    fn read(fields: &Fields) -> Result<FixedWindow, FieldError> {
        let rate = fields.required("rate", &RATE)?;
        let mut windows = if fields.get("timezone").is_none() {
            Windows::Every { period: fields.required("period", &PERIOD)?, start: Start::Derived }
        } else {
            let (unit, every) = fields.required("period", &DATES)?;
            let start = match unit {
                Unit::Days => date(1970, 1, 5), // a Monday, so that weeks begin on one
                Unit::Months => date(1970, 1, 1),
            };
            Windows::Calendar(Calendar { unit, every, zone: TimeZone::UTC, start })
        };
        let capacity = fields.optional("capacity", &TOKENS)?.unwrap_or(rate);
        let max_reserved = fields.optional("maxReserved", &TOKENS)?;
        let shards = fields.optional("shards", &SHARDS)?.unwrap_or(1);
        match &mut windows {
            Windows::Every { start, .. } => {
                *start = fields.optional("start", &START)?.unwrap_or(*start);
            }
            Windows::Calendar(calendar) => {
                calendar.start = fields.optional("start", &LOCAL_DATE)?.unwrap_or(calendar.start);
                calendar.zone = fields.required("timezone", &ZONE)?;
            }
        }
        let overage = fields.optional("overage", &FLAG)?.unwrap_or(false);
        let limit = FixedWindow { rate, windows, capacity, max_reserved, shards, overage };
        if overage && max_reserved.is_some() {
            let allowed = r#"none if "overage" is true: no call has to wait"#;
            return Err(fields.refused("maxReserved", allowed));
        }
        if overage && shards > 1 {
            return Err(fields.refused("shards", r#"1 if "overage" is true"#));
        }
        if limit.begins_with_request() && shards > 1 {
            let allowed = concat!(
                r#"1 if "start" is "first request": "#,
                "a key's first request reaches only one of the shards"
            );
            return Err(fields.refused("shards", allowed));
        }
        Ok(limit)
    }

    fn resolved(&self, phase: Micros) -> Value {
        let (period, start, timezone) = match &self.windows {
            &Windows::Every { period, start } => {
                let start = match start {
                    Start::At(at) => at.to_json(),
                    Start::FirstRequest => FIRST_REQUEST.into(),
                    Start::Derived => Micros(phase.0.rem_euclid(period.0)).to_json(),
                };
                (period.to_json(), start, None)
            }
            Windows::Calendar(Calendar { unit, every, zone, start }) => {
                let unit = match unit {
                    Unit::Days => "day",
                    Unit::Months => "month",
                };
                let plural = if *every == 1 { "" } else { "s" };
                let period = format!("{every} {unit}{plural}");
                (period.into(), start.to_string().into(), zone.iana_name())
            }
        };
        json!({
            "rate": number(self.rate),
            "period": period,
            "capacity": number(self.capacity),
            "maxReserved": self.max_reserved.map(number),
            "shards": self.shards,
            "start": start,
            "timezone": timezone,
            "overage": self.overage.then_some(true),
        })
    }

    fn capacity(&self) -> f64 {
        self.capacity
    }

    fn policy(&self) -> (f64, Option<Micros>) {
        (self.rate, self.windows.length())
    }

    fn time_to_full(&self) -> Micros {
        const MONTH: Micros = Micros(Micros::YEAR.0 / 12);
        let length = match &self.windows {
            Windows::Calendar(Calendar { unit: Unit::Months, every, .. }) => {
                MONTH.times(*every as f64)
            }
            windows => windows.length().unwrap_or(MONTH),
        };
        length.times((self.capacity / self.rate).ceil())
    }

    fn initial_state(&self, now: Micros, phase: Micros) -> Tokens {
        let ts = match self.windows {
            Windows::Every { start: Start::FirstRequest, .. } => now,
            Windows::Every { start: Start::At(start), .. } => self.windows.window_start(start, now),
            _ => self.windows.window_start(phase, now),
        };
        Tokens { value: self.capacity, ts, added: Some(self.window_adds()) }
    }

    /// Full, not ahead of the clock, and in the phase that a new state would have.
    fn is_idle(&self, stored: &Tokens, now: Micros, phase: Micros) -> bool {
        let (ts, tokens) = self.refilled(stored, now);
        let in_phase = self.awaits_request(tokens) || ts == self.initial_state(now, phase).ts;
        ts <= now && tokens >= self.capacity && in_phase && self.overused(stored, ts) == 0.0
    }

    /// The time when the window with the last token begins.
    fn unused_at(&self, stored: &Tokens) -> Option<Micros> {
        let missing = self.capacity - self.stored_tokens(stored);
        let at = match self.recounted_at(stored, stored.ts) {
            Some(turn) if missing > 0.0 => {
                turn.max(self.due(stored.ts, self.capacity - self.rolls_over(stored))?)
            }
            _ => self.due(stored.ts, missing)?,
        };
        let (ts, tokens) = self.refilled(stored, at);
        // Half a tolerance may be missing.
        let is_full = tokens >= self.capacity && self.overused(stored, ts) == 0.0;
        if is_full { Some(at) } else { self.windows.after(ts, 1.0) }
    }

    fn shards(&self) -> u32 {
        self.shards
    }

    fn shard(&self, shards: u32) -> FixedWindow {
        let share = |tokens: f64| tokens / f64::from(shards.max(1));
        FixedWindow {
            rate: share(self.rate),
            capacity: share(self.capacity),
            max_reserved: self.max_reserved.map(share),
            shards: 1,
            ..self.clone()
        }
    }

    /// If one window doesn't bring a whole token, the time until the retry of a denial.
    fn until_more(&self, outcome: &CallOutcome, now: Micros) -> Option<Micros> {
        if outcome.needs_one() && !self.overage && outcome.remaining + self.rate < 1.0 {
            return outcome.wait();
        }
        outcome.until_reset(now)
    }
}

impl Refill for FixedWindow {
    fn capacity(&self) -> f64 {
        self.capacity
    }

    fn max_reserved(&self) -> Option<f64> {
        self.max_reserved
    }

    fn overage(&self) -> bool {
        self.overage
    }

    fn value_of(&self, stored: &Tokens) -> f64 {
        let Some(added) = stored.added else { return stored.value };
        let more = self.window_adds() - added;
        // Use beyond the tokens that this config adds is no debt.
        if more >= -stored.value.max(0.0) { stored.value + more } else { stored.value.min(0.0) }
    }

    fn stored(&self, value: f64, ts: Micros, before: &Tokens) -> Tokens {
        // In the same window used tokens stay used, even beyond what this config adds, as long as none are left.
        let used = |added| added - before.value.max(0.0);
        let same = ts == before.ts && value <= 0.0;
        let at_least = before.added.filter(|_| same).map_or(0.0, used);
        Tokens { value, ts, added: Some(self.window_adds().max(at_least)) }
    }

    fn reported(&self, stored: &Tokens, now: Micros) -> Tokens {
        let value = self.value_of(stored);
        let plain = Tokens { added: None, ..*stored };
        if value == stored.value || self.windows.turns(stored.ts, now).0 > 0 {
            return plain;
        }
        // The next window is full, whichever of the two rolls over.
        let fills = |tokens: &Tokens| self.rolls_over(tokens) + self.rate >= self.capacity;
        let at_once = Tokens { value, ..plain };
        if fills(stored) && fills(&at_once) { at_once } else { *stored }
    }

    fn refilled(&self, stored: &Tokens, now: Micros) -> (Micros, f64) {
        let (windows, ts) = self.windows.turns(stored.ts, now);
        let tokens = if windows > 0 { self.rolls_over(stored) } else { self.stored_tokens(stored) };
        (ts, (tokens + windows as f64 * self.rate).min(self.capacity))
    }

    fn adds(&self) -> Option<f64> {
        Some(self.window_adds())
    }

    /// No tokens of the window are left then; with a capacity of 0 there are none anyway.
    fn overused(&self, stored: &Tokens, ts: Micros) -> f64 {
        let used = stored.added.map_or(0.0, |added| added - stored.value.max(0.0));
        if ts == stored.ts { (used - self.window_adds()).max(0.0) } else { 0.0 }
    }

    fn rolls_over_more(&self, stored: &Tokens, now: Micros) -> f64 {
        let (ts, available) = self.refilled(stored, now);
        let changes = self.recounted_at(stored, ts).is_some();
        if changes { (self.rolls_over(stored) - available).max(0.0) } else { 0.0 }
    }

    fn recounted_at(&self, stored: &Tokens, ts: Micros) -> Option<Micros> {
        let changes = ts == stored.ts && self.rolls_over(stored) != self.stored_tokens(stored);
        if changes { self.windows.after(ts, 1.0) } else { None }
    }

    fn given_back(&self, stored: &Tokens, ts: Micros, available: f64, count: f64) -> Tokens {
        let more = available + count;
        // First against the use beyond what this config adds, which leaves no tokens.
        let overused = self.overused(stored, ts);
        let against = overused.min(more.max(0.0));
        let value = (more - against).min(self.capacity);
        if against == 0.0 {
            return self.stored(value, ts, stored);
        }
        Tokens { value, ts, added: Some(self.window_adds() + (overused - against)) }
    }

    fn max_debt(&self, ts: Micros) -> f64 {
        // As `due` counts windows, minus the last bits, which would be one more window.
        let tolerance = tolerance(self.capacity);
        let most = self.windows.turns_in_ten_years(ts) * self.rate + tolerance / 2.0;
        (most * (1.0 - 4.0 * f64::EPSILON)).max(tolerance)
    }

    fn due(&self, ts: Micros, tokens: f64) -> Option<Micros> {
        // Half of the tolerance is left for the following calculations: this number of windows does suffice.
        let windows = ((tokens - tolerance(self.capacity) / 2.0) / self.rate).ceil();
        self.windows.after(ts, windows.max(0.0))
    }

    fn whole_refill(&self, stored: &Tokens, now: Micros) -> Option<Micros> {
        let least = self.stored_tokens(stored).min(self.rolls_over(stored));
        let missing = self.capacity - if self.overage { least.max(0.0) } else { least };
        // At least the current window, also if nothing accumulates.
        self.due(now, missing.max(self.capacity).max(self.rate))
    }

    fn stored_ts(&self, ts: Micros, available: f64, now: Micros) -> Micros {
        if self.awaits_request(available) { ts.max(now) } else { ts }
    }

    fn level_of(&self, ts: Micros, tokens: f64, now: Micros) -> Level {
        let reset_at =
            if self.awaits_request(tokens) { Some(now) } else { self.windows.after(ts, 1.0) };
        Level { remaining: rounded(tokens, self.capacity), reset_at }
    }

    /// The debt left just before the window begins.
    fn reserved_last(&self, after: &Tokens, start: Micros) -> f64 {
        let debt = -self.refilled(after, start.minus(Micros(1))).1;
        // Float error may leave none.
        if debt > 0.0 { debt } else { f64::INFINITY }
    }

    /// The tokens of an earlier window ended with it.
    fn returns_from(&self, ts: Micros) -> Micros {
        ts
    }
}
