//! pg_dump and restore: limits, state and grants come back, whoever installed the extension.

mod server;

use std::process::Command;

use postgres::Client;

/// Dumps one database and restores it into another, with psql that stops at an error.
fn dump_and_restore(from: &str, to: &str, options: &str) {
    let server = std::env::var("RATELIMIT_TEST_SERVER").unwrap();
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c"])
        .arg(format!(
            "pg_dump {options} -d '{server} dbname={from}' | psql -X -q -v ON_ERROR_STOP=1 -d '{server} dbname={to}'"
        ))
        .output()
        .expect("bash runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}

/// `dump_role` installs the extension in a database that it doesn't own, and grants it to
/// `dump_app`, who takes a token.
fn install_as_an_ordinary_role(client: &mut Client) {
    client
        .batch_execute(
            "DROP EXTENSION ratelimit;
             DROP ROLE IF EXISTS dump_role, dump_heir, dump_app;
             CREATE ROLE dump_role; CREATE ROLE dump_heir; CREATE ROLE dump_app;
             DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO dump_role', current_database()); END $$;
             SET ROLE dump_role;
             CREATE SCHEMA limits;
             CREATE EXTENSION ratelimit SCHEMA limits;
             SELECT limits.rl_define('api', limits.rl_token_bucket(5, '365 days'));
             GRANT USAGE ON SCHEMA limits TO dump_app;
             GRANT EXECUTE ON FUNCTION limits.rl_limit, limits.rl_check TO dump_app;
             SET ROLE dump_app",
        )
        .unwrap();
    assert_eq!(remaining(client), 4.0);
}

fn remaining(client: &mut Client) -> f64 {
    let row =
        client.query_one("SELECT floor(remaining + 0.5) FROM limits.rl_limit('api', 'k')", &[]);
    row.unwrap_or_else(|error| panic!("{error:?}")).get(0)
}

#[test]
#[ignore = "needs a server: make test"]
fn limits_state_and_grants_come_back() {
    let source = server::Database::new("dump_source");
    install_as_an_ordinary_role(&mut source.connect());
    {
        let mut admin = source.connect();
        admin.batch_execute("DROP DATABASE IF EXISTS dump_target").unwrap();
        admin.batch_execute("CREATE DATABASE dump_target").unwrap();
    }
    dump_and_restore("dump_source", "dump_target", "");
    let mut target = server::connect("dump_target");
    target.batch_execute("SET ROLE dump_app").unwrap();
    assert_eq!(remaining(&mut target), 3.0);
    drop(target);

    // The installer leaves; its heir owns the tables, and the dump still restores.
    let mut admin = source.connect();
    admin.batch_execute("DROP DATABASE dump_target").unwrap();
    admin
        .batch_execute(
            "REASSIGN OWNED BY dump_role TO dump_heir; DROP OWNED BY dump_role; DROP ROLE dump_role;
             GRANT EXECUTE ON FUNCTION limits.rl_limit, limits.rl_check TO dump_app",
        )
        .unwrap();
    admin.batch_execute("CREATE DATABASE dump_target").unwrap();
    dump_and_restore("dump_source", "dump_target", "--exclude-table-data='*.ratelimits'");
    let mut target = server::connect("dump_target");
    target.batch_execute("SET ROLE dump_app").unwrap();
    assert_eq!(remaining(&mut target), 4.0, "the definition came along, the state stayed behind");
    drop(target);

    admin.batch_execute("DROP DATABASE dump_target").unwrap();
    admin
        .batch_execute(
            "DROP EXTENSION ratelimit; DROP SCHEMA limits; DROP OWNED BY dump_heir, dump_app;
             DROP ROLE dump_heir, dump_app; CREATE EXTENSION ratelimit",
        )
        .unwrap();
}
