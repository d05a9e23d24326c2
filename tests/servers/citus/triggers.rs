//! Limits in triggers, constraints, policies and functions on tables that a node has for itself, whose statements are
//! each a transaction, where the limit's row is on another node. Only in some of them does
//! Citus open a transaction there: in the others each of the limiter's statements was one of its own.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Barrier;
use std::thread;

use postgres::Client;

use crate::cluster::Cluster;
use crate::one;

const CAPACITY: usize = 12;
const SESSIONS: usize = 6;
/// The rows that each session tries to write, or the calls that it makes.
const ATTEMPTS: usize = 4;

/// Tables by what limits their rows. On each node, also on a worker; nothing of it goes to other nodes.
const TABLES: &str = r#"
    CREATE FUNCTION assigns() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE answer record;
        BEGIN answer := rl_limit('posts', NEW.key, throws => true); RETURN NEW; END $$;
    CREATE FUNCTION performs() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM rl_limit('posts', NEW.key, throws => true); RETURN NEW; END $$;
    CREATE FUNCTION assigns_each() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE answer record; author text;
        BEGIN
            FOR author IN SELECT key FROM written ORDER BY key LOOP
                answer := rl_limit('posts', author, throws => true);
            END LOOP;
            RETURN NULL;
        END $$;
    CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.body = TG_ARGV[0] THEN RAISE 'refused' USING ERRCODE = 'P0099'; END IF;
            RETURN NULL;
        END $$;
    CREATE FUNCTION refuses_statement() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF EXISTS (SELECT FROM written WHERE body = TG_ARGV[0]) THEN
                RAISE 'refused' USING ERRCODE = 'P0099';
            END IF;
            RETURN NULL;
        END $$;
    CREATE FUNCTION post(tablename text, key text) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN EXECUTE format('INSERT INTO %I VALUES (%L, %L)', tablename, key, 'x'); END $$;
    CREATE PROCEDURE post_called(tablename text, key text) LANGUAGE plpgsql AS $$
        BEGIN EXECUTE format('INSERT INTO %I VALUES (%L, %L)', tablename, key, 'x'); END $$;
    CREATE PROCEDURE take(key text) LANGUAGE plpgsql AS $$
        DECLARE answer record;
        BEGIN answer := rl_limit('posts', key, throws => true); END $$;
    GRANT EXECUTE ON FUNCTION rl_limit TO writer;
    DO $do$
        DECLARE limited text;
        BEGIN
            FOREACH limited IN ARRAY '{trigger_row, trigger_statement, assigns_before, assigns_after, performs_before,
                performs_after, assigns_statement, assigns_deferred, performs_deferred, checked, policy}'::text[] LOOP
                EXECUTE format($$
                    CREATE TABLE %1$I (key text, body text CONSTRAINT z_body CHECK (body <> 'bad'));
                    CREATE TRIGGER z_refuses AFTER INSERT ON %1$I REFERENCING NEW TABLE AS written
                        FOR EACH STATEMENT EXECUTE FUNCTION refuses_statement('worse');
                    CREATE CONSTRAINT TRIGGER z_refuses_late AFTER INSERT ON %1$I DEFERRABLE INITIALLY DEFERRED
                        FOR EACH ROW EXECUTE FUNCTION refuses('worst')$$, limited);
            END LOOP;
        END $do$;
    CREATE TRIGGER limited BEFORE INSERT ON trigger_row
        FOR EACH ROW EXECUTE FUNCTION rl_trigger('posts', 'key=key');
    CREATE TRIGGER limited AFTER INSERT ON trigger_statement REFERENCING NEW TABLE AS written
        FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('posts', 'key=key');
    CREATE TRIGGER limited BEFORE INSERT ON assigns_before FOR EACH ROW EXECUTE FUNCTION assigns();
    CREATE TRIGGER limited AFTER INSERT ON assigns_after FOR EACH ROW EXECUTE FUNCTION assigns();
    CREATE TRIGGER limited BEFORE INSERT ON performs_before FOR EACH ROW EXECUTE FUNCTION performs();
    CREATE TRIGGER limited AFTER INSERT ON performs_after FOR EACH ROW EXECUTE FUNCTION performs();
    CREATE TRIGGER limited AFTER INSERT ON assigns_statement REFERENCING NEW TABLE AS written
        FOR EACH STATEMENT EXECUTE FUNCTION assigns_each();
    CREATE CONSTRAINT TRIGGER limited AFTER INSERT ON assigns_deferred DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION assigns();
    CREATE CONSTRAINT TRIGGER limited AFTER INSERT ON performs_deferred DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION performs();
    ALTER TABLE checked ADD CONSTRAINT limited CHECK ((rl_limit('posts', key, throws => true)).ok);
    ALTER TABLE policy ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON policy USING (true);
    CREATE POLICY limited ON policy AS RESTRICTIVE FOR INSERT
        WITH CHECK ((rl_limit('posts', key, throws => true)).ok);
    GRANT SELECT, INSERT ON policy TO writer"#;

/// The tables, each named by what limits it.
const LIMITED: [&str; 11] = [
    "trigger_row",
    "trigger_statement",
    "assigns_before",
    "assigns_after",
    "performs_before",
    "performs_after",
    "assigns_statement",
    "assigns_deferred",
    "performs_deferred",
    "checked",
    "policy",
];

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Insert,
    Values,
    Select,
    Copy,
    /// Each in a transaction of its own.
    Do,
    Call,
    Function,
}

const WAYS: [Way; 7] =
    [Way::Insert, Way::Values, Way::Select, Way::Copy, Way::Do, Way::Call, Way::Function];

impl Way {
    /// Returns the rows that a statement writes.
    fn rows(self) -> usize {
        match self {
            Way::Insert | Way::Call | Way::Function => 1,
            Way::Values | Way::Select | Way::Copy | Way::Do => 2,
        }
    }

    /// Returns whether a table can be written so: COPY FROM doesn't work where policies hold.
    fn writes(self, table: &str) -> bool {
        self != Way::Copy || table != "policy"
    }

    /// Writes a statement's rows, or the first of them: keys and bodies.
    fn write(
        self,
        client: &mut Client,
        table: &str,
        [first, second]: [(&str, &str); 2],
    ) -> Result<(), postgres::Error> {
        let ((key, body), (next, last)) = (first, second);
        let insert = format!("INSERT INTO {table} VALUES ('{key}', '{body}')");
        match self {
            // By the extended protocol, as drivers do.
            Way::Insert => client
                .execute(&format!("INSERT INTO {table} VALUES ($1, $2)"), &[&key, &body])
                .map(drop),
            Way::Values => client.batch_execute(&format!("{insert}, ('{next}', '{last}')")),
            Way::Select => client.batch_execute(&format!(
                "INSERT INTO {table} SELECT * FROM unnest('{{{key},{next}}}'::text[], '{{{body},{last}}}'::text[])"
            )),
            Way::Copy => {
                let mut writer = client.copy_in(&format!("COPY {table} FROM STDIN"))?;
                // An error on the way is reported at the end.
                let _ = write!(writer, "{key}\t{body}\n{next}\t{last}\n");
                writer.finish().map(drop)
            }
            Way::Do => client.batch_execute(&format!(
                "DO $$ BEGIN {insert}; COMMIT; INSERT INTO {table} VALUES ('{next}', '{last}'); END $$"
            )),
            Way::Call => client.batch_execute(&format!("CALL post_called('{table}', '{key}')")),
            Way::Function => client.batch_execute(&format!("SELECT post('{table}', '{key}')")),
        }
    }
}

/// Calls of which each is a take where it does not fail, and answers true if it has a row.
const CALLS: [&str; 6] = [
    "SELECT ok FROM rl_limit('posts', 'KEY')",
    "SELECT (rl_limit('posts', 'KEY')).ok",
    "SELECT bool_and(ok) FROM rl_limit_all(
         '[{\"name\": \"posts\", \"key\": \"KEY\"}, {\"name\": \"many\", \"key\": \"KEY\"}]')",
    "SELECT ok FROM rl_acquire('slots', 'KEY')",
    "CALL take('KEY')",
    "DO $$ DECLARE answer record; BEGIN answer := rl_limit('posts', 'KEY', throws => true); END $$",
];

/// What a case leaves: rows or answers that are true, and tokens or slots that are gone.
#[derive(Debug, PartialEq)]
struct Outcome {
    passed: String,
    taken: String,
    /// By SQLSTATE.
    errors: BTreeMap<String, usize>,
}

/// A cluster with the limits and, on the coordinator and the first worker, the tables.
fn cluster() -> Cluster {
    let cluster = Cluster::distributed();
    let mut client = cluster.coordinator();
    client.batch_execute("CREATE ROLE writer").unwrap();
    client
        .batch_execute(&format!(
            "SELECT rl_define('posts', rl_token_bucket({CAPACITY}, '1000 days')),
                    rl_define('many', rl_token_bucket(1000, '1000 days')),
                    rl_define('slots', rl_concurrency({CAPACITY}, '1 day'))"
        ))
        .unwrap();
    for node in &cluster.nodes[..2] {
        let mut client = node.client();
        client.batch_execute("SET citus.enable_ddl_propagation = off").unwrap();
        client.batch_execute(TABLES).unwrap();
    }
    cluster
}

/// A key that begins so, and whose rows are not on this node.
fn key_elsewhere(cluster: &Cluster, client: &mut Client, node: usize, beginning: &str) -> String {
    let sql = format!(
        "SELECT key FROM generate_series(1, 100) n, LATERAL (SELECT format('{beginning} %s', n)) t (key)
         JOIN pg_dist_placement ON shardid = get_shard_id_for_distribution_column('ratelimits', key)
         JOIN pg_dist_node USING (groupid) WHERE nodename <> '{}' ORDER BY n LIMIT 1",
        cluster.name(node)
    );
    one(client, &sql)
}

/// Returns the sessions of a node, with function_opens_transaction_block as given.
fn sessions(cluster: &Cluster, node: usize, setting: &str) -> Vec<Client> {
    let session = |_| {
        let mut client = cluster.nodes[node].client();
        let set = format!("SET citus.function_opens_transaction_block = {setting}");
        client.batch_execute(&set).unwrap();
        client
    };
    (0..SESSIONS).map(session).collect()
}

/// Runs `attempts` of each session at once; the number of true answers, and the errors.
fn together(
    sessions: &mut [Client],
    attempts: usize,
    attempt: impl Fn(&mut Client) -> Result<bool, postgres::Error> + Sync,
) -> (usize, BTreeMap<String, usize>) {
    let (start, attempt) = (Barrier::new(sessions.len()), &attempt);
    let run = |client: &mut Client| {
        start.wait();
        (0..attempts).map(|_| attempt(client)).collect::<Vec<_>>()
    };
    let results: Vec<_> = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> =
            sessions.iter_mut().map(|client| scope.spawn(move || run(client))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let (mut passed, mut errors) = (0, BTreeMap::new());
    for result in results {
        match result {
            Ok(ok) => passed += usize::from(ok),
            Err(error) => match error.as_db_error() {
                Some(error) if error.code().code() == "PT429" => {}
                _ => *errors.entry(format!("{error:?}")).or_default() += 1,
            },
        }
    }
    (passed, errors)
}

/// The tokens or slots of a key that are gone.
fn taken(client: &mut Client, name: &str, key: &str) -> String {
    one(client, &format!("SELECT round({CAPACITY} - remaining) FROM rl_check('{name}', '{key}')"))
}

/// Many sessions write rows of one key into a table.
fn written(
    client: &mut Client,
    sessions: &mut [Client],
    (table, way, key): (&str, Way, &str),
) -> Outcome {
    let role = if table == "policy" { "SET ROLE writer" } else { "RESET ROLE" };
    for session in sessions.iter_mut() {
        session.batch_execute(role).unwrap();
    }
    let row = (key, "x");
    let (_, errors) = together(sessions, ATTEMPTS / way.rows(), |client| {
        way.write(client, table, [row, row]).map(|()| true)
    });
    let count = format!("SELECT count(*) FROM {table} WHERE key = '{key}'");
    let passed = one(&mut sessions[0], &count);
    Outcome { passed, taken: taken(client, "posts", key), errors }
}

/// Many sessions make a call for one key.
fn called(client: &mut Client, sessions: &mut [Client], (call, key): (&str, &str)) -> Outcome {
    let sql = call.replace("KEY", key);
    for session in sessions.iter_mut() {
        session.batch_execute("RESET ROLE").unwrap();
    }
    let (passed, errors) = together(sessions, ATTEMPTS, |client| {
        let ok = |row: &postgres::Row| row.get::<_, bool>(0);
        match sql.starts_with("SELECT") {
            true => client.query(&sql, &[]).map(|rows| rows.first().is_some_and(ok)),
            // Alone, since what commits inside must not be one of several statements.
            false => client.batch_execute(&sql).map(|()| true),
        }
    });
    let name = if call.contains("slots") { "slots" } else { "posts" };
    Outcome { passed: passed.to_string(), taken: taken(client, name, key), errors }
}

/// Once up to three times the limit passed: what read, locked and wrote the limit's row were transactions of their own.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn no_more_rows_commit_than_the_limit_lets() {
    let cluster = cluster();
    let mut client = cluster.coordinator();
    let expected = CAPACITY.to_string();
    let (mut cases, mut wrong) = (0, Vec::new());
    // Each case on one of the nodes, or, where there is time, on both.
    let all = ratelimit_tests::is_long();
    for setting in ["on", "off"] {
        let mut of_node = [0, 1].map(|node| sessions(&cluster, node, setting));
        let tables = LIMITED.iter().flat_map(|table| WAYS.map(|way| (*table, Some(way))));
        let calls = CALLS.iter().map(|call| (*call, None));
        for (n, (what, way)) in tables.chain(calls).enumerate() {
            for (node, sessions) in of_node.iter_mut().enumerate() {
                if !(all || node == n % 2) || way.is_some_and(|way| !way.writes(what)) {
                    continue;
                }
                cases += 1;
                let beginning = format!("case {cases}");
                let key = key_elsewhere(&cluster, &mut client, node, &beginning);
                let outcome = match way {
                    Some(way) => written(&mut client, sessions, (what, way, &key)),
                    None => called(&mut client, sessions, (what, &key)),
                };
                let right = Outcome {
                    passed: expected.clone(),
                    taken: expected.clone(),
                    errors: BTreeMap::new(),
                };
                if outcome != right {
                    wrong.push(format!("node {node}, {setting}, {what}, {way:?}: {outcome:?}"));
                }
            }
        }
    }
    let of = SESSIONS * ATTEMPTS;
    assert!(wrong.is_empty(), "{} of {cases} cases, {of} attempts each: {wrong:#?}", wrong.len());
}

/// Statements that take for their first row and fail at a later one: how, and with which SQLSTATE.
const FAILURES: [(&str, &str); 4] =
    [("denied", "PT429"), ("bad", "23514"), ("worse", "P0099"), ("worst", "P0099")];

/// Has them all fail in a table.
fn fail(session: &mut Client, table: &str, denied: &str, mut key: impl FnMut(String) -> String) {
    let role = if table == "policy" { "SET ROLE writer" } else { "RESET ROLE" };
    session.batch_execute(role).unwrap();
    for way in [Way::Values, Way::Select, Way::Copy] {
        for (body, code) in FAILURES {
            if !way.writes(table) {
                continue;
            }
            let case = format!("{table}, {way:?}, {body}");
            let key = key(case.clone());
            let second = if body == "denied" { denied } else { &key };
            match way.write(session, table, [(&key, "x"), (second, body)]) {
                Err(error) => {
                    assert_eq!(error.code().unwrap().code(), code, "{case}: {error:?}")
                }
                // The driver doesn't wait for what fails when the transaction ends.
                Ok(()) => assert!(
                    way == Way::Copy && (body == "worst" || table.contains("deferred")),
                    "{case}"
                ),
            }
            let rows = format!("SELECT count(*) FROM {table} WHERE key = '{key}'");
            assert_eq!(one(session, &rows), "0", "{case}");
        }
    }
}

/// What takes for its first row and fails at a later one has taken nothing in the end.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_statement_that_fails_keeps_no_take() {
    let cluster = cluster();
    let mut client = cluster.coordinator();
    let mut cases = BTreeMap::new();
    for node in 0..2 {
        let denied = key_elsewhere(&cluster, &mut client, node, &format!("z of node {node}"));
        let fill = format!("SELECT rl_limit('posts', '{denied}', {CAPACITY})");
        client.batch_execute(&fill).unwrap();
        for setting in ["on", "off"] {
            let mut session = sessions(&cluster, node, setting).remove(0);
            for table in LIMITED {
                fail(&mut session, table, &denied, |case| {
                    let beginning = format!("a {}", cases.len());
                    let key = key_elsewhere(&cluster, &mut client, node, &beginning);
                    cases.insert(key.clone(), format!("node {node}, {setting}, {case}"));
                    key
                });
            }
        }
    }
    let kept = format!("SELECT key FROM rateLimits WHERE key ^@ 'a ' AND value < {CAPACITY} - 0.5");
    let kept = client.query(&kept, &[]).unwrap();
    let kept: Vec<&String> = kept.iter().map(|row| &cases[row.get::<_, &str>(0)]).collect();
    assert!(kept.is_empty(), "{} of {} statements: {kept:#?}", kept.len(), cases.len());
}
