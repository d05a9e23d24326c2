//! pg_dump and restore, by a superuser and by an ordinary role: limits, state and grants are restored,
//! whichever role installed the extension, and also when that role is dropped.

use std::process::Command;

use postgres::Client;

use crate::database::{Database, connect};

const GRANTS: &str = "
    GRANT USAGE ON SCHEMA limits TO dump_app;
    GRANT EXECUTE ON FUNCTION limits.rl_limit, limits.rl_check TO dump_app;";

#[test]
#[ignore = "needs a server: make test"]
fn limits_state_and_grants_of_a_role_with_create_come_back() {
    installed_by_a_role("GRANT CREATE ON DATABASE %I TO %I");
}

#[test]
#[ignore = "needs a server: make test"]
fn limits_state_and_grants_of_the_databases_owner_come_back() {
    installed_by_a_role("ALTER DATABASE %I OWNER TO %I");
}

/// `dump_role`, an ordinary role with this right on the database, installs the extension and grants
/// it to `dump_app`, which takes a token. Then it is dropped, and `dump_heir` owns its objects.
fn installed_by_a_role(right: &str) {
    let source = Database::new("dump_source");
    let mut client = source.connect();
    client
        .batch_execute(
            "DROP EXTENSION ratelimit;
             DROP ROLE IF EXISTS dump_role, dump_heir, dump_app;
             CREATE ROLE dump_role LOGIN; CREATE ROLE dump_heir LOGIN; CREATE ROLE dump_app",
        )
        .unwrap();
    give(&mut client, right, "dump_role");
    client
        .batch_execute(&format!(
            "SET ROLE dump_role;
             CREATE SCHEMA limits;
             CREATE EXTENSION ratelimit SCHEMA limits;
             SELECT limits.rl_define('api', limits.rl_token_bucket(5, '365 days'));
             -- The dump has the key's row before that of its plan.
             SELECT limits.rl_define('plan', limits.rl_unlimited()), limits.rl_define('api', '{{\"plan\": \"plan\"}}', 'k');
             SELECT limits.rl_define('plan', limits.rl_token_bucket(5, '365 days'));
             {GRANTS}"
        ))
        .unwrap();
    assert_eq!(take(&mut client), 4.0);
    comes_back("dump_role", right, "", 3.0);

    client
        .batch_execute(&format!(
            "RESET ROLE; REASSIGN OWNED BY dump_role TO dump_heir; DROP OWNED BY dump_role; DROP ROLE dump_role;
             {GRANTS}"
        ))
        .unwrap();
    // The definition is dumped, the state is not.
    comes_back("dump_heir", right, "--exclude-table-data='*.ratelimits'", 4.0);

    drop(client);
    drop(source);
    connect("postgres").batch_execute("DROP ROLE dump_heir, dump_app").unwrap();
}

/// Dumps and restores in each way; then checks the tokens that a take of `dump_app` leaves.
fn comes_back(owner: &str, right: &str, options: &str, remaining: f64) {
    for (user, dump, restore) in [
        ("postgres", "pg_dump", "psql -X -q -v ON_ERROR_STOP=1"),
        ("postgres", "pg_dump -Fc", "pg_restore -e"),
        // Without the grants, which an ordinary role can't repeat: the one to itself would go back
        // to its grantor.
        (owner, "pg_dump -Fc", "pg_restore -e --no-privileges"),
    ] {
        let target = Database::empty("dump_target");
        let mut client = target.connect();
        give(&mut client, right, owner);
        dump_and_restore(user, &format!("{dump} {options}"), restore);
        if user == owner {
            client.batch_execute(&format!("SET ROLE {owner}; {GRANTS}")).unwrap();
        }
        assert_eq!(take(&mut client), remaining, "{dump}, {restore} as {user}");
    }
}

fn give(client: &mut Client, right: &str, role: &str) {
    client
        .batch_execute(&format!(
            "DO $$ BEGIN EXECUTE format('{right}', current_database(), '{role}'); END $$"
        ))
        .unwrap();
}

/// From dump_source into dump_target; a warning is a failure, too.
fn dump_and_restore(user: &str, dump: &str, restore: &str) {
    let server = std::env::var("RATELIMIT_TEST_SERVER").unwrap() + " user=" + user;
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c"])
        .arg(format!(
            "{dump} -d '{server} dbname=dump_source' | {restore} -d '{server} dbname=dump_target'"
        ))
        .output()
        .expect("bash runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{dump}, {restore} as {user}: {errors}");
}

fn take(client: &mut Client) -> f64 {
    client.batch_execute("SET ROLE dump_app").unwrap();
    let row =
        client.query_one("SELECT floor(remaining + 0.5) FROM limits.rl_limit('api', 'k')", &[]);
    row.unwrap_or_else(|error| panic!("{error:?}")).get(0)
}

const SUPABASE: &str = "
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO dump_anon, dump_authenticated, dump_service;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON FUNCTIONS TO dump_anon, dump_authenticated, dump_service;
    ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO dump_service WITH GRANT OPTION;
    ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO dump_anon;";

/// Nor where it is restored into a database with them; what was granted stays and is restored.
#[test]
#[ignore = "needs a server: make test"]
fn default_privileges_open_nothing() {
    let source = Database::new("dump_source");
    let mut client = source.connect();
    client
        .batch_execute(&format!(
            "DROP EXTENSION ratelimit;
             DROP ROLE IF EXISTS dump_anon, dump_authenticated, dump_service, dump_app;
             CREATE ROLE dump_anon; CREATE ROLE dump_authenticated; CREATE ROLE dump_service; CREATE ROLE dump_app;
             {SUPABASE} CREATE EXTENSION ratelimit;
             GRANT EXECUTE ON FUNCTION rl_limit, rl_check TO dump_app;
             GRANT SELECT, UPDATE (config) ON rl_config TO dump_app;
             SELECT rl_define('api', rl_token_bucket(5, '365 days'))"
        ))
        .unwrap();
    is_closed(&mut client);
    let target = Database::empty("dump_target");
    let mut restored = target.connect();
    restored.batch_execute(SUPABASE).unwrap();
    dump_and_restore("postgres", "pg_dump", "psql -X -q -v ON_ERROR_STOP=1");
    is_closed(&mut restored);
    drop((restored, target, client, source));
    connect("postgres")
        .batch_execute("DROP ROLE dump_anon, dump_authenticated, dump_service, dump_app")
        .unwrap();
}

/// Only dump_app can do what it was granted; other roles can only call the pure functions.
fn is_closed(client: &mut Client) {
    let open = client
        .query_one(
            "SELECT array_agg(concat_ws(' ', role, pg_describe_object(classid, objid, 0))),
                    (SELECT count(*) FROM pg_init_privs WHERE initprivs::text LIKE '%dump\\_%')
             FROM pg_depend, unnest(ARRAY['dump_anon', 'dump_authenticated', 'dump_service']) role
             WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit') AND deptype = 'e'
             AND CASE classid WHEN 'pg_class'::regclass THEN has_table_privilege(role, objid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
                              WHEN 'pg_proc'::regclass THEN has_function_privilege(role, objid, 'EXECUTE')
                                   AND NOT EXISTS (SELECT FROM pg_proc WHERE oid = objid AND provolatile = 'i')
                 END",
            &[],
        )
        .unwrap();
    let (objects, initial) = (open.get::<_, Option<Vec<String>>>(0), open.get::<_, i64>(1));
    assert_eq!((objects, initial), (None, 0));
    client.batch_execute("SET ROLE dump_app").unwrap();
    client.batch_execute("SELECT FROM rl_limit('api'), rl_check('api'), rl_config").unwrap();
    client.batch_execute("UPDATE rl_config SET config = rl_unlimited()").unwrap();
    client.batch_execute("DELETE FROM rl_config").unwrap_err();
}
