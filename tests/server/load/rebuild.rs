//! The table and its index rebuilt under load: calls wait, without a deadlock.

use super::errors::{Errors, calls_beside, note, quick_to_see_deadlocks};
use crate::database::Database;

const SESSIONS: usize = 8;
const ROUNDS: usize = 6;

#[test]
#[ignore = "needs a server: make test"]
fn rebuilding_under_load_is_no_deadlock() {
    let database = Database::new("load_rebuild");
    let mut rebuilder = quick_to_see_deadlocks(&database);
    rebuilder
        .batch_execute(&Database::limits(
            "SELECT rl_define('api', rl_token_bucket(1e9, '1 day'));
             SELECT rl_define('wide', rl_token_bucket(1e9, '1 day', shards => 3));
             SELECT ok FROM generate_series(1, 20) n, LATERAL rl_limit('api', 'key ' || n);",
        ))
        .unwrap();
    let (errors, (calls, rebuilds)) = calls_beside(
        &database,
        SESSIONS,
        |client, random, session| {
            let old = format!("key {}", 1 + random.below(20));
            let new = format!("new {session} {}", random.below(1 << 40));
            let key = if random.below(2) == 0 { &old } else { &new };
            let all =
                serde_json::json!([{ "name": "api", "key": key }, { "name": "api", "key": old },
                                         { "name": "wide", "key": old }])
                .to_string();
            match random.below(6) {
                0 => client.execute("SELECT rl_limit('wide', $1, 2)", &[key]),
                1 => client.execute("SELECT FROM rl_limit_all($1::text::jsonb)", &[&all]),
                2 => client.execute("SELECT rl_credit('api', $1, 1)", &[key]),
                3 => client.execute("SELECT rl_reset('api', $1)", &[key]),
                _ => client.execute("SELECT rl_limit('api', $1)", &[key]),
            }
            .map(drop)
        },
        |made| {
            let mut errors = Errors::new();
            for _ in 0..ROUNDS {
                for sql in [
                    "REINDEX TABLE rateLimits",
                    "REINDEX INDEX ratelimits_pkey",
                    "VACUUM FULL rateLimits",
                    "CLUSTER rateLimits USING ratelimits_pkey",
                ] {
                    made.wait_for(50);
                    if let Err(error) = rebuilder.batch_execute(sql) {
                        note(&mut errors, &error);
                    }
                }
            }
            (made.calls(), errors)
        },
    );
    println!("{calls} calls: {errors:?}; {} rebuilds: {rebuilds:?}", 4 * ROUNDS);
    assert_eq!((errors, rebuilds), (Errors::new(), Errors::new()));
}
