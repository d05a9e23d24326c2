//! The model of a limit for the checks under load: the takes that it may admit. Independent of a
//! server.

use Rule::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};

/// A limit in the model; times in microseconds, instants since the epoch.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    TokenBucket { capacity: f64, rate: f64, period: f64 },
    FixedWindow { capacity: f64, rate: f64, period: i64, start: i64 },
    SlidingWindow { rate: f64, period: i64 },
    SlidingLog { rate: f64, period: i64 },
}

pub const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// Every kind, in a period so long, or at a rate so low, that the refill is below a float's precision.
pub fn slow(tokens: f64) -> [Rule; 4] {
    [
        TokenBucket { capacity: tokens, rate: 1e-300, period: DAY as f64 },
        FixedWindow { capacity: tokens, rate: tokens, period: 100_000 * DAY, start: 0 },
        SlidingWindow { rate: tokens, period: 100_000 * DAY },
        SlidingLog { rate: tokens, period: 100_000 * DAY },
    ]
}

/// Every kind, some 200 tokens a second.
pub fn quick() -> [Rule; 4] {
    let period = SECOND / 4;
    [
        TokenBucket { capacity: 30.0, rate: 200.0, period: SECOND as f64 },
        FixedWindow { capacity: 70.0, rate: 50.0, period, start: 1_000 },
        SlidingWindow { rate: 50.0, period },
        SlidingLog { rate: 50.0, period },
    ]
}

impl Rule {
    pub fn config(&self) -> String {
        match *self {
            TokenBucket { capacity, rate, period } => format!(
                r#"{{"kind": "token bucket", "rate": {rate:e}, "period": {}, "capacity": {capacity}}}"#,
                period / 1e3
            ),
            FixedWindow { capacity, rate, period, start } => format!(
                r#"{{"kind": "fixed window", "rate": {rate}, "period": {}, "capacity": {capacity}, "start": {}}}"#,
                period / 1_000,
                start / 1_000
            ),
            SlidingWindow { rate, period } => format!(
                r#"{{"kind": "sliding window", "rate": {rate}, "period": {}}}"#,
                period / 1_000
            ),
            SlidingLog { rate, period } => {
                format!(
                    r#"{{"kind": "sliding log", "rate": {rate}, "period": {}}}"#,
                    period / 1_000
                )
            }
        }
    }

    pub fn capacity(&self) -> f64 {
        match *self {
            TokenBucket { capacity, .. } | FixedWindow { capacity, .. } => capacity,
            SlidingWindow { rate, .. } | SlidingLog { rate, .. } => rate,
        }
    }

    /// Checks that these takes of one key, in order, may be admitted. The limit was full at `from`.
    pub fn check(&self, from: i64, takes: &[Take]) -> Result<(), String> {
        // The number of an instant's window.
        let window = |at: i64, start: i64, period: i64| (at - start).div_euclid(period);
        match *self {
            TokenBucket { capacity, rate, period } => {
                refilled(from, takes, capacity, |at| (at - from) as f64 * rate / period)
            }
            FixedWindow { capacity, rate, period, start } => {
                let first = window(from, start, period);
                refilled(from, takes, capacity, |at| {
                    (window(at, start, period) - first) as f64 * rate
                })
            }
            SlidingWindow { rate, period } => {
                // The takes that certainly fell into a window, and into the previous one.
                let (mut number, mut used, mut prior, mut before) = (0, 0.0, 0.0, from);
                for (n, take) in takes.iter().enumerate() {
                    let now = window(take.at, 0, period);
                    if now != number {
                        prior = if now == number + 1 { used } else { 0.0 };
                        (number, used) = (now, 0.0);
                    }
                    if window(before, 0, period) == now {
                        used += take.count;
                        let share = 1.0 - (take.at - now * period) as f64 / period as f64;
                        within(n, prior * share + used, rate)?;
                    }
                    before = take.at;
                }
                Ok(())
            }
            SlidingLog { rate, period } => {
                let decided_after = |n: usize| if n == 0 { from } else { takes[n - 1].at };
                let (mut first, mut used) = (0, 0.0);
                for (n, take) in takes.iter().enumerate() {
                    used += take.count;
                    while take.at - decided_after(first) >= period {
                        used -= takes[first].count;
                        first += 1;
                    }
                    within(n, used, rate)?;
                }
                Ok(())
            }
        }
    }
}

/// Checks that no run of takes exceeds the capacity and the inflow meanwhile. `inflow` is the inflow up
/// to an instant.
fn refilled(
    from: i64,
    takes: &[Take],
    capacity: f64,
    inflow: impl Fn(i64) -> f64,
) -> Result<(), String> {
    // Over all takes at which a run can begin: the inflow before it, less the takes before it.
    let (mut best, mut taken, mut before) = (f64::MIN, 0.0, from);
    for (n, take) in takes.iter().enumerate() {
        best = best.max(inflow(before) - taken);
        taken += take.count;
        within(n, taken + best, capacity + inflow(take.at))?;
        before = take.at;
    }
    Ok(())
}

fn within(n: usize, used: f64, bound: f64) -> Result<(), String> {
    if used <= bound + 1e-6 {
        return Ok(());
    }
    Err(format!("take {n} made it {used} where {bound} was the most"))
}

/// The note of a take, written at `at`.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    pub at: i64,
    pub count: f64,
}

/// SplitMix64, so that a run can be repeated from its seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}
