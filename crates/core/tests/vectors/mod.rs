//! The golden vectors of README.md here: loading them, and running them against a [`Subject`].
//!
//! Shared by `tests/vectors.rs` (the algorithm called directly) and `tests/server/rl_calculate.rs`
//! (through SQL): everything but the call itself is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value, json};

const TEN_YEARS_MS: f64 = 315_576_000_000.0;

/// The largest rate, capacity, count (and number of milliseconds) that we take.
const MAX_TOKENS: f64 = 1e15;

/// The name under which numbers beyond that are left out: the file has no tag for them.
const RANGE: &str = "(out of range)";

/// What runs the vectors: one pure call of the limiter.
pub trait Subject {
    /// The step in which waits are rounded up, in milliseconds.
    const WAIT_UNIT_MS: f64;

    /// Whether the limiter takes such a config at all.
    fn accepts(&mut self, config: &str) -> bool;

    fn call(&mut self, call: &Call) -> Outcome;
}

/// The arguments of one call, as `rl_calculate` takes them.
#[derive(Debug)]
pub struct Call<'a> {
    pub config: &'a str,
    /// `None`: the limit is unused.
    pub state: Option<&'a str>,
    /// Epoch milliseconds.
    pub at: f64,
    pub count: f64,
    pub reserve: bool,
}

/// What came back.
#[derive(Debug)]
pub struct Outcome {
    pub ok: bool,
    pub retry_after_ms: Option<f64>,
    pub remaining: f64,
    /// The state to carry on with; `None`, or the same as before, where nothing was taken.
    pub state: Option<String>,
}

/// A line of the file.
#[derive(Debug)]
pub struct Scenario {
    pub id: String,
    pub sliding: bool,
    pub tags: BTreeSet<String>,
    /// In our form.
    pub config: Map<String, Value>,
    /// The row before the first step.
    pub initial: Option<Row>,
    pub steps: Vec<Step>,
}

#[derive(Debug)]
pub struct Step {
    pub now: f64,
    pub check: bool,
    pub count: f64,
    pub reserve: bool,
    /// Where the published code put the phase of a row that it created in this step.
    pub phase: Option<f64>,
    pub expect: Expect,
}

/// What the published code answered.
#[derive(Debug)]
pub struct Expect {
    /// `None`: not said (sliding checks), or it threw an `error`.
    pub ok: Option<bool>,
    pub retry_after_ms: Option<f64>,
    /// The stored row after the step.
    pub row: Option<Row>,
    /// What the limit held after the step.
    pub available: Available,
    /// It threw because the count can never fit.
    pub error: bool,
    /// It threw because the caller has to wait; `ok` and the wait are filled in from that.
    pub thrown: bool,
    /// It denied from a cache in the client's memory, without asking the limiter.
    pub cached: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Available {
    Unknown,
    Tokens(f64),
    /// The limit less what was used, which the published code rounds down.
    LimitLessWhole {
        limit: f64,
        used: f64,
    },
}

/// A stored row, with its time in epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub value: f64,
    pub ts: f64,
    pub prior: Option<f64>,
}

impl Row {
    pub fn to_json(self) -> String {
        let mut state = json!({ "value": self.value, "ts": self.ts });
        if let Some(prior) = self.prior {
            state["prior"] = prior.into();
        }
        state.to_string()
    }

    pub fn from_json(state: &str) -> Row {
        let state: Value = serde_json::from_str(state).unwrap();
        Row {
            value: state["value"].as_f64().unwrap(),
            ts: state["ts"].as_f64().unwrap(),
            prior: state.get("prior").map(|prior| prior.as_f64().unwrap()),
        }
    }

    fn is_finite(&self) -> bool {
        self.value.is_finite() && self.ts.is_finite()
    }
}

/// Reads the whole file.
pub fn load() -> Vec<Scenario> {
    include_str!("vectors.jsonl")
        .lines()
        .map(|line| scenario(&serde_json::from_str(line).unwrap()))
        .collect()
}

/// A number; JSON has no non-finite ones, so the file writes them as strings.
fn number(json: &Value) -> Option<f64> {
    json.as_f64().or_else(|| json.as_str().map(|text| text.parse().unwrap()))
}

fn scenario(line: &Value) -> Scenario {
    let sliding = match line["suite"].as_str() {
        Some("sliding") => true,
        Some("convex") => false,
        other => panic!("an unknown suite: {other:?}"),
    };
    let period = number(&line["config"][if sliding { "window" } else { "period" }]).unwrap();
    let aligned = |now: f64| (now / period).floor() * period;
    let counters = |json: &Value, now: f64| Row {
        value: number(&json["cur"]).unwrap(),
        ts: aligned(now),
        prior: number(&json["prev"]),
    };
    let plain = |json: &Value| {
        number(&json["value"]).map(|value| Row {
            value,
            ts: number(&json["ts"]).unwrap(),
            prior: None,
        })
    };

    let step = |step: &Value| {
        let now = number(&step["now"]).unwrap();
        let check = match step["op"].as_str() {
            Some("check") => true,
            Some("limit") => false,
            other => panic!("an unknown op: {other:?}"),
        };
        let expect = &step["expect"];
        let thrown = expect.get("thrown");
        Step {
            now,
            check,
            // The sliding suite's checks take no count: they look.
            count: number(&step["count"]).unwrap_or(if sliding && check { 0.0 } else { 1.0 }),
            reserve: step["reserve"].as_bool().unwrap_or(false),
            phase: step["startRand"].as_f64().map(|random| now - (random * period).floor()),
            expect: Expect {
                ok: thrown.map(|_| false).or(expect["ok"].as_bool()),
                retry_after_ms: number(
                    thrown.map_or(&expect["retryAfter"], |data| &data["retryAfter"]),
                ),
                row: if sliding { Some(counters(expect, now)) } else { plain(expect) },
                available: if sliding {
                    Available::LimitLessWhole {
                        limit: number(&expect["limit"]).unwrap(),
                        used: number(&expect["used"]).unwrap(),
                    }
                } else {
                    number(&expect["current"]["value"])
                        .map_or(Available::Unknown, Available::Tokens)
                },
                error: expect.get("error").is_some(),
                thrown: thrown.is_some(),
                cached: expect["reason"] == "cacheBlock",
            },
        }
    };

    let config = &line["config"];
    Scenario {
        id: line["id"].as_str().unwrap().to_owned(),
        sliding,
        tags: line["tags"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tag| tag.as_str().unwrap().to_owned())
            .collect(),
        config: if sliding {
            let config =
                json!({ "kind": "sliding window", "rate": config["limit"], "period": period });
            config.as_object().unwrap().clone()
        } else {
            config.as_object().unwrap().clone()
        },
        initial: match &line["initial"] {
            Value::Null => None,
            initial if sliding => Some(counters(initial, number(&initial["now"]).unwrap())),
            initial => plain(initial),
        },
        steps: line["steps"].as_array().unwrap().iter().map(step).collect(),
    }
}

/// What was run and what was left out, by tag.
#[derive(Debug, Default)]
pub struct Report {
    pub scenarios: usize,
    pub steps: usize,
    /// Steps where answer, wait, level and state were compared with the file's.
    pub compared: usize,
    /// Steps that the published code answered with an error, and we with a denial for ever.
    pub errors: usize,
    /// Of `compared`: denied reservations: their wait means something else (README.md).
    pub denied_reservations: usize,
    /// Steps where we differ on purpose, under the tag that says so.
    pub left_out: BTreeMap<&'static str, usize>,
    /// Scenarios with at least one such step.
    pub scenarios_with_left_out: BTreeMap<&'static str, BTreeSet<String>>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left_out: usize = self.left_out.values().sum();
        writeln!(
            f,
            "{} scenarios, {} steps: {} compared ({} of them denied reservations, whose wait differs), \
             {} errors of theirs that are denials of ours, {left_out} left out",
            self.scenarios, self.steps, self.compared, self.denied_reservations, self.errors
        )?;
        for (tag, steps) in &self.left_out {
            let scenarios = self.scenarios_with_left_out[tag].len();
            writeln!(f, "  {tag}: {steps} steps left out, in {scenarios} scenarios")?;
        }
        Ok(())
    }
}

/// Runs every scenario; panics at the first step that should agree and does not.
pub fn run(subject: &mut impl Subject, scenarios: &[Scenario]) -> Report {
    let mut report = Report::default();
    for scenario in scenarios {
        report.scenarios += 1;
        report.steps += scenario.steps.len();
        Runner { scenario, subject, report: &mut report }.run();
    }
    report
}

/// Why a step cannot agree, and what we answer instead where that is one thing.
struct Difference {
    tag: &'static str,
    ok: Option<bool>,
}

struct Runner<'a, S> {
    scenario: &'a Scenario,
    subject: &'a mut S,
    report: &'a mut Report,
}

impl<S: Subject> Runner<'_, S> {
    fn run(&mut self) {
        let scenario = self.scenario;
        let accepted = self.subject.accepts(&Value::Object(scenario.config.clone()).to_string());
        assert_eq!(accepted, self.is_in_range(), "{}: is the config taken?", scenario.id);
        if !accepted {
            let nonfinite = scenario.tags.contains("nonfinite");
            self.leave_out(if nonfinite { "nonfinite" } else { RANGE }, scenario.steps.len());
            return;
        }

        // Our own state, carried as it came back; the file's only after a step that differs.
        let mut state = scenario.initial.map(Row::to_json);
        let mut theirs = scenario.initial;
        let mut newest = scenario.initial.map_or(f64::MIN, |row| row.ts);
        for (index, step) in scenario.steps.iter().enumerate() {
            let at = format!("{} step {index}: {step:?}\n  with {state:?}", scenario.id);
            let config = self.config(step, theirs);
            let difference = self.difference(step, theirs, newest);
            if let Some(difference) = &difference {
                let tagged = difference.tag == RANGE || scenario.tags.contains(difference.tag);
                assert!(tagged, "{at}: no tag {}", difference.tag);
                self.leave_out(difference.tag, 1);
            }

            if (0.0..=MAX_TOKENS).contains(&step.count) && theirs.is_none_or(|row| row.is_finite())
            {
                let outcome = self.subject.call(&Call {
                    config: &config,
                    state: state.as_deref(),
                    at: step.now,
                    count: step.count,
                    reserve: step.reserve,
                });
                let at = format!("{at}\n  gave {outcome:?}");
                match &difference {
                    Some(difference) => {
                        assert!(
                            difference.ok.is_none_or(|ok| ok == outcome.ok),
                            "{at}: not our own answer"
                        );
                    }
                    None => self.compare(step, state.as_deref(), &outcome, &at),
                }
                let took = outcome.ok && step.count > 0.0;
                if took {
                    assert!(outcome.state.is_some(), "{at}: no state");
                } else if let (Some(before), Some(after)) = (&state, &outcome.state) {
                    assert_eq!(
                        Row::from_json(before),
                        Row::from_json(after),
                        "{at}: changed without a take"
                    );
                }
                if took && !step.check {
                    state = outcome.state;
                }
            }

            theirs = step.expect.row;
            if difference.is_some() {
                state = theirs.filter(Row::is_finite).map(Row::to_json);
            }
            newest = newest.max(theirs.map_or(f64::MIN, |row| row.ts));
        }
    }

    fn leave_out(&mut self, tag: &'static str, steps: usize) {
        *self.report.left_out.entry(tag).or_default() += steps;
        let scenarios = self.report.scenarios_with_left_out.entry(tag).or_default();
        scenarios.insert(self.scenario.id.clone());
    }

    /// Whether the config's numbers are within what contract section 2 allows.
    fn is_in_range(&self) -> bool {
        let within = |name, lowest| {
            self.field(name).is_none_or(|number| (lowest..=MAX_TOKENS).contains(&number))
        };
        within("rate", f64::MIN_POSITIVE) && within("period", 1.0) && within("capacity", 0.0)
    }

    fn field(&self, name: &str) -> Option<f64> {
        self.scenario.config.get(name).and_then(Value::as_f64)
    }

    fn capacity(&self) -> f64 {
        self.field("capacity").or(self.field("rate")).unwrap()
    }

    /// The tokens of the time that a fraction of a microsecond in the file is rounded by.
    fn half_a_microsecond(&self) -> f64 {
        if self.scenario.tags.contains("fractional-now") {
            0.0005 * self.field("rate").unwrap() / self.field("period").unwrap()
        } else {
            0.0
        }
    }

    /// The config, with the phase that the published code drew at random as its start.
    fn config(&self, step: &Step, theirs: Option<Row>) -> String {
        let mut config = self.scenario.config.clone();
        if config["kind"] == "fixed window"
            && !config.contains_key("start")
            && let Some(phase) = theirs.map(|row| row.ts).or(step.phase)
        {
            config.insert("start".into(), phase.into());
        }
        Value::Object(config).to_string()
    }

    /// The differences of README.md, each as narrow as the step's own numbers allow.
    fn difference(&self, step: &Step, theirs: Option<Row>, newest: f64) -> Option<Difference> {
        let expect = &step.expect;
        let differs = |tag, ok| Some(Difference { tag, ok });
        if !step.count.is_finite()
            || [theirs, expect.row].iter().flatten().any(|row| !row.is_finite())
            || expect.retry_after_ms.is_some_and(f64::is_infinite)
        {
            return differs("nonfinite", None);
        }
        if step.count < 0.0 {
            return differs("negative-count", None);
        }
        if step.count > MAX_TOKENS {
            return differs(RANGE, None);
        }
        if expect.cached {
            return differs("ephemeral-cache", None);
        }
        let tolerance = 1e-9 * self.capacity().max(1.0);
        if expect.error {
            // Too much by a float's last bits only: fits.
            let debt = if step.reserve { self.field("maxReserved").unwrap_or(0.0) } else { 0.0 };
            let fits = step.count <= self.capacity() + debt + tolerance;
            return fits.then_some(Difference { tag: "error", ok: Some(true) });
        }

        let start = self.field("start").filter(|_| theirs.is_none());
        if start.is_some_and(|start| start > step.now) {
            return differs("futurestart", None);
        }
        // In the sliding suite, also the step that leaves an older window for the newest one: what
        // that one held meanwhile is not in the file.
        let behind = theirs.is_some_and(|row| {
            row.ts > step.now
                || (self.scenario.sliding
                    && (row.ts < newest || expect.row.is_some_and(|now| now.ts < newest)))
        });
        if behind {
            let future_start = self.scenario.tags.contains("futurestart");
            return differs(if future_start { "futurestart" } else { "clockback" }, None);
        }
        if step.reserve && expect.thrown {
            return differs("throws", Some(true));
        }
        if let (Some(_), Available::Tokens(tokens)) = (expect.retry_after_ms, expect.available) {
            let taken = expect.ok == Some(true) && !step.check;
            let short_by = if taken { -tokens } else { step.count - tokens };
            let bound =
                self.field("maxReserved").filter(|_| step.reserve && expect.ok == Some(false));
            if short_by - bound.unwrap_or(0.0) <= tolerance {
                return differs("float-edge", Some(true));
            }
        }
        let waits = expect.ok == Some(true) && expect.retry_after_ms.is_some();
        if waits && self.field("maxReserved") == Some(0.0) {
            return differs("maxreserved0", Some(false));
        }
        if waits && expect.retry_after_ms.unwrap() > TEN_YEARS_MS {
            return differs("reserve", Some(false));
        }
        None
    }

    fn compare(&mut self, step: &Step, before: Option<&str>, outcome: &Outcome, at: &str) {
        let expect = &step.expect;
        if expect.error {
            // Theirs throws where the count can never fit: ours is a denial without a time.
            assert!(!outcome.ok && outcome.retry_after_ms.is_none(), "{at}: no denial for ever");
            self.report.errors += 1;
            return;
        }
        self.report.compared += 1;

        if let Some(ok) = expect.ok {
            assert_eq!(outcome.ok, ok, "{at}: ok");
        }
        if !self.scenario.sliding {
            match (outcome.retry_after_ms, expect.retry_after_ms) {
                (None, None) => {}
                (Some(ours), Some(theirs)) if step.reserve && !outcome.ok => {
                    // Theirs is the time when the whole count would be there, ours when the same
                    // call passes: as soon as the debt that it leaves is small enough.
                    self.report.denied_reservations += 1;
                    let sooner = self.field("maxReserved").unwrap() * self.field("period").unwrap()
                        / self.field("rate").unwrap();
                    if self.scenario.config["kind"] == "token bucket" {
                        let theirs = theirs - sooner;
                        let fits = ours >= theirs - 1e-9 * theirs.abs().max(sooner) - 0.001
                            && ours
                                <= theirs
                                    + 1e-9 * theirs.abs().max(sooner)
                                    + S::WAIT_UNIT_MS.max(0.001);
                        assert!(fits, "{at}: retry_after {ours}, not {theirs}");
                    } else {
                        assert!(
                            ours <= theirs + S::WAIT_UNIT_MS,
                            "{at}: retry_after {ours} > {theirs}"
                        );
                    }
                }
                (Some(ours), Some(theirs)) => {
                    let slack = 1e-9 * theirs;
                    let fits = ours >= theirs - slack - 0.001
                        && ours <= theirs + slack + S::WAIT_UNIT_MS.max(0.001);
                    assert!(fits, "{at}: retry_after {ours}, not {theirs}");
                }
                (ours, theirs) => panic!("{at}: retry_after {ours:?}, not {theirs:?}"),
            }
        }
        let tolerance = 1e-9 * self.capacity().max(1.0) + self.half_a_microsecond();
        match expect.available {
            // Only where the limit has a row; without one, theirs answers with a fresh random phase.
            Available::Tokens(tokens) if !step.check || before.is_some() => {
                // Theirs stores what a check would have taken nowhere, so both show the row as is.
                let ours =
                    outcome.remaining + if step.check && outcome.ok { step.count } else { 0.0 };
                assert!((ours - tokens).abs() <= tolerance, "{at}: remaining {ours}, not {tokens}");
            }
            Available::LimitLessWhole { limit, used } => {
                let ours = (limit - outcome.remaining + tolerance).floor();
                assert_eq!(ours, used, "{at}: used");
            }
            _ => {}
        }
        if outcome.ok && !step.check && step.count > 0.0 {
            let ours = Row::from_json(outcome.state.as_deref().expect(at));
            let theirs = expect.row.expect(at);
            // A small difference of large numbers keeps their last bits as its error.
            let before = before.map_or(0.0, |state| Row::from_json(state).value.abs());
            let largest = before.max(self.capacity()).max(step.count);
            let last_bits = 8.0 * f64::EPSILON * largest + self.half_a_microsecond();
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs() + last_bits;
            assert!(
                near(ours.value, theirs.value),
                "{at}: value {}, not {}",
                ours.value,
                theirs.value
            );
            assert!(
                (ours.ts - theirs.ts).abs() <= 0.001,
                "{at}: ts {}, not {}",
                ours.ts,
                theirs.ts
            );
            assert_eq!(ours.prior, theirs.prior, "{at}: prior");
        }
    }
}

/// What the file holds and how much of it agrees today: a loader that passes over something, or a
/// difference that grew, must not go unseen.
pub fn assert_nothing_is_missing(report: &Report) {
    assert_eq!((report.scenarios, report.steps), (324, 7095), "the file is another one");
    let left_out: usize = report.left_out.values().sum();
    assert_eq!(report.compared + report.errors + left_out, report.steps);
    assert!(report.compared >= 5858, "only {} steps compared", report.compared);
    let expected = [
        (RANGE, 34),
        ("clockback", 140),
        ("ephemeral-cache", 2),
        ("error", 1),
        ("float-edge", 7),
        ("futurestart", 13),
        ("maxreserved0", 86),
        ("negative-count", 7),
        ("nonfinite", 28),
        ("throws", 3),
    ];
    let left_out: Vec<_> = report.left_out.iter().map(|(&tag, &steps)| (tag, steps)).collect();
    assert_eq!(left_out, expected, "steps left out");
}
