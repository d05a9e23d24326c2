//! Runs the SQL of the README and of docs/, which must print what the pages show, that of some pages with the SQL file,
//! too.
//!
//! Each page has a database of its own, in which its blocks run in order, each in a psql of its own,
//! at a fixed time: a reader who types them one after the other sees the same but for the times.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use pages::{Page, documents, root, split};

#[allow(dead_code, reason = "the static tests read more of a page")]
#[path = "../static/pages.rs"]
pub mod pages;
mod reference;

const CLOCK: &str = "SET ratelimit.clock = '2027-01-01 12:00:00+00'; SET timezone = 'UTC';";

/// Stands for pg_cron: it runs a job once, to see that it can be run.
const PG_CRON: &str = "CREATE SCHEMA cron;
    CREATE FUNCTION cron.schedule(name text, schedule text, command text) RETURNS bigint
    LANGUAGE plpgsql AS 'BEGIN EXECUTE command; RETURN 1; END'";

/// How a page installs the SQL file, in whose place `make plain` has left the file.
const SQL_FILE: &str = "-v ON_ERROR_STOP=1 -f ratelimit.sql\n";

/// Pages whose examples also run on the SQL file, but for limits in memory.
const ON_BOTH: [&str; 11] = [
    "README.md",
    "concurrency.md",
    "getting-started.md",
    "holds.md",
    "http.md",
    "llm-budgets.md",
    "queues.md",
    "quotas.md",
    "recipes.md",
    "several-limits.md",
    "triggers.md",
];
const IN_MEMORY: &str = "store => 'memory'";
const CONTEXT: &str = "CONTEXT:";

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

/// Cuts what is not visible: spaces at line ends, blank lines around.
fn visible(output: &str) -> String {
    output.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// Returns the examples of a page that do not print what it shows; `examples` counts those that ran.
fn wrong_examples(
    server: &str,
    page: &Page,
    with_the_file: bool,
    examples: &mut usize,
) -> Vec<String> {
    const DROP: &str = "DROP DATABASE IF EXISTS documents";
    let path = page.path.display();
    let (blocks, _) = split(&page.text);
    if !blocks.iter().any(|block| block.language == "sql") {
        return Vec::new();
    }
    // Roles that the page makes are the server's, and outlive its database.
    let codes = blocks.iter().flat_map(|block| block.code.split("CREATE ROLE ").skip(1));
    let roles = codes.filter_map(|code| code.split(|c: char| !c.is_alphanumeric()).next());
    let drop_roles = roles.fold("SET client_min_messages = warning;".to_owned(), |sql, role| {
        format!("{sql} DROP ROLE IF EXISTS {role};")
    });
    assert_eq!(psql(server, "postgres", &drop_roles), "");
    assert_eq!(visible(&psql(server, "postgres", "CREATE DATABASE documents")), "");
    assert_eq!(psql(server, "documents", PG_CRON), "");
    let mut before = CLOCK.to_owned();
    // The page does it, or says where it is done.
    let installs_the_file = page.text.contains(SQL_FILE);
    if with_the_file || installs_the_file {
        let file = fs::read_to_string(root().join("dist/ratelimit.sql")).expect("make plain");
        assert!(!psql(server, "documents", &file).contains("ERROR:"), "dist/ratelimit.sql");
        before += "\n\\set SHOW_CONTEXT never";
        if !installs_the_file {
            let grant = "GRANT USAGE ON SCHEMA ratelimit TO app";
            assert_eq!(psql(server, "documents", grant), "");
            before += "\nSET search_path = public, ratelimit;";
        }
    } else if !page.text.contains("\nCREATE EXTENSION ratelimit") {
        assert!(page.text.contains("installation.md"), "{path} needs a link to the installation");
        assert_eq!(psql(server, "documents", "CREATE EXTENSION ratelimit"), "");
    }
    let runs = |code: &str| !with_the_file || !code.contains(IN_MEMORY);
    let mut wrong = Vec::new();
    for (i, block) in blocks.iter().enumerate().filter(|(_, block)| block.language == "sql") {
        if !runs(&block.code) {
            continue;
        }
        let shown = blocks.get(i + 1).filter(|next| next.language == "text");
        let printed = visible(&psql(server, "documents", &format!("{before}\n{}", block.code)));
        let as_shown = match shown {
            // Where an error comes from differs between the editions.
            Some(output) if with_the_file => {
                let lines = output.code.lines().filter(|line| !line.starts_with(CONTEXT));
                printed == visible(&lines.collect::<Vec<_>>().join("\n"))
            }
            Some(output) => printed == visible(&output.code),
            None => !printed.contains("ERROR:"),
        };
        if !as_shown {
            let edition = if with_the_file { ", on the SQL file" } else { "" };
            wrong.push(format!(
                "{path}:{}:\n{}\nprints{edition}\n{printed}",
                block.line, block.code
            ));
        }
        *examples += 1;
    }
    assert_eq!(psql(server, "postgres", DROP), "");
    assert_eq!(psql(server, "postgres", &drop_roles), "");
    wrong
}

#[test]
#[ignore = "needs a server: make test"]
fn every_example_prints_what_its_page_shows() {
    let server = std::env::var("RATELIMIT_TEST_SERVER").expect("RATELIMIT_TEST_SERVER: make test");
    // What an earlier run may have left, and the roles that the pages name.
    psql(&server, "postgres", "DROP DATABASE IF EXISTS documents");
    psql(
        &server,
        "postgres",
        "DROP ROLE IF EXISTS app, authenticator, authenticated, service_role",
    );
    // With the SQL file, the clock is for members of its owner. These don't inherit its rights.
    let roles = "CREATE ROLE app NOINHERIT; CREATE ROLE authenticator;
        CREATE ROLE authenticated NOINHERIT; CREATE ROLE service_role NOINHERIT;
        DO $$ BEGIN EXECUTE format('GRANT %I TO app, authenticated, service_role', current_user); END $$";
    assert_eq!(psql(&server, "postgres", roles), "");

    let mut examples = 0;
    let pages = documents();
    let mut wrong: Vec<String> =
        pages.iter().flat_map(|page| wrong_examples(&server, page, false, &mut examples)).collect();
    for name in ON_BOTH {
        let page = pages.iter().find(|page| page.path.ends_with(name));
        let page = page.unwrap_or_else(|| panic!("no page {name}"));
        wrong.extend(wrong_examples(&server, page, true, &mut examples));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(examples > 40, "only {examples} examples found");
    let drop = "DROP ROLE app, authenticator, authenticated, service_role";
    assert_eq!(psql(&server, "postgres", drop), "");
}
