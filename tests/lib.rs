//! How much the tests do: the variables TIMES and SEED of `make test`.

/// Returns TIMES (1 by default), by which tests multiply their random input and load.
pub fn times() -> f64 {
    given("TIMES").map_or(1.0, |times| times.parse().expect("TIMES is a number"))
}

/// Returns whether tests take their long figures, as in `make soak`.
pub fn is_long() -> bool {
    times() >= 10.0
}

/// Returns SEED, or else the default, and prints it for the report of a failure.
pub fn seed(default: u64) -> u64 {
    let seed = given("SEED").map_or(default, |seed| seed.parse().expect("SEED is a whole number"));
    println!("SEED={seed}");
    seed
}

/// Reads a variable. Where it is not set, make passes on an empty one.
fn given(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
