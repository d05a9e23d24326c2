//! Token bucket: tokens flow in steadily, up to the capacity.
//!
//! `available = min(value + elapsed * rate / period, capacity)`, after the [article] and
//! [component][code] of Convex, which store the same two numbers. The refill is capped before the
//! count is subtracted: an idle time never buys more than the capacity. A debt counts as ten years'
//! refill at most.
//!
//! [article]: https://stack.convex.dev/rate-limiting
//! [code]: https://github.com/get-convex/rate-limiter/blob/main/src/shared.ts

use serde_json::{Value, json};

use super::limit_kind::LimitKind;
use super::refill::Refill;
use super::{Level, Tokens, rounded, tolerance};
use crate::Micros;
use crate::config::times::PERIOD;
use crate::fields::{FieldError, Fields, Given, Reader};
use crate::headers::CallOutcome;
use crate::numbers::{RATE, SHARDS, TOKENS};
use crate::text::number;

/// A bucket of `capacity` tokens that refills by `rate` tokens a `period`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    /// Tokens a period: more than 0, at most 1e15.
    pub rate: f64,
    /// From a millisecond to 1e15 milliseconds.
    pub period: Micros,
    /// The maximum number of tokens that accumulate, 0 to 1e15; 0 makes sense with reservations only.
    pub capacity: f64,
    /// The largest debt, 0 to 1e15 tokens; `None`: bounded by a wait of ten years.
    pub max_reserved: Option<f64>,
    /// The number of shards, 1 to 1,024.
    pub shards: u32,
}

/// The `start` of a token bucket: null, as the Convex rate limiter allows it.
const NO_START: Reader<()> = Reader {
    allowed: "null, or none: a token bucket has no windows",
    read: |given| match given {
        Given::Null => Some(()),
        _ => None,
    },
};

impl LimitKind for TokenBucket {
    const NAME: &'static str = "token bucket";
    const WITH_ARTICLE: &'static str = "a token bucket";
    const FIELDS: &'static [&'static str] =
        &["rate", "period", "capacity", "maxReserved", "shards", "start"];

    type State = Tokens;

    fn read(fields: &Fields) -> Result<TokenBucket, FieldError> {
        let rate = fields.required("rate", &RATE)?;
        let bucket = TokenBucket {
            rate,
            period: fields.required("period", &PERIOD)?,
            capacity: fields.optional("capacity", &TOKENS)?.unwrap_or(rate),
            max_reserved: fields.optional("maxReserved", &TOKENS)?,
            shards: fields.optional("shards", &SHARDS)?.unwrap_or(1),
        };
        fields.optional("start", &NO_START)?;
        Ok(bucket)
    }

    fn resolved(&self, _: Micros) -> Value {
        json!({
            "rate": number(self.rate),
            "period": self.period.to_json(),
            "capacity": number(self.capacity),
            "maxReserved": self.max_reserved.map(number),
            "shards": self.shards,
        })
    }

    fn capacity(&self) -> f64 {
        self.capacity
    }

    fn policy(&self) -> (f64, Option<Micros>) {
        (self.rate, Some(self.period))
    }

    fn time_to_full(&self) -> Micros {
        self.period.times(self.capacity / self.rate)
    }

    fn initial_state(&self, now: Micros, _: Micros) -> Tokens {
        Tokens { value: self.capacity, ts: now, added: None }
    }

    /// Full, and not ahead of the clock.
    fn is_idle(&self, tokens: &Tokens, now: Micros, _: Micros) -> bool {
        tokens.ts <= now && self.refilled(tokens, now).1 >= self.capacity
    }

    /// The time when the last token comes in.
    fn unused_at(&self, tokens: &Tokens) -> Option<Micros> {
        self.due(tokens.ts, self.capacity - self.stored_tokens(tokens))
    }

    fn shards(&self) -> u32 {
        self.shards
    }

    fn shard(&self, shards: u32) -> TokenBucket {
        let share = |tokens: f64| tokens / f64::from(shards.max(1));
        TokenBucket {
            rate: share(self.rate),
            period: self.period,
            capacity: share(self.capacity),
            max_reserved: self.max_reserved.map(share),
            shards: 1,
        }
    }

    /// If less than one token is left: the time until one is there.
    fn until_more(&self, outcome: &CallOutcome, now: Micros) -> Option<Micros> {
        let until = outcome.until_reset(now)?;
        if !outcome.needs_one() {
            return Some(until);
        }
        // At the rate at which the limit is full by the reset, which is specific to the key. The reset is rounded up to
        // a millisecond, so this is rounded to one: it could be a second too late otherwise.
        let reset = outcome.reset_at?.minus(now);
        let share = (1.0 - outcome.remaining) / (outcome.capacity - outcome.remaining);
        let next = Micros::from_millis((reset.0 as f64 * share / 1e3).round());
        Some(until.min(next))
    }
}

impl Refill for TokenBucket {
    fn capacity(&self) -> f64 {
        self.capacity
    }

    fn max_reserved(&self) -> Option<f64> {
        self.max_reserved
    }

    fn refilled(&self, tokens: &Tokens, now: Micros) -> (Micros, f64) {
        let elapsed = now.minus(tokens.ts).0.max(0) as f64;
        let refill = elapsed * self.rate / self.period.0 as f64;
        (tokens.ts.max(now), (self.stored_tokens(tokens) + refill).min(self.capacity))
    }

    fn max_debt(&self, _: Micros) -> f64 {
        let refill = Micros::TEN_YEARS.0 as f64 * self.rate / self.period.0 as f64;
        refill.max(tolerance(self.capacity))
    }

    fn due(&self, ts: Micros, tokens: f64) -> Option<Micros> {
        let span = Micros::ceil_from(tokens.max(0.0) * self.period.0 as f64 / self.rate)?;
        Some(ts.plus(span))
    }

    fn level_of(&self, ts: Micros, tokens: f64, now: Micros) -> Level {
        let missing = self.capacity - tokens;
        // A full bucket is full now, even if the clock has stepped back behind its state.
        let reset_at =
            if missing <= tolerance(self.capacity) { Some(now) } else { self.due(ts, missing) };
        Level { remaining: rounded(tokens, self.capacity), reset_at }
    }

    fn returns_from(&self, _: Micros) -> Micros {
        Micros(i64::MIN)
    }
}
