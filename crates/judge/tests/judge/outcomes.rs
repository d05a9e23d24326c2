//! Transactions whose outcome the sessions don't know.

use std::thread;
use std::time::Duration;

use ratelimit_judge::{Asked, Recorder, Recording, Reply, Storage, judge};

/// Two tokens, which hardly refill.
const TWO: &str = r#"{"kind":"token bucket","rate":1,"period":"1000 days","capacity":2}"#;

const TAKE: Asked = Asked::Limit { count: 1.0, reserve: false };

/// Takes a token; `left` is the answer.
fn take(recording: &mut Recording, left: f64) {
    let reply = Reply { ok: true, remaining: Some(left), retry_at: None };
    let told = |(): &()| vec![(0, TAKE, None, reply)];
    recording.call(|| Ok::<(), ()>(()), told).unwrap();
}

/// Whether the judge accepts this remainder for another session after a transaction that took one token ended this way.
fn accepts(left: f64, end: fn(&mut Recording)) -> bool {
    let recorder = Recorder::new();
    recorder.key("two", "", TWO, Storage::Row);
    let mut recording = recorder.session();
    recording.begin();
    take(&mut recording, 1.0);
    end(&mut recording);
    drop(recording);
    let mut other = recorder.session();
    take(&mut other, left - 1.0);
    drop(other);
    judge(&recorder.history()).is_ok()
}

/// Which of one and two tokens may be left to another session.
fn left(end: fn(&mut Recording)) -> [bool; 2] {
    [accepts(1.0, end), accepts(2.0, end)]
}

const OK: fn() -> Result<(), ()> = || Ok(());
const LOST: fn() -> Result<(), ()> = || Err(());

#[test]
fn a_lost_answer_to_an_end_leaves_both_outcomes() {
    assert_eq!(left(|recording| recording.commit(OK).unwrap()), [true, false]);
    assert_eq!(left(|recording| recording.roll_back(OK).unwrap()), [false, true]);
    assert_eq!(left(|recording| recording.commit(LOST).unwrap_err()), [true, true]);
    assert_eq!(left(|recording| recording.roll_back(LOST).unwrap_err()), [false, true]);
    assert_eq!(left(|recording| recording.lost()), [false, true]);
}

#[test]
fn a_prepared_transaction_has_the_outcome_that_it_was_given() {
    let finished = |keep| match keep {
        true => left(|recording| {
            recording.prepare(OK).unwrap();
            recording.finish(true, OK).unwrap();
        }),
        false => left(|recording| {
            recording.prepare(OK).unwrap();
            recording.finish(false, OK).unwrap();
        }),
    };
    assert_eq!(finished(true), [true, false]);
    assert_eq!(finished(false), [false, true]);
    let lost: [fn(&mut Recording); 4] = [
        |recording| recording.prepare(LOST).unwrap_err(),
        |recording| recording.prepare(OK).unwrap(),
        |recording| {
            recording.prepare(OK).unwrap();
            recording.lost();
        },
        |recording| {
            recording.prepare(OK).unwrap();
            recording.finish(true, LOST).unwrap_err();
        },
    ];
    for end in lost {
        assert_eq!(left(end), [true, true]);
    }
}

#[test]
fn a_take_told_to_be_a_denial_is_refused() {
    let recorder = Recorder::new();
    recorder.key("two", "", TWO, Storage::Row);
    let mut recording = recorder.session();
    take(&mut recording, 1.0);
    take(&mut recording, 0.0);
    drop(recording);
    assert!(judge(&recorder.history()).is_ok());
    judge(&recorder.history().with_a_denial().unwrap()).unwrap_err();
}

/// Whether the judge accepts that a session finds these tokens after another one has asked for one without an answer.
fn accepts_unanswered(storage: Storage, found: [f64; 2]) -> bool {
    let recorder = Recorder::new();
    recorder.key("two", "", TWO, storage);
    let mut recording = recorder.session();
    recording.call(LOST, |()| Vec::new()).unwrap_err();
    recording.unanswered([(0, TAKE)]);
    drop(recording);
    let mut other = recorder.session();
    for found in found {
        let reply = Reply { ok: found >= 1.0, remaining: Some(found), retry_at: None };
        let check = Asked::Check { count: 1.0, reserve: false };
        let told = |(): &()| vec![(0, check, None, reply)];
        other.call(OK, told).unwrap();
        // Keeps the calls in order by microseconds.
        thread::sleep(Duration::from_micros(2));
    }
    drop(other);
    judge(&recorder.history()).is_ok()
}

#[test]
fn a_call_without_an_answer_was_made_at_any_time_or_never() {
    for storage in [Storage::Row, Storage::Memory, Storage::Shards] {
        for found in [[2.0, 2.0], [2.0, 1.0], [1.0, 1.0]] {
            assert!(accepts_unanswered(storage, found), "{storage:?}, {found:?}");
        }
        assert!(!accepts_unanswered(storage, [1.0, 0.0]), "{storage:?}");
    }
    // Shards are judged by bounds only.
    for storage in [Storage::Row, Storage::Memory] {
        assert!(!accepts_unanswered(storage, [1.0, 2.0]), "{storage:?}");
    }
}
