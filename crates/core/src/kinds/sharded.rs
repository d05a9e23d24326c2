//! One limit divided into shards, each with a state of its own: rate, capacity and debt are divided equally, and the
//! limit has the tokens of all shards together. If their number has changed, the states stay those of the old shards
//! until they are resharded, each with its own refill.
//!
//! Conservative: a full shard loses its refill, so after uneven use the shards together refill no faster, and maybe
//! more slowly, than one state would.

use std::borrow::Cow;

use super::{Decision, Level, Limit, State, Tokens, credit, decide, subtract};
use crate::Micros;

/// A limit and the states of its shards, or its own state if it isn't divided.
///
/// Shards let several calls be made at once, each under the lock of one state. A call that one shard
/// can't satisfy is decided by all of them: [`decide`](Shards::decide) for the total, and
/// [`distribute`](Shards::distribute) to take it from them.
///
/// ```
/// use ratelimit_core::{Micros, Shards, config};
///
/// let limit = config::parse(
///     r#"{"kind": "token bucket", "rate": 10, "period": "1 minute", "shards": 2}"#,
/// )?;
/// let now = Micros(0);
/// let half = limit.shard_limit(2).initial_state(now, now);
/// let mut shards = Shards::new(&limit, vec![half.clone(), half]);
///
/// // Eight tokens are more than one shard has, and less than both.
/// let decision = shards.decide(now, 8.0, false);
/// let after = decision.state.expect("it passes");
/// shards.distribute(&[0, 1], now, &after);
/// assert_eq!(shards.level(now).remaining, 2.0);
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shards<'a> {
    limit: &'a Limit,
    /// The limit of each shard if they are equal.
    shard: Cow<'a, Limit>,
    states: Cow<'a, [State]>,
    /// The limit of each shard if the states are those of another number of shards.
    unequal: Vec<Limit>,
}

impl<'a> Shards<'a> {
    /// Equal shards, one for each state; at least one.
    pub fn new(limit: &'a Limit, states: impl Into<Cow<'a, [State]>>) -> Shards<'a> {
        let states = states.into();
        let shard = limit.shard_limit(states.len() as u32);
        Shards { limit, shard, states, unequal: Vec::new() }
    }

    /// The states of another number of shards than the limit's, each with the limit of its shard. Each refills by that
    /// limit until they are [`resharded`](Shards::resharded). At least one.
    pub fn unequal(limit: &'a Limit, shards: Vec<(Limit, State)>) -> Shards<'a> {
        let (unequal, states): (_, Vec<State>) = shards.into_iter().unzip();
        Shards { unequal, ..Shards::new(limit, states) }
    }

    /// The limit that the shards form together.
    #[inline]
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// Whether the shards are equal, one for each state.
    pub fn are_equal(&self) -> bool {
        self.unequal.is_empty()
    }

    /// The limit of each shard if they are equal.
    pub fn shard_limit(&self) -> &Limit {
        &self.shard
    }

    /// The state of each shard.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The state of each shard, to be replaced by a newer one.
    pub fn states_mut(&mut self) -> &mut [State] {
        self.states.to_mut()
    }

    /// The tokens in a shard, counted from 0, at `now`; negative: debt.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn available(&self, shard: usize, now: Micros) -> f64 {
        self.tokens(shard, now).1
    }

    /// The tokens by which a shard, counted from 0, can change in the direction of `amount` at `now`: those available,
    /// or the room up to its capacity.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn room(&self, shard: usize, now: Micros, amount: f64) -> f64 {
        let available = self.available(shard, now);
        if amount < 0.0 { available } else { self.shard.capacity() - available }
    }

    /// Whether the shards in `among`, counted from 0, have room for a change of the total at `now` to that of `after`;
    /// `None`: for none.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn suffice(
        &self,
        among: impl Iterator<Item = usize>,
        now: Micros,
        after: Option<&State>,
    ) -> bool {
        let amount = after.map_or(0.0, |after| after.value() - self.total(now).value());
        among.map(|shard| self.room(shard, now, amount)).sum::<f64>() >= amount.abs()
    }

    /// The limit of a shard's state.
    fn limit_of(&self, shard: usize) -> &Limit {
        self.unequal.get(shard).unwrap_or(&self.shard)
    }

    /// The tokens in a shard at `now`, and the time from which they count.
    fn tokens(&self, shard: usize, now: Micros) -> (Micros, f64) {
        let limit = self.limit_of(shard);
        let tokens = tokens_of(&limit.current(&self.states[shard], now));
        limit.refill().map_or((tokens.ts, tokens.value), |limit| limit.refilled(&tokens, now))
    }

    /// The instant at which a call at `now` is decided; see [`Limit::present`].
    pub fn present(&self, now: Micros) -> Micros {
        let present = |shard| self.limit_of(shard).present(&self.states[shard], now);
        (0..self.states.len()).map(present).max().unwrap_or(now)
    }

    /// The state of a shard with tokens that count from `ts`, after `before`.
    fn stored(shard: &Limit, value: f64, ts: Micros, before: &Tokens) -> Tokens {
        let others = Tokens { value, ts, added: None };
        shard.refill().map_or(others, |limit| limit.stored(value, ts, before))
    }

    /// The stored state of a limit that is not divided.
    #[inline]
    pub fn undivided(&self) -> Option<&State> {
        match &self.states[..] {
            [state] if self.are_equal() => Some(state),
            _ => None,
        }
    }

    /// The tokens of all shards at `now`, as one state. It counts from the latest time from which any of them counts:
    /// nothing refills earlier than in its shard.
    pub fn total(&self, now: Micros) -> Cow<'_, State> {
        match self.undivided() {
            Some(state) => self.limit.current(state, now),
            None => Cow::Owned(State::Tokens(self.total_tokens(now))),
        }
    }

    /// The total of a divided limit.
    fn total_tokens(&self, now: Micros) -> Tokens {
        let mut total = Tokens { value: 0.0, ts: Micros(i64::MIN), added: None };
        for shard in 0..self.states.len() {
            let (ts, value) = self.tokens(shard, now);
            total.value += value;
            total.ts = total.ts.max(ts);
        }
        total.value = total.value.min(self.limit.capacity());
        self.less_overused(total, self.overused(0..self.states.len(), now))
    }

    /// The tokens that shards have used beyond what their windows add now.
    fn overused(&self, among: impl IntoIterator<Item = usize>, now: Micros) -> f64 {
        let overused = |shard| {
            let windows = self.limit_of(shard).refill().filter(|limit| limit.adds().is_some());
            windows.map_or(0.0, |limit| {
                limit.overused(&tokens_of(&self.states[shard]), self.tokens(shard, now).0)
            })
        };
        among.into_iter().map(overused).sum()
    }

    /// Whether any shard has used more than its window adds now: a credit counts against that first.
    pub fn are_overused(&self, now: Micros) -> bool {
        self.overused(0..self.states.len(), now) > 0.0
    }

    /// The total if some shards have used more than their windows add now. That is known as long as no tokens are left.
    /// It is subtracted from the tokens left in unequal shards; equal ones still give theirs.
    fn less_overused(&self, total: Tokens, overused: f64) -> Tokens {
        let Some(limit) = self.limit.refill() else { return total };
        let Some(adds) = limit.adds() else { return total };
        let total = Tokens { added: Some(adds + overused), ..total };
        let value = if self.are_equal() { total.value } else { limit.value_of(&total) };
        limit.stored(value, total.ts, &total)
    }

    /// The [total](Shards::total) as a state that refills no later than any of the shards: as long as it admits no
    /// call, neither do the shards. They count from different times if the clock stepped back, or if a token bucket has
    /// become a fixed window.
    pub fn upper_bound(&self, now: Micros) -> State {
        if self.undivided().is_some() {
            return self.total(now).into_owned();
        }
        let total = self.total_tokens(now);
        let ts = (0..self.states.len()).map(|shard| self.tokens(shard, now).0).min();
        // States from a user's own INSERT may refill faster than the whole limit. All that is known: they have no more
        // tokens than the limit can have.
        let rate: f64 = self.unequal.iter().map(|limit| limit.policy().0).sum();
        let more = rate > self.limit.policy().0 * (1.0 + 1e-12);
        let known = Tokens { ts: ts.unwrap_or(total.ts), ..total };
        // If the config has changed in the present window, more may roll over than is left now.
        let later = (0..self.states.len()).map(|shard| self.rolls_over_more(shard, now)).sum();
        let known = match later {
            0.0 => known,
            later => Tokens { value: known.value + later, added: None, ..known },
        };
        let unknown = Tokens { value: self.limit.capacity(), added: None, ..known };
        State::Tokens(if more { unknown } else { known })
    }

    /// The number of tokens in a shard at the end of its window, before the next one adds any, minus those at `now`.
    fn rolls_over_more(&self, shard: usize, now: Micros) -> f64 {
        let limit = self.limit_of(shard);
        let tokens = tokens_of(&limit.current(&self.states[shard], now));
        limit.refill().map_or(0.0, |limit| limit.rolls_over_more(&tokens, now))
    }

    /// The states of `shards` equal shards that together have the same tokens at `now`.
    pub fn resharded(&self, shards: u32, now: Micros) -> Vec<State> {
        if self.are_equal() && self.states.len() == shards as usize {
            return self.states.to_vec();
        }
        let Tokens { value, ts, added } = tokens_of(&self.total(now));
        let share = |tokens: f64| tokens / f64::from(shards.max(1));
        let share = Tokens { value: share(value), ts, added: added.map(share) };
        let tokens = Self::stored(&self.limit.shard_limit(shards), share.value, ts, &share);
        vec![State::Tokens(tokens); shards as usize]
    }

    /// The state of a shard, counted from 0, with the tokens that came in by `now`.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn refilled(&self, shard: usize, now: Micros) -> State {
        State::Tokens(self.refilled_tokens(shard, now))
    }

    fn refilled_tokens(&self, shard: usize, now: Micros) -> Tokens {
        let (ts, value) = self.tokens(shard, now);
        Self::stored(self.limit_of(shard), value, ts, &tokens_of(&self.states[shard]))
    }

    /// The limit's level at `now`. It is full when its last shard is.
    pub fn level(&self, now: Micros) -> Level {
        if let Some(state) = self.undivided() {
            return self.limit.level(state, now);
        }
        let level = self.limit.level(&self.total(now), now);
        let reset_at = (0..self.states.len())
            .map(|shard| self.limit_of(shard).level(&self.states[shard], now).reset_at)
            .reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other)));
        Level { reset_at: reset_at.flatten(), ..level }
    }

    /// Decides a call for the shards together, as [`decide`] does; the state is that of the [total](Shards::total). The
    /// wait of a denial is exact for the shards as they are.
    pub fn decide(&self, now: Micros, count: f64, reserve: bool) -> Decision {
        if let Some(state) = self.undivided() {
            return decide(self.limit, state, now, count, reserve);
        }
        let decision = decide(self.limit, &self.total(now), now, count, reserve);
        if decision.ok {
            return decision;
        }
        let passes = |wait| {
            let then = now.plus(wait);
            decide(self.limit, &self.total(then), then, count, reserve).ok
        };
        let bound = decide(self.limit, &self.upper_bound(now), now, count, reserve);
        let least = if bound.ok { Some(Micros(0)) } else { bound.retry_after };
        let retry_after = least.and_then(|least| first_pass(least, passes));
        Decision { retry_after, level: self.level(now), ..decision }
    }

    /// Gives tokens back to the shards together, as [`credit`](super::credit()) does; the state is that of the
    /// [total](Shards::total).
    pub fn credit(&self, now: Micros, count: f64, taken_at: Option<Micros>) -> Option<Decision> {
        if let Some(state) = self.undivided() {
            return credit(self.limit, state, now, count, taken_at);
        }
        let total = self.total(now);
        let overused = self.overused(0..self.states.len(), now);
        let tokens = tokens_of(&total);
        // Tokens left in some shards don't hide the tokens used beyond the windows of others.
        let against = if tokens.value > 0.0 { overused.min(count) } else { 0.0 };
        let refill = self.limit.refill().and_then(|limit| Some((limit, limit.adds()?)));
        let Some((limit, adds)) = refill.filter(|_| against > 0.0) else {
            return credit(self.limit, &total, now, count, taken_at);
        };
        if taken_at.is_some_and(|taken_at| !limit.can_return(taken_at, tokens.ts)) {
            return credit(self.limit, &total, now, count, taken_at);
        }
        let decision = credit(self.limit, &total, now, count - against, taken_at)?;
        let value = decision.state.as_ref().map_or(tokens.value, State::value);
        let added = Some(adds + (overused - against));
        Some(Decision { state: Some(State::Tokens(Tokens { value, added, ..tokens })), ..decision })
    }

    /// Changes the total at `now` to that of `after` by the equal shards in `among`, which may be some or all, as
    /// [`distribute`](Shards::distribute) does.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn change(&mut self, among: &[usize], now: Micros, after: &State) {
        if among.len() == self.states.len() {
            return self.distribute(among, now, after);
        }
        let available: f64 = among.iter().map(|&shard| self.available(shard, now)).sum();
        let value = available + after.value() - self.total(now).value();
        self.distribute(among, now, &State::from_tokens(value, after.ts()));
    }

    /// Changes the equal shards in `among`, counted from 0, so that together they have the tokens of `after`: takes
    /// from the fullest first and gives to the emptiest first; a debt is divided equally, so that it is paid back as
    /// fast as by the whole limit, and before any shard gets more. If `after` comes from a credit and has the tokens
    /// that the window has added, it also reduces the shards' use beyond their windows. Shards that need no change keep
    /// their state.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn distribute(&mut self, among: &[usize], now: Micros, after: &State) {
        let Tokens { value: target, ts, added } = tokens_of(after);
        let had: Vec<f64> = among.iter().map(|&shard| self.available(shard, now)).collect();
        let sum: f64 = had.iter().sum();
        let mut values = had.clone();
        let mut order: Vec<usize> = (0..had.len()).collect();
        order.sort_by(|&one, &other| had[one].total_cmp(&had[other]));
        let in_debt = had.iter().any(|&had| had < 0.0);
        if target < 0.0 || (in_debt && target > sum) {
            values.fill(target / had.len() as f64);
        } else if target < sum {
            let mut need = sum - target;
            for &n in order.iter().rev() {
                let take = need.min(had[n].max(0.0));
                values[n] = subtract(had[n], take);
                need -= take;
            }
        } else {
            let mut more = target - sum;
            for &n in &order {
                let give = more.min((self.shard.capacity() - had[n]).max(0.0));
                values[n] = had[n] + give;
                more -= give;
            }
        }
        let adds = self.limit.refill().and_then(|limit| limit.adds());
        let mut against = match (adds, added) {
            (Some(adds), Some(added)) if target >= sum => {
                self.overused(among.iter().copied(), now) - (added - adds).max(0.0)
            }
            _ => 0.0,
        };
        for ((&shard, value), had) in among.iter().zip(values).zip(had) {
            let mut before = tokens_of(&self.states[shard]);
            let less = self.overused([shard], now).min(against).max(0.0);
            against -= less;
            if value != had || less > 0.0 {
                before.added = before.added.map(|added| added - less);
                let after = Self::stored(&self.shard, value, ts, &before);
                self.states.to_mut()[shard] = State::Tokens(after);
            }
        }
    }
}

/// The tokens of a state. A kind without shards has one state: its value.
fn tokens_of(state: &State) -> Tokens {
    match state {
        State::Tokens(tokens) => *tokens,
        of_others => Tokens { value: of_others.value(), ts: of_others.ts(), added: None },
    }
}

/// Finds the first span from `least` on after which a call passes, by doubling and halving: `passes` is false before it
/// and true ever after. `None`: beyond the last instant.
pub(super) fn first_pass(least: Micros, passes: impl Fn(Micros) -> bool) -> Option<Micros> {
    if passes(least) {
        return Some(least);
    }
    let (mut fails, mut step) = (least, Micros(1));
    let mut wait = least.plus(step);
    while !passes(wait) {
        if wait.0 > i64::MAX / 4 {
            return None;
        }
        fails = wait;
        step = step.plus(step);
        wait = least.plus(step);
    }
    while wait.0 - fails.0 > 1 {
        let middle = Micros(fails.0 + (wait.0 - fails.0) / 2);
        *(if passes(middle) { &mut wait } else { &mut fails }) = middle;
    }
    Some(wait)
}
