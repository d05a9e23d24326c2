//! What the algorithms promise, tried with generated limits, clocks and sequences of calls.
//!
//! The oracles here are naive on purpose: plain lists and sums of everything that was taken, or
//! whole numbers, never the formulas of `src/kinds`. Where an oracle computes with floats, it
//! has no opinion within twice the tolerance of the contract.

#[path = "properties/as_many.rs"]
mod as_many;
#[path = "properties/changed.rs"]
mod changed;
#[path = "properties/clock.rs"]
mod clock;
#[path = "properties/concurrency.rs"]
mod concurrency;
#[path = "properties/holds.rs"]
mod holds;
#[path = "properties/http.rs"]
mod http;
#[path = "properties/idle.rs"]
mod idle;
#[path = "properties/overage.rs"]
mod overage;
#[path = "properties/sharding.rs"]
mod sharding;

use std::collections::BTreeMap;

use jiff::civil::{Date, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp, ToSpan};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use ratelimit_core::config;
use ratelimit_core::kinds::{Counters, Log, Tokens};
use ratelimit_core::kinds::{Start, Windows};
use ratelimit_core::{Decision, Limit, Micros, State, credit, decide};
use serde_json::json;

const TEN_YEARS: i64 = 3_652 * 86_400_000_000 + 43_200_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    TokenBucket,
    FixedWindow,
    /// A fixed window with calendar windows.
    Calendar,
    SlidingWindow,
    SlidingLog,
}

impl Kind {
    /// Whether it holds tokens that accumulate and can be reserved.
    fn holds(self) -> bool {
        matches!(self, Kind::TokenBucket | Kind::FixedWindow | Kind::Calendar)
    }
}

/// A config as a test draws it; spans and instants are microseconds.
#[derive(Clone, Debug)]
struct Config {
    kind: Kind,
    rate: f64,
    period: i64,
    capacity: f64,
    max_reserved: Option<f64>,
    start: Option<i64>,
    /// For calendar windows; `period` is then a typical length.
    dates: Option<Dates>,
}

/// Calendar windows, found the slow way: every window by going over its clock changes.
#[derive(Clone, Debug)]
struct Dates {
    zone: TimeZone,
    months: bool,
    every: i64,
    start: Option<Date>,
}

impl Dates {
    /// The period as a config has it.
    fn period(&self) -> String {
        format!("{} {}", self.every, if self.months { "months" } else { "days" })
    }

    /// About how long a window is, in microseconds.
    fn typical(&self) -> i64 {
        let days = if self.months { 30.4375 } else { 1.0 };
        (days * 86.4e9) as i64 * self.every
    }

    /// The date on which a window begins.
    fn date(&self, window: i64) -> Date {
        let start =
            self.start.unwrap_or(if self.months { date(1970, 1, 1) } else { date(1970, 1, 5) });
        let units = window * self.every;
        if !self.months {
            return start + Span::new().days(units);
        }
        let month = i64::from(start.year()) * 12 + i64::from(start.month()) - 1 + units;
        let first = date(month.div_euclid(12) as i16, month.rem_euclid(12) as i8 + 1, 1);
        date(first.year(), first.month(), start.day().min(first.days_in_month()))
    }

    /// When a window begins, in microseconds.
    fn begins(&self, window: i64) -> i64 {
        first_instant(&self.zone, self.date(window))
    }

    /// The last window that begins at or before `at`.
    fn window(&self, at: i64) -> i64 {
        let mut window = (at - self.begins(0)).div_euclid(self.typical());
        while self.begins(window) > at {
            window -= 1;
        }
        while self.begins(window + 1) <= at {
            window += 1;
        }
        window
    }
}

/// The first microsecond at which the local date is this one or later.
fn first_instant(zone: &TimeZone, date: Date) -> i64 {
    let midnight = date.to_zoned(TimeZone::UTC).unwrap().timestamp();
    let offset = |from: Timestamp| i64::from(zone.to_offset(from).seconds());
    // No clock is off by more than 26 hours.
    let mut from = midnight - 26.hours();
    let mut changes = zone.following(from);
    loop {
        let at = (midnight - offset(from).seconds()).max(from);
        match changes.next() {
            Some(change) if change.timestamp() <= at => from = change.timestamp(),
            _ => return at.as_microsecond(),
        }
    }
}

impl Config {
    fn limit(&self) -> Limit {
        let millis = |micros: i64| (micros / 1_000) as f64 + (micros % 1_000) as f64 / 1e3;
        let mut config = json!({ "rate": self.rate, "period": millis(self.period) });
        let kind = match self.kind {
            Kind::TokenBucket => "token bucket",
            Kind::FixedWindow | Kind::Calendar => "fixed window",
            Kind::SlidingWindow => "sliding window",
            Kind::SlidingLog => "sliding log",
        };
        config["kind"] = kind.into();
        if self.kind.holds() {
            config["capacity"] = self.capacity.into();
            if let Some(max_reserved) = self.max_reserved {
                config["maxReserved"] = max_reserved.into();
            }
        }
        if let Some(start) = self.start {
            config["start"] = millis(start).into();
        }
        if let Some(dates) = &self.dates {
            config["timezone"] = dates.zone.iana_name().into();
            config["period"] = dates.period().into();
            if let Some(start) = dates.start {
                config["start"] = start.to_string().into();
            }
        }
        if self.kind == Kind::SlidingLog {
            config["rate"] = (self.rate as i64).into();
        }
        config::parse(&config.to_string()).unwrap()
    }

    /// By how much a comparison of tokens may miss.
    fn tolerance(&self) -> f64 {
        1e-9 * self.capacity.max(1.0)
    }

    /// The tokens of so long a time.
    fn refill(&self, micros: i64) -> f64 {
        self.rate * micros as f64 / self.period as f64
    }

    /// The number of the window, counted from `phase`; calendar windows have one of their own.
    fn window(&self, at: i64, phase: i64) -> i64 {
        match &self.dates {
            Some(dates) => dates.window(at),
            None => (at - phase).div_euclid(self.period),
        }
    }

    /// When a window begins.
    fn begins(&self, window: i64, phase: i64) -> i64 {
        match &self.dates {
            Some(dates) => dates.begins(window),
            None => phase + window * self.period,
        }
    }
}

/// One call of a generated sequence.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// How far the clock moves on before it, in microseconds.
    gap: i64,
    count: f64,
    reserve: bool,
}

/// A limit, the clock at the first call, and the calls.
#[derive(Clone, Debug)]
struct Sequence {
    config: Config,
    begin: i64,
    steps: Vec<Step>,
}

fn tokens() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (1u32..=20).prop_map(f64::from),
        2 => (1u32..=30).prop_map(|tenths| f64::from(tenths) * 0.1),
        2 => (1u32..=5_000).prop_map(|thousandths| f64::from(thousandths) / 1e3),
        1 => (-3.0..12.0).prop_map(|exponent: f64| 10f64.powf(exponent)),
    ]
}

fn period() -> impl Strategy<Value = i64> {
    let hundred_years = 3.2e15f64;
    prop_oneof![
        2 => Just(60_000_000),
        1 => Just(86_400_000_000),
        2 => 1_000..20_000i64,
        2 => (3.0..hundred_years.log10()).prop_map(|exponent| 10f64.powf(exponent) as i64),
    ]
}

/// 1938, 1970, 2023, 2100 and the year 200,000, give or take some hours.
fn instant() -> impl Strategy<Value = i64> {
    let far = [-1_000_000_000, 0, 1_700_000_000, 4_102_444_800, 6_248_000_000_000i64];
    (prop::sample::select(far.to_vec()), 0..20_000_000_000i64)
        .prop_map(|(seconds, micros)| seconds * 1_000_000 + micros)
}

const ZONES: [&str; 10] = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "Pacific/Apia",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Antarctica/Troll",
];

fn start() -> impl Strategy<Value = Option<Date>> {
    let start = (1960i16..2040, 1i8..=12, 1i8..=31).prop_map(|(year, month, day)| {
        let first = date(year, month, 1);
        date(year, month, day.min(first.days_in_month()))
    });
    prop::option::of(start)
}

fn dates() -> impl Strategy<Value = Dates> {
    const PERIODS: [(bool, i64); 7] =
        [(false, 1), (false, 2), (false, 7), (false, 100), (true, 1), (true, 3), (true, 12)];
    (prop::sample::select(&ZONES), prop::sample::select(&PERIODS), start()).prop_map(
        |(zone, (months, every), start)| {
            let zone = TimeZoneDatabase::bundled().get(zone).unwrap();
            Dates { zone, months, every, start }
        },
    )
}

fn config(kinds: &'static [Kind]) -> impl Strategy<Value = Config> {
    let capacity = prop_oneof![
        3 => Just(None),
        3 => (0.1..5.0).prop_map(Some),
        1 => Just(Some(0.0)),
    ];
    let debt = prop_oneof![2 => Just(None), 1 => Just(Some(0.0)), 2 => (0.0..4.0).prop_map(Some)];
    let start = prop::option::of(instant());
    (prop::sample::select(kinds), tokens(), period(), capacity, debt, start, dates()).prop_map(
        |(kind, rate, period, capacity, debt, start, dates)| {
            let holds = kind.holds();
            let dates = (kind == Kind::Calendar).then_some(dates);
            let period = dates.as_ref().map_or(period, Dates::typical);
            let rate = if kind == Kind::SlidingLog { rate.ceil().min(40.0) } else { rate };
            Config {
                kind,
                rate,
                period,
                capacity: capacity.filter(|_| holds).map_or(rate, |factor| factor * rate),
                max_reserved: debt.filter(|_| holds).map(|factor| factor * rate),
                // Whole milliseconds, as a config has them.
                start: start
                    .filter(|_| kind == Kind::FixedWindow)
                    .map(|start| start / 1_000 * 1_000),
                dates,
            }
        },
    )
}

fn sequence(kinds: &'static [Kind], reserve: bool) -> impl Strategy<Value = Sequence> {
    // In periods; the smallest one is rounded up to a microsecond.
    let gap = prop_oneof![
        5 => Just(0.0),
        5 => 0.0..0.3,
        2 => 0.0..3.0,
        1 => Just(1.0),
        1 => Just(1e-30),
    ];
    // In shares of the capacity (or the rate, where there is none), or as a number of tokens.
    let count = prop_oneof![
        4 => (0.0..0.5).prop_map(|share| (share, 0.0)),
        2 => (0.0..1.2).prop_map(|share| (share, 0.0)),
        1 => Just((1.0, 0.0)),
        4 => (1u32..4).prop_map(|tokens| (0.0, f64::from(tokens))),
        1 => Just((0.0, 0.1)),
        1 => Just((0.0, 0.0)),
    ];
    let step = (gap, count, prop::bool::ANY);
    (config(kinds), instant(), prop::collection::vec(step, 1..60)).prop_map(
        move |(config, begin, steps)| {
            let whole = if config.capacity > 0.0 { config.capacity } else { config.rate };
            // Dates end with the year 9999.
            let begin = if config.dates.is_some() { begin % 5_000_000_000_000_000 } else { begin };
            let steps = steps
                .into_iter()
                .map(|(gap, (share, tokens), reserved): (f64, (f64, f64), bool)| {
                    let count = share * whole + tokens;
                    Step {
                        gap: (gap * config.period as f64).ceil() as i64,
                        count: if config.kind == Kind::SlidingLog { count.ceil() } else { count },
                        reserve: reserve && reserved,
                    }
                })
                .collect();
            Sequence { config, begin, steps }
        },
    )
}

const ALL: &[Kind] =
    &[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar, Kind::SlidingWindow, Kind::SlidingLog];
const WINDOWS: &[Kind] = &[Kind::FixedWindow, Kind::Calendar];

/// A state of tokens at an instant, without the number that a window added.
fn tokens_at(value: f64, ts: i64) -> State {
    State::Tokens(Tokens { value, ts: Micros(ts), added: None })
}

/// One call of a sequence, with the state before it.
struct Seen {
    step: Step,
    now: i64,
    before: State,
    decision: Decision,
}

/// Runs a sequence as a caller does: a state is stored only where one came back.
fn run(sequence: &Sequence) -> Vec<Seen> {
    let limit = sequence.config.limit();
    let mut now = sequence.begin;
    let mut row = None;
    sequence
        .steps
        .iter()
        .map(|&step| {
            now += step.gap;
            // Without a start, windows begin at the first call.
            let fresh = || limit.initial_state(Micros(now), Micros(sequence.begin));
            let before = row.clone().unwrap_or_else(fresh);
            let decision = decide(&limit, &before, Micros(now), step.count, step.reserve);
            if decision.state.is_some() {
                row = decision.state.clone();
            }
            Seen { step, now, before, decision }
        })
        .collect()
}

/// The calls that took something: when and how much.
fn taken(calls: &[Seen]) -> Vec<(i64, f64)> {
    calls
        .iter()
        .filter(|call| call.decision.ok && call.step.count > 0.0)
        .map(|call| (call.now, call.step.count))
        .collect()
}

/// Checks `bound(from, to)` against what was taken from any of the times to any later one.
fn within(taken: &[(i64, f64)], bound: impl Fn(i64, i64) -> f64) -> Result<(), TestCaseError> {
    for (first, &(from, _)) in taken.iter().enumerate() {
        let mut sum = 0.0;
        for &(to, count) in &taken[first..] {
            sum += count;
            let most = bound(from, to);
            prop_assert!(sum <= most, "took {sum} from {from} to {to}, at most {most} allowed");
        }
    }
    Ok(())
}

/// Checks that reserved work, done when it was reserved for, keeps to a token bucket; in that order.
fn keeps_to(config: &Config, work: &[(i64, f64)]) -> Result<(), TestCaseError> {
    prop_assert!(work.is_sorted_by_key(|&(at, _)| at), "{work:?}");
    // A reservation above the capacity is one piece of work: nothing can split it.
    let largest = work.iter().map(|&(_, count)| count).fold(config.capacity, f64::max);
    within(work, |from, to| {
        let most = largest + config.refill(to - from);
        most + 4.0 * config.tolerance() + config.refill(2) + 1e-12 * most
    })
}

fn cases(cases: u32) -> ProptestConfig {
    // The same cases every time, so that only a change can fail them; PROPTEST_RNG_SEED gives
    // others, PROPTEST_CASES more. A failure prints its input; nothing is written to the sources.
    let asked = |name: &str| std::env::var(name).ok().and_then(|asked| asked.parse().ok());
    let (seed, asked) =
        (asked("PROPTEST_RNG_SEED"), asked("PROPTEST_CASES").map(|n: u64| n as u32));
    ProptestConfig {
        rng_seed: RngSeed::Fixed(seed.unwrap_or(1)),
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::with_cases(asked.unwrap_or(cases))
    }
}

// Never more admitted than the kind allows.
proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn a_token_bucket_never_gives_more_than_capacity_and_refill(
        sequence in sequence(&[Kind::TokenBucket], false),
    ) {
        let config = &sequence.config;
        within(&taken(&run(&sequence)), |from, to| {
            let most = config.capacity + config.refill(to - from);
            most + 2.0 * config.tolerance() + 1e-12 * most
        })?;
    }

    #[test]
    fn a_token_bucket_takes_exactly_when_there_is_enough(
        sequence in sequence(&[Kind::TokenBucket], true),
    ) {
        // The oracle keeps no refilled value: it adds up everything since the last moment when
        // the bucket was full.
        let config = &sequence.config;
        let debt = |reserve: bool| match config.max_reserved {
            _ if !reserve => 0.0,
            Some(bound) => bound.min(config.refill(TEN_YEARS)),
            None => config.refill(TEN_YEARS),
        };
        let (mut full_at, mut spent) = (sequence.begin, 0.0f64);
        for call in run(&sequence) {
            let mut available = config.capacity + config.refill(call.now - full_at) - spent;
            if available >= config.capacity {
                (full_at, spent, available) = (call.now, 0.0, config.capacity);
            }
            let left = available - call.step.count + debt(call.step.reserve);
            let unsure = 2.0 * config.tolerance() + 1e-12 * (spent + debt(call.step.reserve));
            if left.abs() > unsure {
                prop_assert_eq!(call.decision.ok, left > 0.0, "{} left of {:?}", left, call.step);
            }
            if call.decision.ok {
                spent += call.step.count;
            }
        }
    }

    #[test]
    fn a_fixed_window_never_gives_more_than_capacity_and_a_rate_a_turn(
        sequence in sequence(WINDOWS, false),
    ) {
        let config = &sequence.config;
        let phase = config.start.unwrap_or(sequence.begin);
        within(&taken(&run(&sequence)), |from, to| {
            let turns = config.window(to, phase) - config.window(from, phase);
            let most = config.capacity + turns as f64 * config.rate;
            most + 2.0 * config.tolerance() + 1e-12 * most
        })?;
    }

    #[test]
    fn a_fixed_window_takes_exactly_when_there_is_enough(
        sequence in sequence(WINDOWS, false),
    ) {
        // Turns the windows one at a time.
        let config = &sequence.config;
        let phase = config.start.unwrap_or(sequence.begin);
        let (mut window, mut tokens) = (config.window(sequence.begin, phase), config.capacity);
        for call in run(&sequence) {
            while window < config.window(call.now, phase) {
                window += 1;
                tokens = (tokens + config.rate).min(config.capacity);
            }
            let left = tokens - call.step.count;
            if left.abs() > 2.0 * config.tolerance() {
                prop_assert_eq!(call.decision.ok, left > 0.0, "{} left of {:?}", left, call.step);
            }
            if call.decision.ok && call.step.count > 0.0 {
                tokens -= call.step.count;
                let start = config.begins(window, phase);
                prop_assert_eq!(call.decision.state.unwrap().ts(), Micros(start));
            }
        }
    }

    #[test]
    fn a_window_from_the_first_request_begins_at_the_take_that_finds_it_full(
        sequence in sequence(&[Kind::FixedWindow], false),
    ) {
        let config = &sequence.config;
        let mut limit = config.limit();
        let Limit::FixedWindow(window) = &mut limit else { unreachable!() };
        let period = Micros(config.period);
        window.windows = Windows::Every { period, start: Start::FirstRequest };
        let (mut now, mut row) = (sequence.begin, None::<State>);
        let (mut start, mut tokens) = (now, config.capacity);
        for step in &sequence.steps {
            now += step.gap;
            let before = row.clone().unwrap_or_else(|| limit.initial_state(Micros(now), Micros(0)));
            while start + config.period <= now {
                start += config.period;
                tokens = (tokens + config.rate).min(config.capacity);
            }
            if tokens >= config.capacity - config.tolerance().min(1e-6) {
                start = now;
            }
            let decision = decide(&limit, &before, Micros(now), step.count, false);
            let left = tokens - step.count;
            if left.abs() > 2.0 * config.tolerance() {
                prop_assert_eq!(decision.ok, left > 0.0, "{} left of {:?}", left, step);
            }
            if let Some(after) = decision.state {
                prop_assert_eq!(after.ts(), Micros(start));
                tokens -= step.count;
                row = Some(after);
            }
        }
    }

    #[test]
    fn a_sliding_window_follows_the_documented_formula(
        sequence in sequence(&[Kind::SlidingWindow], false),
    ) {
        let config = &sequence.config;
        let mut windows = BTreeMap::<i64, f64>::new();
        for call in run(&sequence) {
            let window = config.window(call.now, 0);
            let sum = |window| windows.get(&window).copied().unwrap_or(0.0);
            let into = (call.now - window * config.period) as f64 / config.period as f64;
            let used = sum(window - 1) * (1.0 - into) + sum(window);
            let left = config.rate - used - call.step.count;
            if left.abs() > 2.0 * config.tolerance() {
                prop_assert_eq!(call.decision.ok, left > 0.0, "{} left of {:?}", left, call.step);
            }
            if call.decision.ok {
                *windows.entry(window).or_default() += call.step.count;
            }
        }
        for (window, sum) in windows {
            prop_assert!(sum <= config.rate + 2.0 * config.tolerance(), "{sum} in window {window}");
        }
    }

    #[test]
    fn a_sliding_log_is_exact(sequence in sequence(&[Kind::SlidingLog], false)) {
        let config = &sequence.config;
        let mut log = Vec::<i64>::new();
        for call in run(&sequence) {
            let used_at = |at: i64| log.iter().filter(|&&taken| taken > at - config.period).count();
            let fits_at = |at: i64| used_at(at) as f64 + call.step.count <= config.rate;
            prop_assert_eq!(call.decision.ok, fits_at(call.now));
            if call.decision.ok {
                log.extend((0..call.step.count as usize).map(|_| call.now));
            } else {
                // Only an entry that leaves can let it pass.
                let passes_at = log.iter().map(|taken| taken + config.period).find(|&at| fits_at(at));
                let retry_after = passes_at.map(|at| Micros(at - call.now));
                prop_assert_eq!(call.decision.retry_after, retry_after);
            }
            prop_assert_eq!(call.decision.level.remaining, config.rate - {
                log.iter().filter(|&&taken| taken > call.now - config.period).count() as f64
            });
        }
        for &from in &log {
            let in_period = log.iter().filter(|&&at| at >= from && at < from + config.period);
            prop_assert!(in_period.count() as f64 <= config.rate);
        }
    }
}

// Reservations.
proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn a_reservation_leaves_no_debt_beyond_the_bound_and_no_wait_beyond_ten_years(
        sequence in sequence(&[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar], true),
    ) {
        let config = &sequence.config;
        for call in run(&sequence) {
            let Some(after) = &call.decision.state else { continue };
            let bound = if call.step.reserve { config.max_reserved } else { Some(0.0) };
            if let Some(bound) = bound {
                // A debt that an earlier reservation left may stand, but not grow.
                let slack = 2.0 * config.tolerance() + 1e-12 * bound;
                prop_assert!(after.value() >= -bound - slack, "{after:?}");
            }
            if let Some(wait) = call.decision.retry_after {
                prop_assert!(call.step.reserve);
                let slack = config.tolerance() / config.rate * config.period as f64;
                let slack = if config.kind == Kind::TokenBucket { slack as i64 + 1 } else { 0 };
                prop_assert!(wait > Micros(0) && wait.0 <= TEN_YEARS + slack, "waits {wait:?}");
            }
        }
    }

    #[test]
    fn work_done_when_it_was_reserved_for_keeps_to_the_limit(
        sequence in sequence(&[Kind::TokenBucket], true),
    ) {
        let config = &sequence.config;
        let work: Vec<_> = run(&sequence)
            .iter()
            .filter(|call| call.decision.ok && call.step.count > 0.0)
            .map(|call| (call.now + call.decision.retry_after.unwrap_or_default().0, call.step.count))
            .collect();
        keeps_to(config, &work)?;
    }

    #[test]
    fn reserved_tokens_are_there_after_the_wait_and_not_before(
        sequence in sequence(&[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar], true),
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        for call in run(&sequence) {
            let (Some(wait), Some(after)) = (call.decision.retry_after, &call.decision.state) else {
                continue;
            };
            let at = |span: i64| limit.level(after, Micros(call.now + span)).remaining;
            let last_bits = 1e-14 * after.value().abs();
            prop_assert!(at(wait.0) >= -config.tolerance() - last_bits, "{} at the end", at(wait.0));
            let early = wait.0 - 1_000;
            if early >= 0 {
                prop_assert!(at(early) < config.tolerance() + last_bits, "{} before", at(early));
            }
        }
    }
}

/// A debt that another config left, or a credit: up to 1e15 tokens, with the clock at up to five periods
/// after it.
fn owing() -> impl Strategy<Value = (Config, State, i64)> {
    let kinds = &[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar];
    (config(kinds), instant(), -3.0..15.0, 0.0..5.0).prop_map(
        |(config, ts, exponent, periods): (Config, i64, f64, f64)| {
            // Dates end with the year 9999.
            let ts = if config.dates.is_some() { ts % 5_000_000_000_000_000 } else { ts };
            let value = -10f64.powf(exponent);
            let state = tokens_at(value, ts);
            let now = ts + (periods * config.period as f64) as i64;
            (config, state, now)
        },
    )
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn no_debt_lasts_longer_than_ten_years((config, state, now) in owing()) {
        let limit = config.limit();
        let Limit::TokenBucket(_) = limit else {
            // The windows that begin within ten years of the end of the one that the state is from.
            let (Some(wait), Some(turn)) = (
                decide(&limit, &state, Micros(now), 0.0, false).retry_after,
                limit.level(&state, state.ts()).reset_at,
            ) else {
                prop_assert!(decide(&limit, &state, Micros(now), 0.0, false).ok);
                return Ok(());
            };
            let free = now + wait.0;
            prop_assert!(free < turn.0 + TEN_YEARS || free == turn.0, "{state:?} until {free}");
            return Ok(());
        };
        let looked = decide(&limit, &state, Micros(now), 0.0, false);
        let free = now + looked.retry_after.unwrap_or_default().0;
        prop_assert!(looked.ok || free <= state.ts().0 + TEN_YEARS + 1, "{state:?} until {free}");
        prop_assert!(decide(&limit, &state, Micros(free), 0.0, false).ok);
        // The same, whenever one asks: it is no later for having asked.
        let late = state.ts().0 + TEN_YEARS + 1;
        prop_assert!(decide(&limit, &state, Micros(late), 0.0, false).ok);
    }

    #[test]
    fn a_credit_that_takes_leaves_no_more_debt_than_the_next_call_finds(
        (config, state, now) in owing(),
        count in 0.0..1e15f64,
    ) {
        let limit = config.limit();
        let taken = credit(&limit, &state, Micros(now), -count, None).unwrap();
        if let Some(after) = taken.state {
            prop_assert_eq!(limit.level(&after, Micros(now)), taken.level);
        }
    }

    #[test]
    fn no_debt_that_its_own_limit_allowed_is_forgiven(
        sequence in sequence(&[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar], true),
        whole in 0.0..1.0f64,
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        let mut state = limit.initial_state(Micros(sequence.begin), Micros(sequence.begin));
        let mut now = sequence.begin;
        for step in &sequence.steps {
            now += step.gap;
            // As deep as it goes: what ten years bring, or a share of it.
            let most = config.refill(TEN_YEARS + config.period) + config.capacity;
            for count in [whole * most, 0.1 * whole * most, step.count, config.tolerance() / 3.0] {
                let decision = decide(&limit, &state, Micros(now), count, true);
                if let Some(after) = decision.state {
                    let found = limit.level(&after, Micros(now)).remaining;
                    let last_bits = 2e-15 * after.value().abs();
                    prop_assert!((found - decision.level.remaining).abs() <= last_bits);
                    state = after;
                }
            }
        }
    }
}

/// The time in which the tolerance's tokens come in at the moment when a call first passes: so
/// much earlier it may pass. `None` where that has no meaning.
fn tolerated(config: &Config, before: &State, at: i64) -> Option<f64> {
    let tolerance = 2.0 * config.tolerance();
    let period = config.period as f64;
    match config.kind {
        Kind::TokenBucket => Some(tolerance / config.rate * period),
        Kind::FixedWindow | Kind::Calendar => (config.rate > tolerance).then_some(0.0),
        Kind::SlidingLog => Some(0.0),
        Kind::SlidingWindow => {
            // What is fading just before.
            let turns = config.window(at - 1, 0) - config.window(before.ts().0, 0);
            let State::Counters(counters) = before else { unreachable!() };
            let fading = [counters.prior, counters.value];
            let fading = fading.get(turns as usize).copied().unwrap_or(0.0);
            (fading > 0.0).then(|| tolerance / fading * period)
        }
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn a_denied_call_passes_at_its_retry_time_and_not_before(
        sequence in sequence(ALL, true),
        share in 0.0..1.0,
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        for call in run(&sequence).iter().filter(|call| !call.decision.ok) {
            let Step { count, reserve, .. } = call.step;
            let ok = |at: i64| decide(&limit, &call.before, Micros(at), count, reserve).ok;
            let Some(wait) = call.decision.retry_after else { continue };
            prop_assert!(wait > Micros(0), "a wait of nothing: {:?}", call.decision);
            let at = call.now + wait.0;
            prop_assert!(ok(at), "{:?} of {:?} denied at {at}", call.step, call.before);
            let Some(tolerated) = tolerated(config, &call.before, at) else { continue };
            let early = wait.0 - 1_000 - tolerated.min(wait.0 as f64) as i64;
            if early > 0 {
                for early in [early, (early as f64 * share) as i64] {
                    let at = call.now + early;
                    prop_assert!(!ok(at), "{:?} of {:?} passed at {at}, {:?}", call.step, call.before, wait);
                }
            }
        }
    }

    #[test]
    fn a_call_without_a_retry_time_can_never_pass(sequence in sequence(ALL, true)) {
        let config = &sequence.config;
        let limit = config.limit();
        for call in run(&sequence).iter().filter(|call| !call.decision.ok) {
            let Step { count, reserve, .. } = call.step;
            let most = config.capacity + match config.max_reserved {
                _ if !reserve || config.kind == Kind::SlidingWindow => 0.0,
                _ if config.kind == Kind::SlidingLog => 0.0,
                Some(bound) => bound.min(config.refill(TEN_YEARS)),
                None => config.refill(TEN_YEARS),
            };
            let waits = call.decision.retry_after.is_some();
            let unsure = 2.0 * config.tolerance() + 1e-12 * most
                // Whole windows make the ten years coarse, and calendar windows differ in length.
                + match config.kind {
                    Kind::FixedWindow if reserve => config.rate,
                    Kind::Calendar if reserve => 3.0 * config.rate,
                    _ => 0.0,
                };
            if (count - most).abs() > unsure {
                prop_assert_eq!(waits, count < most, "{:?}, most {}", call.step, most);
            }
            if !waits {
                for periods in [0, 1, 2, 10] {
                    let at = Micros(call.now + periods * config.period);
                    prop_assert!(!decide(&limit, &call.before, at, count, reserve).ok);
                }
            }
        }
    }

    #[test]
    fn a_denial_and_a_count_of_zero_change_nothing(sequence in sequence(ALL, true)) {
        let limit = sequence.config.limit();
        for call in run(&sequence) {
            let level = limit.level(&call.before, Micros(call.now));
            if !call.decision.ok || call.step.count == 0.0 {
                prop_assert_eq!(&call.decision.state, &None);
                prop_assert_eq!(call.decision.level, level);
            }
            // A count of zero asks whether the limit is in debt, which takes more than float error.
            let look = decide(&limit, &call.before, Micros(call.now), 0.0, false);
            prop_assert_eq!(look.state, None);
            prop_assert_eq!(look.level, level);
            prop_assert_eq!(look.ok, level.remaining >= -sequence.config.tolerance());
        }
    }

    #[test]
    fn a_credit_undoes_a_take_and_never_fills_above_the_capacity(
        sequence in sequence(&[Kind::TokenBucket, Kind::FixedWindow, Kind::Calendar], true),
        more in 0.0..2.0f64,
    ) {
        let limit = sequence.config.limit();
        for call in run(&sequence) {
            let Some(after) = &call.decision.state else { continue };
            let now = Micros(call.now);
            let credit = |state: &State, count: f64| credit(&limit, state, now, count, None).unwrap();
            let there = limit.level(&call.before, now).remaining;
            // A debt far above the capacity has last bits above the tolerance.
            let slack = 2.0 * sequence.config.tolerance()
                + 1e-14 * (after.value().abs() + call.before.value().abs() + call.step.count);
            let back = credit(after, call.step.count);
            prop_assert!(back.ok);
            prop_assert!((back.level.remaining - there).abs() <= slack);
            let over = credit(after, call.step.count + more * sequence.config.capacity.max(1.0));
            prop_assert!(over.level.remaining <= limit.capacity());
            // Taking unconditionally is the same with the other sign.
            let debit = credit(&call.before, -call.step.count).level.remaining;
            prop_assert!((debit - call.decision.level.remaining).abs() <= slack);
        }
    }

    #[test]
    fn a_check_says_what_the_limit_then_does(sequence in sequence(ALL, false)) {
        let config = &sequence.config;
        let limit = config.limit();
        for call in run(&sequence) {
            let there = limit.level(&call.before, Micros(call.now)).remaining;
            let left = there - call.step.count;
            let unsure = 2.0 * config.tolerance();
            if left.abs() > unsure {
                prop_assert_eq!(call.decision.ok, left > 0.0);
            }
            let after = call.decision.level.remaining;
            let expected = if call.decision.ok { left } else { there };
            prop_assert!((after - expected).abs() <= unsure, "{after}, not {expected}");
            if let Some(state) = &call.decision.state {
                prop_assert_eq!(limit.level(state, Micros(call.now)), call.decision.level);
            }
        }
    }

    #[test]
    fn a_limit_is_full_again_at_its_reset_time(
        sequence in sequence(&[Kind::TokenBucket, Kind::SlidingLog], true),
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        for call in run(&sequence) {
            let Some(reset_at) = call.decision.level.reset_at else { continue };
            prop_assert!(reset_at >= Micros(call.now));
            let state = call.decision.state.unwrap_or(call.before);
            let missing = |at| config.capacity - limit.level(&state, at).remaining;
            let last_bits = 1e-14 * state.value().abs();
            prop_assert!(missing(reset_at) <= config.tolerance() + last_bits);
            let tolerated = tolerated(config, &state, reset_at.0).unwrap();
            let early = reset_at.0 - 1_000 - tolerated.min(1e18) as i64;
            if early > call.now {
                prop_assert!(missing(Micros(early)) > 0.0);
            }
        }
    }

    #[test]
    fn a_window_turns_at_its_reset_time(
        sequence in sequence(&[Kind::FixedWindow, Kind::Calendar, Kind::SlidingWindow], false),
    ) {
        let config = &sequence.config;
        let phase = match config.kind {
            Kind::FixedWindow => config.start.unwrap_or(sequence.begin),
            _ => 0,
        };
        for call in run(&sequence) {
            let turn = config.begins(config.window(call.now, phase) + 1, phase);
            prop_assert_eq!(call.decision.level.reset_at, Some(Micros(turn)));
        }
    }

    #[test]
    fn splitting_an_idle_time_in_two_changes_nothing(
        sequence in sequence(ALL, true),
        idle in 0.0..3.0,
        share in 0.0..1.0,
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        let calls = run(&sequence);
        let last = calls.last().unwrap();
        let state = last.decision.state.clone().unwrap_or_else(|| last.before.clone());
        let idle = (idle * config.period as f64) as i64;
        let middle = last.now + (idle as f64 * share) as i64;
        let end = Micros(last.now + idle);

        // The state as it would be stored in the middle, if something were stored there.
        let period = config.period;
        let refilled = match &state {
            State::Tokens(tokens) => {
                let value = limit.level(&state, Micros(middle)).remaining;
                let ts = match config.kind {
                    Kind::TokenBucket => middle,
                    _ => config.begins(config.window(middle, tokens.ts.0), tokens.ts.0),
                };
                State::Tokens(Tokens { value, ts: Micros(ts), ..*tokens })
            }
            State::Counters(counters) => {
                let turns = config.window(middle, 0) - config.window(counters.ts.0, 0);
                let values = [counters.prior, counters.value, 0.0, 0.0, 0.0];
                let turn = turns.min(3) as usize;
                let ts = Micros(middle - middle.rem_euclid(period));
                State::Counters(Counters { value: values[turn + 1], prior: values[turn], ts })
            }
            State::Log(log) => {
                let live = |taken: &Micros| taken.0 > middle - period;
                let entries = log.entries.iter().copied().filter(live).collect();
                State::Log(Log { entries, ts: log.ts })
            }
            State::Leases(_) => unreachable!(),
        };
        let (whole, split) = (limit.level(&state, end), limit.level(&refilled, end));
        let slack = 2.0 * config.tolerance() + 1e-14 * state.value().abs();
        prop_assert!((whole.remaining - split.remaining).abs() <= slack, "{whole:?}, {split:?}");
        for count in [config.capacity, config.rate, 1.0] {
            let (whole, split) =
                [&state, &refilled].map(|state| decide(&limit, state, end, count, false)).into();
            let near_the_edge = (limit.level(&state, end).remaining - count).abs() <= 2.0 * slack;
            prop_assert!(near_the_edge || whole.ok == split.ok, "{whole:?}, {split:?}");
        }
    }
}

// A clock that steps back.
proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn a_clock_that_steps_back_neither_gives_nor_takes(
        sequence in sequence(ALL, true),
        back in 0.0..1.0f64,
        count in 0.0..1.0f64,
    ) {
        let config = &sequence.config;
        let limit = config.limit();
        for call in run(&sequence) {
            let Some(stored) = call.decision.state else { continue };
            let now = Micros(stored.ts().0 - (back * clock::bound(config) as f64) as i64);
            let count = (count * config.capacity).ceil();

            // As if the clock stood still.
            let (then, still) = (limit.level(&stored, now), limit.level(&stored, stored.ts()));
            prop_assert_eq!(then.remaining, still.remaining);
            let decision = decide(&limit, &stored, now, count, false);
            prop_assert_eq!(decision.ok, decide(&limit, &stored, stored.ts(), count, false).ok);
            let Some(after) = decision.state else { continue };
            prop_assert_eq!(after.ts(), stored.ts());
            // The tokens are what they were, less the count.
            let counts_up = matches!(config.kind, Kind::SlidingWindow | Kind::SlidingLog);
            let expected = stored.value() + if counts_up { count } else { -count };
            prop_assert_eq!(after.value(), expected);
            match (after, stored) {
                (State::Tokens(after), State::Tokens(stored)) => prop_assert_eq!(after.added, stored.added),
                (State::Counters(after), State::Counters(stored)) => prop_assert_eq!(after.prior, stored.prior),
                (State::Log(after), State::Log(_)) => prop_assert!(after.entries.is_sorted()),
                (after, stored) => prop_assert!(false, "{stored:?} became {after:?}"),
            }
        }
    }

    #[test]
    fn no_state_and_no_clock_overflows(
        config in config(ALL),
        ts in prop_oneof![any::<i64>(), instant()],
        now in prop_oneof![any::<i64>(), instant()],
        value in -1e18..1e18f64,
        count in prop_oneof![0.0..1e15f64, 0.0..10.0],
        reserve in prop::bool::ANY,
    ) {
        let limit = config.limit();
        let (ts, now) = (Micros(ts / 2), Micros(now / 2));
        let state = match config.kind {
            Kind::SlidingWindow => State::Counters(Counters { value, prior: value / 2.0, ts }),
            Kind::SlidingLog => State::Log(Log { entries: vec![ts; 3], ts }),
            _ => tokens_at(value, ts.0),
        };
        let count = if config.kind == Kind::SlidingLog { count.ceil() } else { count };
        let decision = decide(&limit, &state, now, count, reserve);
        prop_assert!(decision.level.remaining.is_finite());
        prop_assert!(decision.state.is_none_or(|state| state.value().is_finite()));
        prop_assert!(decision.retry_after.is_none_or(|wait| wait >= Micros(0)));
    }
}

/// The start and the end of the window of an unused limit at `now`.
fn window_of(limit: &Limit, now: i64) -> (i64, i64) {
    let fresh = limit.initial_state(Micros(now), Micros(0));
    (fresh.ts().0, limit.level(&fresh, Micros(now)).reset_at.unwrap().0)
}

fn calendar(dates: Dates) -> Limit {
    let config = Config {
        kind: Kind::Calendar,
        rate: 1.0,
        period: 0,
        capacity: 1e6,
        max_reserved: None,
        start: None,
        dates: Some(dates),
    };
    config.limit()
}

#[test]
fn days_tile_time_around_every_change_of_every_clock() {
    let database = TimeZoneDatabase::bundled();
    let mut zones = 0;
    for name in database.available() {
        let zone = database.get(name.as_str()).unwrap();
        let days = Dates { zone: zone.clone(), months: false, every: 1, start: None };
        let limit = calendar(days);
        let until = date(2045, 1, 1).to_zoned(TimeZone::UTC).unwrap().timestamp();
        let changes: Vec<Timestamp> = zone
            .following(Timestamp::MIN)
            .map(|change| change.timestamp())
            .take_while(|&change| change < until)
            .chain([until])
            .collect();
        for change in changes {
            let day = zone.to_datetime(change).date();
            // The dates around it; one that the zone skipped begins with the next and is no day.
            let mut begins: Vec<i64> =
                (-2..=2).map(|n| first_instant(&zone, day + Span::new().days(n))).collect();
            begins.dedup();
            for day in begins.windows(2) {
                let (begin, end) = (day[0], day[1]);
                assert!(begin < end, "{name:?} {change}");
                let change = change.as_microsecond();
                let nows = [begin, begin + 1, (begin + end) / 2, end - 1, change - 1, change];
                for now in nows.into_iter().filter(|now| (begin..end).contains(now)) {
                    assert_eq!(window_of(&limit, now), (begin, end), "{name:?} {now}");
                }
            }
        }
        zones += 1;
    }
    assert!(zones > 500, "only {zones} zones");
}

fn any_zone() -> impl Strategy<Value = TimeZone> {
    let database = TimeZoneDatabase::bundled();
    let names: Vec<String> = database.available().map(|name| name.as_str().to_owned()).collect();
    prop::sample::select(names).prop_map(move |name| database.get(&name).unwrap())
}

/// An instant of the years 1850 to 2200.
fn any_instant() -> impl Strategy<Value = i64> {
    -3_786_912_000_000_000..7_258_118_400_000_000i64
}

// Calendar windows.
proptest! {
    #![proptest_config(cases(3_000))]

    #[test]
    fn windows_tile_time_in_every_zone(
        zone in any_zone(),
        dates in dates(),
        now in any_instant(),
        turns in 1i64..50,
    ) {
        let dates = Dates { zone, ..dates };
        let limit = calendar(dates.clone());
        let (begin, end) = window_of(&limit, now);
        prop_assert!(begin <= now && now < end);
        let window = dates.window(now);
        prop_assert_eq!((begin, end), (dates.begins(window), dates.begins(window + 1)));
        prop_assert_eq!(window_of(&limit, begin), (begin, end));
        prop_assert_eq!(window_of(&limit, end - 1), (begin, end));
        prop_assert_eq!(window_of(&limit, end).0, end);
        // Each turn adds one rate, however far away.
        let later = dates.begins(window + turns);
        let used = tokens_at(0.0, begin);
        let tokens = |now: i64| limit.level(&used, Micros(now)).remaining;
        prop_assert_eq!(tokens(later), (dates.window(later) - window) as f64);
        prop_assert_eq!(tokens(later - 1), (dates.window(later - 1) - window) as f64);
        // And is when the tokens of a reservation are due.
        let owed = decide(&limit, &used, Micros(now), turns as f64, true);
        if owed.ok {
            prop_assert_eq!(owed.retry_after, Some(Micros(later - now)));
        }
    }

    #[test]
    fn no_window_begins_before_the_current_ones_end_when_zone_or_start_change(
        was in dates(),
        now in any_instant(),
        zone in any_zone(),
        start in start(),
        moves in prop::bool::ANY,
    ) {
        let mut is = was.clone();
        if moves {
            is.zone = zone;
        } else {
            is.start = start;
        }
        let (begin, end) = window_of(&calendar(was.clone()), now);
        let limit = calendar(is.clone());
        let used = tokens_at(0.0, begin);
        let turn = limit.level(&used, Micros(begin)).reset_at.unwrap().0;
        prop_assert_eq!(window_of(&limit, turn).0, turn);
        let at = |micros: i64| Timestamp::from_microsecond(micros).unwrap();
        if window_of(&limit, begin).0 != begin {
            // A period is as long as the clocks make it: one that changed its hour meanwhile, or
            // its date, may have made it shorter in one zone than in the other.
            let changed = |zone: &TimeZone, to: i64| {
                let offset = |micros: i64| i64::from(zone.to_offset(at(micros)).seconds());
                (offset(to) - offset(begin)).abs() * 1_000_000
            };
            let changes = changed(&was.zone, end) + changed(&is.zone, end) + changed(&is.zone, turn);
            let early = if moves { changes } else { 0 };
            prop_assert!(turn >= end - early, "{} before {}", turn, end);
            // And it is the first to begin so late.
            let local = |micros: i64| is.zone.to_datetime(at(micros));
            let mut period_later = local(begin) + is.period().parse::<Span>().unwrap();
            prop_assert!(local(turn) >= period_later);
            if is.months && local(begin).date() == local(begin).date().last_of_month() {
                period_later = period_later.last_of_month();
            }
            prop_assert!(local(window_of(&limit, turn - 1).0) < period_later);
        }
        // Nothing until then, also for a clock that steps back; then one rate.
        let tokens = |now: i64| limit.level(&used, Micros(now)).remaining;
        prop_assert_eq!((tokens(begin - 1), tokens(turn - 1), tokens(turn) >= 1.0), (0.0, 0.0, true));
        let denied = decide(&limit, &used, Micros(begin), 1.0, false);
        prop_assert_eq!(denied.retry_after, Some(Micros(turn - begin)));
    }
}

/// A small generator for the long runs: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Tokens in whole units, so that nothing is ever rounded.
#[derive(Clone, Copy)]
struct Exact {
    /// Units in a token; a microsecond of a token bucket adds `rate` units of `count`.
    rate: i128,
    period: i128,
    capacity: i128,
    /// The number of the limit's tokens that are one token here.
    unit: f64,
}

impl Exact {
    fn limit(&self, kind: Kind) -> Limit {
        let config = Config {
            kind,
            rate: self.rate as f64 * self.unit,
            period: self.period as i64,
            capacity: self.capacity as f64 * self.unit,
            max_reserved: None,
            start: None,
            dates: None,
        };
        config.limit()
    }
}

const LONG_RUNS: [Exact; 5] = [
    Exact { rate: 3, period: 7_000, capacity: 5, unit: 1.0 },
    Exact { rate: 1, period: 3_000, capacity: 1, unit: 1.0 },
    Exact { rate: 10, period: 60_000_000, capacity: 10, unit: 1.0 },
    // Decimal fractions, which no float holds.
    Exact { rate: 1, period: 1_000, capacity: 3, unit: 0.1 },
    Exact { rate: 7, period: 11_000, capacity: 23, unit: 0.3 },
];

const CALLS: usize = 400_000;

#[test]
fn a_token_bucket_is_exact_over_millions_of_calls() {
    for exact in LONG_RUNS {
        let limit = exact.limit(Kind::TokenBucket);
        let mut random = Random(42);
        let mut now = 1_700_000_000_000_000i64;
        let mut state = limit.initial_state(Micros(now), Micros(now));
        let mut units = exact.capacity * exact.period;
        let (mut admitted, mut expected) = (0u64, 0u64);
        for call in 0..CALLS {
            // About as often as tokens come in; a third of the calls wait for the retry_after.
            let gap = random.below(2 * (exact.period / exact.rate) as u64) as i64;
            now += gap;
            units = (units + i128::from(gap) * exact.rate).min(exact.capacity * exact.period);
            let count = i128::from(1 + random.below(2)).min(exact.capacity);
            let mut decision =
                decide(&limit, &state, Micros(now), count as f64 * exact.unit, false);
            let short = count * exact.period - units;
            assert_eq!(decision.ok, short <= 0, "call {call}: {units} units, {state:?}");
            if !decision.ok {
                let wait = decision.retry_after.unwrap().0;
                let shortest = (short + exact.rate - 1) / exact.rate;
                assert!((0..=1).contains(&(i128::from(wait) - shortest)), "call {call}: {wait}");
                if call % 3 == 0 {
                    now += shortest as i64;
                    units = (units + shortest * exact.rate).min(exact.capacity * exact.period);
                    decision =
                        decide(&limit, &state, Micros(now), count as f64 * exact.unit, false);
                    assert!(decision.ok, "call {call}: denied at its retry time");
                }
            }
            if units >= count * exact.period {
                units -= count * exact.period;
                expected += count as u64;
            }
            if let Some(after) = decision.state {
                admitted += count as u64;
                state = after;
            }
        }
        assert_eq!(admitted, expected);
        assert!(admitted > CALLS as u64 / 2, "hardly anything was admitted: {admitted}");
    }
}

#[test]
fn a_caller_who_always_waits_as_told_gets_every_token_over_millions_of_calls() {
    for exact in LONG_RUNS {
        let limit = exact.limit(Kind::TokenBucket);
        let begin = 1_700_000_000_000_000i64;
        let mut now = begin;
        let mut state = limit.initial_state(Micros(now), Micros(now));
        let mut admitted = 0i128;
        for _ in 0..CALLS {
            let decision = decide(&limit, &state, Micros(now), exact.unit, false);
            match decision.state {
                Some(after) => {
                    admitted += 1;
                    state = after;
                }
                None => now += decision.retry_after.unwrap().0,
            }
        }
        let all = exact.capacity + i128::from(now - begin) * exact.rate / exact.period;
        assert!((all - admitted).abs() <= 1, "{admitted} of {all}");
        assert!(all - admitted >= 0, "{admitted} of {all}");
    }
}

#[test]
fn a_fixed_window_is_exact_over_millions_of_calls() {
    for exact in LONG_RUNS {
        let limit = exact.limit(Kind::FixedWindow);
        let mut random = Random(43);
        let mut now = 1_700_000_000_000_000i64;
        let phase = now;
        let mut state = limit.initial_state(Micros(now), Micros(phase));
        let (mut window, mut tokens) = (0, exact.capacity);
        let mut admitted = 0u64;
        for call in 0..CALLS {
            now += random.below(2 * (exact.period / exact.rate) as u64) as i64;
            let turned = i128::from(now - phase) / exact.period;
            tokens = (tokens + (turned - window) * exact.rate).min(exact.capacity);
            window = turned;
            let count = i128::from(1 + random.below(2)).min(exact.capacity);
            let decision = decide(&limit, &state, Micros(now), count as f64 * exact.unit, false);
            assert_eq!(decision.ok, count <= tokens, "call {call}: {tokens} left, {state:?}");
            if let Some(after) = decision.state {
                tokens -= count;
                admitted += count as u64;
                state = after;
            }
        }
        assert!(admitted > CALLS as u64 / 4, "hardly anything was admitted: {admitted}");
    }
}

#[test]
fn a_sliding_window_is_exact_over_millions_of_calls() {
    for exact in LONG_RUNS {
        let limit = exact.limit(Kind::SlidingWindow);
        let mut random = Random(44);
        let mut now = 1_700_000_000_000_000i64;
        let mut state = limit.initial_state(Micros(now), Micros(now));
        let (mut window, mut current, mut prior) = (i128::from(now) / exact.period, 0, 0);
        let mut admitted = 0u64;
        for call in 0..CALLS {
            now += random.below(2 * (exact.period / exact.rate) as u64) as i64;
            let into = i128::from(now) % exact.period;
            match i128::from(now) / exact.period - window {
                0 => {}
                1 => (prior, current) = (current, 0),
                _ => (prior, current) = (0, 0),
            }
            window = i128::from(now) / exact.period;
            let count = i128::from(1 + random.below(2));
            // Everything times the period.
            let used = prior * (exact.period - into) + current * exact.period;
            let fits = used + count * exact.period <= exact.rate * exact.period;
            let decision = decide(&limit, &state, Micros(now), count as f64 * exact.unit, false);
            assert_eq!(decision.ok, fits, "call {call}: {state:?}");
            if let Some(after) = decision.state {
                current += count;
                admitted += count as u64;
                state = after;
            }
        }
        assert!(admitted > CALLS as u64 / 8, "hardly anything was admitted: {admitted}");
    }
}

#[test]
fn a_sliding_log_is_exact_over_millions_of_calls() {
    for exact in LONG_RUNS.into_iter().filter(|exact| exact.unit == 1.0) {
        let limit = exact.limit(Kind::SlidingLog);
        let rate = limit.capacity() as usize;
        let mut random = Random(45);
        let mut now = 1_700_000_000_000_000i64;
        let mut state = limit.initial_state(Micros(now), Micros(now));
        let mut log = std::collections::VecDeque::new();
        for call in 0..CALLS / 2 {
            now += random.below(2 * (exact.period / exact.rate) as u64) as i64;
            while log.front().is_some_and(|taken| taken + exact.period as i64 <= now) {
                log.pop_front();
            }
            let count = 1 + random.below(2) as usize;
            let decision = decide(&limit, &state, Micros(now), count as f64, false);
            assert_eq!(decision.ok, log.len() + count <= rate, "call {call}: {state:?}");
            if let Some(after) = decision.state {
                log.extend(std::iter::repeat_n(now, count));
                state = after;
            }
        }
    }
}

// Edges that generated numbers hardly ever meet.

#[test]
fn a_fixed_window_that_misses_by_the_tolerance_alone_still_has_a_retry_time() {
    for (rate, capacity) in [(0.1, 5.0), (0.3, 7.0), (1.0, 1e6), (1.1, 0.7)] {
        let config = Config {
            kind: Kind::FixedWindow,
            rate,
            period: 1_000_000,
            capacity,
            max_reserved: None,
            start: Some(0),
            dates: None,
        };
        let limit = config.limit();
        for windows in 1..40 {
            let count = f64::from(windows) * rate + config.tolerance();
            for count in [count.next_down(), count, count.next_up()] {
                let empty = tokens_at(0.0, 0);
                let decision = decide(&limit, &empty, Micros(0), count, false);
                if count <= capacity {
                    let wait = decision.retry_after.unwrap();
                    assert!(decide(&limit, &empty, wait, count, false).ok, "{count} of {rate}");
                    assert!(wait.0 <= (i64::from(windows) + 1) * config.period);
                }
            }
        }
    }
}

#[test]
fn a_count_above_the_rate_by_float_error_alone_waits_for_no_window_more() {
    let day = 86_400_000_000;
    let config = Config {
        kind: Kind::SlidingWindow,
        rate: 0.3,
        period: day,
        capacity: 0.3,
        max_reserved: None,
        start: None,
        dates: None,
    };
    let used = State::Counters(Counters { value: 0.3, prior: 0.0, ts: Micros(0) });
    // 0.30000000000000004
    let decision = decide(&config.limit(), &used, Micros(day), 0.1 + 0.2, false);
    let wait = decision.retry_after.unwrap();
    assert!(!decision.ok && wait <= Micros(day), "{decision:?}");
    assert!(decide(&config.limit(), &used, Micros(day + wait.0), 0.1 + 0.2, false).ok);
}

#[test]
fn what_the_tolerance_lets_pass_is_not_forgiven_where_it_is_more_than_ten_years_bring() {
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        let config = Config {
            kind,
            rate: 1.0,
            period: 86_400_000_000,
            capacity: 1e15,
            max_reserved: None,
            start: None,
            dates: None,
        };
        let limit = config.limit();
        let mut state = tokens_at(0.0, 0);
        let mut taken = 0.0;
        for _ in 0..10 {
            if let Some(after) = decide(&limit, &state, Micros(0), 4e5, false).state {
                taken += 4e5;
                state = after;
            }
        }
        assert_eq!(taken, 8e5, "{kind:?}");
    }
}

#[test]
fn a_sliding_limit_whose_rate_was_lowered_is_not_in_debt() {
    let used = [
        (Kind::SlidingWindow, State::Counters(Counters { value: 9.0, prior: 9.0, ts: Micros(0) })),
        (Kind::SlidingLog, State::Log(Log { entries: vec![Micros(0); 9], ts: Micros(0) })),
    ];
    for (kind, state) in used {
        let config = Config {
            kind,
            rate: 3.0,
            period: 60_000_000,
            capacity: 3.0,
            max_reserved: None,
            start: None,
            dates: None,
        };
        let limit = config.limit();
        let zero = decide(&limit, &state, Micros(0), 0.0, false);
        assert_eq!((zero.ok, zero.retry_after, zero.state), (true, None, None), "{kind:?}");
        assert_eq!(zero.level.remaining, 0.0, "{kind:?}");
        assert!(!decide(&limit, &state, Micros(0), 1.0, false).ok, "{kind:?}");
    }
}

#[test]
fn a_reservation_behind_a_clock_that_was_ahead_waits_no_more_than_ten_years() {
    let year = 31_557_600_000_000;
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        let config = Config {
            kind,
            rate: 1.0,
            period: year,
            capacity: 20.0,
            max_reserved: None,
            start: None,
            dates: None,
        };
        let limit = config.limit();
        let ahead = tokens_at(0.0, 5 * year);
        let decision = decide(&limit, &ahead, Micros(0), 5.0, true);
        assert_eq!(decision.retry_after, Some(Micros::TEN_YEARS), "{decision:?}");
        let decision = decide(&limit, &ahead, Micros(0), 9.0, true);
        assert_eq!((decision.ok, decision.retry_after), (false, Some(Micros(4 * year))));
        assert!(decide(&limit, &ahead, Micros(4 * year), 9.0, true).ok);
    }
}

#[test]
fn a_reservation_counts_its_ten_years_without_the_refill_that_is_lost() {
    // A window of 20 years adds 1, of which nothing stays beyond what pays a debt.
    let year = 31_557_600_000_000;
    let config = Config {
        kind: Kind::FixedWindow,
        rate: 1.0,
        period: 20 * year,
        capacity: 0.0,
        max_reserved: Some(0.3),
        start: Some(0),
        dates: None,
    };
    let limit = config.limit();
    let owing = tokens_at(-0.2, 0);
    let retry = |state: &State, years: i64| {
        let decision = decide(&limit, state, Micros(years * year), 0.2, true);
        (decision.ok, decision.retry_after.map(|wait| wait.0 / year))
    };
    // Paid in year 20; from year 30 on the next turn is ten years away.
    assert_eq!(retry(&owing, 0), (false, Some(30)));
    assert_eq!(retry(&owing, 29), (false, Some(1)));
    assert_eq!(retry(&owing, 30), (true, Some(10)));
}
