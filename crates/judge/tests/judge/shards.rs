//! Limits with shards: one token too many is refused, and a denial while there are enough.

use ratelimit_judge::{Asked, End, History, Invocation, Limited, Reply, Storage, judge};

/// Calls of a limit of ten tokens, at an instant each, of which those of a transaction end at 1,000.
fn history(calls: &[(i64, f64, bool, Option<u32>)], kept: bool) -> History {
    let config = r#"{"kind":"token bucket","rate":10,"period":"1 day","shards":4}"#;
    let key = Limited {
        name: "limit".into(),
        key: String::new(),
        config: config.into(),
        storage: Storage::Shards,
    };
    let calls = calls.iter().enumerate().map(|(n, &(at, count, ok, end))| Invocation {
        session: n as u32,
        transaction: n as u32,
        key: 0,
        asked: Asked::Limit { count, reserve: false },
        invoked: at,
        answered: at + 5,
        now: Some(0),
        reply: Reply { ok, ..Reply::default() },
        end,
    });
    let end = End { invoked: 1_000, answered: 1_010, kept: Some(kept) };
    History { skew: None, keys: vec![key], ends: vec![end], calls: calls.collect() }
}

#[test]
fn a_token_too_many_is_refused() {
    let takes = |last| history(&[(10, 6.0, true, None), (20, last, true, None)], true);
    assert!(judge(&takes(4.0)).is_ok());
    assert!(judge(&takes(5.0)).is_err());
}

#[test]
fn what_is_in_progress_is_taken() {
    let takes = |at| history(&[(10, 6.0, true, Some(0)), (at, 5.0, true, None)], false);
    assert!(judge(&takes(20)).is_err());
    assert!(judge(&takes(1_020)).is_ok());
}

#[test]
fn a_denial_of_what_is_there_is_refused() {
    let denied = |at| history(&[(10, 6.0, true, Some(0)), (at, 5.0, false, None)], true);
    assert!(judge(&denied(1_020)).is_ok());
    assert!(judge(&denied(20)).is_err());
}

#[test]
fn a_history_is_read_as_it_was_written() {
    let history = history(&[(10, 6.0, true, Some(0)), (20, 5.0, false, None)], true);
    let file = std::env::temp_dir().join(format!("ratelimit-history-{}.jsonl", std::process::id()));
    history.write(&file, "why").unwrap();
    let read = History::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(read, history);
}
