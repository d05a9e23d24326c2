//! The golden vectors against the pure algorithm, and our own behaviour where it differs.

#[path = "vectors/mod.rs"]
mod golden;

use golden::{Call, Outcome, Subject};
use ratelimit_core::config;
use ratelimit_core::kinds::{Counters, Log, Tokens};
use ratelimit_core::{Limit, Micros, State, decide};

/// The algorithm, called directly.
struct Pure;

impl Subject for Pure {
    const WAIT_UNIT_MS: f64 = 0.001;

    fn accepts(&mut self, config: &str) -> bool {
        config::parse(config).is_ok()
    }

    fn call(&mut self, call: &Call) -> Outcome {
        let limit = config::parse(call.config).unwrap();
        let now = Micros::from_millis(call.at);
        let state = call.state.map_or_else(
            || limit.initial_state(now, now),
            |state| ratelimit_core::state::parse(state, &limit).unwrap(),
        );
        let decision = decide(&limit, &state, now, call.count, call.reserve);
        Outcome {
            ok: decision.ok,
            retry_after_ms: decision.retry_after.map(Micros::as_millis),
            remaining: decision.level.remaining,
            state: decision.state.map(|state| ratelimit_core::state::to_json(&state).to_string()),
        }
    }
}

#[test]
fn the_algorithm_agrees_with_the_published_ones() {
    let scenarios = golden::load();
    let report = golden::run(&mut Pure, &scenarios);
    println!("{report}");
    golden::assert_nothing_is_missing(&report);
}

// What the published code does differently, tag by tag: our own behaviour.

fn limit(config: &str) -> Limit {
    config::parse(config).unwrap()
}

fn state(value: f64, ts: i64) -> State {
    State::Tokens(Tokens { value, ts: ms(ts), added: None })
}

fn counters(value: f64, prior: f64, ts: i64) -> State {
    State::Counters(Counters { value, prior, ts: ms(ts) })
}

/// An instant or a span in milliseconds.
fn ms(millis: i64) -> Micros {
    Micros(millis * 1_000)
}

const T: i64 = 1_700_000_000_000;

const TOKEN_BUCKET: &str = r#"{"kind": "token bucket", "rate": 10, "period": 1000}"#;
const FIXED_WINDOW: &str = r#"{"kind": "fixed window", "rate": 10, "period": 1000, "start": 0}"#;

/// Leaves out what a window added, which is none of the published numbers.
fn published(state: State) -> State {
    match state {
        State::Tokens(tokens) => State::Tokens(Tokens { added: None, ..tokens }),
        of_others => of_others,
    }
}

/// Takes `count`, which passes without a wait, and gives the state after it.
fn take(limit: &Limit, state: &State, now: Micros, count: f64) -> State {
    let decision = decide(limit, state, now, count, false);
    assert!(decision.ok && decision.retry_after.is_none(), "{decision:?}");
    published(decision.state.unwrap())
}

/// Is denied `count`, and gives the wait.
fn denied(limit: &Limit, state: &State, now: Micros, count: f64, reserve: bool) -> Option<Micros> {
    let decision = decide(limit, state, now, count, reserve);
    assert!(!decision.ok && decision.state.is_none(), "{decision:?}");
    decision.retry_after
}

#[test]
fn clockback_a_step_back_drains_and_refills_nothing() {
    for config in [TOKEN_BUCKET, FIXED_WINDOW] {
        let limit = limit(config);
        let before = state(6.0, T);
        // 300 ms earlier: theirs would hold 3 fewer.
        let after = take(&limit, &before, ms(T - 300), 1.0);
        assert_eq!(after, state(5.0, T), "{config}");
        assert_eq!(limit.level(&after, ms(T)).remaining, 5.0);
        let refilled = limit.level(&after, ms(T + 1_000)).remaining;
        assert_eq!(refilled, 10.0);
        assert_eq!(denied(&limit, &after, ms(T - 300), 11.0, false), None);
        // The refill goes on where it stopped: after the 300 ms.
        let wait = denied(&limit, &after, ms(T - 300), 6.0, false);
        assert_eq!(wait, Some(ms(if config == TOKEN_BUCKET { 400 } else { 1_300 })), "{config}");
    }
}

#[test]
fn clockback_a_time_stays_up_to_an_hour_ahead_and_further_counts_as_none() {
    let an_hour_ago = T - 3_600_000;
    for config in [TOKEN_BUCKET, FIXED_WINDOW] {
        let limit = limit(config);
        for back in [400, 401, 1_001, 3_600_000] {
            let after = take(&limit, &state(6.0, T), ms(T - back), 1.0);
            assert_eq!(after, state(5.0, T), "{back} ms ahead of {config}");
        }
        // Empty, so that nothing but the clock can set it right.
        let wait = denied(&limit, &state(0.0, T), ms(an_hour_ago), 1.0, false);
        assert_eq!(wait, Some(ms(3_600_000 + if config == TOKEN_BUCKET { 100 } else { 1_000 })));
        let after = take(&limit, &state(0.0, T), ms(an_hour_ago - 1_000), 1.0);
        assert_eq!(after, state(9.0, an_hour_ago - 1_000), "{config}");
    }
    // As long as a whole refill takes, or the debt; and a window at least.
    let slow = limit(r#"{"kind": "token bucket", "rate": 1, "period": "1 day"}"#);
    const DAY: i64 = 86_400_000;
    assert_eq!(denied(&slow, &state(0.5, T), ms(T - DAY), 1.0, false), Some(ms(DAY + DAY / 2)));
    assert_eq!(take(&slow, &state(0.5, T), ms(T - DAY - 1), 1.0), state(0.0, T - DAY - 1));
    assert_eq!(denied(&slow, &state(-1.0, T), ms(T - 2 * DAY), 1.0, false), Some(ms(4 * DAY)));
    assert_eq!(take(&slow, &state(-1.0, T), ms(T - 2 * DAY - 1), 1.0), state(0.0, T - 2 * DAY - 1));
    let daily = limit(r#"{"kind": "fixed window", "rate": 1, "period": "1 day", "start": 0}"#);
    let begun = T - T % DAY;
    assert_eq!(denied(&daily, &state(0.0, begun), ms(begun - DAY), 1.0, false), Some(ms(2 * DAY)));
    let two_before = state(0.0, begun - 2 * DAY);
    assert_eq!(take(&daily, &state(0.0, begun), ms(begun - DAY - 1), 1.0), two_before);
}

#[test]
fn clockback_the_sliding_kinds_count_on_where_they_were() {
    let window = limit(r#"{"kind": "sliding window", "rate": 10, "period": 1000}"#);
    let before = counters(5.0, 4.0, T);
    // In the window before, as at the very start of this one: 4 + 5 of 10 are used.
    assert_eq!(window.level(&before, ms(T - 300)).remaining, 1.0);
    let after = take(&window, &before, ms(T - 300), 1.0);
    assert_eq!(after, counters(6.0, 4.0, T));
    assert_eq!(denied(&window, &after, ms(T - 300), 1.0, false), Some(ms(300 + 250)));

    let log = limit(r#"{"kind": "sliding log", "rate": 3, "period": 1000}"#);
    let taken_at = |times: &[i64]| {
        let entries = times.iter().map(|&at| ms(at)).collect();
        State::Log(Log { entries, ts: ms(*times.last().unwrap()) })
    };
    let before = taken_at(&[T - 100, T]);
    let after = take(&log, &before, ms(T - 300), 1.0);
    assert_eq!(after, taken_at(&[T - 100, T, T]));
    assert_eq!(denied(&log, &after, ms(T - 300), 1.0, false), Some(ms(200 + 1_000)));
    // Further ahead than an hour, which is longer than what they look back on: the clock was wrong.
    let long_ago = T - 3_601_000;
    assert_eq!(take(&log, &before, ms(long_ago), 1.0), taken_at(&[long_ago]));
    let fresh = window.initial_state(ms(long_ago), ms(0));
    assert_eq!((fresh.value(), fresh.ts().0 % 1_000_000), (0.0, 0));
    let after = take(&window, &before, ms(long_ago), 1.0);
    assert_eq!(after, counters(1.0, 0.0, fresh.ts().0 / 1_000));
}

#[test]
fn futurestart_a_start_ahead_is_a_phase_and_blocks_nothing() {
    for start in [T + 1, T + 10_000, T + 10_000_000_001, T - 999, T - 10_000_999] {
        let config =
            format!(r#"{{"kind": "fixed window", "rate": 3, "period": 1000, "start": {start}}}"#);
        let limit = limit(&config);
        let fresh = limit.initial_state(ms(T), ms(0));
        assert_eq!(fresh.value(), 3.0);
        assert!(fresh.ts() <= ms(T) && fresh.ts() > ms(T - 1_000), "{start}: {fresh:?}");
        assert_eq!((ms(start).0 - fresh.ts().0) % 1_000_000, 0, "{start}: {fresh:?}");
        let after = take(&limit, &fresh, ms(T), 3.0);
        assert_eq!((after.value(), after.ts()), (0.0, fresh.ts()));
        let turn = after.ts().plus(ms(1_000));
        assert_eq!(denied(&limit, &after, ms(T), 1.0, false), Some(turn.minus(ms(T))));
        take(&limit, &after, turn, 3.0);
    }
}

#[test]
fn random_start_a_phase_is_the_callers_and_stays() {
    let limit = limit(r#"{"kind": "fixed window", "rate": 3, "period": 1000}"#);
    for phase in [0, 417, T + 417, -999_583] {
        let fresh = limit.initial_state(ms(T), ms(phase));
        let begun = ms(if phase == 0 { T } else { T - 583 });
        assert_eq!(fresh.ts(), begun, "{phase}");
        // A row that is gone and comes back has the same windows.
        assert_eq!(
            limit.initial_state(ms(T + 5_300), ms(phase)).ts().minus(begun).0 % 1_000_000,
            0
        );
    }
}

#[test]
fn maxreserved0_means_no_debt() {
    for config in [
        r#"{"kind": "token bucket", "rate": 5, "period": 1000, "maxReserved": 0}"#,
        r#"{"kind": "fixed window", "rate": 5, "period": 1000, "maxReserved": 0, "start": 0}"#,
    ] {
        let limit = limit(config);
        let empty = take(&limit, &state(5.0, T), ms(T), 5.0);
        let plain = denied(&limit, &empty, ms(T), 1.0, false);
        assert!(plain.is_some());
        assert_eq!(denied(&limit, &empty, ms(T), 1.0, true), plain, "{config}");
        assert_eq!(denied(&limit, &empty, ms(T), 6.0, true), None, "{config}");
        // What is there can be taken either way.
        assert!(decide(&limit, &state(5.0, T), ms(T), 5.0, true).ok);
    }
}

#[test]
fn float_edge_a_retry_at_the_retry_time_always_passes_and_the_residue_stays() {
    let bucket = limit(r#"{"kind": "token bucket", "rate": 3, "period": 10, "capacity": 6}"#);
    let empty = state(0.0, T);
    assert_eq!(denied(&bucket, &empty, ms(T), 1.8, false), Some(ms(6)));
    // In milliseconds, 6 * 3 / 10 is 1.7999999999999998.
    let decision = decide(&bucket, &empty, ms(T + 6), 1.8, false);
    assert!(decision.ok);
    assert_eq!(decision.level.remaining, 0.0);
    assert!(decision.state.unwrap().value().abs() < 1e-15);

    // The tolerance is no gift: it is lent, once.
    let after = take(&bucket, &empty, ms(T), 5e-9);
    assert_eq!(after.value(), -5e-9);
    assert!(!decide(&bucket, &after, ms(T), 5e-9, false).ok, "{after:?}");
}

#[test]
fn error_a_count_above_what_can_ever_fit_is_denied_for_ever() {
    for kind in ["token bucket", "fixed window"] {
        let limit = limit(&format!(
            r#"{{"kind": "{kind}", "rate": 5, "period": 1000, "capacity": 1.005, "maxReserved": 2.675}}"#
        ));
        let full = limit.initial_state(ms(T), ms(T));
        assert_eq!(denied(&limit, &full, ms(T), 1.006, false), None);
        assert_eq!(denied(&limit, &full, ms(T), 3.681, true), None);
        // As floats, capacity and maxReserved are a little less than 3.68 together.
        let decision = decide(&limit, &full, ms(T), 3.68, true);
        assert!(decision.ok && decision.retry_after.is_some(), "{decision:?}");
    }
    let without_capacity =
        limit(r#"{"kind": "token bucket", "rate": 1, "period": 1, "capacity": 0}"#);
    assert_eq!(denied(&without_capacity, &state(0.0, T), ms(T), 1e-3, false), None);
    for kind in ["sliding window", "sliding log"] {
        let limit = limit(&format!(r#"{{"kind": "{kind}", "rate": 5, "period": 1000}}"#));
        assert_eq!(denied(&limit, &limit.initial_state(ms(T), ms(T)), ms(T), 6.0, false), None);
    }
}

#[test]
fn reserve_a_wait_above_ten_years_is_denied_until_it_is_shorter() {
    // A token a day; ten years are 3652.5 days.
    const DAY: i64 = 86_400_000;
    let bucket = limit(r#"{"kind": "token bucket", "rate": 1, "period": "1 day"}"#);
    let empty = state(0.0, T);
    let decision = decide(&bucket, &empty, ms(T), 3652.5, true);
    assert_eq!((decision.ok, decision.retry_after), (true, Some(Micros::TEN_YEARS)));
    assert_eq!(denied(&bucket, &empty, ms(T), 3653.5, true), Some(ms(DAY)));
    // A full bucket and ten years hold 3653.5 together.
    assert_eq!(denied(&bucket, &empty, ms(T), 3653.6, true), None);

    let window = limit(r#"{"kind": "fixed window", "rate": 1, "period": "1 day", "start": 0}"#);
    let begun = T - T % DAY;
    let empty = state(0.0, begun);
    let decision = decide(&window, &empty, ms(begun), 3652.0, true);
    assert_eq!((decision.ok, decision.retry_after), (true, Some(ms(3652 * DAY))));
    assert_eq!(denied(&window, &empty, ms(begun), 3653.0, true), Some(ms(DAY / 2)));
    assert_eq!(denied(&window, &empty, ms(begun), 3655.0, true), None);
}

#[test]
fn reserve_a_denied_one_waits_until_the_same_call_passes() {
    // Theirs waits until the whole count would be there: 1,000 ms.
    let bucket = limit(r#"{"kind": "token bucket", "rate": 5, "period": 1000, "maxReserved": 4}"#);
    let owing = state(-4.0, T);
    assert_eq!(denied(&bucket, &owing, ms(T), 1.0, true), Some(ms(200)));
    assert!(!decide(&bucket, &owing, ms(T + 199), 1.0, true).ok);
    assert!(decide(&bucket, &owing, ms(T + 200), 1.0, true).ok);
}

#[test]
fn throws_a_reservation_that_waits_is_ok() {
    // Theirs throws it away; with `throws`, ours raises only where `ok` is false.
    let window = limit(FIXED_WINDOW);
    let decision = decide(&window, &state(0.0, T), ms(T), 1.0, true);
    assert_eq!((decision.ok, decision.retry_after), (true, Some(ms(1_000))));
    assert_eq!(decision.state.map(published), Some(state(-1.0, T)));
}

#[test]
fn ephemeral_cache_a_denial_is_not_remembered() {
    let window = limit(r#"{"kind": "sliding window", "rate": 5, "period": 1000}"#);
    let before = counters(5.0, 0.0, T);
    assert_eq!(denied(&window, &before, ms(T + 1_000), 1.0, false), Some(ms(200)));
    assert!(decide(&window, &before, ms(T + 1_500), 1.0, false).ok);
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    for (field, value) in [("rate", "0"), ("rate", "1e300"), ("period", "0"), ("capacity", "9e15")]
    {
        let mut config = serde_json::json!({ "kind": "token bucket", "rate": 1, "period": 1000 });
        config[field] = serde_json::from_str(value).unwrap();
        let problem = config::parse(&config.to_string()).unwrap_err().problem;
        assert!(problem.starts_with(&format!("\"{field}\" is ")), "{problem}");
    }
}

#[test]
fn a_count_of_zero_writes_nothing() {
    // Theirs stores the refilled value; the same limit either way.
    let bucket = limit(TOKEN_BUCKET);
    let decision = decide(&bucket, &state(0.0, T), ms(T + 100), 0.0, false);
    assert_eq!((decision.ok, decision.level.remaining, decision.state), (true, 1.0, None));
    assert_eq!(denied(&bucket, &state(-1.0, T), ms(T), 0.0, false), Some(ms(100)));
}
