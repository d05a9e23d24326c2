//! The use cases on ordinary memory: one session, whose transaction others may hold rows beside.

mod host;

use std::collections::BTreeSet;

use ratelimit_core::kinds::Tokens;
use ratelimit_core::{Micros, State};

use self::host::{TestConfig, TestSession, request};
use crate::error::{LimiterError, Result};
use crate::leases::{self, Fate};
use crate::ports::{Clock, Stored, Verdict};
use crate::prune::prune;
use crate::request::Answer;
use crate::target::FOREVER;
use crate::{several, single, status};

const BUCKET: &str = r#"{"kind": "token bucket", "rate": 4, "period": "4 seconds"}"#;
const IN_MEMORY: &str =
    r#"{"kind": "token bucket", "rate": 4, "period": "4 seconds", "store": "memory"}"#;
const IN_SHARDS: &str =
    r#"{"kind": "token bucket", "rate": 4, "period": "4 seconds", "shards": 2}"#;
const SLOTS: &str = r#"{"kind": "concurrency", "slots": 2, "ttl": "10 seconds"}"#;
const SLOTS_IN_MEMORY: &str =
    r#"{"kind": "concurrency", "slots": 2, "ttl": "10 seconds", "store": "memory"}"#;
const SAVED: &str = r#"{"kind": "token bucket", "rate": 4, "period": "4 seconds", "store": "memory", "save": 1000}"#;
const UNLIMITED: &str = r#"{"kind": "unlimited"}"#;

fn seconds(seconds: i64) -> Micros {
    Micros(seconds * 1_000_000)
}

fn limit(session: &TestSession, key: &str, count: f64) -> Answer {
    single::limit(session, &request("n", key, count)).unwrap()
}

fn check(session: &TestSession, key: &str) -> Answer {
    single::check(session, &request("n", key, 1.0)).unwrap()
}

#[test]
fn each_home_of_tokens_gives_the_same_answers() {
    for config in [BUCKET, IN_MEMORY, IN_SHARDS] {
        let session = TestSession::with("n", config);
        assert_eq!(limit(&session, "k", 2.0).level.remaining, 2.0, "{config}");
        assert!(limit(&session, "k", 2.0).ok, "{config}");
        let denied = limit(&session, "k", 1.0);
        assert!(
            !denied.ok && denied.retry_after.is_some_and(|wait| wait <= seconds(2)),
            "{config}"
        );
        session.pass(seconds(4));
        assert_eq!(check(&session, "k").level.remaining, 4.0, "{config}");
        // A credit finds no room above the capacity.
        limit(&session, "k", 1.0);
        let credit = single::credit(&session, &request("n", "k", 9.0), None).unwrap();
        assert_eq!((credit.ok, credit.level.remaining), (true, 4.0), "{config}");
        let denied = Verdict::Denied { enforced: true };
        let (yes, counted) = (Verdict::Allowed, session.counted());
        assert_eq!(counted, [yes, yes, denied, yes], "{config}");
    }
}

#[test]
fn without_a_limit_nothing_is_stored() {
    let session = TestSession::with("n", UNLIMITED);
    assert!(limit(&session, "k", 1e15).ok);
    assert_eq!(limit(&session, "k", 1.0).level.remaining, f64::INFINITY);
    assert!(session.rows().is_empty() && session.entries_len() == 0);
    assert!(single::state(&session, &request("n", "k", 0.0)).unwrap().is_none());
}

#[test]
fn a_denial_writes_nothing_and_takes_no_lock() {
    for config in [BUCKET, IN_SHARDS] {
        let session = TestSession::with("n", config);
        limit(&session, "k", 4.0);
        session.commit();
        let before = session.rows();
        assert!(!limit(&session, "k", 1.0).ok);
        assert_eq!(session.rows(), before, "{config}");
        assert!(session.locked().is_empty(), "{config}");
    }
}

#[test]
fn a_reset_makes_a_limit_full_in_every_home() {
    for config in [BUCKET, IN_MEMORY, IN_SHARDS, SLOTS, SLOTS_IN_MEMORY] {
        let session = TestSession::with("n", config);
        let take = |count| leases::acquire(&session, &request("n", "k", count));
        let take = |count| match config.contains("concurrency") {
            true => take(count).unwrap(),
            false => limit(&session, "k", count),
        };
        assert!(!single::reset(&session, b"n", b"k").unwrap(), "{config}");
        let capacity = take(1.0).capacity;
        assert!(!take(capacity).ok, "{config}");
        assert!(single::reset(&session, b"n", b"k").unwrap(), "{config}");
        assert!(!single::reset(&session, b"n", b"k").unwrap(), "{config}");
        assert!(take(capacity).ok, "{config}");
        let mut count = 0;
        single::reset_all(&session, b"n", &mut count).unwrap();
        assert_eq!(count, 1, "{config}");
        assert!(take(capacity).ok, "{config}");
    }
}

#[test]
fn a_take_under_another_kind_ends_the_state_in_both_stores() {
    for store in ["table", "memory"] {
        let stored = |config: &str| config.replace('}', &format!(r#", "store": "{store}"}}"#));
        let bucket = stored(r#"{"kind": "token bucket", "rate": 10, "period": "1 day"}"#);
        let sliding = stored(r#"{"kind": "sliding window", "rate": 10, "period": "1 day"}"#);
        let slots = stored(SLOTS);
        let session = TestSession::with("n", &bucket);
        let left = || check(&session, "k").level.remaining;
        let free = || single::check(&session, &request("n", "k", 0.0)).unwrap().level.remaining;
        let acquire = || leases::acquire(&session, &request("n", "k", 1.0)).unwrap();
        limit(&session, "k", 3.0);

        // Nothing was taken under the other kind: what there was goes on.
        session.define("n", &slots);
        assert_eq!(free(), 2.0, "{store}");
        session.define("n", &bucket);
        assert_eq!(left(), 7.0, "{store}");

        session.define("n", &slots);
        let lease = acquire().lease.unwrap();
        assert_eq!(free(), 1.0, "{store}");
        session.define("n", &bucket);
        assert_eq!(left(), 10.0, "{store}");
        session.define("n", &slots);
        assert_eq!(free(), 1.0, "{store}");

        for other in [&bucket, &sliding] {
            session.define("n", other);
            assert_eq!(limit(&session, "k", 3.0).level.remaining, 7.0, "{store}");
            session.define("n", &slots);
            assert_eq!(free(), 2.0, "{store}");
            let gone = leases::settle(&session, &request("n", "k", 0.0), lease.id, Fate::Extended);
            assert_eq!(gone.unwrap(), None, "{store}");
            assert!(acquire().ok && acquire().ok && !acquire().ok, "{store}");
        }
        // A reset forgets the leases, whatever the kind is when it comes.
        session.define("n", &bucket);
        assert!(single::reset(&session, b"n", b"k").unwrap(), "{store}");
        session.define("n", &slots);
        assert_eq!(free(), 2.0, "{store}");
    }
}

#[test]
fn a_cut_that_is_undone_gives_back_what_it_took_and_what_was_returned() {
    for shards in [1, 2, 5] {
        for store in ["table", "memory"] {
            if shards > 1 && store == "memory" {
                continue;
            }
            let window = |rate| {
                format!(
                    r#"{{"kind": "fixed window", "rate": {rate}, "period": "1 day", "start": 0,
                        "shards": {shards}, "store": "{store}"}}"#
                )
            };
            let (large, small) = (window(10), window(5));
            let session = TestSession::with("n", &large);
            let left = || check(&session, "k").level.remaining;
            let give = |count| single::credit(&session, &request("n", "k", count), None).unwrap();
            limit(&session, "k", 10.0);
            session.commit();
            session.define("n", &small);
            assert_eq!(left(), 0.0, "{store} {shards}");
            for _ in 0..3 {
                assert_eq!(give(1.0).level.remaining, 0.0, "{store} {shards}");
                session.commit();
            }
            session.define("n", &large);
            assert!((left() - 3.0).abs() < 1e-9, "{} of {store} {shards}", left());
            session.define("n", &small);
            assert!((give(3.0).level.remaining - 1.0).abs() < 1e-9, "{store} {shards}");
            session.commit();
            session.define("n", &large);
            assert!((left() - 6.0).abs() < 1e-9, "{} of {store} {shards}", left());
        }
    }
}

#[test]
fn leases_expire_are_extended_and_released_in_both_stores() {
    for config in [SLOTS, SLOTS_IN_MEMORY] {
        let session = TestSession::with("n", config);
        let acquire = || leases::acquire(&session, &request("n", "k", 1.0)).unwrap();
        let settle =
            |id, fate| leases::settle(&session, &request("n", "k", 0.0), id, fate).unwrap();
        let [one, two] = [acquire(), acquire()].map(|answer| answer.lease.unwrap());
        assert_eq!(one.expires_at, session.now().plus(seconds(10)));
        assert_eq!([one.id, two.id], [Micros(1 << 8), Micros(2 << 8)], "as they were drawn");
        let denied = acquire();
        assert_eq!((denied.ok, denied.lease, denied.retry_after), (false, None, Some(seconds(10))));
        session.pass(seconds(6));
        assert_eq!(
            settle(two.id, Fate::Extended),
            Some(session.now().plus(seconds(10))),
            "{config}"
        );
        // A shorter ttl ends no lease before the time that was promised.
        let promised = session.now().plus(seconds(10));
        session.define("n", &config.replace("10 seconds", "1 second"));
        assert_eq!(settle(two.id, Fate::Extended), Some(promised), "{config}");
        session.define("n", config);
        assert!(settle(one.id, Fate::Released).is_some(), "{config}");
        assert_eq!(settle(one.id, Fate::Released), None, "{config}");
        assert!(acquire().ok && !acquire().ok, "{config}");
        session.pass(seconds(10));
        assert_eq!(settle(two.id, Fate::Extended), None, "{config}");
        assert!(acquire().ok, "{config}");
    }
}

#[test]
fn another_number_of_shards_holds_the_same_tokens() {
    let session = TestSession::with("n", BUCKET);
    limit(&session, "k", 1.0);
    for (config, rows) in [(IN_SHARDS, 3), (BUCKET, 1), (IN_SHARDS, 3)] {
        session.define("n", config);
        let before = check(&session, "k").level.remaining;
        single::credit(&session, &request("n", "k", -0.5), None).unwrap();
        assert_eq!(check(&session, "k").level.remaining, before - 0.5);
        assert_eq!(session.rows().len(), rows);
    }
    // What is denied changes no rows to another number.
    session.define("n", BUCKET);
    let before = session.rows();
    assert!(!limit(&session, "k", 3.0).ok);
    assert_eq!(session.rows(), before);
}

#[test]
fn what_others_have_locked_is_passed_over_or_told() {
    let session = TestSession::with("n", IN_SHARDS);
    limit(&session, "k", 1.0);
    session.commit();
    session.lock_for_others(&[("n", "k", 20_001)]);
    // The other shard has two.
    assert!(limit(&session, "k", 1.0).ok);
    // This transaction holds a row, so it must not wait for another.
    let denied = limit(&session, "k", 2.0);
    assert_eq!((denied.ok, denied.retry_after), (false, Some(Micros(0))));
    assert!(session.waits().is_empty());
}

#[test]
fn all_or_none_in_tables_and_memory() {
    let session = TestSession::with("n", BUCKET);
    session.define("m", IN_MEMORY);
    session.define("s", IN_SHARDS);
    session.define("u", UNLIMITED);
    let requests = |count| {
        ["m", "n", "s", "u"].map(|name| request(name, "k", if name == "n" { count } else { 1.0 }))
    };
    let left = || {
        ["m", "n", "s"]
            .map(|name| single::check(&session, &request(name, "k", 1.0)).unwrap().level.remaining)
    };
    let answers = |count| -> Vec<bool> {
        several::limit(&session, &requests(count))
            .unwrap()
            .iter()
            .map(|outcome| outcome.answer.ok)
            .collect()
    };
    assert_eq!(answers(4.0), [true; 4]);
    assert_eq!(left(), [3.0, 0.0, 3.0]);
    let outcomes = several::limit(&session, &requests(1.0)).unwrap();
    assert_eq!(
        outcomes.iter().map(|outcome| outcome.allows).collect::<Vec<_>>(),
        [true, false, true, true]
    );
    assert!(outcomes.iter().all(|outcome| !outcome.answer.ok && !outcome.never));
    assert_eq!(left(), [3.0, 0.0, 3.0]);
    let never = several::check(&session, &requests(5.0)).unwrap();
    assert!(never[1].never && never[0].answer.retry_after.is_none());
    // An error names its request.
    let bad = [request("n", "k", 1.0), request("nowhere", "k", 1.0)];
    assert!(matches!(several::limit(&session, &bad), Err(LimiterError::InRequest { n: 2, .. })));
}

#[test]
fn a_block_denies_whatever_is_in_the_limit() {
    for config in [BUCKET, IN_MEMORY, IN_SHARDS, UNLIMITED] {
        let session = TestSession::with("n", config);
        session.block("n", "k", session.now().plus(seconds(2)));
        let denied = limit(&session, "k", 1.0);
        assert_eq!((denied.ok, denied.retry_after), (false, Some(seconds(2))), "{config}");
        assert!(session.rows().is_empty());
        session.block("n", "k", FOREVER);
        assert_eq!(limit(&session, "k", 1.0).retry_after, None, "{config}");
        session.pass(seconds(2));
        session.block("n", "k", session.now());
        assert!(limit(&session, "k", 1.0).ok, "{config}");
    }
}

#[test]
fn what_no_call_writes_is_an_error_that_names_the_column() {
    let session = TestSession::with("n", BUCKET);
    limit(&session, "k", 1.0);
    session.overwrite(("n", "k", 0), |stored| {
        let Stored::State(state) = stored else { panic!("{stored:?}") };
        Stored::Invalid { shape: state.shape(), ts: state.ts(), column: "value", value: f64::NAN }
    });
    for result in [
        single::limit(&session, &request("n", "k", 1.0)),
        single::check(&session, &request("n", "k", 1.0)),
    ] {
        assert!(
            matches!(result, Err(LimiterError::BadState { column: "value", .. })),
            "{result:?}"
        );
    }
    assert!(single::reset(&session, b"n", b"k").unwrap());
    assert!(limit(&session, "k", 4.0).ok);
}

#[test]
fn idle_rows_are_deleted_and_others_kept() {
    let session = TestSession::with("n", BUCKET);
    let mut keys = BTreeSet::new();
    for key in ["a", "b", "c"] {
        limit(&session, key, 1.0);
        keys.insert(key);
    }
    session.commit();
    let pruned = |session: &TestSession| -> Result<i64> {
        let mut deleted = 0;
        prune(session, 100, None, &mut deleted)?;
        Ok(deleted)
    };
    assert_eq!(pruned(&session).unwrap(), 0);
    session.pass(seconds(1));
    limit(&session, "b", 4.0);
    session.commit();
    session.lock_for_others(&[("n", "c", 0)]);
    assert_eq!(pruned(&session).unwrap(), 1, "a alone: b is used, c is locked");
    session.lock_for_others(&[]);
    session.pass(seconds(60));
    assert_eq!(pruned(&session).unwrap(), 2);
}

#[test]
fn the_status_shows_each_key_in_order_and_who_is_blocked() {
    let session = TestSession::with("n", BUCKET);
    limit(&session, "b", 1.0);
    limit(&session, "d", 4.0);
    session.block("n", "c", FOREVER);
    let mut seen = Vec::new();
    status::each(&session, None, None, |status| {
        let key = String::from_utf8_lossy(status.key).into_owned();
        seen.push((key, status.limit.map(|limit| limit.remaining), status.limited));
    })
    .unwrap();
    let row = |key: &str, left, limited| (key.to_owned(), Some(left), Some(limited));
    assert_eq!(seen, [row("b", 3.0, false), row("c", 4.0, true), row("d", 0.0, true)]);
}

#[test]
fn a_config_in_a_call_needs_the_right_to_define() {
    let session = TestSession::with("n", BUCKET);
    let config = TestConfig(IN_MEMORY);
    let with = |name| crate::request::Request { config: Some(&config), ..request(name, "k", 1.0) };
    assert!(single::limit(&session, &with("n")).unwrap().ok);
    session.may_define(false);
    assert!(matches!(single::limit(&session, &with("n")), Err(LimiterError::InlineConfig { .. })));
    assert!(single::limit(&session, &with("another")).unwrap().ok);
}

#[test]
fn a_row_that_appears_meanwhile_is_read_again() {
    let session = TestSession::with("n", BUCKET);
    // Another session's insert comes first.
    session.before_insert(|session| {
        let state = State::Tokens(Tokens { value: 1.0, ts: session.now(), brought: None });
        session.put(("n", "k", 0), Stored::State(state));
    });
    assert_eq!(limit(&session, "k", 1.0).level.remaining, 0.0);
}

#[test]
fn several_limits_take_from_as_many_shards_as_they_need() {
    let session = TestSession::with("n", IN_SHARDS);
    limit(&session, "k", 0.5);
    let take = |count| several::limit(&session, &[request("n", "k", count)]).unwrap()[0].answer.ok;
    // More than a shard has, and together less than all.
    assert!(take(3.0));
    let is_debt = |stored: &Stored| matches!(stored, Stored::State(state) if state.value() < 0.0);
    assert!(!session.rows().iter().any(|(_, stored)| is_debt(stored)), "{:?}", session.rows());
    assert!(!take(1.0) && take(0.5));
    assert_eq!(check(&session, "k").level.remaining, 0.0);
}

#[test]
fn nothing_is_taken_from_memory_where_another_session_has_emptied_one_of_the_limits() {
    let session = TestSession::with("a", IN_MEMORY);
    session.define("b", IN_MEMORY);
    let requests = ["a", "b"].map(|name| request(name, "k", 1.0));
    let ok =
        || several::limit(&session, &requests).unwrap().iter().all(|outcome| outcome.answer.ok);
    assert!(ok());
    session.before_lock_all(|entries| entries.set_tokens("b", "k", 0.0));
    assert!(!ok());
    let left = |name| single::check(&session, &request(name, "k", 1.0)).unwrap().level.remaining;
    assert_eq!([left("a"), left("b")], [3.0, 0.0]);
}

#[test]
fn keys_of_a_list_that_make_room_for_each_other_wait_for_a_save_and_are_never_a_denial() {
    let session = TestSession::with("n", SAVED);
    let list = |keys: [&'static str; 2]| {
        let requests = keys.map(|key| request("n", key, 1.0));
        several::limit(&session, &requests).map(|outcomes| outcomes.iter().all(|one| one.answer.ok))
    };
    session.entries.3.set(Some(2));
    assert!(limit(&session, "unsaved", 1.0).ok);
    assert!(matches!(list(["a", "b"]), Err(LimiterError::NoRoom { .. })));
    // Once that is saved, both have room.
    session.saves.set(true);
    assert!(list(["a", "b"]).unwrap());
    // Two have no room where one has.
    session.entries.2.borrow_mut().clear();
    session.entries.3.set(Some(1));
    assert!(matches!(list(["c", "d"]), Err(LimiterError::NoRoom { .. })));
}

#[test]
fn a_row_that_is_used_again_before_it_is_locked_is_not_pruned() {
    let session = TestSession::with("n", BUCKET);
    limit(&session, "k", 1.0);
    session.commit();
    session.pass(seconds(60));
    session.before_try_lock(|session| {
        let state = State::Tokens(Tokens { value: 0.0, ts: session.now(), brought: None });
        session.put(("n", "k", 0), Stored::State(state));
    });
    let mut deleted = 0;
    prune(&session, 100, None, &mut deleted).unwrap();
    assert_eq!((deleted, session.rows().len()), (0, 1));
}

#[test]
fn idle_keys_are_deleted_together_each_as_a_whole() {
    let session = TestSession::with("n", IN_SHARDS);
    session.define("m", BUCKET);
    session.together.set(true);
    for key in ["a", "b", "c"] {
        limit(&session, key, 3.0);
        single::limit(&session, &request("m", key, 1.0)).unwrap();
    }
    session.commit();
    session.pass(seconds(86_400_000));
    let all = session.rows().len();
    let of_key = |key: &str| {
        session.rows().iter().filter(|((_, k, _), _)| k[..] == *key.as_bytes()).count() as i64
    };
    let (of_a, of_b) = (of_key("a"), of_key("b"));
    // Others hold one row of a key with shards: none of it goes.
    let (_, _, shard) = session.rows().iter().map(|(id, _)| id.clone()).max().unwrap();
    assert!(shard > 0);
    session.lock_for_others(&[("n", "b", shard)]);
    let pruned = |rows| {
        let mut deleted = 0;
        prune(&session, rows, None, &mut deleted).unwrap();
        deleted
    };
    // A batch ends with the key that fills it: m has a row a key. It begins after the key that is drawn.
    assert_eq!(pruned(2), 2);
    assert_eq!(pruned(1), of_a - 1);
    while pruned(1) > 0 {}
    assert_eq!(session.rows().len() as i64, of_b - 1, "of {all}");
    session.lock_for_others(&[]);
    assert_eq!(pruned(100), of_b - 1);
}

#[test]
fn a_name_is_deleted_together_with_the_rows_that_a_change_of_shards_adds_meanwhile() {
    let session = TestSession::with("n", IN_SHARDS);
    session.together.set(true);
    for key in ["a", "b"] {
        limit(&session, key, 3.0);
    }
    session.before_try_lock(|session| {
        let state = State::Tokens(Tokens { value: 0.0, ts: session.now(), brought: None });
        session.put(("n", "a", 77), Stored::State(state));
    });
    let mut count = 0;
    single::reset_all(&session, b"n", &mut count).unwrap();
    assert_eq!((count, session.rows().len()), (2, 0));
    single::reset_all(&session, b"n", &mut count).unwrap();
    assert_eq!(count, 2);
}

#[test]
fn rows_of_an_exempt_key_wait_for_its_limit_to_come_back() {
    let session = TestSession::with("n", BUCKET);
    limit(&session, "k", 4.0);
    session.commit();
    session.define("n", UNLIMITED);
    session.pass(seconds(60));
    let pruned = |idle| {
        let mut deleted = 0;
        prune(&session, 100, idle, &mut deleted).unwrap();
        deleted
    };
    assert_eq!(pruned(None), 0);
    assert_eq!(pruned(Some(seconds(61))), 0);
    assert_eq!(pruned(Some(seconds(59))), 1);
}

#[test]
fn a_dry_run_lets_pass_and_counts_what_it_would_deny() {
    let dry = r#"{"kind": "token bucket", "rate": 1, "period": "1 day", "enforce": false}"#;
    let session = TestSession::with("n", dry);
    limit(&session, "k", 1.0);
    let passed = limit(&session, "k", 1.0);
    assert_eq!((passed.ok, passed.retry_after, passed.enforced), (true, None, false));
    assert_eq!(session.counted(), [Verdict::Allowed, Verdict::Denied { enforced: false }]);
    assert!(!check(&session, "k").ok, "a check tells it");
}

#[test]
fn a_keyed_limit_refuses_the_empty_key() {
    let keyed = r#"{"kind": "token bucket", "rate": 1, "period": "1 day", "keyed": true}"#;
    let session = TestSession::with("n", keyed);
    let refused = |error| matches!(error, Err(LimiterError::Keyed { .. }));
    assert!(refused(single::limit(&session, &request("n", "", 1.0)).map(|_| ())));
    assert!(refused(single::reset(&session, b"n", b"").map(|_| ())));
    assert!(limit(&session, "k", 1.0).ok);
}

#[test]
fn a_reset_forgets_what_a_config_in_a_call_has_taken() {
    let session = TestSession::with("n", BUCKET);
    for config in [IN_MEMORY, BUCKET, IN_SHARDS] {
        let config = TestConfig(config);
        let with = || {
            let request =
                crate::request::Request { config: Some(&config), ..request("x", "k", 4.0) };
            single::limit(&session, &request).unwrap().ok
        };
        assert!(with() && !with(), "{}", config.0);
        assert!(single::reset(&session, b"x", b"k").unwrap());
        assert!(with() && single::reset(&session, b"x", b"k").unwrap(), "{}", config.0);
    }
}

#[test]
fn a_lease_is_drawn_where_the_rows_are_still_those_of_shards() {
    let session = TestSession::with("n", IN_SHARDS);
    limit(&session, "k", 1.0);
    session.define("n", SLOTS);
    let lease = leases::acquire(&session, &request("n", "k", 1.0)).unwrap().lease.unwrap();
    assert!(lease.id < Micros(1 << 20), "{lease:?}");
}

#[test]
fn what_is_exempt_and_in_memory_has_no_rows_and_forgets_none() {
    let session = TestSession::with("n", BUCKET);
    limit(&session, "k", 1.0);
    session.define("n", r#"{"kind": "unlimited", "store": "memory"}"#);
    let before = session.rows();
    assert!(!single::reset(&session, b"n", b"k").unwrap());
    let mut seen = 0;
    status::each(&session, None, None, |_| seen += 1).unwrap();
    assert_eq!((session.rows(), seen), (before, 0));
}

#[test]
fn a_reset_of_shards_that_forgets_nothing_leaves_them_unlocked() {
    let session = TestSession::with(
        "n",
        r#"{"kind": "token bucket", "rate": 1, "period": "1 minute", "capacity": 4, "shards": 2}"#,
    );
    assert!(limit(&session, "k", 1.0).ok);
    for forgets in [true, false] {
        session.commit();
        assert_eq!(single::reset(&session, b"n", b"k").unwrap(), forgets);
        assert_eq!(session.locked().is_empty(), !forgets);
    }
}

#[test]
fn a_lease_that_is_gone_once_its_row_is_locked_leaves_it_unlocked() {
    for replaces in [true, false] {
        for fate in [Fate::Extended, Fate::Released] {
            let session =
                TestSession::with("n", r#"{"kind": "concurrency", "slots": 1, "ttl": "1 hour"}"#);
            session.replaces.set(replaces);
            let lease = leases::acquire(&session, &request("n", "k", 1.0)).unwrap().lease.unwrap();
            session.commit();
            session.lock_for_others(&[("n", "k", 0)]);
            // Another session resets the key between the read and the lock.
            session.before_try_lock(move |session| {
                session.put(("n", "k", 0), Stored::Reset { ts: session.now() });
                if replaces {
                    session.lock_for_others(&[]);
                }
            });
            let settled = leases::settle(&session, &request("n", "k", 0.0), lease.id, fate);
            assert_eq!((settled.unwrap(), session.locked()), (None, Vec::new()), "{replaces}");
        }
    }
}

#[test]
fn an_extension_that_comes_too_late_leaves_the_row_free() {
    for replaces in [false, true] {
        let session = TestSession::with("n", SLOTS);
        session.replaces.set(replaces);
        let lease = leases::acquire(&session, &request("n", "k", 1.0)).unwrap().lease.unwrap();
        session.commit();
        session.pass(seconds(9));
        session.lock_for_others(&[("n", "k", 0)]);
        // The lock is waited for, and the lease expires meanwhile.
        session.before_try_lock(|session| session.pass(seconds(2)));
        let settled = leases::settle(&session, &request("n", "k", 0.0), lease.id, Fate::Extended);
        assert_eq!(settled.unwrap(), None);
        assert!(session.waits().len() == 1 && session.locked().is_empty(), "{replaces}");
    }
}

#[test]
fn a_take_that_has_waited_is_decided_at_the_time_of_its_lock() {
    for replaces in [false, true] {
        let session = TestSession::with("n", BUCKET);
        session.replaces.set(replaces);
        limit(&session, "k", 4.0);
        session.commit();
        session.pass(seconds(1));
        session.lock_for_others(&[("n", "k", 0)]);
        session.before_try_lock(|session| session.pass(seconds(2)));
        let answer = limit(&session, "k", 1.0);
        assert_eq!((answer.ok, answer.level.remaining), (true, 2.0), "{replaces}");
        assert_eq!((answer.now, session.waits().len()), (session.now(), 1));
    }
}
