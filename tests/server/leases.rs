//! Concurrency limits among sessions: never more than the slots at once, each given back, in the table and in
//! memory.

use std::sync::Barrier;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;

use fastrand::Rng;
use postgres::{Client, Row};
use ratelimit_core::lease;
use ratelimit_judge::{Asked, Recorder, Recording, Reply, Storage};

use crate::database::Database;
use crate::load::FOLDER;

const SESSIONS: usize = 16;
const SLOTS: i64 = 5;

/// A call on the leases, for the judge.
type Told = (u32, Asked, Option<i64>, Reply);

/// Returns a call that acquires `slots`.
fn acquired(count: i64) -> impl Fn(&Option<Row>) -> Vec<Told> {
    move |row| {
        let lease = row.as_ref().map_or(0, |row| id(row.get(0)));
        vec![(0, Asked::Acquire { count: count as f64, lease }, None, truth(row.is_some()))]
    }
}

/// A call about a lease, with yes or no as its answer.
fn settled(asked: Asked) -> impl Fn(&Row) -> Vec<Told> {
    move |row| vec![(0, asked, None, truth(row.get(0)))]
}

fn truth(ok: bool) -> Reply {
    Reply { ok, ..Reply::default() }
}

/// Returns the id of a lease.
fn id(text: &str) -> i64 {
    lease::parse(text.as_bytes()).unwrap().id.0
}

/// Releases a lease that is held.
fn release(client: &mut Client, recording: &mut Recording, lease: &str) {
    let release = || client.query_one("SELECT rl_release($1)", &[&lease]);
    let row = recording.call(release, settled(Asked::Release { lease: id(lease) })).unwrap();
    assert!(row.get::<_, bool>(0));
}

/// Sessions that acquire, sometimes roll back or extend, and release: what they hold at once, and how often they got
/// a lease.
fn hold_at_once(database: &Database, name: &str) -> (i64, u64) {
    let (held, most, leases) = (AtomicI64::new(0), AtomicI64::new(0), AtomicU64::new(0));
    let ready = Barrier::new(SESSIONS);
    let recorder = Recorder::new();
    let storage = if name == "memory" { Storage::Memory } else { Storage::Row };
    let config = format!(r#"{{"kind": "concurrency", "slots": {SLOTS}, "ttl": "1 hour"}}"#);
    recorder.key(name, "k", &config, storage);
    thread::scope(|scope| {
        for session in 0..SESSIONS {
            let (held, most, leases, ready) = (&held, &most, &leases, &ready);
            let mut recording = recorder.session();
            scope.spawn(move || {
                let (mut client, mut random) = (database.connect(), Rng::with_seed(session as u64));
                ready.wait();
                for _ in 0..150 {
                    let count = random.i64(1..=2);
                    let acquire = "SELECT lease FROM rl_acquire($1, 'k', $2) WHERE ok";
                    if random.u8(..5) == 0 {
                        // What is rolled back was never held; in memory it is held until it is released.
                        let mut transaction = client.transaction().unwrap();
                        recording.begin();
                        let taken = recording.call(
                            || transaction.query_opt(acquire, &[&name, &(count as f64)]),
                            acquired(count),
                        );
                        recording.roll_back(|| transaction.rollback()).unwrap();
                        let taken = taken.unwrap();
                        if let (Some(row), "memory") = (taken, name) {
                            let lease: String = row.get(0);
                            release(&mut client, &mut recording, &lease);
                        }
                        continue;
                    }
                    let take = || client.query_opt(acquire, &[&name, &(count as f64)]);
                    let taken = recording.call(take, acquired(count)).unwrap();
                    let Some(row) = taken else { continue };
                    let lease: String = row.get(0);
                    most.fetch_max(
                        held.fetch_add(count, Ordering::SeqCst) + count,
                        Ordering::SeqCst,
                    );
                    leases.fetch_add(1, Ordering::SeqCst);
                    if random.bool() {
                        let extend = "SELECT rl_extend($1) IS NOT NULL";
                        let asked = Asked::Extend { lease: id(&lease) };
                        let extend = || client.query_one(extend, &[&lease]);
                        let row = recording.call(extend, settled(asked)).unwrap();
                        assert!(row.get::<_, bool>(0));
                    }
                    // Before others can know that it is free.
                    held.fetch_sub(count, Ordering::SeqCst);
                    release(&mut client, &mut recording, &lease);
                }
            });
        }
    });
    assert_eq!(held.into_inner(), 0);
    println!("{}", recorder.judge(FOLDER.as_ref(), "refused-leases").unwrap());
    (most.into_inner(), leases.into_inner())
}

#[test]
#[ignore = "needs a server: make test"]
fn no_more_than_the_slots_are_held_at_once() {
    let database = Database::new("leases");
    let mut client = database.connect();
    for name in Database::STORES {
        let define = format!(
            r#"SELECT rl_define('{name}', rl_concurrency({SLOTS}, '1 hour') || '{{"store": "{name}"}}')"#
        );
        client.batch_execute(&define).unwrap();
        let (most, leases) = hold_at_once(&database, name);
        println!("{name}: {leases} leases, {most} slots at once");
        assert!(most <= SLOTS && leases > 100, "{name}: {leases} leases, {most} slots at once");
        let free = client.query_one("SELECT remaining FROM rl_check($1, 'k')", &[&name]).unwrap();
        assert_eq!(free.get::<_, f64>(0), SLOTS as f64, "{name}");
    }
}

/// Each of the sessions asks once: exactly the slots are given.
#[test]
#[ignore = "needs a server: make test"]
fn as_many_leases_are_given_as_there_are_slots() {
    let database = Database::new("leases_once");
    for store in Database::STORES {
        let define = format!(
            r#"SELECT rl_define('job', rl_concurrency({SLOTS}, '1 hour') || '{{"store": "{store}"}}')"#
        );
        database.connect().batch_execute(&define).unwrap();
        let ready = Barrier::new(SESSIONS);
        let given: usize = thread::scope(|scope| {
            let sessions: Vec<_> = (0..SESSIONS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = database.connect();
                        ready.wait();
                        let row =
                            client.query_one("SELECT ok FROM rl_acquire('job')", &[]).unwrap();
                        usize::from(row.get::<_, bool>(0))
                    })
                })
                .collect();
            sessions.into_iter().map(|session| session.join().unwrap()).sum()
        });
        assert_eq!(given as i64, SLOTS, "{store}");
    }
}

/// A holder that dies: its slot is free when its lease expires, and not before.
#[test]
#[ignore = "needs a server: make test"]
fn a_slot_of_a_session_that_died_is_free_after_its_ttl() {
    let database = Database::new("leases_dead");
    let at = |client: &mut postgres::Client, time: &str| {
        client.batch_execute(&format!("SET ratelimit.clock = '2027-01-01 {time}+00'")).unwrap();
    };
    let mut client = database.connect();
    for store in Database::STORES {
        let define = format!(
            r#"SELECT rl_define('{store}', rl_concurrency(1, '1 minute') || '{{"store": "{store}"}}')"#
        );
        client.batch_execute(&define).unwrap();
        let mut dying = database.connect();
        at(&mut dying, "12:00:00");
        let sql = "SELECT pg_backend_pid() FROM rl_acquire($1) WHERE ok";
        let pid: i32 = dying.query_one(sql, &[&store]).unwrap().get(0);
        client.query_one("SELECT pg_terminate_backend($1, 10000)", &[&pid]).unwrap();
        for (time, expected) in [("12:00:59.999999", false), ("12:01:00", true)] {
            at(&mut client, time);
            let row = client.query_one("SELECT ok FROM rl_acquire($1)", &[&store]).unwrap();
            assert_eq!(row.get::<_, bool>(0), expected, "{store} at {time}");
        }
    }
}

/// A call that finds the key blocked, and waits until it isn't any more: what it is given it has taken.
#[test]
#[ignore = "needs a server: make test"]
fn what_passes_when_a_block_ends_is_taken() {
    let database = Database::new("leases_blocked");
    let mut client = database.connect();
    client
        .batch_execute(
            "SELECT rl_define('job', rl_concurrency(1, '1 hour'));
             SELECT rl_block('job', 'k', '400 ms')",
        )
        .unwrap();
    let mut owner = database.connect();
    owner.batch_execute("BEGIN; LOCK TABLE rateLimits IN ACCESS EXCLUSIVE MODE").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let acquire = "SELECT lease FROM rl_acquire('job', 'k') WHERE ok";
            let row = client.query_one(acquire, &[]).unwrap();
            let lease: String = row.get(0);
            let row = client.query_one("SELECT rl_release($1)", &[&lease]).unwrap();
            row.get::<_, bool>(0)
        });
        let over = "SELECT pg_sleep_until(until + interval '50 ms') FROM rl_blocks";
        owner.batch_execute(over).unwrap();
        owner.batch_execute("COMMIT").unwrap();
        assert!(waiting.join().unwrap(), "the lease was never stored");
    });
}

/// A lease has all of its slots or none, whenever it is forgotten, and the sessions that forget it report so.
#[test]
#[ignore = "needs a server: make test"]
fn a_reset_forgets_a_lease_as_a_whole() {
    const ROUNDS: usize = 400;
    let database = Database::new("leases_reset");
    database
        .connect()
        .batch_execute(
            r#"SELECT rl_define('job', rl_concurrency(64, '1 hour', store => 'memory'))"#,
        )
        .unwrap();
    let rounds = |sql: &'static str, check: fn(f64) -> bool| {
        let mut client = database.connect();
        move || {
            let call = client.prepare(sql).unwrap();
            for _ in 0..ROUNDS {
                let seen: f64 = client.query_one(&call, &[]).unwrap().get(0);
                assert!(check(seen), "{seen} of {sql}");
            }
        }
    };
    let whole = |left: f64| left == 0.0 || left == 64.0;
    for reset in [
        "SELECT sum(rl_reset('job', 'k')::int)::float8 FROM generate_series(1, 20)",
        "SELECT sum(rl_reset_keys('job'))::float8 FROM generate_series(1, 20)",
    ] {
        thread::scope(|scope| {
            let acquire = "SELECT min(remaining) FROM generate_series(1, 20) n, rl_acquire('job', substr('k', 1, n), 64)";
            scope.spawn(rounds(acquire, whole));
            scope.spawn(rounds(reset, |forgotten| forgotten <= 20.0));
            let check = "SELECT coalesce(max(remaining) FILTER (WHERE remaining < 64), 0) FROM generate_series(1, 20) n, rl_check('job', substr('k', 1, n))";
            scope.spawn(rounds(check, whole));
        });
    }
}
