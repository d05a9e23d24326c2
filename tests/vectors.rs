//! The golden vectors against the pure algorithm, and our own behaviour where it differs.

#[path = "vectors/mod.rs"]
mod golden;

use golden::{Call, Outcome, Subject};
use ratelimit::algorithm::{Micros, decide};
use ratelimit::{config, state};

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
        let state = call
            .state
            .map_or_else(|| limit.fresh(now, now), |state| state::parse(state, &limit).unwrap());
        let decision = decide(&limit, &state, now, call.count, call.reserve);
        Outcome {
            ok: decision.ok,
            retry_after_ms: decision.retry_after.map(Micros::as_millis),
            remaining: decision.level.remaining,
            state: decision.state.map(|state| state::to_json(&state).to_string()),
        }
    }
}

#[test]
fn the_algorithm_agrees_with_the_published_ones() {
    let scenarios = golden::load();
    let report = golden::run(&mut Pure, &scenarios);
    println!("{report}");
}
