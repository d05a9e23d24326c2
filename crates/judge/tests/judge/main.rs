//! The judge accepts right histories and refuses wrong ones: those of a simulated limiter with a fault, and right ones
//! with one answer changed.

mod faults;
mod mutations;
mod outcomes;
mod shards;
mod simulate;

use ratelimit_judge::Storage;
use simulate::{Fault, Scene};

const BUCKET: &str =
    r#"{"kind":"token bucket","rate":1000,"period":"1 second","capacity":20,"maxReserved":5}"#;
const WINDOW: &str = r#"{"kind":"fixed window","rate":20,"period":20,"capacity":30}"#;
const SLIDING: &str = r#"{"kind":"sliding window","rate":20,"period":20}"#;
const LOG: &str = r#"{"kind":"sliding log","rate":20,"period":20}"#;
const SLOTS: &str = r#"{"kind":"concurrency","slots":6,"ttl":"1 hour"}"#;

/// A scene without a fault.
const fn scene(config: &'static str, storage: Storage, knows_now: bool) -> Scene {
    Scene {
        config,
        storage,
        keys: 5,
        calls: 10_000,
        knows_now,
        fault: Fault::None,
        seed: 1,
        holds: false,
    }
}

/// A scene with holds.
const fn with_holds(config: &'static str, knows_now: bool) -> Scene {
    Scene { holds: true, ..scene(config, Storage::Row, knows_now) }
}

/// All that is simulated. A log can't be judged without the instants of its takes.
const SCENES: [Scene; 19] = [
    scene(BUCKET, Storage::Row, true),
    scene(BUCKET, Storage::Row, false),
    scene(BUCKET, Storage::Memory, true),
    scene(BUCKET, Storage::Memory, false),
    scene(WINDOW, Storage::Row, true),
    scene(WINDOW, Storage::Row, false),
    scene(WINDOW, Storage::Memory, true),
    scene(WINDOW, Storage::Memory, false),
    scene(SLIDING, Storage::Row, true),
    scene(SLIDING, Storage::Row, false),
    scene(SLIDING, Storage::Memory, true),
    scene(SLIDING, Storage::Memory, false),
    scene(LOG, Storage::Row, true),
    scene(SLOTS, Storage::Row, true),
    scene(SLOTS, Storage::Row, false),
    scene(SLOTS, Storage::Memory, false),
    with_holds(BUCKET, true),
    with_holds(BUCKET, false),
    with_holds(WINDOW, true),
];
