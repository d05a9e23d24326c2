//! The library has no function that the SQL doesn't declare. `pg_tests::declared` shows the opposite, and compares
//! them.

use std::fs;

#[test]
fn every_function_of_the_library_is_declared_in_sql() {
    let sql = include_str!("../../sql/functions.sql");
    let mut count = 0;
    for file in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/functions")).unwrap() {
        let source = fs::read_to_string(file.unwrap().path()).unwrap();
        let lines = source.lines().map(|line| line.trim_start().trim_start_matches("fn "));
        // fn rl_limit(…, or in the list of builders rl_token_bucket, TokenBucket (…
        for line in lines.filter(|line| line.starts_with("rl_") && line.contains('(')) {
            let name = line.split(|c: char| c != '_' && !c.is_alphanumeric()).next().unwrap();
            assert!(sql.contains(&format!("CREATE FUNCTION @extschema@.{name}(")), "{name}");
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
}
