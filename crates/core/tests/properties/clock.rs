//! A state does not go back in time: whatever the clock does within the bound, no more is admitted than up to the
//! greatest instant that was seen; and beyond the bound a state counts as if there were none.
//!
//! The bound is computed here a second time, from the documents: an hour, a whole refill, the windows looked back on.

use proptest::prelude::*;
use ratelimit_core::kinds::{Start, Windows};
use ratelimit_core::{Limit, Micros, Shards, State, config, credit, decide};

use crate::sharding::take;
use crate::{ALL, Config, Kind, Sequence, Step, TEN_YEARS, cases, sequence};

const HOUR: i64 = 3_600_000_000;

/// How the clock goes.
#[derive(Clone, Debug)]
enum Clock {
    /// Between two instants, in turn.
    Alternates,
    /// Forward with the calls' gaps, and back by a share of the distance before every other call.
    Trembles,
    /// Forward, and from time to time back by the whole distance.
    StepsBack,
}

/// A clock, and how far it goes back: a share of the bound, or a number of microseconds if that is less.
fn clock() -> impl Strategy<Value = (Clock, f64, i64)> {
    let clock = prop_oneof![Just(Clock::Alternates), Just(Clock::Trembles), Just(Clock::StepsBack)];
    let most = prop_oneof![Just(i64::MAX), Just(HOUR), Just(1_000_000), 1..3_000_000i64];
    (clock, prop_oneof![2 => 0.0..1.0, 1 => Just(1.0)], most)
}

/// By how much a clock may step back from what a state has seen.
pub fn bound(config: &Config) -> i64 {
    let full = (config.capacity / config.rate * config.period as f64) as i64;
    let looks_back = match config.kind {
        Kind::TokenBucket => full,
        // The shortest month has 28 days.
        Kind::FixedWindow | Kind::Calendar => config.period / 10 * 9,
        Kind::SlidingWindow => 2 * config.period,
        Kind::SlidingLog => config.period,
    };
    looks_back.max(HOUR)
}

/// The instants of a sequence's calls.
fn instants(sequence: &Sequence, (clock, share, most): &(Clock, f64, i64)) -> Vec<i64> {
    let back = ((bound(&sequence.config) as f64 * share) as i64).min(*most);
    let (mut now, mut instants) = (sequence.begin, Vec::new());
    for (n, step) in sequence.steps.iter().enumerate() {
        let is_back = match clock {
            Clock::Alternates => n % 2 == 1,
            Clock::Trembles => {
                now += step.gap;
                n % 2 == 1
            }
            Clock::StepsBack => {
                now += step.gap;
                n % 7 > 3
            }
        };
        let less = if matches!(clock, Clock::Trembles) { back / (1 + n as i64 % 5) } else { back };
        instants.push(if is_back { now - less } else { now });
    }
    instants
}

/// What was taken of a limit: when by the clock, when by the latest clock at which something was taken, how much.
#[derive(Default)]
struct Taken {
    all: Vec<(i64, f64)>,
    sum: f64,
    /// The first instant at which something was taken, and the greatest at which a call was made since.
    first: Option<i64>,
    greatest: i64,
}

impl Taken {
    fn call(&mut self, now: i64, count: f64) {
        if count > 0.0 {
            if self.first.is_none() {
                (self.first, self.greatest) = (Some(now), now);
            }
            self.sum += count;
            let latest = self.all.last().map_or(now, |&(latest, _)| latest.max(now));
            self.all.push((latest, count));
        }
        self.greatest = self.greatest.max(now);
    }

    /// Checks what was taken against what came in from the first instant to the greatest.
    fn keeps_to(&self, config: &Config, debt: f64, inflow: f64) -> Result<(), TestCaseError> {
        let most = config.capacity + debt + inflow;
        let slack = 4.0 * config.tolerance() + 1e-12 * most;
        prop_assert!(self.sum <= most + slack, "took {} of {most}", self.sum);
        Ok(())
    }
}

/// What came in of a limit's tokens, in windows from `phase`.
fn inflow(config: &Config, taken: &Taken, phase: i64) -> f64 {
    let Some(first) = taken.first else { return 0.0 };
    let greatest = taken.greatest;
    match config.kind {
        Kind::TokenBucket => config.refill(greatest - first),
        _ => (config.window(greatest, phase) - config.window(first, phase)) as f64 * config.rate,
    }
}

/// The debt that a reservation may leave.
fn most_debt(config: &Config) -> f64 {
    // A last window may turn just within the ten years.
    let ten_years = config.refill(TEN_YEARS) + 2.0 * config.rate;
    config.max_reserved.map_or(ten_years, |bound| bound.min(ten_years))
}

/// Runs the calls by these instants; a retry at the time that a denial names passes, also then.
fn run(
    limit: &Limit,
    sequence: &Sequence,
    instants: &[i64],
    mut see: impl FnMut(i64, f64) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut row: Option<State> = None;
    for (&Step { count, reserve, .. }, &now) in sequence.steps.iter().zip(instants) {
        let at = Micros(now);
        let fresh = || limit.initial_state(at, Micros(sequence.begin));
        let before = row.clone().unwrap_or_else(fresh);
        let decision = decide(limit, &before, at, count, reserve);
        if let (false, Some(wait)) = (decision.ok, decision.retry_after) {
            prop_assert!(wait > Micros(0));
            let retried = decide(limit, &before, at.plus(wait), count, reserve);
            prop_assert!(retried.ok, "{count} of {before:?} denied at {:?}", at.plus(wait));
        }
        if let Some(after) = decision.state {
            prop_assert!(after.ts() >= before.ts(), "{before:?} went back to {after:?}");
            row = Some(after);
        }
        see(now, if decision.ok { count } else { 0.0 })?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn tokens_come_in_up_to_the_greatest_instant_seen_and_no_more(
        sequence in sequence(&[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar], true),
        clock in clock(),
    ) {
        let config = &sequence.config;
        let phase = config.start.unwrap_or(sequence.begin);
        let debt = if sequence.steps.iter().any(|step| step.reserve) { most_debt(config) } else { 0.0 };
        let mut taken = Taken::default();
        run(&config.limit(), &sequence, &instants(&sequence, &clock), |now, count| {
            taken.call(now, count);
            taken.keeps_to(config, debt, inflow(config, &taken, phase))
        })?;
    }

    #[test]
    fn tokens_without_reservations(
        sequence in sequence(&[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar], false),
        clock in clock(),
    ) {
        let config = &sequence.config;
        let phase = config.start.unwrap_or(sequence.begin);
        let mut taken = Taken::default();
        run(&config.limit(), &sequence, &instants(&sequence, &clock), |now, count| {
            taken.call(now, count);
            taken.keeps_to(config, 0.0, inflow(config, &taken, phase))
        })?;
    }

    #[test]
    fn windows_from_the_first_request_last_a_period(
        sequence in sequence(&[Kind::FixedWindow], false),
        clock in clock(),
    ) {
        let config = &sequence.config;
        let mut limit = config.limit();
        if let Limit::FixedWindow(window) = &mut limit {
            window.windows = Windows::Every { period: Micros(config.period), start: Start::FirstRequest };
        }
        let mut taken = Taken::default();
        run(&limit, &sequence, &instants(&sequence, &clock), |now, count| {
            taken.call(now, count);
            let begun = taken.first.map_or(0, |first| (taken.greatest - first) / config.period);
            taken.keeps_to(config, 0.0, begun as f64 * config.rate)
        })?;
    }

    #[test]
    fn a_sliding_window_gives_a_rate_in_each_window_that_began(
        sequence in sequence(&[Kind::SlidingWindow], false),
        clock in clock(),
    ) {
        let config = &sequence.config;
        let mut taken = Taken::default();
        run(&config.limit(), &sequence, &instants(&sequence, &clock), |now, count| {
            taken.call(now, count);
            Ok(())
        })?;
        // Taken in the window of the greatest instant so far.
        for &(at, _) in &taken.all {
            let window = config.window(at, 0);
            let within = taken.all.iter().filter(|&&(at, _)| config.window(at, 0) == window);
            let sum: f64 = within.map(|&(_, count)| count).sum();
            prop_assert!(sum <= config.rate + 2.0 * config.tolerance(), "{sum} in one window");
        }
    }

    #[test]
    fn a_sliding_log_gives_a_rate_in_any_period_up_to_the_greatest_instant(
        sequence in sequence(&[Kind::SlidingLog], false),
        clock in clock(),
    ) {
        let config = &sequence.config;
        let mut taken = Taken::default();
        run(&config.limit(), &sequence, &instants(&sequence, &clock), |now, count| {
            taken.call(now, count);
            Ok(())
        })?;
        for &(from, _) in &taken.all {
            let within = taken.all.iter().filter(|&&(at, _)| at >= from && at < from + config.period);
            prop_assert!(within.map(|&(_, count)| count).sum::<f64>() <= config.rate);
        }
    }

    #[test]
    fn shards_together_give_what_came_in_up_to_the_greatest_instant(
        sequence in sequence(&[Kind::TokenBucket, Kind::FixedWindow], true),
        clock in clock(),
        reserves in any::<bool>(),
        shards in 2..12usize,
        free in prop::collection::vec((any::<u64>(), 0..4u32), 60),
        other in 1..12u32,
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        let phase = config.start.unwrap_or(sequence.begin);
        let instants = instants(&sequence, &clock);
        // All rows are made by the first call.
        let first = Micros(instants[0]);
        let fresh = limit.shard_limit(shards as u32).initial_state(first, Micros(sequence.begin));
        let mut parts = Shards::new(&limit, vec![fresh; shards]);
        let debt = if reserves { most_debt(config) } else { 0.0 };
        let mut taken = Taken { first: Some(first.0), greatest: first.0, ..Taken::default() };
        for ((step, &now), &(free, often)) in sequence.steps.iter().zip(&instants).zip(&free) {
            let at = Micros(now);
            if free % 16 == 0 {
                parts = Shards::new(&limit, parts.resharded(other, at));
            }
            let reserve = step.reserve && reserves;
            // One row, some, or all.
            let free = [free, 1 << (free % 12), 0, u64::MAX][often as usize];
            let denied = parts.decide(at, step.count, reserve);
            if let (false, Some(wait)) = (denied.ok, denied.retry_after) {
                prop_assert!(parts.decide(at.plus(wait), step.count, reserve).ok, "{parts:?}");
            }
            let times: Vec<Micros> = parts.states().iter().map(|state| state.ts()).collect();
            let ok = take(&mut parts, free, at, step.count, reserve).is_some();
            prop_assert!(parts.states().iter().zip(times).all(|(state, before)| state.ts() >= before));
            taken.call(now, if ok { step.count } else { 0.0 });
            taken.keeps_to(config, debt, inflow(config, &taken, phase))?;
        }
    }

    /// Leases expire by the clock alone: leases that have not expired at the greatest instant seen never take more
    /// than the slots, whatever the clock does.
    #[test]
    fn leases_take_no_more_than_the_slots_at_the_greatest_instant(
        slots in 1..6u32,
        ttl in 1_000..10_000_000i64,
        calls in prop::collection::vec((-20_000_000..20_000_000i64, 1..4u32), 1..60),
    ) {
        let json = format!(r#"{{"kind": "concurrency", "slots": {slots}, "ttl": {}}}"#, ttl as f64 / 1e3);
        let limit = config::parse(&json).unwrap();
        let mut now = 1_798_804_800_000_000;
        let (mut greatest, mut given) = (now, Vec::new());
        let mut state = limit.initial_state(Micros(now), Micros(now));
        for (gap, count) in calls {
            now += gap;
            greatest = greatest.max(now);
            let decision = decide(&limit, &state, Micros(now), count.into(), false);
            match (decision.state, decision.retry_after) {
                (Some(after), _) => {
                    given.push((now + ttl, count));
                    state = after;
                }
                (None, Some(wait)) => {
                    let then = Micros(now).plus(wait);
                    prop_assert!(decide(&limit, &state, then, count.into(), false).ok);
                }
                _ => {}
            }
            let live = given.iter().filter(|&&(expires_at, _)| expires_at > greatest);
            prop_assert!(live.map(|&(_, count)| count).sum::<u32>() <= slots);
        }
    }

    #[test]
    fn a_credit_does_not_go_back_in_time_either(
        sequence in sequence(&[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar], false),
        clock in clock(),
        credits in prop::collection::vec(prop::option::weighted(0.3, -1.0..1.0f64), 60),
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        let phase = config.start.unwrap_or(sequence.begin);
        let (mut taken, mut owed) = (Taken::default(), 0.0f64);
        let mut state: Option<State> = None;
        for ((step, now), share) in sequence.steps.iter().zip(instants(&sequence, &clock)).zip(credits) {
            let at = Micros(now);
            let before = state.clone().unwrap_or_else(|| limit.initial_state(at, Micros(sequence.begin)));
            let decision = match share {
                Some(share) => credit(&limit, &before, at, share * step.count, None).unwrap(),
                None => decide(&limit, &before, at, step.count, false),
            };
            let Some(after) = decision.state else { continue };
            prop_assert!(after.ts() >= before.ts(), "{before:?} went back to {after:?}");
            taken.call(now, match share {
                Some(share) => (-share * step.count).max(0.0),
                None => step.count,
            });
            // What was given back may be taken again, and what was taken unasked may be owed.
            owed += share.map_or(0.0, |share| (share * step.count).abs());
            state = Some(after);
            taken.keeps_to(config, owed, inflow(config, &taken, phase))?;
        }
    }

    #[test]
    fn a_state_further_ahead_than_the_bound_counts_as_if_there_were_none(
        sequence in sequence(ALL, true),
        further in 1.0..3.0f64,
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        let begin = Micros(sequence.begin);
        let mut state = limit.initial_state(begin, begin);
        let mut now = sequence.begin;
        for step in &sequence.steps {
            now += step.gap;
            let decision = decide(&limit, &state, Micros(now), step.count, step.reserve);
            state = decision.state.unwrap_or(state);
        }
        let owed = (-state.value()).max(0.0) + config.capacity;
        let full = (owed / config.rate).ceil() * config.period as f64;
        // A month has 31 days at most, and the last days of a window may stand for any.
        let most = 1.3 * full.max(2.0 * config.period as f64).max(HOUR as f64) + 2.0 * config.period as f64;
        prop_assume!(state.value() < config.capacity && most * further < 1e17);
        let now = Micros(state.ts().0 - (most * further) as i64);
        let in_dates = |at: Micros| config.dates.is_none() || at.0 > -1_000_000_000_000_000;
        prop_assume!(in_dates(now));
        let fresh = limit.initial_state(now, state.ts());
        prop_assert_eq!(limit.level(&state, now), limit.level(&fresh, now));
        prop_assert_eq!(limit.present(&state, now), fresh.ts().max(now));
        prop_assert!(limit.is_idle(&state, now, state.ts()), "{state:?}");
        for count in [0.0, 1.0, config.capacity.ceil()] {
            let (found, wanted) = (
                decide(&limit, &state, now, count, false),
                decide(&limit, &fresh, now, count, false),
            );
            prop_assert_eq!(found, wanted);
        }
        // Just within it, it counts.
        let within = Micros(state.ts().0 - bound(config) + 1 + (bound(config) >> 48));
        if in_dates(within) && within < state.ts() {
            prop_assert_eq!(limit.present(&state, within), state.ts());
        }
    }
}

/// The case that was found: calls that alternate between two instants a second apart all passed.
#[test]
fn a_hair_back_refills_no_bucket() {
    let limit = config::parse(
        r#"{"kind": "token bucket", "rate": 10, "period": "1 second", "capacity": 10}"#,
    )
    .unwrap();
    let begin = 1_798_804_800_000_000;
    let mut state = limit.initial_state(Micros(begin), Micros(begin));
    let mut passed = 0;
    for n in 0..1_000 {
        let now = Micros(begin + n % 2 * 1_000_000);
        if let Some(after) = decide(&limit, &state, now, 1.0, false).state {
            passed += 1;
            state = after;
        }
    }
    // A full bucket, and one second's refill, less what the full one had no room for.
    assert_eq!(passed, 11);
}
