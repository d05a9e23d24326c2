//! SQL as the tables' owner: the user and the settings, inside and afterwards.

#[pgrx::pg_schema]
mod tests {
    use pgrx::pg_sys;
    use pgrx::prelude::*;

    use super::super::{attempt, error_of, get, run, with_catalog};
    use crate::schema::catalog::TableLock;
    use crate::schema::error::Error;
    use crate::schema::spi::{Statement, with_owner};
    use ratelimit_limiter::error::LimiterError;

    /// The user, and the settings that the owner's SQL changes.
    fn who() -> [String; 4] {
        [
            get("SELECT current_user::text"),
            get("SELECT current_setting('search_path')"),
            get("SELECT current_setting('enable_seqscan')"),
            get("SELECT session_user::text"),
        ]
    }

    /// An ordinary role makes the call; another one owns the tables.
    fn set_roles() {
        run("CREATE ROLE test_owner");
        run("CREATE ROLE test_caller");
        run("GRANT ALL ON SCHEMA public TO test_owner");
        run("ALTER TABLE ratelimits OWNER TO test_owner");
        run("ALTER TABLE rl_config OWNER TO test_owner");
    }

    #[pg_test]
    fn sql_runs_as_the_owner_and_nothing_after_it_does() {
        set_roles();
        run("SET LOCAL search_path = public, pg_catalog");
        with_catalog(|catalog| {
            run("SET LOCAL ROLE test_caller");
            let before = who();
            assert_eq!(before[..3], ["test_caller", "public, pg_catalog", "on"]);
            let inside = with_owner(catalog, catalog.rate_limits, TableLock::Read, |_| {
                let (mut user, mut context) = (pg_sys::InvalidOid, 0);
                // SAFETY: reads the state of the session.
                unsafe { pg_sys::GetUserIdAndSecContext(&mut user, &mut context) };
                assert_ne!(context as u32 & pg_sys::SECURITY_RESTRICTED_OPERATION, 0);
                Ok(who())
            });
            let inside = inside.unwrap();
            assert_eq!(inside[..3], ["test_owner", "pg_catalog, pg_temp", "off"]);
            assert_eq!(inside[3], before[3]);
            assert_eq!(who(), before);
            run("RESET ROLE");
        });
    }

    #[pg_test]
    fn an_error_of_ours_gives_the_user_and_the_settings_back() {
        set_roles();
        with_catalog(|catalog| {
            run("SET LOCAL ROLE test_caller");
            let before = who();
            let outcome = with_owner(catalog, catalog.rl_config, TableLock::Read, |spi| {
                Err::<(), _>(spi.not_written())
            });
            assert!(matches!(outcome, Err(Error::Limiter(LimiterError::NotWritten("rl_config")))));
            assert_eq!(who(), before);
            run("RESET ROLE");
        });
    }

    #[pg_test]
    fn an_error_of_postgres_gives_them_back_with_its_subtransaction() {
        const FAILS: Statement = Statement {
            sql: "SELECT 1 OPERATOR(pg_catalog./) 0",
            parameters: &[],
            results: &[],
            lock: TableLock::Read,
        };
        set_roles();
        with_catalog(|catalog| {
            run("SET LOCAL ROLE test_caller");
            let before = who();
            let caught = PgTryBuilder::new(|| {
                attempt(|| {
                    with_owner(catalog, catalog.rate_limits, TableLock::Read, |spi| {
                        spi.execute(&FAILS, &[]).map(Some)
                    })
                })
                .map(|_| false)
                .unwrap()
            })
            .catch_when(PgSqlErrorCode::ERRCODE_DIVISION_BY_ZERO, |_| true)
            .execute();
            assert!(caught);
            assert_eq!(who(), before);
            // SPI is open for the next call.
            let owner = with_owner(catalog, catalog.rate_limits, TableLock::Read, |_| {
                Ok(get::<String>("SELECT current_user::text"))
            });
            assert_eq!(owner.unwrap(), "test_owner");
            run("RESET ROLE");
        });
    }

    /// Under the caller's rights such a trigger could make its owner a superuser.
    #[pg_test]
    fn the_owner_s_trigger_has_the_owner_s_rights() {
        set_roles();
        run("SELECT rl_define('owned', rl_token_bucket(5, '1 day'))");
        run("CREATE TABLE seen (who text, secure text)");
        run("GRANT ALL ON seen TO test_owner");
        run("CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN
                 INSERT INTO public.seen VALUES (current_user, current_setting('search_path'));
                 RETURN NEW;
             END $$");
        run("CREATE TRIGGER note BEFORE INSERT ON ratelimits FOR EACH ROW EXECUTE FUNCTION note()");
        run("SELECT rl_limit('owned', 'a')");
        assert_eq!(get::<String>("SELECT who FROM seen"), "test_owner");
        run("CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RESET ROLE; RETURN NEW; END $$");
        assert_eq!(error_of("SELECT rl_limit('owned', 'b')").sqlstate, "42501");
        assert_eq!(
            get::<String>("SELECT current_user::text"),
            get::<String>("SELECT session_user::text")
        );
    }
}
