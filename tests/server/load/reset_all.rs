//! rl_reset_keys and the other calls that write several rows, and definitions, at the same time as each other and as
//! takes. They lock in one order, so they never deadlock, and none gives up where a retry suffices.

use postgres::types::ToSql;
use postgres::{Client, Error};

use super::errors::{Errors, calls, quick_to_see_deadlocks};
use crate::database::Database;

const SESSIONS: usize = 6;
const KEYS: u64 = 6;
const CALLS: usize = Database::part(500);
/// Sessions, rounds and calls of a round, for calls whose race is short.
const MANY: (usize, usize) = (16, 3);
const EACH: usize = Database::part(500);

const LIMITS: &str = "
    SELECT rl_define('api', rl_token_bucket(1e9, '1 day'));
    SELECT rl_define('wide', rl_token_bucket(1e9, '1 day', shards => 3));
    CREATE TABLE usage (key text);
    CREATE TRIGGER limit_usage AFTER INSERT ON usage REFERENCING NEW TABLE AS new_rows
        FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('api', 'key=key')";

/// No key has two rows of one number.
fn assert_unique(database: &Database) {
    let mut client = database.connect();
    client.batch_execute("SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off").unwrap();
    let sql = "SELECT FROM rateLimits GROUP BY name, key, shard HAVING count(*) > 1";
    assert_eq!(client.query(sql, &[]).unwrap().len(), 0);
}

/// Makes a call in a transaction of its own, which keeps the rows locked while the client thinks.
fn in_transaction(
    client: &mut Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<(), Error> {
    let mut transaction = client.transaction()?;
    transaction.execute(sql, parameters)?;
    transaction.commit()
}

/// Runs one of two calls at random, many times, each in a transaction: inside the server, whose sessions
/// then conflict more often than clients' would.
fn in_turn(one: &str, other: &str) -> String {
    format!(
        "DO $$BEGIN
            FOR n IN 1..{EACH} LOOP
                IF random() < 0.5 THEN PERFORM {one}; ELSE PERFORM {other}; END IF;
                COMMIT;
            END LOOP;
        END$$"
    )
}

/// A database with some limits.
fn limits(name: &'static str) -> Database {
    let database = Database::new(name);
    database.connect().batch_execute(&Database::limits(LIMITS)).unwrap();
    database
}

#[test]
#[ignore = "needs a server: make test"]
fn several_rows_are_locked_in_one_order() {
    let database = limits("load_reset_all_order");
    let errors = calls(&database, (SESSIONS, CALLS), |client, random, _| {
        // Each of the keys, backwards; a call sorts them.
        let some: Vec<String> = (0..KEYS)
            .rev()
            .filter(|_| random.below(3) > 0)
            .map(|key| format!("key {key}"))
            .collect();
        let name = if random.below(2) == 0 { "api" } else { "wide" };
        match random.below(8) {
            0 | 1 => in_transaction(client, "SELECT rl_reset_keys($1)", &[&name]),
            2 => in_transaction(client, "INSERT INTO usage SELECT unnest($1::text[])", &[&some]),
            3 => in_transaction(client, "SELECT rl_limit('wide', 'key ' || $1::int % 6, 3)", &[&(some.len() as i32)]),
            4 => in_transaction(client, "SELECT rl_reset($1, 'key ' || $2::int % 6)" , &[&name, &(some.len() as i32)]),
            _ => in_transaction(
                client,
                "SELECT FROM rl_limit_all((SELECT jsonb_agg(jsonb_build_object('name', name, 'key', key))
                                           FROM unnest('{wide,api}'::text[]) name, unnest($1::text[] || '{key 0}') key))",
                &[&some],
            ),
        }
    });
    println!("{errors:?}");
    assert_eq!(errors, Errors::new());
    assert_unique(&database);
}

#[test]
#[ignore = "needs a server: make test"]
fn resetting_names_at_once_is_no_deadlock() {
    let database = limits("load_reset_all_itself");
    let errors = calls(&database, (SESSIONS, CALLS), |client, random, session| {
        if session % 2 == 0 {
            return in_transaction(client, "SELECT rl_reset_keys('api')", &[]);
        }
        let some: Vec<String> =
            (0..KEYS).filter(|_| random.below(2) > 0).map(|key| format!("key {key}")).collect();
        in_transaction(client, "INSERT INTO usage SELECT unnest($1::text[])", &[&some])
    });
    println!("{errors:?}");
    assert_eq!(errors, Errors::new());
    assert_unique(&database);
}

#[test]
#[ignore = "needs a server: make test"]
fn resetting_a_name_beside_takes_is_no_error() {
    let database = limits("load_reset_all_takes");
    // The row of one key comes and goes.
    let errors = calls(&database, MANY, |client, _, _| {
        client.batch_execute(&in_turn("rl_reset_keys('api')", "rl_limit('api')"))
    });
    println!("{errors:?}");
    assert_eq!(errors, Errors::new());
    let errors = calls(&database, (12, CALLS), |client, random, session| {
        let key = format!("key {}", random.below(KEYS));
        match session {
            0 | 1 => client.execute("SELECT rl_reset_keys('wide')", &[]),
            2 | 3 => client.execute("SELECT rl_limit('wide', $1)", &[&key]),
            4 => client.execute("SELECT rl_credit('api', $1, -1)", &[&key]),
            5 => client.execute("SELECT rl_reset('api', $1)", &[&key]),
            6..=8 => client.execute("SELECT rl_limit('api', $1)", &[&key]),
            _ => client.execute("SELECT rl_reset_keys('api')", &[]),
        }
        .map(drop)
    });
    println!("{errors:?}");
    assert_eq!(errors, Errors::new());
    assert_unique(&database);
}

#[test]
#[ignore = "needs a server: make test"]
fn defining_and_undefining_a_limit_at_once_is_no_error() {
    let database = limits("load_define_undefine");
    let errors = calls(&database, MANY, |client, random, _| {
        let rate = 1 + random.below(3);
        let define = format!("rl_define('on and off', rl_token_bucket({rate}, '1 day'))");
        client.batch_execute(&in_turn("rl_undefine('on and off')", &define))
    });
    println!("{errors:?}");
    assert_eq!(errors, Errors::new());
    let mut client = quick_to_see_deadlocks(&database);
    client
        .batch_execute(
            "SELECT rl_define('on and off', rl_token_bucket(1, '1 day')), rl_limit('on and off')",
        )
        .unwrap();
}
