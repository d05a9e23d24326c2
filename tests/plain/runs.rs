//! Runs the file again: over itself, after a restore, in two sessions at once, over older and newer files,
//! and in schemas with words of SQL as names. It doesn't change what it hasn't made.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use postgres::error::SqlState;

use crate::database::{self, Database, OWNER, create_role};
use crate::rights::{ROLES, load, no_dump, open_to_all, run, statements};

/// Rows of text.
fn rows(client: &mut Client, query: &str) -> Vec<String> {
    client.query(query, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// The schema, its functions, tables and types, in the format of the file's own list.
const THERE: &str = "
    SELECT line FROM (SELECT replace(replace(replace(regexp_replace(line, '^([a-z]+) [a-z]+[.]', '\\1 '),
               'double precision', 'float8'), 'timestamp with time zone', 'timestamptz'), 'integer', 'int')
    FROM (SELECT 'function ' || oid::regprocedure FROM pg_proc WHERE pronamespace = 'ratelimit'::regnamespace
          UNION ALL SELECT CASE relkind WHEN 'c' THEN 'type ' ELSE 'table ' END || oid::regclass FROM pg_class
          WHERE relnamespace = 'ratelimit'::regnamespace AND relkind IN ('r', 'c')
          UNION ALL SELECT 'schema') AS l (line)) AS l (line) ORDER BY line COLLATE \"C\"";
const LISTED: &str = "SELECT btrim(kind || ' ' || name) FROM ratelimit.rl_made
                      ORDER BY btrim(kind || ' ' || name) COLLATE \"C\"";

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn the_list_is_what_the_file_makes() {
    let database = Database::new("plain_list");
    let mut client = database.connect();
    client.batch_execute("SET search_path = pg_catalog").unwrap();
    let (there, listed) = (rows(&mut client, THERE), rows(&mut client, LISTED));
    if there != listed {
        let (a, b): (BTreeSet<_>, BTreeSet<_>) = (there.iter().collect(), listed.iter().collect());
        panic!(
            "the list that scripts/plain makes lacks:\n{:#?}\nand has too much:\n{:#?}",
            a.difference(&b).collect::<Vec<_>>(),
            b.difference(&a).collect::<Vec<_>>()
        );
    }
}

/// Grants to others than the owner on what the file makes, one a line; without functions that every role may call.
const OPEN: &str = "
    SELECT format('%s %s to %s', privilege_type, object,
                  CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
    FROM (SELECT p.proname, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)) FROM pg_proc p
          WHERE p.pronamespace = 'ratelimit'::regnamespace
            AND p.proname !~ '^(rl_(token_.*|fixed_.*|sliding_.*|concurrency|unlimited|calculate|key|address_key|version)|_parse|_plan_name|'
                             '_written|_valid)$'
          UNION ALL
          SELECT c.relname, c.relowner, c.relacl FROM pg_class c
          WHERE c.relnamespace = 'ratelimit'::regnamespace AND c.relkind = 'r'
          UNION ALL
          SELECT t.typname, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
          FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
          WHERE t.typnamespace = 'ratelimit'::regnamespace AND c.relkind = 'c' AND t.typname !~ '^rl_(\\w+_)?result$'
          UNION ALL
          SELECT 'schema', n.nspowner, n.nspacl FROM pg_namespace n WHERE n.nspname = 'ratelimit'
         ) AS o (object, owner, acl), aclexplode(acl) WHERE grantee <> owner ORDER BY 1";

/// Whether every role may call the functions that only compute, and use the types of results.
const PURE: &str = "
    SELECT concat(bool_and(has_function_privilege('plain_app', p.oid, 'EXECUTE')),
                  (SELECT bool_and(has_type_privilege('plain_app', t.oid, 'USAGE')) FROM pg_type t
                   WHERE t.typnamespace = 'ratelimit'::regnamespace AND t.typname ~ '^rl_(\\w+_)?result$')) FROM pg_proc p
    WHERE p.pronamespace = 'ratelimit'::regnamespace
      AND p.proname ~ '^(rl_(token_.*|fixed_.*|sliding_.*|concurrency|unlimited|calculate|key|address_key|version)|_plan_name|_written|_valid)$'";

/// Runs the file by psql, as the owner; returns its messages.
fn run_file(database: &Database) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/ratelimit.sql");
    let script = format!("psql -X -q -1 -v ON_ERROR_STOP=1 -f '{path}' 2>&1");
    run("bash", database, &["-c", &script], "").unwrap_or_else(|error| panic!("{error}"))
}

/// Restores the file in every way, and runs it: it revokes what the restore and default privileges have granted,
/// reports that, and keeps other grants.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_restored_file_is_closed_by_the_next_run() {
    let source = Database::new("plain_source");
    if no_dump(&source) {
        return;
    }
    let mut client = source.connect();
    for name in ROLES.iter().chain(&["plain_app"]) {
        create_role(&mut client, name);
    }
    source
        .connect_as(OWNER)
        .batch_execute(&format!(
            "SELECT rl_define('l', rl_token_bucket(5, '365 days')), rl_limit('l', 'k', 2);
             CREATE FUNCTION ratelimit.rl_mine() RETURNS int LANGUAGE sql AS 'SELECT 1';
             GRANT USAGE ON SCHEMA ratelimit TO {0}, plain_app; GRANT EXECUTE ON FUNCTION rl_limit, rl_check TO {0};
             GRANT EXECUTE ON FUNCTION rl_headers TO PUBLIC; GRANT SELECT ON rl_config TO {0} WITH GRANT OPTION",
            ROLES[1]
        ))
        .unwrap();
    load(&source).unwrap();
    // Grants since the last run: one that default privileges would give, and one that they would not.
    source
        .connect_as(OWNER)
        .batch_execute(&format!(
            "GRANT EXECUTE ON FUNCTION rl_credit TO plain_app; GRANT EXECUTE ON FUNCTION rl_value TO {}",
            ROLES[0]
        ))
        .unwrap();

    let app = ["EXECUTE rl_credit to plain_app", "USAGE schema to plain_app"];
    let recorded = [
        "EXECUTE rl_check to plain_authenticated",
        "EXECUTE rl_limit to plain_authenticated",
        "SELECT rl_config to plain_authenticated",
        "USAGE schema to plain_authenticated",
    ];
    for (user, dump, restore, privileges, open) in [
        ("postgres", "pg_dump", "psql -X -q -v ON_ERROR_STOP=1", true, true),
        ("postgres", "pg_dump -Fc", "pg_restore -e", true, true),
        (OWNER, "pg_dump -Fc", "pg_restore -e", true, true),
        (OWNER, "pg_dump --no-comments", "psql -X -q -v ON_ERROR_STOP=1", true, true),
        (OWNER, "pg_dump -Fc", "pg_restore -e --no-privileges", false, true),
        (OWNER, "pg_dump --no-privileges", "psql -X -q -v ON_ERROR_STOP=1", false, true),
        ("postgres", "pg_dump -Fc", "pg_restore -e --no-privileges --no-comments", false, true),
        (OWNER, "pg_dump -Fc", "pg_restore -e", true, false),
        (OWNER, "pg_dump -Fc", "pg_restore -e --no-privileges", false, false),
    ] {
        let way = format!("{dump} | {restore} as {user}, default privileges: {open}");
        let target = Database::empty("plain_target");
        if open {
            open_to_all(&target);
            for kind in ["TABLES", "FUNCTIONS", "TYPES", "SCHEMAS"] {
                let given = format!("ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO {}", ROLES[0]);
                target.connect().batch_execute(&given).unwrap();
            }
        }
        let pipe = format!(
            "set -o pipefail; {dump} -U {user} -n ratelimit -d plain_source | {restore} -U {user} -d plain_target"
        );
        run("bash", &target, &["-c", &pipe], "").unwrap_or_else(|error| panic!("{way}: {error}"));
        let mut client = target.connect();
        let before = rows(&mut client, OPEN);
        let said = run_file(&target);
        let after: BTreeSet<_> = rows(&mut client, OPEN).into_iter().collect();
        let mut wanted: BTreeSet<String> = BTreeSet::from(["EXECUTE rl_headers to PUBLIC".into()]);
        if privileges {
            wanted.extend(app.map(String::from));
        }
        if privileges || open && user == OWNER {
            wanted.extend(recorded.map(String::from));
        }
        if !open {
            // No default privilege gives it.
            wanted.extend(privileges.then(|| format!("EXECUTE rl_value to {}", ROLES[0])));
        }
        // The owner's own function keeps its grants.
        let mine = |line: &&String| line.starts_with("EXECUTE rl_mine ");
        let (after_mine, before_mine) = (after.iter().filter(mine), before.iter().filter(mine));
        assert!(after_mine.eq(before_mine), "{way}");
        let after: BTreeSet<_> = after.iter().filter(|line| !mine(line)).cloned().collect();
        assert_eq!(after, wanted, "{way}\n{said}");
        assert_eq!(
            said.contains("NOTICE:  revoked what a restore or default privileges had granted"),
            before.len() > after.len() + 1,
            "{way}: {said}"
        );
        if open {
            assert!(
                said.contains("EXECUTE on function rl_define from plain_anon"),
                "{way}: {said}"
            );
            assert!(said.contains("CREATE, USAGE on schema from plain_anon"), "{way}: {said}");
        }
        assert_eq!(rows(&mut client, PURE), ["tt"], "{way}");
        let option = "SELECT has_table_privilege('plain_authenticated', 'ratelimit.rl_config',
                      'SELECT WITH GRANT OPTION')::text";
        assert_eq!(rows(&mut client, option), [privileges.to_string()], "{way}");
        let left = "SELECT floor(remaining)::text FROM ratelimit.rl_check('l', 'k')";
        assert_eq!(rows(&mut client, left), ["3"], "{way}");
        // The next run keeps grants made now, PUBLIC's too.
        assert_eq!(run_file(&target), "", "{way}");
        let grant = format!("GRANT EXECUTE ON FUNCTION ratelimit.rl_value TO {}, PUBLIC", ROLES[0]);
        target.connect_as(OWNER).batch_execute(&grant).unwrap();
        let granted = rows(&mut client, OPEN);
        assert_eq!(run_file(&target), "", "{way}");
        assert_eq!(rows(&mut client, OPEN), granted, "{way}");
    }
}

/// The owner's functions, procedure, aggregate, table and comments, made before the file and after it.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn what_the_file_has_not_made_stays_as_it_is() {
    const MINE: &str = "
        CREATE FUNCTION ratelimit.rl_mine() RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE FUNCTION ratelimit.rl_limit(who int) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE FUNCTION ratelimit._check(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE PROCEDURE ratelimit.rl_work() LANGUAGE sql AS 'SELECT 1';
        CREATE AGGREGATE ratelimit.rl_sum(int) (SFUNC = int4pl, STYPE = int);
        CREATE TABLE ratelimit.notes (note text); GRANT ALL ON ratelimit.notes TO plain_app;
        CREATE TYPE ratelimit.pair AS (a int, b int);
        GRANT EXECUTE ON FUNCTION ratelimit.rl_mine TO plain_app;";
    let mine = "SELECT concat(oid::regprocedure, proacl, prosecdef, proconfig, obj_description(oid, 'pg_proc'))
                FROM pg_proc WHERE pronamespace = 'ratelimit'::regnamespace
                AND (proname IN ('rl_mine', 'rl_work', 'rl_sum') OR pronargs = 1 AND proname IN ('rl_limit', '_check'))
                UNION ALL SELECT concat(relname, relacl) FROM pg_class WHERE relname = 'notes' ORDER BY 1";
    for first in [true, false] {
        let _turn = database::turn();
        let database = Database::empty("plain_mine");
        create_role(&mut database.connect(), "plain_app");
        let mut owner = database.connect_as(OWNER);
        owner
            .batch_execute("CREATE SCHEMA ratelimit; GRANT USAGE ON SCHEMA ratelimit TO plain_app")
            .unwrap();
        if !first {
            load(&database).unwrap();
        }
        owner.batch_execute(MINE).unwrap();
        let before = rows(&mut owner, mine);
        assert_eq!(before.len(), 6);
        load(&database).unwrap();
        assert_eq!(rows(&mut owner, mine), before);
        database.connect_as("plain_app").batch_execute("SELECT ratelimit.rl_mine()").unwrap();

        // Comments don't identify the file's objects.
        owner
            .batch_execute(
                "GRANT EXECUTE ON FUNCTION ratelimit.rl_check TO plain_app;
                 COMMENT ON FUNCTION ratelimit.rl_check IS NULL; COMMENT ON FUNCTION ratelimit._now() IS 'mine';
                 COMMENT ON FUNCTION ratelimit.rl_mine IS 'rate limiter, internal'",
            )
            .unwrap();
        load(&database).unwrap();
        let open = rows(&mut owner, OPEN);
        assert!(open.contains(&"EXECUTE rl_check to plain_app".into()), "{open:?}");
        assert!(open.contains(&"EXECUTE rl_mine to plain_app".into()), "{open:?}");
    }
}

/// In one transaction, and statement by statement.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn runs_at_once_wait_for_each_other() {
    for round in 0..6 {
        let _turn = database::turn();
        let database = Database::empty("plain_at_once");
        let said: Vec<_> = thread::scope(|scope| {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/ratelimit.sql");
            let started: Vec<_> = (0..3)
                .map(|n| {
                    let database = &database;
                    scope.spawn(move || {
                        let mut arguments = vec!["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", path];
                        arguments.extend(((n + round) % 2 == 0).then_some("-1"));
                        run("psql", database, &arguments, "")
                    })
                })
                .collect();
            started.into_iter().map(|run| run.join().unwrap()).collect()
        });
        for said in said {
            said.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        let locks =
            rows(&mut database.connect(), "SELECT mode FROM pg_locks WHERE locktype = 'advisory'");
        assert!(locks.is_empty(), "{locks:?}");
    }
}

/// After a failed run the session keeps the lock until a run in it succeeds or it ends; in a transaction, until that
/// ends.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_run_that_failed_gives_its_lock_back() {
    let _turn = database::turn();
    let database = Database::empty("plain_cut");
    let locks_of_session =
        "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND database =
                (SELECT oid FROM pg_database WHERE datname = current_database())";
    let mut look = database.connect();
    let statements = statements();
    let mut editor = database.connect_as(OWNER);
    for _ in 0..2 {
        for statement in &statements[..statements.len() / 2] {
            editor.batch_execute(statement).unwrap();
        }
        assert_eq!(rows(&mut look, locks_of_session), ["1"]);
    }
    for statement in &statements {
        editor.batch_execute(statement).unwrap();
    }
    assert_eq!(rows(&mut look, locks_of_session), ["0"]);

    let mut failed = statements[..statements.len() / 2].concat();
    failed += "SELECT 1 / 0;";
    let error = editor.batch_execute(&failed).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DIVISION_BY_ZERO));
    editor.batch_execute("SELECT 1").unwrap(); // the error comes before the end of the transaction
    assert_eq!(rows(&mut look, locks_of_session), ["0"], "a string of statements is a transaction");
    load(&database).unwrap();
}

/// A name that is a word of SQL: each for the first statements, which make the schema and the types, and some for all.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_word_of_sql_can_be_the_schema() {
    let _turn = database::turn();
    let database = Database::empty("plain_words");
    let mut client = database.connect_as(OWNER);
    let words =
        rows(&mut client, "SELECT word FROM pg_get_keywords() WHERE catcode <> 'U' ORDER BY 1");
    assert!(words.len() > 100, "{words:?}");
    let (first, file) = (statements()[..14].concat(), database::file());
    assert!(first.contains("_decision"), "{first}");
    for word in &words {
        client
            .batch_execute(&format!("BEGIN; {}; ROLLBACK", in_schema(&first, word)))
            .unwrap_or_else(|error| panic!("{word}: {error:?}"));
    }
    for word in ["limit", "user", "order", "limits", "_1"] {
        let file = in_schema(&file, word);
        for _ in 0..2 {
            client.batch_execute(&file).unwrap_or_else(|error| panic!("{word}: {error:?}"));
        }
        let calls = format!(
            "SELECT \"{word}\".rl_define('l', \"{word}\".rl_token_bucket(9, '1 day'));
             SELECT \"{word}\".rl_prune(), \"{word}\".rl_limit_all('[{{\"name\": \"l\"}}]'),
                    \"{word}\".rl_headers('l', r, style => 'github') FROM \"{word}\".rl_limit('l') AS r"
        );
        client.batch_execute(&calls).unwrap_or_else(|error| panic!("{word}: {error:?}"));
        let headers = format!(
            "SELECT \"{word}\".rl_headers('l', r, style => 'github')::text FROM \"{word}\".rl_check('l') r"
        );
        let headers = rows(&mut client, &headers);
        assert!(headers[0].contains("x-ratelimit-limit"), "{word}: {headers:?}");
        let error =
            client.batch_execute(&format!("SELECT \"{word}\".rl_limit('none')")).unwrap_err();
        let hint = error.as_db_error().unwrap().hint().unwrap_or_default().to_owned();
        assert!(hint.contains(&format!("SELECT \"{word}\".rl_define(")), "{hint}");
        let update = format!("UPDATE \"{word}\".rateLimits SET value = 'nan'");
        client.batch_execute(&update).unwrap();
        let call = format!("SELECT \"{word}\".rl_limit('l')");
        let error = client.batch_execute(&call).unwrap_err();
        let hint = error.as_db_error().unwrap().hint().unwrap_or_default().to_owned();
        assert!(hint.contains(&format!("SELECT key FROM \"{word}\".rateLimits ")), "{hint}");
        let comments = format!(
            "SELECT obj_description('\"{word}\".rl_stats()'::regprocedure, 'pg_proc')
             UNION ALL SELECT 'none: ' || oid::regprocedure FROM pg_proc
             WHERE pronamespace = '\"{word}\"'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL"
        );
        assert_eq!(rows(&mut client, &comments), ["only in the extension ratelimit"], "{word}");
        client.batch_execute(&format!("DROP SCHEMA \"{word}\" CASCADE")).unwrap();
    }
}

/// The file for another schema, as scripts/plain makes it.
fn in_schema(file: &str, schema: &str) -> String {
    [("ratelimit.r", ".r"), ("ratelimit._", "._"), ("\"ratelimit\"", "")]
        .iter()
        .fold(file.to_owned(), |file, (written, rest)| {
            file.replace(written, &format!("\"{schema}\"{rest}"))
        })
}

/// State, definitions, blocks and settings.
const KEPT: &str = "
    SELECT concat((SELECT string_agg(concat_ws(' ', r.name, r.key, r.kind, r.value, r.ts, r.log, r.leases), ', ' ORDER BY r.name, r.key)
         FROM ratelimit.rateLimits r),
        (SELECT string_agg(concat(name, key, config), ' ' ORDER BY name, key) FROM ratelimit.rl_config),
        (SELECT string_agg(concat_ws(' ', name, key, until), ' ' ORDER BY name, key) FROM ratelimit.rl_blocks),
        (SELECT string_agg(s::text, ' ' ORDER BY s::text) FROM ratelimit.rl_settings s),
        ratelimit.rl_check('bucket', 'k'), ratelimit.rl_check('month', 'k'), ratelimit.rl_check('bucket', 'vip'),
        ratelimit.rl_check('bucket', 'blocked'), ratelimit.rl_check('nothing', 'k'),
        ratelimit.rl_check('sliding', 'k'))";

/// From the present version to a newer one, whose configs have one more field.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_newer_file_keeps_what_is_there_and_an_older_one_is_refused() {
    let _turn = database::turn();
    let database = Database::empty("plain_versions");
    create_role(&mut database.connect(), "plain_app");
    create_role(&mut database.connect(), ROLES[0]);
    // Default privileges would open new objects.
    open_to_all(&database);
    let mut owner = database.connect_as(OWNER);
    let present = database::file();
    owner.batch_execute(&present).unwrap();
    owner
        .batch_execute(&format!(
            "SET ratelimit.clock = '2027-01-15 10:00:00.123457+00';
             SELECT rl_define('bucket', rl_token_bucket(0.1, '7 s', capacity => 12)),
                    rl_define('slots', rl_concurrency(3, '1 h')), rl_define('sliding', rl_sliding_window(3, '1 h')),
                    rl_define('nothing', rl_fixed_window(5, '1 h', capacity => 0) || '{{\"overage\": true}}'),
                    rl_define('month', rl_fixed_window(5, '1 month', timezone => 'Europe/Berlin')),
                    rl_define('bucket', rl_unlimited(), 'vip'), rl_block('bucket', 'blocked', until => 'infinity');
             SELECT rl_limit('bucket', 'k', 2.5), rl_limit('month', 'k', 2), rl_acquire('slots', 'k'),
                    rl_limit('sliding', 'k'), rl_limit('nothing', 'k', 3);
             INSERT INTO rl_settings VALUES ('error_style', 'pgrst');
             GRANT USAGE ON SCHEMA ratelimit TO plain_app, {0}; GRANT EXECUTE ON FUNCTION rl_limit TO plain_app, {0};
             GRANT EXECUTE ON FUNCTION rl_check TO PUBLIC; GRANT SELECT ON rl_config TO plain_app;
             GRANT EXECUTE ON FUNCTION rl_headers TO plain_app WITH GRANT OPTION;
             GRANT EXECUTE ON FUNCTION rl_block TO plain_app;
             CREATE TABLE public.posts (author text);
             CREATE TRIGGER l BEFORE INSERT ON public.posts FOR EACH ROW
             EXECUTE FUNCTION rl_trigger('month', 'key=author')",
            ROLES[0]
        ))
        .unwrap();
    let (kept, open) = (rows(&mut owner, KEPT), rows(&mut owner, OPEN));
    assert_eq!(open.len(), 8, "{open:?}");

    let newer = present
        .replace("version CONSTANT int := 1;", "version CONSTANT int := 2;")
        .replace("SELECT 1 WHERE", "SELECT 2 WHERE")
        .replace("v.version = 1", "v.version = 2")
        .replace("'kind text, rate", "'kind text, more text, rate")
        .replace("    l.tolerance := 1e-9 *", "    l.more := 'more';\n    l.tolerance := 1e-9 *");
    assert!(
        newer.matches("more").count() >= present.matches("more").count() + 3,
        "the text has changed"
    );
    for (file, version, parsed) in [
        (&present, 1, "(\"token bucket\",0.1,"),
        (&present, 1, "(\"token bucket\",0.1,"),
        (&newer, 2, "(\"token bucket\",more,0.1,"),
        (&newer, 2, "(\"token bucket\",more,0.1,"),
    ] {
        owner.batch_execute(file).unwrap_or_else(|error| panic!("{version}: {error:?}"));
        assert_eq!(rows(&mut owner, KEPT), kept, "{version}");
        assert_eq!(rows(&mut owner, OPEN), open, "{version}");
        let text = "SELECT parsed FROM ratelimit.rl_config WHERE name = 'bucket' AND key = ''";
        let text = rows(&mut owner, text);
        assert!(text[0].starts_with(parsed), "{text:?}");
        let installed = "SELECT max(version)::text FROM ratelimit.rl_installed";
        assert_eq!(rows(&mut owner, installed), [version.to_string()]);
        // No function of the older version is left.
        owner.batch_execute("SET search_path = pg_catalog").unwrap();
        assert_eq!(rows(&mut owner, THERE), rows(&mut owner, LISTED), "{version}");
        owner.batch_execute("RESET search_path").unwrap();
        database
            .connect_as("plain_app")
            .batch_execute("SELECT rl_limit('slots2', config => rl_unlimited())")
            .unwrap();
        owner
            .batch_execute(
                "INSERT INTO public.posts VALUES ('other'); SELECT rl_reset('month', 'other')",
            )
            .unwrap();
        owner.batch_execute("DELETE FROM rateLimits WHERE key = 'other'").unwrap();
    }
    let error = owner.batch_execute(&present).unwrap_err();
    let message = error.as_db_error().unwrap().message().to_owned();
    assert_eq!(message, "version 2 is installed, and this file is version 1");

    // A version that refuses a config names it, and changes nothing.
    let strict = newer.replace("version CONSTANT int := 2;", "version CONSTANT int := 3;").replace(
        "    l.more := 'more';\n",
        "    PERFORM ratelimit._bad_config('it is old', 'a new one');\n",
    );
    let error = owner.batch_execute(&strict).unwrap_err();
    let message = error.as_db_error().unwrap().message().to_owned();
    assert!(message.ends_with("\" is no longer allowed: it is old"), "{message}");
    assert_eq!(rows(&mut owner, KEPT), kept);
}

/// A function that is no longer made is dropped; a view on it stops the run.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_function_that_is_no_longer_made_is_dropped() {
    let _turn = database::turn();
    const LISTED: &str = "function rl_key(text[])";
    const PART: &str = "-- Functions that only the extension has,";
    let mut older = database::file();
    for (part, with) in [
        (LISTED, format!("{LISTED}\nfunction rl_old(text)")),
        (
            PART,
            format!(
                "CREATE OR REPLACE FUNCTION ratelimit.rl_old(text) RETURNS text LANGUAGE sql AS 'SELECT 1';\n{PART}"
            ),
        ),
    ] {
        assert_eq!(older.matches(part).count(), 1, "{part}");
        older = older.replace(part, &with);
    }
    let database = Database::empty("plain_no_longer");
    let mut owner = database.connect_as(OWNER);
    owner.batch_execute(&older).unwrap();
    owner.batch_execute("CREATE VIEW public.old AS SELECT ratelimit.rl_old('k') AS old").unwrap();
    const THEM: &str = "SELECT proname::text FROM pg_proc WHERE proname = 'rl_old'
                        UNION ALL SELECT name FROM ratelimit.rl_made WHERE name ~ 'rl_old'";
    let was = rows(&mut owner, THEM);
    assert_eq!(was, ["rl_old", "rl_old(text)"]);
    let refused = load(&database).unwrap_err();
    let refused = refused.as_db_error().unwrap();
    assert_eq!(refused.code(), &SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
    let detail = refused.detail().unwrap();
    assert!(detail.contains("view public.old depends on function "), "{detail}");
    assert_eq!(rows(&mut owner, THEM), was);
    owner.batch_execute("DROP VIEW public.old").unwrap();
    load(&database).unwrap();
    assert_eq!(rows(&mut owner, THEM), [""; 0]);
}

/// The types of results get attributes at their end, under what uses them; one that was altered is refused.
/// The end of the attributes of rl_status_result.
const LAST: &str = "held double precision');";

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn results_grow_at_their_end() {
    let mut newer = database::file();
    assert_eq!(newer.matches(LAST).count(), 1);
    newer = newer.replace(LAST, "held double precision, more int');");
    let database = Database::new("plain_results");
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute(
            "SELECT rl_define('l', rl_token_bucket(5, '1 day')), rl_block('l', 'k', '1 hour');
             CREATE TABLE public.seen (s rl_status_result, list rl_status_result[]);
             CREATE TABLE public.typed OF rl_status_result;
             INSERT INTO public.seen SELECT s, ARRAY[s] FROM rl_status() AS s;
             CREATE VIEW public.every AS SELECT * FROM rl_status();
             CREATE FUNCTION public.body() RETURNS text BEGIN ATOMIC SELECT limited_by FROM rl_status(); END;
             CREATE FUNCTION public.variable() RETURNS text LANGUAGE plpgsql AS $$
             DECLARE s ratelimit.rl_status_result;
             BEGIN SELECT * INTO s FROM rl_status(); RETURN s.limited_by; END $$",
        )
        .unwrap();
    const USES: &str = "SELECT concat_ws(' ', (s).limited_by, list[1].limited_by, (SELECT limited_by FROM public.every),
                               public.body(), public.variable()) FROM public.seen";
    let blocked = [["block"; 5].join(" ")];
    assert_eq!(rows(&mut owner, USES), blocked);
    owner.batch_execute(&newer).unwrap();
    assert_eq!(rows(&mut owner, USES), blocked);
    let more = "SELECT concat_ws(' ', more IS NULL, (SELECT (s).more IS NULL FROM public.seen)) FROM rl_status()";
    assert_eq!(rows(&mut owner, more), ["t t"]);
    // An older file, and other alterations.
    for alter in [
        "SELECT 1",
        "ALTER TYPE rl_status_result DROP ATTRIBUTE more CASCADE, DROP ATTRIBUTE key CASCADE",
        "ALTER TYPE rl_status_result RENAME ATTRIBUTE held TO hold CASCADE",
    ] {
        owner.batch_execute(alter).unwrap();
        let error = load(&database).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::DATATYPE_MISMATCH, "{alter}");
        assert_eq!(error.message(), "type ratelimit.rl_status_result has been altered");
    }
}

/// A newer file gives a table a column, a result an attribute, and the schema a function while sessions call: a call
/// works, or fails once and takes nothing.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn calls_go_on_while_a_newer_file_adds_to_what_there_is() {
    const PART: &str = "-- Functions that only the extension has,";
    const LISTED: &str = "\nfunction rl_version()";
    let later = "ALTER TABLE ratelimit.rateLimits ADD COLUMN IF NOT EXISTS later text;
        CREATE OR REPLACE FUNCTION ratelimit.rl_later() RETURNS text LANGUAGE sql AS $$ SELECT 'later' $$;
        COMMENT ON FUNCTION ratelimit.rl_later IS 'of a later file';\n";
    let mut newer = database::file();
    for (there, more) in [
        (LAST, "held double precision, more int');".into()),
        (LISTED, format!("\nfunction rl_later(){LISTED}")),
        (PART, format!("{later}{PART}")),
    ] {
        assert_eq!(newer.matches(there).count(), 1, "{there}");
        newer = newer.replace(there, &more);
    }
    let database = Database::new("plain_later");
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute("SELECT rl_define('one', rl_token_bucket(1e6, '36500 days')), rl_define('two', rl_fixed_window(1e6, '36500 days'))")
        .unwrap();
    let stop = AtomicBool::new(false);
    let taken: usize = thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|n| {
                let (mut client, stop) = (database.connect(), &stop);
                let call = [
                    "SELECT rl_limit('one', 'k'), rl_limit('two', 'k')",
                    "SELECT * FROM rl_limit_all('[{\"name\": \"one\", \"key\": \"k\"}, {\"name\": \"two\", \"key\": \"k\"}]')",
                    "SELECT * FROM rl_status('one')",
                ][n % 3];
                scope.spawn(move || {
                    let mut taken = 0;
                    while !stop.load(Ordering::Relaxed) {
                        match client.batch_execute(call) {
                            Ok(()) => taken += usize::from(n % 3 < 2),
                            Err(error) => {
                                let code = error.as_db_error().unwrap().code();
                                assert!(FAIL_ONCE.contains(&code.code()), "{error:?}");
                            }
                        }
                    }
                    taken
                })
            })
            .collect();
        let file = [&newer, &newer].map(|file| {
            thread::sleep(Duration::from_millis(200));
            owner.batch_execute(file)
        });
        stop.store(true, Ordering::Relaxed);
        let taken = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        file.into_iter().for_each(|run| run.unwrap());
        taken
    });
    let left = "SELECT round(capacity - remaining)::text FROM (VALUES ('one'), ('two')) AS n (name), rl_check(name, 'k')";
    assert_eq!(rows(&mut owner, left), [taken.to_string(), taken.to_string()]);
    let more = "SELECT concat_ws(' ', rl_later(), more IS NULL) FROM rl_status('one')";
    assert_eq!(rows(&mut owner, more), ["later t"]);
}

/// What docs/sql-file.md says a call may fail with that has waited for a run of the file.
const FAIL_ONCE: [&str; 5] = ["XX000", "42883", "42703", "42P13", "40001"];

/// A call of an earlier version that goes on after an upgrade can have read a limit that seems to have no kind.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_limit_without_a_kind_is_not_an_unlimited_one() {
    let database = Database::new("plain_no_kind");
    let mut owner = database.connect_as(OWNER);
    for function in [
        "_initial(NULL, 0, 0)",
        "_decide(NULL, ROW(1, 0, NULL, NULL, NULL, NULL)::_state, 0, 1, false)",
        "_idle(NULL, NULL, 0, 'l', '')",
    ] {
        let error = owner.batch_execute(&format!("SELECT {function}")).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{function}: {error}");
        assert_eq!(error.message(), "the rate limiter was updated during the call");
        assert_eq!(error.hint(), Some("Repeat the call."));
    }
}
