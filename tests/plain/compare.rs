//! Compares the extension and the SQL file in one database: the same calls at the same times, and so the same answers,
//! errors, notices and rows. SEED is the seed, and TIMES multiplies the calls.
//!
//! Calls are pipelined to both. For a difference, it looks for the fewest calls that lead there, and shows them.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use ratelimit_tests::{seed, times};
use tokio_postgres::{AsyncMessage, Client, NoTls, SimpleQueryMessage};

use crate::calls::{CALLER, Call, Calls};
use crate::database::{Database, create_role};
use crate::known;
use crate::settings;

const CALLS: usize = 100_000;
/// The calls that are sent at once; then rows are compared.
const BATCH: usize = 250;
/// The calls of a session, where each session is a new one: it compiles the file's functions again, and so finds what
/// only the first call does.
const FEW: usize = 2;
/// The most calls in which a difference is looked for again.
const REPEATED: usize = 8_000;

/// The most differences that are reported.
const DIFFERENCES: usize = 20;

/// The editions' schemas. The tests' tables are in extension_tests and ratelimit_tests.
const SCHEMAS: [&str; 2] = ["extension", "ratelimit"];

/// A session that calls one of the editions.
struct Edition {
    client: Client,
    notices: Arc<Mutex<Vec<String>>>,
}

/// The answer to a statement: its rows, or its error in full.
type Answer = String;

impl Edition {
    async fn connect(database: &Database, schema: &str) -> Edition {
        let mut config: tokio_postgres::Config =
            std::env::var("RATELIMIT_TEST_SERVER").unwrap().parse().unwrap();
        config.dbname(database.name()).application_name(schema);
        let (client, mut connection) = config.connect(NoTls).await.unwrap();
        let notices = Arc::new(Mutex::new(Vec::new()));
        let noted = notices.clone();
        tokio::spawn(async move {
            while let Some(message) =
                std::future::poll_fn(|context| connection.poll_message(context)).await
            {
                if let Ok(AsyncMessage::Notice(notice)) = message {
                    noted.lock().unwrap().push(whole(&notice));
                }
            }
        });
        let setup = format!(
            "SET search_path = {schema}, {schema}_tests; SET lc_messages = 'C';
             SET client_min_messages = notice; SET lock_timeout = '20 s'"
        );
        client.batch_execute(&setup).await.unwrap();
        Edition { client, notices }
    }

    /// Sends the calls, and returns their answers.
    async fn run(&self, calls: &[Call]) -> Vec<Answer> {
        type Sent<'a> = Pin<
            Box<
                dyn Future<Output = Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>>
                    + Send
                    + 'a,
            >,
        >;
        enum Waiting<'a> {
            For(Sent<'a>),
            Done(Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>),
        }
        let mut waiting: Vec<Waiting> = calls
            .iter()
            .map(|call| Waiting::For(Box::pin(self.client.simple_query(&call.sql))))
            .collect();
        std::future::poll_fn(|context| {
            for sent_or_done in &mut waiting {
                if let Waiting::For(sent) = sent_or_done
                    && let Poll::Ready(answer) = sent.as_mut().poll(context)
                {
                    *sent_or_done = Waiting::Done(answer);
                }
            }
            Poll::Ready(())
        })
        .await;
        let mut answers = Vec::with_capacity(calls.len());
        for sent_or_done in waiting {
            answers.push(answer(match sent_or_done {
                Waiting::For(sent) => sent.await,
                Waiting::Done(answer) => answer,
            }));
        }
        answers
    }

    fn notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().unwrap())
    }
}

/// An error or a notice as a user sees it, without the schema.
fn whole(error: &tokio_postgres::error::DbError) -> String {
    let mut text = format!("{} {}", error.code().code(), error.message());
    for (field, value) in [("DETAIL", error.detail()), ("HINT", error.hint())] {
        if let Some(value) = value {
            text += &format!("\n{field}: {value}");
        }
    }
    known::alike(unqualified(text))
}

/// A text without the names of the schemas.
fn unqualified(text: String) -> String {
    SCHEMAS.iter().fold(text, |text, schema| text.replace(&format!("{schema}."), ""))
}

fn answer(result: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>) -> Answer {
    match result {
        Ok(messages) => {
            let mut text = String::new();
            for message in messages {
                if let SimpleQueryMessage::Row(row) = message {
                    let values: Vec<_> =
                        (0..row.len()).map(|n| row.get(n).unwrap_or("NULL")).collect();
                    text += &(values.join("|") + "\n");
                }
            }
            // Errors of single requests have hints.
            unqualified(text)
        }
        Err(error) => match error.as_db_error() {
            Some(error) => whole(error),
            None => panic!("{error:?}"),
        },
    }
}

/// The rows that differ, but for those that were reset, without the ids of leases and of holds, where these are random.
/// rateLimits.holds_due may be too early: it is compared by the hold that it finds.
const ROWS: &str = "
    SELECT coalesce(a.place, b.place), a.row, b.row
    FROM (SELECT concat_ws('/', name, key, shard) AS place, row(kind, float8send(value + 0), ts, float8send(added), float8send(prior), log,
                 (SELECT min(expires_at) FROM extension.rl_holds h
                  WHERE h.name = r.name AND h.key = r.key AND NOT charge AND count > spent AND expires_at >= r.holds_due),
                 ARRAY(SELECT leases[n] FROM generate_series(2, cardinality(leases), 2) n ORDER BY n))::text
          FROM extension.rateLimits r WHERE kind <> '-'
          UNION ALL SELECT concat_ws('/', 'config', name, key), config::text FROM extension.rl_config
          UNION ALL SELECT concat_ws('/', 'block', name, key), until::text FROM extension.rl_blocks
          UNION ALL SELECT concat_ws('/', 'hold', name, key, h.id), row(float8send(count + 0), float8send(spent + 0), float8send(returned + 0),
                 taken_at, expires_at, charge, lease IS NULL, config)::text
          FROM extension.rl_holds, LATERAL (SELECT CASE WHEN length(id) < 36 THEN id ELSE expires_at::text END) AS h (id)) AS a (place, row)
    FULL JOIN
         (SELECT concat_ws('/', name, key, shard), row(kind, float8send(value + 0), ts, float8send(added), float8send(prior), log,
                 (SELECT min(expires_at) FROM ratelimit.rl_holds h
                  WHERE h.name = r.name AND h.key = r.key AND NOT charge AND count > spent AND expires_at >= r.holds_due),
                 ARRAY(SELECT leases[n] FROM generate_series(2, cardinality(leases), 2) n ORDER BY n))::text
          FROM ratelimit.rateLimits r WHERE kind <> '-'
          UNION ALL SELECT concat_ws('/', 'config', name, key), config::text FROM ratelimit.rl_config
          UNION ALL SELECT concat_ws('/', 'block', name, key), until::text FROM ratelimit.rl_blocks
          UNION ALL SELECT concat_ws('/', 'hold', name, key, h.id), row(float8send(count + 0), float8send(spent + 0), float8send(returned + 0),
                 taken_at, expires_at, charge, lease IS NULL, config)::text
          FROM ratelimit.rl_holds, LATERAL (SELECT CASE WHEN length(id) < 36 THEN id ELSE expires_at::text END) AS h (id)) AS b (place, row)
    USING (place) WHERE a.row IS DISTINCT FROM b.row ORDER BY 1 LIMIT 3";

/// A difference, as text.
struct Difference {
    text: String,
    /// Equal for differences of which one is reported.
    shape: String,
    /// The number of the call that differs, or after which rows or notices do.
    at: usize,
}

impl Difference {
    fn new(at: usize, what: &str, [extension, file]: [&str; 2]) -> Difference {
        // The function, and the errors' codes.
        let function = what.split("rl_").nth(1).and_then(|text| text.split('(').next());
        let code = |text: &str| {
            text.split_once(' ')
                .map(|(code, _)| code)
                .filter(|code| code.len() == 5)
                .unwrap_or("")
                .to_owned()
        };
        let shape = format!("{} {} {}", function.unwrap_or(what), code(extension), code(file));
        let text = format!("{what}\nextension: {extension}\nfile:      {file}");
        Difference { text, shape, at }
    }
}

struct Pair {
    editions: [Edition; 2],
    /// The shapes of the reported differences.
    reported: Mutex<BTreeSet<String>>,
    /// Reads what both have committed.
    reader: Client,
}

impl Pair {
    async fn connect(database: &Database) -> Pair {
        let editions = Pair::sessions(database).await;
        let reader = Edition::connect(database, "pg_catalog").await.client;
        // To compile the query takes longer than all calls of a batch.
        reader.batch_execute("SET jit = off").await.unwrap();
        Pair { editions, reported: Mutex::default(), reader }
    }

    /// A new session of each edition.
    async fn sessions(database: &Database) -> [Edition; 2] {
        let [extension, file] = SCHEMAS.map(|schema| Edition::connect(database, schema));
        tokio::join!(extension, file).into()
    }

    /// Makes the calls on both. Returns the answers, and the first difference of the given shape, or of one that was
    /// not reported yet.
    async fn run(&self, calls: &[Call], shape: Option<&str>) -> (Option<Difference>, Vec<Answer>) {
        let [extension, file] = &self.editions;
        let (answers, file_answers) = tokio::join!(extension.run(calls), file.run(calls));
        let mut difference =
            answers.iter().zip(&file_answers).enumerate().find_map(|(at, (a, b))| {
                let differ = a != b && !known::is_known(a, b);
                let found = || Difference::new(at, &calls[at].sql, [a, b]);
                if differ {
                    Some(found()).filter(|found| self.is_sought(found, shape))
                } else {
                    None
                }
            });
        let (a, b) = (extension.notices(), file.notices());
        let at = calls.len() - 1;
        if difference.is_none() && a != b {
            difference = Some(Difference::new(at, "notices", [&a.join("\n"), &b.join("\n")]));
        }
        if difference.is_none() {
            let rows = answer(self.reader.simple_query(ROWS).await);
            if !rows.is_empty() {
                difference = Some(Difference::new(at, "rows, extension | file", ["", &rows]));
            }
        }
        (difference.filter(|found| self.is_sought(found, shape)), answers)
    }

    fn is_sought(&self, found: &Difference, shape: Option<&str>) -> bool {
        match shape {
            Some(shape) => found.shape == shape,
            None => !self.reported.lock().unwrap().contains(&found.shape),
        }
    }

    /// Empties all tables.
    async fn start_again(&self) {
        for edition in &self.editions {
            let empty = "ROLLBACK; TRUNCATE rateLimits, rl_config, rl_blocks, rl_holds, leases;
                         SELECT set_config('ratelimit.clock', '', false)";
            edition.client.batch_execute(empty).await.unwrap();
            edition.notices();
        }
    }

    /// Makes the calls again, from empty tables; returns the first difference of this shape.
    async fn differ(&self, calls: &[Call], shape: &str) -> Option<Difference> {
        self.start_again().await;
        for (n, batch) in calls.chunks(1_000).enumerate() {
            let mut batch = batch.to_vec();
            batch.push(Call { sql: "COMMIT".into(), names: vec![] });
            if let (Some(found), _) = self.run(&batch, Some(shape)).await {
                return Some(Difference {
                    at: (found.at + n * 1_000).min(calls.len() - 1),
                    ..found
                });
            }
        }
        None
    }

    /// Leaves out the calls that the difference doesn't need.
    async fn shrink(&self, mut calls: Vec<Call>, shape: &str) -> (Vec<Call>, Option<Difference>) {
        let started = Instant::now();
        let mut found = self.differ(&calls, shape).await;
        let Some(difference) = &found else { return (calls, None) };
        calls.truncate(difference.at + 1);
        let mut part = calls.len().div_ceil(2);
        while part > 0 && started.elapsed() < Duration::from_secs(10) {
            let mut from = 0;
            let mut less = false;
            while from < calls.len() {
                let to = (from + part).min(calls.len());
                let fewer = [&calls[..from], &calls[to..]].concat();
                let again = if fewer.is_empty() { None } else { self.differ(&fewer, shape).await };
                match again {
                    Some(difference) => {
                        calls = fewer;
                        calls.truncate(difference.at + 1);
                        found = Some(difference);
                        less = true;
                    }
                    None => from = to,
                }
            }
            part = if part == 1 && !less {
                0
            } else {
                part.div_ceil(2).min(part.saturating_sub(1).max(1))
            };
        }
        (calls, found)
    }

    /// Describes a difference, with the fewest calls that lead to it.
    async fn report(&self, seed: u64, done: usize, made: &[Call], found: &Difference) -> String {
        let at = &made[found.at.min(made.len() - 1)];
        let names: BTreeSet<&String> = at.names.iter().collect();
        let concerns = |call: &&Call| {
            call.names.is_empty()
                || names.is_empty()
                || call.names.iter().any(|name| names.contains(name))
        };
        let mut calls: Vec<Call> = made[..=found.at].iter().filter(concerns).cloned().collect();
        if calls.len() > REPEATED {
            calls.drain(..calls.len() - REPEATED);
        }
        let mut report = format!("SEED={seed}, about call {done}: {}\n", found.text);
        let last = calls[calls.len().saturating_sub(40)..].to_vec();
        let (calls, again) = self.shrink(calls, &found.shape).await;
        match again {
            Some(again) => {
                let sql: Vec<_> = calls.iter().map(|call| call.sql.clone() + ";\n").collect();
                report += &format!("in {} calls: {}\n{}", calls.len(), again.text, sql.concat());
            }
            None => {
                let sql: Vec<_> = last.iter().map(|call| call.sql.clone() + ";\n").collect();
                report += &format!("not again; the last calls on its limits:\n{}", sql.concat());
            }
        }
        report
    }
}

/// A database with both, and the tables that calls use.
fn both(name: &'static str, settings: &[(&str, &str)]) -> Database {
    let database = Database::under(name, settings);
    let mut client = database.connect();
    create_role(&mut client, CALLER);
    client
        .batch_execute("CREATE SCHEMA extension; CREATE EXTENSION ratelimit SCHEMA extension")
        .unwrap();
    for schema in SCHEMAS {
        client
            .batch_execute(&format!(
                "CREATE SCHEMA {schema}_tests;
                 SET search_path = {schema}_tests, {schema};
                 CREATE TABLE leases (n int, lease text);
                 CREATE TABLE by_row (author text, tokens float8);
                 CREATE TABLE by_statement (author text, tokens float8);
                 CREATE TRIGGER limits BEFORE INSERT ON by_row FOR EACH ROW
                     EXECUTE FUNCTION {schema}.rl_trigger('limit 00', 'key=author', 'count=tokens');
                 CREATE TRIGGER limits AFTER INSERT ON by_statement REFERENCING NEW TABLE AS new FOR EACH STATEMENT
                     EXECUTE FUNCTION {schema}.rl_trigger('limit 05', 'key=author');
                 DO $$ DECLARE c text; BEGIN
                     FOREACH c IN ARRAY string_to_array('at,day,span,ratio,bytes,cash', ',') LOOP
                         EXECUTE format('CREATE TABLE by_value_%s (at timestamptz, day date, span interval,
                             ratio float8, bytes bytea, cash money)', c);
                         EXECUTE format('CREATE TRIGGER limits BEFORE INSERT ON by_value_%s FOR EACH ROW
                             EXECUTE FUNCTION {schema}.rl_trigger(''limit 01'', ''key=%s'')', c, c);
                     END LOOP;
                 END $$;
                 GRANT USAGE ON SCHEMA {schema}, {schema}_tests TO {CALLER};
                 GRANT EXECUTE ON FUNCTION {schema}.rl_limit, {schema}.rl_take, {schema}.rl_check, {schema}.rl_limit_all,
                     {schema}.rl_hold, {schema}.rl_hold_all TO {CALLER};
                 GRANT INSERT ON by_row, by_statement TO {CALLER}"
            ))
            .unwrap();
    }
    database
}

fn calls() -> usize {
    (CALLS as f64 * times()) as usize
}

/// Makes this number of calls, all in one session or `of_session` in each, in a database with both under these
/// settings; returns the differences.
fn differences(
    name: &'static str,
    settings: &[(&str, &str)],
    limit: usize,
    of_session: Option<usize>,
) -> Vec<String> {
    let seed = seed(1);
    println!("{limit} calls, {settings:?}");
    let database = both(name, settings);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(compare(&database, seed, limit, of_session))
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn both_editions_give_the_same_answers() {
    let reports = differences("plain_compare", &[], calls(), None);
    assert!(reports.is_empty(), "{}", reports.join("\n"));
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn both_give_the_same_answers_in_new_sessions() {
    let reports = differences("plain_compare_sessions", &[], calls() / 50, Some(FEW));
    assert!(reports.is_empty(), "{}", reports.join("\n"));
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn both_give_the_same_answers_under_settings_turned_one_way() {
    let reports = differences("plain_compare_one_way", &settings::profile(0), calls() / 10, None);
    assert!(reports.is_empty(), "{}", reports.join("\n"));
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn both_give_the_same_answers_under_settings_turned_the_other_way() {
    let reports = differences("plain_compare_other_way", &settings::profile(1), calls() / 10, None);
    assert!(reports.is_empty(), "{}", reports.join("\n"));
}

/// In the phase settings of make test-all.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn both_give_the_same_answers_under_each_setting_alone() {
    let all = {
        let database = Database::empty("plain_compare_alone");
        settings::each_alone(&mut database.connect())
    };
    for settings in all {
        let reports = differences(
            "plain_compare_alone",
            &settings,
            calls() / settings::part(&settings),
            None,
        );
        assert!(reports.is_empty(), "{settings:?}: {}", reports.join("\n"));
    }
}

/// The functions of an edition as their callers see them: arguments with names and defaults, result, kind.
fn functions(client: &mut postgres::Client, schema: &str) -> Vec<String> {
    let sql = "SELECT format('%s(%s) %s %s', p.proname, pg_get_function_arguments(p.oid),
                      pg_get_function_result(p.oid), p.prokind)
               FROM pg_proc p WHERE p.pronamespace = $1::text::regnamespace AND p.proname LIKE 'rl\\_%'
                 AND (p.prorettype <> 'trigger'::regtype OR p.proname = 'rl_trigger') ORDER BY 1";
    let rows = client.query(sql, &[&schema]).unwrap();
    rows.iter().map(|row| row.get::<_, String>(0).replace(&format!("{schema}."), "")).collect()
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn both_have_the_same_functions() {
    let database = both("plain_compare_functions", &[]);
    let mut client = database.connect();
    let [extension, file] = SCHEMAS.map(|schema| functions(&mut client, schema));
    assert_eq!(file, extension);
    // And the same types of results.
    let types = "SELECT format('%s(%s)', t.typname, string_agg(format('%s %s', a.attname, a.atttypid::regtype), ', '
                               ORDER BY a.attnum))
                 FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
                 WHERE t.typnamespace = $1::text::regnamespace AND t.typname ~ '^rl_(\\w+_)?result$'
                 GROUP BY t.typname ORDER BY 1";
    let mut types = |schema: &str| -> Vec<String> {
        client.query(types, &[&schema]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    let [extension, file] = SCHEMAS.map(&mut types);
    assert_eq!(file, extension);
    assert_eq!(file.len(), 12);
}

/// Makes this number of calls on both; returns the first differences.
async fn compare(
    database: &Database,
    seed: u64,
    limit: usize,
    of_session: Option<usize>,
) -> Vec<String> {
    let mut pair = Pair::connect(database).await;
    let mut calls = Calls::new(seed);
    let mut made = calls.setup();
    let mut next = made.clone();
    let (mut done, mut errors, mut rows) = (0, 0, 0);
    let mut reports = Vec::new();
    while done < limit && reports.len() < DIFFERENCES {
        let (found, answers) = pair.run(&next, None).await;
        for answer in answers {
            errors += usize::from(!answer.is_empty() && !answer.ends_with('\n'));
            rows += usize::from(answer.ends_with('\n'));
        }
        if let Some(found) = found {
            let at = made.len() - next.len() + found.at;
            reports.push(
                pair.report(
                    seed,
                    done,
                    &made,
                    &Difference { at, shape: found.shape.clone(), text: found.text },
                )
                .await,
            );
            println!("{}", reports.last().unwrap());
            pair.reported.lock().unwrap().insert(found.shape);
            // The editions' rows may differ now.
            pair.start_again().await;
            made = calls.setup();
            next = made.clone();
            continue;
        }
        next = (0..of_session.unwrap_or(BATCH)).map(|_| calls.call()).collect();
        next.push(calls.end());
        if of_session.is_some() {
            pair.editions = Pair::sessions(database).await;
            next.insert(0, calls.set_clock());
        }
        done += next.iter().filter(|call| !call.sql.contains("set_config")).count();
        made.extend(next.iter().cloned());
    }
    println!("{done} calls: {rows} with rows, {errors} errors");
    assert!(!reports.is_empty() || rows > limit / 2 && errors > limit / 50 || limit < 500);
    reports
}
