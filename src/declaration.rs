//! Defines SQL functions: `sql_function!` exports the function that sql/functions.sql declares, and reads the arguments
//! in its Rust list. `pg_tests::declared` compares the two.

use std::ffi::CStr;

use crate::schema::{error, settings};
use ratelimit_pg::transaction::{refuse_parallel, refuse_read_only};

/// The effect of a function: decides where the function is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Writes to the tables.
    Writes,
    /// Changes the state of limits: writes to the tables if the state is in them, and then refuses a read-only
    /// transaction.
    Takes,
    /// Reads the latest state and definitions, and the clock.
    Reads,
    /// None: computes from the arguments only.
    Computes,
    /// None: a window function that remembers its partition's rows.
    Window,
    /// The effect of a trigger function, which checks its event itself.
    Trigger,
}

impl Effect {
    /// Refuses a call of a function, named with its parentheses: 25006 in a read-only transaction; 25000 in a parallel
    /// query; 42501 and 22023 for an invalid `ratelimit.clock`.
    pub fn allow(self, function: &'static CStr) -> error::Result<()> {
        match self {
            Effect::Writes => refuse_read_only(function)?,
            Effect::Takes | Effect::Reads => refuse_parallel(function)?,
            Effect::Trigger => {}
            Effect::Computes | Effect::Window => return Ok(()),
        }
        settings::check_clock()
    }
}

/// Defines an SQL function: its version-1 record, and an entry point that reads the arguments, runs the body and raises
/// its error. Arguments that may be NULL are an `Option`. Arguments are read and checked in their order.
///
/// Not `#[pg_extern]`: its guard loses SQLSTATEs of this extension and the context of an error (see
/// [`call`](ratelimit_pg::call)), and pgrx takes more time to make a row than the limiter.
macro_rules! sql_function {
    (
        $(#[doc = $doc:literal])*
        #[effect($effect:ident)]
        fn $name:ident($call:ident: $given:ty $(, $parameter:ident: $type:ty)* $(,)?) -> $result:ty $body:block
    ) => {
        #[cfg(feature = "server_tests")]
        #[allow(non_upper_case_globals)]
        #[unsafe(export_name = concat!("declared_", stringify!($name)))]
        pub static $name: $crate::declaration::declared::Declaration = {
            use $crate::declaration::{self, declared};
            declared::Declaration {
                name: stringify!($name),
                parameters: &[$(declared::Parameter {
                    name: stringify!($parameter),
                    sql: <$type as ratelimit_pg::call::sql_types::Argument>::SQL,
                    nullable: <$type as ratelimit_pg::call::sql_types::Argument>::NULLABLE,
                }),*],
                returns: <$result as ratelimit_pg::call::result::SqlResult>::RETURNED,
                effect: declaration::Effect::$effect,
            }
        };

        const _: () = {
            #[unsafe(export_name = concat!("pg_finfo_", stringify!($name)))]
            extern "C" fn record() -> &'static pgrx::pg_sys::Pg_finfo_record {
                const V1: pgrx::pg_sys::Pg_finfo_record =
                    pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
                &V1
            }

            /// # Safety
            /// Called by Postgres, as the function that it is declared as.
            #[unsafe(export_name = stringify!($name))]
            unsafe extern "C-unwind" fn enter(
                fcinfo: pgrx::pg_sys::FunctionCallInfo,
            ) -> pgrx::pg_sys::Datum {
                // SAFETY: Postgres passes a valid fcinfo, and this frame owns nothing with a destructor.
                unsafe { ratelimit_pg::call::enter(fcinfo, run) }
            }

            /// Reads the arguments, runs the body, and returns its result as a datum. Errors:
            $(#[doc = $doc])*
            #[allow(clippy::redundant_closure_call, unused_mut, unused_variables)]
            fn run($call: $given) -> $crate::schema::error::Result<pgrx::pg_sys::Datum> {
                use $crate::declaration::Effect;
                use ratelimit_pg::call::result::SqlResult;
                use ratelimit_pg::call::sql_types::c_str;
                const NAME: &std::ffi::CStr = c_str(concat!(stringify!($name), "()\0"));
                Effect::$effect.allow(NAME)?;
                <$result as SqlResult>::begin($call)?;
                if let Effect::Window = Effect::$effect {
                    $call.evaluate_arguments()?;
                }
                let mut arguments = $call.arguments();
                $(let $parameter: $type = arguments.next(stringify!($parameter))?;)*
                let result: $crate::schema::error::Result<$result> = (|| $body)();
                Ok(result?.end($call)?)
            }
        };
    };
}
pub(crate) use sql_function;

/// The functions as pg_proc must declare them: arguments as the library reads them, and results.
#[cfg(feature = "server_tests")]
pub mod declared {
    use super::Effect;
    use ratelimit_pg::call::result::Returned;

    pub struct Declaration {
        pub name: &'static str,
        pub parameters: &'static [Parameter],
        pub returns: Returned,
        pub effect: Effect,
    }

    /// An argument.
    pub struct Parameter {
        pub name: &'static str,
        /// Its SQL type.
        pub sql: &'static str,
        pub nullable: bool,
    }
}
