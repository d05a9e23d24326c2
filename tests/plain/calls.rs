//! Random calls that mean the same to the extension and to the SQL file. They use a few limits of every kind, so most
//! find the state of earlier calls.

use fastrand::Rng;

/// A statement, and the names of the limits that it may use; none for all limits.
#[derive(Clone, Debug)]
pub struct Call {
    pub sql: String,
    pub names: Vec<String>,
}

/// A role that may call some of the functions, but not rl_define.
pub const CALLER: &str = "plain_caller";

const NAMES: usize = 24;
const KEYS: [&str; 6] = ["", "k", "user-1", "é ü", "a'b\"c\\", "long"];
const ZONES: [&str; 6] = [
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "UTC",
    "Asia/Kathmandu",
    "America/St_Johns",
];
const COUNTS: [&str; 14] =
    ["0", "1", "1", "1", "2", "3", "2.5", "0.1", "7", "1e-9", "1000", "1e15", "3.3333333", "17"];
const BAD_COUNTS: [&str; 6] = ["-1", "'NaN'", "'Infinity'", "1e16", "NULL", "1.0000001"];

fn one<T: Copy>(random: &mut Rng, among: &[T]) -> T {
    random.choice(among).copied().unwrap()
}

/// A literal, under any standard_conforming_strings.
pub fn quoted(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    format!("{escape}'{}'", text.replace('\'', "''").replace('\\', "\\\\"))
}

/// The state of a random run.
pub struct Calls {
    random: Rng,
    /// Microseconds since the epoch.
    clock: i64,
    /// The number of leases requested; the table `leases` has those that were granted.
    requested: u32,
    in_transaction: bool,
    /// Above READ COMMITTED.
    has_snapshot: bool,
}

impl Calls {
    pub fn new(seed: u64) -> Calls {
        let random = Rng::with_seed(seed);
        Calls {
            random,
            clock: 1_800_000_000_000_000,
            requested: 0,
            in_transaction: false,
            has_snapshot: false,
        }
    }

    /// The calls that define the limits.
    pub fn setup(&mut self) -> Vec<Call> {
        let mut calls = vec![self.set_clock()];
        for n in 0..NAMES {
            let (name, config) = (name(n), good_config(&mut self.random, Some(n)));
            let sql = format!("SELECT rl_define({}, {})", quoted(&name), quoted(&config));
            calls.push(Call { sql, names: vec![name] });
        }
        calls
    }

    /// Ends the transaction.
    pub fn end(&mut self) -> Call {
        self.in_transaction = false;
        Call { sql: one(&mut self.random, &["COMMIT", "ROLLBACK"]).into(), names: vec![] }
    }

    /// Sets the clock, which is a session's own.
    pub fn set_clock(&self) -> Call {
        let sql = format!(
            "SELECT set_config('ratelimit.clock', to_char(timestamp 'epoch' + {} * interval '1 microsecond',
                               'YYYY-MM-DD HH24:MI:SS.US') || '+00', false)",
            self.clock
        );
        Call { sql, names: vec![] }
    }

    /// Moves the clock: mostly a little forward, sometimes far or back.
    fn move_clock(&mut self) -> Call {
        let random = &mut self.random;
        const SECOND: i64 = 1_000_000;
        self.clock += match random.u8(..100) {
            0..50 => random.i64(0..3 * SECOND),
            50..75 => random.i64(0..100_000),
            75..85 => random.i64(0..300 * SECOND),
            85..90 => random.i64(-5 * SECOND..0),
            90..94 => random.i64(0..86_400 * SECOND),
            94..96 => random.i64(-86_400 * SECOND..0),
            96..98 => random.i64(0..400 * 86_400 * SECOND),
            98 => random.i64(-400 * 86_400 * SECOND..0),
            _ => 0,
        };
        match random.u16(..2000) {
            0 => self.clock = random.i64(0..4_000_000_000 * SECOND), // some time until 2096
            1 => self.clock = random.i64(-2_000_000_000 * SECOND..0),
            _ if !(-3_000_000_000..5_000_000_000).contains(&(self.clock / SECOND)) => {
                self.clock = 1_800_000_000 * SECOND;
            }
            _ => {}
        }
        self.set_clock()
    }

    /// Returns a random call.
    pub fn call(&mut self) -> Call {
        if self.random.u8(..4) == 0 {
            return self.move_clock();
        }
        // Short transactions: after an error in one all calls fail.
        if self.in_transaction && self.random.u8(..4) == 0 {
            return Call { sql: self.transaction(), names: vec![] };
        }
        let n = self.random.usize(..NAMES);
        let (mut name, key) = (name(n), self.key());
        if self.random.u16(..300) == 0 {
            name = one(&mut self.random, &["not defined", "", "\u{1}"]).into();
        }
        let mut call = Call { sql: String::new(), names: vec![name.clone()] };
        call.sql = match self.random.u8(..130) {
            100.. => self.hold(n, &key, &mut call.names),
            0..26 => self.one_limit(n, &quoted(&name), &key),
            26..34 => self.take(n, &quoted(&name), &key),
            34..44 => self.several(&mut call.names),
            44..54 => self.lease(n, &quoted(&name), &key),
            54..60 => self.define(n, &quoted(&name), &key, &mut call.names),
            60..66 => self.block_or_reset(&quoted(&name), &key),
            66..74 => self.look(n, &quoted(&name), &key),
            74..81 => self.credit(&quoted(&name), &key),
            81..86 => self.calculate(n),
            86..91 => self.headers(&quoted(&name), &key),
            91..93 => self.builder(),
            93..98 => self.rows(&quoted(&name), &key),
            _ => {
                call.names.clear();
                self.transaction()
            }
        };
        for (what, touched) in [
            ("rl_prune", None),
            ("UPDATE rl_config", None),
            ("by_row", Some(0)),
            ("by_value", Some(1)),
            ("by_statement", Some(5)),
        ] {
            match touched {
                _ if !call.sql.contains(what) => {}
                Some(n) => call.names.push(self::name(n)),
                None => call.names.clear(),
            }
        }
        if call.sql.contains("rl_") && self.random.u8(..12) == 0 {
            call.sql = format!("SET ROLE {CALLER}; {}; RESET ROLE", call.sql);
        }
        call
    }

    fn key(&mut self) -> String {
        match self.random.u16(..400) {
            0 => "NULL".into(),
            1 => format!("repeat('x', {})", self.random.u16(1000..1030)),
            2..30 => "''".into(),
            _ => quoted(one(&mut self.random, &KEYS[1..])),
        }
    }

    fn count(&mut self) -> String {
        match self.random.u8(..60) {
            0 => one(&mut self.random, &BAD_COUNTS).into(),
            1 => format!("{:e}", self.random.f64() * 10.0),
            _ => one(&mut self.random, &COUNTS).into(),
        }
    }

    /// Further arguments, some with a config.
    fn options(&mut self, n: usize) -> String {
        let mut options = String::new();
        let random = &mut self.random;
        if random.u8(..4) == 0 {
            options += ", reserve => true";
        }
        if random.u8(..8) == 0 {
            options += ", throws => true";
        }
        if random.u8(..10) == 0 {
            let config = config(random, Some(n));
            options += &format!(", config => {}", quoted(&config));
        }
        options
    }

    fn one_limit(&mut self, n: usize, name: &str, key: &str) -> String {
        let function = if self.random.u8(..4) == 0 { "rl_check" } else { "rl_limit" };
        let (count, options) = (self.count(), self.options(n));
        match self.random.u8(..10) {
            0 => format!("SELECT * FROM {function}({name})"),
            1 => format!("SELECT {function}({name}, {key}, {count}) FROM generate_series(1, 5)"),
            _ => format!("SELECT * FROM {function}({name}, {key}, {count}{options})"),
        }
    }

    /// A take of as many tokens as there are.
    fn take(&mut self, n: usize, name: &str, key: &str) -> String {
        let (count, mut at_least) = (self.count(), self.count());
        if self.random.u8(..4) > 0 {
            at_least = one(&mut self.random, &["0", "1", "1", "0.5", "2"]).into();
        }
        let options = self.options(n).replace(", reserve => true", "");
        format!("SELECT * FROM rl_take({name}, {key}, {count}, {at_least}{options})")
    }

    fn request(&mut self, n: usize, names: &mut Vec<String>) -> String {
        names.push(name(n));
        let mut request = format!(r#"{{"name": "{}""#, name(n));
        if self.random.u8(..8) > 0 {
            let key = serde_json::Value::from(one(&mut self.random, &KEYS)).to_string();
            request += &format!(r#", "key": {key}"#);
        }
        if self.random.bool() {
            request += &format!(r#", "count": {}"#, one(&mut self.random, &COUNTS));
        }
        if self.random.u8(..5) == 0 {
            request += &format!(r#", "reserve": {}"#, self.random.bool());
        }
        if self.random.u8(..12) == 0 {
            request += &format!(r#", "config": {}"#, good_config(&mut self.random, Some(n)));
        }
        if self.random.u8(..60) == 0 {
            let bad = [
                r#", "counts": 1"#,
                r#", "count": "1""#,
                r#", "key": null"#,
                r#", "count": -1"#,
                r#", "reserve": 1"#,
                r#", "config": 5"#,
                r#", "config": {"kind": "x"}"#,
                r#", "count": 1e16"#,
                r#", "name": "other""#,
                r#", "key": 1"#,
                r#", "count": 1.5"#,
                r#", "name": 7"#,
            ];
            request += one(&mut self.random, &bad);
        }
        request + "}"
    }

    fn several(&mut self, names: &mut Vec<String>) -> String {
        names.clear();
        let function = match self.random.u8(..6) {
            0 => "rl_check_all",
            1 | 2 => "rl_limit_each",
            _ => "rl_limit_all",
        };
        let more = match (self.random.u8(..6), function) {
            (0 | 1, "rl_limit_each") => ", lock_wait => '0'",
            (0, "rl_check_all" | "rl_limit_all") => ", throws => true",
            _ => "",
        };
        let count = self.random.usize(1..=5);
        let mut request = |_| {
            let n = self.random.usize(..NAMES);
            self.request(n, names)
        };
        let requests: Vec<_> = (0..count).map(&mut request).collect();
        let mut list = format!("[{}]", requests.join(", "));
        if self.random.u8(..60) == 0 {
            let bad =
                ["[]", "{}", "null", "1", "[1]", "[[]]", "[{}]", r#"[{"key": "k"}]"#, "\"x\""];
            list = one(&mut self.random, &bad).into();
        }
        format!("SELECT * FROM {function}({}{more})", quoted(&list))
    }

    /// Calls for leases, by number, since their ids are random.
    fn lease(&mut self, n: usize, name: &str, key: &str) -> String {
        let name = if self.random.u8(..8) > 0 { &quoted(&self::name(n / 6 * 6 + 4)) } else { name };
        let lease = self.requested.saturating_sub(self.random.u32(..12));
        let lease = match self.random.u8(..25) {
            0 => one(&mut self.random, &["'x'", "NULL", "''", "'AAAA'"]).into(),
            _ => format!("(SELECT lease FROM leases WHERE n = {lease})"),
        };
        match self.random.u8(..6) {
            0 => format!("SELECT rl_extend({lease})"),
            1 | 2 => format!("SELECT rl_release({lease})"),
            _ => {
                self.requested += 1;
                let count = if self.random.u8(..3) == 0 { &self.count() } else { "1" };
                let options = if self.random.u8(..8) == 0 { ", throws => true" } else { "" };
                format!(
                    "WITH given AS MATERIALIZED (SELECT * FROM rl_acquire({name}, {key}, {count}{options})),
                     noted AS (INSERT INTO leases SELECT {}, lease FROM given WHERE lease IS NOT NULL)
                     SELECT ok, lease IS NOT NULL, expires_at, retry_after, retry_at, remaining, capacity FROM given",
                    self.requested
                )
            }
        }
    }

    /// A limit that can mostly have holds: of the kind of a bucket, a window, or with slots.
    fn with_holds(&mut self, n: usize) -> usize {
        n / 6 * 6 + one(&mut self.random, &[0, 0, 1, 1, 5, 5, 5, 3, 4, n % 6])
    }

    /// Holds and settlements, which share a few ids.
    fn hold(&mut self, n: usize, key: &str, names: &mut Vec<String>) -> String {
        let random = &mut self.random;
        let mut id = format!("'h{}'", random.u8(..8));
        if random.u8(..40) == 0 {
            id = one(random, &["''", "'h'", "repeat('h', 201)", "'h é'"]).into();
        }
        // Where the snapshot is older than a commit of the other session, the file says no that it found no hold.
        match random.u8(..10) {
            0 | 1 if !self.has_snapshot => {
                names.clear();
                let used = one(
                    random,
                    &["NULL", "0", "1", "2.5", "7", "1000", "0.1", "1e15", "-1", "'NaN'", "1e16"],
                );
                format!("SELECT * FROM rl_settle({id}, {used})")
            }
            2 | 3 if !self.has_snapshot => {
                names.clear();
                let used = one(
                    random,
                    &[
                        "NULL",
                        "'0'",
                        "'1.5'",
                        "'7'",
                        "'1e3'",
                        "'-1'",
                        "'[]'",
                        "'null'",
                        "'\"5\"'",
                        "'{}'",
                        "'1e400'",
                        "'{\"limit 00\": 0, \"limit 01\": 20, \"limit 05\": 1, \"limit 06\": 0.5}'",
                        "'{\"limit 07\": 0, \"limit 11\": 2, \"limit 12\": 5, \"limit 13\": 0}'",
                        "'{\"limit 00\": true}'",
                        "'{\"limit 00\": -1}'",
                    ],
                );
                format!("SELECT * FROM rl_settle_all({id}, {used})")
            }
            4..7 => {
                names.clear();
                let count = self.random.usize(1..=4);
                let mut request = |_| {
                    let n = self.with_holds(n);
                    self.request(n, names)
                };
                let requests: Vec<_> = (0..count).map(&mut request).collect();
                let (ttl, on_expiry) = (self.ttl(), self.on_expiry());
                let throws = if self.random.u8(..8) == 0 { ", throws => true" } else { "" };
                let list = quoted(&format!("[{}]", requests.join(", ")));
                format!("SELECT * FROM rl_hold_all({list}, {ttl}, {id}{on_expiry}{throws})")
            }
            _ => {
                let n = self.with_holds(n);
                *names = vec![name(n)];
                let (count, options) = (self.count(), self.options(n));
                let (ttl, on_expiry, name) = (self.ttl(), self.on_expiry(), quoted(&name(n)));
                let at_least = match self.random.u8(..3) {
                    0 => format!(
                        ", at_least => {}",
                        one(&mut self.random, &["0", "1", "1", "0.5", "2", "20"])
                    ),
                    _ => String::new(),
                };
                // Not all ids are ours.
                let (id, shown) = match self.random.u8(..12) {
                    0 => ("NULL", "ok, hold IS NOT NULL, held, expires_at, retry_at, remaining"),
                    _ => (&*id, "*"),
                };
                format!(
                    "SELECT {shown} FROM rl_hold({name}, {key}, {count}, {ttl}, {id}{at_least}{on_expiry}{options})"
                )
            }
        }
    }

    /// How long a hold lasts: hardly any two end at the same time.
    fn ttl(&mut self) -> String {
        let random = &mut self.random;
        match random.u8(..40) {
            0 => one(random, &["'0'", "'-1 s'", "'367 days'", "'999 us'", "NULL", "'13 months'"])
                .into(),
            1 => one(random, &["'366 days'", "'1 ms'", "'1 month'", "'1 year'", "'1 day 01:00'"])
                .into(),
            2..6 => format!("'{} us'", random.u32(1_000..100_000)),
            6..30 => format!("'{} us'", random.u32(1_000..10_000_000)),
            _ => format!("'{} us'", random.u64(1_000..10_000_000_000)),
        }
    }

    fn on_expiry(&mut self) -> &'static str {
        match self.random.u8(..24) {
            0 => ", on_expiry => 'none'",
            1 => ", on_expiry => NULL",
            2..8 => ", on_expiry => 'charge'",
            _ => "",
        }
    }

    fn define(&mut self, n: usize, name: &str, key: &str, names: &mut Vec<String>) -> String {
        let random = &mut self.random;
        match random.u8(..12) {
            0 => format!("SELECT rl_undefine({name}, {key})"),
            1 => format!("SELECT rl_define({name}, 'null')"),
            // Mostly keeps the kind, and thus the state.
            2..8 => {
                let config = config(random, Some(n));
                format!("SELECT rl_define({name}, {})", quoted(&config))
            }
            8 => {
                let plan = self::name(random.usize(..NAMES));
                let config = serde_json::json!({ "plan": plan }).to_string();
                names.push(plan);
                format!("SELECT rl_define({name}, {}, {key})", quoted(&config))
            }
            _ => {
                let kind = random.bool().then_some(n);
                let config = config(random, kind);
                format!("SELECT rl_define({name}, {}, {key})", quoted(&config))
            }
        }
    }

    fn block_or_reset(&mut self, name: &str, key: &str) -> String {
        let random = &mut self.random;
        match random.u8(..20) {
            0..5 => {
                let length = one(
                    random,
                    &["1 second", "200 ms", "1 minute", "-1 s", "infinity-1 s", "1 month", "0"],
                );
                format!("SELECT rl_block({name}, {key}, {})", quoted(length))
            }
            5 => {
                let until = one(random, &["infinity", "2000-01-01+00", "-infinity"]);
                format!("SELECT rl_block({name}, {key}, until => {})", quoted(until))
            }
            6 => format!("SELECT rl_block({name}, {key}, '1 s', '2100-01-01+00')"),
            7 => format!("SELECT rl_block({name}, {key})"),
            8..13 => format!("SELECT rl_unblock({name}, {key})"),
            13 if random.bool() => format!("SELECT rl_reset_keys({name})"),
            13 => format!("SELECT rl_forget({key})"),
            14 if random.u8(..3) == 0 => "SELECT rl_prune(1000000)".into(),
            14 => "SELECT rl_prune(undefined_idle => '1 day')".into(),
            15 => {
                one(random, &["SELECT rl_prune(0)", "SELECT rl_prune(-1)", "SELECT rl_prune(NULL)"])
                    .into()
            }
            _ => format!("SELECT rl_reset({name}, {key})"),
        }
    }

    /// Reads levels and values, without the ids of leases.
    fn look(&mut self, n: usize, name: &str, key: &str) -> String {
        let random = &mut self.random;
        let config = match random.u8(..4) {
            0 => format!(", config => {}", quoted(&config(random, Some(n)))),
            _ => String::new(),
        };
        match random.u8(..5) {
            0 => format!("SELECT * FROM rl_status({name}, {key})"),
            1 => {
                let limited = random.bool();
                let rows = one(random, &["NULL", "NULL", "1", "2", "0"]);
                let after = match random.u8(..4) {
                    0 => format!(", {name}, {key}"),
                    1 => format!(", 'a', {key}"),
                    2 if random.bool() => format!(", {name}"),
                    _ => String::new(),
                };
                format!("SELECT * FROM rl_status({name}, NULL, {limited}, {rows}{after})")
            }
            2 if random.u8(..10) == 0 => "SELECT * FROM rl_status()".into(),
            _ => format!(
                "SELECT regexp_replace(rl_value({name}, {key}{config})::text, '[[][0-9.]+, ', '[', 'g')"
            ),
        }
    }

    fn credit(&mut self, name: &str, key: &str) -> String {
        let mut count = self.count();
        if self.random.u8(..4) == 0 && !count.starts_with(['-', '\'', 'N']) {
            count.insert(0, '-');
        }
        let taken = match self.random.u8(..6) {
            0 => {
                let ago = self.random.i64(-100_000_000..10_000_000_000);
                format!(
                    ", taken_at => timestamptz 'epoch' + {} * interval '1 microsecond'",
                    self.clock - ago
                )
            }
            1 => ", taken_at => NULL".into(),
            _ => String::new(),
        };
        format!("SELECT * FROM rl_credit({name}, {key}, {count}{taken})")
    }

    /// A call on an invented state, at any time.
    fn calculate(&mut self, n: usize) -> String {
        let config = config(&mut self.random, Some(n));
        let count = self.count();
        let random = &mut self.random;
        let at = self.clock + random.i64(-100_000_000_000..100_000_000_000);
        let now = self.clock / 1000 - random.i64(-1000..100_000);
        let number = |random: &mut Rng| {
            one(random, &["0", "1", "2.5", "-3", "1e15", "9.999999999999", "0.3", "-1e9"])
        };
        let state = match random.u8(..14) {
            0 => "NULL".into(),
            1 => one(
                random,
                &[
                    "'{}'",
                    "'null'",
                    "'[]'",
                    "'{\"value\": 1}'",
                    "'{\"ts\": 1, \"value\": \"x\"}'",
                    "'{\"ts\": 1, \"value\": 1, \"other\": 1}'",
                    "'{\"ts\": 1e300, \"value\": 1}'",
                    "'{\"ts\": null, \"value\": 1}'",
                ],
            )
            .into(),
            2 => format!(
                r#"'{{"ts": {now}, "value": {}, "prior": {}}}'"#,
                number(random),
                number(random)
            ),
            3 => format!(
                r#"'{{"ts": {now}, "value": {}, "brought": {}}}'"#,
                number(random),
                number(random)
            ),
            4 => format!(r#"'{{"ts": {now}, "log": [{}, {}]}}'"#, now - 1000, now),
            5 => format!(r#"'{{"ts": {now}, "value": 2, "log": [{}, {}]}}'"#, now, now - 500),
            6 => {
                format!(r#"'{{"ts": {now}, "leases": [[1, {}], [2, {}]]}}'"#, now + 500, now + 900)
            }
            _ => format!(r#"'{{"ts": {now}, "value": {}}}'"#, number(random)),
        };
        let reserve = random.bool();
        format!(
            "SELECT * FROM rl_calculate({}, {state}, timestamptz 'epoch' + {at} * interval '1 microsecond',
                                        {count}, {reserve})",
            quoted(&config)
        )
    }

    fn headers(&mut self, name: &str, key: &str) -> String {
        let count = self.count();
        let random = &mut self.random;
        let style = one(random, &["ietf", "github", "postgrest", "IETF", "x", ""]);
        match random.u8(..6) {
            0 => {
                let result = one(
                    random,
                    &[
                        "(t,,,5,10,2027-01-01 00:00:00+00,)",
                        "(f,1.5,2027-01-01 00:00:00+00,-3,10,infinity,)",
                        "(,,,,,,)",
                        "(t,,,NaN,1,,)",
                        "(f,,,0.5,1,,)",
                        "(t,,,,,,)",
                        "(f,-1,,1,1,,)",
                        "(t,,,1e300,1e300,,)",
                    ],
                );
                format!("SELECT rl_headers({name}, '{result}'::rl_result, style => '{style}')")
            }
            1 => format!("SELECT rl_headers({name}, rl_check({name}, {key}, {count}))"),
            _ => format!(
                "SELECT rl_headers({name}, rl_check({name}, {key}, {count}), {key}, '{style}')"
            ),
        }
    }

    fn builder(&mut self) -> String {
        let random = &mut self.random;
        let rate = one(
            random,
            &[
                "1",
                "0",
                "-1",
                "NULL",
                "0.1",
                "1e15",
                "1e16",
                "'NaN'",
                "1e-300",
                "1e300",
                "123456.789",
            ],
        );
        let period = one(
            random,
            &[
                "1 s",
                "1 month",
                "0",
                "-1 s",
                "1 day",
                "1.5 ms",
                "0.0001 ms",
                "1000 years",
                "1 year 1 day",
                "2 weeks",
                "00:00:00.001",
            ],
        );
        let zone = one(random, &["'Europe/Berlin'", "'x'", "NULL", "'utc'", "'EST5EDT'", "''"]);
        match random.u8(..7) {
            0 => format!("SELECT rl_token_bucket({rate}, '{period}')"),
            1 => format!(
                "SELECT rl_token_bucket({rate}, '{period}', capacity => {rate}, max_reserved => 0.5)"
            ),
            2 => format!("SELECT rl_fixed_window({rate}, '{period}', timezone => {zone})"),
            3 => format!(
                "SELECT rl_fixed_window({rate}, '{period}', start => '2027-01-15 10:00:00.5+00')"
            ),
            4 => format!("SELECT rl_sliding_window({rate}, '{period}')"),
            5 => format!("SELECT rl_sliding_log({rate}, '{period}')"),
            _ => format!(
                "SELECT rl_concurrency({}, '{period}')",
                one(random, &["1", "0", "-1", "1001", "NULL", "1000"])
            ),
        }
    }

    /// Rows changed by the owner, and calls by triggers.
    fn rows(&mut self, name: &str, key: &str) -> String {
        let random = &mut self.random;
        match random.u8(..10) {
            // An owner who deletes a row deletes the holds of its key, too.
            0 => format!(
                "WITH holds AS (DELETE FROM rl_holds WHERE name = {name} AND key = {key})
                 DELETE FROM rateLimits WHERE name = {name} AND key = {key}"
            ),
            1 => format!(
                "UPDATE rateLimits SET value = value / 2 WHERE name = {name} AND key = {key}"
            ),
            2 => format!(
                "UPDATE rateLimits SET ts = ts + interval '90 minutes' WHERE name = {name} AND key = {key}"
            ),
            3 if random.u8(..8) == 0 => {
                let value = one(
                    random,
                    &[
                        "value = 'NaN'",
                        "value = '-Infinity'",
                        "value = -1e300",
                        "value = 1e300",
                        "kind = 'b'",
                        "kind = 's'",
                        "kind = '#'",
                        "ts = 'infinity'",
                    ],
                );
                format!("UPDATE rateLimits SET {value} WHERE name = {name} AND key = {key}")
            }
            4 => "UPDATE rl_config SET config = config || '{\"enforce\": true}'
                  WHERE config ->> 'kind' <> 'unlimited'"
                .into(),
            5 => format!("INSERT INTO by_row SELECT {key}, 1 FROM generate_series(1, 2)"),
            6 => format!(
                "INSERT INTO by_statement SELECT key, n FROM (VALUES ({key}, 1), ('k', 2)) AS v (key, n)"
            ),
            7 => format!(
                "INSERT INTO by_row VALUES ({key}, {})",
                one(random, &["0", "2.5", "-1", "NULL", "1e20"])
            ),
            8 => {
                // The text of these keys depends on settings.
                let column = one(random, &["at", "day", "span", "ratio", "bytes", "cash"]);
                format!(
                    "INSERT INTO by_value_{column} VALUES (timestamptz '2027-03-04 05:06:07.891+00',
                     date '2027-03-04', interval '-1 month 2 days 03:04:05.6', 0.1::float8 + 0.2,
                     decode('00ff5c', 'hex'), 12.34::numeric::money)"
                )
            }
            _ => format!("SELECT count((rl_limit({name}, {key})).ok) FROM generate_series(1, 20)"),
        }
    }

    fn transaction(&mut self) -> String {
        let random = &mut self.random;
        if !self.in_transaction {
            self.in_transaction = true;
            let level = one(random, &["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]);
            self.has_snapshot = level != "READ COMMITTED";
            let only = if random.u8(..8) == 0 { " READ ONLY" } else { "" };
            return format!("BEGIN ISOLATION LEVEL {level}{only}; SAVEPOINT s");
        }
        match random.u8(..4) {
            0 => "SAVEPOINT s".into(),
            1 => "ROLLBACK TO SAVEPOINT s".into(),
            end => {
                self.in_transaction = false;
                if end == 2 { "COMMIT" } else { "ROLLBACK" }.into()
            }
        }
    }
}

fn name(n: usize) -> String {
    format!("limit {n:02}")
}

fn rate(random: &mut Rng) -> String {
    match random.u8(..12) {
        0 => one(random, &["1e15", "1e-3", "0.1", "1e-12", "123456.789"]).into(),
        1 | 2 => format!("{:.3}", random.f64() * 20.0 + 0.001),
        _ => random.u32(1..20).to_string(),
    }
}

fn period(random: &mut Rng) -> String {
    let periods = [
        "1000",
        "1000",
        "5000",
        "60000",
        "1",
        "1234.567",
        "\"1 minute\"",
        "\"PT1H\"",
        "86400000",
        "\"1 day\"",
        "0.001e6",
        "\"90 s\"",
        "1e15",
        "\"1.5 s\"",
    ];
    one(random, &periods).into()
}

/// A valid config, of the kind of limit `n`, or of any kind.
pub fn good_config(random: &mut Rng, n: Option<usize>) -> String {
    let (rate, period) = (rate(random), period(random));
    let kind = n.map_or_else(|| random.usize(..6), |n| n % 6);
    let mut fields = match kind {
        0 | 1 => format!(r#""kind": "token bucket", "rate": {rate}, "period": {period}"#),
        2 => format!(r#""kind": "sliding window", "rate": {rate}, "period": {period}"#),
        3 if random.u8(..3) > 0 => {
            format!(r#""kind": "sliding log", "rate": {}, "period": {period}"#, random.u32(1..12))
        }
        4 => {
            // In 30,000 years a float is no longer exact to a microsecond.
            let ttl = if period == "1e15" { "1000" } else { &period };
            format!(r#""kind": "concurrency", "slots": {}, "ttl": {ttl}"#, random.u32(1..6))
        }
        _ if random.u8(..40) == 0 => r#""kind": "unlimited""#.into(),
        _ => return fixed_window(random, &rate, &period),
    };
    if kind < 2 {
        tokens(random, &mut fields);
    }
    format!("{{{fields}{}}}", extras(random))
}

fn tokens(random: &mut Rng, fields: &mut String) {
    if random.bool() {
        let capacity = one(random, &["0", "1", "5", "20", "7.5", "1e15", "100"]);
        *fields += &format!(r#", "capacity": {capacity}"#);
    }
    if random.bool() {
        let reserved = one(random, &["0", "5", "12.5", "1000", "1e15"]);
        *fields += &format!(r#", "maxReserved": {reserved}"#);
    }
}

fn extras(random: &mut Rng) -> &'static str {
    match random.u8(..16) {
        0 => r#", "enforce": false"#,
        1 => r#", "keyed": true"#,
        2 => r#", "store": "table", "enforce": true"#,
        3 => r#", "keyed": false"#,
        _ => "",
    }
}

fn fixed_window(random: &mut Rng, rate: &str, period: &str) -> String {
    // A window of 31,000 years began before the first timestamptz, where not every zone has a date; and the
    // extension's floats have no digits for microseconds so long ago.
    let period = if period == "1e15" { "1e12" } else { period };
    let mut fields = format!(r#""kind": "fixed window", "rate": {rate}"#);
    match random.u8(..8) {
        0..3 => {
            let calendar =
                ["1 day", "2 days", "1 week", "1 month", "3 months", "1 year", "100 years"];
            let (calendar, zone) = (one(random, &calendar), one(random, &ZONES));
            fields += &format!(r#", "period": "{calendar}", "timezone": "{zone}""#);
            if random.bool() {
                let start = one(random, &["2024-01-31", "2024-02-29", "2027-01-15", "1999-12-31"]);
                fields += &format!(r#", "start": "{start}""#);
            }
        }
        3 => fields += &format!(r#", "period": {period}, "start": "first request""#),
        4 => {
            let start = one(
                random,
                &["500", "1800000000123.456", "\"2027-01-15 10:00:00+02\"", "-86400000", "1e15"],
            );
            fields += &format!(r#", "period": {period}, "start": {start}"#);
        }
        _ => fields += &format!(r#", "period": {period}"#),
    }
    if random.u8(..4) == 0 {
        fields += r#", "overage": true"#;
        if random.bool() {
            fields += r#", "capacity": 9"#;
        }
    } else {
        tokens(random, &mut fields);
    }
    format!("{{{fields}{}}}", extras(random))
}

/// The values that a fault puts into a config.
const VALUES: [&str; 35] = [
    "0",
    "-0.0",
    "1",
    "-1",
    "0.1",
    "1e-300",
    "1e15",
    "1e16",
    "1e308",
    "null",
    "true",
    "\"memory\"",
    "[]",
    "{}",
    "\"\"",
    "\"NaN\"",
    "\"1 month\"",
    "\"2 weeks\"",
    "\"1 day\"",
    "\"first request\"",
    "\"UTC\"",
    "\"Europe/Berlin\"",
    "\"2024-02-29\"",
    "\"9999-12-31\"",
    "\"token bucket\"",
    "\"é\"",
    "123456789012345678901234567890",
    "\"1:00\"",
    "\"1 hour 5 min\"",
    "\"2027-01-15 10:00:00\"",
    "\"europe/berlin\"",
    "\"P1D\"",
    "\"1d\"",
    "\"5\"",
    "\"-1 s\"",
];
const FIELDS: [&str; 17] = [
    "kind",
    "rate",
    "period",
    "capacity",
    "maxReserved",
    "start",
    "timezone",
    "enforce",
    "keyed",
    "overage",
    "slots",
    "ttl",
    "",
    "Rate",
    "max_reserved",
    "burst",
    "applyUpdates",
];

/// A config, sometimes with a fault; never for a limit in memory or with shards.
fn config(random: &mut Rng, n: Option<usize>) -> String {
    let mut text = good_config(random, n);
    if random.u8(..8) > 0 {
        return text;
    }
    let (field, value) = (one(random, &FIELDS), one(random, &VALUES));
    match random.u8(..4) {
        0 => text = text.replacen('}', &format!(", \"{field}\": {value}}}"), 1),
        1 => text = text.replacen(&format!("\"{field}\""), "\"other\"", 1),
        2 => {
            return one(
                random,
                &["{}", "[]", "null", "1", "\"x\"", "{\"kind\": \"x\"}", "{\"kind\": 1}"],
            )
            .into();
        }
        _ => {
            if let Some(at) = text.find(&format!("\"{field}\": ")) {
                let from = at + field.len() + 4;
                let to = text[from..].find([',', '}']).map_or(text.len(), |n| from + n);
                text.replace_range(from..to, value);
            }
        }
    }
    text
}
