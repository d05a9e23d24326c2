//! Idle limits: without the state every call is answered the same, so that it can be deleted.

use proptest::prelude::*;
use ratelimit_core::kinds::{Start, Tokens, Windows};
use ratelimit_core::{Limit, Micros, State, decide};

use crate::{ALL, Config, Kind, Sequence, cases, sequence};

/// The limit, in its other form where a fixed window has one.
fn limit(config: &Config, first_request: bool) -> Limit {
    let mut limit = config.limit();
    if let Limit::FixedWindow(window) = &mut limit
        && first_request
    {
        // Calendar windows have no such form.
        if let Windows::Every { start, .. } = &mut window.windows {
            *start = Start::FirstRequest;
        }
    }
    limit
}

/// The clock at the end of a sequence of calls, and the state that they left.
fn left(limit: &Limit, sequence: &Sequence) -> (i64, State) {
    let mut now = sequence.begin;
    let mut state = limit.initial_state(Micros(now), Micros(sequence.begin));
    for step in &sequence.steps {
        now += step.gap;
        let decision = decide(limit, &state, Micros(now), step.count, step.reserve);
        state = decision.state.unwrap_or(state);
    }
    (now, state)
}

/// Some calls at once, and again after each of some pauses.
#[derive(Clone, Debug)]
struct Later {
    /// In periods, after the one before.
    pauses: Vec<f64>,
    /// In shares of what could ever be taken, and whether with `reserve`.
    counts: Vec<(f64, bool)>,
}

fn later() -> impl Strategy<Value = Later> {
    let pause = prop_oneof![1 => Just(0.0), 3 => 0.0..1.0, 1 => Just(1.0), 1 => 0.0..4.0];
    let count = prop_oneof![2 => 0.0..1.0, 1 => Just(1.0), 1 => Just(0.0), 1 => 1.0..1.5];
    (prop::collection::vec(pause, 3), prop::collection::vec((count, any::<bool>()), 4))
        .prop_map(|(pauses, counts)| Later { pauses, counts })
}

/// Every call from `now` on is answered as it is without the state, and so are the calls after it.
fn as_if_there_were_none(
    config: &Config,
    limit: &Limit,
    state: &State,
    now: i64,
    phase: Micros,
    later: &Later,
) -> Result<(), TestCaseError> {
    let mut at = now;
    for pause in &later.pauses {
        at += (pause * config.period as f64) as i64;
        let now = Micros(at);
        let fresh = limit.initial_state(now, phase);
        prop_assert!(limit.is_idle(state, now, phase), "not for long: {state:?} at {at}");
        prop_assert_eq!(limit.level(state, now), limit.level(&fresh, now));
        for &(share, reserve) in &later.counts {
            // Up to ten years of debt, which a reservation can run up without a bound of its own.
            let ten_years = config.refill(Micros::TEN_YEARS.0);
            let debt = config.max_reserved.unwrap_or(ten_years).min(ten_years);
            let most = config.capacity + if reserve { debt } else { 0.0 };
            let whole = limit.whole_counts();
            let count = if whole { (share * most).ceil() } else { share * most };
            let with = decide(limit, state, now, count, reserve);
            let without = decide(limit, &fresh, now, count, reserve);
            prop_assert_eq!(&with, &without, "{} at {} of {:?}", count, at, state);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn an_idle_state_answers_every_call_as_none_would(
        sequence in sequence(ALL, true),
        first_request in any::<bool>(),
        shift in prop_oneof![2 => Just(0.0), 1 => 0.0..1.0],
        rest in prop_oneof![Just(0.0), 0.0..6.0, Just(40.0)],
        later in later(),
    ) {
        let config = &sequence.config;
        let limit = limit(config, first_request);
        let (now, state) = left(&limit, &sequence);
        // Another phase, as after a change of the definition's start.
        let phase = Micros(sequence.begin + (shift * config.period as f64) as i64);
        for at in [now, now + (rest * config.period as f64) as i64] {
            if limit.is_idle(&state, Micros(at), phase) {
                as_if_there_were_none(config, &limit, &state, at, phase, &later)?;
            }
        }
    }

    #[test]
    fn a_state_is_idle_from_idle_at_on_and_not_before(
        sequence in sequence(ALL, true),
        first_request in any::<bool>(),
        shift in prop_oneof![4 => Just(0.0), 1 => 0.0..1.0],
        ahead in prop_oneof![3 => Just(0), 1 => 0..=3_600_000_000i64],
    ) {
        let config = &sequence.config;
        let limit = limit(config, first_request);
        let (now, state) = left(&limit, &sequence);
        let now = Micros(now - ahead); // a clock that stepped back
        let phase = Micros(sequence.begin + (shift * config.period as f64) as i64);
        let idle = |at| limit.is_idle(&state, at, phase);
        match limit.idle_at(&state, now, phase) {
            Some(at) => {
                prop_assert!(at >= now && idle(at), "not idle at {at:?}: {state:?}");
                // The last bits of a span, and of tokens in it.
                let refill = config.capacity.max(state.value().abs()) / config.rate * config.period as f64;
                let before = at.minus(Micros(1 + (at.minus(state.ts()).0.max(refill as i64) >> 48)));
                prop_assert!(before < now || !idle(before), "idle before {at:?}: {state:?}");
            }
            None => {
                let later = now.plus(Micros(config.period.saturating_mul(1_000)));
                prop_assert!(config.kind == Kind::FixedWindow && shift != 0.0 && !idle(later), "{state:?}");
            }
        }
    }

    #[test]
    fn what_is_full_and_stays_so_is_idle_in_the_end(
        sequence in sequence(ALL, true),
        first_request in any::<bool>(),
        later in later(),
    ) {
        let config = &sequence.config;
        let limit = limit(config, first_request);
        let (now, state) = left(&limit, &sequence);
        let period = config.period as f64;
        let windows = ((config.capacity - state.value()) / config.rate).ceil();
        let full = match config.kind {
            Kind::TokenBucket => (config.capacity - state.value()) / config.rate * period,
            // A month has 31 days at most, and a config changed over a row makes a window longer.
            Kind::Calendar => (windows + 2.0) * 1.2 * period,
            Kind::FixedWindow => (windows + 1.0) * period,
            Kind::SlidingWindow => 2.0 * period,
            Kind::SlidingLog => period,
        };
        // The last bits of a span, and of what comes in meanwhile.
        let at = state.ts().0.max(now) + (full * (1.0 + 1e-12)) as i64 + 2;
        let phase = Micros(sequence.begin);
        prop_assert!(limit.is_idle(&state, Micros(at), phase), "{state:?} at {at}");
        as_if_there_were_none(config, &limit, &state, at, phase, &later)?;
    }

    #[test]
    fn what_is_not_full_or_ahead_of_the_clock_or_in_another_phase_is_not_idle(
        sequence in sequence(ALL, true),
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        let (now, state) = left(&limit, &sequence);
        let phase = Micros(sequence.begin);
        let idle = |state: &State, at: i64, phase| limit.is_idle(state, Micros(at), phase);
        if limit.level(&state, Micros(now)).remaining < config.capacity {
            prop_assert!(!idle(&state, now, phase), "{state:?} at {now}");
        }
        let used = decide(&limit, &state, Micros(now), config.capacity.min(1.0), false).state;
        if let Some(used) = used {
            prop_assert!(!idle(&used, now, phase), "{used:?} at {now}");
        }
        // Before its own time: a sliding log that is empty has none.
        if config.kind != Kind::SlidingLog || state.value() > 0.0 {
            let before = state.ts().0 - 1;
            prop_assert!(!idle(&state, before, phase), "{state:?} at {before}");
        }
        if config.kind == Kind::FixedWindow && config.start.is_none() {
            let State::Tokens(tokens) = state else { unreachable!() };
            let full = State::Tokens(Tokens { value: config.capacity, ..tokens });
            prop_assert!(idle(&full, now, phase));
            prop_assert!(!idle(&full, now, Micros(phase.0 + 1)));
        }
    }
}
