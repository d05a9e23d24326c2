//! The scenarios. Their names are their programs; see [`programs`](crate::statement::programs).

mod holds;
mod leases;
mod memory;
mod saved;
mod several;
mod shards;
mod single;

pub use saved::A_SECOND as SAVED_A_SECOND;

use std::sync::Arc;

use crate::world::Scenario;

/// The config of a bucket that hardly refills.
fn bucket(capacity: u32, shards: u32) -> String {
    format!(
        r#"{{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": {capacity}, "shards": {shards}}}"#
    )
}

/// A scenario of a bucket; definition 0 has one row, 1 two shards and 2 three.
pub fn of_bucket(capacity: u32, text: &str) -> Scenario {
    let limits = [1, 2, 3].map(|shards| bucket(capacity, shards));
    // Shards that no call uses would make the checks of single rows less exact.
    let used = if text.contains('@') { &limits[..] } else { &limits[..1] };
    Scenario::new(text, &used.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A group of scenarios with its name.
pub type Group = (&'static str, Vec<Arc<Scenario>>);

/// The groups; with `long`, all scenarios.
pub fn groups(long: bool) -> Vec<Group> {
    let groups = [
        ("single", single::all(long)),
        ("shards", shards::all(long)),
        ("several", several::all(long)),
        ("leases", leases::all(long)),
        ("holds", holds::all(long)),
        ("memory", memory::all(long)),
        ("saved", saved::all(long)),
    ];
    groups.into_iter().map(|(name, all)| (name, all.into_iter().map(Arc::new).collect())).collect()
}
