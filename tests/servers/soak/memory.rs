//! A session that runs out of memory: its statement fails, and no other session.

use std::io::Write;

use postgres::Client;
use postgres::error::SqlState;

use crate::own::Server;
use crate::scale;

/// Limits the memory of this backend to `megabytes` more than it has.
/// No row is written to the program, which may end before it would read one.
fn limit_memory(backend: &mut Client, megabytes: u64) {
    // The library and what a first call needs are there already.
    backend
        .batch_execute(
            "SELECT rl_limit('bucket', 'first'), rl_check_all('[{\"name\": \"bucket\"}]')",
        )
        .unwrap();
    let now = "$(($(cut -d ' ' -f 1 /proc/$PPID/statm) * $(getconf PAGESIZE)";
    let limit = format!("prlimit --pid $PPID --as={now} + {}))", megabytes << 20);
    backend
        .batch_execute(&format!(
            "COPY (SELECT WHERE false) TO PROGRAM '{}'",
            limit.replace('\'', "''")
        ))
        .unwrap();
}

/// Starts a server with a witness session, which a crash of any other would end, and a limited session.
fn sessions(megabytes: u64) -> (Server, Client, Client) {
    let server = Server::start();
    let mut witness = server.client();
    witness
        .batch_execute(
            "SELECT rl_define('bucket', rl_token_bucket(1e-300, '1 day', capacity => 100));
             SELECT rl_define('log', rl_sliding_log(10000, '1000 days'));
             SELECT rl_limit('log', n::text, 10000) FROM generate_series(1, 50) n;
             SELECT rl_define('shards', rl_token_bucket(1e9, '1 day', shards => 1024));
             CREATE TABLE used (who text);
             CREATE TRIGGER used AFTER INSERT ON used REFERENCING NEW TABLE AS used
                 FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('bucket', 'key=who');",
        )
        .unwrap();
    let mut backend = server.client();
    limit_memory(&mut backend, megabytes);
    (server, witness, backend)
}

/// Runs a statement; returns the SQLSTATE of its error, if any. Fails if any session has crashed.
fn outcome(witness: &mut Client, backend: &mut Client, sql: &str) -> Option<SqlState> {
    let outcome = backend.batch_execute(sql).err().map(|error| {
        let code = error.code().cloned();
        code.unwrap_or_else(|| panic!("{sql}: {error:?}"))
    });
    witness.batch_execute("SELECT").expect("no session has crashed");
    outcome
}

#[test]
#[ignore = "needs a server: make test"]
fn a_call_that_is_too_large_is_refused_or_out_of_memory_and_no_more() {
    // The larger one, which takes minutes, has room for a list of 300,000, the smaller one none for a copy of a
    // long text.
    for megabytes in scale(vec![150], vec![300, 150]) {
        too_large(megabytes);
    }
}

fn too_large(megabytes: u64) {
    let (_server, mut witness, mut backend) = sessions(megabytes);
    let list =
        |element: &str, n| format!("(SELECT jsonb_agg({element}) FROM generate_series(1, {n}) n)");
    let request = "jsonb_build_object('name', 'bucket', 'key', n::text)";
    let long = "repeat('x', 50000000)";
    let config = format!("jsonb_build_object('kind', {long})");
    for sql in [
        format!("SELECT count(*) FROM rl_check_all({})", list(request, 300_000)),
        format!("SELECT count(*) FROM rl_limit_all({})", list(request, 300_000)),
        format!("SELECT count(*) FROM rl_check_all({})", list("1", 1001)),
        format!("SELECT count(*) FROM rl_check_all(jsonb_build_array({config}))"),
        format!(
            "SELECT count(*) FROM rl_check_all(jsonb_build_array(jsonb_build_object({long}, 1)))"
        ),
        format!(
            "SELECT count(*) FROM rl_check_all(jsonb_build_array(jsonb_build_object('name', {long})))"
        ),
        format!("SELECT count(*) FROM rl_check_all({config})"),
        format!("SELECT rl_check('inline', config => {config})"),
        format!("SELECT rl_define('inline', {config})"),
        format!("INSERT INTO rl_config VALUES ('inline', '', {config})"),
        format!("SELECT rl_headers('x', rl_check('bucket'), config => {config})"),
        format!("SELECT rl_calculate({config}, NULL, now())"),
        format!("SELECT rl_calculate(rl_sliding_log(10, '1 s'), {config}, now())"),
        format!("SELECT rl_fixed_window(1, '1 day', timezone => {long})"),
        format!("SELECT rl_check({long})"),
        format!("SELECT rl_check('bucket', {long})"),
        format!("SELECT rl_headers('x', rl_check('bucket'), style => {long})"),
        // Few bytes, many in JSON.
        "SELECT rl_check('inline', config => '{\"rate\": 1e131071}')".to_owned(),
        format!(
            "SELECT rl_calculate(rl_sliding_log(10, '1 s'), {}, now())",
            list("1e131071::numeric", 80_000)
        ),
    ] {
        let outcome = outcome(&mut witness, &mut backend, &sql);
        let expected = [
            SqlState::INVALID_PARAMETER_VALUE,
            SqlState::OUT_OF_MEMORY,
            SqlState::PROGRAM_LIMIT_EXCEEDED,
        ];
        assert!(outcome.as_ref().is_some_and(|code| expected.contains(code)), "{sql}: {outcome:?}");
    }
    // Allowed arguments pass in as little memory.
    let most = format!("SELECT count(*) FROM rl_limit_all({})", list(request, 1000));
    assert_eq!(outcome(&mut witness, &mut backend, &most), None);
    // Each of 10,000 entries.
    let logs = "jsonb_build_object('name', 'log', 'key', n::text, 'count', 0)";
    let logs = format!("SELECT count(*) FROM rl_check_all({})", list(logs, 50));
    assert_eq!(outcome(&mut witness, &mut backend, &logs), None);
}

/// Where the system doesn't overcommit, what a session keeps in reserve is taken from all others.
#[test]
#[ignore = "needs a server: make test"]
fn a_session_keeps_little_in_reserve() {
    let server = Server::start();
    let mut backend = server.client();
    let pid: i32 = backend.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let data = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmData:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let before = data();
    backend.batch_execute("LOAD 'ratelimit'").unwrap();
    let loaded = data() - before;
    // A list of 10,000 with long keys has more of it while it is read.
    let list = "SELECT count(*) FROM rl_check_all((SELECT jsonb_agg(jsonb_build_object('name', 'n', 'key', repeat('k', 100) || n, 'config',
                '{\"kind\": \"unlimited\"}'::jsonb)) FROM generate_series(1, 10000) n))";
    backend.batch_execute(list).unwrap();
    println!("{loaded} kB when it is loaded, {} kB after a list", data() - before);
    assert!(loaded < 4_000, "{loaded} kB");
}

#[test]
#[ignore = "needs a server: make test"]
fn a_statement_of_many_keys_is_added_up_in_little_memory() {
    let (_server, mut witness, mut backend) = sessions(64);
    // Each key twice, the second time far from the first.
    let insert =
        "INSERT INTO used SELECT repeat('k', 200) || n % 350000 FROM generate_series(1, 700000) n";
    assert_eq!(outcome(&mut witness, &mut backend, insert), None);
    let sums = "SELECT count(*), min(value), max(value) FROM rateLimits WHERE name = 'bucket' AND key LIKE 'k%'";
    let row = witness.query_one(sums, &[]).unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), (350_000i64, 98.0, 98.0));
    // And reset again, a page of keys at a time.
    assert_eq!(outcome(&mut witness, &mut backend, "SELECT rl_reset_keys('bucket')"), None);
    let left = "SELECT count(*) FROM rateLimits WHERE name = 'bucket' AND key LIKE 'k%'";
    assert_eq!(witness.query_one(left, &[]).unwrap().get::<_, i64>(0), 0);
}

/// The caller's own query leaves less and less of the memory.
#[test]
#[ignore = "needs a server: make test"]
fn where_memory_is_short_a_call_passes_or_is_out_of_memory() {
    let (_server, mut witness, mut backend) = sessions(64);
    // Fills the memory, and then gives back a piece at a time and tries this often.
    let tries = scale(1, 4);
    witness
        .batch_execute(&format!(
            "CREATE FUNCTION tried(statement text, most int, out passed int, out failed int) LANGUAGE plpgsql AS $$
             DECLARE
                 pieces text[];
                 last int := 0;
             BEGIN
                 passed := 0;
                 failed := 0;
                 BEGIN
                     WHILE last < most LOOP
                         pieces[last + 1] := repeat('x', 32768);
                         last := last + 1;
                     END LOOP;
                 EXCEPTION WHEN out_of_memory THEN
                     NULL;
                 END;
                 -- So much is for this function.
                 FOR n IN 1 .. least(4, last) LOOP
                     pieces[n] := NULL;
                 END LOOP;
                 WHILE last > 4 AND passed < 20 LOOP
                     FOR n IN 1 .. {tries} LOOP
                         BEGIN
                             EXECUTE statement;
                             passed := passed + 1;
                         EXCEPTION WHEN out_of_memory THEN
                             failed := failed + 1;
                         END;
                     END LOOP;
                     pieces[last] := NULL;
                     last := last - 1;
                 END LOOP;
             END
             $$"
        ))
        .unwrap();
    for sql in [
        "SELECT rl_limit('bucket', 'key')",
        "SELECT rl_check('shards', 'key')",
        "SELECT rl_limit('shards', 'key', 1e6)",
        "SELECT rl_limit('log', '1')",
        "SELECT count(*) FROM rl_check_all((SELECT jsonb_agg(jsonb_build_object('name', 'log', 'key', n::text)) FROM generate_series(1, 50) n))",
        "SELECT count(*) FROM rl_limit_all((SELECT jsonb_agg(jsonb_build_object('name', 'bucket', 'key', n::text, 'count', 0.001)) FROM generate_series(1, 200) n))",
        "SELECT count(*) FROM rl_check_all((SELECT jsonb_agg(jsonb_build_object('name', 'bucket', 'key', repeat('k', 300) || n)) FROM generate_series(1, 4000) n))",
        "SELECT rl_calculate(rl_sliding_log(10000, '1000 days'), (SELECT jsonb_build_object('value', 9000, 'ts', 1.8e12, 'log', jsonb_agg(1.8e12 + n)) FROM generate_series(1, 9000) n), '2027-02-01 00:00:00+00')",
        "SELECT count(*) FROM rl_status()",
        "SELECT rl_define('other', rl_token_bucket(1, '1 s'))",
        "INSERT INTO used SELECT n FROM generate_series(1, 1000) n",
    ] {
        // Its plans are made while there is memory.
        backend.query_one("SELECT * FROM tried($1, 10)", &[&sql]).unwrap();
        let tried = backend.query_one("SELECT * FROM tried($1, 1000000)", &[&sql]);
        witness.batch_execute("SELECT").expect("no session has crashed");
        let tried = tried.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let (passed, failed): (i32, i32) = (tried.get(0), tried.get(1));
        let _ = writeln!(std::io::stdout(), "{sql}: passed {passed}, failed {failed}");
        assert!(passed > 0, "{sql}");
    }
}
