//! The pages that list what the extension has: functions, config fields, settings and SQLSTATEs, compared
//! in both directions with what a server, or the source, says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::pages::{Page, SIGNATURE, read, rows, split};
use crate::database::Database;

/// Every function that the database's owner may call, as the reference shows it: with the columns of its result, but
/// for [RESULT].
const FUNCTIONS: &str = "
    SELECT proname::text, format('%s(%s) RETURNS %s%s', proname, arguments, pg_get_function_result(pg_proc.oid),
        (SELECT format('(%s)', string_agg(format('%s %s', attname, format_type(atttypid, atttypmod)), ', '
                       ORDER BY attnum)) FROM pg_attribute JOIN pg_type ON typrelid = attrelid
         WHERE pg_type.oid = prorettype AND typname <> 'rl_result' GROUP BY attrelid))
    FROM pg_depend JOIN pg_proc ON pg_proc.oid = objid,
         LATERAL regexp_replace(pg_get_function_arguments(pg_proc.oid), '::[a-z ]+', '', 'g') AS arguments
    WHERE classid = 'pg_proc'::regclass AND deptype = 'e' AND refclassid = 'pg_extension'::regclass
      AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit')
      AND has_function_privilege('pg_database_owner', pg_proc.oid, 'EXECUTE')";

/// The type of the result that many have, likewise.
const RESULT: &str = "
    SELECT 'rl_result', format('CREATE TYPE rl_result AS (%s)', string_agg(format('%s %s', attname,
        format_type(atttypid, atttypmod)), ', ' ORDER BY attnum))
    FROM pg_attribute WHERE attrelid = 'rl_result'::regclass AND attnum > 0";

/// Returns what follows each heading of a page, by the heading's text; under several of a text, all of it.
fn sections(page: &Page) -> BTreeMap<&str, String> {
    let mut sections = BTreeMap::new();
    let (mut heading, mut in_block) = ("", false);
    for line in page.text.lines() {
        in_block ^= line.starts_with("```");
        if line.starts_with('#') && !in_block {
            heading = line.trim_start_matches('#').trim();
        }
        let section: &mut String = sections.entry(heading).or_default();
        section.push_str(line);
        section.push('\n');
    }
    sections
}

/// Returns the words in code of a text.
fn words(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// A signature on one line, with the types' long names.
fn plain(signature: &str) -> String {
    let line = signature.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.replace("timestamptz", "timestamp with time zone");
    line.replace("( ", "(")
        .replace(" )", ")")
        .replace("_result (", "_result(")
        .replace("TABLE (", "TABLE(")
}

/// Returns the names of a signature's arguments and columns.
fn names(signature: &str) -> BTreeSet<&str> {
    let lists = signature.split('(').skip(1).filter_map(|list| list.split_once(')'));
    let named = lists.flat_map(|(list, _)| list.split(", "));
    named.filter_map(|named| named.split_whitespace().find(|word| *word != "VARIADIC")).collect()
}

#[test]
#[ignore = "needs a server: make test"]
fn the_reference_has_every_function_with_its_signature() {
    let database = Database::new("reference");
    let mut client = database.connect();
    let page = read(Path::new("docs/reference.md"));
    let sections = sections(&page);
    let examples: String = split(&page.text)
        .0
        .iter()
        .filter(|block| ["sql", "sh"].contains(&block.language))
        .map(|block| block.code.as_str())
        .collect();

    let rows = [FUNCTIONS, RESULT].map(|query| client.query(query, &[]).unwrap()).concat();
    let real: BTreeMap<String, String> =
        rows.iter().map(|row| (row.get(0), plain(row.get(1)))).collect();
    let mut wrong = Vec::new();
    for (name, signature) in &real {
        let section = sections.get(name.as_str()).map_or("", String::as_str);
        let (blocks, prose) = split(section);
        let shown: Vec<String> = blocks
            .iter()
            .filter(|block| block.language == SIGNATURE)
            .map(|block| plain(&block.code))
            .collect();
        if shown != [signature.as_str()] {
            wrong.push(format!("{name} is shown as {shown:?}, and is\n{signature}"));
        }
        let explained = words(&prose);
        for argument in names(signature).difference(&explained) {
            wrong.push(format!("{name}: nothing explains {argument}"));
        }
        if !examples.contains(&format!("{name}(")) && name != "rl_result" {
            wrong.push(format!("{name} has no example"));
        }
    }
    for heading in sections.keys().filter(|heading| heading.starts_with("rl_")) {
        if !real.contains_key(*heading) {
            wrong.push(format!("there is no {heading}"));
        }
    }
    let shown = split(&page.text).0.iter().filter(|block| block.language == SIGNATURE).count();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(shown, real.len(), "a signature under no heading of its own");
}

#[test]
#[ignore = "needs a server: make test"]
fn the_page_of_settings_has_each_with_its_default() {
    let database = Database::new("settings");
    let mut client = database.connect();
    client.batch_execute("LOAD 'ratelimit'").unwrap();
    let query = "SELECT name, vartype, CASE vartype WHEN 'string' THEN quote_literal(boot_val) ELSE boot_val END,
            CASE vartype WHEN 'enum' THEN array_to_string(enumvals, ', ') WHEN 'bool' THEN 'on, off'
                         WHEN 'string' THEN 'a time' ELSE min_val || ' to ' || max_val END,
            CASE context WHEN 'user' THEN 'every role' WHEN 'superuser' THEN 'superusers'
                         WHEN 'sighup' THEN 'the configuration file' END
        FROM pg_settings WHERE name LIKE 'ratelimit.%' ORDER BY name";
    let real: Vec<Vec<String>> = client
        .query(query, &[])
        .unwrap()
        .iter()
        .map(|row| {
            (0..row.len())
                .map(|cell| row.get::<_, Option<String>>(cell).unwrap_or("''".into()))
                .collect()
        })
        .collect();

    let page = read(Path::new("docs/settings.md"));
    let sections = sections(&page);
    let shown: Vec<Vec<String>> = rows(&sections["Settings"])
        .into_iter()
        .map(|mut row| {
            let name = row[0].trim_start_matches('[').split(']').next();
            row[0] = name.unwrap_or_default().to_owned();
            row.truncate(5);
            row
        })
        .collect();
    assert_eq!(shown, real);
    let described: Vec<&str> =
        sections.keys().copied().filter(|heading| heading.starts_with("ratelimit.")).collect();
    assert_eq!(described, real.iter().map(|row| row[0].as_str()).collect::<Vec<_>>());
}

#[test]
#[ignore = "needs a server: make test"]
fn the_page_of_configs_has_every_field_of_each_kind() {
    let database = Database::new("configs");
    let mut client = database.connect();
    let page = read(Path::new("docs/configuration.md"));
    let sections = sections(&page);
    let fields = |heading: &str| -> Vec<String> {
        rows(&sections[heading]).into_iter().map(|mut row| row.swap_remove(0)).collect()
    };
    let kinds = [
        "Token bucket",
        "Fixed window",
        "Sliding window",
        "Sliding log",
        "Concurrency",
        "Unlimited",
    ];
    for kind in kinds {
        // The detail of the error for an unknown field lists the fields of the kind.
        let config = serde_json::json!({ "kind": kind.to_lowercase(), "no": "such field" });
        let error = client.query("SELECT rl_define('a', $1::text::jsonb)", &[&config.to_string()]);
        let error = error.unwrap_err();
        let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
        let allowed: BTreeSet<&str> = detail.split('"').skip(1).step_by(2).collect();
        let shown = [fields("Fields of every kind"), fields(kind)].concat();
        assert_eq!(shown.iter().map(String::as_str).collect::<BTreeSet<_>>(), allowed, "{kind}");
    }
}
