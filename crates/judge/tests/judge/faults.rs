//! Histories of a simulated limiter, right ones and with one fault.

use std::time::Instant;

use ratelimit_judge::{Storage, judge};

use super::simulate::{Fault, Scene, simulate};
use super::{BUCKET, SCENES, SLOTS, scene, with_holds};

#[test]
fn right_histories_are_accepted() {
    for scene in SCENES {
        for seed in 1..=4 {
            let history = simulate(Scene { seed, ..scene }).history;
            let started = Instant::now();
            let judged = judge(&history);
            println!(
                "{scene:?}: {:?}, {:.2?}",
                judged.as_ref().map(ToString::to_string),
                started.elapsed()
            );
            assert!(judged.is_ok(), "{scene:?}, seed {seed}: {}", judged.unwrap_err());
        }
    }
}

/// Returns how many histories with this fault are refused, and how many there are.
fn refused(scene: Scene, fault: Fault) -> (u32, u32) {
    let (mut refused, mut faulty) = (0, 0);
    for seed in 1..=10 {
        let simulation = simulate(Scene { seed, fault, ..scene });
        faulty += u32::from(simulation.faulty);
        let judged = judge(&simulation.history);
        if let (1, Err(refusal)) = (seed, &judged) {
            println!("{fault:?}: {refusal}");
        }
        refused += u32::from(judged.is_err());
    }
    println!("{fault:?}, {scene:?}: {refused} of {faulty} refused");
    (refused, faulty)
}

#[test]
fn a_fault_of_the_engine_is_refused() {
    let row = |knows_now| scene(BUCKET, Storage::Row, knows_now);
    let memory = |knows_now| scene(BUCKET, Storage::Memory, knows_now);
    let slots = |storage| scene(SLOTS, storage, false);
    for (fault, scenes) in [
        (Fault::StaleAfterWait, [row(true), row(false)]),
        // By the instant alone.
        (Fault::ClockBeforeWait, [row(true), row(true)]),
        (Fault::DenialFromOld, [row(true), row(false)]),
        (Fault::CommitLost, [row(true), row(false)]),
        (Fault::RollbackKept, [row(true), row(false)]),
        (Fault::SavepointKept, [row(true), row(false)]),
        (Fault::OtherKey, [row(true), memory(true)]),
        (Fault::UnlockedEarly, [row(true), row(false)]),
        (Fault::ResetLost, [row(true), memory(true)]),
        (Fault::WriteLost, [memory(true), memory(false)]),
        (Fault::LeaseOverlooked, [slots(Storage::Row), slots(Storage::Memory)]),
        (Fault::ExpiryOverlooked, [with_holds(BUCKET, true), with_holds(BUCKET, false)]),
        (Fault::SettledTwice, [with_holds(BUCKET, true), with_holds(BUCKET, false)]),
    ] {
        for scene in scenes {
            let (refused, faulty) = refused(scene, fault);
            assert!(faulty > 1, "{fault:?}: {faulty}");
            // A change that is kept or lost may be undone unseen; and without instants the history may be right by
            // chance.
            let unseen = matches!(
                fault,
                Fault::CommitLost | Fault::RollbackKept | Fault::SavepointKept | Fault::ResetLost
            );
            let least = if unseen || !scene.knows_now { faulty - faulty / 5 } else { faulty };
            assert!(refused >= least, "{fault:?}, {scene:?}");
        }
    }
}

/// Prints how long it takes.
#[test]
#[ignore = "simulating them takes a while: cargo test -p ratelimit-judge -- --ignored --nocapture"]
fn a_million_calls_are_judged() {
    for scene in [scene(BUCKET, Storage::Row, false), scene(BUCKET, Storage::Memory, false)] {
        let history = simulate(Scene { keys: 50, calls: 1_000_000, ..scene }).history;
        let started = Instant::now();
        println!("{} in {:.1?}", judge(&history).unwrap(), started.elapsed());
    }
}
