//! SQL functions in pg_proc beside what the library reads.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;
    use ratelimit_core::Micros;
    use ratelimit_core::config::Interval;

    use super::super::{error_of, get, run};
    use crate::functions::DECLARED;
    use crate::pg::call::Call;
    use crate::pg::call::sql_types::{Json, Text, sql_row};
    use crate::pg::declaration::{Declaration, One, Returned, sql_function};
    use crate::pg::values::Jsonb;

    /// A type of a declaration, as SQL can name it here.
    fn sql_type(of: &str) -> String {
        let schema: String = get(
            "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'ratelimit'",
        );
        of.replace("@extschema@", &schema)
    }

    fn is_true(sql: &str) -> bool {
        Spi::get_one(sql).unwrap() == Some(true)
    }

    #[pg_test]
    fn pg_proc_has_every_function_as_the_library_reads_it() {
        for Declaration { name, parameters, returns, effect, rows, comment } in DECLARED {
            let of =
                |what: &str| format!("SELECT {what} FROM pg_proc p WHERE oid = '{name}'::regproc");
            let count: i32 = get(&of("p.pronargs::int"));
            assert_eq!(count as usize, parameters.len(), "{name}");
            let defaults: i32 = get(&of("p.pronargdefaults::int"));
            let declared = parameters.iter().filter(|parameter| parameter.default.is_some());
            assert_eq!(defaults as usize, declared.count(), "{name}");
            for (n, parameter) in parameters.iter().enumerate() {
                let what = format!("{name}, {}", parameter.name);
                let called: String = get(&of(&format!("p.proargnames[{}]", n + 1)));
                assert_eq!(called, parameter.name, "{what}");
                let sql = sql_type(parameter.sql);
                assert!(is_true(&of(&format!("p.proargtypes[{n}] = '{sql}'::regtype"))), "{what}");
                let default = format!("pg_get_function_arg_default(p.oid, {})", n + 1);
                let default: Option<String> = Spi::get_one(&of(&default)).unwrap();
                match (default, parameter.default) {
                    (None, None) => {}
                    (Some(stored), Some(declared)) => assert!(
                        is_true(&format!(
                            "SELECT ({stored})::text IS NOT DISTINCT FROM ({declared})::{sql}::text"
                        )),
                        "{what}: {stored}"
                    ),
                    other => panic!("{what}: {other:?}"),
                }
            }
            let result: String = get(&of("pg_get_function_result(p.oid)"));
            let names: Vec<String> =
                Spi::get_one(&of("p.proargnames[p.pronargs + 1:]")).unwrap().unwrap_or_default();
            let types = |columns: &[crate::pg::call::sql_types::ResultColumn]| -> Vec<String> {
                let types = columns.iter().map(|column| sql_type(column.sql));
                types.map(|of| get(&format!("SELECT '{of}'::regtype::text"))).collect()
            };
            let all: Vec<String> = Spi::get_one(&of(
                "ARRAY(SELECT t::regtype::text FROM unnest(p.proallargtypes[p.pronargs + 1:]) t)",
            ))
            .unwrap()
            .unwrap_or_default();
            match returns {
                Returned::Value(of) => {
                    let of: String = get(&format!("SELECT '{}'::regtype::text", sql_type(of)));
                    assert_eq!(result, of, "{name}");
                }
                Returned::Row(columns) | Returned::Table(columns) => {
                    let is_set = matches!(returns, Returned::Table(_));
                    assert_eq!(result.starts_with("TABLE("), is_set, "{name}: {result}");
                    let called: Vec<&str> = columns.iter().map(|column| column.name).collect();
                    assert_eq!(names, called, "{name}");
                    assert_eq!(all, types(columns), "{name}");
                }
            }
            let immutable = effect.sql.contains("IMMUTABLE PARALLEL SAFE");
            assert_eq!(
                is_true(&of("p.provolatile = 'i' AND p.proparallel = 's'")),
                immutable,
                "{name}"
            );
            assert_eq!(
                is_true(&of("p.provolatile = 'v' AND p.proparallel = 'u'")),
                !immutable,
                "{name}"
            );
            assert_eq!(is_true(&of("p.procost = 200")), effect.sql.contains("COST"), "{name}");
            if let Some(rows) = rows {
                assert!(is_true(&of(&format!("p.prorows = {rows}"))), "{name}");
            }
            assert!(!is_true(&of("p.proisstrict OR p.prosecdef OR p.proleakproof")), "{name}");
            let about: String =
                get(&format!("SELECT obj_description('{name}'::regproc, 'pg_proc')"));
            assert_eq!(about, *comment, "{name}");
        }
    }

    #[pg_test]
    fn no_function_of_the_extension_is_without_a_declaration() {
        let names: Vec<String> = get(
            "SELECT array_agg(proname::text ORDER BY proname) FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
             WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
               AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit')
               AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'c')
               AND pronamespace <> 'tests'::regnamespace AND proname NOT LIKE 'test\\_%'",
        );
        let mut declared: Vec<&str> = DECLARED.iter().map(|declared| declared.name).collect();
        declared.sort_unstable();
        assert_eq!(names, declared);
    }

    sql_row! {
        pub struct Read {
            required: Text,
            optional: Option<Text>,
            config: Option<Json>,
        }
    }

    sql_function! {
        /// One argument of each type, and one more of each that may be NULL.
        #[sql(NONE, comment = "tells what it reads")]
        fn test_arguments(
            call: &Call,
            a: bool,
            b: i32,
            c: f64,
            d: &[u8],
            e: Interval,
            f: Micros,
            a_null: Option<bool> = "true",
            b_null: Option<i32> = "-7",
            c_null: Option<f64> = "'-Infinity'",
            d_null: Option<&[u8]> = "'it''s'",
            e_null: Option<Interval> = "'-1 day'",
            f_null: Option<Micros> = "'1999-12-31 23:59:59.999999+00'",
            config: Option<Jsonb> = "NULL",
        ) -> One<Read> {
            let months = |span: Interval| (span.months, span.days, span.micros);
            let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            let required = format!("{:?}", (a, b, c, text(d), months(e), f.0));
            let given = (a_null, b_null, c_null, d_null.map(text), e_null.map(months), f_null.map(|at| at.0));
            let optional = d_null.map(|_| Text::new(format!("{given:?}").as_bytes()));
            Ok(One(Read {
                required: Text::new(required.as_bytes()),
                optional,
                config: config.map(Json::from),
            }))
        }
    }

    #[pg_test]
    fn arguments_are_read_in_their_order_and_as_what_they_are() {
        const REQUIRED: &str = "true, -2147483648, 1e300, 'käse', '1 year 2 mons 3 days 04:05:06.000007', '1970-01-01 00:00:00.000001+00'";
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

    /// As where the extension's scripts are older than its library.
    #[pg_test]
    fn an_argument_that_a_caller_does_not_pass_is_null() {
        run(
            "CREATE FUNCTION pg_temp.older(name text) RETURNS boolean LANGUAGE c AS 'ratelimit', 'rl_reset'",
        );
        let error = error_of("SELECT pg_temp.older('some')");
        assert_eq!((&*error.sqlstate, &*error.message), ("22004", "key must not be NULL"));
    }

    #[pg_test]
    fn a_result_of_another_shape_than_declared_is_refused() {
        run("CREATE TYPE pg_temp.other AS (ok boolean, retry_after double precision)");
        run(
            "CREATE FUNCTION pg_temp.other(name text, key text, count float8) RETURNS pg_temp.other
             LANGUAGE c AS 'ratelimit', 'rl_credit'",
        );
        assert_eq!(error_of("SELECT pg_temp.other('some', '', 1)").sqlstate, "42P13");
        run("CREATE FUNCTION pg_temp.rows(name text) RETURNS TABLE (name text, key text)
             LANGUAGE c AS 'ratelimit', 'rl_status'");
        assert_eq!(error_of("SELECT pg_temp.rows(NULL)").sqlstate, "42P13");
    }
}
