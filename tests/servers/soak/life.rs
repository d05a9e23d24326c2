//! A long life: transaction ids that wrap around, a billion calls, a transaction that stays open while a
//! key is hot.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Row};
use ratelimit_core::config;
use ratelimit_core::{Micros, decide};
use ratelimit_judge::{Asked, Recorder, Reply, Storage};

use crate::check::{check, whole};
use crate::own::Server;
use crate::rules::Random;
use crate::scale;
use crate::work::{Round, Works, begin, end_prepared, judged, load, notebook};

/// Compared with integers. The refill is in fractions that no float represents, and about as fast as the
/// takes.
#[test]
#[ignore = "needs a server: make test"]
fn a_bucket_is_exact_after_a_thousand_million_calls() {
    // 7 tokens of 0.3 in 11 ms, up to 23 of them.
    const PERIOD: i64 = 11_000;
    let config = r#"{"kind": "token bucket", "rate": 2.1, "period": 11, "capacity": 6.9}"#;
    let limit = config::parse(config).unwrap();
    let mut random = Random(1);
    let mut at = 1_700_000_000_000_000;
    let mut state = limit.initial_state(Micros(at), Micros(at));
    let (mut units, mut taken) = (23 * PERIOD, 0u64);
    let (calls, started) = (scale(1_000_000u64, 1_000_000_000), Instant::now());
    for call in 0..calls {
        let gap = random.below(2 * 11_000 / 7) as i64;
        at += gap;
        units = (units + 7 * gap).min(23 * PERIOD);
        let decision = decide(&limit, &state, Micros(at), 0.3, false);
        assert_eq!(decision.ok, units >= PERIOD, "call {call}: {units}, {state:?}");
        if let Some(after) = decision.state {
            units -= PERIOD;
            taken += 1;
            state = after;
        }
    }
    println!("{taken} of {calls} calls passed, in {:.0?}: {state:?}", started.elapsed());
    assert!(taken > calls / 2);
}

/// Freezes every database, as an anti-wraparound vacuum does; the age of the oldest after it.
fn freeze(server: &Server, client: &mut Client) -> i32 {
    client.batch_execute("UPDATE pg_database SET datallowconn = true").unwrap();
    for row in client.query("SELECT datname::text FROM pg_database", &[]).unwrap() {
        let mut database = server.connect(row.get(0)).unwrap();
        database.batch_execute("VACUUM (FREEZE)").unwrap();
    }
    client.query_one("SELECT max(age(datfrozenxid)) FROM pg_database", &[]).unwrap().get(0)
}

/// Hot rows are frozen under load, before and after the wraparound of transaction ids.
#[test]
#[ignore = "needs a server: make test"]
fn transaction_ids_wrap_around_under_load() {
    let (server, limits, from) = begin();
    let notes = notebook(&limits);
    let mut works = Works::new();
    // At most two billion at a time; the load passes the wraparound.
    for (number, xid) in [1_900_000_000, 3_600_000_000, u32::MAX - 200].into_iter().enumerate() {
        server.jump(xid);
        let mut client = server.client();
        let round = Round { number: number as u64, synchronous: false, reconnect: true };
        let mut age = 0;
        let (more, errors) = load(&server, (&limits, &notes), round, || {
            let until = Instant::now() + Duration::from_millis(scale(500, 5000));
            while Instant::now() < until {
                age = freeze(&server, &mut client);
            }
        });
        works.extend(more);
        end_prepared(&mut client, &mut works).unwrap();
        age = age.min(freeze(&server, &mut client));
        let next = "SELECT pg_current_xact_id()::text";
        let next: String = client.query_one(next, &[]).unwrap().get(0);
        println!(
            "from {xid} to {next}, the oldest {age} ago: {} transactions, {errors:?}",
            works.len()
        );
        check(&mut client, &limits, &works, from).unwrap();
        let next: u64 = next.parse().unwrap();
        assert_eq!(next > u64::from(u32::MAX), number == 2);
    }
    judged(&notes);
}

/// The limits of [`hot`], in the table and in memory, of tokens that don't refill.
const HOT: [(&str, Storage); 2] = [("hot", Storage::Row), ("warm", Storage::Memory)];
const CAPACITY: f64 = 1e8;

/// The config of one of them.
fn hot_config(storage: Storage) -> String {
    let store = if storage == Storage::Memory { "memory" } else { "table" };
    format!(
        r#"{{"kind": "token bucket", "rate": 1e-9, "period": "1 day", "capacity": {CAPACITY}, "store": "{store}"}}"#
    )
}

/// Takes a key's tokens as fast as 4 sessions can, and at every fourth call those of one in memory, while `meanwhile`
/// runs, with the counter of the key in the table. The judge then has the word on every answer.
fn hot(server: &Server, meanwhile: impl FnOnce(&AtomicU64)) -> u64 {
    let (stop, calls) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let recorder = Recorder::new();
    for (name, storage) in HOT {
        recorder.key(name, "key", &hot_config(storage), storage);
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            let (mut client, mut recording) = (server.client(), recorder.session());
            scope.spawn(move || {
                client.batch_execute("SET synchronous_commit = off").unwrap();
                let takes = HOT.map(|(name, _)| {
                    let take = format!("SELECT ok, remaining FROM rl_limit('{name}', 'key')");
                    client.prepare(&take).unwrap()
                });
                for n in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let key = usize::from(n % 4 == 3);
                    let told = |row: &Row| {
                        let (ok, remaining) = (row.get(0), Some(row.get(1)));
                        let reply = Reply { ok, remaining, ..Reply::default() };
                        vec![(key as u32, Asked::Limit { count: 1.0, reserve: false }, None, reply)]
                    };
                    let row = recording.call(|| client.query_one(&takes[key], &[]), told).unwrap();
                    assert!(row.get::<_, bool>(0));
                    calls.fetch_add(u64::from(key == 0), Ordering::Relaxed);
                }
            });
        }
        meanwhile(calls);
        stop.store(true, Ordering::Relaxed);
    });
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../target");
    println!("{}", recorder.judge(folder.as_ref(), "refused-hot").unwrap());
    calls.load(Ordering::Relaxed)
}

/// Prints the cost of a transaction that stays open: speed and space only.
#[test]
#[ignore = "needs a server: make test"]
fn a_transaction_that_stays_open_slows_a_hot_key_until_it_ends() {
    let server = Server::start();
    let mut client = server.client();
    for (name, storage) in HOT {
        client
            .execute("SELECT rl_define($1, $2::text::jsonb)", &[&name, &hot_config(storage)])
            .unwrap();
    }
    let mut open = server.client();
    let step = Duration::from_millis(scale(300, 10_000));
    let calls = hot(&server, |calls| {
        let mut look = |what: &str| {
            let (before, started) = (calls.load(Ordering::Relaxed), Instant::now());
            thread::sleep(step);
            let done = (calls.load(Ordering::Relaxed) - before) as f64;
            let sql = "SELECT pg_relation_size('rateLimits') / 1024,
                           pg_relation_size('ratelimits_pkey') / 1024, n_dead_tup
                       FROM pg_stat_user_tables WHERE relid = 'rateLimits'::regclass";
            let row = client.query_one(sql, &[]).unwrap();
            let [table, index, dead] = [0, 1, 2].map(|n| row.get::<_, i64>(n));
            println!(
                "{what}: {:6.0} calls a second; table {table} kB, index {index} kB, {dead} dead",
                done / started.elapsed().as_secs_f64()
            );
        };
        look("before      ");
        look("before      ");
        open.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").unwrap();
        (0..6).for_each(|_| look("while it is open"));
        open.batch_execute("COMMIT").unwrap();
        (0..3).for_each(|_| look("after it    "));
    });
    client.batch_execute("VACUUM rateLimits").unwrap();
    let sql = "SELECT value, pg_relation_size('rateLimits') / 1024 FROM rateLimits";
    let row = client.query_one(sql, &[]).unwrap();
    assert_eq!((CAPACITY - row.get::<_, f64>(0)).round(), calls as f64);
    println!("after VACUUM: table {} kB", row.get::<_, i64>(1));
    whole(&mut client).unwrap();
}
