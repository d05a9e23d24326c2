//! The formulas shared by token bucket and fixed window: tokens that come back up to a capacity, takes and reservations
//! from them, and the time when a denied call can pass.

use super::limit_kind::{Formulas, LimitKind, soon};
use super::{Decision, Level, Returnable, State, Tokens, confirmed, subtract, tolerance};
use crate::Micros;

/// A kind with a state of [`Tokens`] that come back up to a capacity. Gives the kind its [`Formulas`].
pub(super) trait Refill {
    fn capacity(&self) -> f64;

    /// The largest debt in tokens; `None`: bounded by a wait of ten years.
    fn max_reserved(&self) -> Option<f64>;

    /// The tokens at `now`, and the time from which they count: the latest at which tokens came in, never before the
    /// stored one. A clock that stepped back refills nothing.
    fn refilled(&self, tokens: &Tokens, now: Micros) -> (Micros, f64);

    /// The largest debt in tokens that a take or a reservation can leave in a state with this `ts`: the tokens of ten
    /// years. A larger debt comes from another config or a credit, and counts as this.
    fn max_debt(&self, ts: Micros) -> f64;

    /// Whether a call passes if no tokens are left.
    fn overage(&self) -> bool {
        false
    }

    /// The value of stored tokens under this config, which may have changed since.
    fn value_of(&self, tokens: &Tokens) -> f64 {
        tokens.value
    }

    /// Stored tokens without the number that their window added, if it decides no take from `now` on; their value
    /// may change.
    fn reported(&self, tokens: &Tokens, _now: Micros) -> Tokens {
        Tokens { added: None, ..*tokens }
    }

    /// The tokens left at the `ts` of stored ones.
    fn stored_tokens(&self, tokens: &Tokens) -> f64 {
        self.bounded(self.value_of(tokens), tokens.ts)
    }

    /// Tokens at `ts`; a debt counts at most as the [largest](Refill::max_debt).
    fn bounded(&self, value: f64, ts: Micros) -> f64 {
        // Only a debt needs the bound, which is expensive to compute; an overage ends with its window.
        if value < 0.0 && !self.overage() { value.max(-self.max_debt(ts)) } else { value }
    }

    /// The state to store for tokens that count from `ts`, after `before`.
    fn stored(&self, value: f64, ts: Micros, _before: &Tokens) -> Tokens {
        Tokens { value, ts, added: None }
    }

    /// The state after giving back `count` tokens, 0 or more, to `available` ones, which count from `ts`; `before`
    /// was stored.
    fn given_back(&self, before: &Tokens, ts: Micros, available: f64, count: f64) -> Tokens {
        self.stored((available + count).min(self.capacity()), ts, before)
    }

    /// The tokens that a window adds if none are left; `None` without windows.
    fn adds(&self) -> Option<f64> {
        None
    }

    /// The tokens used in the window that begins at `ts` beyond the number that it adds now.
    fn overused(&self, _: &Tokens, _: Micros) -> f64 {
        0.0
    }

    /// The number of tokens left at the end of the window, before the next one adds any, minus those left at `now`.
    fn rolls_over_more(&self, _: &Tokens, _: Micros) -> f64 {
        0.0
    }

    /// The time when stored tokens, which count from `ts`, change other than by refill: the end of the window in which
    /// the config has changed.
    fn recounted_at(&self, _: &Tokens, _: Micros) -> Option<Micros> {
        None
    }

    /// The time when `tokens` have come in, counted from `ts`; `None`: beyond the last instant.
    fn due(&self, ts: Micros, tokens: f64) -> Option<Micros>;

    /// The time when the limit is full again if it is empty now, or as deep in debt as stored.
    fn whole_refill(&self, tokens: &Tokens, now: Micros) -> Option<Micros> {
        let missing = self.capacity() - self.stored_tokens(tokens);
        self.due(now, missing.max(self.capacity()))
    }

    /// The `ts` that a take at `now` stores: the time from which its tokens count, or a later one.
    fn stored_ts(&self, ts: Micros, _: f64, _: Micros) -> Micros {
        ts
    }

    /// The level of a limit with `tokens` that count from `ts`.
    fn level_of(&self, ts: Micros, tokens: f64, now: Micros) -> Level;

    /// The earliest instant of a take that can still be given back to tokens that count from `ts`.
    fn returns_from(&self, ts: Micros) -> Micros;

    /// Whether tokens taken at `taken_at` can still be given back to tokens that count from `ts`.
    fn can_return(&self, taken_at: Micros, ts: Micros) -> bool {
        taken_at >= self.returns_from(ts)
    }

    /// The tokens of a debt that come in at `start`; infinite if no window ends.
    fn reserved_last(&self, _after: &Tokens, _start: Micros) -> f64 {
        f64::INFINITY
    }

    /// The wait until the tokens of a call are there; `None`: the call doesn't pass.
    fn passes(
        &self,
        ts: Micros,
        available: f64,
        now: Micros,
        count: f64,
        reserve: bool,
    ) -> Option<Micros> {
        let tolerance = tolerance(self.capacity());
        let debt = count - available;
        if debt <= tolerance || self.overage() {
            return Some(Micros(0));
        }
        if !reserve || debt > self.max_reserved().unwrap_or(f64::INFINITY) + tolerance {
            return None;
        }
        let wait = self.due(ts, debt)?.minus(now);
        (wait <= Micros::TEN_YEARS).then_some(wait)
    }

    /// The time after which a call denied at `now` can first pass.
    fn retry_after(
        &self,
        tokens: &Tokens,
        now: Micros,
        count: f64,
        reserve: bool,
    ) -> Option<Micros> {
        let unbounded = self.max_reserved().unwrap_or(f64::INFINITY);
        let max_debt = if reserve { unbounded } else { 0.0 };
        if count > self.capacity() + max_debt + tolerance(self.capacity()) {
            return None;
        }
        let (ts, available) = self.refilled(tokens, now);
        if let Some(then) = self.recounted_at(tokens, ts).filter(|&then| then > now) {
            let (ts, available) = self.refilled(tokens, then);
            let ts = self.stored_ts(ts, available, then);
            let wait = then.minus(now);
            return match self.passes(ts, available, then, count, reserve) {
                Some(_) => Some(wait),
                None => Some(wait.plus(self.retry_after(tokens, then, count, reserve)?)),
            };
        }
        let missing = count - available;
        let mut at = now;
        if missing > max_debt {
            at = self.due(ts, missing - max_debt)?;
        }
        if reserve {
            // The reserved tokens must also come within ten years, counted from the tokens left then: refill above the
            // capacity is lost.
            let (ts, available) = self.refilled(tokens, at);
            at = at.max(self.due(ts, count - available)?.minus(Micros::TEN_YEARS));
        }
        confirmed(Some(at.minus(now).max(Micros(0))), |wait| {
            let then = now.plus(wait);
            let (ts, available) = self.refilled(tokens, then);
            let ts = self.stored_ts(ts, available, then);
            self.passes(ts, available, then, count, reserve).is_some()
        })
    }
}

impl<K: LimitKind<State = Tokens> + Refill> Formulas for K {
    #[inline]
    fn counts(&self, tokens: &Tokens, now: Micros) -> bool {
        tokens.ts <= soon(now)
            // `None`: later than any instant.
            || self.whole_refill(tokens, now).is_none_or(|horizon| tokens.ts <= horizon)
    }

    fn take(&self, tokens: &Tokens, now: Micros, count: f64, reserve: bool) -> Decision {
        let (ts, available) = self.refilled(tokens, now);
        let ts = self.stored_ts(ts, available, now);
        let Some(wait) = self.passes(ts, available, now, count, reserve) else {
            return Decision::denied(
                self.retry_after(tokens, now, count, reserve),
                self.level(tokens, now),
            );
        };
        let value = subtract(available, count);
        Decision {
            ok: true,
            retry_after: (wait > Micros(0)).then_some(wait),
            level: self.level_of(ts, value, now),
            state: (count > 0.0).then(|| State::Tokens(self.stored(value, ts, tokens))),
        }
    }

    fn credit(
        &self,
        tokens: &Tokens,
        now: Micros,
        count: f64,
        taken_at: Option<Micros>,
    ) -> Option<Decision> {
        let (ts, available) = self.refilled(tokens, now);
        let unchanged = self.stored(available, ts, tokens);
        let after = if count < 0.0 {
            let ts = self.stored_ts(ts, available, now);
            let value = self.bounded(subtract(available, -count), ts);
            self.stored(value, ts, tokens)
        } else if taken_at.is_none_or(|taken_at| self.can_return(taken_at, ts)) {
            self.given_back(tokens, ts, available, count)
        } else {
            unchanged
        };
        let Tokens { value, ts, .. } = after;
        let in_debt = value < -tolerance(Refill::capacity(self));
        Some(Decision {
            ok: true,
            retry_after: self
                .due(ts, -value)
                .filter(|_| in_debt && !self.overage())
                .map(|due| due.minus(now)),
            level: self.level_of(ts, value, now),
            state: (after != unchanged).then_some(State::Tokens(after)),
        })
    }

    fn returnable(&self, tokens: &Tokens, now: Micros) -> Option<Returnable> {
        let (ts, available) = self.refilled(tokens, now);
        let room = Refill::capacity(self) - available + self.overused(tokens, ts);
        Some(Returnable { since: self.returns_from(ts), room: room.max(0.0) })
    }

    fn level(&self, tokens: &Tokens, now: Micros) -> Level {
        let (ts, available) = self.refilled(tokens, now);
        self.level_of(ts, available, now)
    }

    fn refill(&self) -> Option<&dyn Refill> {
        Some(self)
    }
}
