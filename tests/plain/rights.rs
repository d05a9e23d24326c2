//! Privileges in a database with the SQL file: only its owner has any, during loading and afterwards, whatever default
//! privileges grant; and objects of callers or other roles change nothing.

use std::process::{Command, Stdio};

use postgres::error::SqlState;
use postgres::{Client, Error};

use crate::database::{self, Database, OWNER};

/// Supabase's roles, by other names.
pub const ROLES: [&str; 2] = ["plain_anon", "plain_authenticated"];

/// Creates the roles, and grants them by default everything that `OWNER` creates, as Supabase does.
pub fn open_to_all(database: &Database) {
    let mut client = database.connect();
    for role in ROLES {
        database::create_role(&mut client, role);
    }
    for kind in ["TABLES", "SEQUENCES", "FUNCTIONS", "TYPES", "SCHEMAS"] {
        let sql = format!(
            "ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} GRANT ALL ON {kind} TO {}, PUBLIC",
            ROLES.join(", ")
        );
        client.batch_execute(&sql).unwrap();
    }
}

/// The statements of the file.
pub fn statements() -> Vec<String> {
    let (text, mut found, mut from, mut at) = (database::file(), Vec::new(), 0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("--") {
            at += rest.find('\n').unwrap();
        } else if let Some(quoted) = rest.strip_prefix('\'') {
            at += 1 + quoted.find('\'').unwrap() + 1;
        } else if let Some(tag) =
            rest.strip_prefix('$').and_then(|rest| rest.split_once('$')).map(|(tag, _)| tag)
            && tag.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
        {
            let quote = format!("${tag}$");
            at += quote.len() + rest[quote.len()..].find(&quote).unwrap() + quote.len();
        } else if rest.starts_with(';') {
            found.push(text[from..=at].trim().to_owned());
            at += 1;
            from = at;
        } else {
            at += rest.chars().next().unwrap().len_utf8();
        }
    }
    assert!(text[from..].trim().is_empty(), "{}", &text[from..]);
    assert!(found.len() > 50, "{} statements", found.len());
    found
}

/// Grants to others than the owner on what reads or writes: functions that run as the owner, tables and the schema.
/// Every role may call what only computes.
const OPEN: &str = "
    SELECT format('%s: %s to %s', object, privilege_type,
                  CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
    FROM (SELECT p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)) FROM pg_proc p
          WHERE p.pronamespace = to_regnamespace('ratelimit') AND p.prosecdef
            AND p.proname !~ '^(rl_(token_.*|fixed_.*|sliding_.*|concurrency|unlimited|calculate|key|address_key|version)|_parse|_plan_name|_written|_valid)$'
          UNION ALL
          SELECT c.oid::regclass::text, c.relowner, c.relacl FROM pg_class c
          WHERE c.relnamespace = to_regnamespace('ratelimit') AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
          UNION ALL
          SELECT 'the schema', n.nspowner, n.nspacl FROM pg_namespace n WHERE n.nspname = 'ratelimit'
         ) AS o (object, owner, acl), aclexplode(acl) WHERE grantee <> owner";

/// Fails if something is open, or if a stranger with USAGE on the schema can do anything.
fn assert_closed(database: &Database, stranger: &mut Client, after: &str) {
    let mut client = database.connect();
    let open: Vec<String> = client.query(OPEN, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    let usage = format!("the schema: USAGE to {}", ROLES[0]);
    let open: Vec<_> = open.into_iter().filter(|line| *line != usage).collect();
    assert!(open.is_empty(), "after: {after}\n{}", open.join("\n"));
    let usage = format!(
        "DO $$ BEGIN GRANT USAGE ON SCHEMA ratelimit TO {}; EXCEPTION WHEN invalid_schema_name THEN END $$",
        ROLES[0]
    );
    client.batch_execute(&usage).unwrap();
    for sql in CALLS {
        let Err(error) = stranger.batch_execute(sql) else { panic!("after: {after}\nmay: {sql}") };
        let code = error.code().unwrap().clone();
        let refused = [
            SqlState::INSUFFICIENT_PRIVILEGE,
            SqlState::UNDEFINED_FUNCTION,
            SqlState::UNDEFINED_TABLE,
            SqlState::INVALID_SCHEMA_NAME,
            SqlState::UNDEFINED_OBJECT,
        ];
        assert!(refused.contains(&code), "after: {after}\n{sql}: {error:?}");
    }
}

const CALLS: [&str; 13] = [
    "SELECT ratelimit.rl_limit('l', 'k', config => '{\"kind\": \"token bucket\", \"rate\": 1, \"period\": 1000}')",
    "SELECT ratelimit.rl_check('l', config => '{\"kind\": \"token bucket\", \"rate\": 1, \"period\": 1000}')",
    "SELECT ratelimit.rl_limit_all('[{\"name\": \"l\", \"config\": {\"kind\": \"unlimited\"}}]')",
    "SELECT ratelimit.rl_limit_each('[{\"name\": \"l\", \"config\": {\"kind\": \"unlimited\"}}]')",
    "SELECT ratelimit.rl_define('l', '{\"kind\": \"unlimited\"}')",
    "SELECT ratelimit.rl_block('l', 'k', '1 s')",
    "SELECT ratelimit.rl_reset('l')",
    "SELECT ratelimit.rl_reset_keys('l')",
    "SELECT ratelimit.rl_prune()",
    "SELECT ratelimit.rl_status()",
    "SELECT ratelimit.rl_acquire('l', config => '{\"kind\": \"concurrency\", \"slots\": 1, \"ttl\": 1000}')",
    "SELECT 1 FROM ratelimit.rateLimits",
    "INSERT INTO ratelimit.rl_config VALUES ('l', '', '{\"kind\": \"unlimited\"}')",
];

/// Loads the whole file as one string.
pub fn load(database: &Database) -> Result<(), Error> {
    database.connect_as(OWNER).batch_execute(&database::file())
}

/// Fails if a limit doesn't work for the owner.
fn assert_works(database: &Database) {
    let mut client = database.connect_as(OWNER);
    client
        .batch_execute("SELECT rl_define('works', rl_token_bucket(2, '1 day')), rl_reset('works')")
        .unwrap();
    let ok: Vec<bool> = (0..3)
        .map(|_| client.query_one("SELECT ok FROM rl_limit('works')", &[]).unwrap().get(0))
        .collect();
    assert_eq!(ok, [true, true, false]);
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn only_the_owner_may_call_after_any_statement() {
    let _turn = database::turn();
    let database = Database::empty("plain_rights");
    open_to_all(&database);
    let mut stranger = database.connect_as(ROLES[0]);
    for statement in statements() {
        database
            .connect_as(OWNER)
            .batch_execute(&statement)
            .unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        assert_closed(&database, &mut stranger, &statement);
    }
    assert_works(&database);
    // Again, over everything and with a grant.
    let grant = format!("GRANT EXECUTE ON FUNCTION ratelimit.rl_limit TO {}", ROLES[1]);
    database.connect_as(OWNER).batch_execute(&grant).unwrap();
    for statement in statements() {
        database
            .connect_as(OWNER)
            .batch_execute(&statement)
            .unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        let open = database.connect().query(OPEN, &[]).unwrap();
        let open: Vec<String> = open.iter().map(|row| row.get(0)).collect();
        let granted = |line: &&String| {
            **line == format!("the schema: USAGE to {}", ROLES[0])
                || line.starts_with("ratelimit.rl_limit(")
                    && line.ends_with(&format!("EXECUTE to {}", ROLES[1]))
                || line.starts_with("rl_limit(")
                    && line.ends_with(&format!("EXECUTE to {}", ROLES[1]))
        };
        let more: Vec<_> = open.iter().filter(|line| !granted(line)).collect();
        assert!(more.is_empty(), "after: {statement}\n{more:?}");
    }
    assert_eq!(database.connect().query(OPEN, &[]).unwrap().len(), 2, "grants were lost");
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_run_that_stopped_half_way_is_healed_by_a_whole_one() {
    let _turn = database::turn();
    let statements = statements();
    let cuts = [
        1,
        2,
        5,
        statements.len() / 3,
        statements.len() / 2,
        statements.len() - 2,
        statements.len() - 1,
    ];
    for cut in cuts {
        let database = Database::empty("plain_half");
        open_to_all(&database);
        for statement in &statements[..cut] {
            database.connect_as(OWNER).batch_execute(statement).unwrap();
        }
        load(&database).unwrap_or_else(|error| panic!("after {cut} statements: {error:?}"));
        let mut stranger = database.connect_as(ROLES[0]);
        assert_closed(&database, &mut stranger, &format!("{cut} statements, and all"));
        assert_works(&database);
    }
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn the_file_over_itself_keeps_grants_and_state() {
    let database = Database::new("plain_twice");
    open_to_all(&database);
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute(&format!(
            "SELECT rl_define('l', rl_token_bucket(5, '1 day')), rl_define('l', rl_unlimited(), 'vip'),
                    rl_limit('l', 'k', 3),
                    rl_block('l', 'b', until => 'infinity');
             GRANT USAGE ON SCHEMA ratelimit TO {0}; GRANT EXECUTE ON FUNCTION rl_limit TO {0};
             CREATE TABLE public.posts (author text);
             CREATE TRIGGER l BEFORE INSERT ON public.posts FOR EACH ROW EXECUTE FUNCTION rl_trigger('l', 'key=author');
             GRANT INSERT ON public.posts TO {0}",
            ROLES[0]
        ))
        .unwrap();
    let all = "SELECT (SELECT array_agg(r::text ORDER BY r::text) FROM rateLimits r),
                      (SELECT array_agg(c::text ORDER BY c::text) FROM rl_config c),
                      (SELECT array_agg(b::text ORDER BY b::text) FROM rl_blocks b),
                      (SELECT array_agg(concat(proname, proacl, prosecdef, proconfig) ORDER BY oid::regprocedure::text)
                       FROM pg_proc WHERE pronamespace = 'ratelimit'::regnamespace),
                      (SELECT array_agg(concat(relname, relacl, reloptions) ORDER BY relname) FROM pg_class
                       WHERE relnamespace = 'ratelimit'::regnamespace)";
    let mut seen = || -> Vec<Vec<String>> {
        let row = owner.query_one(all, &[]).unwrap();
        (0..5).map(|n| row.get(n)).collect()
    };
    let before = seen();
    for _ in 0..2 {
        load(&database).unwrap();
        assert_eq!(seen(), before);
    }
    let mut caller = database.connect_as(ROLES[0]);
    let left: f64 =
        caller.query_one("SELECT remaining FROM rl_limit('l', 'k')", &[]).unwrap().get(0);
    assert!((1.0..1.1).contains(&left), "{left}");
    caller.batch_execute("INSERT INTO public.posts VALUES ('k')").unwrap();
    let error = caller.batch_execute("INSERT INTO public.posts VALUES ('k')").unwrap_err();
    assert_eq!(error.code().map(SqlState::code), Some("PT429"));
}

/// Objects of a caller: operators, functions and tables with names that the file uses, first in the search path.
const HOSTILE: &str = r#"
CREATE SCHEMA evil;
GRANT ALL ON SCHEMA evil TO PUBLIC; -- or the owner's functions would not look there
CREATE FUNCTION evil.strike() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'hijacked as %', current_user; END $$;
CREATE FUNCTION evil.strike(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.strike()';
CREATE FUNCTION evil.strike(float8, float8) RETURNS boolean LANGUAGE sql AS 'SELECT evil.strike()';
CREATE FUNCTION evil.strike(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT evil.strike()';
CREATE FUNCTION evil.strike(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT evil.strike()';
CREATE FUNCTION evil.strike(bigint, int) RETURNS boolean LANGUAGE sql AS 'SELECT evil.strike()';
CREATE FUNCTION evil.strike(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT evil.strike()';
CREATE FUNCTION evil.strike(jsonb, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.strike()';
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    'SELECT ''infinity''::timestamptz WHERE evil.strike()';
CREATE FUNCTION evil.octet_length(text) RETURNS int LANGUAGE sql AS 'SELECT 1 WHERE evil.strike()';
CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT ''x'' WHERE evil.strike()';
CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT ''x'' WHERE evil.strike()';
CREATE FUNCTION evil.ceil(float8) RETURNS float8 LANGUAGE sql AS 'SELECT 1.0::float8 WHERE evil.strike()';
CREATE FUNCTION evil.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT ''x'' WHERE evil.strike()';
CREATE FUNCTION evil.cardinality(anyarray) RETURNS int LANGUAGE sql AS 'SELECT 1 WHERE evil.strike()';
CREATE FUNCTION evil.has_function_privilege(name, text, text) RETURNS boolean LANGUAGE sql AS
    'SELECT true WHERE evil.strike()';
CREATE TYPE evil.word AS (word text);
CREATE FUNCTION evil.text(evil.word) RETURNS text LANGUAGE sql AS 'SELECT current_user::text';
CREATE CAST (evil.word AS text) WITH FUNCTION evil.text AS IMPLICIT;
CREATE TEMP TABLE rl_config (name text, key text, config jsonb, parsed text);
CREATE TEMP TABLE rateLimits (name text, key text, shard int, kind "char", value float8, ts timestamptz, added float8,
    prior float8, log timestamptz[], leases bigint[], holds_due timestamptz);
CREATE TEMP TABLE rl_blocks (name text, key text, until timestamptz);
CREATE TEMP VIEW pg_proc AS SELECT evil.strike();
GRANT ALL ON rl_config, rateLimits, rl_blocks, pg_proc TO PUBLIC;
SET search_path = evil, pg_temp, ratelimit, pg_catalog;
"#;

/// Operators, one for each pair of types.
fn hostile_operators() -> String {
    let types = [
        "text, text",
        "float8, float8",
        "int, int",
        "bigint, bigint",
        "bigint, int",
        "timestamptz, timestamptz",
        "jsonb, text",
    ];
    let mut sql = String::new();
    for pair in types {
        let (left, right) = pair.split_once(", ").unwrap();
        for operator in
            ["=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "||", "~", "->", "->>", "?", "%"]
        {
            sql += &format!(
                "CREATE OPERATOR evil.{operator} (FUNCTION = evil.strike, LEFTARG = {left}, RIGHTARG = {right});\n"
            );
        }
    }
    sql
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn what_a_caller_puts_first_in_the_path_changes_nothing() {
    let database = Database::new("plain_hostile");
    open_to_all(&database);
    let caller = ROLES[0];
    database
        .connect_as(OWNER)
        .batch_execute(&format!(
            "SELECT rl_define('bucket', rl_token_bucket(9, '1 day')),
                    rl_define('window', rl_fixed_window(9, '1 day', timezone => 'UTC')),
                    rl_define('sliding', rl_sliding_window(9, '1 day')), rl_define('log', rl_sliding_log(9, '1 day')),
                    rl_define('slots', rl_concurrency(9, '1 day'));
             GRANT USAGE ON SCHEMA ratelimit TO {caller};
             GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ratelimit TO {caller}"
        ))
        .unwrap();
    database
        .connect()
        .batch_execute(&format!("GRANT CREATE, TEMPORARY ON DATABASE plain_hostile TO {caller}"))
        .unwrap();
    let calls = [
        "SELECT ok, remaining = 8 FROM ratelimit.rl_limit('bucket')",
        "SELECT ok, remaining = 8 FROM ratelimit.rl_limit('window')",
        "SELECT ok, remaining = 8 FROM ratelimit.rl_limit('sliding')",
        "SELECT ok, remaining = 8 FROM ratelimit.rl_limit('log')",
        "SELECT ok, lease IS NOT NULL FROM ratelimit.rl_acquire('slots')",
        r#"SELECT ok, limited_by IS NULL FROM ratelimit.rl_limit_all('[{"name": "bucket", "key": "k"}, {"name": "log"}]')"#,
        "SELECT ok, true FROM ratelimit.rl_credit('bucket', '', 1)",
        "SELECT ok, true FROM ratelimit.rl_take('bucket', 'batch', 50)",
        "SELECT ratelimit.rl_define('other', ratelimit.rl_fixed_window(3, '1 month', timezone => 'UTC')), true",
        "SELECT ratelimit.rl_block('bucket', 'b', '1 minute') IS NOT NULL, true",
        "SELECT ratelimit.rl_unblock('bucket', 'b'), true",
        "SELECT ratelimit.rl_reset('log'), true",
        "SELECT ratelimit.rl_headers('bucket', ratelimit.rl_check('bucket')) IS NOT NULL, true",
        "SELECT count(*) > 3, true FROM ratelimit.rl_status()",
        "SELECT ratelimit.rl_value('bucket', 'k') IS NOT NULL, true",
        "SELECT ratelimit.rl_prune() IS NOT NULL, true",
        "SELECT ratelimit.rl_forget('k') IS NOT NULL, true",
        "SELECT ok, true FROM ratelimit.rl_calculate(ratelimit.rl_sliding_log(3, '1 s'), NULL, now())",
    ];
    let mut client = database.connect_as(caller);
    client.batch_execute(HOSTILE).unwrap();
    client.batch_execute(&hostile_operators()).unwrap();
    for sql in calls {
        // Operators in the statement itself would be the caller's, so it has only pg_catalog's.
        let sql = sql
            .replace(" = 8", " OPERATOR(pg_catalog.=) 8")
            .replace(" > 3", " OPERATOR(pg_catalog.>) 3");
        let row = client.query(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        assert!(row[0].get::<_, bool>(0) && row[0].get::<_, bool>(1), "{sql}");
    }
    // The caller's cast runs as the caller.
    let sql = "SELECT ratelimit.rl_define(row('x')::evil.word, '{\"kind\": \"unlimited\"}')";
    client.batch_execute(sql).unwrap();
    let sql = format!("SELECT FROM ratelimit.rl_config WHERE name = '{caller}'");
    assert_eq!(database.connect().query(&sql, &[]).unwrap().len(), 1);
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn what_strangers_put_into_the_schema_is_refused() {
    let _turn = database::turn();
    let stranger = ROLES[0];
    for (what, object) in [
        ("a schema", "SELECT"),
        (
            "a function",
            "CREATE FUNCTION ratelimit.rl_limit(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ),
        (
            "another function",
            "CREATE FUNCTION ratelimit.other() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ),
        ("a table", "CREATE TABLE ratelimit.rl_config (name text)"),
        ("a view", "CREATE VIEW ratelimit.v AS SELECT 1"),
        ("a type", "CREATE TYPE ratelimit.rl_result AS (ok boolean)"),
        ("a domain", "CREATE DOMAIN ratelimit.d AS text"),
        (
            "an operator",
            "CREATE OPERATOR ratelimit.= (FUNCTION = pg_catalog.texteq, LEFTARG = text, RIGHTARG = text)",
        ),
        ("a right to create", "SELECT"),
    ] {
        let database = Database::empty("plain_strange");
        open_to_all(&database);
        let mut server = database.connect();
        let owner = if what == "a schema" { stranger } else { OWNER };
        let create = format!(
            "CREATE SCHEMA ratelimit AUTHORIZATION {owner}; REVOKE ALL ON SCHEMA ratelimit FROM PUBLIC"
        );
        server.batch_execute(&create).unwrap();
        server.batch_execute(&format!("GRANT ALL ON SCHEMA ratelimit TO {stranger}")).unwrap();
        database.connect_as(stranger).batch_execute(object).unwrap();
        if what != "a right to create" {
            server
                .batch_execute(&format!("REVOKE CREATE ON SCHEMA ratelimit FROM {stranger}"))
                .unwrap();
        }
        let error = load(&database).expect_err(what);
        let message = error.as_db_error().unwrap().message().to_owned();
        println!("{what}: {message}");
        assert!(
            message.contains("another role") || message.contains("other roles"),
            "{what}: {message}"
        );
        let left =
            "SELECT FROM pg_proc WHERE pronamespace = 'ratelimit'::regnamespace AND proname ~ '^_'";
        assert_eq!(server.query(left, &[]).unwrap().len(), 0, "{what}");
    }
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn the_clock_is_the_owners() {
    let database = Database::new("plain_clock");
    open_to_all(&database);
    let caller = ROLES[0];
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute(&format!(
            "SELECT rl_define('l', rl_token_bucket(1, '1 day'));
             GRANT USAGE ON SCHEMA ratelimit TO {caller};
             GRANT EXECUTE ON FUNCTION rl_limit, rl_limit_all, rl_check TO {caller}"
        ))
        .unwrap();
    let mut client = database.connect_as(caller);
    let take = "SELECT ok FROM rl_limit('l')";
    assert!(client.query_one(take, &[]).unwrap().get::<_, bool>(0));
    for clock in ["2100-01-01 00:00:00+00", "4102444800000", "nonsense"] {
        let _ = client.batch_execute(&format!("SET ratelimit.clock = '{clock}'"));
        for take in [
            take,
            "SELECT ok FROM rl_check('l')",
            "SELECT ok FROM rl_limit_all('[{\"name\": \"l\"}]')",
        ] {
            match client.query_one(take, &[]) {
                Ok(row) => assert!(!row.get::<_, bool>(0), "{clock}: {take}"),
                Err(error) => assert_eq!(
                    error.code(),
                    Some(&SqlState::INSUFFICIENT_PRIVILEGE),
                    "{clock}: {take}"
                ),
            }
        }
    }
    owner.batch_execute("SET ratelimit.clock = '2100-01-01 00:00:00+00'").unwrap();
    assert!(owner.query_one(take, &[]).unwrap().get::<_, bool>(0));
    // Inherited rights, as in a function of the owner, don't make the session the owner's.
    owner.batch_execute("RESET ratelimit.clock").unwrap();
}

/// Runs a program with the server's settings in its environment; returns its output.
pub fn run(
    program: &str,
    database: &Database,
    arguments: &[&str],
    input: &str,
) -> Result<String, String> {
    use std::io::Write;
    let config = database::config(database.name(), OWNER);
    let host = config.get_hosts().iter().find_map(|host| match host {
        postgres::config::Host::Unix(path) => path.to_str().map(str::to_owned),
        postgres::config::Host::Tcp(name) => Some(name.clone()),
    });
    let mut child = Command::new(program)
        .args(arguments)
        .env("PGHOST", host.unwrap())
        .env("PGPORT", config.get_ports()[0].to_string())
        .env("PGUSER", OWNER)
        .env("PGDATABASE", database.name())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writing.join().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn every_way_to_load_it_works() {
    let _turn = database::turn();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/ratelimit.sql");
    let file = database::file();
    let ways: [(&str, &[&str], &str); 3] = [
        ("a transaction of psql", &["-X", "-q", "-v", "ON_ERROR_STOP=1", "-1", "-f", path], ""),
        ("statement by statement", &["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", path], ""),
        ("standard input", &["-X", "-q", "-v", "ON_ERROR_STOP=1"], &file),
    ];
    for (way, arguments, input) in ways {
        let database = Database::empty("plain_ways");
        open_to_all(&database);
        for round in 0..2 {
            run("psql", &database, arguments, input)
                .unwrap_or_else(|error| panic!("{way}, round {round}: {error}"));
        }
        let mut stranger = database.connect_as(ROLES[0]);
        assert_closed(&database, &mut stranger, way);
        assert_works(&database);
    }
}

/// Whether pg_dump is too old or missing; if so, prints that the test is skipped.
pub fn no_dump(database: &Database) -> bool {
    let Err(error) = run("pg_dump", database, &["--schema=none"], "") else { return false };
    if error.contains("no matching schemas") {
        return false;
    }
    use std::io::Write;
    // Not captured, so that scripts/test counts it.
    let mut stderr = std::io::stderr();
    writeln!(
        stderr,
        "skipped: dumps of the SQL file: {}",
        error.lines().last().unwrap_or_default()
    )
    .unwrap();
    true
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn dumps_are_restored_with_state_and_rights() {
    let database = Database::new("plain_dumped");
    if no_dump(&database) {
        return;
    }
    open_to_all(&database);
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute(&format!(
            "SET ratelimit.clock = '2027-01-15 10:00:00.123457+00';
             SELECT rl_define('odd', rl_token_bucket(0.12345678901234567, '1 day', capacity => 7.123456789012345)),
                    rl_define('calendar', rl_fixed_window(5, '1 month', timezone => 'Europe/Berlin')),
                    rl_define('log', rl_sliding_log(5, '1 hour')), rl_define('slots', rl_concurrency(3, '1 hour')),
                    rl_define('calendar', rl_unlimited(), 'vip');
             SELECT rl_limit('odd', 'k', 0.1), rl_limit('calendar', 'k'), rl_limit('log', 'k', 2),
                    rl_acquire('slots', 'k'),
                    rl_block('odd', 'b', until => 'infinity');
             GRANT USAGE ON SCHEMA ratelimit TO {0}; GRANT EXECUTE ON FUNCTION rl_limit TO {0}",
            ROLES[0]
        ))
        .unwrap();
    // Their states differ if a digit is lost.
    let look = "SET ratelimit.clock = '2027-01-15 10:20:00+00'";
    let all = "SELECT concat(rl_check('odd', 'k'), rl_check('odd', 'b'), rl_check('calendar', 'k'),
                      rl_check('log', 'k'),
                      rl_check('slots', 'k'), rl_check('calendar', 'vip'), rl_value('odd', 'k') - 'now',
                      (SELECT string_agg(config::text, ' ' ORDER BY name, key) FROM rl_config))";
    let seen = |database: &Database| -> String {
        let mut client = database.connect_as(OWNER);
        client.batch_execute(look).unwrap();
        client.query_one(all, &[]).unwrap().get(0)
    };
    let before = seen(&database);

    let dump = run("pg_dump", &database, &[], "").unwrap();
    let restored = Database::empty("plain_restored");
    // The owner may not be allowed to comment on the schema public.
    run("psql", &restored, &["-X", "-q"], &dump).unwrap();
    assert_eq!(seen(&restored), before);
    let mut stranger = restored.connect_as(ROLES[0]);
    stranger.batch_execute("SELECT rl_limit('odd', 'k', 0.1)").unwrap();
    assert_eq!(
        stranger.batch_execute("SELECT rl_reset('odd', 'k')").unwrap_err().code(),
        Some(&SqlState::INSUFFICIENT_PRIVILEGE)
    );
    load(&restored).unwrap();
    assert_works(&restored);

    for digits in ["--extra-float-digits=3", "--extra-float-digits=-15"] {
        let data = run("pg_dump", &database, &["--data-only", digits], "").unwrap();
        let loaded = Database::second("plain_loaded");
        run("psql", &loaded, &["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1"], &data).unwrap();
        if digits.ends_with('3') {
            assert_eq!(seen(&loaded), before);
        }
        assert_works(&loaded);
    }
}

/// Calls that read and write the file's tables in every way.
const EVERY_CALL: &str = "'SELECT ok, remaining FROM rl_limit(''s'', ''k'')',
    'SELECT ok, remaining FROM rl_limit(''s'', ''k'', 2)',
    'SELECT ok, remaining FROM rl_limit(''s'', ''new'')',
    'SELECT ok, remaining FROM rl_limit(''of a child'')',
    'SELECT ok, remaining FROM rl_limit(''s'', ''blocked by a child'')',
    'SELECT ok, remaining FROM rl_check(''s'', ''k'')',
    'SELECT remaining FROM rl_credit(''s'', ''k'', 1)',
    'SELECT taken, remaining FROM rl_take(''s'', ''k'', 2)',
    'SELECT remaining FROM rl_limit_all(''[{\"name\": \"s\", \"key\": \"k\"}, {\"name\": \"s\", \"key\": \"2\"}]'')',
    'SELECT ok, rl_extend(lease), rl_release(lease) FROM rl_acquire(''slots'', ''k'')',
    'SELECT rl_value(''s'', ''k'') -> ''state''',
    'SELECT name, key, remaining FROM rl_status() ORDER BY name, key',
    'SELECT rl_block(''s'', ''k'', until => ''2027-01-01 13:00:00+00'')',
    'SELECT ok FROM rl_limit(''s'', ''k'')',
    'SELECT rl_unblock(''s'', ''k'')',
    'SELECT rl_unblock(''s'', ''blocked by a child'')',
    'SELECT rl_define(''of a child'', rl_token_bucket(1, ''1 hour''))',
    'SELECT rl_undefine(''of a child'')',
    'SELECT rl_reset(''s'', ''k'')',
    'SELECT rl_reset(''s'', ''of a child'')',
    'SELECT rl_reset_keys(''s'')',
    'SELECT rl_prune() FROM set_config(''ratelimit.clock'', ''2027-01-02 12:00:00+00'', true)'";

/// Inheriting tables, empty or with rows of the same keys, change no answer; no call locks them or changes their rows.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn tables_that_inherit_are_left_alone() {
    let database = Database::new("plain_child");
    let mut client = database.connect();
    client
        .batch_execute(&format!(
            "SET ratelimit.clock = '2027-01-01 12:00:00+00';
             SELECT rl_define('s', rl_token_bucket(5, '1 hour')), rl_define('slots', rl_concurrency(3, ttl => '1 minute'));
             SELECT rl_limit('s', 'idle');
             CREATE TABLE calls AS SELECT * FROM unnest(ARRAY[{EVERY_CALL}]) WITH ORDINALITY AS c (call, n);
             CREATE FUNCTION answers(OUT answers text[], OUT locks bigint) LANGUAGE plpgsql AS $$
             DECLARE
                 call text;
                 answer text;
             BEGIN
                 answers := '{{}}';
                 FOR call IN SELECT c.call FROM calls c ORDER BY n LOOP
                     BEGIN
                         EXECUTE format('SELECT string_agg(a::text, '' '') FROM (%s) AS a', call) INTO answer;
                     EXCEPTION WHEN OTHERS THEN
                         answer := sqlstate || ': ' || sqlerrm;
                     END;
                     answers := answers || format('%s: %s', call, answer);
                 END LOOP;
                 locks := (SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                           WHERE l.pid = pg_backend_pid() AND c.relname LIKE 'child%');
             END
             $$;"
        ))
        .unwrap();
    // In a transaction that is rolled back.
    let answers = |client: &mut Client| {
        client.batch_execute("BEGIN").unwrap();
        let row = client.query_one("SELECT answers, locks FROM answers()", &[]).unwrap();
        let kept = "SELECT (SELECT count(*) || ' ' || sum(value) FROM child), (SELECT count(*) FROM child_config),
                           (SELECT count(*) FROM child_blocks)";
        let kept = client.query_one(kept, &[]).ok().map(|row| {
            (row.get::<_, Option<String>>(0), row.get::<_, i64>(1), row.get::<_, i64>(2))
        });
        client.batch_execute("ROLLBACK").unwrap();
        (row.get::<_, Vec<String>>(0), row.get::<_, i64>(1), kept)
    };
    let (without, ..) = answers(&mut client);
    for answer in &without {
        println!("{answer}");
    }
    client
        .batch_execute(
            "CREATE TABLE child () INHERITS (rateLimits); CREATE TABLE child_config () INHERITS (rl_config);
             CREATE TABLE child_blocks () INHERITS (rl_blocks)",
        )
        .unwrap();
    assert_eq!(answers(&mut client), (without.clone(), 0, Some((None, 0, 0))));
    client
        .batch_execute(
            "INSERT INTO child (name, key, kind, value, ts) SELECT n, k, 't', 0, '2027-01-01 12:00:00+00'
             FROM unnest('{s,slots,of a child}'::text[]) n, unnest('{k,2,of a child,\"\"}'::text[]) k;
             INSERT INTO child (name, key, kind, value, ts) SELECT n, 'idle', 't', 77, '2026-01-01 12:00:00+00'
             FROM unnest('{s,of a child}'::text[]) n;
             INSERT INTO child_config (name, key, config) VALUES ('s', 'k', rl_unlimited()), ('s', '', rl_unlimited()),
                 ('of a child', '', rl_token_bucket(1, '1 hour'));
             INSERT INTO child_blocks (name, key, until) VALUES ('s', 'blocked by a child', 'infinity'),
                 ('s', 'k', '2026-01-01 12:00:00+00')",
        )
        .unwrap();
    let kept = Some((Some("14 154".into()), 3, 2));
    assert_eq!(answers(&mut client), (without, 0, kept));
}
