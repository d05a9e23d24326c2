//! Transactions whose outcome the sessions don't know.

use std::thread;
use std::time::Duration;

use ratelimit_judge::{
    Asked, History, Invocation, Limited, Recorder, Recording, Reply, Storage, judge,
};

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
fn a_session_may_end_before_its_client_looks_at_an_answer_but_not_before_the_call() {
    let accepts = |others_first: bool| {
        let recorder = Recorder::new();
        recorder.key("two", "", TWO, Storage::Row);
        let (mut recording, mut other) = (recorder.session(), recorder.session());
        let mut others = || {
            take(&mut other, 1.0);
            thread::sleep(Duration::from_micros(2));
        };
        let reply = Reply { ok: true, remaining: Some(1.0), retry_at: None };
        let told = |(): &()| vec![(0, TAKE, None, reply)];
        if others_first {
            others();
        }
        recording.begin();
        let call = || {
            if !others_first {
                others();
            }
            Ok::<(), ()>(())
        };
        recording.call(call, told).unwrap();
        recording.lost();
        drop((recording, other));
        // As where any end may have been earlier than it is recorded.
        let mut history = recorder.history();
        let accepts = judge(&history).is_ok();
        history.ends[0].invoked = 0;
        [accepts, judge(&history).is_ok()]
    };
    assert_eq!(accepts(false), [true, true]);
    assert_eq!(accepts(true), [false, false]);
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

/// A take at an instant that its answer leaves open, then the expiry of a hold, its late settlement, and a denial with
/// this `retry_at`: 60 tokens, one an hour, counted from 5,000.
fn after_an_expiry(retry_at: i64) -> History {
    let left = |tokens: f64, at: i64| Some(tokens + (at - 5_000) as f64 / 3.6e9);
    let take = |count| Asked::Limit { count, reserve: false };
    let hold = Asked::Hold {
        hold: 1,
        count: 4.0,
        at_least: 4.0,
        ttl: 50_000,
        charge: false,
        held: 4.0,
        expires_at: 70_500,
    };
    let calls = [
        (0, 10_000, take(50.0), Some(10.0)),
        (20_000, 21_000, hold, left(6.0, 20_500)),
        (25_000, 60_000, take(1.0), left(5.0, 58_000)),
        (80_000, 90_000, Asked::Settle { hold: 1, used: Some(0.0) }, left(9.0, 85_000)),
        (100_000, 110_000, Asked::Check { count: 10.0, reserve: false }, left(9.0, 105_000)),
    ];
    let calls = (0..).zip(calls).map(|(n, (invoked, answered, asked, remaining))| {
        let ok = !matches!(asked, Asked::Check { .. });
        let reply = Reply { ok, remaining, retry_at: (!ok).then_some(Some(retry_at)) };
        Invocation {
            unanswered: false,
            session: n,
            transaction: n,
            key: 0,
            asked,
            invoked,
            answered,
            now: None,
            reply,
            end: None,
        }
    });
    let config = r#"{"kind":"token bucket","rate":1,"period":"1 hour","capacity":60}"#;
    let key = Limited {
        name: "limit".into(),
        key: String::new(),
        config: config.into(),
        storage: Storage::Row,
    };
    History {
        skew: Some(0),
        keys: vec![key],
        ends: Vec::new(),
        calls: calls.collect(),
        rows: Vec::new(),
    }
}

#[test]
fn an_expiry_leaves_open_what_the_take_before_it_leaves_open() {
    let is_accepted = |retry_at| judge(&after_an_expiry(retry_at)).is_ok();
    assert!(is_accepted(3_600_005_000));
    assert!(!is_accepted(3_600_045_000) && !is_accepted(3_599_965_000));
}
