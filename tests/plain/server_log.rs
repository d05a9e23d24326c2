//! Denials in the server's log: the same lines as the extension's, without key and statement, and the setting for it.

use std::fs;

use crate::database::Database;

/// The server's log so far.
fn log() -> String {
    let server = std::env::var("RATELIMIT_TEST_SERVER").unwrap();
    let socket = server
        .split_once("host=/tmp/ratelimit.")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .expect("the server is one of scripts/server");
    let file = format!("{}/../target/servers/{socket}/log", env!("CARGO_MANIFEST_DIR"));
    String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned()
}

/// The lines after `from` bytes about a limit.
fn lines_after(from: usize, name: &str) -> Vec<String> {
    let log = log();
    assert!(!log[from..].contains("hidden-key"), "the log has a key");
    let begin = format!("WARNING:  rate limit \"{name}\" ");
    log[from..].lines().filter_map(|line| Some(line.split_once(&begin)?.1.to_owned())).collect()
}

const DEFINED: &str = "
    SET ratelimit.clock = '2027-01-01 12:00:00+00';
    SELECT rl_define('log-one', rl_token_bucket(2, '1 minute')),
           rl_define('log-many', rl_sliding_window(1, '1 minute')),
           rl_define('log-dry', rl_sliding_window(1, '1 minute', enforce => false)),
           rl_define('log-slots', rl_concurrency(1, ttl => '1 minute'));
    CREATE TABLE rows (author text);
    CREATE TRIGGER limits BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION rl_trigger('log-one', 'key=author');
    SELECT rl_limit('log-one', 'hidden-key', 2), rl_limit('log-many', 'hidden-key'), rl_limit('log-dry', 'hidden-key'),
           rl_acquire('log-slots', 'hidden-key');
    SELECT rl_limit('log-one', 'hidden-key')"; // denied, and not logged

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn denials_and_dry_runs_are_logged_without_their_keys() {
    let database = Database::new("plain_log");
    let from = log().len();
    let lines = |name: &str| lines_after(from, name);
    let mut client = database.connect();
    client.batch_execute(DEFINED).unwrap();
    assert_eq!(lines("log-one"), Vec::<String>::new());
    client.batch_execute("INSERT INTO rl_settings VALUES ('log_denials', '1')").unwrap();
    client
        .batch_execute(
            "SELECT rl_limit('log-one', 'hidden-key'), rl_limit('log-one', 'hidden-key', 3),
                    rl_limit('log-dry', 'hidden-key'), rl_acquire('log-slots', 'hidden-key');
             SELECT rl_limit_all('[{\"name\": \"log-dry\", \"key\": \"hidden-key\"},
                 {\"name\": \"log-one\", \"key\": \"hidden-key\"}, {\"name\": \"log-one\", \"key\": \"other\"},
                 {\"name\": \"log-many\", \"key\": \"hidden-key\"}]');
             SELECT rl_limit_each('[{\"name\": \"log-one\", \"key\": \"hidden-key\", \"count\": 3},
                 {\"name\": \"log-slots\", \"key\": \"hidden-key\"}, {\"name\": \"log-dry\", \"key\": \"hidden-key\"}]');
             SELECT rl_check('log-one', 'hidden-key'), rl_credit('log-one', 'hidden-key', -1);
             SELECT rl_check_all('[{\"name\": \"log-one\", \"key\": \"hidden-key\"}]');
             SELECT rl_block('log-many', 'blocked', '90 s'); SELECT rl_limit('log-many', 'blocked')",
        )
        .unwrap();
    let by = "exceeded by role \"postgres\"";
    let never = format!("{by}: this call can never pass");
    let after = |secs: &str| format!("{by}: retry after {secs} s");
    assert_eq!(lines("log-one"), [after("30"), never.clone(), after("30"), never]);
    assert_eq!(lines("log-many"), [after("120"), after("90")]);
    assert_eq!(lines("log-dry"), vec![format!("would be {by}"); 3]);
    assert_eq!(lines("log-slots"), [after("60")]);
    // In a transaction that is rolled back, by a trigger, and with the role that calls.
    client
        .batch_execute(
            "BEGIN; SELECT rl_limit('log-slots-2', config => rl_token_bucket(1, '1 minute'), count => 2); ROLLBACK",
        )
        .unwrap();
    assert_eq!(lines("log-slots-2").len(), 1);
    assert!(client.execute("INSERT INTO rows SELECT 'hidden-' || 'key'", &[]).is_err());
    assert_eq!(lines("log-one").len(), 5);
    client
        .batch_execute(
            "DO $$ BEGIN CREATE ROLE \"a role\"; EXCEPTION WHEN duplicate_object THEN END $$;
             GRANT USAGE ON SCHEMA ratelimit TO \"a role\"; GRANT EXECUTE ON FUNCTION rl_limit TO \"a role\";
             BEGIN; RESET ratelimit.clock; SET LOCAL ROLE \"a role\"; SELECT rl_limit('log-many', 'blocked'); COMMIT;
             DROP OWNED BY \"a role\"; DROP ROLE \"a role\"",
        )
        .unwrap();
    let last = lines("log-many").pop().unwrap();
    assert!(last.starts_with("exceeded by role \"a role\": retry after "), "{last}");
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_share_of_denials_is_logged_and_a_session_may_set_it() {
    let database = Database::new("plain_log_share");
    let from = log().len();
    let lines = |name: &str| lines_after(from, name);
    let mut client = database.connect();
    client
        .batch_execute(
            "INSERT INTO rl_settings VALUES ('log_denials', '.5');
             SELECT rl_define(name, rl_token_bucket(1, '1 day'))
             FROM unnest('{log-half,log-none,log-bad,log-all}'::text[]) name;
             SELECT count((rl_limit('log-half')).ok) FROM generate_series(0, 1000);
             SET ratelimit.log_denials = 0; SELECT count((rl_limit('log-none')).ok) FROM generate_series(0, 100);
             SET ratelimit.log_denials = 1; SELECT count((rl_limit('log-all')).ok) FROM generate_series(0, 100);
             SET ratelimit.log_denials = 'all'; SELECT count((rl_limit('log-bad')).ok) FROM generate_series(0, 1000)",
        )
        .unwrap();
    // Nine standard deviations, either side.
    for name in ["log-half", "log-bad"] {
        assert!((358..=642).contains(&lines(name).len()), "{name}: {}", lines(name).len());
    }
    assert_eq!(lines("log-none").len(), 0);
    assert_eq!(lines("log-all").len(), 100);
    for bad in [
        "('log_denials', '1.5')",
        "('log_denials', '-1')",
        "('log_denials', 'NaN')",
        "('track', 'on')",
    ] {
        let sql = format!("DELETE FROM rl_settings; INSERT INTO rl_settings VALUES {bad}");
        assert!(client.batch_execute(&sql).is_err(), "{bad}");
    }
}
