//! Errors are raised outside the guard of pgrx, which would rebuild them.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::{error_of, get, run};
    use crate::declaration::sql_function;
    use ratelimit_limiter::error::LimiterError;
    use ratelimit_pg::call::Call;

    sql_function! {
        /// Runs a statement, and then fails if asked to.
        #[effect(Writes)]
        fn test_statement(call: &Call, statement: &[u8], fails: bool) -> bool {
            Spi::run(&String::from_utf8_lossy(statement)).unwrap();
            if fails { Err(LimiterError::NotWritten("rateLimits").into()) } else { Ok(true) }
        }
    }

    fn create_test_statement() {
        let name = test_statement.name;
        run(&format!(
            "CREATE FUNCTION {name}(statement text, fails boolean DEFAULT false) RETURNS boolean
             LANGUAGE c AS 'ratelimit', '{name}'"
        ));
    }

    /// Raises an error with an SQLSTATE that pgrx doesn't know.
    const RAISE: &str = "DO $do$ BEGIN RAISE EXCEPTION 'below' \
                         USING ERRCODE = 'AB1CD', DETAIL = 'the detail', HINT = 'the hint'; END $do$";

    #[pg_test]
    fn a_denial_keeps_its_sqlstate_detail_and_hint() {
        run("SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00'");
        run("SELECT rl_define('raised', rl_token_bucket(1, '1 minute'))");
        run("SELECT rl_limit('raised', 'a')");
        let error = error_of("SELECT rl_limit('raised', 'a', throws => true)");
        assert_eq!(error.sqlstate, "PT429");
        assert_eq!(error.message, "rate limit exceeded");
        assert_eq!(error.detail, r#"{"kind":"RateLimited","name":"raised","retryAfter":60000}"#);
        assert_eq!(error.hint, "Try again in 60 seconds.");
        // The limiter was not left half done behind the guard.
        assert_eq!(get::<f64>("SELECT remaining FROM rl_check('raised', 'a')"), 0.0);
    }

    #[pg_test]
    fn an_error_from_below_keeps_all_that_it_says() {
        create_test_statement();
        let error = error_of(&format!("SELECT test_statement($s${RAISE}$s$)"));
        assert_eq!(
            (&*error.sqlstate, &*error.message, &*error.detail, &*error.hint),
            ("AB1CD", "below", "the detail", "the hint")
        );
        assert!(
            error.context.starts_with("PL/pgSQL function inline_code_block line 1 at RAISE"),
            "{error:?}"
        );
    }

    #[pg_test]
    fn an_error_through_two_calls_has_the_context_of_both() {
        create_test_statement();
        let error = error_of(&format!(
            "DO $o$ BEGIN PERFORM test_statement($s$SELECT test_statement($t${RAISE}$t$)$s$); END $o$"
        ));
        assert_eq!((&*error.sqlstate, &*error.detail), ("AB1CD", "the detail"));
        for part in [
            "inline_code_block line 1 at RAISE",
            "SQL statement \"SELECT test_statement($t$",
            "SQL statement \"SELECT test_statement($s$",
            "inline_code_block line 1 at PERFORM",
        ] {
            assert_eq!(error.context.matches(part).count(), 1, "{part}: {error:?}");
        }
    }

    #[pg_test]
    fn a_denial_of_a_trigger_passes_through_a_call_as_it_is() {
        create_test_statement();
        run("SELECT rl_define('raised', rl_token_bucket(1, '1 day'))");
        run("CREATE TEMP TABLE written (n int)");
        run(
            "CREATE TRIGGER limited BEFORE INSERT ON written FOR EACH ROW EXECUTE FUNCTION rl_trigger('raised')",
        );
        run("INSERT INTO written VALUES (1)");
        let error = error_of("SELECT test_statement('INSERT INTO written VALUES (2)')");
        assert_eq!((&*error.sqlstate, &*error.message), ("PT429", "rate limit exceeded"));
    }

    /// The error that was caught below is remembered, but must not be raised.
    #[pg_test]
    fn an_error_that_was_caught_below_is_not_the_one_that_is_raised() {
        create_test_statement();
        let caught = RAISE.replace("; END $do$", "; EXCEPTION WHEN OTHERS THEN NULL; END $do$");
        assert!(get::<bool>(&format!("SELECT test_statement($s${caught}$s$)")));
        let error = error_of(&format!("SELECT test_statement($s${caught}$s$, fails => true)"));
        assert_eq!(error.sqlstate, "55000");
        assert!(
            error.detail.contains("rateLimits") && !error.context.contains("at RAISE"),
            "{error:?}"
        );
    }

    /// A failed call leaves nothing behind for the next call in the transaction.
    #[pg_test]
    fn after_a_hundred_errors_the_session_works_as_before() {
        create_test_statement();
        run("SELECT rl_define('raised', rl_token_bucket(1, '1 day'))");
        run("SELECT rl_limit('raised')");
        for _ in 0..100 {
            assert_eq!(error_of("SELECT rl_limit('raised', throws => true)").sqlstate, "PT429");
            assert_eq!(
                error_of(&format!("SELECT test_statement($s${RAISE}$s$)")).sqlstate,
                "AB1CD"
            );
        }
        assert!(!get::<bool>("SELECT ok FROM rl_limit('raised')"));
        assert!(get::<bool>("SELECT rl_reset('raised')"));
        assert!(get::<bool>("SELECT ok FROM rl_limit('raised')"));
    }
}
