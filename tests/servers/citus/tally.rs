//! Sessions that keep a tally of what calls reported, each at its client, and what the rows have of it in the end.
//!
//! Reported: the call passed, and its transaction was acknowledged. In doubt: COMMIT, or a statement that is a
//! transaction of its own, ended with an error or without an answer, so either is right. All else took nothing.
//!
//! What calls were answered is recorded for the judge, without those on leases.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, Error};
use ratelimit_judge::{Asked, Recorder, Recording, Reply, Storage};

use crate::cluster::Cluster;
use crate::load::{SESSIONS, disturbed, judged};
use crate::one;
use crate::own::Server;

/// What the small limits have, and the one of slots. Their keys are used up one after another.
const CAPACITY: i64 = 300;
const SLOTS: i64 = 20;
const SMALL: [&str; 5] = ["few", "few parts", "posts", "letters", "slots"];

/// Made on the coordinator. One by one: Citus sends them to other nodes. The limits refill by less than a token.
const LIMITS: [&str; 5] = [
    "SELECT rl_define('one', rl_token_bucket(1, '1000 days', capacity => 1000000)),
            rl_define('window', rl_fixed_window(1000000, '1000 days')),
            rl_define('parts', rl_token_bucket(4, '1000 days', capacity => 1000000, shards => 4)),
            rl_define('few', rl_token_bucket(300, '30000 days')),
            rl_define('few parts', rl_token_bucket(300, '30000 days', shards => 4)),
            rl_define('posts', rl_token_bucket(300, '30000 days')),
            rl_define('letters', rl_token_bucket(300, '30000 days')),
            rl_define('slots', rl_concurrency(20, '1 hour'))",
    "CREATE TABLE letters (author text COLLATE \"C\", body text)",
    "SELECT create_distributed_table('letters', 'author', colocate_with => 'ratelimits')",
    "SET citus.enable_unsafe_triggers = on",
    "CREATE TRIGGER limited BEFORE INSERT ON letters
         FOR EACH ROW EXECUTE FUNCTION rl_trigger('letters', 'key=author')",
];

/// The same limits, for the judge. Triggers don't return the tokens left: their limits are judged by sums, as shards.
const JUDGED: [(&str, &str, Storage); 7] = [
    (
        "one",
        r#"{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": 1000000}"#,
        Storage::Row,
    ),
    ("window", r#"{"kind": "fixed window", "rate": 1000000, "period": "1000 days"}"#, Storage::Row),
    (
        "parts",
        r#"{"kind": "token bucket", "rate": 4, "period": "1000 days", "capacity": 1000000}"#,
        Storage::Shards,
    ),
    ("few", FEW, Storage::Row),
    ("few parts", FEW, Storage::Shards),
    ("posts", FEW, Storage::Shards),
    ("letters", FEW, Storage::Shards),
];

const FEW: &str = r#"{"kind": "token bucket", "rate": 300, "period": "30000 days"}"#;

/// Made on each node, whose tables they are.
const POSTS: &str = "
    CREATE TABLE posts (author text, body text);
    CREATE TRIGGER limited BEFORE INSERT ON posts
        FOR EACH ROW EXECUTE FUNCTION rl_trigger('posts', 'key=author');
    CREATE TABLE posts_together (author text, body text);
    CREATE TRIGGER limited AFTER INSERT ON posts_together REFERENCING NEW TABLE AS written
        FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('posts', 'key=author')";

/// Makes limits and tables.
pub fn set_up(cluster: &Cluster) {
    let mut coordinator = cluster.coordinator();
    for sql in LIMITS {
        coordinator.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    cluster.nodes.iter().for_each(set_up_node);
}

/// Makes the tables that each node has for itself.
pub fn set_up_node(node: &Server) {
    node.client().batch_execute(POSTS).unwrap();
}

/// A take, or with a negative count what is given back.
#[derive(Clone)]
struct Effect {
    name: &'static str,
    key: String,
    count: i64,
    lease: String,
    /// The tokens left after it, if the answer has them.
    left: Option<f64>,
}

impl Effect {
    fn new(name: &'static str, key: String, count: i64) -> Effect {
        Effect { name, key, count, lease: String::new(), left: None }
    }

    /// Returns whether the session gives it back.
    fn is_held(&self) -> bool {
        self.count > 0 && (self.name == "slots" || self.key.contains("idle"))
    }
}

/// What sessions share.
pub struct Shared<'a> {
    /// Begins their keys.
    pub prefix: String,
    /// The nodes they call.
    pub nodes: Mutex<Vec<&'a Server>>,
    /// Sets some short statement_timeout before each transaction.
    pub times_out: bool,
    stop: AtomicBool,
    /// The number of the key that is being used up, of each small limit.
    current: [AtomicUsize; SMALL.len()],
    /// Leases of a key that are surely held, now and at most.
    held: Mutex<BTreeMap<String, (i64, i64)>>,
    /// Each node reads the clock of the one machine.
    recorder: Recorder,
    /// The numbers of keys in the recorder.
    numbers: Mutex<BTreeMap<(&'static str, String), u32>>,
}

impl<'a> Shared<'a> {
    pub fn new(prefix: &str, nodes: Vec<&'a Server>, times_out: bool) -> Shared<'a> {
        Shared {
            prefix: prefix.to_owned(),
            nodes: Mutex::new(nodes),
            times_out,
            stop: AtomicBool::new(false),
            current: Default::default(),
            held: Mutex::default(),
            recorder: Recorder::new(),
            numbers: Mutex::default(),
        }
    }

    /// Returns effects, all of which passed or were denied, as the judge reads them. Two of one key are one take.
    fn told(&self, effects: &[Effect], ok: bool) -> Vec<(u32, Asked, Option<i64>, Reply)> {
        let mut sums: Vec<Effect> = Vec::new();
        for of in effects {
            match sums.iter_mut().find(|sum| (sum.name, &sum.key) == (of.name, &of.key)) {
                Some(sum) => sum.count += of.count,
                None => sums.push(of.clone()),
            }
        }
        let mut numbers = self.numbers.lock().unwrap();
        let judged = |of: &Effect| {
            let &(name, config, storage) = JUDGED.iter().find(|limit| limit.0 == of.name)?;
            let key = || self.recorder.key(name, &of.key, config, storage);
            let number = *numbers.entry((of.name, of.key.clone())).or_insert_with(key);
            let count = of.count.abs() as f64;
            let asked = match of.count < 0 {
                true => Asked::Credit { count },
                false => Asked::Limit { count, reserve: false },
            };
            Some((number, asked, None, Reply { ok, remaining: of.left, retry_at: None }))
        };
        sums.iter().filter_map(judged).collect()
    }

    /// Has the judge say whether some order of the transactions explains every answer.
    pub fn judge(&self) {
        judged(&disturbed(self.recorder.history()));
    }

    /// The key of a small limit that is being used up.
    fn small(&self, name: &str) -> String {
        let n = SMALL.iter().position(|small| *small == name).unwrap();
        format!("{} {}", self.prefix, self.current[n].load(Ordering::Relaxed))
    }

    /// Goes on to the next keys after a denial.
    fn denied(&self, effects: &[Effect]) {
        for of in effects {
            let Some(n) = SMALL.iter().position(|small| *small == of.name) else { continue };
            let number: usize = of.key.rsplit(' ').next().unwrap().parse().unwrap();
            let (done, next) = (Ordering::Relaxed, number + 1);
            let _ = self.current[n].compare_exchange(number, next, done, done);
        }
    }

    fn hold(&self, key: &str, count: i64) {
        let mut held = self.held.lock().unwrap();
        let (now, most) = held.entry(key.to_owned()).or_default();
        *now += count;
        *most = (*most).max(*now);
    }

    /// Runs sessions until `work` is done, and returns their tally.
    pub fn beside(&self, work: impl FnOnce()) -> Tally {
        struct Stop<'a>(&'a AtomicBool);
        // Also where the work fails: the scope waits for its threads.
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        thread::scope(|scope| {
            let sessions: Vec<_> =
                (0..SESSIONS).map(|n| scope.spawn(move || Session::new(self, n).run())).collect();
            let stop = Stop(&self.stop);
            work();
            drop(stop);
            let mut tally = Tally::default();
            for session in sessions {
                tally.add(session.join().unwrap());
            }
            for (key, (_, most)) in self.held.lock().unwrap().iter() {
                if *most > SLOTS {
                    tally.over += most - SLOTS;
                    tally.wrong.push(format!("slots, {key}: {most} leases at once"));
                }
            }
            tally
        })
    }
}

/// What is used of a key: at least, and at most.
#[derive(Clone, Copy, Default)]
struct Bounds {
    least: i64,
    most: i64,
}

/// What calls reported, and what was found.
#[derive(Default)]
pub struct Tally {
    keys: BTreeMap<(&'static str, String), Bounds>,
    held: Vec<Effect>,
    /// Tokens and slots, taken or given back.
    pub told: i64,
    pub in_doubt: i64,
    /// The number of errors by SQLSTATE and call, and one of their messages.
    pub errors: BTreeMap<(String, String), (u64, String)>,
    /// Reported, but not used.
    pub lost: i64,
    /// Used, but neither reported nor in doubt, or more than the limit has.
    pub over: i64,
    /// What is lost or over.
    pub wrong: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        for (key, bounds) in other.keys {
            let sum = self.keys.entry(key).or_default();
            sum.least += bounds.least;
            sum.most += bounds.most;
        }
        self.held.extend(other.held);
        self.told += other.told;
        self.in_doubt += other.in_doubt;
        self.lost += other.lost;
        self.wrong.extend(other.wrong);
        for (code, (count, message)) in other.errors {
            self.errors.entry(code).or_insert((0, message)).0 += count;
        }
    }

    /// Counts the effects of a transaction.
    fn count(&mut self, effects: &[Effect], told: bool) {
        for of in effects {
            let bounds = self.keys.entry((of.name, of.key.clone())).or_default();
            if told || of.count < 0 {
                bounds.least += of.count;
            }
            if told || of.count > 0 {
                bounds.most += of.count;
            }
            *if told { &mut self.told } else { &mut self.in_doubt } += of.count.abs();
        }
    }

    fn lose(&mut self, count: i64, what: String) {
        self.lost += count;
        self.wrong.push(what);
    }

    /// Compares a number found with what calls reported for a key.
    fn compare(&mut self, what: &str, (name, key): (&str, &str), found: i64, bounds: Bounds) {
        let Bounds { least, most } = bounds;
        let text = format!("{name}, {key}: {found} {what}, told {least} to {most}");
        if found < least {
            self.lose(least - found, text);
        } else if found > most {
            self.over += found - most;
            self.wrong.push(text);
        }
        if SMALL[..4].contains(&name) && found > CAPACITY {
            self.over += found - CAPACITY;
            self.wrong.push(format!("{name}, {key}: {found} {what}, of {CAPACITY}"));
        }
    }

    /// Compares what calls reported with the rows, as each node sees them, once all transactions have ended.
    pub fn check(&mut self, nodes: &[&Server], prefix: &str) {
        settle(nodes);
        let used: Vec<_> = nodes.iter().map(|node| used(&mut node.client(), prefix)).collect();
        for (n, of_node) in used.iter().enumerate().filter(|(_, of_node)| **of_node != used[0]) {
            self.wrong.push(format!("node {n} sees {of_node:?}, another {:?}", used[0]));
        }
        let used = used.into_iter().next().unwrap();
        let mut keys = self.keys.clone();
        for (name, key) in used.keys() {
            let name = ALL.into_iter().find(|known| known == name).unwrap();
            keys.entry((name, key.clone())).or_default();
        }
        let rows = rows(nodes, prefix);
        let mut client = nodes[0].client();
        for ((name, key), bounds) in keys {
            let used = used.get(&(name.to_owned(), key.clone())).copied().unwrap_or(0);
            self.compare("used", (name, &key), used, bounds);
            if name == "posts" || name == "letters" {
                let rows = rows.get(&(name.to_owned(), key.clone())).copied().unwrap_or(0);
                self.compare("rows", (name, &key), rows, bounds);
                if rows > used {
                    self.lose(rows - used, format!("{name}, {key}: {rows} rows, {used} used"));
                }
            }
            if SMALL[..4].contains(&name) {
                self.drain(&mut client, (name, &key), used, bounds);
            }
        }
        for of in std::mem::take(&mut self.held).iter().filter(|of| of.name == "slots") {
            if one(&mut client, &format!("SELECT rl_release('{}')", of.lease)) != "true" {
                self.lose(1, format!("lease {} is no more", of.lease));
            }
        }
    }

    /// Takes what a small limit has left, which is all that is not used.
    fn drain(&mut self, client: &mut Client, (name, key): (&str, &str), used: i64, bounds: Bounds) {
        // Large counts first, until each of its shards has less.
        let calls = if name == "few parts" { 4 * 3 + 1 } else { 5 };
        let mut drained = 0;
        for count in [64, 16, 4, 1] {
            let sql = format!(
                "SELECT {count} * count(*) FROM generate_series(1, {calls}) n,
                     rl_limit('{name}', substr('{key}', 1, 1000 + n), {count}) WHERE ok"
            );
            drained += one(client, &sql).parse::<i64>().unwrap();
        }
        if drained + used != CAPACITY {
            self.wrong.push(format!("{name}, {key}: {used} used, and {drained} more passed"));
        }
        if bounds.least + drained > CAPACITY {
            self.over += bounds.least + drained - CAPACITY;
            self.wrong.push(format!("{name}, {key}: {} told and {drained} more", bounds.least));
        }
    }
}

/// Waits until no transaction is open or prepared on any node.
fn settle(nodes: &[&Server]) {
    let open = "SELECT (SELECT count(*) FROM pg_prepared_xacts)
                     + (SELECT count(*) FROM pg_stat_activity
                        WHERE backend_type = 'client backend' AND xact_start IS NOT NULL AND pid <> pg_backend_pid())";
    let began = Instant::now();
    loop {
        let mut left = 0;
        for node in nodes {
            let mut client = node.client();
            client.batch_execute("SELECT recover_prepared_transactions()").unwrap();
            left += one(&mut client, open).parse::<u32>().unwrap();
        }
        if left == 0 {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{left} transactions are left");
        thread::sleep(Duration::from_millis(100));
    }
}

const ALL: [&str; 8] = ["one", "window", "parts", "few", "few parts", "posts", "letters", "slots"];

/// Returns what the rows lack, by name and key.
fn used(client: &mut Client, prefix: &str) -> BTreeMap<(String, String), i64> {
    let sql = "SELECT name, key, count(*), round(sum(value))::int8, sum(cardinality(leases))::int8
               FROM ratelimits WHERE kind <> '#' AND starts_with(key, $1) GROUP BY name, key";
    let rows = client.query(sql, &[&format!("{prefix} ")]).unwrap();
    let of = |row: &postgres::Row| {
        let (name, key, rows, left): (String, String, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let used = match &*name {
            // A lease is a number and a time.
            "slots" => row.get::<_, Option<i64>>(4).unwrap_or(0) / 2,
            "one" | "window" => 1_000_000 - left,
            "parts" => 250_000 * rows - left,
            "few parts" => CAPACITY / 4 * rows - left,
            _ => CAPACITY - left,
        };
        ((name, key), used)
    };
    rows.iter().map(of).filter(|(_, used)| *used != 0).collect()
}

/// Returns the rows that triggers admitted, by the limit's name and key.
fn rows(nodes: &[&Server], prefix: &str) -> BTreeMap<(String, String), i64> {
    let mut found = BTreeMap::new();
    let tables = nodes.iter().flat_map(|node| [(node, "posts"), (node, "posts_together")]);
    for (node, table) in tables.chain([(&nodes[0], "letters")]) {
        let sql = format!(
            "SELECT author, count(*) FROM {table} WHERE starts_with(author, $1) GROUP BY author"
        );
        for row in node.client().query(&sql, &[&format!("{prefix} ")]).unwrap() {
            let name = table.split('_').next().unwrap().to_owned();
            *found.entry((name, row.get(0))).or_default() += row.get::<_, i64>(1);
        }
    }
    found
}

/// The calls, in the order in which a transaction makes them: of one key each, but the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Few,
    FewParts,
    Post,
    PostTogether,
    Copy,
    Letter,
    Letters,
    Acquire,
    Release,
    Idle,
    One,
    Several,
}

const CALLS: [Call; 12] = [
    Call::Few,
    Call::FewParts,
    Call::Post,
    Call::PostTogether,
    Call::Copy,
    Call::Letter,
    Call::Letters,
    Call::Acquire,
    Call::Release,
    Call::Idle,
    Call::One,
    Call::Several,
];

struct Session<'a, 'n> {
    shared: &'a Shared<'n>,
    number: usize,
    client: Option<Client>,
    tally: Tally,
    /// What it may give back.
    held: Vec<Effect>,
}

impl<'a, 'n> Session<'a, 'n> {
    fn new(shared: &'a Shared<'n>, number: usize) -> Session<'a, 'n> {
        Session { shared, number, client: None, tally: Tally::default(), held: Vec::new() }
    }

    fn run(mut self) -> Tally {
        let mut recording = self.shared.recorder.session();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let open = self.client.take().map_or_else(|| self.connect(), Ok);
            let result = open.and_then(|mut client| {
                if self.shared.times_out {
                    let set = format!("SET statement_timeout = {}", fastrand::u32(2..100));
                    client.batch_execute(&set)?;
                }
                let usable = if fastrand::bool() {
                    self.alone(&mut client, &mut recording)
                } else {
                    self.block(&mut client, &mut recording)
                };
                // A transaction that is open has ended with what it took.
                recording.lost();
                // A new one now and then, also for nodes that are new.
                if usable && fastrand::u8(..) > 0 {
                    self.client = Some(client);
                }
                Ok(())
            });
            if let Err(error) = result {
                self.stays_in_none(&error);
                self.note(&error, "a new session");
                thread::sleep(Duration::from_millis(20));
            }
        }
        self.tally.held = self.held;
        self.tally
    }

    fn connect(&self) -> Result<Client, Error> {
        let node = {
            let nodes = self.shared.nodes.lock().unwrap();
            nodes[self.number % nodes.len()]
        };
        let mut client = node.connect("postgres")?;
        client.batch_execute("SET statement_timeout = '30s'")?;
        if self.number.is_multiple_of(3) {
            client.batch_execute("SET citus.function_opens_transaction_block = off")?;
        }
        Ok(client)
    }

    /// Counts an error of a call; whether the session goes on.
    fn note(&mut self, error: &Error, of: &str) -> bool {
        let code = match error.code() {
            Some(code) => code.code().to_owned(),
            None if error.to_string().contains("unexpected") => error.to_string(),
            None => "connection lost".to_owned(),
        };
        let goes_on = error.code().is_some() && !code.starts_with("57P");
        let message = match error.as_db_error() {
            Some(error) => format!("{}; {}", error.message(), error.where_().unwrap_or("")),
            None => error.to_string(),
        };
        self.tally.errors.entry((code, of.to_owned())).or_insert((0, message)).0 += 1;
        if error.code().is_none_or(|code| code.code() == "08006") {
            // A node is down.
            thread::sleep(Duration::from_millis(5));
        }
        goes_on
    }

    /// Each end of a transaction has ended it: without BEGIN, a session is in none.
    fn stays_in_none(&mut self, error: &Error) {
        if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
            self.tally.wrong.push("a session is in a transaction that nobody began".to_owned());
        }
    }

    /// What took nothing: what it would have given back is there still.
    fn undo(&mut self, effects: Vec<Effect>) {
        for mut of in effects {
            if of.count < 0 {
                of.count = -of.count;
                if of.name == "slots" {
                    self.shared.hold(&of.key, 1);
                }
                self.held.push(of);
            }
        }
    }

    fn told(&mut self, effects: Vec<Effect>) {
        self.tally.count(&effects, true);
        for of in effects.into_iter().filter(Effect::is_held) {
            if of.name == "slots" {
                self.shared.hold(&of.key, 1);
            }
            self.held.push(of);
        }
    }

    /// Makes a call that is a transaction; returns whether the session goes on.
    fn alone(&mut self, client: &mut Client, recording: &mut Recording) -> bool {
        let call = CALLS[fastrand::usize(0..CALLS.len())];
        let (effects, result) = self.recorded(client, recording, call);
        match result {
            Ok(true) => self.told(effects),
            Ok(false) => self.shared.denied(&effects),
            Err(error) if is_denial(&error) => self.shared.denied(&effects),
            Err(error) => {
                self.stays_in_none(&error);
                self.tally.count(&effects, false);
                let told = self.shared.told(&effects, true).into_iter();
                recording.unanswered(told.map(|(key, asked, ..)| (key, asked)));
                return self.note(&error, &format!("{call:?}"));
            }
        }
        true
    }

    /// Makes some calls in a transaction and rolls some back; returns whether the session goes on.
    fn block(&mut self, client: &mut Client, recording: &mut Recording) -> bool {
        if let Err(error) = client.batch_execute("BEGIN") {
            self.stays_in_none(&error);
            // It may have begun.
            return self.note(&error, "BEGIN") && client.batch_execute("ROLLBACK").is_ok();
        }
        recording.begin();
        let mut calls: Vec<_> = (0..3).map(|_| CALLS[fastrand::usize(0..CALLS.len())]).collect();
        calls.truncate(fastrand::usize(1..=3));
        calls.sort();
        calls.dedup();
        let mut effects = Vec::new();
        for call in calls {
            if let Err(error) = self.step(client, recording, call, &mut effects) {
                let goes_on =
                    is_denial(&error) || self.note(&error, &format!("{call:?} in a transaction"));
                self.undo(effects);
                // If this fails, the next statement does.
                return goes_on && recording.roll_back(|| client.batch_execute("ROLLBACK")).is_ok();
            }
        }
        if fastrand::u8(0..4) == 0 {
            self.undo(effects);
            return recording
                .roll_back(|| client.batch_execute("ROLLBACK"))
                .map_err(|error| self.note(&error, "ROLLBACK"))
                .is_ok();
        }
        match recording.commit(|| client.batch_execute("COMMIT")) {
            Ok(()) => self.told(effects),
            Err(error) => {
                self.tally.count(&effects, false);
                // It may be that it didn't begin to.
                return self.note(&error, "COMMIT") && client.batch_execute("ROLLBACK").is_ok();
            }
        }
        true
    }

    /// A call of a transaction, sometimes in a savepoint. After an error the transaction is no more.
    fn step(
        &mut self,
        client: &mut Client,
        recording: &mut Recording,
        call: Call,
        all: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        let savepoint = fastrand::u8(0..4) == 0;
        if savepoint {
            client.batch_execute("SAVEPOINT s")?;
            recording.savepoint();
        }
        let (effects, result) = self.recorded(client, recording, call);
        match result {
            Ok(true) if savepoint && fastrand::bool() => {
                self.undo(effects);
                recording.roll_back_to(|| client.batch_execute("ROLLBACK TO s"))?;
            }
            Ok(true) => all.extend(effects),
            Ok(false) => self.shared.denied(&effects),
            Err(error) => {
                let goes_on = if is_denial(&error) {
                    self.shared.denied(&effects);
                    true
                } else {
                    self.note(&error, &format!("{call:?} in a savepoint"))
                };
                self.undo(effects);
                if !savepoint || !goes_on {
                    return Err(error);
                }
                recording.roll_back_to(|| client.batch_execute("ROLLBACK TO s"))?;
            }
        }
        Ok(())
    }

    /// Makes a call as [`Session::call`] does, and records the answer. Only takes of one key that don't
    /// pass are denials for sure.
    fn recorded(
        &mut self,
        client: &mut Client,
        recording: &mut Recording,
        call: Call,
    ) -> (Vec<Effect>, Result<bool, Error>) {
        let shared = self.shared;
        let ask = || match self.call(client, call) {
            (effects, Ok(passed)) => Ok((effects, passed)),
            (effects, Err(error)) => Err((effects, error)),
        };
        let told = |(effects, passed): &(Vec<Effect>, bool)| match call {
            Call::Few | Call::FewParts | Call::One => shared.told(effects, *passed),
            _ if *passed => shared.told(effects, true),
            _ => Vec::new(),
        };
        match recording.call(ask, told) {
            Ok((effects, passed)) => (effects, Ok(passed)),
            Err((effects, error)) => (effects, Err(error)),
        }
    }

    /// Makes a call: what it takes if it passes, and whether it did.
    fn call(&mut self, client: &mut Client, call: Call) -> (Vec<Effect>, Result<bool, Error>) {
        let count = fastrand::i64(1..4);
        let small = |name| Effect::new(name, self.shared.small(name), count);
        match call {
            Call::Few => take(client, small("few")),
            Call::FewParts => take(client, small("few parts")),
            Call::Post => insert(client, "posts", small("posts")),
            Call::PostTogether => insert(client, "posts_together", small("posts")),
            Call::Copy => copy(client, small("posts")),
            Call::Letter => insert(client, "letters", Effect { count: 1, ..small("letters") }),
            Call::Letters => insert(client, "letters", small("letters")),
            Call::Acquire => acquire(client, Effect { count: 1, ..small("slots") }),
            Call::Release => self.release(client),
            Call::Idle => self.idle(client),
            Call::One => take(client, Effect::new(large(), self.key(), count)),
            Call::Several => self.several(client, count),
        }
    }

    /// A key of the large limits.
    fn key(&self) -> String {
        match fastrand::bool() {
            true => format!("{} hot", self.shared.prefix),
            false => format!("{} key {}", self.shared.prefix, fastrand::u32(0..100)),
        }
    }

    fn several(&self, client: &mut Client, count: i64) -> (Vec<Effect>, Result<bool, Error>) {
        let mut takes =
            [Effect::new(large(), self.key(), count), Effect::new("one", self.key(), 1)];
        let request =
            |of: &Effect| serde_json::json!({ "name": of.name, "key": of.key, "count": of.count });
        let requests = serde_json::Value::from_iter(takes.iter().map(request)).to_string();
        let sql = "SELECT ok, remaining FROM rl_limit_all($1::text::jsonb) ORDER BY n";
        let passed = client.query(sql, &[&requests]).map(|rows| {
            takes.iter_mut().zip(&rows).for_each(|(take, row)| take.left = row.get(1));
            !rows.is_empty() && rows.iter().all(|row| row.get(0))
        });
        (takes.to_vec(), passed)
    }

    /// Takes out what it holds of a name, to give it back.
    fn take_out(&mut self, name: &str) -> Option<Effect> {
        let n = self.held.iter().position(|of| of.name == name)?;
        let mut of = self.held.swap_remove(n);
        of.count = -of.count;
        if name == "slots" {
            self.shared.hold(&of.key, -1);
        }
        Some(of)
    }

    fn release(&mut self, client: &mut Client) -> (Vec<Effect>, Result<bool, Error>) {
        let Some(back) = self.take_out("slots") else { return (Vec::new(), Ok(false)) };
        let released =
            client.query_one("SELECT rl_release($1)", &[&back.lease]).map(|row| row.get(0));
        if let Ok(false) = released {
            self.tally.lose(1, format!("lease {} is no more", back.lease));
            return (Vec::new(), Ok(false));
        }
        (vec![back], released)
    }

    /// Credits what it took of a key before, or takes: so there are rows for rl_prune.
    fn idle(&mut self, client: &mut Client) -> (Vec<Effect>, Result<bool, Error>) {
        if let Some(mut back) = self.take_out("one") {
            let sql = "SELECT ok, remaining FROM rl_credit('one', $1, $2)";
            let credited = client.query_one(sql, &[&back.key, &(-back.count as f64)]).map(|row| {
                back.left = row.get(1);
                row.get(0)
            });
            return (vec![back], credited);
        }
        let key = format!("{} idle {}", self.shared.prefix, fastrand::u32(0..10));
        take(client, Effect::new("one", key, 1))
    }
}

/// Also where Citus leaves the message alone.
fn is_denial(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| error.message().contains("rate limit exceeded"))
}

fn large() -> &'static str {
    ["one", "window", "parts"][fastrand::usize(0..3)]
}

fn take(client: &mut Client, mut take: Effect) -> (Vec<Effect>, Result<bool, Error>) {
    let sql = "SELECT ok, remaining FROM rl_limit($1, $2, $3)";
    let count = take.count as f64;
    let passed = client.query_one(sql, &[&take.name, &take.key, &count]).map(|row| {
        take.left = row.get(1);
        row.get(0)
    });
    (vec![take], passed)
}

fn acquire(client: &mut Client, mut take: Effect) -> (Vec<Effect>, Result<bool, Error>) {
    let sql = "SELECT ok, coalesce(lease, '') FROM rl_acquire('slots', $1)";
    let passed = client.query_one(sql, &[&take.key]).map(|row| {
        take.lease = row.get(1);
        row.get(0)
    });
    (vec![take], passed)
}

/// Inserts a row a token.
fn insert(client: &mut Client, table: &str, take: Effect) -> (Vec<Effect>, Result<bool, Error>) {
    let sql = match take.count {
        1 => format!("INSERT INTO {table} VALUES ('{}', 'x')", take.key),
        count => format!(
            "INSERT INTO {table} SELECT '{}', 'x' FROM generate_series(1, {count})",
            take.key
        ),
    };
    let inserted = client.batch_execute(&sql).map(|()| true);
    (vec![take], inserted)
}

fn copy(client: &mut Client, take: Effect) -> (Vec<Effect>, Result<bool, Error>) {
    let table = ["posts", "posts_together"][fastrand::usize(0..2)];
    let copied = copy_to(client, table, &take);
    (vec![take], copied)
}

/// Copies rows of their own, and returns whether they are there. The client knows it before the commit.
fn copy_to(client: &mut Client, table: &str, take: &Effect) -> Result<bool, Error> {
    let body = fastrand::u64(..).to_string();
    let rows = format!("{}\t{body}\n", take.key).repeat(take.count as usize);
    let mut writer = client.copy_in(&format!("COPY {table} FROM STDIN"))?;
    // It is kept until the end.
    writer.write_all(rows.as_bytes()).unwrap();
    writer.finish()?;
    let sql = format!("SELECT count(*) = $1 FROM {table} WHERE body = $2");
    Ok(client.query_one(&sql, &[&take.count, &body])?.get(0))
}
