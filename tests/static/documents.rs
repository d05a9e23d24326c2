//! The README and the pages of docs/: their programs in other languages are tested ones, the book has every page,
//! and pages list the messages and SQLSTATEs of the sources. `make docs` checks their links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::pages::{Page, SIGNATURE, documents, pages_in, read, root, rows, split};

/// A front page is read in a few minutes.
const README_LINES: usize = 160;

/// Where programs in other languages come from, by the language of a block. A page links to the first.
const PROGRAMS: [(&str, &[&str]); 6] = [
    (
        "python",
        &[
            "python.py",
            "with_sqlalchemy.py",
            "with_asyncpg.py",
            "with_psycopg_async.py",
            "citus_pools.py",
            PYTEST,
            PYTEST_WORKERS,
            PYTHON_START,
            PYTHON_PSYCOPG,
            PYTHON_FASTAPI,
            PYTHON_DJANGO,
            PYTHON_HOLDS,
            PYTHON_FAILING,
            PYTHON_BORROWING,
            PYTHON_OPENAI,
            PYTHON_LANGCHAIN,
            PYTHON_LITELLM,
            PYTHON_PROCRASTINATE,
            SHOP,
            SHOP_TESTS,
        ],
    ),
    (
        "js",
        &[
            "node.mjs",
            "postgraphile.mjs",
            PGLITE,
            TRY,
            VITEST,
            VITEST_WORKERS,
            NODE_START,
            NODE,
            NODE_AI,
            QUEUE_TABLE,
            QUEUE_GRAPHILE,
            QUEUE_BOSS,
            BROWSER_EXPRESS,
            BROWSER_HONO,
            BROWSER_VALUE,
            BROWSER_PLAIN,
            BROWSER_REACT,
        ],
    ),
    ("ts", &[EXAMPLE_SERVER]),
    ("tsx", &[EXAMPLE_PAGE]),
    ("rust", &["rust.rs", TOWER]),
    ("bash", &["shell.sh"]),
];

/// Programs for PGlite, which are no clients of a server.
const PGLITE: &str = "../../adapters/node/test/file/pglite.test.js";
const TRY: &str = "../../playground/try/try.js";

/// Tests of an application, which the adapters' tests run.
const PYTEST: &str = "../../adapters/python/tests/messages.py";
const PYTEST_WORKERS: &str = "../../adapters/python/tests/workers.py";
/// An application of axum, which the tests of its layer run.
const TOWER: &str = "../../adapters/tower/examples/messages.rs";
/// Examples of the client for Python.
const PYTHON_START: &str = "../../adapters/python/tests/examples/getting_started.py";
const PYTHON_PSYCOPG: &str = "../../adapters/python/tests/examples/with_psycopg.py";
const PYTHON_FASTAPI: &str = "../../adapters/python/tests/examples/with_fastapi.py";
const PYTHON_DJANGO: &str = "../../adapters/python/tests/examples/with_django.py";
const PYTHON_HOLDS: &str = "../../adapters/python/tests/examples/budget.py";
const PYTHON_FAILING: &str = "../../adapters/python/tests/examples/failing.py";
const PYTHON_BORROWING: &str = "../../adapters/python/tests/examples/borrowing.py";
/// Budgets of calls to models.
const PYTHON_OPENAI: &str = "../../adapters/python/tests/examples/with_openai.py";
const PYTHON_LANGCHAIN: &str = "../../adapters/python/tests/examples/with_langchain.py";
const PYTHON_LITELLM: &str = "../../adapters/python/tests/examples/with_litellm.py";
/// A worker of a queue.
const PYTHON_PROCRASTINATE: &str = "../../adapters/python/tests/examples/with_procrastinate.py";
const VITEST: &str = "../../adapters/node/test/example/messages.test.js";
const VITEST_WORKERS: &str = "../../adapters/node/test/example/workers.js";
/// The client for Node.
const NODE_START: &str = "../../adapters/node/test/getting-started.test.js";
const NODE: &str = "../../adapters/node/test/page.test.js";
const NODE_AI: &str = "../../adapters/node/test/ai-page.test.js";
/// Workers of queues.
const QUEUE_TABLE: &str = "../../adapters/node/test/queues/table.js";
const QUEUE_GRAPHILE: &str = "../../adapters/node/test/queues/graphile.js";
const QUEUE_BOSS: &str = "../../adapters/node/test/queues/boss.js";
/// Pages in the browser, and the routes that they ask.
const BROWSER_EXPRESS: &str = "../../adapters/node/test/browser/express.js";
const BROWSER_HONO: &str = "../../adapters/node/test/browser/hono.js";
const BROWSER_VALUE: &str = "../../adapters/node/test/browser/value.js";
const BROWSER_PLAIN: &str = "../../adapters/node/test/browser/plain.js";
const BROWSER_REACT: &str = "../../adapters/node/test/browser/page.jsx";
/// Applications, which are tested as a whole.
const EXAMPLE_SERVER: &str = "../../examples/chat/server.ts";
const EXAMPLE_PAGE: &str = "../../examples/chat/page.tsx";
const SHOP: &str = "../../examples/fastapi/app.py";
const SHOP_TESTS: &str = "../../examples/fastapi/tests/conftest.py";

#[test]
fn every_block_is_run_or_stands_in_a_program_that_is_tested() {
    let documents = documents();
    let mut shown = Vec::new();
    for page in &documents {
        let (blocks, _) = split(&page.text);
        for (i, block) in blocks.iter().enumerate() {
            let place = format!("{}:{}", page.path.display(), block.line);
            let program = PROGRAMS.iter().find(|(language, _)| *language == block.language);
            match (block.language, program) {
                (_, Some((_, files))) => {
                    let shows = |file: &&&str| {
                        read(&Path::new("tests/clients").join(file)).text.contains(&block.code)
                    };
                    let file = files.iter().find(shows);
                    shown.push(
                        *file.unwrap_or_else(|| panic!("{place}: this is in none of {files:?}")),
                    );
                }
                ("text", None) => {
                    let after_sql = block.follows && blocks[i - 1].language == "sql";
                    assert!(after_sql, "{place}: output without its SQL");
                }
                // scripts/test-packages runs the commands and settings of installation.md; those for Docker,
                // Kubernetes and others can't be run. Signatures are compared.
                ("sql" | "sh" | "conf" | "yaml" | SIGNATURE, None) => {}
                (language, None) => panic!("{place}: nothing checks a block of {language:?}"),
            }
        }
    }
    for (_, files) in PROGRAMS {
        for file in files {
            assert!(shown.contains(file), "no page shows anything of {file}");
        }
        let in_clients = format!("tests/clients/{}", files[0]);
        let link = format!("{})", files[0].strip_prefix("../../").unwrap_or(&in_clients));
        assert!(documents.iter().any(|page| page.text.contains(&link)), "no link to {}", files[0]);
    }
}

#[test]
fn each_client_is_run_as_its_line_shows() {
    let page = read(Path::new("docs/clients.md")).text;
    let (_, table) = page.split_once("\n## Client by client\n").expect("a table of clients");
    let (table, _) = table.split_once("\n## ").expect("examples after it");
    let run = read(Path::new("tests/clients/run")).text;
    let run_by_name = ["every", "languages"].map(|list| {
        let (_, names) = run.split_once(&format!("\n{list}=\"")).expect("a list of programs");
        names.split_once('"').expect("its end").0.split_whitespace()
    });
    let run_by_name: Vec<&str> = run_by_name.into_iter().flatten().collect();
    let mut lines = 0;
    for line in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = line.split('|').collect();
        let in_code = |cell: &str| -> Vec<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let file = in_code(cells[1]).pop().expect("a program");
        let program = read(&Path::new("tests/clients").join(&file)).text;
        // A key, JSON, the SQLSTATE and DETAIL.
        for code in cells[2..6].iter().flat_map(|cell| in_code(cell)) {
            assert!(program.contains(&code), "{file} has no {code}");
        }
        let stem = file.split('.').next().unwrap_or_default().to_lowercase();
        let name = stem.strip_prefix("with").unwrap_or(&stem).trim_start_matches('_');
        assert!(run_by_name.contains(&name), "tests/clients/run does not run {file}");
        lines += 1;
    }
    assert!(lines > 20, "{lines}");
}

/// The title of a page. One that is a single `{{#include …}}` has that file's.
fn title(page: &Page) -> String {
    let first = page.text.lines().next().unwrap_or_default();
    if let Some(file) = first.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")) {
        return title(&read(&page.path.with_file_name(file)));
    }
    let title = first.strip_prefix("# ");
    title.unwrap_or_else(|| panic!("{} has no title", page.path.display())).to_owned()
}

#[test]
fn the_summary_has_every_page_by_its_title() {
    let summary = read(Path::new("docs/SUMMARY.md")).text;
    // The front page stands before the list.
    let listed: Vec<&str> = summary
        .lines()
        .map(|line| line.strip_prefix("- ").unwrap_or(line))
        .filter(|line| line.starts_with('['))
        .collect();
    let pages: Vec<String> = pages_in(Path::new("docs"))
        .iter()
        .filter(|page| page.path != Path::new("docs/SUMMARY.md"))
        .map(|page| {
            format!("[{}]({})", title(page), page.path.strip_prefix("docs").unwrap().display())
        })
        .collect();
    for page in &pages {
        assert!(listed.contains(&page.as_str()), "not in docs/SUMMARY.md: {page}");
    }
    assert_eq!(
        listed.len(),
        pages.len(),
        "docs/SUMMARY.md lists a page twice, or one that is gone"
    );
}

#[test]
fn a_link_that_names_a_function_leads_to_its_file() {
    let mut links = 0;
    for page in documents() {
        // `begin_of_a_name…` of a file outside docs/.
        for found in page.text.split("[`").skip(1) {
            let Some((name, rest)) = found.split_once("`](../") else { continue };
            let Some((file, _)) = rest.split_once(')') else { continue };
            if name.contains('_') && !name.contains(['.', '/', '`', '\n']) {
                let text = read(Path::new(file)).text;
                let begin = name.trim_end_matches('…');
                let function = match name.ends_with('…') {
                    true => format!("fn {begin}"),
                    false => format!("fn {begin}("),
                };
                assert!(text.contains(&function), "{}: {file} has no {name}", page.path.display());
                links += 1;
            }
        }
    }
    assert!(links > 5, "{links}");
}

/// What a guarantee names after "Tests:", in code: `folder/file.rs::test`, or a file that is a test as a whole.
fn named_tests(guarantee: &str) -> Vec<&str> {
    let (_, tests) = guarantee.split_once("\n  Tests:").unwrap_or_default();
    tests.split('`').skip(1).step_by(2).collect()
}

/// Whether there is the test that a guarantee names.
fn is_a_test(named: &str) -> bool {
    let (file, function) = named.split_once("::").unwrap_or((named, ""));
    let of_a_crate = file.starts_with("core/") || file.starts_with("memory/");
    let path = root().join(if of_a_crate { "crates" } else { "tests" }).join(file);
    let Ok(source) = fs::read_to_string(path) else { return false };
    let mut functions =
        source.split("#[test]").skip(1).filter_map(|rest| Some(rest.split_once("fn ")?.1));
    if file.ends_with(".rs") {
        functions.any(|rest| rest.strip_prefix(function).is_some_and(|rest| rest.starts_with('(')))
    } else {
        function.is_empty()
    }
}

#[test]
fn each_guarantee_names_tests_that_are_there() {
    let page = read(Path::new("docs/guarantees.md")).text;
    let (promised, _) = page.split_once("\n## Limitations\n").expect("limitations at the end");
    let guarantees: Vec<&str> =
        promised.split("\n- **").skip(1).map(|item| item.split("\n## ").next().unwrap()).collect();
    let wanting: Vec<&str> = guarantees
        .iter()
        .filter(|guarantee| named_tests(guarantee).is_empty())
        .map(|guarantee| guarantee.lines().next().unwrap_or_default())
        .collect();
    assert!(wanting.is_empty(), "these name no test: {wanting:#?}");
    let named: Vec<&str> = guarantees.iter().flat_map(|guarantee| named_tests(guarantee)).collect();
    let gone: Vec<&&str> = named.iter().filter(|named| !is_a_test(named)).collect();
    assert!(gone.is_empty(), "there are no such tests: {gone:#?}");
    assert!(named.len() > 50, "{}", named.len());
    for wrong in [
        "server/fuzz.rs",
        "server/fuzz.rs::calls",
        "server/fuzz.rs::server",
        "server/none.rs::calls",
    ] {
        assert!(!is_a_test(wrong), "{wrong}");
    }
}

#[test]
fn the_readme_is_a_front_page() {
    let lines = read(Path::new("README.md")).text.lines().count();
    assert!(lines <= README_LINES, "{lines} lines: move some of them to docs/");
}

/// A source's text with each placeholder of a message (`{name}`, in SQL `%`) as "…".
fn with_ellipses(source: &str, is_sql: bool) -> String {
    if is_sql {
        return source.replace("''", "'").replace('%', "…");
    }
    let mut text = String::new();
    let mut rest = source.replace("\\\"", "\"");
    // A string that goes on in the next line.
    while let Some((before, after)) = rest.split_once("\\\n") {
        rest = format!("{before}{}", after.trim_start());
    }
    let mut rest = rest.as_str();
    while let Some(start) = rest.find('{') {
        text += &rest[..start];
        rest = &rest[start + 1..];
        match rest.find(['}', '\n']) {
            Some(end) if rest[end..].starts_with('}') => {
                text += "…";
                rest = &rest[end + 1..];
            }
            _ => text += "{",
        }
    }
    text + rest
}

/// Returns the files of folders whose names end with one of the extensions, as text.
fn texts_in(folders: &[&str], extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|&known| e == known)) {
                let text = fs::read_to_string(&path).unwrap();
                texts.push((path, text));
            }
        }
    }
    texts
}

/// Returns the strings that follow at once, but for spaces, on something in a source.
fn strings_after<'a>(source: &'a str, what: &'a str, quote: char) -> impl Iterator<Item = &'a str> {
    source.split(what).skip(1).filter_map(move |rest| {
        let string = rest.trim_start().strip_prefix(quote)?;
        let end = string
            .match_indices(quote)
            .map(|(end, _)| end)
            .find(|&end| !string[..end].ends_with('\\'))?;
        Some(&string[..end])
    })
}

/// The messages of a section: the code at the beginning of each heading of the third level ("### "), or of each item of
/// a list ("- ").
fn messages<'a>(section: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    section.lines().filter_map(move |line| {
        let (message, _) = line.strip_prefix(mark)?.strip_prefix('`')?.split_once('`')?;
        Some(message)
    })
}

#[test]
fn troubleshooting_has_the_messages_of_the_sources_and_no_other() {
    let page = read(Path::new("docs/troubleshooting.md")).text;
    let (_, by_message) = page.split_once("\n## By message\n").expect("a section of messages");
    let (ours, of_postgres) =
        by_message.split_once("\n## PostgreSQL's own errors\n").expect("a section of PostgreSQL's");
    let is_sql = |path: &Path| path.extension().is_some_and(|extension| extension == "sql");
    let sources: Vec<String> = texts_in(&["src", "crates", "sql"], &["rs", "sql"])
        .iter()
        .map(|(path, text)| with_ellipses(text, is_sql(path)))
        .collect();
    let expected: Vec<(PathBuf, String)> = texts_in(
        &["tests/pg_regress/expected", "tests/answers", "tests/isolation/expected"],
        &["out", "txt"],
    );
    let stands = |line: &str, message: &str| {
        let mut rest = Some(line);
        for part in message.split('…') {
            rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, rest)| rest);
        }
        rest.is_some()
    };

    let invented: Vec<&str> = messages(ours, "### ")
        .chain(messages(ours, "- "))
        .filter(|message| !sources.iter().any(|source| source.contains(message)))
        .chain(messages(of_postgres, "### ").filter(|message| {
            !expected.iter().any(|(_, text)| text.lines().any(|line| stands(line, message)))
        }))
        .collect();
    assert!(invented.is_empty(), "no source has these: {invented:#?}");

    let errors = [
        "crates/core/src/argument.rs",
        "crates/pg/src/error.rs",
        "crates/limiter/src/error.rs",
        "src/schema/error.rs",
    ]
    .map(|path| read(Path::new(path)).text)
    .concat();
    let citus = read(Path::new("sql/citus.sql")).text;
    let raised =
        strings_after(&errors, "#[error(", '"').map(|text| with_ellipses(text, false)).chain(
            ["EXCEPTION", "NOTICE"]
                .iter()
                .flat_map(|level| strings_after(&citus, level, '\''))
                .map(|text| with_ellipses(text, true)),
        );
    let known = |message: &str| {
        let mut shown = messages(ours, "### ").filter(|&shown| shown != "… is …");
        page.contains(&format!("`{message}`")) || shown.any(|shown| stands(message, shown))
    };
    let missing: Vec<String> = raised.filter(|message| message != "…" && !known(message)).collect();
    assert!(missing.is_empty(), "not in docs/troubleshooting.md: {missing:#?}");
    assert!(messages(by_message, "### ").count() > 50);
}

#[test]
fn the_page_of_errors_has_every_sqlstate() {
    let source = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let errors = source("src/schema/error.rs");
    let raised = errors.split("b\"").skip(1).map(|rest| &rest[..5]);
    // Of Postgres itself, and of a library below.
    let others = ["22008", "27000", "53100", "40001", "40P01", "57014", "08006"];
    let page = read(Path::new("docs/troubleshooting.md")).text;
    let (_, by_sqlstate) = page.split_once("\n## By SQLSTATE\n").expect("a section of SQLSTATEs");
    let (by_sqlstate, _) = by_sqlstate.split_once("\n## ").expect("one of messages");
    let shown: Vec<String> =
        rows(by_sqlstate).iter().flat_map(|row| row[0].split(", ").map(str::to_owned)).collect();
    assert_eq!(
        shown.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        raised.chain(others).collect::<BTreeSet<_>>()
    );
    assert_eq!(
        shown.len(),
        shown.iter().collect::<BTreeSet<_>>().len(),
        "an SQLSTATE stands twice"
    );
}
