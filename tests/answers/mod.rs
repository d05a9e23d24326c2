//! What calls answer: SQL statements and their answers, the same wherever the states are and whichever edition decides.
//!
//! A file a subject. A case is statements of one session, in an empty database: no state, no definition, no object is
//! left of the case before it.
//!
//! ```text
//! case NAME
//! not PLACE…: why            where it doesn't run
//! clock TIME                 SET ratelimit.clock
//! as ROLE                    SET SESSION AUTHORIZATION, of the one who began without a ROLE
//! STATEMENT; => ANSWER       a row as column=value …, without those that are NULL, or the value of its only column;
//!   => ANSWER                one of several rows, notices, or parts of an error
//!   PLACE… => ANSWER         what these places answer instead
//! STATEMENT \gset            takes the columns of the row as variables, as psql does: :'name'
//! ```
//!
//! CASES="take holds" picks files. ACCEPT=1 writes the answers of the place where they run into them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// Where cases run. A case doesn't run in the places that its lines "not PLACE…: why" name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The extension on its rows, directly where it can. Every case runs here; its answers are the usual ones.
    Heap,
    /// The extension, by SQL on the rows.
    Sql,
    /// The extension; limits that cases define are in memory.
    Memory,
    /// The extension; limits that cases define have shards.
    Shards,
    /// The extension on distributed tables of Citus.
    Citus,
    /// The SQL file.
    File,
    /// The SQL file in PGlite.
    Pglite,
}

impl Place {
    const ALL: [(&str, Place); 7] = [
        ("heap", Place::Heap),
        ("sql", Place::Sql),
        ("memory", Place::Memory),
        ("shards", Place::Shards),
        ("citus", Place::Citus),
        ("file", Place::File),
        ("pglite", Place::Pglite),
    ];

    /// The words for it in the files: what they say of the second holds if they don't name the first.
    fn words(self) -> [&'static str; 2] {
        let word =
            |place| Place::ALL.iter().find(|(_, known)| *known == place).expect("ALL has each").0;
        [word(self), word(if self == Place::Pglite { Place::File } else { self })]
    }

    /// The SQL that a session begins with; `schema` has the functions.
    fn begin(self, schema: &str) -> String {
        let path = match self {
            Place::Memory | Place::Shards => format!("elsewhere, work, {schema}, public"),
            _ => format!("work, {schema}, public"),
        };
        let access = if self == Place::Sql { "SET ratelimit.access = sql;" } else { "" };
        format!(
            "SET timezone = 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET lock_timeout = '60s';
             SET extra_float_digits = 1; SET search_path = {path}; {access}"
        )
    }

    /// The SQL of a definition's config here, which moves its limit to this place.
    fn defined(self) -> Option<&'static str> {
        match self {
            Place::Memory => Some(r#"'{"store": "memory"}' || config"#),
            Place::Shards => Some(r#"'{"shards": 2}' || config"#),
            _ => None,
        }
    }
}

/// Has error_of(), which shows an error as text where a statement can't end by it.
const SETUP: &str = include_str!("../pg_regress/sql/setup.sql");

/// Stands before rl_define for the cases.
fn moving(schema: &str, defined: &str) -> String {
    format!(
        "CREATE SCHEMA elsewhere; GRANT USAGE ON SCHEMA elsewhere TO PUBLIC;
         CREATE FUNCTION elsewhere.rl_define(name text, config jsonb, key text DEFAULT '') RETURNS boolean LANGUAGE sql
         AS $$ SELECT {schema}.rl_define(name, CASE WHEN jsonb_typeof(config) = 'object' AND config->>'kind' <> 'unlimited'
                                                  THEN {defined} ELSE config END, key) $$"
    )
}

/// Leaves nothing of a case. Citus wants each statement alone.
const END: [&str; 6] = [
    "DO $$ BEGIN PERFORM rl_reset_keys(c.name) FROM (SELECT DISTINCT name FROM rl_config) c; END $$",
    "DELETE FROM rl_holds",
    "DELETE FROM rateLimits",
    "DELETE FROM rl_blocks",
    "DELETE FROM rl_config",
    "DROP SCHEMA work CASCADE",
];

/// A file of cases.
struct File {
    path: PathBuf,
    lines: Vec<Line>,
}

/// A line, or a statement of several lines with its answers.
enum Line {
    /// A comment or an empty line.
    Text(String),
    Case(String),
    /// Where the case doesn't run, and why.
    Not(String),
    Clock(String),
    /// The role whose session it is from now on; without a name, the one who began.
    As(String),
    Statement {
        number: usize,
        sql: String,
        answers: Answers,
    },
}

/// The answers of a statement, a line each.
#[derive(Default)]
struct Answers {
    usual: Vec<String>,
    /// Those of places that answer otherwise, by the words of the places.
    others: Vec<(String, Vec<String>)>,
}

impl Answers {
    fn of(&self, place: Place) -> &[String] {
        let of = |place| {
            self.others.iter().find(|(places, _)| places.split(' ').any(|word| word == place))
        };
        place.words().into_iter().find_map(of).map_or(&self.usual, |(_, answers)| answers)
    }

    fn accept(&mut self, place: Place, answers: Vec<String>) {
        if place == Place::Heap {
            self.usual = answers;
            return;
        }
        let [place, _] = place.words();
        for (places, _) in &mut self.others {
            *places = places.split(' ').filter(|word| *word != place).collect::<Vec<_>>().join(" ");
        }
        self.others.retain(|(places, _)| !places.is_empty());
        if answers == self.usual {
            return;
        }
        match self.others.iter_mut().find(|(_, same)| *same == answers) {
            Some((places, _)) => *places = format!("{places} {place}"),
            None => self.others.push((place.to_owned(), answers)),
        }
    }
}

fn read(path: PathBuf) -> File {
    let text = std::fs::read_to_string(&path).unwrap();
    let mut lines = Vec::new();
    let mut rest = text.lines().enumerate().peekable();
    while let Some((index, line)) = rest.next() {
        let read = if line.is_empty() || line.starts_with('#') {
            Line::Text(line.to_owned())
        } else if let Some(name) = line.strip_prefix("case ") {
            Line::Case(name.to_owned())
        } else if line.starts_with("not ") {
            Line::Not(line.to_owned())
        } else if let Some(time) = line.strip_prefix("clock ") {
            Line::Clock(time.to_owned())
        } else if let Some(role) = line.strip_prefix("as") {
            Line::As(role.trim().to_owned())
        } else {
            let mut sql = line.to_owned();
            let end = loop {
                match end_of_statement(&sql) {
                    Some(end) => break end,
                    None => {
                        let (_, line) = rest.next().unwrap_or_else(|| {
                            panic!("{}:{}: a statement without an end", path.display(), index + 1)
                        });
                        sql = sql + "\n" + line;
                    }
                }
            };
            let mut answers = Answers::default();
            answers.usual.extend(sql.split_off(end).strip_prefix(" => ").map(str::to_owned));
            while let Some((_, line)) = rest.next_if(|(_, line)| line.starts_with("  ")) {
                let (places, answer) =
                    line.split_once("=> ").unwrap_or_else(|| panic!("{line:?} is no answer"));
                places.split_whitespace().for_each(known);
                match (places.trim(), answers.others.last_mut()) {
                    ("", _) => answers.usual.push(answer.to_owned()),
                    (places, Some((same, lines))) if same == places => {
                        lines.push(answer.to_owned())
                    }
                    (places, _) => {
                        answers.others.push((places.to_owned(), vec![answer.to_owned()]))
                    }
                }
            }
            Line::Statement { number: index + 1, sql, answers }
        };
        lines.push(read);
    }
    File { path, lines }
}

/// Where a statement ends: after a semicolon, or \gset, outside of strings and comments.
fn end_of_statement(sql: &str) -> Option<usize> {
    let bytes = sql.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let skipped = match bytes[at] {
            quote @ (b'\'' | b'"') => 1 + sql[at + 1..].find(char::from(quote))? + 1,
            b'$' => match sql[at + 1..].find('$') {
                Some(tag)
                    if sql[at + 1..at + 1 + tag]
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'_') =>
                {
                    let tag = &sql[at..at + tag + 2];
                    tag.len() + sql[at + tag.len()..].find(tag)? + tag.len()
                }
                _ => 1,
            },
            b'-' if sql[at..].starts_with("--") => sql[at..].find('\n').unwrap_or(sql.len() - at),
            b'\\' if sql[at..].starts_with("\\gset") => {
                return Some(at + sql[at..].find(" =>").unwrap_or(sql.len() - at));
            }
            b';' => return Some(at + 1),
            _ => 1,
        };
        at += skipped;
    }
    None
}

impl File {
    /// The file's text. An answer stands behind its statement if there is room.
    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            match line {
                Line::Text(line) | Line::Not(line) => text += line,
                Line::Case(name) => text = text + "case " + name,
                Line::Clock(time) => text = text + "clock " + time,
                Line::As(role) => text += format!("as {role}").trim_end(),
                Line::Statement { sql, answers, .. } => {
                    text += sql;
                    let last = sql.lines().last().unwrap_or_default().chars().count();
                    match answers.usual.as_slice() {
                        [answer] if last + answer.chars().count() <= 115 => {
                            text = text + " => " + answer
                        }
                        usual => {
                            usual.iter().for_each(|answer| write!(text, "\n  => {answer}").unwrap())
                        }
                    }
                    for (places, answers) in
                        answers.others.iter().filter(|(_, other)| *other != answers.usual)
                    {
                        answers
                            .iter()
                            .for_each(|answer| write!(text, "\n  {places} => {answer}").unwrap());
                    }
                }
            }
            text.push('\n');
        }
        text
    }
}

/// A session of a case, with what psql would remember.
struct Session {
    client: Client,
    notices: Arc<Mutex<Vec<String>>>,
    variables: Vec<(String, String)>,
}

impl Session {
    fn open(mut config: Config) -> Session {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&notices);
        config.notice_callback(move |notice| {
            let said = format!("{}: {}", notice.severity(), notice.message());
            let detail = notice.detail().map(|detail| format!("DETAIL: {detail}"));
            let hint = notice.hint().map(|hint| format!("HINT: {hint}"));
            heard
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend([Some(said), detail, hint].into_iter().flatten());
        });
        Session {
            client: config.connect(NoTls).expect("the server answers"),
            notices,
            variables: Vec::new(),
        }
    }

    /// Runs a statement and returns its answers: a line for each row, notice, and part of an error.
    fn answers(&mut self, sql: &str) -> Vec<String> {
        let (sql, prefix) = match sql.split_once("\\gset") {
            Some((sql, prefix)) => (sql, Some(prefix.trim())),
            None => (sql, None),
        };
        let mut sql = sql.to_owned();
        for (name, value) in &self.variables {
            sql = sql.replace(&format!(":'{name}'"), &format!("'{}'", value.replace('\'', "''")));
            sql = sql.replace(&format!(":{name}"), value);
        }
        let result = self.client.simple_query(&sql);
        let mut answers: Vec<String> =
            std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner));
        match result {
            Ok(messages) => {
                let rows: Vec<_> = messages
                    .iter()
                    .filter_map(|message| {
                        if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None }
                    })
                    .collect();
                let has_rows = messages
                    .iter()
                    .any(|message| matches!(message, SimpleQueryMessage::RowDescription(_)));
                if let (Some(prefix), false) = (prefix, rows.is_empty()) {
                    for (i, column) in rows[0].columns().iter().enumerate() {
                        let value = rows[0].get(i).unwrap_or_default().to_owned();
                        self.variables.insert(0, (format!("{prefix}{}", column.name()), value));
                    }
                } else if rows.is_empty() && has_rows {
                    answers.push("no row".into());
                } else {
                    answers.extend(rows.iter().map(|row| {
                        let fields: Vec<_> = row
                            .columns()
                            .iter()
                            .enumerate()
                            .map(|(i, column)| (column.name(), row.get(i)))
                            .collect();
                        text_of_row(&fields)
                    }));
                }
            }
            Err(error) => {
                let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}"));
                answers.push(format!(
                    "{} {}: {}",
                    error.severity(),
                    error.code().code(),
                    error.message()
                ));
                answers.extend(error.detail().map(|detail| format!("DETAIL: {detail}")));
                answers.extend(error.hint().map(|hint| format!("HINT: {hint}")));
            }
        }
        // Texts name the schema of what the path doesn't find first.
        let schemas = ["ratelimit.rl_", "public.rl_"];
        let named = |line: &String| {
            schemas.iter().fold(line.replace('\n', "\\n"), |line, named| line.replace(named, "rl_"))
        };
        answers.iter().map(named).collect()
    }

    /// Runs SQL that must not fail.
    fn run(&mut self, sql: &str) {
        self.client.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

/// The values of a row by the names of their columns, without those that are NULL; or the value of its only column.
fn text_of_row(fields: &[(&str, Option<&str>)]) -> String {
    if let [(_, value)] = fields {
        return value.unwrap_or("NULL").to_owned();
    }
    let quoted = |value: &str| {
        if value.is_empty() || value.contains([' ', '\'', '\n']) {
            format!("'{}'", value.replace('\'', "''"))
        } else {
            value.to_owned()
        }
    };
    let there = fields
        .iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name}={}", quoted(value))));
    let text = there.collect::<Vec<_>>().join(" ");
    if text.is_empty() { "NULL".into() } else { text }
}

/// Runs the cases in this place, in a database that has the functions in `schema`, by a role that owns it.
///
/// # Panics
/// Answers differ from those of the files.
pub fn run(place: Place, schema: &str, config: &Config) {
    let [word, _] = place.words();
    let accepts = std::env::var("ACCEPT").is_ok_and(|accept| !accept.is_empty());
    let picked = std::env::var("CASES").unwrap_or_default();
    let picked: Vec<&str> = picked.split_whitespace().collect();
    let mut session = Session::open(config.clone());
    session.run("SET search_path = public");
    session.run(&SETUP.replace("CREATE EXTENSION ratelimit;", ""));
    if let Some(defined) = place.defined() {
        session.run(&moving(schema, defined));
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/answers");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.retain(|path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        picked.is_empty() || picked.contains(&&*name)
    });
    assert!(!paths.is_empty(), "CASES={picked:?} picks no file");
    paths.sort();
    let (mut cases, mut wrong) = (0, String::new());
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut file = read(path);
        let mut begins = 0;
        while begins < file.lines.len() {
            let next = |from: usize| {
                let case = file.lines[from..].iter().position(|line| matches!(line, Line::Case(_)));
                case.map_or(file.lines.len(), |at| from + at)
            };
            let from = next(begins);
            if from == file.lines.len() {
                break;
            }
            begins = next(from + 1);
            let case = &mut file.lines[from..begins];
            if case.iter().any(|line| matches!(line, Line::Not(text) if leaves_out(text, place))) {
                continue;
            }
            cases += 1;
            session = run_case(session, config, place, schema, case, |line, expected| {
                if accepts {
                    return;
                }
                writeln!(wrong, "{name}.txt:{line}, {word}:\n    {}", expected.join("\n    "))
                    .unwrap();
            });
        }
        if accepts {
            std::fs::write(&file.path, file.text()).unwrap();
        }
    }
    println!("{cases} cases in {word}");
    assert!(cases > 0 || !picked.is_empty(), "no case runs in {word}");
    assert!(wrong.is_empty(), "answers differ:\n{wrong}");
}

/// Panics unless it is the word of a place.
fn known(word: &str) {
    assert!(Place::ALL.iter().any(|(known, _)| *known == word), "{word:?} is no place");
}

/// Whether a line "not PLACE…: why" names the place.
fn leaves_out(line: &str, place: Place) -> bool {
    let (places, why) =
        line["not ".len()..].split_once(": ").unwrap_or_else(|| panic!("{line:?} says no reason"));
    assert!(!why.is_empty());
    places.split(' ').for_each(known);
    places.split(' ').any(|word| place.words().contains(&word))
}

/// Runs the statements of a case; `differs` is called for those with other answers, which the case has after it.
fn run_case(
    mut session: Session,
    config: &Config,
    place: Place,
    schema: &str,
    case: &mut [Line],
    mut differs: impl FnMut(usize, &[String]),
) -> Session {
    session.run("CREATE SCHEMA work; GRANT ALL ON SCHEMA work TO PUBLIC");
    session.run(&place.begin(schema));
    for line in case {
        match line {
            Line::Clock(time) => session.run(&format!("SET ratelimit.clock = '{time}'")),
            Line::As(role) if role.is_empty() => session.run("RESET SESSION AUTHORIZATION"),
            Line::As(role) => session.run(&format!("SET SESSION AUTHORIZATION {role}")),
            Line::Statement { number, sql, answers } => {
                let got = session.answers(sql);
                let expected = answers.of(place);
                if got != expected {
                    let mut text = vec![sql.clone()];
                    text.extend(expected.iter().map(|line| format!("- {line}")));
                    text.extend(got.iter().map(|line| format!("+ {line}")));
                    differs(*number, &text);
                    answers.accept(place, got);
                }
            }
            Line::Text(_) | Line::Case(_) | Line::Not(_) => (),
        }
    }
    session.run("ROLLBACK");
    session.run("RESET SESSION AUTHORIZATION");
    session.run("DISCARD ALL");
    session.notices.lock().unwrap_or_else(PoisonError::into_inner).clear();
    for gid in
        session.answers("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    {
        if gid != "no row" {
            session.run(&format!("ROLLBACK PREPARED '{gid}'"));
        }
    }
    session.run(&format!("SET search_path = {schema}; SET client_min_messages = error"));
    END.iter().for_each(|sql| session.run(sql));
    // Counters of all databases share their room.
    if !matches!(place, Place::File | Place::Pglite) {
        session.run("SELECT rl_stats_reset()");
    }
    session.run("DISCARD ALL");
    session.variables.clear();
    session.notices.lock().unwrap_or_else(PoisonError::into_inner).clear();
    if session.client.is_closed() { Session::open(config.clone()) } else { session }
}
