//! Errors that a row's node raises for what the tables' owner has put there: PostgreSQL words them with the row, and so
//! with the key, which must not reach who made the call, nor the log of the node that he made it on.

use std::fs;

use postgres::Client;
use postgres::types::ToSql;

use crate::cluster::Cluster;
use crate::one;

/// A part of all keys here.
const SECRET: &str = "secret@example.com";

/// What the owner puts there, and the error that it makes.
struct Refusal {
    what: &'static str,
    /// Statements, one by one.
    made: &'static [&'static str],
    /// Calls for the key $1, of which the last is refused.
    calls: &'static [&'static str],
    code: &'static str,
    /// What the message says all the same.
    message: &'static str,
    removed: &'static str,
}

const CHECK: Refusal = Refusal {
    what: "a check of a new row",
    made: &["ALTER TABLE ratelimits ADD CONSTRAINT enough CHECK (value > 5)"],
    calls: &["SELECT rl_limit('api', $1, 7)"],
    code: "23514",
    message: "violates check constraint \"enough",
    removed: "ALTER TABLE ratelimits DROP CONSTRAINT enough",
};

/// The second limit comes to what the first has.
const ONCE: [&str; 3] = [
    "SELECT rl_limit('window', $1, 6)",
    "SELECT rl_limit('other window', $1)",
    "SELECT rl_limit('other window', $1, 5)",
];

const REFUSALS: [Refusal; 12] = [
    CHECK,
    Refusal {
        what: "a check of a row that is there",
        calls: &["SELECT rl_limit('api', $1)", "SELECT rl_limit('api', $1, 7)"],
        ..CHECK
    },
    Refusal {
        what: "rl_limit_all",
        calls: &[
            "SELECT rl_limit_all(jsonb_build_array(jsonb_build_object('name', 'api', 'key', $1::text, 'count', 7)))",
        ],
        ..CHECK
    },
    Refusal { what: "rl_credit", calls: &["SELECT rl_credit('api', $1, -7)"], ..CHECK },
    Refusal {
        what: "a trigger of another table",
        calls: &["INSERT INTO posts VALUES ($1), ($1), ($1), ($1), ($1), ($1), ($1)"],
        ..CHECK
    },
    Refusal {
        what: "a column that is NOT NULL",
        made: &[
            "ALTER TABLE ratelimits ADD COLUMN note text",
            "ALTER TABLE ratelimits ALTER COLUMN note SET NOT NULL",
        ],
        calls: &["SELECT rl_limit('api', $1)"],
        code: "23502",
        message: "null value in column \"note\"",
        removed: "ALTER TABLE ratelimits DROP COLUMN note",
    },
    // By an update: a conflicting insert is no error.
    Refusal {
        what: "an exclusion",
        made: &[
            "ALTER TABLE ratelimits ADD CONSTRAINT once EXCLUDE USING btree (key WITH =, value WITH =)",
        ],
        calls: &ONCE,
        code: "23P01",
        message: "violates exclusion constraint \"once",
        removed: "ALTER TABLE ratelimits DROP CONSTRAINT once",
    },
    Refusal {
        what: "a unique constraint",
        made: &["ALTER TABLE ratelimits ADD CONSTRAINT once UNIQUE (key, value)"],
        calls: &ONCE,
        code: "23505",
        message: "violates unique constraint \"once",
        removed: "ALTER TABLE ratelimits DROP CONSTRAINT once",
    },
    Refusal {
        what: "a foreign key",
        made: &[
            "ALTER TABLE ratelimits ADD CONSTRAINT account FOREIGN KEY (key) REFERENCES accounts",
        ],
        calls: &["SELECT rl_limit('api', $1)"],
        code: "23503",
        message: "violates foreign key constraint \"account",
        removed: "ALTER TABLE ratelimits DROP CONSTRAINT account",
    },
    Refusal {
        what: "a trigger that writes elsewhere",
        made: &[
            "CREATE TRIGGER logging BEFORE INSERT ON ratelimits FOR EACH ROW EXECUTE FUNCTION logging()",
        ],
        calls: &["SELECT rl_limit('api', $1)"],
        code: "23502",
        message: "null value in column \"at\"",
        removed: "DROP TRIGGER logging ON ratelimits",
    },
    Refusal {
        what: "a check of definitions",
        made: &["ALTER TABLE rl_config ADD CONSTRAINT short CHECK (length(key) < 3)"],
        calls: &["SELECT rl_define('api', rl_token_bucket(10, '1000 days'), key => $1)"],
        message: "violates check constraint \"short",
        removed: "ALTER TABLE rl_config DROP CONSTRAINT short",
        ..CHECK
    },
    Refusal {
        what: "a check of blocks",
        made: &["ALTER TABLE rl_blocks ADD CONSTRAINT short CHECK (length(key) < 3)"],
        calls: &["SELECT rl_block('api', $1, '1 hour')"],
        message: "violates check constraint \"short",
        removed: "ALTER TABLE rl_blocks DROP CONSTRAINT short",
        ..CHECK
    },
];

/// On the coordinator, one by one.
const TABLES: [&str; 7] = [
    "SELECT rl_define('api', rl_token_bucket(10, '1000 days')),
            rl_define('window', rl_fixed_window(10, '1000 days', start => '2020-01-01+00')),
            rl_define('other window', rl_fixed_window(10, '1000 days', start => '2020-01-01+00'))",
    "CREATE TABLE accounts (account text COLLATE \"C\" PRIMARY KEY)",
    "SELECT create_reference_table('accounts')",
    "SET citus.enable_unsafe_triggers = on",
    "CREATE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO public.logged VALUES (NEW.key); RETURN NEW; END $$",
    "SELECT run_command_on_all_nodes('CREATE TABLE logged (key text, at timestamptz NOT NULL)')",
    "SELECT run_command_on_all_nodes('CREATE TABLE posts (author text)')",
];

/// A key of a worker, the first or the second.
fn key_on(cluster: &Cluster, client: &mut Client, worker: usize) -> String {
    let sql = format!(
        "SELECT key FROM generate_series(1, 100) n, LATERAL (SELECT format('%s {SECRET}', n)) t (key)
         JOIN pg_dist_placement ON shardid = get_shard_id_for_distribution_column('ratelimits', key)
         JOIN pg_dist_node USING (groupid) WHERE nodename = '{}' ORDER BY n LIMIT 1",
        cluster.name(worker)
    );
    one(client, &sql)
}

/// Returns the lines of a node's log that have the key.
fn logged(cluster: &Cluster, node: usize) -> Vec<String> {
    let name = cluster.name(node).strip_prefix("/tmp/ratelimit.").unwrap();
    let file = format!("{}/../target/servers/{name}/log", env!("CARGO_MANIFEST_DIR"));
    let log = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
    log.lines().filter(|line| line.contains(SECRET)).map(str::to_owned).collect()
}

/// Makes the calls on a node; what is wrong with how the last is refused.
fn refused(cluster: &Cluster, node: usize, refusal: &Refusal, key: &str) -> Option<String> {
    let (mut client, notices) = cluster.nodes[node].client_with_notices();
    let parameters: &[&(dyn ToSql + Sync)] = &[&key];
    let [before @ .., last] = refusal.calls else { unreachable!("no call") };
    for call in before {
        client.execute(*call, parameters).unwrap();
    }
    let error = match client.execute(*last, parameters) {
        Ok(_) => return Some("it is not refused".into()),
        Err(error) => error,
    };
    let error = error.as_db_error().unwrap();
    let told: Vec<String> = notices.try_iter().filter(|notice| notice.contains(SECRET)).collect();
    let right = error.code().code() == refusal.code && error.message().contains(refusal.message);
    (!right || format!("{error:?}").contains(SECRET) || !told.is_empty())
        .then(|| format!("{error:?}, {told:?}"))
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn an_error_of_another_node_names_no_key() {
    let cluster = Cluster::distributed();
    let mut client = cluster.coordinator();
    for sql in TABLES {
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let limited = "CREATE TRIGGER limited AFTER INSERT ON posts REFERENCING NEW TABLE AS written
                   FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('api', 'key=author')";
    for node in 0..3 {
        let mut client = cluster.nodes[node].client();
        client.batch_execute("SET citus.enable_ddl_propagation = off").unwrap();
        client.batch_execute(limited).unwrap();
    }
    let keys = [1, 2].map(|worker| key_on(&cluster, &mut client, worker));
    let (mut wrong, mut in_logs) = (Vec::new(), Vec::new());
    for refusal in &REFUSALS {
        let what = refusal.what;
        for sql in refusal.made {
            client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
        for node in 0..3 {
            for (worker, key) in [1, 2].into_iter().zip(&keys) {
                let logs = |node| logged(&cluster, node).len();
                let before = [0, 1, 2].map(logs);
                if let Some(error) = refused(&cluster, node, refusal, key) {
                    wrong.push(format!("{what}, at node {node}, key of {worker}: {error}"));
                }
                for (of, before) in (0..3).zip(before) {
                    for line in logged(&cluster, of).split_off(before) {
                        in_logs.push((
                            of == node,
                            format!("{what}, at node {node}, log of {of}: {line}"),
                        ));
                    }
                }
                client.batch_execute("DELETE FROM ratelimits").unwrap();
            }
        }
        client.batch_execute(refusal.removed).unwrap();
    }
    // The node that has the row knows its key, and logs errors as it does without us.
    let (of_caller, of_others): (Vec<_>, Vec<_>) =
        in_logs.into_iter().partition(|(caller, _)| *caller);
    println!("in the logs of the nodes that have the rows: {of_others:#?}");
    assert!(
        wrong.is_empty() && of_caller.is_empty(),
        "{} errors: {wrong:#?}, {} lines in the callers' logs: {of_caller:#?}",
        wrong.len(),
        of_caller.len()
    );
}
