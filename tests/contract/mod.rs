//! The contract of a store: calls and their answers, the same wherever the states are. It runs on the model in two ways
//! to the rows (crates/model), on the extension's stores, on Citus and on the SQL file.

/// The cases, as text.
const CASES: &str = include_str!("cases.txt");

/// Where the states of a limit are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Row,
    Shards,
    Memory,
    Saved,
}

impl Store {
    pub const ALL: [(&str, Store); 4] = [
        ("row", Store::Row),
        ("shards", Store::Shards),
        ("memory", Store::Memory),
        ("saved", Store::Saved),
    ];

    /// Returns a config with its states in this store.
    pub fn config(self, config: &str) -> String {
        let fields = match self {
            Store::Row => return config.into(),
            Store::Shards => r#", "shards": 2}"#,
            Store::Memory => r#", "store": "memory"}"#,
            Store::Saved => r#", "store": "memory", "save": 60000}"#,
        };
        config.replace('}', fields)
    }
}

/// Calls of a few sessions, one after the other.
#[derive(Default)]
pub struct Case {
    pub name: &'static str,
    pub stores: Vec<Store>,
    /// The configs; the first is defined at the beginning, for every key.
    pub limits: Vec<&'static str>,
    pub steps: Vec<Step>,
}

/// A statement of a session, or of the clock (session 0).
pub struct Step {
    /// The line of the file, from 1.
    pub line: usize,
    pub session: usize,
    pub statement: &'static str,
    /// How the answer begins.
    pub expected: &'static str,
}

impl Step {
    /// Panics unless the answer is the expected one.
    pub fn check(&self, place: &str, answer: &str) {
        let Step { line, session, statement, expected } = self;
        let is_expected = if expected.is_empty() { true } else { answer.starts_with(expected) };
        assert!(is_expected, "cases.txt:{line}, {place}: {session} {statement} => {answer}");
    }
}

/// Returns the cases.
///
/// # Panics
/// A case has no store, no limit or no step, or names an unknown store.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (line, text) in (1..).zip(CASES.lines()).filter(|(_, text)| !text.starts_with('#')) {
        let Some((word, rest)) = text.split_once(' ') else { continue };
        if word == "case" {
            cases.push(Case { name: rest, ..Case::default() });
            continue;
        }
        let case = cases.last_mut().expect("a case begins the file");
        match word {
            "on" => {
                let store = |word: &str| {
                    let known = Store::ALL.iter().find(|(name, _)| *name == word);
                    known.unwrap_or_else(|| panic!("cases.txt:{line}: {word:?} is no store")).1
                };
                case.stores = rest.split(' ').map(store).collect();
            }
            "limit" => case.limits.push(rest),
            _ => {
                let (statement, expected) = rest.split_once(" => ").unwrap_or((rest, ""));
                let (session, statement) = match word.parse() {
                    Ok(session) => (session, statement),
                    Err(_) => (0, text),
                };
                case.steps.push(Step { line, session, statement, expected });
            }
        }
    }
    for Case { name, stores, limits, steps } in &cases {
        let is_whole = !stores.is_empty() && !limits.is_empty() && !steps.is_empty();
        assert!(is_whole, "{name}: no store, no limit or no step");
    }
    cases
}

/// The text of an answer: whether the call passes, the tokens left, and when a denied one may be retried, in
/// milliseconds.
pub fn answer(ok: bool, left: f64, wait: Option<f64>) -> String {
    let left = (left * 1e6).round() / 1e6;
    match (ok, wait) {
        (true, _) => format!("ok, {left} left"),
        (false, None) => format!("no, {left} left, never"),
        (false, Some(wait)) => format!("no, {left} left, wait {} ms", wait.ceil()),
    }
}

/// The text of a yes or no.
pub fn yes(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}
