//! Lints of the SQL file: plpgsql_check, which `supabase db lint` runs; short lines and functions; ASCII, so that it
//! loads in any encoding.

use std::process::Command;

use crate::database::{self, Database};
use crate::rights::statements;

/// All remarks but two kinds: several OUT values of composite types are meant, and two functions that only the owner
/// may call execute parts of the file's own text.
const REMARKS: &str = "
    SELECT format('%s: %s %s %s %s', c.functionid::regprocedure, c.level, c.sqlstate, c.message, c.detail)
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'plpgsql',
         plpgsql_check_function_tb(p.oid, security_warnings => true,
             relid => CASE p.prorettype WHEN 'trigger'::regtype THEN 'public.limited'::regclass ELSE 0 END) c
    WHERE p.pronamespace = 'ratelimit'::regnamespace
      AND c.message !~ '^composite OUT variable .* is not single argument$'
      AND NOT (c.level = 'security' AND p.proname IN ('_close', '_make_type'))";

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn plpgsql_check_has_no_remarks() {
    let database = Database::new("plain_lint");
    let mut client = database.connect();
    client
        .batch_execute("CREATE EXTENSION plpgsql_check SCHEMA public; CREATE TABLE public.limited (author text)")
        .unwrap();
    client.batch_execute("SET search_path = public").unwrap();
    let remarks: Vec<String> =
        client.query(REMARKS, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(remarks.is_empty(), "{}", remarks.join("\n"));
}

/// Supabase's advisor calls functions without a search_path "function search path mutable". All functions that others
/// may call have one.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn what_others_may_call_has_a_search_path() {
    let database = Database::new("plain_lint_path");
    let mut client = database.connect();
    let sql = "SELECT p.oid::regprocedure::text, p.proname LIKE 'rl\\_%' FROM pg_proc p
               WHERE p.pronamespace = 'ratelimit'::regnamespace
                 AND NOT EXISTS (SELECT FROM unnest(p.proconfig) s WHERE s LIKE 'search_path=%')";
    let rows = client.query(sql, &[]).unwrap();
    println!("{} functions have no search_path", rows.len());
    let open: Vec<String> = rows.iter().filter(|row| row.get(1)).map(|row| row.get(0)).collect();
    assert!(open.is_empty(), "{open:?}");
    let sql = "SELECT p.oid::regprocedure::text FROM pg_proc p
               WHERE p.pronamespace = 'ratelimit'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')
                 AND NOT EXISTS (SELECT FROM unnest(p.proconfig) s WHERE s LIKE 'search_path=%')";
    let rows = client.query(sql, &[]).unwrap();
    let open: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn its_lines_and_functions_are_short() {
    let text = database::file();
    let lines: Vec<&str> = text.lines().collect();
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap();
    println!("{} bytes, {} lines of at most {longest} characters", text.len(), lines.len());
    assert!(longest <= 120, "a line of {longest} characters");
    for statement in statements() {
        let lines = statement.lines().count();
        let first = statement.lines().find(|line| !line.starts_with("--")).unwrap_or_default();
        assert!(lines <= 100 || !first.contains("FUNCTION"), "{lines} lines: {first}");
    }
}

#[test]
fn the_file_is_ascii() {
    for (n, line) in database::file().lines().enumerate() {
        assert!(line.is_ascii(), "line {}: {line}", n + 1);
    }
}

/// Some of these encodings have no micro sign; one client is LATIN1.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn it_loads_and_answers_in_every_encoding() {
    let server = std::env::var("RATELIMIT_TEST_SERVER").unwrap();
    for (encoding, client, has_micro) in [
        ("LATIN2", "LATIN2", false),
        ("KOI8R", "KOI8R", false),
        ("EUC_JP", "EUC_JP", false),
        ("LATIN1", "LATIN1", true),
        ("UTF8", "LATIN1", true),
    ] {
        let _database = Database::in_encoding("plain_encoding", encoding);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/ratelimit.sql");
        let psql = |arguments: &[&str]| {
            let output = Command::new("psql")
                .args(["-X", "-q", "-A", "-t", "-1", "-v", "ON_ERROR_STOP=1", "-d"])
                .arg(format!("{server} dbname=plain_encoding"))
                .args(arguments)
                .env("PGCLIENTENCODING", client)
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{encoding}: {errors}");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        psql(&["-f", file]);
        let micro = if has_micro { "chr(181)" } else { "'u'" };
        let answer = psql(&[
            "-c",
            &format!(
                "SELECT ratelimit.rl_define('l', jsonb_build_object('kind', 'fixed window', 'rate', 3, 'start', 0,
                        'period', '1500000 ' || {micro} || 's'));
                 SELECT remaining FROM ratelimit.rl_limit('l', 'k');
                 SELECT (parsed::ratelimit._limit).period FROM ratelimit.rl_config"
            ),
        ]);
        assert_eq!(
            answer.split_whitespace().collect::<Vec<_>>(),
            ["t", "2", "1500000"],
            "{encoding}"
        );
    }
}
