//! An oracle over applications with calls that share statements: several processes, of which some are killed, lose
//! connections or have timeouts, while transactions hold a key, or take two in the other order. No limit gives more
//! than it has, no admitted token is lost, and every call is answered. The program of the tests is the application,
//! too.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use postgres_rate_limit::{Error, Limit};
use serde_json::{Value, json};
use sqlx::Connection;
use tower_service::Service;

use crate::application::*;
use crate::shared::routes;

/// The variable that makes the program an application: its name, options and seed, as JSON.
const APPLICATION: &str = "RATELIMIT_TOWER_APPLICATION";

/// Another number of the environment; an empty one is none.
fn number(name: &str) -> u32 {
    let text = std::env::var(name).unwrap_or_default();
    if text.is_empty() { 1 } else { text.parse().unwrap() }
}

/// A key: of the 12 in each store the first two are busy; the first and every third are soon used up.
fn keys() -> Vec<(String, u32, &'static str)> {
    let stores =
        if env("RATELIMIT_EDITION") == "file" { &["table"][..] } else { &["table", "memory"] };
    let of = |store| (0..12).map(move |n| (format!("{n:02} in the {store}"), n, store));
    let rate = |n| if n % 3 == 0 { 60 } else { 1_000_000 };
    stores
        .iter()
        .flat_map(|store| of(*store))
        .map(|(key, n, store)| (key, rate(n), store))
        .collect()
}
const A: usize = 1;
const B: usize = 2;
const HELD: usize = 4;

fn limit_of(name: &str, rate: u32, store: &str) -> Limit {
    let config = json!({
        "kind": "fixed window", "rate": rate, "period": "1000 hours", "start": "first request", "store": store
    });
    Limit::new(name).config(config)
}

/// Numbers that a seed repeats.
struct Random(AtomicU32);

impl Random {
    fn below(&self, most: usize) -> usize {
        let next = |state: u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        let state = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap();
        ((u64::from(state) * most as u64) >> 32) as usize
    }
}

/// Calls limits in a loop until the input ends; writes each call before it is made, and its answer, at once.
async fn application<D: Driver>(given: &Value) {
    let text = |field: &str| given[field].as_str().map(str::to_owned);
    let mut to = To { most: 4, ..To::default() };
    to.settings.push(("application_name", text("name").unwrap()));
    for setting in ["statement_timeout", "lock_timeout"] {
        to.settings.extend(text(setting).map(|value| (setting, value)));
    }
    let pool = D::pool(to);
    let keys = keys();
    let name = text("name").unwrap();
    let mut first = layer(pool, Limit::new(&name)).prepare(given["prepare"] != false);
    if let Some(milliseconds) = given["timeout"].as_u64() {
        first = first.timeout(Duration::from_millis(milliseconds));
    }
    let mut apps: HashMap<(u32, &str), Router> = HashMap::new();
    for (_, rate, store) in &keys {
        let layer = first.another(limit_of(&name, *rate, store), header_key);
        apps.entry((*rate, store)).or_insert_with(|| routes(layer));
    }
    let random = Random(AtomicU32::new(given["seed"].as_u64().unwrap() as u32));
    let shared = Arc::new((keys, apps, random, AtomicUsize::new(0), AtomicBool::new(false)));
    let stops = shared.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stops.4.store(true, Ordering::Relaxed);
    });
    println!(); // ends a line of the program of tests
    let works = (0..12).map(|_| {
        let shared = shared.clone();
        tokio::spawn(async move {
            let (keys, apps, random, calls, stopped) = &*shared;
            while !stopped.load(Ordering::Relaxed) {
                // Half are for the first key.
                let key = if random.below(2) == 0 { 0 } else { random.below(keys.len()) };
                let count = ["1", "1", "1", "2", "3", "-1", "NaN"][random.below(7)];
                let n = calls.fetch_add(1, Ordering::Relaxed);
                write(&format!("call {n} {key} {count}"));
                let (name, rate, store) = &keys[key];
                let request = Request::get("/").header("key", name).header("count", count);
                let mut app = apps[&(*rate, *store)].clone();
                let answer = app.call(request.body(Body::empty()).unwrap()).await.unwrap();
                let error = answer.extensions().get::<Error>();
                let answer = match (answer.status(), error) {
                    (StatusCode::OK, _) => "ok".to_owned(),
                    (StatusCode::TOO_MANY_REQUESTS, _) => "denied".to_owned(),
                    (status, error) => {
                        format!(
                            "{} {}",
                            status.as_u16(),
                            error.and_then(Error::code).unwrap_or("-")
                        )
                    }
                };
                write(&format!("answer {n} {answer}"));
                tokio::time::sleep(Duration::from_millis(random.below(4) as u64)).await;
            }
        })
    });
    for work in works.collect::<Vec<_>>() {
        work.await.unwrap();
    }
    write("end");
}

fn write(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// What is known of a key: tokens that were taken, that may have been, and the smallest count denied.
#[derive(Clone, Debug, Default)]
struct Known {
    taken: u32,
    unknown: u32,
    denied: Option<u32>,
}

#[derive(Default)]
struct Found {
    keys: Vec<Known>,
    answers: BTreeMap<String, usize>,
    wrong: BTreeMap<String, usize>,
    killed: usize,
}

/// The number of tokens that a call takes; None: it is a bad one.
fn tokens(count: &str) -> Option<u32> {
    count.parse().ok()
}

impl Found {
    fn settle(&mut self, key: usize, count: &str, answer: &str) {
        *self.answers.entry(answer.to_owned()).or_default() += 1;
        // A lost connection, a timeout of the layer, of a statement and of a lock, and too many sessions.
        let not_now = ["503 57P01", "503 -", "503 57014", "503 55P03", "503 53300"];
        let is_not_now = not_now.contains(&answer);
        let known = &mut self.keys[key];
        match (tokens(count), answer) {
            (Some(count), "ok") => known.taken += count,
            (Some(count), "denied") => {
                known.denied = Some(known.denied.map_or(count, |least| least.min(count)))
            }
            (Some(count), _) if is_not_now => known.unknown += count,
            (None, "500 22023") => {}
            (None, _) if is_not_now => {}
            _ => *self.wrong.entry(format!("{count}: {answer}")).or_default() += 1,
        }
    }
}

/// Calls without an answer: their keys and counts.
type Open = HashMap<String, (usize, String)>;

/// An application that runs, and what writes down what it says: returns those that are open in the end, and whether it
/// has ended.
struct Running {
    process: Child,
    said: JoinHandle<(Open, bool)>,
    found: Arc<Mutex<Found>>,
}

fn start(found: &Arc<Mutex<Found>>, given: &Value) -> Running {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "oracle::applications_of_which_some_are_killed"])
        .env(APPLICATION, given.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(process.stdout.take().unwrap());
    let settles = found.clone();
    let said = std::thread::spawn(move || {
        let (mut open, mut ended) = (Open::new(), false);
        for line in out.lines().map_while(Result::ok) {
            let fields: Vec<_> = line.splitn(3, ' ').collect();
            match fields[..] {
                ["call", n, call] => {
                    let (key, count) = call.split_once(' ').unwrap();
                    open.insert(n.to_owned(), (key.parse().unwrap(), count.to_owned()));
                }
                ["answer", n, answer] => {
                    let (key, count) = open.remove(n).unwrap();
                    settles.lock().unwrap().settle(key, &count, answer);
                }
                ["end"] => ended = true,
                _ => {} // a line of the program of tests
            }
        }
        (open, ended)
    });
    Running { process, said, found: found.clone() }
}

impl Running {
    fn stop(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
        let (open, ended) = self.said.join().unwrap();
        assert!(ended && open.is_empty(), "every call is answered: {open:?}");
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let (open, _) = self.said.join().unwrap();
        let mut found = self.found.lock().unwrap();
        for (key, count) in open.values() {
            found.keys[*key].unknown += tokens(count).unwrap_or(0);
            found.killed += 1;
        }
    }
}

/// Runs transactions until the end, in which each takes one of these keys in turn.
async fn transactions(
    name: String,
    taken: &'static [usize],
    between: Duration,
    commits: bool,
    found: Arc<Mutex<Found>>,
    stopped: Arc<AtomicBool>,
) {
    let (mut db, keys) = (admin().await, keys());
    while !stopped.load(Ordering::Relaxed) {
        let mut transaction = db.begin().await.unwrap();
        for key in taken {
            let (key, rate, store) = &keys[*key];
            let take = limit_of(&name, *rate, store);
            assert!(take.take(&mut transaction, key).await.expect("no deadlock").ok);
            tokio::time::sleep(between).await;
        }
        if commits {
            transaction.commit().await.unwrap();
            let mut found = found.lock().unwrap();
            taken.iter().for_each(|key| found.keys[*key].taken += 1);
        } else {
            transaction.rollback().await.unwrap();
        }
    }
}

async fn oracle() {
    let (times, seed) = (number("TIMES"), number("SEED"));
    let name = unique("oracle");
    let keys = keys();
    let found = Arc::new(Mutex::new(Found {
        keys: vec![Known::default(); keys.len()],
        ..Found::default()
    }));
    let stopped = Arc::new(AtomicBool::new(false));
    let held = Duration::from_millis((400 * u64::from(times)).min(10_000));
    let runs = |taken, between, commits| {
        tokio::spawn(transactions(
            name.clone(),
            taken,
            between,
            commits,
            found.clone(),
            stopped.clone(),
        ))
    };
    let others = [runs(&[HELD], held, false), runs(&[B, A], Duration::from_millis(2), true)];
    let options = [
        json!({}),
        json!({ "timeout": 40, "statement_timeout": "500" }), // what is late is not under way for long
        json!({ "statement_timeout": "60" }),
        json!({ "lock_timeout": "20", "prepare": false }),
    ];
    let begin = |n: usize, seed: u32| {
        let mut given = options[n].clone();
        given["name"] = name.clone().into();
        given["seed"] = seed.into();
        start(&found, &given)
    };
    let mut running: Vec<_> = (0..options.len()).map(|n| Some(begin(n, seed + n as u32))).collect();
    let terminate = "SELECT count(pg_terminate_backend(pid))::text FROM (
        SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY random() LIMIT 2) AS t";
    for turn in 0..5 * times {
        tokio::time::sleep(Duration::from_millis(500)).await;
        sql(terminate, &[&name]).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let n = turn as usize % options.len();
        running[n].take().unwrap().kill();
        running[n] = Some(begin(n, seed + 101 * (turn + 1)));
    }
    stopped.store(true, Ordering::Relaxed);
    for other in others {
        other.await.unwrap();
    }
    running.into_iter().flatten().for_each(Running::stop);

    // Statements of processes that were killed may still run.
    let run = "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = $1";
    until("no statement runs", async || sql(run, &[&name]).await == "0").await;
    let (mut db, found) = (admin().await, std::mem::take(&mut *found.lock().unwrap()));
    let (answers, killed) = (&found.answers, found.killed);
    println!("seed {seed}: {answers:?}, {killed} calls of killed processes without an answer");
    for ((key, rate, store), Known { taken, unknown, denied }) in keys.iter().zip(&found.keys) {
        let left = limit_of(&name, *rate, store).count(0.0).take(&mut db, key).await.unwrap();
        let used = rate - left.remaining.unwrap() as u32;
        let text = format!(
            "{key}: {used} used, {taken} taken, {unknown} unknown, {denied:?} denied, of {rate}"
        );
        assert!(used <= *rate && *taken <= used, "nothing over, nothing lost: {text}");
        assert!(used <= taken + unknown, "nothing twice: {text}");
        assert!(
            denied.is_none_or(|denied| used + denied > *rate),
            "denied only if there is too little: {text}"
        );
    }
    assert!(found.wrong.is_empty(), "{:?}", found.wrong);
    assert!(found.answers.contains_key("ok") && found.answers.contains_key("denied"));
}

#[test]
fn applications_of_which_some_are_killed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let Ok(given) = std::env::var(APPLICATION) else { return runtime.block_on(oracle()) };
    let given: Value = serde_json::from_str(&given).unwrap();
    if given["seed"].as_u64().unwrap().is_multiple_of(2) {
        runtime.block_on(application::<Sqlx>(&given));
    } else {
        runtime.block_on(application::<TokioPostgres>(&given));
    }
}
