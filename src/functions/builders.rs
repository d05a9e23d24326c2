//! The builders of configs: one function per kind; its parameters are the fields of the config.

use ratelimit_core::config::{self, Argument, Interval};
use ratelimit_core::{Kind, Micros};

use super::arguments::FieldText;
use crate::declaration::sql_function;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::Json;

impl From<FieldText> for Argument {
    fn from(FieldText(text): FieldText) -> Argument {
        Argument::Text(text)
    }
}

/// Declares builders by name, kind and parameters.
macro_rules! builders {
    ($($name:ident, $kind:ident ($($parameter:ident: $type:ty),*);)*) => {
        $(sql_function! {
            /// 22004, 22023.
            #[effect(Computes)]
            fn $name(call: &Call $(, $parameter: $type)*) -> Json {
                let arguments: &[(&str, Argument)] = &[$((stringify!($parameter), $parameter.into())),*];
                Ok(Json::new(config::build(Kind::$kind, arguments)?))
            }
        })*
    };
}

builders! {
    rl_token_bucket, TokenBucket (
        rate: f64, period: Interval, capacity: Option<f64>, max_reserved: Option<f64>, shards: Option<i32>,
        keyed: Option<bool>, store: Option<FieldText>, save: Option<Interval>, enforce: Option<bool>
    );
    rl_fixed_window, FixedWindow (
        rate: f64, period: Interval, capacity: Option<f64>, max_reserved: Option<f64>, shards: Option<i32>,
        start: Option<Micros>, first_request: Option<bool>, timezone: Option<FieldText>,
        overage: Option<bool>, keyed: Option<bool>, store: Option<FieldText>, save: Option<Interval>,
        enforce: Option<bool>
    );
    rl_sliding_window, SlidingWindow (
        rate: f64, period: Interval, keyed: Option<bool>, store: Option<FieldText>, save: Option<Interval>,
        enforce: Option<bool>
    );
    rl_sliding_log, SlidingLog (rate: f64, period: Interval, keyed: Option<bool>, enforce: Option<bool>);
    rl_concurrency, Concurrency (
        slots: i32, ttl: Interval, keyed: Option<bool>, store: Option<FieldText>, save: Option<Interval>,
        enforce: Option<bool>
    );
    rl_unlimited, Unlimited (keyed: Option<bool>);
}
