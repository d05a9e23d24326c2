//! Takes during every action of the tables' owner: rows changed, renamed and deleted by hand, the table
//! truncated, rebuilt and altered, indexes created and dropped, cursors that fail in savepoints.
//! Afterwards table and index are intact, no key has two rows, and where only calls wrote, the rows
//! agree with the takes. TIMES multiplies the 20 seconds; actions are random unless SEED is set.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres::{Client, Error, Transaction};
use ratelimit_tests::{seed, times};

use super::Random;
use super::errors::{Errors, note, quick_to_see_deadlocks};
use crate::database::Database;

/// Keys of each limit.
const KEYS: u64 = 4;
const CAPACITY: &str = "1048576";

/// The action that a session repeats, and the errors that it may meet.
struct Work {
    sessions: usize,
    setup: &'static str,
    work: fn(&mut Client, &mut Random) -> Result<(), Error>,
    errors: &'static [&'static str],
}

const DEADLOCK: &str = "40P01";
const CONFLICT: &str = "40001";
const DUPLICATE: &str = "23505";
/// The notes are truncated with the table: a take locks both in the same order as TRUNCATE.
const WORKS: [Work; 8] = [
    Work { sessions: 4, setup: "", work: take, errors: &[DEADLOCK] },
    Work { sessions: 2, setup: "SET ratelimit.access = sql", work: take, errors: &[DEADLOCK] },
    Work {
        sessions: 2,
        setup: "SET default_transaction_isolation = 'repeatable read'",
        work: take,
        errors: &[DEADLOCK, CONFLICT], // by SQL, which is what an index more leaves
    },
    Work { sessions: 2, setup: "", work: fail_in_a_cursor, errors: &[DEADLOCK] },
    Work { sessions: 2, setup: "", work: write_by_hand, errors: &[DEADLOCK, DUPLICATE] },
    Work { sessions: 2, setup: "", work: call_whatever_else, errors: &[DEADLOCK] },
    Work {
        sessions: 1,
        setup: "SET client_min_messages = error",
        work: alter,
        errors: &[DEADLOCK],
    },
    Work { sessions: 1, setup: "", work: empty, errors: &[DEADLOCK] },
];

/// Only takes write the rows of these limits.
fn exact(random: &mut Random) -> (&'static str, String) {
    let name = if random.below(4) == 0 { "exact wide" } else { "exact" };
    (name, format!("key {}", random.below(KEYS)))
}

fn loose(random: &mut Random) -> String {
    format!("key {}", random.below(KEYS))
}

const NOTED: &str = "INSERT INTO takes SELECT $1, $2, $3 FROM rl_limit($1, $2, $3) WHERE ok";

/// Some takes, noted in the same transaction.
fn take(client: &mut Client, random: &mut Random) -> Result<(), Error> {
    let count = (1 + random.below(3)) as f64;
    let (name, key) = exact(random);
    match random.below(5) {
        0 => {
            let sql = "INSERT INTO takes SELECT r.name, r.key, $2::float8 FROM rl_limit_all(
                           (SELECT jsonb_agg(jsonb_build_object('name', n, 'key', $1::text, 'count', $2::float8))
                            FROM unnest('{exact,exact wide}'::text[]) n)) r WHERE ok";
            client.execute(sql, &[&key, &count]).map(drop)
        }
        1 => {
            let mut transaction = client.transaction()?;
            transaction.execute(NOTED, &[&name, &key, &count])?;
            let mut savepoint = transaction.transaction()?;
            savepoint.execute(NOTED, &[&name, &key, &count])?;
            if random.below(2) == 0 {
                savepoint.rollback()?
            } else {
                savepoint.commit()?
            }
            transaction.execute(NOTED, &[&name, &key, &count])?;
            if random.below(3) == 0 { transaction.rollback() } else { transaction.commit() }
        }
        2 => {
            // Takes the tokens that rl_check has found, without a lock.
            let mut transaction = client.transaction()?;
            transaction.batch_execute("LOCK TABLE takes IN ROW EXCLUSIVE MODE")?;
            transaction.execute("SELECT rl_check($1, $2)", &[&name, &key])?;
            transaction.execute(NOTED, &[&name, &key, &count])?;
            transaction.commit()
        }
        _ => client.execute(NOTED, &[&name, &key, &count]).map(drop),
    }
}

/// Runs a transaction with a cursor whose locks PostgreSQL releases before it ends; the writes of its call
/// stay, and so must the lock on the table, or VACUUM FULL could lose the row.
fn fail_in_a_cursor(client: &mut Client, random: &mut Random) -> Result<(), Error> {
    let (name, key) = exact(random);
    let mut transaction = client.transaction()?;
    // Before it is taken: the lock on the notes stays.
    transaction.execute("INSERT INTO takes VALUES ($1, $2, 1)", &[&name, &key])?;
    transaction.batch_execute(&format!(
        "DECLARE c CURSOR FOR SELECT 1 / (2 - n), (rl_limit('{name}', '{key}')).ok
                              FROM generate_series(1, 3) n"
    ))?;
    let row = transaction.query_one("FETCH c", &[])?;
    assert!(row.get::<_, bool>(1), "the limit is not exhausted");
    let mut savepoint = transaction.transaction()?;
    let failed = savepoint.query_one("FETCH c", &[]).unwrap_err();
    if failed.as_db_error().is_none_or(|error| error.code().code() != "22012") {
        return Err(failed);
    }
    savepoint.rollback()?;
    for _ in 0..random.below(3) {
        transaction.execute(NOTED, &[&name, &key, &1.0])?;
    }
    if random.below(3) == 0 { transaction.rollback() } else { transaction.commit() }
}

/// Changes rows of another limit in every way, during takes of it.
fn write_by_hand(client: &mut Client, random: &mut Random) -> Result<(), Error> {
    let (one, other) = (loose(random), loose(random));
    let rename = "UPDATE rateLimits SET key = $2 WHERE name = 'loose' AND key = $1";
    match random.below(6) {
        0 => client.execute(
            "UPDATE rateLimits SET value = value - 1 WHERE name = 'loose' AND key = $1",
            &[&one],
        ),
        1 => client.execute("DELETE FROM rateLimits WHERE name = 'loose' AND key = $1", &[&one]),
        2 => client.execute(rename, &[&one, &other]),
        3 => {
            let mut transaction = client.transaction()?;
            transaction.execute(rename, &[&one, &"between"])?;
            transaction.execute("SELECT rl_limit('loose', $1)", &[&one])?;
            transaction.commit()?;
            client.execute("DELETE FROM rateLimits WHERE name = 'loose' AND key = 'between'", &[])
        }
        4 => {
            let mut transaction = client.transaction()?;
            transaction.execute(rename, &[&one, &"there and back"])?;
            transaction.execute(rename, &[&"there and back", &one])?;
            transaction.commit()?;
            Ok(1)
        }
        _ => client.execute("SELECT rl_limit('loose', $1)", &[&one]),
    }
    .map(drop)
}

/// Calls the other functions, on rows that are changed by hand.
fn call_whatever_else(client: &mut Client, random: &mut Random) -> Result<(), Error> {
    let (one, other) = (loose(random), loose(random));
    match random.below(8) {
        0 => client.execute("SELECT rl_reset('loose', $1)", &[&one]),
        1 => client.execute("SELECT rl_reset_keys('loose')", &[]),
        2 => client.execute("SELECT rl_credit('loose', $1, -1)", &[&one]),
        3 => client.execute("SELECT rl_prune()", &[]),
        4 => client.execute("SELECT rl_status()", &[]),
        5 => client.execute(
            "SELECT FROM rl_limit_all((SELECT jsonb_agg(jsonb_build_object('name', 'loose', 'key', k)) FROM unnest($1::text[]) k))",
            &[&vec![one, other]],
        ),
        _ => client.execute("SELECT rl_limit('loose', $1)", &[&one]),
    }
    .map(drop)
}

const NO_INDEX: &str = "DROP INDEX IF EXISTS later";
const NO_CHECK: &str = "ALTER TABLE rateLimits DROP CONSTRAINT IF EXISTS finite";

/// Rebuilds the table, or alters it and restores it.
fn alter(client: &mut Client, random: &mut Random) -> Result<(), Error> {
    let statements: &[&str] = match random.below(10) {
        0 => &["REINDEX TABLE rateLimits"],
        1 => &["REINDEX INDEX ratelimits_pkey"],
        2 => &["VACUUM FULL rateLimits"],
        3 => &["CLUSTER rateLimits USING ratelimits_pkey"],
        4 => &[NO_INDEX, "CREATE INDEX later ON rateLimits (ts, value)", NO_INDEX],
        5 => &[NO_INDEX, "CREATE INDEX CONCURRENTLY later ON rateLimits (value)", NO_INDEX],
        6 => &["BEGIN; ALTER TABLE rateLimits ADD note text DEFAULT 'x', DROP log", "ROLLBACK"],
        7 => &[
            "ALTER TABLE rateLimits ALTER value DROP NOT NULL",
            "ALTER TABLE rateLimits ALTER value SET NOT NULL",
        ],
        8 => &[
            NO_CHECK,
            "ALTER TABLE rateLimits ADD CONSTRAINT finite CHECK (value > -1e15)",
            NO_CHECK,
        ],
        _ => &["VACUUM rateLimits", "ALTER TABLE rateLimits SET (fillfactor = 40)"],
    };
    // Each runs whether or not the previous one failed.
    let mut done = Ok(());
    for sql in statements {
        done = done.and(client.batch_execute(sql));
        thread::sleep(Duration::from_millis(random.below(10)));
    }
    done
}

/// Truncates the table and the notes together, after comparing them under an exclusive lock.
fn empty(client: &mut Client, random: &mut Random) -> Result<(), Error> {
    thread::sleep(Duration::from_millis(50 + random.below(300)));
    let mut transaction = client.transaction()?;
    transaction.batch_execute("LOCK TABLE takes, rateLimits IN ACCESS EXCLUSIVE MODE")?;
    assert_eq!(counted(&mut transaction), Ok(()));
    transaction.batch_execute("TRUNCATE takes, rateLimits")?;
    transaction.commit()
}

/// Reads the rows from the table, without an index.
const SCAN: &str = "SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off";
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off";

/// Returns an error if the rows are wrong, in a transaction.
fn counted(client: &mut Transaction) -> Result<(), String> {
    client.batch_execute(SCAN).unwrap();
    let twice = "SELECT format('%s rows of %s, %s, %s', count(*), name, key, shard) FROM rateLimits
                 GROUP BY name, key, shard HAVING count(*) > 1";
    if let Some(row) = client.query(twice, &[]).unwrap().first() {
        return Err(row.get(0));
    }
    let rows = "SELECT coalesce(string_agg(r, E'\\n'), '') FROM (
                    SELECT r::text FROM rateLimits r ORDER BY name, key, shard) s (r)";
    let scanned: String = client.query_one(rows, &[]).unwrap().get(0);
    client.batch_execute(BY_INDEX).unwrap();
    let found: String = client.query_one(rows, &[]).unwrap().get(0);
    if scanned != found {
        return Err(format!("the table has\n{scanned}\nthe index leads to\n{found}"));
    }
    let taken = format!(
        "WITH t AS (SELECT name, key, sum(count) AS taken FROM takes GROUP BY name, key),
              r AS (SELECT name, key, {CAPACITY} - sum(value) AS used FROM rateLimits
                    WHERE name LIKE 'exact%' AND kind = 't' GROUP BY name, key)
         SELECT format('%s, %s: %s taken, %s used', name, key, taken, used) FROM t FULL JOIN r USING (name, key)
         WHERE coalesce(taken, 0) <> coalesce(used, 0)"
    );
    if let Some(row) = client.query(&taken, &[]).unwrap().first() {
        return Err(row.get(0));
    }
    Ok(())
}

/// Returns an error if anything is wrong.
fn check(client: &mut Client) -> Result<(), String> {
    counted(&mut client.transaction().unwrap())?;
    let amcheck = "SELECT FROM pg_available_extensions WHERE name = 'amcheck'";
    if client.query_opt(amcheck, &[]).unwrap().is_some() {
        client.batch_execute("CREATE EXTENSION IF NOT EXISTS amcheck").unwrap();
        let table = "SELECT format('%s, %s: %s', blkno, offnum, msg) FROM verify_heapam('rateLimits', check_toast => true)";
        if let Some(row) = client.query(table, &[]).unwrap().first() {
            return Err(row.get(0));
        }
        let indexes =
            "SELECT bt_index_parent_check(indexrelid, heapallindexed => true, rootdescend => true)
                       FROM pg_index WHERE indrelid = 'rateLimits'::regclass AND indisvalid";
        client.query(indexes, &[]).map_err(|error| format!("amcheck: {error:?}"))?;
    } else {
        let mut stderr = std::io::stderr(); // which the test's runner does not swallow
        writeln!(stderr, "skipped: a check by amcheck, which is not installed").unwrap();
    }
    client.batch_execute("REINDEX TABLE rateLimits").map_err(|error| format!("{error:?}"))
}

#[test]
#[ignore = "needs a server: make test"]
fn table_and_takes_are_whole_whatever_the_owner_does() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = seed(now << 8);
    let database = Database::new("load_owner");
    let mut client = quick_to_see_deadlocks(&database);
    client
        .batch_execute(&Database::limits(&format!(
            "CREATE TABLE takes (name text, key text, count float8);
             SELECT rl_define('exact', rl_token_bucket({CAPACITY}, '1 day'));
             SELECT rl_define('exact wide', rl_token_bucket({CAPACITY}, '1 day', shards => 4));
             SELECT rl_define('loose', rl_token_bucket({CAPACITY}, '1 day', max_reserved => 1e9))"
        )))
        .unwrap();
    let started = Instant::now();
    let mut wrong = Errors::new();
    thread::scope(|scope| {
        let mut sessions = Vec::new();
        for work in &WORKS {
            for _ in 0..work.sessions {
                let (database, number) = (&database, sessions.len());
                sessions.push(scope.spawn(move || {
                    let mut client = quick_to_see_deadlocks(database);
                    client.batch_execute(work.setup).unwrap();
                    let mut random = Random(seed + number as u64 + 1);
                    let (mut errors, mut done) = (Errors::new(), 0);
                    while started.elapsed().as_secs_f64() < 20.0 * times() {
                        match (work.work)(&mut client, &mut random) {
                            Ok(()) => done += 1,
                            Err(error) => {
                                note(&mut errors, &error);
                                client.batch_execute("ROLLBACK").unwrap();
                            }
                        }
                    }
                    (done, errors)
                }));
            }
        }
        for (work, session) in WORKS.iter().flat_map(|work| vec![work; work.sessions]).zip(sessions)
        {
            let (done, mut errors) = session.join().unwrap();
            println!("{done} works, {errors:?}");
            assert!(done > 0, "nothing was done");
            errors.retain(|code, _| !work.errors.contains(&code.as_str()));
            wrong.extend(errors);
        }
    });
    let checked = check(&mut client);
    assert_eq!((checked, wrong), (Ok(()), Errors::new()));
}
