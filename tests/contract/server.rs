//! The contract of a store, by the SQL functions of a server.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use postgres::{Client, Row};

use crate::contract::cases::{Case, Store, answer, cases, yes};

/// Where the clock begins, in milliseconds since the epoch.
const BEGIN: i64 = 1_800_000_000_000;

/// How many sessions a case may have.
const SESSIONS: usize = 3;

/// Runs those of the cases that `runs` picks, on these stores, in sessions that `connect` makes; returns how many runs
/// there were: one or more on each store.
pub fn run(connect: impl Fn() -> Client, stores: &[Store], runs: impl Fn(&Case) -> bool) -> usize {
    let mut sessions: Vec<Session> =
        (0..SESSIONS).map(|_| Session { client: Some(connect()), ..Session::default() }).collect();
    let mut watch = connect();
    let mut count = 0;
    for &store in stores {
        let before = count;
        let cases = cases();
        let cases = cases.iter().filter(|case| case.stores.contains(&store) && runs(case));
        for case in cases {
            watch.batch_execute("DELETE FROM rateLimits").unwrap();
            run_case(&mut sessions, &mut watch, case, store);
            count += 1;
        }
        assert!(count > before, "no case runs on {store:?}");
    }
    count
}

fn run_case(sessions: &mut [Session], watch: &mut Client, case: &Case, store: Store) {
    let place = format!("{}, {store:?}", case.name);
    // Memory outlives the databases of earlier runs.
    let pid: i32 = watch.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let name = format!("{place}, {pid}");
    let configs: Vec<String> = case.limits.iter().map(|config| store.config(config)).collect();
    let mut clock = BEGIN;
    set_clock(sessions, clock);
    let call = Call { name, configs };
    for session in sessions.iter_mut() {
        session.leases.clear();
    }
    sessions[0].statement(&call, watch, "define 0", "");
    for step in &case.steps {
        if let Some(millis) = step.statement.strip_prefix("clock ") {
            clock += millis.parse::<i64>().unwrap();
            set_clock(sessions, clock);
            continue;
        }
        let session = &mut sessions[step.session - 1];
        let answer = session.statement(&call, watch, step.statement, step.expected);
        step.check(&place, &answer);
    }
}

fn set_clock(sessions: &mut [Session], millis: i64) {
    for client in sessions.iter_mut().filter_map(|session| session.client.as_mut()) {
        client.batch_execute(&format!("SET ratelimit.clock = '{millis}'")).unwrap();
    }
}

/// A session.
#[derive(Default)]
struct Session {
    /// `None` while a statement of it waits.
    client: Option<Client>,
    /// The statement that waits.
    begun: Option<JoinHandle<(Client, Vec<Row>)>>,
    leases: Vec<String>,
}

impl Session {
    /// Executes a statement, up to its end, or to a wait if it is to wait; returns its answer.
    fn statement(&mut self, call: &Call, watch: &mut Client, text: &str, expected: &str) -> String {
        if text != "ends" {
            let mut client = self.client.take().expect("the session's last statement has ended");
            let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
            let sql = call.sql(text, self.leases.last());
            self.begun = Some(thread::spawn(move || {
                let rows = client.query(&sql, &[]).unwrap_or_else(|error| {
                    panic!("{sql}: {error:?}");
                });
                (client, rows)
            }));
            if expected == "waits" {
                return self.wait(watch, pid);
            }
        }
        let begun = self.begun.take().expect("a statement that waits");
        let (client, rows) = begun.join().expect("an answer");
        self.client = Some(client);
        self.answer(&rows)
    }

    /// Waits until a statement waits for a lock.
    fn wait(&self, watch: &mut Client, pid: i32) -> String {
        let waits = "SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = $1";
        while !self.begun.as_ref().is_some_and(JoinHandle::is_finished) {
            if watch.query_one(waits, &[&pid]).unwrap().get(0) {
                return "waits".into();
            }
            thread::sleep(Duration::from_millis(1));
        }
        "does not wait".into()
    }

    /// The text of what a statement returned.
    fn answer(&mut self, rows: &[Row]) -> String {
        let Some(first) = rows.first() else { return String::new() };
        match first.columns()[0].name() {
            "ok" => {
                if let Ok(Some(lease)) = first.try_get("lease") {
                    self.leases.push(lease);
                }
                let wait =
                    |row: &Row| row.get::<_, Option<f64>>(2).map(|wait| (wait * 1e3).round());
                let left = |row: &Row| row.get::<_, Option<f64>>(1).unwrap_or(f64::INFINITY);
                let answer = |row: &Row| answer(row.get(0), left(row), wait(row));
                rows.iter().map(answer).collect::<Vec<_>>().join("; ")
            }
            "yes" => yes(first.get(0)),
            _ => first.try_get::<_, i64>(0).map_or(String::new(), |count| count.to_string()),
        }
    }
}

/// What the calls of a case are for.
struct Call {
    name: String,
    configs: Vec<String>,
}

impl Call {
    /// The SQL of a statement.
    fn sql(&self, text: &str, lease: Option<&String>) -> String {
        let name = &self.name;
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (key, count) = rest.split_once(' ').unwrap_or((rest, "1"));
        let answers = "SELECT ok, remaining, retry_after";
        let lease = lease.map_or("", String::as_str);
        match verb {
            "begin" | "commit" | "rollback" => verb.into(),
            "savepoint" => "SAVEPOINT s".into(),
            "rollback_to" => "ROLLBACK TO s".into(),
            "take" => format!("{answers} FROM rl_limit('{name}', '{key}', {count})"),
            "reserve" => format!("{answers} FROM rl_limit('{name}', '{key}', {count}, true)"),
            "part" => format!("{answers} FROM rl_take('{name}', '{key}', {count})"),
            "check" => format!("{answers} FROM rl_check('{name}', '{key}', {count})"),
            "credit" => format!("{answers} FROM rl_credit('{name}', '{key}', {count})"),
            "all" => {
                let request = |request: &str| {
                    let (key, count) = request.split_once(' ').unwrap();
                    format!(r#"{{"name": "{name}", "key": "{key}", "count": {count}}}"#)
                };
                let requests: Vec<String> = rest.split(", ").map(request).collect();
                format!("{answers} FROM rl_limit_all('[{}]') ORDER BY n", requests.join(", "))
            }
            "acquire" => format!("{answers}, lease FROM rl_acquire('{name}', '{key}')"),
            "extend" => format!("SELECT rl_extend('{lease}') IS NOT NULL AS yes"),
            "release" => format!("SELECT rl_release('{lease}') AS yes"),
            "reset" => format!("SELECT rl_reset('{name}', '{key}') AS yes"),
            "reset_all" => format!("SELECT rl_reset_keys('{name}') > 0 AS yes"),
            "prune" => "SELECT rl_prune()".into(),
            "define" => {
                let config = &self.configs[rest.parse::<usize>().unwrap()];
                format!("SELECT rl_define('{name}', '{config}')")
            }
            "block" => format!("SELECT rl_block('{name}', '{key}', until => 'infinity')"),
            "save" => "SELECT rl_save()".into(),
            _ => panic!("{text:?} is no statement"),
        }
    }
}
