//! Holds, compared with an oracle in whole tokens that looks at every second: when a call looks changes no answer.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ratelimit_core::hold::{Expiry, Hold, Took, retry_after};
use ratelimit_core::{Limit, Micros, State, config, credit, decide};

use crate::cases;

const SECOND: i64 = 1_000_000;

/// A limit of whole tokens: a bucket by the second, or windows of some seconds.
#[derive(Clone, Copy, Debug)]
struct Plan {
    window: Option<i64>,
    rate: i64,
    capacity: i64,
}

impl Plan {
    fn limit(&self) -> Limit {
        let Plan { rate, capacity, .. } = self;
        let (kind, period, start) = match self.window {
            Some(seconds) => ("fixed window", seconds * 1_000, r#", "start": 0"#),
            None => ("token bucket", 1_000, ""),
        };
        config::parse(&format!(
            r#"{{"kind": "{kind}", "rate": {rate}, "period": {period}, "capacity": {capacity}{start}}}"#
        ))
        .unwrap()
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Take { count: i64 },
    Hold { id: u8, count: i64, ttl: i64, charge: bool },
    Settle { id: u8, used: Option<i64> },
    Credit { count: i64 },
    Look,
}

/// What a call answers: whether it passes, and the tokens left.
type Answer = (bool, i64);

/// The limit as a caller of this crate keeps it.
struct Book {
    limit: Limit,
    state: State,
    holds: BTreeMap<u8, Hold>,
}

impl Book {
    fn new(plan: &Plan) -> Book {
        let limit = plan.limit();
        let state = limit.initial_state(Micros(0), Micros(0));
        Book { limit, state, holds: BTreeMap::new() }
    }

    /// The holds that give something back, in the order of their expiry.
    fn returning(&self) -> Vec<(u8, Hold)> {
        let mut holds: Vec<(u8, Hold)> = self
            .holds
            .iter()
            .map(|(&id, &hold)| (id, hold))
            .filter(|(_, hold)| hold.returns())
            .collect();
        holds.sort_by_key(|&(id, hold)| (hold.expires_at, id));
        holds
    }

    fn expire(&mut self, now: Micros) {
        for (id, hold) in self.returning() {
            if hold.expires_at <= now {
                let (hold, state) = hold.expired(&self.limit, &self.state);
                self.holds.insert(id, hold);
                self.state = state.unwrap_or_else(|| self.state.clone());
            }
        }
    }

    fn take(&mut self, now: Micros, count: f64) -> bool {
        let decision = decide(&self.limit, &self.state, now, count, false);
        self.state = decision.state.unwrap_or_else(|| self.state.clone());
        decision.ok
    }

    fn call(&mut self, second: i64, call: Call) -> Answer {
        let now = Micros(second * SECOND);
        self.expire(now);
        let ok = match call {
            Call::Look => true,
            Call::Take { count } => self.take(now, count as f64),
            Call::Credit { count } => {
                let decision = credit(&self.limit, &self.state, now, count as f64, None).unwrap();
                self.state = decision.state.unwrap_or_else(|| self.state.clone());
                true
            }
            Call::Hold { id, count, ttl, charge } => {
                let before = self.holds.get(&id).copied();
                let missing = (count as f64 - before.map_or(0.0, |hold| hold.count)).max(0.0);
                let passes = before.is_some() && missing == 0.0 || self.take(now, missing);
                if passes {
                    let until = now.plus(Micros(ttl * SECOND));
                    let (limit, state) = (&self.limit, &self.state);
                    let hold = Hold::of(
                        before.as_ref(),
                        limit,
                        state,
                        now,
                        Took::at_once(missing),
                        until,
                        charge,
                    );
                    self.holds.insert(id, hold);
                }
                passes
            }
            Call::Settle { id, used } => match self.holds.remove(&id) {
                None => false,
                Some(hold) => {
                    let used = used.map(|used| used as f64);
                    let decision = hold.settle(&self.limit, &self.state, now, used).unwrap();
                    self.state = decision.state.unwrap_or_else(|| self.state.clone());
                    true
                }
            },
        };
        (ok, self.limit.level(&self.state, now).remaining as i64)
    }
}

/// What the oracle knows of a hold, in whole tokens.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Tokens of the window that began then, or those of a bucket.
    fresh: i64,
    old: i64,
    back: i64,
    window: i64,
    expires: i64,
    charge: bool,
}

/// The oracle: it looks at every second.
struct Oracle {
    plan: Plan,
    tokens: i64,
    second: i64,
    holds: BTreeMap<u8, Known>,
}

impl Oracle {
    fn new(plan: Plan) -> Oracle {
        Oracle { plan, tokens: plan.capacity, second: 0, holds: BTreeMap::new() }
    }

    fn window(&self) -> i64 {
        self.plan.window.map_or(0, |window| self.second / window)
    }

    /// Gives back to the limit; returns how many tokens found room.
    fn give(&mut self, count: i64) -> i64 {
        let given = count.min(self.plan.capacity - self.tokens).max(0);
        self.tokens += given;
        given
    }

    fn advance(&mut self, to: i64) {
        while self.second < to {
            self.second += 1;
            let refills = self.plan.window.is_none_or(|window| self.second % window == 0);
            if refills {
                self.tokens = (self.tokens + self.plan.rate).min(self.plan.capacity);
            }
            let (second, window) = (self.second, self.window());
            let ids: Vec<u8> = self.holds.keys().copied().collect();
            for id in ids {
                let hold = self.holds[&id];
                if hold.expires == second && !hold.charge && hold.fresh > 0 {
                    let returned = if hold.window == window { self.give(hold.fresh) } else { 0 };
                    let kept = hold.fresh - returned;
                    let old = hold.old + kept;
                    let after = Known { fresh: 0, old, back: hold.back + returned, ..hold };
                    self.holds.insert(id, after);
                }
            }
        }
    }

    fn call(&mut self, second: i64, call: Call) -> Answer {
        self.advance(second);
        let window = self.window();
        let ok = match call {
            Call::Look => true,
            Call::Take { count } => self.take(count),
            Call::Credit { count } => {
                self.give(count);
                true
            }
            Call::Hold { id, count, ttl, charge } => {
                let before = self.holds.get(&id).copied();
                let had = before.map_or(0, |hold| hold.fresh + hold.old);
                let missing = (count - had).max(0);
                let passes = before.is_some() && missing == 0 || self.take(missing);
                if passes {
                    let fresh = Known { fresh: 0, old: 0, back: 0, window, expires: 0, charge };
                    let mut hold = before.unwrap_or(fresh);
                    hold.back = 0;
                    hold.expires = hold.expires.max(second + ttl);
                    if missing > 0 && hold.window != window {
                        (hold.old, hold.fresh, hold.window) = (had, 0, window);
                    }
                    hold.fresh += missing;
                    self.holds.insert(id, hold);
                }
                passes
            }
            Call::Settle { id, used } => match self.holds.remove(&id) {
                None => false,
                Some(hold) => {
                    let has = hold.fresh + hold.old;
                    let used = used.unwrap_or(has + hold.back);
                    if used > has {
                        self.tokens -= used - has;
                    } else if hold.window == window {
                        self.give((has - used).min(hold.fresh));
                    }
                    true
                }
            },
        };
        (ok, self.tokens)
    }

    fn take(&mut self, count: i64) -> bool {
        let passes = count <= self.tokens;
        if passes {
            self.tokens -= count;
        }
        passes
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let window = prop_oneof![1 => Just(None), 1 => (2i64..20).prop_map(Some)];
    (window, 1i64..8, 1i64..40).prop_map(|(window, rate, capacity)| Plan { window, rate, capacity })
}

fn call() -> impl Strategy<Value = Call> {
    let count = || prop_oneof![6 => 0i64..12, 1 => 0i64..40];
    let used = prop_oneof![1 => Just(None), 4 => (0i64..15).prop_map(Some)];
    prop_oneof![
        3 => count().prop_map(|count| Call::Take { count }),
        4 => (0u8..4, count(), 1i64..25, prop::bool::weighted(0.2))
            .prop_map(|(id, count, ttl, charge)| Call::Hold { id, count, ttl, charge }),
        3 => (0u8..4, used).prop_map(|(id, used)| Call::Settle { id, used }),
        1 => (0i64..6).prop_map(|count| Call::Credit { count }),
    ]
}

fn calls() -> impl Strategy<Value = Vec<(i64, Call)>> {
    prop::collection::vec(
        (prop_oneof![2 => Just(0i64), 3 => 0i64..4, 1 => 0i64..30], call()),
        1..60,
    )
    .prop_map(|calls| {
        let mut now = 0;
        let at = |(gap, call)| {
            now += gap;
            (now, call)
        };
        calls.into_iter().map(at).collect()
    })
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn answers_are_those_of_an_oracle_that_looks_at_every_second(
        plan in plan(),
        calls in calls(),
    ) {
        let (mut book, mut oracle) = (Book::new(&plan), Oracle::new(plan));
        for (at, call) in calls {
            prop_assert_eq!(book.call(at, call), oracle.call(at, call), "{:?} at {}", call, at);
        }
    }

    #[test]
    fn who_looks_when_changes_no_answer(
        plan in plan(),
        calls in calls(),
        looks in prop::collection::vec(0i64..400, 0..30),
    ) {
        let (mut one, mut other) = (Book::new(&plan), Book::new(&plan));
        let mut last = 0;
        for (at, call) in calls {
            let mut looks: Vec<i64> =
                looks.iter().copied().filter(|look| (last..=at).contains(look)).collect();
            looks.sort();
            for look in looks {
                other.call(look, Call::Look);
            }
            prop_assert_eq!(one.call(at, call), other.call(at, call), "{:?} at {}", call, at);
            last = at;
        }
        let end = last + 1_000;
        prop_assert_eq!(one.call(end, Call::Look), other.call(end, Call::Look));
    }

    #[test]
    fn when_all_have_ended_exactly_what_was_used_is_gone(
        capacity in 1i64..200,
        calls in calls(),
    ) {
        // One window, of which nothing comes in before its end.
        let plan = Plan { window: Some(100_000), rate: capacity, capacity };
        let mut book = Book::new(&plan);
        let (mut used_up, mut may_owe) = (0.0, false);
        let is_no_credit = |(_, call): &(i64, Call)| !matches!(call, Call::Credit { .. });
        for (at, call) in calls.into_iter().filter(is_no_credit) {
            book.expire(Micros(at * SECOND));
            let held = match call {
                Call::Settle { id, .. } => book.holds.get(&id).copied(),
                _ => None,
            };
            let (ok, left) = book.call(at, call);
            used_up += match (call, ok, held) {
                (Call::Take { count }, true, _) => count as f64,
                (Call::Settle { used, .. }, true, Some(held)) => {
                    let used = used.map_or(held.count + held.returned, |used| used as f64);
                    may_owe |= used > held.count;
                    // What had come back and was held again is asked for no more.
                    used.max(held.spent)
                }
                _ => 0.0,
            };
            let held: f64 = book.holds.values().map(|hold| hold.count).sum();
            prop_assert_eq!(capacity as f64 - used_up - held, left as f64, "{:?}", call);
            prop_assert!(left >= 0 || may_owe, "{} tokens are left", left);
        }
    }

    #[test]
    fn a_denied_call_passes_after_its_wait_and_not_before(
        plan in plan(),
        calls in calls(),
        count in 1i64..40,
    ) {
        let mut book = Book::new(&plan);
        for (at, call) in calls {
            book.call(at, call);
            let (now, count, limit) = (Micros(at * SECOND), count as f64, &book.limit);
            let denied = decide(limit, &book.state, now, count, false);
            if denied.ok || denied.retry_after.is_none() {
                continue;
            }
            let holds = book.returning();
            let next: Vec<Expiry> = holds.iter().map(|&(_, hold)| (limit, hold)).collect();
            let decide_at = |state: &State, at: Micros| {
                let decision = decide(limit, state, at, count, false);
                (decision.ok, decision.retry_after)
            };
            let wait = retry_after(&book.state, now, &next, denied.retry_after, decide_at).unwrap();
            let passes = |wait: i64| {
                let mut later =
                    Book { limit: limit.clone(), state: book.state.clone(), holds: book.holds.clone() };
                let then = now.plus(Micros(wait));
                later.expire(then);
                later.take(then, count)
            };
            prop_assert!(passes(wait.0), "after {:?}", wait);
            // Nothing comes between two whole seconds but refill.
            prop_assert!(!passes(wait.0 - 10), "10 us before {:?}", wait);
            for second in 0..wait.0 / SECOND {
                prop_assert!(!passes(second * SECOND), "after {} s, not {:?}", second, wait);
            }
        }
    }
}
