//! Sessions on the nodes of a cluster that take tokens, and note what they took in the same transaction, in a table
//! co-located with the states.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use postgres::{Client, Row};
use ratelimit_judge::{Asked, End, History, Recorder, Recording, Reply, Storage, judge};

use crate::own::Server;

pub const SESSIONS: usize = 16;

/// The limits: they refill by less than a thousandth of a token in the time of a test.
pub const DEFINE: &str = r#"
    SELECT rl_define('one', '{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": 1000000}'),
           rl_define('window', '{"kind": "fixed window", "rate": 1000000, "period": "1000 days"}'),
           rl_define('parts', '{"kind": "token bucket", "rate": 4, "period": "1000 days", "capacity": 1000000, "shards": 4}');
    CREATE TABLE taken (name text, key text COLLATE "C", count float8)"#;

/// Has the notes distributed.
pub const DISTRIBUTE_NOTES: &str =
    "SELECT create_distributed_table('taken', 'key', colocate_with => 'ratelimits')";

/// The same limits, for the judge.
const LIMITS: [(&str, &str, Storage); 3] = [
    (
        "one",
        r#"{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": 1000000}"#,
        Storage::Row,
    ),
    ("window", r#"{"kind": "fixed window", "rate": 1000000, "period": "1000 days"}"#, Storage::Row),
    // Judged by its sums alone: the shard of a call isn't known.
    (
        "parts",
        r#"{"kind": "token bucket", "rate": 4, "period": "1000 days", "capacity": 1000000, "shards": 4}"#,
        Storage::Shards,
    ),
];

/// The keys of each limit; the first is hot.
const KEYS: u32 = 101;

/// What sessions did.
#[derive(Default)]
pub struct Done {
    pub committed: u64,
    /// The number of errors, by SQLSTATE and message.
    pub errors: BTreeMap<String, u64>,
    history: History,
}

/// Where a history is left that is refused.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target");

impl Done {
    /// Has a judge say whether some order of the transactions explains every answer.
    pub fn judge(&self) {
        judged(&self.history);
    }

    /// The same where nodes crashed.
    pub fn judge_after_crashes(self) {
        judged(&disturbed(self.history));
    }
}

/// A history of nodes that crashed, or whose sessions for other nodes were ended. What was committed may be seen on a
/// node only later, once it has recovered and has committed what was prepared there. And what was not committed may
/// have been rolled back there as soon as the call was decided, before the client looked at its answer: the node's
/// session may have been ended by then, and the client learns of it later.
pub fn disturbed(mut history: History) -> History {
    let History { ends, calls, .. } = &mut history;
    for call in calls {
        match call.end.map(|end| &mut ends[end as usize]) {
            None => {
                ends.push(End { invoked: call.invoked, answered: i64::MAX, kept: Some(true) });
                call.end = Some(ends.len() as u32 - 1);
            }
            Some(end) if end.kept == Some(true) => end.answered = i64::MAX,
            Some(end) => end.invoked = end.invoked.min(call.invoked),
        }
    }
    history
}

/// Fails where the judge refuses a history, and leaves it in a file; or where it doesn't refuse it with one answer
/// changed.
pub fn judged(history: &History) {
    match judge(history) {
        Ok(judgement) => {
            println!("{judgement}");
            let changed = history.with_a_denial().expect("a take");
            judge(&changed).expect_err("a take that is told to be a denial");
        }
        Err(refusal) => {
            let file = Path::new(FOLDER).join("refused-citus.jsonl");
            history.write(&file, &refusal.to_string()).unwrap();
            panic!("{refusal}\nthe history is in {}", file.display());
        }
    }
}

/// Runs sessions on these nodes until `work` is done.
pub fn beside<T>(nodes: &[&Server], work: impl FnOnce() -> T) -> (T, Done) {
    let stop = AtomicBool::new(false);
    // Each node reads the clock of the one machine.
    let recorder = Recorder::new();
    for (name, config, storage) in LIMITS {
        (0..KEYS).for_each(|n| {
            recorder.key(name, &key(n), config, storage);
        });
    }
    let (result, mut done) = thread::scope(|scope| {
        let (stop, recorder) = (&stop, &recorder);
        let session = |n: usize| {
            scope.spawn(move || session(nodes[n % nodes.len()], recorder.session(), stop))
        };
        let sessions: Vec<_> = (0..SESSIONS).map(session).collect();
        // Also where the work fails: the scope waits for its threads.
        let result = catch_unwind(AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        let result = result.unwrap_or_else(|panic| resume_unwind(panic));
        let mut done = Done::default();
        for session in sessions {
            let of = session.join().unwrap();
            done.committed += of.committed;
            for (error, count) in of.errors {
                *done.errors.entry(error).or_default() += count;
            }
        }
        (result, done)
    });
    done.history = recorder.history();
    (result, done)
}

fn session(node: &Server, mut recording: Recording, stop: &AtomicBool) -> Done {
    let mut done = Done::default();
    let mut client: Option<Client> = None;
    while !stop.load(Ordering::Relaxed) {
        let open = client.take().map_or_else(|| node.connect("postgres"), Ok);
        let result = open.and_then(|mut open| {
            let result = transaction(&mut open, &mut recording);
            // An open one has ended with what it took, on a node that crashed perhaps since its last answer.
            recording.lost();
            if !open.is_closed() {
                client = Some(open);
            }
            result
        });
        match result {
            Ok(committed) => done.committed += u64::from(committed),
            Err(error) => {
                let closed = client.is_none();
                let text = match error.as_db_error() {
                    _ if closed => "connection lost".to_owned(),
                    Some(error) => format!("{} {:.60}", error.code().code(), error.message()),
                    None => error.to_string(),
                };
                *done.errors.entry(text).or_default() += 1;
                if closed {
                    thread::sleep(std::time::Duration::from_millis(50));
                }
            }
        }
    }
    done
}

/// The key of a number.
fn key(n: u32) -> String {
    if n == 0 { "hot".to_owned() } else { format!("key {}", n - 1) }
}

/// Reads the answers of calls on these limits and keys: `ok` and `remaining`.
fn read(rows: &[Row], of: &[(usize, u32, Asked)]) -> Vec<(u32, Asked, Option<i64>, Reply)> {
    let answer = |(row, &(limit, key, asked)): (&Row, &(usize, u32, Asked))| {
        let reply = Reply { ok: row.get(0), remaining: Some(row.get(1)), retry_at: None };
        (limit as u32 * KEYS + key, asked, None, reply)
    };
    rows.iter().zip(of).map(answer).collect()
}

/// Takes tokens of one or two keys; of four transactions one rolls back. True if it committed.
fn transaction(client: &mut Client, recording: &mut Recording) -> Result<bool, postgres::Error> {
    let mut transaction = client.transaction()?;
    recording.begin();
    let limit = fastrand::usize(0..3);
    let name = LIMITS[limit].0;
    let any = || if fastrand::bool() { 0 } else { fastrand::u32(1..KEYS) };
    let count = f64::from(fastrand::u8(1..4));
    let take = |count| Asked::Limit { count, reserve: false };
    let note = "INSERT INTO taken VALUES ($1, $2, $3)";
    let seen = any();
    if fastrand::u8(0..4) == 0 {
        let check = "SELECT ok, remaining FROM rl_check($1, $2)";
        let of = [(limit, seen, Asked::Check { count: 1.0, reserve: false })];
        recording
            .call(|| transaction.query(check, &[&name, &key(seen)]), |rows| read(rows, &of))?;
    }
    if fastrand::u8(0..4) == 0 {
        let keys = [any(), any()];
        let requests = serde_json::json!([
            { "name": name, "key": key(keys[0]), "count": count },
            { "name": "one", "key": key(keys[1]), "count": 1 }
        ]);
        let all = "SELECT ok, remaining FROM rl_limit_all($1::text::jsonb) ORDER BY n";
        // Each of two requests of one key has what both leave: it is one take.
        let of = match (limit, keys[0]) == (0, keys[1]) {
            true => vec![(0, keys[0], take(count + 1.0))],
            false => vec![(limit, keys[0], take(count)), (0, keys[1], take(1.0))],
        };
        let ask = || transaction.query(all, &[&requests.to_string()]);
        // With shards a call may find none that is free; then it has taken nothing, and is not judged.
        let answer = |rows: &Vec<Row>| if rows[0].get(0) { read(rows, &of) } else { Vec::new() };
        if !recording.call(ask, answer)?[0].get::<_, bool>(0) {
            return Ok(false);
        }
        transaction.execute(note, &[&name, &key(keys[0]), &count])?;
        transaction.execute(note, &[&"one", &key(keys[1]), &1f64])?;
    } else {
        // Also of what was read before.
        let n = if fastrand::bool() { any() } else { seen };
        let sql = "SELECT ok, remaining FROM rl_limit($1, $2, $3)";
        let ask = || transaction.query(sql, &[&name, &key(n), &count]);
        let rows = recording.call(ask, |rows| read(rows, &[(limit, n, take(count))]))?;
        if rows[0].get(0) {
            transaction.execute(note, &[&name, &key(n), &count])?;
        }
    }
    if fastrand::u8(0..4) == 0 {
        transaction.rollback()?;
        return Ok(false);
    }
    recording.commit(|| transaction.commit())?;
    Ok(true)
}

/// Compares what committed transactions noted with what the rows lack.
pub fn assert_exact(client: &mut Client) {
    let sql = "
        WITH used AS (SELECT name, key, CASE min(name) WHEN 'parts' THEN 250000 ELSE 1000000 END * count(*) - sum(value) AS used
                      FROM rateLimits WHERE kind <> '#' GROUP BY name, key),
             noted AS (SELECT name, key, sum(count) AS noted FROM taken GROUP BY name, key)
        SELECT format('%s, %s: %s taken, %s used', name, key, noted, used) FROM used FULL JOIN noted USING (name, key)
        WHERE abs(coalesce(noted, 0) - coalesce(used, 0)) > 0.01";
    let wrong: Vec<String> = client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let noted: Option<f64> = client.query_one("SELECT sum(count) FROM taken", &[]).unwrap().get(0);
    assert!(noted > Some(0.0));
}
