//! Settings that change text, numbers, times, quoting or plans, each with two values. The isolation level and the
//! replication role aren't here: they change answers.

use postgres::Client;

/// A setting's name, and its value in each profile. One of them may be PostgreSQL's default.
pub type Setting = (&'static str, [&'static str; 2]);

pub const SETTINGS: &[Setting] = &[
    // Quoting and names.
    ("standard_conforming_strings", ["off", "on"]),
    ("backslash_quote", ["off", "on"]),
    ("escape_string_warning", ["on", "off"]),
    ("quote_all_identifiers", ["on", "off"]),
    ("array_nulls", ["off", "on"]),
    ("transform_null_equals", ["on", "off"]),
    ("search_path", ["pg_temp, public, pg_catalog", "\"$user\", nowhere"]),
    ("check_function_bodies", ["on", "off"]),
    ("row_security", ["off", "on"]),
    ("plpgsql.extra_errors", ["all", "none"]),
    ("plpgsql.extra_warnings", ["none", "all"]),
    ("plpgsql.variable_conflict", ["use_column", "use_variable"]),
    ("plpgsql.print_strict_params", ["on", "off"]),
    // Text of values.
    ("DateStyle", ["SQL, DMY", "German"]),
    ("IntervalStyle", ["sql_standard", "iso_8601"]),
    ("TimeZone", ["America/St_Johns", "Pacific/Chatham"]),
    ("timezone_abbreviations", ["Australia", "India"]),
    ("extra_float_digits", ["-15", "3"]),
    ("bytea_output", ["escape", "hex"]),
    ("xmlbinary", ["hex", "base64"]),
    ("xmloption", ["document", "content"]),
    ("lc_monetary", ["C.UTF-8", "POSIX"]),
    ("lc_numeric", ["C.UTF-8", "POSIX"]),
    ("lc_time", ["POSIX", "C.UTF-8"]),
    // Plans.
    ("plan_cache_mode", ["force_generic_plan", "force_custom_plan"]),
    ("jit", ["on", "off"]),
    ("jit_above_cost", ["0", "-1"]),
    ("enable_seqscan", ["off", "on"]),
    ("enable_indexscan", ["on", "off"]),
    ("enable_indexonlyscan", ["off", "on"]),
    ("enable_bitmapscan", ["on", "off"]),
    ("enable_tidscan", ["off", "on"]),
    ("enable_nestloop", ["off", "on"]),
    ("enable_hashjoin", ["on", "off"]),
    ("enable_mergejoin", ["on", "off"]),
    ("enable_hashagg", ["off", "on"]),
    ("enable_sort", ["on", "off"]),
    ("enable_incremental_sort", ["off", "on"]),
    ("enable_material", ["on", "off"]),
    ("enable_memoize", ["off", "on"]),
    ("from_collapse_limit", ["1", "100"]),
    ("join_collapse_limit", ["1", "100"]),
    ("geqo_threshold", ["2", "100"]),
    ("constraint_exclusion", ["on", "off"]),
    ("cursor_tuple_fraction", ["0.001", "1"]),
    ("random_page_cost", ["0", "1000"]),
    ("work_mem", ["64kB", "1GB"]),
    ("force_parallel_mode", ["on", "off"]),  // before 16
    ("debug_parallel_query", ["on", "off"]), // since
    ("parallel_setup_cost", ["0", "1e9"]),
    ("min_parallel_table_scan_size", ["0", "1GB"]),
    ("parallel_leader_participation", ["off", "on"]),
    ("synchronize_seqscans", ["off", "on"]),
    ("track_functions", ["all", "none"]),
];

/// Compiles every query, including plans that are turned off and so cost the most: installing takes half a minute.
/// So no profile has it.
const COMPILES: &str = "jit_above_cost";

/// The settings of a profile.
pub fn profile(n: usize) -> Vec<(&'static str, &'static str)> {
    let value =
        |(name, values): &Setting| (*name, if *name == COMPILES { "-1" } else { values[n] });
    SETTINGS.iter().map(value).collect()
}

/// The divisor of the number of calls under these settings.
pub fn part(settings: &[(&str, &str)]) -> usize {
    if settings.iter().any(|(name, value)| *name == COMPILES && *value == "0") {
        1_000
    } else {
        100
    }
}

/// Each setting alone, without defaults and without those that the server lacks; some need another one to have an
/// effect.
pub fn each_alone(client: &mut Client) -> Vec<Vec<(&'static str, &'static str)>> {
    client.batch_execute("LOAD 'plpgsql'").unwrap();
    let mut found = Vec::new();
    for (name, values) in SETTINGS {
        let known = "SELECT boot_val FROM pg_settings WHERE pg_settings.name = $1";
        let Some(row) = client.query_opt(known, &[name]).unwrap() else { continue };
        let usual: Option<String> = row.get(0);
        for value in values.iter().filter(|value| usual.as_deref() != Some(**value)) {
            let mut one = vec![(*name, *value)];
            if *name == "escape_string_warning" || *name == "backslash_quote" {
                one.push(("standard_conforming_strings", "off"));
            }
            found.push(one);
        }
    }
    found
}

/// The statements that set them for a database, if the server has them.
pub fn of_database(client: &mut Client, database: &str, settings: &[(&str, &str)]) -> Vec<String> {
    client.batch_execute("LOAD 'plpgsql'").unwrap();
    let mut statements = Vec::new();
    for (name, value) in settings {
        let known = "SELECT FROM pg_settings WHERE pg_settings.name = $1";
        if client.query_opt(known, &[name]).unwrap().is_none() {
            continue;
        }
        // A list isn't quoted.
        let value = match *name {
            "search_path" | "DateStyle" => (*value).to_owned(),
            _ => format!("'{value}'"),
        };
        statements.push(format!("ALTER DATABASE {database} SET {name} = {value}"));
    }
    statements
}
