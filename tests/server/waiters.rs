//! A call that waits for a row has no claim to it once its wait has ended: a new call can take the row before it has
//! gone on, and it then waits for that one, and is decided on what that one left. For this its process is stopped
//! (SIGSTOP) while it waits.

use std::process::Command;
use std::thread;
use std::time::Duration;

use postgres::Client;

use crate::database::Database;

/// A stopped process, which goes on when this is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Stopped {
        signal("-STOP", pid);
        let stopped = Stopped(pid);
        // "PID (name) STATE …"; the name may hold blanks and brackets.
        until("it stops", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(')').unwrap().1.starts_with(" T")
        });
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

fn signal(signal: &str, pid: i32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Polls for at most a minute.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if happened() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("a minute has passed before {what}");
}

/// A session whose clock stands still, and the id of its process. No statement of it takes longer than a minute, and
/// no check for deadlocks begins, which would hold locks that all need, should it be stopped then.
fn session(database: &Database) -> (Client, i32) {
    let mut client = database.connect();
    client
        .batch_execute(
            "SET ratelimit.clock = '2027-01-01 00:00:00+00'; SET statement_timeout = '1min';
             SET deadlock_timeout = '10min'",
        )
        .unwrap();
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    (client, pid)
}

/// Returns the answer to a call: ok and remaining.
fn limit(client: &mut Client, count: f64) -> (bool, f64) {
    let sql = "SELECT ok, remaining FROM rl_limit('api', 'k', $1)";
    let row = client.query_one(sql, &[&count]).unwrap();
    (row.get(0), row.get(1))
}

/// Polls until the one process waits for the other's transaction.
fn until_it_waits(client: &mut Client, pid: i32, blocker: i32) {
    let sql = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'
                   AND wait_event = 'transactionid' AND pg_blocking_pids(pid) = ARRAY[$2::int]";
    until("it waits", || client.query_opt(sql, &[&pid, &blocker]).unwrap().is_some());
}

#[test]
#[ignore = "needs a server: make test"]
fn a_new_call_can_come_before_one_whose_wait_is_over() {
    const TAKE: &str = "SELECT FROM rl_limit('api', 'k', 2)";
    const LOCK: &str = "SELECT FROM rateLimits FOR UPDATE";
    let database = Database::new("waiters");
    let (mut client, _) = session(&database);
    client.batch_execute("SELECT rl_define('api', rl_token_bucket(9, '1 hour'))").unwrap();
    // What is there for the new call once the holder's transaction has ended, of 9 tokens.
    for (hold, end, left) in [
        (TAKE, "COMMIT", 7.0),
        (TAKE, "ROLLBACK", 9.0),
        (LOCK, "COMMIT", 9.0),
        (LOCK, "ROLLBACK", 9.0),
    ] {
        for kept in [true, false] {
            let case = format!("{hold}; {end}; the new call's take is kept: {kept}");
            let insert = "TRUNCATE rateLimits; INSERT INTO rateLimits (name, key, kind, value, ts)
                          VALUES ('api', 'k', 't', 9, '2027-01-01 00:00:00+00')";
            client.batch_execute(insert).unwrap();
            let answer = overtaken(&database, &mut client, (hold, end, left), kept, &case);
            // The waiting call wants 6 tokens; it got them if it had come first.
            let expected = if kept { (false, left - 4.0) } else { (true, left - 6.0) };
            assert_eq!(answer, expected, "{case}");
        }
    }
}

/// The answer to a call for 6 tokens that waits for a holder, and before which a call for 4 comes.
fn overtaken(
    database: &Database,
    client: &mut Client,
    (hold, end, left): (&str, &str, f64),
    kept: bool,
    case: &str,
) -> (bool, f64) {
    let [(mut holder, holds), (mut waiter, waits), (mut new, comes)] =
        std::array::from_fn(|_| session(database));
    holder.batch_execute(&format!("BEGIN; {hold}")).unwrap();
    new.batch_execute("BEGIN").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| limit(&mut waiter, 6.0));
        until_it_waits(client, waits, holds);
        let stopped = Stopped::new(waits);
        holder.batch_execute(end).unwrap();
        // It has been granted its wait, and is in line for the version before all who come later.
        let locks = "SELECT bool_and(granted), count(*) FILTER (WHERE locktype = 'tuple')
                     FROM pg_locks WHERE pid = $1";
        let locks = client.query_one(locks, &[&waits]).unwrap();
        assert_eq!((locks.get(0), locks.get(1)), (true, 1_i64), "{case}");

        assert_eq!(limit(&mut new, 4.0), (true, left - 4.0), "{case}");
        assert_eq!(limit(client, 10.0), (false, left), "a denial: {case}");
        assert!(!waiting.is_finished(), "{case}");
        drop(stopped);
        until_it_waits(client, waits, comes);
        new.batch_execute(if kept { "COMMIT" } else { "ROLLBACK" }).unwrap();
        waiting.join().unwrap()
    })
}
