//! The server killed at any moment, and backends killed, cancelled and terminated, under load: committed
//! takes are there, no limit is exceeded, and no row is locked by a session that is gone.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, GenericClient};

use crate::check::{check, has_amcheck};
use crate::own::{Server, sessions};
use crate::rules::Random;
use crate::scale;
use crate::work::{Limit, Outcome, Round, Work, Works};
use crate::work::{begin, end_prepared, judged, load, notebook, some_session};

/// Actions on the table during the load. An interrupted rebuild leaves an index behind.
const REPAIRS: [&str; 4] = [
    "VACUUM rateLimits",
    "CHECKPOINT",
    "VACUUM (FREEZE, INDEX_CLEANUP ON) rateLimits",
    "REINDEX TABLE CONCURRENTLY rateLimits",
];
const REBUILDS: [&str; 5] = [
    "VACUUM FULL rateLimits",
    "CLUSTER rateLimits USING ratelimits_pkey",
    "REINDEX TABLE rateLimits",
    "REINDEX INDEX CONCURRENTLY ratelimits_pkey",
    "SELECT rl_prune(100)",
];
const CHECKS: [&str; 2] = [
    "SELECT bt_index_check('ratelimits_pkey', heapallindexed => true)",
    "SELECT FROM verify_heapam('rateLimits')",
];

/// Drops the index of an interrupted rebuild, as PostgreSQL's manual recommends.
fn drop_invalid_indexes(client: &mut Client) {
    let sql = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid";
    for row in client.query(sql, &[]).unwrap() {
        client.batch_execute(&format!("DROP INDEX {}", row.get::<_, &str>(0))).unwrap();
    }
}

/// Runs one after the other, until the server dies or time is up. Fails where it waits for long: a session that has
/// failed may leave a prepared transaction.
fn maintain(client: &mut Client, what: &[&str], random: &mut Random, until: Instant) -> u64 {
    let mut done = 0;
    client.batch_execute("SET lock_timeout = '1min'").unwrap();
    while Instant::now() < until {
        let sql = what[random.below(what.len() as u64) as usize];
        match client.batch_execute(sql) {
            Ok(()) => done += 1,
            Err(error) => {
                // A deadlock, or the end.
                let deadlock = postgres::error::SqlState::T_R_DEADLOCK_DETECTED;
                if error.code() != Some(&deadlock) {
                    if client.is_closed() {
                        break;
                    }
                    panic!("{sql}: {error:?}; {}", sessions(client));
                }
                drop_invalid_indexes(client);
            }
        }
    }
    done
}

fn tokens(works: &Works) -> f64 {
    works.values().filter(|w| w.outcome == Outcome::Committed).map(|work| work.tokens).sum()
}

fn count(works: &Works, outcome: Outcome) -> usize {
    works.values().filter(|work| work.outcome == outcome).count()
}

/// A session that holds a row of its own in a transaction; that it does is on disk.
fn hold(server: &Server) -> Client {
    let mut holder = server.client();
    let take = "SELECT FROM rl_limit('quick 0', 'held')";
    holder.batch_execute(take).unwrap();
    holder.batch_execute(&format!("BEGIN; {take}")).unwrap();
    server.client().batch_execute("CHECKPOINT").unwrap();
    holder
}

/// Every row can be locked without a wait, also that of [`hold`].
fn nothing_is_locked(client: &mut impl GenericClient) -> Result<(), String> {
    let sql = "SELECT count(*) FILTER (WHERE key = 'held')
               FROM (SELECT key FROM rateLimits FOR UPDATE NOWAIT) AS locked";
    match client.query_one(sql, &[]) {
        Ok(row) if row.get::<_, i64>(0) == 1 => Ok(()),
        Ok(_) => Err("the row that was held is gone".to_owned()),
        Err(error) => Err(format!("a row is locked: {error:?}")),
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_server_killed_under_load_has_lost_nothing_and_given_nothing_twice() {
    let (server, limits, from) = begin();
    let mut client = server.client();
    let mut all = Works::new();
    // The last rounds can't be judged: the crash may forget commits that were acknowledged, and seen by others.
    let (notes, unjudged) = (notebook(&limits), notebook(&limits));
    for number in 0..scale(3, 20) {
        let mut random = Random(number);
        let round = Round { number, synchronous: number < scale(2, 15), reconnect: false };
        let notes = if round.synchronous { &notes } else { &unjudged };
        let after = Duration::from_millis(20 + random.below(scale(500, 2500)));
        let (mut works, errors) = load(&server, (&limits, notes), round, || {
            let mut maintainer = server.client();
            let _holder = hold(&server);
            thread::scope(|scope| {
                scope.spawn(|| {
                    maintain(&mut maintainer, &REPAIRS, &mut random, Instant::now() + after)
                });
                thread::sleep(after);
                server.kill();
            });
        });
        let started = Instant::now();
        server.restart();
        let recovered = started.elapsed();
        client = server.client();
        if !round.synchronous {
            let committed = works.values_mut().filter(|w| w.outcome == Outcome::Committed);
            committed.for_each(|work| work.outcome = Outcome::Unknown);
        }
        let prepared = end_prepared(&mut client, &mut works).unwrap();
        nothing_is_locked(&mut client).unwrap();
        drop_invalid_indexes(&mut client);
        println!(
            "round {number}: killed after {after:.0?}, up again in {recovered:.0?}; {} committed, {} \
             rolled back, {} unknown, {prepared} prepared; {:?}",
            count(&works, Outcome::Committed),
            count(&works, Outcome::RolledBack),
            count(&works, Outcome::Unknown),
            errors
        );
        all.extend(works);
        check(&mut client, &limits, &all, from).unwrap();
    }
    println!("{} tokens in {} transactions", tokens(&all), all.len());
    assert!(tokens(&all) > 0.0);
    judged(&notes);
    the_checks_see_what_is_broken(&mut client, &limits, &all, from);
    let _holder = hold(&server);
    nothing_is_locked(&mut client).expect_err("a row that is held");
}

/// Each breach is made in a transaction, seen, and rolled back.
fn the_checks_see_what_is_broken(client: &mut Client, limits: &[Limit], works: &Works, from: i64) {
    let of_one = "(SELECT work FROM takes JOIN limits USING (name) WHERE exact LIMIT 1)";
    let row = "(SELECT name, key, shard FROM rateLimits JOIN limits USING (name)
                WHERE exact AND kind <> '#' LIMIT 1)";
    let breaches = [
        // A lost commit, and a rollback that was kept.
        (format!("DELETE FROM takes WHERE work = {of_one}"), "notes"), // or, if its outcome is unknown: that they and the rows differ
        ("INSERT INTO takes VALUES (-1, 'quick 0', '', 1, now())".to_owned(), "nobody took"),
        // A token given twice, and one lost.
        (
            format!("UPDATE rateLimits SET value = value + 1 WHERE (name, key, shard) = {row}"),
            "differ",
        ),
        (
            format!("UPDATE rateLimits SET value = value - 1 WHERE (name, key, shard) = {row}"),
            "differ",
        ),
        (format!("DELETE FROM rateLimits WHERE (name, key, shard) = {row}"), "differ"),
        // All at once: more than the inflow.
        (
            "UPDATE takes SET at = (SELECT max(at) FROM takes), key = 'hot 0'
             WHERE name = 'quick 0'"
                .to_owned(),
            "was the most",
        ),
        // A row that is not in the index: found in the table, and not by the limiter.
        (
            "UPDATE pg_index SET indisready = false WHERE indexrelid = 'ratelimits_pkey'::regclass;
             UPDATE rateLimits SET key = key || ' moved' WHERE name = 'quick 0' AND key = 'hot 0';
             UPDATE pg_index SET indisready = true WHERE indexrelid = 'ratelimits_pkey'::regclass"
                .to_owned(),
            "amcheck of the indexes",
        ),
    ];
    for (breach, seen) in breaches {
        if seen.contains("amcheck") && !has_amcheck(client) {
            continue;
        }
        let mut transaction = client.transaction().unwrap();
        transaction.batch_execute(&breach).unwrap();
        let found = check(&mut transaction, limits, works, from);
        transaction.rollback().unwrap();
        let found = found.expect_err(&breach);
        assert!(found.contains(seen), "{breach}: {found}");
    }
    // One that was rolled back, and is there.
    let mut works = works.clone();
    let kept = works.values_mut().find(|w| w.outcome == Outcome::Committed && w.tokens > 0.0);
    let Work { outcome, .. } = kept.unwrap();
    *outcome = Outcome::RolledBack;
    check(client, limits, &works, from).expect_err("a rollback that is there");
}

/// Tables and indexes are rebuilt meanwhile, too.
#[test]
#[ignore = "needs a server: make test"]
fn sessions_killed_and_cancelled_lose_nothing_and_get_nothing_twice() {
    let (server, limits, from) = begin();
    let notes = notebook(&limits);
    let mut all = Works::new();
    for number in 0..scale(2, 10) {
        let mut random = Random(number);
        let round = Round { number, synchronous: true, reconnect: true };
        let duration = Duration::from_millis(scale(1500, 6000));
        // In every second round one is killed, which makes the server terminate all.
        let kills = number % 2 > 0;
        let mut done = (0, 0);
        let (mut works, errors) = load(&server, (&limits, &notes), round, || {
            let mut maintainer = server.client();
            let until = Instant::now() + duration;
            let mut what = [&REPAIRS[..], &REBUILDS].concat();
            if has_amcheck(&mut maintainer) {
                what.extend(CHECKS);
            }
            thread::scope(|scope| {
                let repairs = scope
                    .spawn(move || maintain(&mut maintainer, &what, &mut Random(number), until));
                done = (disturb(&server, &mut random, until, kills), repairs.join().unwrap());
            });
        });
        let mut client = server.client();
        let prepared = end_prepared(&mut client, &mut works).unwrap();
        drop_invalid_indexes(&mut client);
        println!(
            "round {number}: {} disturbed, {} times maintained; {} committed, {} rolled back, {} \
             unknown, {prepared} prepared; {errors:?}",
            done.0,
            done.1,
            count(&works, Outcome::Committed),
            count(&works, Outcome::RolledBack),
            count(&works, Outcome::Unknown),
        );
        all.extend(works);
        check(&mut client, &limits, &all, from).unwrap();
    }
    assert!(tokens(&all) > 0.0);
    judged(&notes);
}

/// Cancels and terminates sessions, and kills one at the end if `kill`.
fn disturb(server: &Server, random: &mut Random, until: Instant, kill: bool) -> u64 {
    let mut client = server.client();
    let mut done = 0;
    while Instant::now() < until {
        let Some(pid) = some_session(&mut client) else { continue };
        let how = if random.below(4) > 0 { "pg_cancel_backend" } else { "pg_terminate_backend" };
        client.execute(&format!("SELECT {how}($1)"), &[&pid]).unwrap();
        thread::sleep(Duration::from_millis(random.below(20)));
        done += 1;
    }
    if kill && let Some(pid) = some_session(&mut client) {
        let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
        assert!(killed.success());
        while client.batch_execute("SELECT").is_ok() {}
        server.client(); // it has recovered, and the sessions go on for a moment
        thread::sleep(Duration::from_millis(300));
        done += 1;
    }
    done
}
