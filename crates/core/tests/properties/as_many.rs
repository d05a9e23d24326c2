//! Takes of as many tokens as there are, compared with takes of a count: the largest whole one that passes, found by
//! trying.

use proptest::prelude::*;
use ratelimit_core::{AsMany, Decision, Limit, Micros, Shards, decide, decide_as_many};

use crate::sharding::{Ages, divided};
use crate::{ALL, cases, run, sequence};

/// What a take wants, as shares of the capacity and as tokens on top; the least as a share of the most.
fn wanted() -> impl Strategy<Value = (f64, f64, f64)> {
    let share = prop_oneof![3 => 0.0..1.5, 1 => Just(0.0), 1 => Just(1.0)];
    let more = prop_oneof![3 => (0u32..40).prop_map(f64::from), 1 => 0.0..3.0];
    let least = prop_oneof![3 => 0.0..1.0, 2 => Just(0.0), 1 => Just(1.0)];
    (share, more, least)
}

fn as_many(limit: &Limit, (share, more, least): (f64, f64, f64)) -> AsMany {
    let round = |tokens: f64| if limit.whole_counts() { tokens.ceil() } else { tokens };
    let count = round(share * limit.capacity() + more).min(1e15);
    AsMany { count, at_least: round(least * count).min(count) }
}

/// The largest count that passes: all, or else a whole one that is not above it and not below the least; `None`: none.
fn largest(wanted: AsMany, passes: impl Fn(f64) -> bool) -> Option<f64> {
    let AsMany { count, at_least } = wanted;
    if passes(count) {
        return Some(count);
    }
    let (mut most, mut too_many) = (0.0, count.floor() + 1.0);
    while too_many - most > 1.0 {
        let middle = most + ((too_many - most) / 2.0).floor();
        *(if passes(middle) { &mut most } else { &mut too_many }) = middle;
    }
    Some(most).filter(|&most| most >= at_least)
}

/// Compares a decision with the oracle's, which is the same as that of a take of a count.
fn compare(
    wanted: AsMany,
    (decision, taken): (Decision, f64),
    take: impl Fn(f64) -> Decision,
) -> Result<(), TestCaseError> {
    match largest(wanted, |count| take(count).ok) {
        // Neither tokens nor a debt are asked for.
        Some(0.0) => prop_assert_eq!((decision.ok, decision.state, taken), (true, None, 0.0)),
        Some(count) => {
            prop_assert_eq!(taken, count, "{:?}", wanted);
            prop_assert_eq!(decision, take(count));
        }
        None => {
            prop_assert_eq!((decision.ok, taken), (false, 0.0), "{:?}", wanted);
            prop_assert_eq!(decision, take(wanted.fewest()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn it_is_the_take_of_the_largest_count_that_passes(
        sequence in sequence(ALL, true),
        wanted in wanted(),
    ) {
        let limit = sequence.config.limit();
        let wanted = as_many(&limit, wanted);
        for seen in run(&sequence) {
            let (before, now) = (&seen.before, Micros(seen.now));
            let found = decide_as_many(&limit, before, now, wanted);
            if let (false, Some(wait)) = (found.0.ok, found.0.retry_after) {
                let then = decide_as_many(&limit, before, now.plus(wait), wanted);
                prop_assert!(then.0.ok && then.1 >= wanted.at_least, "{:?} after {:?}", then, wait);
            }
            compare(wanted, found, |count| decide(&limit, before, now, count, false))?;
        }
    }

    #[test]
    fn of_shards_it_is_that_of_all_together(divided in divided(Ages::Any), wanted in wanted()) {
        let limit = divided.config.limit();
        let shards = Shards::new(&limit, divided.states.clone());
        let (wanted, now) = (as_many(&limit, wanted), Micros(divided.now));
        let found = shards.decide_as_many(now, wanted);
        compare(wanted, found, |count| shards.decide(now, count, false))?;
    }

    #[test]
    fn with_overage_and_without_a_limit_it_takes_all(count in 0.0..1e6f64, used in 0.0..100.0) {
        let wanted = AsMany { count, at_least: 0.0 };
        for config in [
            r#"{"kind": "unlimited"}"#,
            r#"{"kind": "fixed window", "rate": 10, "period": 1000, "overage": true}"#,
        ] {
            let limit = ratelimit_core::config::parse(config).unwrap();
            let full = limit.initial_state(Micros(0), Micros(0));
            let state = decide(&limit, &full, Micros(0), used, false).state.unwrap_or(full);
            let (decision, taken) = decide_as_many(&limit, &state, Micros(0), wanted);
            prop_assert_eq!((decision.ok, taken), (true, count));
        }
    }
}

#[test]
fn a_fraction_is_taken_only_with_all_the_rest() {
    let config = r#"{"kind": "token bucket", "rate": 7.5, "period": 1000}"#;
    let limit = ratelimit_core::config::parse(config).unwrap();
    let full = limit.initial_state(Micros(0), Micros(0));
    let taken = |count, at_least| {
        let (decision, taken) =
            decide_as_many(&limit, &full, Micros(0), AsMany { count, at_least });
        (decision.ok, taken, decision.retry_after)
    };
    assert_eq!(taken(7.25, 1.0), (true, 7.25, None));
    assert_eq!(taken(7.75, 1.0), (true, 7.0, None));
    assert_eq!(taken(7.75, 6.5), (true, 7.0, None));
    assert_eq!(taken(7.5, 7.5), (true, 7.5, None));
    // Eight never fit.
    assert_eq!(taken(9.0, 7.25), (false, 0.0, None));
    assert_eq!(taken(1e15, 0.0), (true, 7.0, None));
    assert_eq!(taken(0.0, 0.0), (true, 0.0, None));
}
