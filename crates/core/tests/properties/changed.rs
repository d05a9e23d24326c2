//! What of a fixed window was used stays used while its config changes: no sequence of plans admits more in a window
//! than the largest of them, and none makes a debt.

use proptest::prelude::*;
use ratelimit_core::kinds::Tokens;
use ratelimit_core::{Limit, Micros, Shards, State, config, credit, decide, state};

use crate::sharding::take;
use crate::{cases, tokens_at};

const HOUR: i64 = 3_600_000_000;

/// A fixed window of an hour.
fn window(rate: u32, capacity: u32, shards: u32, overage: bool) -> Limit {
    let json = serde_json::json!({
        "kind": "fixed window", "rate": rate, "period": "1 hour", "start": 0, "capacity": capacity, "shards": shards,
        "overage": overage,
    });
    config::parse(&json.to_string()).unwrap()
}

/// A plan, by its tokens an hour, and what is asked of it.
fn steps() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let plan = prop_oneof![Just(10u32), Just(100), Just(1000), 1..2000u32];
    prop::collection::vec((plan, 0..1200u32), 1..40)
}

/// Checks a level against what was used of it.
fn holds(remaining: f64, plan: u32, used: f64) -> Result<(), TestCaseError> {
    let left = (f64::from(plan) - used).max(0.0);
    prop_assert!((remaining - left).abs() < 1e-6, "{remaining}, not {left}: {used} of {plan}");
    Ok(())
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn what_was_used_stays_used(steps in steps()) {
        let (mut state, mut used, now) = (None::<State>, 0.0, Micros(HOUR / 2));
        for (plan, count) in steps {
            let limit = window(plan, plan, 1, false);
            let before = state.clone().unwrap_or_else(|| limit.initial_state(now, now));
            prop_assert!(limit.accepts(before.shape()));
            holds(limit.level(&before, now).remaining, plan, used)?;
            let decision = decide(&limit, &before, now, count.into(), false);
            prop_assert_eq!(decision.ok, f64::from(count) <= (f64::from(plan) - used).max(0.0));
            if let Some(after) = decision.state {
                used += f64::from(count);
                holds(decision.level.remaining, plan, used)?;
                state = Some(after);
            }
        }
        // The next window is a whole one of whatever plan it is.
        if let Some(state) = state {
            let next = window(10, 10, 1, false).level(&state, Micros(HOUR));
            prop_assert_eq!(next.remaining, 10.0);
        }
    }

    #[test]
    fn shards_together_keep_what_was_used(steps in steps(), shards in 2..5u32, free in any::<u64>()) {
        let (now, mut used) = (Micros(HOUR / 2), 0.0);
        let mut states: Option<Vec<State>> = None;
        for (plan, count) in steps {
            let limit = window(plan, plan, shards, false);
            let fresh = || vec![limit.shard_limit(shards).initial_state(now, now); shards as usize];
            let mut all = Shards::new(&limit, states.clone().unwrap_or_else(fresh));
            // A shard that has used up its share of a smaller plan has no debt, if others have tokens left.
            prop_assert!(all.level(now).remaining >= (f64::from(plan) - used).max(0.0) - 1e-6);
            if take(&mut all, free, now, count.into(), false).is_some() {
                used += f64::from(count);
                states = Some(all.states().to_vec());
            }
            prop_assert!(used <= 2000.0 + 1e-6);
        }
    }

    #[test]
    fn what_was_used_stays_used_by_another_number_of_shards(
        steps in steps(),
        numbers in prop::collection::vec(1..5u32, 40),
        free in any::<u64>(),
    ) {
        let (now, mut used, mut largest) = (Micros(HOUR / 2), 0.0, 0);
        let mut states: Option<Vec<State>> = None;
        for ((plan, count), shards) in steps.into_iter().zip(numbers) {
            largest = largest.max(plan);
            let limit = window(plan, plan, shards, false);
            let fresh = || vec![limit.shard_limit(shards).initial_state(now, now); shards as usize];
            let found = states.take().unwrap_or_else(fresh);
            let old = limit.shard_limit(found.len() as u32);
            let unequal = || found.iter().map(|state| ((*old).clone(), state.clone())).collect();
            let mut all = match found.len() == shards as usize {
                true => Shards::new(&limit, found),
                false => {
                    let before = Shards::unequal(&limit, unequal());
                    holds(before.level(now).remaining, plan, used)?;
                    let all = Shards::new(&limit, before.resharded(shards, now));
                    holds(all.level(now).remaining, plan, used)?;
                    all
                }
            };
            if take(&mut all, free, now, count.into(), false).is_some() {
                used += f64::from(count);
            }
            states = Some(all.states().to_vec());
            prop_assert!(used <= f64::from(largest) + 1e-6, "{used} of {largest}");
        }
    }

    #[test]
    fn an_overage_is_what_was_used_beyond_the_plan(steps in steps()) {
        let (mut state, now) = (None::<State>, Micros(HOUR / 2));
        let mut used = 0.0;
        for (n, (plan, count)) in steps.into_iter().enumerate() {
            // Larger ones only: what a smaller one leaves is no debt.
            let limit = window(plan + 2000 * n as u32, plan + 2000 * n as u32, 1, true);
            let before = state.clone().unwrap_or_else(|| limit.initial_state(now, now));
            used += f64::from(count);
            let decision = decide(&limit, &before, now, count.into(), false);
            prop_assert_eq!(decision.level.remaining, limit.capacity() - used);
            state = decision.state.or(state);
        }
    }

    #[test]
    fn a_smaller_plan_makes_no_debt(left in -50i32..=100, plan in 1..100u32, back in 0..60u32) {
        let large = window(100, 100, 1, true);
        let now = Micros(HOUR / 2);
        let before = large.initial_state(now, now);
        let state = decide(&large, &before, now, f64::from(100 - left), false).state.unwrap_or(before);
        let small = window(plan, plan, 1, false);
        let owed = f64::from(left).min(0.0);
        let level = small.level(&state, now).remaining;
        prop_assert_eq!(level, (f64::from(left) + f64::from(plan) - 100.0).max(owed));
        // Tokens given back pay the debt, then the use beyond the plan; the rest is left, also at the next call.
        let after = credit(&small, &state, now, back.into(), None).unwrap();
        let used = f64::from(100 - left.max(0));
        let rest = (f64::from(back) + owed).max(0.0);
        let there = (f64::from(plan) - (used - rest)).clamp(0.0, plan.into());
        let debt = owed + f64::from(back);
        prop_assert_eq!(after.level.remaining, if debt < 0.0 { debt } else { there });
        let state = after.state.unwrap_or(state);
        prop_assert_eq!(small.level(&state, now), after.level);
        // The larger plan again: what was taken less what was given back, of which no more than the plan had room.
        let room = f64::from(plan) - level;
        let beyond = (used - f64::from(plan)).max(0.0);
        let returned = f64::from(back).min(room + beyond);
        prop_assert_eq!(large.level(&state, now).remaining, f64::from(left) + returned);
    }

    #[test]
    fn shards_give_back_no_more_than_was_taken(
        spent in 0..=100u32,
        plan in 1..100u32,
        credits in prop::collection::vec(0..60u32, 1..4),
        shards in 2..5u32,
        free in any::<u64>(),
    ) {
        let now = Micros(HOUR / 2);
        let (large, small) = (window(100, 100, shards, false), window(plan, plan, shards, false));
        let fresh = vec![large.shard_limit(shards).initial_state(now, now); shards as usize];
        let mut all = Shards::new(&large, fresh);
        take(&mut all, free, now, spent.into(), false).unwrap();
        let mut all = Shards::new(&small, all.states().to_vec());
        let number: Vec<usize> = (0..shards as usize).collect();
        let mut back = 0.0;
        for count in credits {
            let decision = all.credit(now, count.into(), None).unwrap();
            if let Some(after) = &decision.state {
                all.distribute(&number, now, after);
            }
            prop_assert!((all.level(now).remaining - decision.level.remaining).abs() < 1e-6);
            back += f64::from(count);
        }
        let left = Shards::new(&large, all.states().to_vec()).level(now).remaining;
        prop_assert!(left <= f64::from(100 - spent) + back + 1e-6, "{left} of {spent} less {back}");
        // Where all of them use more than their share of the smaller plan, nothing is lost either.
        if f64::from(spent) - back >= f64::from(plan) && spent == 100 {
            prop_assert!((left - back).abs() < 1e-6, "{left} of {back}");
        }
    }

    /// A config that has changed counts from the window in which a call comes: what ended before keeps what it had.
    #[test]
    fn a_window_that_has_ended_stays_as_it_was(
        rates in (1..50u32, 1..50u32),
        spent in 0..=100u32,
        windows in 1..4u32,
        count in 0..=100u32,
    ) {
        let (old, new) = (window(rates.0, 100, 1, false), window(rates.1, 100, 1, false));
        let now = Micros(HOUR / 2);
        let state = decide(&old, &old.initial_state(now, now), now, spent.into(), false).state;
        let Some(state) = state else { return Ok(()) };
        let at = |windows: u32| Micros(HOUR / 2 + i64::from(windows) * HOUR);
        let there = (100 - spent + windows * rates.1).min(100);
        let level = new.level(&state, at(windows));
        prop_assert_eq!(level.remaining, f64::from(there));
        // A call waits for the first window that has enough, whenever it is asked.
        for asked in 0..windows {
            let decision = decide(&new, &state, at(asked), count.into(), false);
            if let Some(wait) = decision.retry_after {
                let then = at(asked).plus(wait);
                prop_assert!(decide(&new, &state, then, count.into(), false).ok);
                prop_assert!(!decide(&new, &state, then.minus(Micros(1)), count.into(), false).ok);
            } else {
                prop_assert!(decision.ok);
            }
        }
        let full = new.idle_at(&state, at(0), Micros(0)).unwrap();
        prop_assert!(new.level(&state, full).remaining == 100.0);
        let before = full.minus(Micros(1));
        if before >= at(0) {
            prop_assert!(new.level(&state, before).remaining < 100.0 || !new.is_idle(&state, before, Micros(0)));
        }
        // Shards wait as exactly.
        let (old, new) = (window(rates.0, 100, 2, false), window(rates.1, 100, 2, false));
        let mut parts = Shards::new(&old, vec![old.shard_limit(2).initial_state(now, now); 2]);
        take(&mut parts, u64::MAX, now, spent.into(), false);
        let parts = Shards::new(&new, parts.states().to_vec());
        let decision = parts.decide(at(0), count.into(), false);
        if let Some(wait) = decision.retry_after {
            let then = at(0).plus(wait);
            prop_assert!(parts.decide(then, count.into(), false).ok);
            prop_assert!(!parts.decide(then.minus(Micros(1)), count.into(), false).ok);
        }
    }
}

/// The tokens that a state's window added.
fn added(state: &State) -> Option<f64> {
    match state {
        State::Tokens(tokens) => tokens.added,
        of_others => panic!("{of_others:?}"),
    }
}

/// What rolled over stays too, and a capacity alone gives nothing at once: it is about windows to come.
#[test]
fn what_rolled_over_stays() {
    let now = Micros(HOUR / 2);
    let small = window(100, 300, 1, false);
    let spent =
        |count| decide(&small, &small.initial_state(now, now), now, count, false).state.unwrap();
    let state = spent(280.0); // 20 left of 300
    assert_eq!(window(1000, 3000, 1, false).level(&state, now).remaining, 920.0);
    assert_eq!(window(100, 600, 1, false).level(&state, now).remaining, 20.0);
    assert_eq!(window(100, 600, 1, false).level(&state, Micros(HOUR)).remaining, 120.0);
    // The window that has ended stays as it was.
    assert_eq!(window(1000, 3000, 1, false).level(&state, Micros(HOUR)).remaining, 1020.0);
    // 10 of this window, and the 40 of the raise.
    let small = window(10, 100, 1, false);
    let state = decide(&small, &small.initial_state(now, now), now, 100.0, false).state.unwrap();
    assert_eq!(window(50, 100, 1, false).level(&state, Micros(HOUR)).remaining, 50.0);
    assert_eq!(window(10, 30, 1, false).level(&state, now).remaining, 0.0);
    assert_eq!(window(10, 30, 1, false).level(&spent(100.0), now).remaining, 30.0);
    // Never more than the capacity; also where that is below the rate.
    assert_eq!(window(1000, 500, 1, false).level(&spent(100.0), now).remaining, 500.0);
    assert_eq!(window(1000, 1, 1, false).level(&spent(300.0), now).remaining, 0.0);
}

/// A state without the tokens that its window added, such as the Convex component's, keeps its tokens.
#[test]
fn a_state_of_two_numbers_keeps_its_tokens() {
    let state = tokens_at(4.0, 0);
    let now = Micros(HOUR / 2);
    assert_eq!(window(1000, 1000, 1, false).level(&state, now).remaining, 4.0);
    assert_eq!(window(3, 3, 1, false).level(&state, now).remaining, 3.0);
    // The next take writes it.
    let state = decide(&window(10, 10, 1, false), &state, now, 1.0, false).state.unwrap();
    assert_eq!(added(&state), Some(10.0));
    assert_eq!(window(1000, 1000, 1, false).level(&state, now).remaining, 993.0);
    // A bucket takes the tokens alone.
    let bucket =
        config::parse(r#"{"kind": "token bucket", "rate": 1, "period": "1 day", "capacity": 50}"#)
            .unwrap();
    assert!(bucket.accepts(state.shape()));
    assert_eq!(bucket.level(&state, Micros(0)).remaining, 3.0);
    // With a capacity of 0, too, it is not read as a sliding window's.
    let none = decide(&window(1, 0, 1, true), &state, now, 1.0, false).state.unwrap();
    assert_eq!(added(&none).map(f64::to_bits), Some(7f64.to_bits()));
    let sliding =
        config::parse(r#"{"kind": "sliding window", "rate": 1, "period": "1 hour"}"#).unwrap();
    for state in [state, none] {
        let shape = state.shape();
        assert!(!sliding.accepts(shape) && bucket.accepts(shape), "{state:?}");
        // What it doesn't accept counts as none.
        let fresh = sliding.initial_state(now, now);
        assert_eq!(sliding.level(&state, now), sliding.level(&fresh, now));
        let decided = |state| decide(&sliding, state, now, 1.0, false);
        assert_eq!(decided(&state), decided(&fresh));
    }
}

/// A plan of no tokens is full, but a row of it that has what was used is not idle until its window has
/// turned: without it a plan that is raised again would be full.
#[test]
fn a_plan_of_nothing_keeps_what_was_used() {
    let now = Micros(HOUR / 2);
    let (plan, none) = (window(100, 100, 1, false), window(100, 0, 1, false));
    let spent = |count| decide(&plan, &plan.initial_state(now, now), now, count, false).state;
    let state = spent(70.0).unwrap();
    assert!(!none.is_idle(&state, now, Micros(0)));
    assert_eq!(none.idle_at(&state, now, Micros(0)), Some(Micros(HOUR)));
    assert_eq!(plan.level(&state, now).remaining, 30.0);
    assert_eq!(none.level(&state, now).remaining, 0.0);
    // A plan of no tokens alone has nothing used.
    assert!(none.is_idle(&none.initial_state(now, now), now, Micros(0)));
}

/// States that a user has written, and that refill faster than the whole, have an unknown number of tokens.
#[test]
fn what_was_overused_makes_no_upper_bound_of_states_that_are_too_fast() {
    let (limit, now) = (window(100, 100, 1, false), Micros(HOUR / 2));
    let spent = State::Tokens(Tokens { value: 0.0, ts: Micros(0), added: Some(500.0) });
    let shards =
        Shards::unequal(&limit, vec![(limit.clone(), spent.clone()), (limit.clone(), spent)]);
    assert_eq!(limit.level(&shards.total(now), now).remaining, 0.0);
    assert_eq!(limit.level(&shards.upper_bound(now), now).remaining, 100.0);
}

proptest! {
    #![proptest_config(cases(512))]

    /// Also without `added`, which is reported only where it matters.
    #[test]
    fn a_reported_state_decides_as_the_stored_one(
        (before, after) in ((1..40u32, 0..40u32), (1..40u32, 0..40u32)),
        (used, ago, overage) in (0..60u32, 0..100i64, any::<bool>()),
        later in prop::collection::vec((0..400i64, 0..80u32, any::<bool>()), 1..6),
    ) {
        let [before, after] = [before, after].map(|(rate, capacity)| window(rate, capacity, 1, overage));
        let state = before.initial_state(Micros(0), Micros(0));
        let taken = decide(&before, &state, Micros(0), used.into(), true).state.unwrap_or(state);
        let now = HOUR / 60 * ago;
        let reported = state::reported(&after.reported(taken.clone(), Micros(now))).to_string();
        let reported = state::parse(&reported, &after).unwrap();
        for (later, count, reserve) in later {
            let at = Micros(now + HOUR / 60 * later);
            let [one, other] = [&taken, &reported].map(|state| decide(&after, state, at, count.into(), reserve));
            prop_assert_eq!(
                (one.ok, one.retry_after, one.level), (other.ok, other.retry_after, other.level),
                "{:?} as {:?}", &taken, &reported
            );
        }
    }
}
