//! Compares sql/functions.sql, as pg_proc has it, with each `sql_function!`. Only pg_regress shows defaults, costs and
//! comments (plan.sql).

#[pgrx::pg_schema]
mod tests {
    use std::ffi::CString;
    use std::ptr::null_mut;

    use pgrx::pg_sys;
    use pgrx::prelude::*;
    use ratelimit_core::Micros;
    use ratelimit_core::config::Interval;

    use super::super::{error_of, get, run};
    use crate::declaration::declared::{Declaration, Parameter};
    use crate::declaration::{Effect, sql_function};
    use ratelimit_pg::call::Call;
    use ratelimit_pg::call::result::Returned;
    use ratelimit_pg::call::sql_types::{Json, ResultColumn, Text, sql_row};
    use ratelimit_pg::values::Jsonb;

    /// Spells an SQL type of the library as PostgreSQL does.
    fn type_of(sql: &str) -> String {
        let schema: String = get(
            "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'ratelimit'",
        );
        get(&format!("SELECT '{}'::regtype::text", sql.replace("@extschema@", &schema)))
    }

    /// Spells a name and its type, such as `key text`, as PostgreSQL does.
    fn named(name: &str, sql: &str) -> String {
        get(&format!("SELECT format('%I %s', '{name}', '{}')", type_of(sql)))
    }

    /// Lists columns as the attributes of a type are listed.
    fn listed(columns: &[ResultColumn]) -> String {
        let of = |column: &ResultColumn| named(column.name.to_str().unwrap(), column.sql);
        columns.iter().map(of).collect::<Vec<_>>().join(", ")
    }

    /// Lists the attributes of a composite type.
    fn attributes(of: &str) -> String {
        get(&format!(
            "SELECT coalesce(string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum), '')
             FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
               AND attrelid = (SELECT typrelid FROM pg_type WHERE oid = '{of}'::regtype)"
        ))
    }

    /// Returns the differences between `pg_proc` and the library for a function.
    fn differences(declaration: &Declaration, function: &str) -> Vec<[String; 2]> {
        let Declaration { name, parameters, returns, effect } = declaration;
        let of = |what: &str| -> String {
            let sql =
                format!("SELECT ({what})::text FROM pg_proc WHERE oid = '{function}'::regproc");
            Spi::get_one(&sql).unwrap().unwrap_or_default()
        };
        let arguments: Vec<String> =
            parameters.iter().map(|parameter| named(parameter.name, parameter.sql)).collect();
        let result = match *returns {
            Returned::Value(sql) => type_of(sql),
            Returned::Row(sql, _) => type_of(sql),
            Returned::Rows(sql, _) => format!("SETOF {}", type_of(sql)),
        };
        let how = match effect {
            Effect::Computes => "i s f",
            Effect::Window => "i s w",
            Effect::Writes | Effect::Takes | Effect::Reads | Effect::Trigger => "v u f",
        };
        let mut pairs = vec![
            [
                of("replace(pg_get_function_identity_arguments(oid), 'VARIADIC ', '')"),
                arguments.join(", "),
            ],
            [of("pg_get_function_result(oid)"), result],
            [of("concat_ws(' ', provolatile, proparallel, prokind)"), how.to_owned()],
            [of("proisstrict OR prosecdef OR proleakproof"), "false".to_owned()],
            [of("prosrc"), (*name).to_owned()],
        ];
        if let Returned::Row(sql, columns) | Returned::Rows(sql, columns) = *returns {
            pairs.push([attributes(&type_of(sql)), listed(columns)]);
        }
        // An argument with the default NULL may be NULL.
        for (n, Parameter { name, nullable, .. }) in parameters.iter().enumerate() {
            let default = of(&format!("pg_get_function_arg_default(oid, {})", n + 1));
            if default.starts_with("NULL") && !nullable {
                pairs.push([format!("{name} DEFAULT NULL"), format!("{name} NOT NULL")]);
            }
        }
        pairs.retain(|[stored, read]| stored != read);
        pairs
    }

    /// Finds the declaration that `sql_function!` exports for a function.
    fn declaration(name: &str) -> &'static Declaration {
        let symbol = CString::new(format!("declared_{name}")).unwrap();
        // SAFETY: the symbol is that of a Declaration, if there is one.
        let found = unsafe {
            let library = c"$libdir/ratelimit".as_ptr();
            pg_sys::load_external_function(library, symbol.as_ptr(), false, null_mut())
                .cast::<Declaration>()
                .as_ref()
        };
        found.unwrap_or_else(|| panic!("{name}: no sql_function!"))
    }

    /// `tests/static/functions.rs` shows that the library has no others.
    #[pg_test]
    fn pg_proc_has_every_function_as_the_library_reads_it() {
        let names: Vec<String> = get(
            "SELECT array_agg(proname::text ORDER BY proname) FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
             WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
               AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit')
               AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'c')
               AND pronamespace <> 'tests'::regnamespace",
        );
        for name in names {
            let found = differences(declaration(&name), &name);
            assert!(found.is_empty(), "{name}: {found:?}");
            assert!(
                get::<bool>(&format!("SELECT obj_description('{name}'::regproc, 'pg_proc') > ''")),
                "{name}"
            );
        }
    }

    sql_row! {
        pub struct Read as "test_read" {
            required: Text,
            optional: Option<Text>,
            config: Option<Json>,
        }
    }

    sql_function! {
        /// Has an argument of each type, and one of each that may be NULL.
        #[effect(Computes)]
        fn test_arguments(
            call: &Call,
            a: bool,
            b: i32,
            c: f64,
            d: &[u8],
            e: Interval,
            f: Micros,
            a_null: Option<bool>,
            b_null: Option<i32>,
            c_null: Option<f64>,
            d_null: Option<&[u8]>,
            e_null: Option<Interval>,
            f_null: Option<Micros>,
            config: Option<Jsonb>,
        ) -> Read {
            let months = |span: Interval| (span.months, span.days, span.micros);
            let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            let required = format!("{:?}", (a, b, c, text(d), months(e), f.0));
            let given = (a_null, b_null, c_null, d_null.map(text), e_null.map(months), f_null.map(|at| at.0));
            let optional = d_null.map(|_| Text::new(format!("{given:?}").as_bytes()));
            Ok(Read {
                required: Text::new(required.as_bytes()),
                optional,
                config: config.map(Json::from),
            })
        }
    }

    const CREATE: &str = "CREATE FUNCTION test_arguments(
        a boolean, b integer, c double precision, d text, e interval, f timestamptz,
        a_null boolean DEFAULT true, b_null integer DEFAULT -7, c_null double precision DEFAULT '-Infinity',
        d_null text DEFAULT 'it''s', e_null interval DEFAULT '-1 day',
        f_null timestamptz DEFAULT '1999-12-31 23:59:59.999999+00', config jsonb DEFAULT NULL)
        RETURNS test_read LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'ratelimit', 'test_arguments'";

    const TYPE: &str = "CREATE TYPE test_read AS (required text, optional text, config jsonb)";

    /// Changes one side only, each time in another way.
    #[pg_test]
    fn a_difference_between_the_sql_and_the_library_is_seen() {
        let found = |from: &str, to: &str| {
            assert!(CREATE.contains(from) || TYPE.contains(from), "{from}");
            run(&TYPE.replacen(from, to, 1));
            run(&CREATE.replacen(from, to, 1));
            let found = differences(&test_arguments, "test_arguments");
            run("DROP FUNCTION test_arguments; DROP TYPE test_read");
            found
        };
        assert_eq!(found("LANGUAGE", "LANGUAGE").len(), 0);
        for (from, to) in [
            ("b integer", "b bigint"),
            ("b integer, c double precision", "c double precision, b integer"),
            ("e interval", "ee interval"),
            (", f timestamptz", ""),
            ("f timestamptz,", "f timestamptz DEFAULT NULL,"),
            ("(required text", "(required jsonb"),
            (" optional text", " optionally text"),
            (", config jsonb)", ")"),
            ("RETURNS test_read", "RETURNS SETOF test_read"),
            ("IMMUTABLE", "VOLATILE"),
            ("PARALLEL SAFE", "PARALLEL UNSAFE"),
            ("LANGUAGE c", "LANGUAGE c WINDOW"),
            ("LANGUAGE c", "LANGUAGE c STRICT"),
            ("'test_arguments'", "'rl_unlimited'"),
        ] {
            assert_eq!(found(from, to).len(), 1, "{from}: {to}");
        }
    }

    #[pg_test]
    fn arguments_are_read_in_their_order_and_as_what_they_are() {
        run(TYPE);
        run(CREATE);
        const REQUIRED: &str = "true, -2147483648, 1e300, 'käse', \
                                '1 year 2 mons 3 days 04:05:06.000007', '1970-01-01 00:00:00.000001+00'";
        let read = |what: &str, more: &str| -> Option<String> {
            Spi::get_one(&format!("SELECT ({what})::text FROM test_arguments({REQUIRED}{more})"))
                .unwrap()
        };
        assert_eq!(
            read("required", "").unwrap(),
            "(true, -2147483648, 1e300, \"käse\", (14, 3, 14706000007), 1)"
        );
        assert_eq!(
            read("optional", "").unwrap(),
            "(Some(true), Some(-7), Some(-inf), Some(\"it's\"), Some((0, -1, 0)), Some(946684799999999))"
        );
        assert_eq!(
            read("optional", ", b_null => NULL, f_null => NULL").unwrap(),
            "(Some(true), None, Some(-inf), Some(\"it's\"), Some((0, -1, 0)), None)"
        );
        assert_eq!(read("optional", ", d_null => NULL"), None);
        assert_eq!(read("config", ""), None);
        assert_eq!(
            read("config", ", config => '{\"b\": [1, null]}'").unwrap(),
            "{\"b\": [1, null]}"
        );
    }

    #[pg_test]
    fn a_null_is_refused_by_the_name_of_the_argument_that_may_not_be() {
        run(TYPE);
        run(CREATE);
        let call = |first: &str, sixth: &str| {
            error_of(&format!("SELECT test_arguments({first}, 1, 1, 'd', '1 s', {sixth})"))
        };
        let error = call("NULL", "now()");
        assert_eq!((&*error.sqlstate, &*error.message), ("22004", "a must not be NULL"));
        let error = call("true", "NULL");
        assert_eq!((&*error.sqlstate, &*error.message), ("22004", "f must not be NULL"));
        let error = call("true", "'infinity'");
        assert_eq!((&*error.sqlstate, &*error.message), ("22023", "f is infinite"));
    }

    /// As when the extension's scripts are older than its library.
    #[pg_test]
    fn an_argument_that_a_caller_does_not_pass_is_null() {
        run(
            "CREATE FUNCTION pg_temp.older(name text) RETURNS boolean LANGUAGE c AS 'ratelimit', 'rl_reset'",
        );
        let error = error_of("SELECT pg_temp.older('some')");
        assert_eq!((&*error.sqlstate, &*error.message), ("22004", "key must not be NULL"));
    }

    #[pg_test]
    fn a_result_that_does_not_fit_is_refused() {
        let state = |declared: &str, call: &str| {
            run(declared);
            error_of(&format!("SELECT {call}")).sqlstate
        };
        const CREDIT: &str = "CREATE FUNCTION pg_temp.other(name text, key text, count float8)";
        const IN_C: &str = "LANGUAGE c AS 'ratelimit', 'rl_credit'";
        run("CREATE TYPE pg_temp.other AS (ok boolean, retry_after real)");
        run("CREATE TYPE pg_temp.none AS (yes boolean)");
        for returned in ["pg_temp.other", "pg_temp.none", "text"] {
            let declared = format!("{CREDIT} RETURNS {returned} {IN_C}");
            assert_eq!(state(&declared, "pg_temp.other('some', '', 1)"), "42P13", "{returned}");
            run("DROP FUNCTION pg_temp.other(text, text, float8)");
        }
        for returned in ["TABLE (name text, allowed int)", "TABLE (n text)", "SETOF text"] {
            let declared = format!(
                "CREATE FUNCTION pg_temp.rows() RETURNS {returned} LANGUAGE c AS 'ratelimit', 'rl_stats'"
            );
            assert_eq!(state(&declared, "pg_temp.rows()"), "42P13", "{returned}");
            run("DROP FUNCTION pg_temp.rows()");
        }
    }

    /// As when the extension's scripts are newer than its library, or older.
    #[pg_test]
    fn a_type_has_what_it_names() {
        run("SELECT rl_define('some', rl_token_bucket(10, '1 day'))");
        run(
            "CREATE TYPE newer AS (more int, ok boolean, remaining float8, reset_at timestamptz, name text)",
        );
        run("CREATE FUNCTION newer(name text, key text, count float8) RETURNS newer
             LANGUAGE c AS 'ratelimit', 'rl_credit'");
        let answer: String = get("SELECT (SELECT c FROM newer('some', '', 1) AS c)::text");
        assert!(answer.starts_with("(,t,10,") && answer.ends_with(",)"), "{answer}");
        run("CREATE TYPE listed AS (more int, remaining float8, key text)");
        run("CREATE FUNCTION listed(requests jsonb, throws boolean) RETURNS SETOF listed
             LANGUAGE c AS 'ratelimit', 'rl_limit_all'");
        let list = r#"[{"name": "some", "key": "a"}, {"name": "some", "key": "b", "count": 3}]"#;
        let answers: Vec<String> =
            get(&format!("SELECT array_agg(l::text) FROM listed('{list}', false) AS l"));
        assert_eq!(answers, ["(,9,a)", "(,7,b)"]);
    }
}
