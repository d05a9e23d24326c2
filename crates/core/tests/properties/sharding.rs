//! What a limit in shards promises, tried with shards as full and as old as they can be: together
//! they hold what the limit holds, and never give more than one state could. And what the states of
//! another number of shards promise.
//!
//! The oracles are sums of what was taken, or the limit in one state; as in `properties.rs` they have
//! no opinion within twice the tolerance of the contract.

use proptest::prelude::*;
use ratelimit_core::{Micros, Shards, State, decide};

use crate::{
    Config, Kind, Sequence, TEN_YEARS, cases, config, instant, keeps_to, sequence, tokens_at,
    within,
};

/// The kinds that have shards.
const BOTH: &[Kind] = &[Kind::TokenBucket, Kind::FixedWindow];

/// A limit, and its shards at `now`.
#[derive(Clone, Debug)]
pub struct Divided {
    pub config: Config,
    pub now: i64,
    pub states: Vec<State>,
}

impl Divided {
    /// What one shard gets of the limit.
    fn share(&self, tokens: f64) -> f64 {
        tokens / self.states.len() as f64
    }

    fn number(&self) -> Vec<usize> {
        (0..self.states.len()).collect()
    }

    /// By how much a sum over the shards may miss.
    fn slack(&self) -> f64 {
        let largest = self.states.iter().map(|state| state.value().abs()).fold(0.0, f64::max);
        2.0 * self.config.tolerance() + 1e-13 * largest * self.states.len() as f64
    }
}

/// How old the shards' states are.
#[derive(Clone, Copy, PartialEq)]
pub enum Ages {
    /// As use leaves them: none from the future, and windows that turn together.
    Ordinary,
    /// Also from the future, behind which a clock stepped back, and windows that turn apart, which
    /// were a token bucket's shards.
    Any,
}

/// One to sixteen shards, of which some are full, some empty, and some, or all, in debt.
pub fn divided(ages: Ages) -> impl Strategy<Value = Divided> {
    let full = prop_oneof![2 => Just(1.0), 2 => Just(0.0), 4 => 0.0..1.0, 1 => -1.0..0.0];
    let age = prop_oneof![4 => Just(0.0), 4 => 0.0..0.5, 2 => 0.0..3.0, 1 => -2.0..0.0];
    let parts = prop_oneof![
        3 => prop::collection::vec((full.clone(), age.clone()), 2..6),
        1 => prop::collection::vec((full, age), 1..17),
    ];
    let debt = prop_oneof![5 => Just(None), 1 => (0.0..3.0).prop_map(Some)];
    (config(BOTH), instant(), parts, 0.0..1.0, debt).prop_map(
        move |(config, now, parts, into, debt): (_, _, Vec<(f64, f64)>, f64, Option<f64>)| {
            let number = parts.len() as f64;
            let period = config.period as f64;
            let states = parts.into_iter().map(|(full, age)| {
                // Within the bound of a clock that steps back.
                let refill = (config.capacity / config.rate).max(3.6e9 / period);
                let age = match (ages, config.kind) {
                    (Ages::Any, _) => age.max(-0.9 * refill),
                    (Ages::Ordinary, Kind::FixedWindow) => age.abs().floor() + into,
                    (Ages::Ordinary, _) => age.abs(),
                };
                let whole = if full < 0.0 { config.rate } else { config.capacity };
                let tokens = debt.map_or(full * whole, |debt| -debt * config.rate);
                tokens_at(tokens / number, now - (age * period) as i64)
            });
            Divided { states: states.collect(), config, now }
        },
    )
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn the_shards_together_hold_at_most_the_limit(
        divided in divided(Ages::Any),
        periods in 0.0..5.0,
    ) {
        let limit = divided.config.limit();
        let parts = Shards::new(&limit, divided.states.clone());
        let at = Micros(divided.now + (periods * divided.config.period as f64) as i64);
        let capacity = divided.config.capacity;
        prop_assert!(parts.level(at).remaining <= capacity);
        let mut sum = 0.0;
        for n in divided.number() {
            let available = parts.available(n, at);
            prop_assert!(available <= divided.share(capacity), "part {n} holds {available}");
            prop_assert_eq!(parts.refilled(n, at).value(), available);
            sum += available;
        }
        prop_assert!((parts.level(at).remaining - sum).abs() <= divided.slack());
    }

    #[test]
    fn shards_refill_no_faster_than_one_state_that_holds_as_much(
        divided in divided(Ages::Ordinary),
        periods in 0.0..5.0,
    ) {
        let limit = divided.config.limit();
        let parts = Shards::new(&limit, divided.states.clone());
        let row = parts.total(Micros(divided.now));
        let later = Micros(divided.now + (periods * divided.config.period as f64) as i64);
        let (parts, row) = (parts.level(later).remaining, limit.level(&row, later).remaining);
        prop_assert!(parts <= row + divided.slack(), "parts {parts}, a row {row}");
    }

    #[test]
    fn even_shards_refill_as_one_state_does(
        mut divided in divided(Ages::Any),
        periods in 0.0..5.0,
    ) {
        let limit = divided.config.limit();
        let state = divided.states[0].clone();
        divided.states.fill(state.clone());
        let row = tokens_at(state.value() * divided.states.len() as f64, state.ts().0);
        let parts = Shards::new(&limit, divided.states.clone());
        for at in [0.0, periods] {
            let at = Micros(divided.now + (at * divided.config.period as f64) as i64);
            let (parts, row) = (parts.level(at), limit.level(&row, at));
            let missing = (parts.remaining - row.remaining).abs();
            prop_assert!(missing <= divided.slack(), "parts {parts:?}, a row {row:?}");
        }
    }

    #[test]
    fn the_limit_is_full_when_its_last_shard_is(divided in divided(Ages::Ordinary)) {
        let limit = divided.config.limit();
        let parts = Shards::new(&limit, divided.states.clone());
        let reset_at = parts.level(Micros(divided.now)).reset_at;
        let reset_at = reset_at.expect("within what an instant holds");
        let missing = |at| divided.config.capacity - parts.level(at).remaining;
        if divided.config.kind == Kind::TokenBucket {
            let most = divided.slack() + 1e-9 * divided.states.len() as f64;
            prop_assert!(missing(reset_at) <= most);
            let rate = divided.share(divided.config.rate);
            let early = reset_at.0 - 1_000 - tolerated(&divided, rate).unwrap();
            prop_assert!(early <= divided.now || missing(Micros(early)) > 0.0);
        } else {
            // When the last of the windows that are open now has turned.
            let ends = divided.states.iter().map(|state| {
                let turns = divided.config.window(divided.now, state.ts().0).max(0) + 1;
                state.ts().0 + turns * divided.config.period
            });
            prop_assert_eq!(reset_at.0, ends.max().unwrap());
        }
    }

    #[test]
    fn what_is_spread_is_neither_more_nor_less_and_fits_into_the_shards(
        divided in divided(Ages::Any),
        mask in any::<u32>(),
        share in prop_oneof![0.0..1.0, Just(0.0), Just(1.0)],
        debt in prop_oneof![3 => Just(0.0), 1 => 0.0..4.0],
    ) {
        let limit = divided.config.limit();
        let now = Micros(divided.now);
        let mut among: Vec<usize> =
            divided.number().into_iter().filter(|n| mask >> n & 1 == 1).collect();
        if among.is_empty() || debt > 0.0 {
            among = divided.number();
        }
        let mut parts = Shards::new(&limit, divided.states.clone());
        let room = divided.share(divided.config.capacity) * among.len() as f64;
        let debt = (debt * divided.config.rate).min(divided.config.refill(TEN_YEARS));
        let target = share * room - debt;
        let ts = divided.number().iter().map(|&n| parts.refilled(n, now).ts()).max().unwrap();
        let before: Vec<f64> = divided.number().iter().map(|&n| parts.available(n, now)).collect();
        parts.distribute(&among, now, &State::from_tokens(target, ts));

        let after: Vec<f64> = divided.number().iter().map(|&n| parts.available(n, now)).collect();
        let sum = |of: &[f64]| among.iter().map(|&n| of[n]).sum::<f64>();
        let slack = divided.slack() + 1e-13 * target.abs();
        prop_assert!((sum(&after) - target).abs() <= slack, "{} of {target}", sum(&after));
        let in_debt = among.iter().any(|&n| before[n] < 0.0);
        let taken = target < sum(&before);
        for n in divided.number() {
            let (before, after) = (before[n], after[n]);
            let state = &parts.states()[n];
            prop_assert!(state.value() <= divided.share(divided.config.capacity) * (1.0 + 1e-15));
            // A shard that is left out, or that is as it was, is not to be stored.
            let unchanged = *state == divided.states[n];
            prop_assert!(unchanged || (among.contains(&n) && state.value() != before));
            prop_assert!(unchanged || state.ts() == ts);
            if target >= 0.0 && taken {
                prop_assert!(after <= before, "part {n} got some: {before}, now {after}");
                prop_assert!(after >= before.min(-slack), "part {n} has {after}");
            }
            if target >= 0.0 && !taken && !in_debt {
                prop_assert!(after >= before, "part {n} lost some: {before}, now {after}");
            }
        }
        // A debt is shared equally: it is gone when the whole limit's would be.
        if target < 0.0 {
            let least = after.iter().copied().fold(f64::MAX, f64::min);
            let most = after.iter().copied().fold(f64::MIN, f64::max);
            prop_assert_eq!(least, most);
        }
    }

    #[test]
    fn any_count_that_the_shards_hold_together_passes(
        divided in divided(Ages::Any),
        share in prop_oneof![0.0..1.0, Just(1.0)],
    ) {
        let limit = divided.config.limit();
        let now = Micros(divided.now);
        let mut parts = Shards::new(&limit, divided.states.clone());
        let held = parts.level(now).remaining;
        let count = share * held.max(0.0);
        let decision = parts.decide(now, count, false);
        prop_assert_eq!(decision.ok, held >= -divided.config.tolerance());
        if let Some(after) = decision.state {
            parts.distribute(&divided.number(), now, &after);
            let left = parts.level(now).remaining;
            prop_assert!((held - count - left).abs() <= divided.slack(), "{held}, then {left}");
        }
    }
}

/// The time in which the tolerance's tokens come in where one shard alone still refills, the smallest
/// of them by `rate`. `None` where that has no meaning.
fn tolerated(divided: &Divided, rate: f64) -> Option<i64> {
    match divided.config.kind {
        Kind::TokenBucket => {
            Some((divided.slack() / rate * divided.config.period as f64).min(1e17) as i64)
        }
        _ => (rate > divided.slack()).then_some(0),
    }
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn a_denied_call_passes_at_its_retry_time_and_not_before(
        divided in divided(Ages::Any),
        share in prop_oneof![4 => 0.0..1.0, 1 => Just(1.0)],
        reserve in any::<bool>(),
        sooner in 0.0..1.0,
    ) {
        let limit = divided.config.limit();
        let parts = Shards::new(&limit, divided.states.clone());
        let rate = divided.share(divided.config.rate);
        tells_when_it_passes(&divided, &parts, rate, (share, reserve), true, sooner)?;
    }

    /// A denial moves no rows: its wait is for the rows as they are.
    #[test]
    fn rows_of_another_number_of_shards_tell_when_they_let_a_call_pass(
        divided in divided(Ages::Any),
        more in prop_oneof![2 => Just(0), 1 => 1..4u32],
        own in prop::option::weighted(0.2, prop::collection::vec(1..6u32, 16)),
        shards in 1..9u32,
        share in prop_oneof![4 => 0.0..1.0, 1 => Just(1.0)],
        reserve in any::<bool>(),
        sooner in 0.0..1.0,
    ) {
        let limit = divided.config.limit();
        // All shards of a number of shards, or some of them, or those of several numbers.
        let of = |n: usize| match &own {
            Some(own) => own[n],
            None => divided.states.len() as u32 + more,
        };
        let whole = own.is_none() && more == 0;
        let rows = divided.number().into_iter();
        let rows = rows.map(|n| (limit.shard_limit(of(n)).into_owned(), divided.states[n].clone()));
        let parts = Shards::unequal(&limit, rows.collect());
        let smallest = divided.number().into_iter().map(of).max().unwrap();
        let rate = divided.config.rate / f64::from(smallest);
        let wait = tells_when_it_passes(&divided, &parts, rate, (share, reserve), whole, sooner)?;

        // By then each row holds what it would as a limit of its own. More rows than the whole has can
        // owe more than its ten years.
        let then = Micros(divided.now).plus(wait.unwrap_or_default());
        let each = divided.number().into_iter().map(|n| {
            limit.shard_limit(of(n)).level(&divided.states[n], then).remaining
        });
        let each = each.sum::<f64>().min(divided.config.capacity);
        let missing = (parts.level(then).remaining - each).abs();
        let close = missing <= divided.slack() * divided.states.len() as f64;
        prop_assert!(close || (own.is_some() && each < 0.0), "{each} of {parts:?}");

        // What a take then finds in the rows that it rearranges is the same.
        let after = Shards::new(&limit, parts.resharded(shards, then));
        prop_assert_eq!(after.states().len(), shards as usize);
        let (before, after) = (parts.level(then).remaining, after.level(then).remaining);
        prop_assert!((before - after).abs() <= divided.slack(), "{before}, then {after}");
    }
}

/// The retry time of a denial is when the shards let the call pass, and not before. The `share` of what
/// is missing in the limit is what the call asks for, above what there is; `whole` says whether the
/// shards together can hold it. Returns the wait.
fn tells_when_it_passes(
    divided: &Divided,
    parts: &Shards,
    rate: f64,
    (share, reserve): (f64, bool),
    whole: bool,
    sooner: f64,
) -> Result<Option<Micros>, TestCaseError> {
    let config = &divided.config;
    let now = Micros(divided.now);
    // More than there is, and not more than can ever be.
    let there = parts.level(now).remaining.max(0.0);
    let debt = if reserve { config.max_reserved.unwrap_or(4.0 * config.rate) } else { 0.0 };
    let count = there + share * (config.capacity + debt - there);
    let years = (count / config.rate + 3.0) * config.period as f64 > Micros::TEN_YEARS.0 as f64;
    if reserve && years && config.kind == Kind::FixedWindow {
        // With windows that begin apart, one of them can put off the last of a debt by a window, beyond the ten
        // years that a call may wait for it: no opinion.
        return Ok(None);
    }
    let decision = parts.decide(now, count, reserve);
    if decision.ok {
        return Ok(None);
    }
    prop_assert_eq!(decision.level, parts.level(now));
    let ok = |wait: i64| parts.decide(Micros(divided.now + wait), count, reserve).ok;
    let Some(wait) = decision.retry_after else {
        // Ten years are not enough to reserve so much, or the shards together have no room for it.
        prop_assert!(reserve || !whole, "never, {count} of {}", config.capacity);
        for periods in [0, 1, 2, 3, 5, 10, 30] {
            prop_assert!(!ok(periods * config.period), "after {periods} periods");
        }
        return Ok(None);
    };
    prop_assert!(wait > Micros(0) && ok(wait.0), "denied after {wait:?}");
    let Some(tolerated) = tolerated(divided, rate) else { return Ok(Some(wait)) };
    let early = wait.0 - 1_000 - tolerated.min(wait.0);
    if early > 0 {
        for early in [early, (early as f64 * sooner) as i64] {
            prop_assert!(!ok(early), "passed after {early} already, not {wait:?}");
        }
    }
    Ok(Some(wait))
}

/// What a call of a sequence meets: the rows that it finds free, as the bits of a number, and the
/// number of shards that the limit has by then.
#[derive(Clone, Copy, Debug)]
struct Meets {
    free: u64,
    shards: Option<usize>,
}

fn meets(changing: bool) -> impl Strategy<Value = Vec<Meets>> {
    let free = prop_oneof![2 => any::<u64>(), 2 => (0..16u64).prop_map(|n| 1 << n), 1 => Just(0)];
    let shards = prop_oneof![3 => Just(None), 1 => (1..12usize).prop_map(Some)];
    let meets =
        (free, shards).prop_map(move |(free, to)| Meets { free, shards: to.filter(|_| changing) });
    prop::collection::vec(meets, 60)
}

/// Takes as the limiter does: from a single row or from several that hold enough between them, and
/// otherwise from all. The wait, if it was allowed.
pub fn take(
    parts: &mut Shards,
    free: u64,
    now: Micros,
    count: f64,
    reserve: bool,
) -> Option<Micros> {
    let all: Vec<usize> = (0..parts.states().len()).collect();
    let among: Vec<usize> = all.iter().copied().filter(|n| free >> n & 1 == 1).collect();
    let in_debt = all.iter().any(|&n| parts.available(n, now) < 0.0);
    let held: f64 = among.iter().map(|&n| parts.available(n, now)).sum();
    let decision = match among[..] {
        _ if in_debt || held < count => {
            let decision = parts.decide(now, count, reserve);
            if let Some(after) = &decision.state {
                parts.distribute(&all, now, after);
            }
            decision
        }
        [n] => {
            let decision = decide(parts.shard_limit(), &parts.states()[n], now, count, reserve);
            if let Some(after) = &decision.state {
                parts.states_mut()[n] = after.clone();
            }
            decision
        }
        _ => {
            let decision = parts.decide(now, count, reserve);
            let ts = parts.total(now).ts();
            parts.distribute(&among, now, &State::from_tokens(held - count, ts));
            decision
        }
    };
    decision.ok.then(|| decision.retry_after.unwrap_or_default())
}

/// One call of a sequence on shards.
struct Called {
    now: i64,
    count: f64,
    reserve: bool,
    /// In all shards before the call.
    there: f64,
    /// In all shards after it.
    left: f64,
    /// The wait, if it was allowed.
    allowed: Option<Micros>,
}

fn run(sequence: &Sequence, shards: usize, meets: &[Meets]) -> Vec<Called> {
    let limit = sequence.config.limit();
    let fresh = limit
        .shard_limit(shards as u32)
        .initial_state(Micros(sequence.begin), Micros(sequence.begin));
    let mut parts = Shards::new(&limit, vec![fresh; shards]);
    let mut now = Micros(sequence.begin);
    let mut calls = Vec::new();
    for (step, meets) in sequence.steps.iter().zip(meets) {
        now.0 += step.gap;
        if let Some(shards) = meets.shards {
            // The tokens left are divided again.
            parts = Shards::new(&limit, parts.resharded(shards as u32, now));
        }
        let there = parts.level(now).remaining;
        let allowed = take(&mut parts, meets.free, now, step.count, step.reserve);
        let left = parts.level(now).remaining;
        let (now, count, reserve) = (now.0, step.count, step.reserve);
        calls.push(Called { now, count, reserve, there, left, allowed });
    }
    calls
}

/// A limit in shards gives what there is, and never more than one row could give.
fn gives_what_one_state_could(sequence: &Sequence, calls: &[Called]) -> Result<(), TestCaseError> {
    let config = &sequence.config;
    let mut taken = Vec::new();
    for call in calls {
        let (there, count) = (call.there, call.count);
        if (there - count).abs() > 2.0 * config.tolerance() {
            let allowed = call.allowed.is_some();
            prop_assert_eq!(allowed, there > count, "{} of {} at {}", count, there, call.now);
        }
        let expected = if call.allowed.is_some() { there - count } else { there };
        prop_assert!((call.left - expected).abs() <= 2.0 * config.tolerance());
        if call.allowed.is_some() && count > 0.0 {
            taken.push((call.now, count));
        }
    }
    let phase = config.start.unwrap_or(sequence.begin);
    within(&taken, |from, to| {
        let inflow = match config.kind {
            Kind::TokenBucket => config.refill(to - from),
            _ => (config.window(to, phase) - config.window(from, phase)) as f64 * config.rate,
        };
        let most = config.capacity + inflow;
        most + 2.0 * config.tolerance() + 1e-12 * most
    })
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn calls_on_any_of_the_shards_take_what_there_is_and_no_more_than_one_state_gives(
        sequence in sequence(BOTH, false),
        shards in 1..12usize,
        meets in meets(false),
    ) {
        gives_what_one_state_could(&sequence, &run(&sequence, shards, &meets))?;
    }

    #[test]
    fn another_number_of_shards_hands_out_nothing_extra_and_loses_nothing(
        sequence in sequence(BOTH, false),
        shards in 1..12usize,
        meets in meets(true),
    ) {
        gives_what_one_state_could(&sequence, &run(&sequence, shards, &meets))?;
    }

    #[test]
    fn reservations_in_shards_keep_to_the_bound_and_their_work_to_the_limit(
        sequence in sequence(BOTH, true),
        shards in 1..12usize,
        meets in meets(true),
    ) {
        let config = &sequence.config;
        let mut work = Vec::new();
        for call in run(&sequence, shards, &meets) {
            let Some(wait) = call.allowed else { continue };
            let bound = if call.reserve { config.max_reserved } else { Some(0.0) };
            if let Some(bound) = bound {
                let slack = 2.0 * config.tolerance() + 1e-12 * bound;
                prop_assert!(call.left >= call.there.min(-bound) - slack, "{} left", call.left);
            }
            prop_assert!(call.reserve || wait == Micros(0));
            if config.kind == Kind::TokenBucket && call.count > 0.0 {
                work.push((call.now + wait.0, call.count));
            }
        }
        keeps_to(config, &work)?;
    }
}
