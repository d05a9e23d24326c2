//! Every SQL block of the README runs, in order, and prints what the README shows after it; what it
//! shows of a program in another language stands in that program.
//!
//! Blocks run in one database, each in a psql of its own, at a fixed time, so that a reader who
//! types them one after the other sees the same but for the times. A recipe that begins with its own
//! CREATE EXTENSION has a database of its own.

use std::process::{Command, Stdio};

use std::io::Write;

const CLOCK: &str = "SET ratelimit.clock = '2027-01-01 12:00:00+00'; SET timezone = 'UTC';";

/// The section whose blocks run in a database of their own.
const RECIPE: &str = "### Supabase and PostgREST";

/// Stands for pg_cron: it runs a job once, to see that it can be run.
const PG_CRON: &str = "CREATE SCHEMA cron;
    CREATE FUNCTION cron.schedule(name text, schedule text, command text) RETURNS bigint
    LANGUAGE plpgsql AS 'BEGIN EXECUTE command; RETURN 1; END'";

struct Example {
    line: usize,
    database: &'static str,
    sql: String,
    output: Option<String>,
}

/// The ```sql blocks, each with the ```text block that follows it at once.
fn examples(readme: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut lines = readme.lines().enumerate().peekable();
    let mut after_sql = false;
    let mut database = "readme";
    while let Some((number, line)) = lines.next() {
        let mut block = || {
            lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| *line != "```")
                .map(|line| format!("{line}\n"))
                .collect::<String>()
        };
        match line {
            "```sql" => {
                examples.push(Example { line: number + 1, database, sql: block(), output: None });
                after_sql = true;
            }
            "```text" => {
                assert!(after_sql, "line {}: output without its SQL", number + 1);
                examples.last_mut().unwrap().output = Some(block());
                after_sql = false;
            }
            line if line.starts_with("```") => {
                block();
                after_sql = false;
            }
            line => {
                if line.starts_with('#') {
                    database = if line == RECIPE { "readme_recipe" } else { "readme" };
                }
                after_sql = false;
            }
        }
    }
    examples
}

/// What psql prints, both streams in the order in which it prints them.
fn psql(server: &str, database: &str, sql: &str) -> String {
    let mut psql = Command::new("sh")
        .arg("-c")
        .arg(r#"exec psql -X -q -v ON_ERROR_STOP=0 -d "$0" 2>&1"#)
        .arg(format!("{server} dbname={database}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("psql runs");
    psql.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    String::from_utf8(psql.wait_with_output().unwrap().stdout).unwrap()
}

/// Without the spaces at line ends and the blank lines around, which nobody can see.
fn visible(output: &str) -> String {
    output.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim().to_owned()
}

#[test]
#[ignore = "needs a server: make test"]
fn every_example_prints_what_the_readme_shows() {
    let server = std::env::var("RATELIMIT_TEST_SERVER").expect("RATELIMIT_TEST_SERVER: make test");
    let examples = examples(include_str!("../README.md"));
    assert!(examples.len() > 10, "only {} examples found", examples.len());

    assert!(examples.iter().any(|example| example.database != "readme"), "no {RECIPE:?}");

    let drop = "DROP DATABASE IF EXISTS readme; DROP DATABASE IF EXISTS readme_recipe;
                DROP ROLE IF EXISTS app, authenticator, authenticated;";
    let create = "CREATE DATABASE readme; CREATE DATABASE readme_recipe;
                  CREATE ROLE app; CREATE ROLE authenticator; CREATE ROLE authenticated;";
    psql(&server, "postgres", drop);
    assert_eq!(psql(&server, "postgres", create), "");
    assert_eq!(psql(&server, "readme", PG_CRON), "");
    let mut wrong = Vec::new();
    for example in &examples {
        let printed =
            visible(&psql(&server, example.database, &format!("{CLOCK}\n{}", example.sql)));
        let as_shown = match &example.output {
            Some(output) => printed == visible(output),
            None => !printed.contains("ERROR:"),
        };
        if !as_shown {
            wrong.push(format!("README.md:{}:\n{}\nprints\n{printed}", example.line, example.sql));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert_eq!(psql(&server, "postgres", drop), "");
}

#[test]
fn every_snippet_stands_in_a_program_that_is_tested() {
    let readme = include_str!("../README.md");
    for (language, file, program) in [
        ("python", "python.py", include_str!("clients/python.py")),
        ("js", "node.mjs", include_str!("clients/node.mjs")),
        ("rust", "rust.rs", include_str!("clients/rust.rs")),
        ("bash", "shell.sh", include_str!("clients/shell.sh")),
    ] {
        let snippets: Vec<&str> = readme.split(&format!("\n```{language}\n")).skip(1).collect();
        assert!(!snippets.is_empty(), "the README shows nothing of {file}");
        assert!(readme.contains(&format!("(tests/clients/{file})")), "no link to {file}");
        for snippet in snippets {
            let (snippet, _) = snippet.split_once("```\n").expect("the block ends");
            assert!(program.contains(snippet), "this is not in {file}:\n{snippet}");
        }
    }
}
