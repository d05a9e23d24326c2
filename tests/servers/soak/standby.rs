//! A streaming replica: it answers calls that don't write, refuses the others, and continues from the
//! replicated state once it is promoted.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, NoTls, Row};
use ratelimit_judge::{Asked, Reply};

use crate::check::{check, whole};
use crate::own::Server;
use crate::scale;
use crate::work::{Round, Works, begin, end_prepared, judged, load, notebook};

fn wait_until(client: &mut Client, answer: &str) {
    let start = Instant::now();
    while !client.query_one(&format!("SELECT {answer}"), &[]).unwrap().get::<_, bool>(0) {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {answer}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the standby has replayed all that the primary wrote so far.
fn catch_up(primary: &mut Client, standby: &mut Client) {
    let written: String =
        primary.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
    wait_until(standby, &format!("pg_last_wal_replay_lsn() >= '{written}'"));
}

/// Returns the remaining tokens of each key, as the limiter answers.
fn answers(client: &mut Client) -> BTreeMap<(String, String), f64> {
    let sql = "SELECT name, key, remaining FROM (SELECT DISTINCT name, key FROM rateLimits) AS r,
               rl_check(name, key) WHERE name IN (SELECT name FROM limits WHERE exact)";
    let rows = client.query(sql, &[]).unwrap();
    rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect()
}

#[test]
#[ignore = "needs a server: make test"]
fn a_standby_checks_and_refuses_and_goes_on_when_it_is_promoted() {
    let (server, limits, from) = begin();
    let notes = notebook(&limits);
    let mut primary = server.client();
    let standby = server.standby();
    let mut replica = standby.client();
    let mut works = Works::new();
    for number in 0..scale(1, 5) {
        let round = Round { number, synchronous: true, reconnect: true };
        let mut checks = 0;
        let (more, _) = load(&server, (&limits, &notes), round, || {
            // Versions move and index entries die while the standby reads.
            let until = Instant::now() + Duration::from_millis(scale(1500, 6000));
            while Instant::now() < until {
                // In recovery: a query may conflict with the replay of VACUUM.
                for sql in [
                    "SELECT rl_check('slow 1', 'hot ' || n % 4) FROM generate_series(1, 100) n",
                    "SELECT rl_check('shards', 'hot ' || n % 4) FROM generate_series(1, 10) n",
                    "SELECT * FROM rl_status() LIMIT 100",
                ] {
                    match replica.batch_execute(sql) {
                        Ok(()) => checks += 1,
                        Err(error) => {
                            let conflict = SqlState::T_R_SERIALIZATION_FAILURE;
                            assert_eq!(error.code(), Some(&conflict), "{sql}: {error:?}");
                        }
                    }
                }
                if checks % 50 == 0 {
                    primary.batch_execute("VACUUM rateLimits").unwrap();
                }
            }
        });
        works.extend(more);
        end_prepared(&mut primary, &mut works).unwrap();
        catch_up(&mut primary, &mut replica);
        let (expected, found) = (answers(&mut primary), answers(&mut replica));
        println!("round {number}: {checks} times checked, then {} keys compared", found.len());
        assert!(!expected.is_empty());
        assert_eq!(expected, found);
    }

    for call in [
        "rl_limit('slow 1', 'hot 0')",
        "rl_limit('slow 1', 'nobody')",
        "rl_limit('slow 1', 'hot 0', 2e6)",
        "rl_limit_all('[{\"name\": \"slow 1\"}]')",
        "rl_credit('slow 1', 'hot 0', 1)",
        "rl_reset('slow 1', 'hot 0')",
        "rl_reset_keys('slow 1')",
        "rl_prune()",
        "rl_define('slow 1', rl_sliding_log(1, '1 day'))",
        "rl_undefine('slow 1')",
    ] {
        let error = replica.batch_execute(&format!("SELECT {call}")).unwrap_err();
        let read_only = SqlState::READ_ONLY_SQL_TRANSACTION;
        assert_eq!(error.code(), Some(&read_only), "{call}: {error:?}");
        // Where there is a hint: behind a balancer, memory would admit the limit on each server.
        let hint = error.as_db_error().and_then(|error| error.hint());
        assert!(hint.is_none_or(|hint| hint.contains("on the primary")), "{call}: {error:?}");
        let takes = ["rl_limit", "rl_credit", "rl_reset"].iter().any(|of| call.starts_with(of));
        assert_eq!(hint.is_some(), takes, "{call}: {error:?}");
    }
    // On the primary the transaction is what can't write.
    let read_only = "BEGIN READ ONLY; SELECT rl_limit('slow 1', 'hot 0')";
    let error = primary.batch_execute(read_only).unwrap_err();
    primary.batch_execute("ROLLBACK").unwrap();
    let hint = error.as_db_error().and_then(|error| error.hint());
    assert!(hint.is_some_and(|hint| hint.starts_with("Only limits in memory")), "{error:?}");
    let sql =
        "SELECT count(*) FROM rl_check_all('[{\"name\": \"slow 1\"}, {\"name\": \"shards\"}]')";
    assert_eq!(replica.query_one(sql, &[]).unwrap().get::<_, i64>(0), 2);
    // A limit in memory is taken on the standby, which counts for itself, and knows new definitions.
    let define = |capacity| {
        format!(
            "SELECT rl_define('memory', rl_token_bucket(1e-300, '1 day', capacity => {capacity}) || '{{\"store\": \"memory\"}}')"
        )
    };
    primary.batch_execute(&define(5)).unwrap();
    catch_up(&mut primary, &mut replica);
    let take_one = "SELECT remaining FROM rl_limit('memory', 'k') WHERE ok";
    for left in [4.0, 3.0] {
        assert_eq!(replica.query_one(take_one, &[]).unwrap().get::<_, f64>(0), left);
    }
    assert_eq!(primary.query_one(take_one, &[]).unwrap().get::<_, f64>(0), 4.0);
    let both = "SELECT bool_and(ok) FROM rl_limit_all('[{\"name\": \"memory\", \"key\": \"k\"}, {\"name\": \"memory\"}]')";
    assert!(replica.query_one(both, &[]).unwrap().get::<_, bool>(0));
    primary.batch_execute(&define(2)).unwrap();
    catch_up(&mut primary, &mut replica);
    assert_eq!(replica.query_one(take_one, &[]).unwrap().get::<_, f64>(0), 1.0);
    assert!(replica.query_one("SELECT rl_reset('memory')", &[]).unwrap().get::<_, bool>(0));
    // A definition is replicated, too, to a session that has cached another.
    primary.batch_execute("SELECT rl_define('later', rl_token_bucket(7, '1 day'))").unwrap();
    primary.batch_execute("SELECT rl_define('later', rl_token_bucket(8, '1 day'))").unwrap();
    catch_up(&mut primary, &mut replica);
    let sql = "SELECT remaining FROM rl_check('later')";
    assert_eq!(replica.query_one(sql, &[]).unwrap().get::<_, f64>(0), 8.0);
    primary.batch_execute("SELECT rl_define('later', rl_token_bucket(9, '1 day'))").unwrap();
    catch_up(&mut primary, &mut replica);
    assert_eq!(replica.query_one(sql, &[]).unwrap().get::<_, f64>(0), 9.0);
    // A SERIALIZABLE transaction is not for a standby, as PostgreSQL has it.
    let serializable = "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT rl_check('later')";
    let error = replica.batch_execute(serializable).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{error:?}");
    replica.batch_execute("ROLLBACK").unwrap();
    // A client that names both servers, this one first, gets the one that it can call on.
    let either = |first: &Server, second: &Server| {
        let hosts = format!("{},{}", first.folder(), second.folder());
        let config =
            format!("host={hosts} user=postgres dbname=postgres target_session_attrs=read-write");
        Client::connect(&config, NoTls).unwrap()
    };
    either(&standby, &server).batch_execute("SELECT rl_limit('later', 'either')").unwrap();
    // An unlogged table is empty on a standby, which is an error.
    primary.batch_execute("ALTER TABLE rateLimits SET UNLOGGED").unwrap();
    catch_up(&mut primary, &mut replica);
    for call in ["rl_check('later')", "rl_check_all('[{\"name\": \"later\"}]')", "rl_status()"] {
        let error = replica.batch_execute(&format!("SELECT {call}")).unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{call}: {error:?}");
    }
    primary.batch_execute("ALTER TABLE rateLimits SET LOGGED").unwrap();
    catch_up(&mut primary, &mut replica);
    assert_eq!(replica.query_one(sql, &[]).unwrap().get::<_, f64>(0), 9.0);

    // The primary dies; the replica's sessions continue from its state.
    let before = answers(&mut primary);
    server.kill();
    assert!(replica.query_one("SELECT pg_promote()", &[]).unwrap().get::<_, bool>(0));
    assert_eq!(answers(&mut replica), before);
    either(&server, &standby).batch_execute("SELECT rl_limit('later', 'either')").unwrap();
    assert_eq!(replica.query_one(take_one, &[]).unwrap().get::<_, f64>(0), 0.0);
    let mut recording = notes.recorder.session();
    let mut call = |function, asked| {
        let sql = format!("SELECT ok, remaining FROM {function}('slow 1', 'hot 0', 1)");
        let told = |row: &Row| {
            let reply = Reply { ok: row.get(0), remaining: Some(row.get(1)), retry_at: None };
            vec![(notes.number("slow 1", "hot 0"), asked, None, reply)]
        };
        recording.call(|| replica.query_one(&sql, &[]), told).unwrap().get::<_, f64>(1)
    };
    let left = call("rl_limit", Asked::Limit { count: 1.0, reserve: false });
    assert_eq!(left, before[&("slow 1".to_owned(), "hot 0".to_owned())] - 1.0);
    call("rl_credit", Asked::Credit { count: 1.0 });
    drop(recording);
    let round = Round { number: 100, synchronous: true, reconnect: true };
    let (more, errors) =
        load(&standby, (&limits, &notes), round, || thread::sleep(Duration::from_millis(300)));
    println!("promoted: {} transactions, {errors:?}", more.len());
    works.extend(more);
    end_prepared(&mut replica, &mut works).unwrap();
    check(&mut replica, &limits, &works, from).unwrap();
    whole(&mut replica).unwrap();
    // What the standby answered before is of the past, in no order with the primary's answers: it is not recorded.
    judged(&notes);
}

/// Holds that are open when the primary dies are those of the standby once it is promoted: settled once, extended, or
/// expired.
#[test]
#[ignore = "needs a server: make test"]
fn open_holds_go_on_when_a_standby_is_promoted() {
    let server = Server::start();
    let mut primary = server.client();
    primary
        .batch_execute(
            "SELECT rl_define('tokens', rl_token_bucket(1e-9, '1 day', capacity => 1000));
             SELECT rl_define('slots', rl_concurrency(3, '1 hour'))",
        )
        .unwrap();
    let standby = server.standby();
    let mut replica = standby.client();
    let several =
        r#"[{"name": "tokens", "key": "k", "count": 100}, {"name": "slots", "key": "k"}]"#;
    primary
        .batch_execute(&format!(
            "SELECT rl_hold('tokens', 'k', 200, ttl => '1 hour', id => 'open');
             SELECT rl_hold('tokens', 'k', 300, ttl => '100 ms', id => 'dead');
             SELECT rl_hold_all('{several}', ttl => '1 hour', id => 'several')"
        ))
        .unwrap();
    catch_up(&mut primary, &mut replica);
    let held = "SELECT held FROM rl_status('tokens', 'k')";
    let open: f64 = replica.query_one(held, &[]).unwrap().get(0);
    assert!(open == 300.0 || open == 600.0, "{open}"); // with the dead one until it expires
    for call in ["rl_settle('open', 0)", "rl_settle('none')", "rl_hold('tokens', 'k')"] {
        let error = replica.batch_execute(&format!("SELECT {call}")).unwrap_err();
        let read_only = SqlState::READ_ONLY_SQL_TRANSACTION;
        assert_eq!(error.code(), Some(&read_only), "{call}: {error:?}");
    }
    server.kill();
    assert!(replica.query_one("SELECT pg_promote()", &[]).unwrap().get::<_, bool>(0));
    wait_until(&mut replica, "remaining = 700 FROM rl_check('tokens', 'k')");
    let mut number = |sql: &str| replica.query_one(sql, &[]).unwrap().get::<_, f64>(0);
    // More than the dead one, which has come back, and what is left.
    assert_eq!(number("SELECT remaining FROM rl_hold('tokens', 'k', 250, id => 'open')"), 650.0);
    assert_eq!(number("SELECT remaining FROM rl_settle('open', 40)"), 860.0);
    assert_eq!(number("SELECT count(*)::float8 FROM rl_settle('open', 40) WHERE ok"), 0.0);
    assert_eq!(number("SELECT remaining FROM rl_check('slots', 'k')"), 2.0);
    assert_eq!(number("SELECT count(*)::float8 FROM rl_settle_all('several', '0')"), 2.0);
    assert_eq!(number("SELECT remaining FROM rl_check('slots', 'k')"), 3.0);
    // It settles late, and pays.
    assert_eq!(number("SELECT remaining FROM rl_settle('dead', 60)"), 900.0);
    assert_eq!(number("SELECT count(*)::float8 FROM rl_holds"), 0.0);
    whole(&mut replica).unwrap();
}
