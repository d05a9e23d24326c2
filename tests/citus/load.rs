//! Sessions on the nodes of a cluster that take tokens, and note what they took in the same transaction, in a
//! table that is distributed beside the states.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use postgres::Client;

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

/// What sessions did.
#[derive(Default)]
pub struct Done {
    pub committed: u64,
    /// The number of errors, by SQLSTATE and message.
    pub errors: BTreeMap<String, u64>,
}

/// Runs sessions on these nodes until `work` is done.
pub fn beside<T>(nodes: &[&Server], work: impl FnOnce() -> T) -> (T, Done) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let session = |n: usize| scope.spawn(move || session(nodes[n % nodes.len()], stop));
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
    })
}

fn session(node: &Server, stop: &AtomicBool) -> Done {
    let mut done = Done::default();
    let mut client: Option<Client> = None;
    while !stop.load(Ordering::Relaxed) {
        let open = client.take().map_or_else(|| node.connect("postgres"), Ok);
        let result = open.and_then(|mut open| {
            let result = transaction(&mut open);
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

/// Takes tokens of one or two keys; of four transactions one rolls back. True if it committed.
fn transaction(client: &mut Client) -> Result<bool, postgres::Error> {
    let mut transaction = client.transaction()?;
    let name = ["one", "window", "parts"][fastrand::usize(0..3)];
    let key = || match fastrand::bool() {
        true => "hot".to_owned(),
        false => format!("key {}", fastrand::u32(0..100)),
    };
    let count = f64::from(fastrand::u8(1..4));
    let note = "INSERT INTO taken VALUES ($1, $2, $3)";
    let read = key();
    if fastrand::u8(0..4) == 0 {
        transaction.execute("SELECT rl_check($1, $2)", &[&name, &read])?;
    }
    if fastrand::u8(0..4) == 0 {
        let keys = [key(), key()];
        let requests = serde_json::json!([
            { "name": name, "key": keys[0], "count": count },
            { "name": "one", "key": keys[1], "count": 1 }
        ]);
        let ok = "SELECT coalesce(bool_and(ok), false) FROM rl_limit_all($1::text::jsonb)";
        // With shards a call may find none that is free.
        if !transaction.query_one(ok, &[&requests.to_string()])?.get::<_, bool>(0) {
            return Ok(false);
        }
        transaction.execute(note, &[&name, &keys[0], &count])?;
        transaction.execute(note, &[&"one", &keys[1], &1f64])?;
    } else {
        // Also of what was read before.
        let key = if fastrand::bool() { key() } else { read };
        let limit = "SELECT ok FROM rl_limit($1, $2, $3)";
        if transaction.query_one(limit, &[&name, &key, &count])?.get::<_, bool>(0) {
            transaction.execute(note, &[&name, &key, &count])?;
        }
    }
    if fastrand::u8(0..4) == 0 {
        transaction.rollback()?;
        return Ok(false);
    }
    transaction.commit()?;
    Ok(true)
}

/// Compares what committed transactions noted with what the rows lack.
pub fn assert_exact(client: &mut Client) {
    let sql = "
        WITH used AS (SELECT name, key, CASE min(name) WHEN 'parts' THEN 250000 ELSE 1000000 END * count(*) - sum(value) AS used
                      FROM rateLimits WHERE ts > '-infinity' GROUP BY name, key),
             noted AS (SELECT name, key, sum(count) AS noted FROM taken GROUP BY name, key)
        SELECT format('%s, %s: %s taken, %s used', name, key, noted, used) FROM used FULL JOIN noted USING (name, key)
        WHERE abs(coalesce(noted, 0) - coalesce(used, 0)) > 0.01";
    let wrong: Vec<String> = client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let noted: Option<f64> = client.query_one("SELECT sum(count) FROM taken", &[]).unwrap().get(0);
    assert!(noted > Some(0.0));
}
