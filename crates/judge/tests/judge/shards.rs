//! Limits with shards: one token too many is refused, and a denial while there are enough.

use ratelimit_judge::{Asked, End, History, Invocation, Limited, Reply, ShardSeen, Storage, judge};

/// Calls on a limit of ten tokens, each at an instant; those of a transaction end at 1,000.
fn history(calls: &[(i64, f64, bool, Option<u32>)], kept: bool) -> History {
    let config = r#"{"kind":"token bucket","rate":10,"period":"1 day","shards":4}"#;
    let key = Limited {
        name: "limit".into(),
        key: String::new(),
        config: config.into(),
        storage: Storage::Shards,
    };
    let calls = calls.iter().enumerate().map(|(n, &(at, count, ok, end))| Invocation {
        unanswered: false,
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
    History {
        skew: None,
        keys: vec![key],
        ends: vec![end],
        calls: calls.collect(),
        rows: Vec::new(),
    }
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

/// A history by a real clock, of a limit that gets a token a second.
fn refilled(calls: &[(i64, f64, bool, Option<u32>)]) -> History {
    let mut history = History { skew: Some(0), ..history(calls, true) };
    history.keys[0].config = history.keys[0].config.replace("1 day", "10 seconds");
    history.calls.iter_mut().for_each(|call| call.now = None);
    history
}

#[test]
fn a_denial_of_what_is_there_is_refused_under_a_real_clock() {
    let mut denied = refilled(&[(10, 1.0, false, None)]);
    denied.calls[0].reply.remaining = Some(0.0);
    assert!(judge(&denied).is_err());
    denied.calls[0].reply.remaining = None;
    assert!(judge(&denied).is_err());
    assert!(judge(&refilled(&[(10, 11.0, false, None)])).is_ok());
}

#[test]
fn more_than_flows_in_is_not_there() {
    let told = |remaining| {
        let mut history = refilled(&[(0, 10.0, true, None), (2_000_000, 1.0, true, None)]);
        history.calls[1].asked = Asked::Check { count: 1.0, reserve: false };
        history.calls[1].reply.remaining = Some(remaining);
        judge(&history)
    };
    assert!(told(2.0).is_ok());
    assert!(told(2.1).is_err());
}

#[test]
fn what_is_given_back_is_there() {
    let told = |remaining| {
        let calls = [(10, 10.0, true, None), (20, 3.0, true, None), (30, 1.0, true, None)];
        let mut history = history(&calls, true);
        history.calls[1].asked = Asked::Credit { count: 3.0 };
        history.calls[2].asked = Asked::Check { count: 1.0, reserve: false };
        history.calls[2].reply.remaining = Some(remaining);
        judge(&history)
    };
    assert!(told(3.0).is_ok());
    assert!(told(4.0).is_err());
}

/// A transaction takes one token of ten, and is denied another one.
fn denied_again() -> History {
    let mut history = history(&[(10, 1.0, true, Some(0)), (20, 1.0, false, Some(0))], true);
    history.calls[1].transaction = 0;
    history
}

#[test]
fn a_transaction_is_denied_what_is_there_only_to_retry_at_once() {
    let denied = |retry_at| {
        let mut history = denied_again();
        history.calls[1].reply.retry_at = Some(retry_at);
        judge(&history)
    };
    assert!(denied(Some(0)).is_ok());
    assert!(denied(Some(60_000_000)).is_err());
    assert!(denied(None).is_err());
}

#[test]
fn a_check_is_never_denied_what_is_there() {
    let mut history = denied_again();
    history.calls[1].asked = Asked::Check { count: 1.0, reserve: false };
    history.calls[1].reply.retry_at = Some(Some(0));
    assert!(judge(&history).is_err());
}

#[test]
fn what_is_rolled_back_to_a_savepoint_is_free() {
    let mut history = denied_again();
    history.calls[1].reply.retry_at = Some(Some(0));
    assert!(judge(&history).is_ok());
    history.ends.push(End { invoked: 16, answered: 18, kept: Some(false) });
    history.calls[0].end = Some(1);
    assert!(judge(&history).is_err());
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

/// Takes from two shards of five tokens that never refill: the shard, the tokens left in its row, whether it is kept.
fn by_rows(takes: &[&[(i32, f64, bool)]]) -> History {
    let calls: Vec<_> = (0..takes.len()).map(|n| (10 * n as i64, 1.0, true, Some(0))).collect();
    let mut history = history(&calls, true);
    history.keys[0].config = history.keys[0].config.replace("\"shards\":4", "\"shards\":2");
    history.ends.push(End { kept: Some(false), ..history.ends[0] });
    for (n, rows) in takes.iter().enumerate() {
        let call = &mut history.calls[n];
        for &(shard, value, is_kept) in *rows {
            call.end = Some(u32::from(!is_kept));
            let ts = 10 * n as i64;
            let Invocation { transaction, key, invoked, .. } = *call;
            history.rows.push(ShardSeen { transaction, key, invoked, shard, value, ts });
        }
    }
    history
}

#[test]
fn what_rows_lost_is_what_was_taken() {
    let right = by_rows(&[
        &[(20_001, 4.0, true)],
        &[(20_002, 4.0, true)],
        &[(20_001, 3.0, false)],
        &[(20_001, 3.0, true)],
        &[(20_001, 2.5, true), (20_002, 3.5, true)],
    ]);
    assert_eq!(judge(&right).unwrap().by_rows, 4);
    // A take overwrites another's row, or was decided on a row that was rolled back: the sums are within bounds.
    let overwritten = by_rows(&[&[(20_001, 4.0, true)], &[(20_001, 4.0, true)]]);
    assert!(judge(&overwritten).is_err());
    let rolled_back = by_rows(&[&[(20_001, 4.0, false)], &[(20_001, 3.0, true)]]);
    assert!(judge(&rolled_back).is_err());
    // Where the rows of one take are missing, rows aren't judged.
    let mut unknown = overwritten;
    unknown.rows.pop();
    assert_eq!(judge(&unknown).unwrap().by_rows, 0);
}
