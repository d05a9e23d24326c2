//! The settings, the clock, and the state of the transaction.

#[pgrx::pg_schema]
mod tests {
    use pgrx::pg_sys;
    use pgrx::prelude::*;
    use ratelimit_core::Micros;

    use super::super::{and_rolled_back, attempt, error_of, get, run};
    use crate::schema::settings;
    use ratelimit_pg::clock;
    use ratelimit_pg::transaction;

    const FIXED: Micros = Micros(1_798_804_800_000_001);

    #[pg_test]
    fn the_clock_is_what_the_setting_says_and_otherwise_the_server_s() {
        let server =
            || Micros(get("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"));
        run("SET LOCAL ratelimit.clock = '2027-01-01 12:00:00.000001+00'");
        assert_eq!(clock::now(), FIXED);
        and_rolled_back(|| {
            run("SET LOCAL ratelimit.clock = '1500'");
            assert_eq!(clock::now(), Micros(1_500_000));
        });
        assert_eq!(clock::now(), FIXED);
        let error = error_of("SET LOCAL ratelimit.clock = 'noon'");
        assert_eq!(error.sqlstate, "22023");
        assert!(error.detail.starts_with("Allowed: "), "{error:?}");
        assert_eq!(clock::now(), FIXED);
        run("SET LOCAL ratelimit.clock = ''");
        let before = server();
        let now = clock::now();
        assert!(before <= now && now <= server());
    }

    #[pg_test]
    fn settings_are_local_to_work_that_fails_too() {
        let zone = || get::<String>("SELECT current_setting('timezone')");
        run("SET LOCAL timezone = 'Asia/Tokyo'");
        settings::locally(&[(c"TimeZone", c"UTC")], || {
            assert_eq!(zone(), "UTC");
            settings::locally(&[(c"TimeZone", c"Europe/Paris")], || {
                assert_eq!(zone(), "Europe/Paris")
            });
            settings::locally(&[], || assert_eq!(zone(), "UTC"));
            // A setting made by the work is undone, too.
            run("SET timezone = 'America/Lima'");
        });
        assert_eq!(zone(), "Asia/Tokyo");
        let caught = PgTryBuilder::new(|| {
            attempt(|| {
                settings::locally(&[(c"TimeZone", c"UTC")], || run("SELECT 1 / 0"));
                Ok(Some(false))
            })
            .unwrap()
            .unwrap()
        })
        .catch_when(PgSqlErrorCode::ERRCODE_DIVISION_BY_ZERO, |_| true)
        .execute();
        assert!(caught);
        assert_eq!(zone(), "Asia/Tokyo");
    }

    #[pg_test]
    fn a_denial_is_raised_in_the_style_that_is_set() {
        run("SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00'");
        run("SELECT rl_define('settings', rl_token_bucket(1, '1 minute'))");
        run("SELECT rl_limit('settings')");
        let error = || error_of("SELECT rl_limit('settings', throws => true)");
        assert_eq!(error().sqlstate, "PT429");
        run("SET LOCAL ratelimit.error_style = pgrst");
        assert_eq!(error().sqlstate, "PGRST");
        assert!(error().detail.contains("Retry-After"), "{:?}", error());
    }

    #[pg_test]
    fn an_ordinary_role_sets_neither_the_clock_nor_the_access() {
        run("CREATE ROLE test_ordinary");
        run("SET LOCAL ROLE test_ordinary");
        for setting in ["ratelimit.clock = ''", "ratelimit.access = sql"] {
            assert_eq!(error_of(&format!("SET LOCAL {setting}")).sqlstate, "42501", "{setting}");
        }
        run("SET LOCAL ratelimit.error_style = pgrst");
        run("RESET ROLE");
    }

    #[pg_test]
    fn a_read_only_transaction_may_check_and_not_take() {
        run("SELECT rl_define('settings', rl_token_bucket(1, '1 day'))");
        assert_eq!(error_of("SELECT 1 / 0").sqlstate, "22012");
        and_rolled_back(|| {
            run("SET LOCAL transaction_read_only = on");
            assert!(get::<bool>("SELECT ok FROM rl_check('settings')"));
            let error = error_of("SELECT rl_limit('settings')");
            assert_eq!(error.sqlstate, "25006");
            assert!(error.message.contains("rl_limit()"), "{error:?}");
            // Whether it writes depends on the limit, so the arguments are read first.
            assert_eq!(error_of("SELECT rl_limit(NULL)").sqlstate, "22004");
            assert_eq!(error_of("SELECT rl_prune(NULL)").sqlstate, "25006");
        });
        assert!(get::<bool>("SELECT ok FROM rl_limit('settings')"));
    }

    #[pg_test]
    fn subtransactions_have_ascending_numbers() {
        let outer = transaction::subtransaction();
        let numbers: Vec<u32> = (0..3)
            .map(|_| and_rolled_back(|| and_rolled_back(transaction::subtransaction)))
            .collect();
        assert!(outer < numbers[0] && numbers.is_sorted_by(|a, b| a < b), "{outer} {numbers:?}");
        assert_eq!(transaction::subtransaction(), outer);
    }

    /// Fails at the commit of a subtransaction, as Citus does if another node can't be reached.
    #[pg_guard]
    extern "C-unwind" fn fails(
        event: pg_sys::SubXactEvent::Type,
        _number: pg_sys::SubTransactionId,
        _parent: pg_sys::SubTransactionId,
        _data: *mut std::ffi::c_void,
    ) {
        if event == pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB {
            panic!("not committed");
        }
    }

    #[pg_test]
    fn a_subtransaction_whose_commit_fails_is_rolled_back() {
        let before = transaction::subtransaction();
        // SAFETY: registered only during the attempt.
        unsafe { pg_sys::RegisterSubXactCallback(Some(fails), std::ptr::null_mut()) };
        let caught = PgTryBuilder::new(|| attempt(|| Ok(Some(()))).is_err())
            .catch_others(|_| true)
            .execute();
        // SAFETY: as above.
        unsafe { pg_sys::UnregisterSubXactCallback(Some(fails), std::ptr::null_mut()) };
        assert!(caught);
        assert_eq!(transaction::subtransaction(), before);
    }
}
