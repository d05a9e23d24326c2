//! The server's log: a line for a denied call, without its key.

use std::fs;

use postgres::{Config, NoTls};

use crate::database::Database;

fn server() -> String {
    std::env::var("RATELIMIT_TEST_SERVER").expect("RATELIMIT_TEST_SERVER: make test")
}

/// What the server has logged so far, after these statements in a new database.
fn log_after(database: &'static str, statements: &str) -> String {
    Database::new(database).connect().batch_execute(statements).unwrap();
    log()
}

/// What the server has logged so far.
fn log() -> String {
    let server = server();
    let name = server
        .split_once("host=/tmp/ratelimit.")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .expect("the server is one of scripts/server");
    let file = format!("{}/../target/servers/{name}/log", env!("CARGO_MANIFEST_DIR"));
    String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned()
}

#[test]
#[ignore = "needs a server: make test"]
fn a_denial_is_logged_without_its_key_its_statement_and_its_context() {
    let log = log_after(
        "server_log",
        "SET ratelimit.log_denials = 1;
         SELECT rl_define('log-one', rl_fixed_window(1, '1 hour', start => '1970-01-01 00:00:00+00'));
         DO $$ BEGIN PERFORM rl_limit('log-one', 'hidden-key'); PERFORM rl_limit('log-one', 'hidden-key'); END $$",
    );
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("\"log-one\"")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0]
            .contains("LOG:  rate limit \"log-one\" exceeded by role \"postgres\": retry after "),
        "{lines:?}"
    );
    assert!(!log.contains("hidden-key"), "the log has the key");
}

#[test]
#[ignore = "needs a server: make test"]
fn the_share_that_is_wanted_is_logged() {
    let log = log_after(
        "server_log_share",
        "SET ratelimit.log_denials = 0.5;
         SELECT rl_define('log-half', rl_token_bucket(1, '1 day')), rl_define('log-none', rl_token_bucket(1, '1 day'));
         SELECT count((rl_limit('log-half')).ok) FROM generate_series(0, 1000);
         SET ratelimit.log_denials = 0;
         SELECT count((rl_limit('log-none')).ok) FROM generate_series(0, 1000)",
    );
    let lines = |name: &str| log.lines().filter(|line| line.contains(name)).count();
    // Nine standard deviations, either side.
    assert!((358..=642).contains(&lines("\"log-half\"")), "{}", lines("\"log-half\""));
    assert_eq!(lines("\"log-none\""), 0);
}

#[test]
#[ignore = "needs a server: make test"]
fn the_setting_of_a_role_holds_for_its_sessions() {
    let database = Database::new("server_log_role");
    let mut owner = database.connect();
    owner
        .batch_execute(
            "DROP ROLE IF EXISTS log_role; CREATE ROLE log_role LOGIN; ALTER ROLE log_role SET ratelimit.log_denials = 1;
             SELECT rl_define('log-role', rl_token_bucket(1, '1 day')); GRANT EXECUTE ON FUNCTION rl_limit TO log_role",
        )
        .unwrap();
    let twice = "SELECT (rl_limit('log-role', 'a')).ok; SELECT (rl_limit('log-role', 'a')).ok";
    let mut config: Config = server().parse().unwrap();
    let mut role = config.user("log_role").dbname("server_log_role").connect(NoTls).unwrap();
    role.batch_execute(twice).unwrap();
    owner.batch_execute(twice).unwrap();
    owner.batch_execute("DROP OWNED BY log_role; DROP ROLE log_role").unwrap();
    let log = log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("\"log-role\"")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("exceeded by role \"log_role\""), "{lines:?}");
}
