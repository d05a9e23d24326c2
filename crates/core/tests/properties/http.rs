//! What the header RateLimit promises: where it has `t` and no token is left, a call of 1 passes after `t` seconds if
//! no other call takes, and not a second earlier.

use proptest::prelude::*;
use ratelimit_core::headers::{CallOutcome, Style, headers};
use ratelimit_core::kinds::{Concurrency, Lease};
use ratelimit_core::{Decision, Limit, Micros, State, config, decide};

use crate::{ALL, Step, cases, run, sequence, tolerated};

/// `r` and `t` of RateLimit after a decision at `now`.
fn r_and_t(limit: &Limit, decision: &Decision, now: i64) -> (i64, Option<i64>) {
    let outcome = CallOutcome {
        ok: decision.ok,
        retry_after: decision.retry_after,
        remaining: decision.level.remaining,
        capacity: limit.capacity(),
        reset_at: decision.level.reset_at,
    };
    let value = headers(Style::Ietf, b"", limit, &outcome, Micros(now));
    let field = value["RateLimit"].as_str().unwrap().to_owned();
    let parameter = |name: &str| {
        let part = field.split(';').find_map(|part| part.strip_prefix(name));
        part.map(|number| number.parse().unwrap())
    };
    (parameter("r=").unwrap(), parameter("t="))
}

const MILLISECOND: i64 = 1_000;
const SECOND: i64 = 1_000_000;

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn where_t_is_sent_a_call_of_one_passes_then_and_no_second_earlier(sequence in sequence(ALL, true)) {
        let config = &sequence.config;
        let limit = config.limit();
        for call in run(&sequence) {
            let (r, t) = r_and_t(&limit, &call.decision, call.now);
            let sliding = matches!(limit, Limit::SlidingWindow(_) | Limit::SlidingLog(_));
            prop_assert!(!sliding || !call.decision.ok || t.is_none(), "an rl_result doesn't have it");
            let Some(t) = t.filter(|&t| r == 0 && t < 1_000_000_000_000) else { continue };
            // Of another call that is denied, it is until the same one passes.
            let Step { count, reserve, .. } = call.step;
            let other = !call.decision.ok && (count != 1.0 || reserve);
            // Of very large limits the tolerance is a token.
            if config.capacity <= 1.0 || config.tolerance() > 0.1 || other {
                continue;
            }
            let state = call.decision.state.as_ref().unwrap_or(&call.before);
            let passes = |at: i64| decide(&limit, state, Micros(at), 1.0, false).ok;
            let at = call.now + t * SECOND;
            prop_assert!(passes(at + MILLISECOND), "denied {t} s after {:?}", call.decision);
            let slack = MILLISECOND + tolerated(config, state, at).unwrap_or(i64::MAX as f64 / 4.0) as i64;
            let early = at - SECOND - slack;
            if early >= call.now {
                prop_assert!(!passes(early), "passed {slack} µs more than a second before {t} s after {:?}", call.decision);
            }
        }
    }

    #[test]
    fn where_t_is_sent_a_slot_is_free_then(ttls in prop::collection::vec(1..100i64, 1..6), slots in 1..5u32) {
        let (mut state, now) = (None::<State>, 0);
        for (n, ttl) in ttls.into_iter().enumerate() {
            let limit = Limit::Concurrency(Concurrency { slots, ttl: Micros(ttl * SECOND) });
            let before = state.clone().unwrap_or_else(|| limit.initial_state(Micros(now), Micros(now)));
            let decision = decide(&limit, &before, Micros(now), 1.0, false);
            let (r, t) = r_and_t(&limit, &decision, now);
            state = decision.state.clone().map(|state| other_id(state, n)).or(state);
            let Some(t) = t.filter(|_| r == 0) else { continue };
            let passes = |at: i64| decide(&limit, state.as_ref().unwrap(), Micros(at), 1.0, false).ok;
            prop_assert!(passes(t * SECOND) && !passes((t - 1) * SECOND), "{t} of {decision:?}");
        }
    }
}

/// The state with its last lease under another id.
fn other_id(state: State, n: usize) -> State {
    let State::Leases(mut leases) = state else { panic!("{state:?}") };
    if let Some(Lease { id, .. }) = leases.leases.last_mut() {
        *id = Micros(1_000 + n as i64);
    }
    State::Leases(leases)
}

/// Two states with the same result; their calls wait for 360 and 3,600 seconds.
#[test]
fn the_result_of_a_sliding_kind_cannot_tell_when_a_token_is_back() {
    let limit =
        config::parse(r#"{"kind": "sliding window", "rate": 10, "period": "1 hour"}"#).unwrap();
    let used_up = |at: i64| {
        let fresh = limit.initial_state(Micros(at), Micros(0));
        decide(&limit, &fresh, Micros(at), 10.0, false)
    };
    let begun = used_up(0);
    assert_eq!(r_and_t(&limit, &begun, 0), (0, None));
    let next = decide(&limit, &begun.state.unwrap(), Micros(0), 1.0, false);
    assert_eq!(r_and_t(&limit, &next, 0), (0, Some(3_960)));
}
