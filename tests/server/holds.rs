//! Holds among sessions: what they have is never more than the limit, each is settled once, and when all have ended
//! exactly what was used is gone.

use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use postgres::{Client, GenericClient, Row};

use ratelimit_judge::{Asked, Recorder, Recording, Reply, Storage, hold_number};

use crate::database::Database;
use crate::load::FOLDER;

/// Tokens of a limit that refills next to none of them while a test runs, and may go into debt.
const CAPACITY: f64 = 10_000.0;
const STORM: usize = 32;
const CLIENTS: usize = 50;

/// Defines a bucket of [`CAPACITY`] tokens, with further fields.
fn bucket(client: &mut Client, name: &str, capacity: f64) {
    let config = format!(
        r#"{{"kind": "token bucket", "rate": 1, "period": "1 hour", "capacity": {capacity}}}"#
    );
    client.execute("SELECT rl_define($1, $2::text::jsonb)", &[&name, &config]).unwrap();
}

/// What the sessions of a storm know together.
#[derive(Default)]
struct Known {
    /// Tokens that are held or used for certain; what may have expired is left out.
    taken: f64,
    /// Tokens that are used indefinitely: of settled holds, and of those that are charged.
    used: f64,
    /// Holds that a session has left to others, to be settled late.
    left: Vec<(String, f64)>,
    settled: u64,
    expired: u64,
}

/// Takes a hold; `None`: denied.
fn hold(
    client: &mut impl GenericClient,
    (count, ttl, on_expiry): (f64, &str, &str),
) -> Option<String> {
    let hold = "SELECT hold FROM rl_hold('tokens', 'k', $1, $2::text::interval, on_expiry => $3)";
    client.query_one(hold, &[&count, &ttl, &on_expiry]).unwrap().get(0)
}

/// Settles a hold; whether it was the one to do so.
fn settle(client: &mut impl GenericClient, id: &str, used: f64) -> bool {
    client.query_one("SELECT ok FROM rl_settle($1, $2)", &[&id, &used]).unwrap().get(0)
}

/// The life of one hold, which may end in many ways.
fn live(database: &Database, client: &mut Client, random: &mut Rng, known: &Mutex<Known>) {
    let count = f64::from(random.u32(1..=500));
    let used = f64::from(random.u32(0..=count as u32));
    match random.u8(..8) {
        // It is rolled back, or its session dies before the commit.
        0 => {
            let mut transaction = client.transaction().unwrap();
            hold(&mut transaction, (count, "1 day", "refund"));
            transaction.rollback().unwrap();
        }
        1 => {
            let mut other = database.connect();
            let mut transaction = other.transaction().unwrap();
            if let Some(id) = hold(&mut transaction, (count, "1 day", "charge")) {
                settle(&mut transaction, &id, used);
            }
            let pid: i32 = transaction.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
            client.execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
        }
        // Its session dies after the commit: it expires, unless another settles it late.
        2 => {
            if let Some(id) = hold(client, (count, "50 milliseconds", "refund")) {
                let mut known = known.lock().unwrap();
                known.expired += 1;
                if random.bool() {
                    known.left.push((id, count));
                }
            }
        }
        3 => {
            if hold(client, (count, "1 millisecond", "charge")).is_some() {
                let mut known = known.lock().unwrap();
                known.taken += count;
                known.used += count;
            }
        }
        4 => {
            let left = known.lock().unwrap().left.pop();
            if let Some((id, _)) = left {
                // It may have come back, so it is taken again, also beyond the limit.
                assert!(settle(client, &id, used));
                let mut known = known.lock().unwrap();
                known.used += used;
                known.settled += 1;
            }
        }
        // Two settle it at once.
        5 => {
            let Some(id) = hold(client, (count, "1 day", "refund")) else { return };
            let mut other = database.connect();
            let settled = thread::scope(|scope| {
                let one = scope.spawn(|| settle(client, &id, used));
                settle(&mut other, &id, used) ^ one.join().unwrap()
            });
            assert!(settled, "a hold is settled by one of two");
            let mut known = known.lock().unwrap();
            known.used += used;
            known.settled += 1;
        }
        _ => {
            let mut transaction = client.transaction().unwrap();
            let held = hold(&mut transaction, (count, "1 day", "charge"));
            transaction.commit().unwrap();
            let Some(id) = held else { return };
            {
                let mut known = known.lock().unwrap();
                known.taken += count;
                assert!(known.taken <= CAPACITY, "{} of {CAPACITY}", known.taken);
            }
            thread::sleep(Duration::from_millis(random.u64(..3)));
            known.lock().unwrap().taken -= count - used;
            assert!(settle(client, &id, used));
            assert!(!settle(client, &id, used), "a hold is settled once");
            let mut known = known.lock().unwrap();
            known.used += used;
            known.settled += 1;
        }
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn sessions_that_die_lose_no_token_and_hold_none_twice() {
    let database = Database::new("holds");
    let mut client = database.connect();
    bucket(&mut client, "tokens", CAPACITY);
    let known = Mutex::new(Known::default());
    thread::scope(|scope| {
        for session in 0..STORM {
            let (database, known) = (&database, &known);
            scope.spawn(move || {
                let (mut client, mut random) = (database.connect(), Rng::with_seed(session as u64));
                for _ in 0..Database::part(25) {
                    live(database, &mut client, &mut random, known);
                    if random.u8(..20) == 0 {
                        client.execute("SELECT rl_prune(100)", &[]).unwrap();
                    }
                }
            });
        }
    });
    let Known { used, settled, expired, .. } = known.into_inner().unwrap();
    // The holds that no session settles expire.
    let open = "SELECT EXISTS (SELECT FROM rl_holds WHERE expires_at > clock_timestamp())";
    while client.query_one(open, &[]).unwrap().get(0) {
        thread::sleep(Duration::from_millis(5));
    }
    let left = "SELECT remaining FROM rl_status('tokens', 'k')";
    let remaining: f64 = client.query_one(left, &[]).unwrap().get(0);
    println!("{settled} holds settled, {expired} left to expire, {used} tokens used");
    assert!(settled > 0 && expired > 0);
    assert!((CAPACITY - used - remaining).abs() < 0.5, "{CAPACITY} - {used} is {remaining}");
}

/// Calls a statement that waits for what a session has locked by `lock`, until that rolls back. Returns whether the
/// statement was decided after that: by the `ts` of the row, and by what expires an hour later.
fn is_decided_after_a_wait(database: &Database, lock: &str, call: &str) -> bool {
    let [mut holder, mut waiter, mut client] = std::array::from_fn(|_| database.connect());
    let setup = "TRUNCATE rateLimits, rl_holds; SELECT rl_hold('tokens', 'k', 10, '1 day', 'open')";
    client.batch_execute(setup).unwrap();
    let pid: i32 = waiter.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    holder.batch_execute(&format!("BEGIN; {lock}")).unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| waiter.batch_execute(call).unwrap());
        let waits = "SELECT cardinality(pg_blocking_pids($1)) > 0";
        while !client.query_one(waits, &[&pid]).unwrap().get::<_, bool>(0) {
            assert!(!call.is_finished(), "it doesn't wait");
        }
        // Longer than a write without a wait takes.
        thread::sleep(Duration::from_millis(2));
        let released: std::time::SystemTime =
            holder.query_one("SELECT clock_timestamp()", &[]).unwrap().get(0);
        holder.batch_execute("ROLLBACK").unwrap();
        call.join().unwrap();
        let decided =
            "SELECT bool_and(ts >= $1) AND (SELECT bool_and(expires_at >= $1 + interval '1 hour')
                           FROM rl_holds) IS NOT false FROM rateLimits WHERE key = 'k'";
        client.query_one(decided, &[&released]).unwrap().get(0)
    })
}

#[test]
#[ignore = "needs a server: make test"]
fn what_waited_is_decided_at_the_time_of_its_lock() {
    let database = Database::new("holds_that_waited");
    let mut client = database.connect();
    bucket(&mut client, "tokens", CAPACITY);
    bucket(&mut client, "money", CAPACITY);
    const ROW: &str = "SELECT FROM rateLimits WHERE key = 'k' FOR UPDATE";
    const HOLD: &str = "SELECT FROM rl_holds FOR UPDATE";
    let all = r#"rl_hold_all('[{"name": "tokens", "key": "k"}, {"name": "money", "key": "k"}]'"#;
    let mut late = Vec::new();
    for (lock, call) in [
        (ROW, "rl_limit('tokens', 'k')"),
        (ROW, "rl_hold('tokens', 'k', 5, '1 hour')"),
        (ROW, "rl_hold('tokens', 'k', 5, '1 hour', 'new')"),
        (ROW, "rl_hold('tokens', 'k', 15, '2 days', 'open')"),
        (ROW, &format!("{all}, '1 hour')")),
        (ROW, &format!("{all}, '1 hour', 'new')")),
        (ROW, "rl_settle('open', 5)"),
        (ROW, "rl_settle_all('open', '5')"),
        (HOLD, "rl_settle('open', 5)"),
        (HOLD, "rl_settle_all('open', '5')"),
    ] {
        if !is_decided_after_a_wait(&database, lock, &format!("SELECT FROM {call}")) {
            late.push(format!("{lock}: {call}"));
        }
    }
    assert!(late.is_empty(), "decided before the wait: {late:#?}");
}

/// A list is settled at one instant, though its holds are deleted one after the other: while one is waited for, those
/// before it may expire.
#[test]
#[ignore = "needs a server: make test"]
fn what_expires_while_a_later_hold_of_the_list_is_waited_for_has_come_back() {
    let database = Database::new("holds_waited_for");
    let [mut holder, mut waiter, mut client] = std::array::from_fn(|_| database.connect());
    let setup = "SELECT rl_define(name, rl_token_bucket(10, '2 seconds'))
                 FROM unnest('{a,b}'::text[]) name;
                 SELECT rl_limit('a', 'k', 5)";
    client.batch_execute(setup).unwrap();
    let hold = r#"SELECT remaining FROM rl_hold_all('[{"name": "a", "key": "k", "count": 5},
                      {"name": "b", "key": "k", "count": 5}]', '1 second', 'x') WHERE name = 'a'"#;
    let held: f64 = client.query_one(hold, &[]).unwrap().get(0);
    holder.batch_execute("BEGIN; SELECT FROM rl_holds WHERE name = 'b' FOR UPDATE").unwrap();
    let pid: i32 = waiter.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    thread::scope(|scope| {
        let call = scope.spawn(|| waiter.batch_execute("SELECT rl_settle_all('x', '5')").unwrap());
        let waits = "SELECT cardinality(pg_blocking_pids($1)) > 0";
        while !client.query_one(waits, &[&pid]).unwrap().get::<_, bool>(0) {
            assert!(!call.is_finished(), "it doesn't wait");
        }
        let open = "SELECT bool_or(expires_at > clock_timestamp()) FROM rl_holds";
        while client.query_one(open, &[]).unwrap().get::<_, bool>(0) {
            thread::sleep(Duration::from_millis(5));
        }
        holder.batch_execute("ROLLBACK").unwrap();
        call.join().unwrap();
    });
    // Full again at the expiry, by what has refilled and what came back; of that the settlement takes the rest of 5.
    let value = "SELECT value FROM rateLimits WHERE name = 'a'";
    let left: f64 = client.query_one(value, &[]).unwrap().get(0);
    assert!((left - held - 5.0).abs() < 1e-6, "{held} left by the hold, {left} by its settlement");
}

/// A settlement deletes its hold: a policy for deletions lets it, without one for updates, which a lock needs.
#[test]
#[ignore = "needs a server: make test"]
fn a_policy_for_deletions_is_enough_to_settle() {
    let database = Database::new("holds_policies");
    let mut client = database.connect();
    bucket(&mut client, "tokens", CAPACITY);
    let setup = "BEGIN; CREATE ROLE rl_policies_owner;
                 DO $$ BEGIN
                     EXECUTE format('GRANT ALL ON SCHEMA %I TO rl_policies_owner', (
                         SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
                         WHERE c.oid = 'rl_holds'::regclass));
                 END $$;
                 ALTER TABLE rl_holds OWNER TO rl_policies_owner;
                 ALTER TABLE rateLimits OWNER TO rl_policies_owner;
                 ALTER TABLE rl_holds ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
                 CREATE POLICY s ON rl_holds FOR SELECT USING (true);
                 CREATE POLICY i ON rl_holds FOR INSERT WITH CHECK (true);
                 CREATE POLICY d ON rl_holds FOR DELETE USING (true);
                 SELECT rl_hold('tokens', 'k', 10, '1 day', 'x')";
    client.batch_execute(setup).unwrap();
    let settle = "SELECT ok FROM rl_settle('x', 0)";
    assert!(client.query_one(settle, &[]).unwrap().get::<_, bool>(0));
    assert!(!client.query_one(settle, &[]).unwrap().get::<_, bool>(0));
    client.batch_execute("ROLLBACK").unwrap();
}

/// One job of a client: holds a request, tokens, money and a slot, in any order of the list, and settles them with what
/// it used; returns the tokens and the money used.
fn job(client: &mut Client, random: &mut Rng, user: &str) -> (f64, f64) {
    let mut requests = vec![
        format!(r#"{{"name": "requests", "key": "{user}"}}"#),
        format!(r#"{{"name": "tokens", "key": "{user}", "count": 400}}"#),
        r#"{"name": "money", "key": "tenant", "count": 900}"#.to_owned(),
        r#"{"name": "slots", "key": "tenant"}"#.to_owned(),
    ];
    random.shuffle(&mut requests);
    let requests = format!("[{}]", requests.join(","));
    let hold = "SELECT bool_and(ok), min(hold) FROM rl_hold_all($1::text::jsonb)";
    let id: String = loop {
        let row = client.query_one(hold, &[&requests]).unwrap();
        match row.get(0) {
            true => break row.get(1),
            false => thread::sleep(Duration::from_millis(1)), // no slot is free
        }
    };
    let (tokens, money) = (f64::from(random.u16(..500)), f64::from(random.u16(..1000)));
    let used = format!(r#"{{"money": {money}, "tokens": {tokens}}}"#);
    let settle = "SELECT count(*) FROM rl_settle_all($1, $2::text::jsonb)";
    let limits: i64 = client.query_one(settle, &[&id, &used]).unwrap().get(0);
    assert_eq!(limits, 4);
    (tokens, money)
}

#[test]
#[ignore = "needs a server: make test"]
fn fifty_clients_settle_several_limits_in_any_order_and_none_fails() {
    let database = Database::new("holds_of_several");
    let mut client = database.connect();
    for name in ["requests", "tokens", "money"] {
        bucket(&mut client, name, 1e9);
    }
    let slots = r#"{"kind": "concurrency", "slots": 8, "ttl": "1 hour"}"#;
    client.execute("SELECT rl_define('slots', $1::text::jsonb)", &[&slots]).unwrap();
    const JOBS: usize = 20;
    let total = Mutex::new((0.0, 0.0));
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (database, total) = (&database, &total);
            scope.spawn(move || {
                let (mut client, mut random) = (database.connect(), Rng::with_seed(number as u64));
                let user = format!("user {}", number % 5);
                for _ in 0..Database::part(JOBS) {
                    let (tokens, money) = job(&mut client, &mut random, &user);
                    let mut total = total.lock().unwrap();
                    *total = (total.0 + tokens, total.1 + money);
                }
            });
        }
    });
    let (tokens, money) = total.into_inner().unwrap();
    let used = "SELECT sum(1e9 - remaining)::float8, sum(held)::float8 FROM rl_status($1)";
    for (name, expected) in [
        ("requests", (CLIENTS * Database::part(JOBS)) as f64),
        ("tokens", tokens),
        ("money", money),
    ] {
        let row = client.query_one(used, &[&name]).unwrap();
        let (found, held): (f64, f64) = (row.get(0), row.get(1));
        assert!((found - expected).abs() < 0.5, "{name}: {found} for {expected}");
        assert_eq!(held, 0.0, "{name}");
    }
    let free = "SELECT remaining FROM rl_check('slots', 'tenant')";
    assert_eq!(client.query_one(free, &[]).unwrap().get::<_, f64>(0), 8.0);
    let open: i64 = client.query_one("SELECT count(*) FROM rl_holds", &[]).unwrap().get(0);
    assert_eq!(open, 0);
}

/// A call of the recorded storm, on one of two keys.
fn judged(
    client: &mut impl GenericClient,
    recording: &mut Recording,
    key: u32,
    asked: Asked,
    id: &str,
) -> bool {
    let told = "SELECT *, (extract(epoch FROM retry_at) * 1000000)::bigint AS retry FROM";
    let text = format!("k{key}");
    let call = || {
        match asked {
        Asked::Hold { count, at_least, ttl, charge, .. } => client.query_one(
            &format!(
                "{told} (SELECT *, (extract(epoch FROM expires_at) * 1000000)::bigint AS expires
                         FROM rl_hold('tokens', $1, $2, $3 * interval '1 us', $4, $5, $6)) AS answer"
            ),
            &[&text, &count, &(ttl as f64), &id, &at_least, &(if charge { "charge" } else { "refund" })],
        ),
        Asked::Settle { used, .. } => client.query_one(&format!("{told} rl_settle($1, $2)"), &[&id, &used]),
        Asked::Limit { count, .. } => {
            client.query_one(&format!("{told} rl_limit('tokens', $1, $2)"), &[&text, &count])
        }
        Asked::Check { count, .. } => {
            client.query_one(&format!("{told} rl_check('tokens', $1, $2)"), &[&text, &count])
        }
        _ => unreachable!(),
    }
    };
    let read = |row: &Row| {
        let (ok, remaining) = (row.get("ok"), row.get("remaining"));
        let mut asked = asked;
        if let (Asked::Hold { held, expires_at, .. }, true) = (&mut asked, ok) {
            (*held, *expires_at) = (row.get("held"), row.get("expires"));
        }
        let waits = !ok && !matches!(asked, Asked::Settle { .. });
        let reply = Reply { ok, remaining, retry_at: waits.then(|| row.get("retry")) };
        vec![(key, asked, None, reply)]
    };
    recording.call(call, read).unwrap().get("ok")
}

#[test]
#[ignore = "needs a server: make test"]
fn every_answer_of_a_storm_of_holds_is_explained() {
    let database = Database::new("holds_judged");
    bucket(&mut database.connect(), "tokens", 60.0);
    let recorder = Recorder::new();
    let config = r#"{"kind": "token bucket", "rate": 1, "period": "1 hour", "capacity": 60}"#;
    for key in 0..2 {
        assert_eq!(recorder.key("tokens", &format!("k{key}"), config, Storage::Row), key);
    }
    let open: Mutex<Vec<(u32, String)>> = Mutex::default();
    thread::scope(|scope| {
        for session in 0..STORM {
            let (database, open, mut recording) = (&database, &open, recorder.session());
            scope.spawn(move || {
                let (mut client, mut random) = (database.connect(), Rng::with_seed(session as u64));
                for n in 0..Database::part(25) {
                    let (key, id) = (random.u32(..2), format!("{session}-{n}"));
                    let count = f64::from(random.u32(1..=12));
                    let hold = Asked::Hold {
                        hold: hold_number(&id),
                        count,
                        at_least: if random.bool() { count } else { 1.0 },
                        ttl: random.i64(1..40) * 1000,
                        charge: random.u8(..10) == 0,
                        held: 0.0,
                        expires_at: i64::MAX,
                    };
                    let settle =
                        |id: &str, used| Asked::Settle { hold: hold_number(id), used: Some(used) };
                    match random.u8(..10) {
                        0 => {
                            judged(
                                &mut client,
                                &mut recording,
                                key,
                                Asked::Limit { count: 1.0, reserve: false },
                                "",
                            );
                        }
                        1 => {
                            judged(
                                &mut client,
                                &mut recording,
                                key,
                                Asked::Check { count, reserve: false },
                                "",
                            );
                        }
                        // A hold that is rolled back, or whose session dies.
                        2 | 3 => {
                            let mut other = database.connect();
                            let mut transaction = other.transaction().unwrap();
                            recording.begin();
                            let ok = judged(&mut transaction, &mut recording, key, hold, &id);
                            if ok && random.bool() {
                                judged(
                                    &mut transaction,
                                    &mut recording,
                                    key,
                                    settle(&id, 1.0),
                                    &id,
                                );
                            }
                            match random.u8(..3) {
                                0 => recording.commit(|| transaction.commit()).unwrap(),
                                1 => recording.roll_back(|| transaction.rollback()).unwrap(),
                                _ => {
                                    let pid: i32 = transaction
                                        .query_one("SELECT pg_backend_pid()", &[])
                                        .unwrap()
                                        .get(0);
                                    client
                                        .execute("SELECT pg_terminate_backend($1)", &[&pid])
                                        .unwrap();
                                    recording.lost();
                                }
                            }
                        }
                        4..=6 => {
                            let known = open.lock().unwrap().pop();
                            if let Some((key, id)) = known {
                                let used = f64::from(random.u32(..4));
                                judged(&mut client, &mut recording, key, settle(&id, used), &id);
                            }
                        }
                        _ => {
                            if judged(&mut client, &mut recording, key, hold, &id) {
                                open.lock().unwrap().push((key, id));
                            }
                        }
                    }
                }
            });
        }
    });
    println!("{}", recorder.judge(Path::new(FOLDER), "refused-holds").unwrap());
}
