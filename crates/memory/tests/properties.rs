//! What the memory promises, tried with generated sequences of calls against maps and lists without bounds.

#[path = "properties/saved.rs"]
mod saved;
#[path = "properties/sketch.rs"]
mod sketch;
#[path = "properties/slots.rs"]
mod slots;
#[path = "properties/states.rs"]
mod states;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};

/// The same cases every time, so that a result depends on the code alone; PROPTEST_RNG_SEED gives others,
/// PROPTEST_CASES more. A failure prints its input; nothing is written to the sources.
fn cases(cases: u32) -> ProptestConfig {
    let asked = |name: &str| std::env::var(name).ok().and_then(|asked| asked.parse().ok());
    let (seed, asked) =
        (asked("PROPTEST_RNG_SEED"), asked("PROPTEST_CASES").map(|n: u64| n as u32));
    ProptestConfig {
        rng_seed: RngSeed::Fixed(seed.unwrap_or(1)),
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::with_cases(asked.unwrap_or(cases))
    }
}
