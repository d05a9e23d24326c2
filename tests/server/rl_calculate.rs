//! The golden vectors through SQL: `rl_calculate` answers what the algorithm answers.

#[path = "../../crates/core/tests/vectors/mod.rs"]
mod golden;

use golden::{Call, Outcome, Subject};
use postgres::{Client, Statement};

use crate::database::Database;

struct Sql {
    client: Client,
    calculate: Statement,
}

impl Sql {
    fn try_call(&mut self, call: &Call) -> Result<Outcome, postgres::Error> {
        let row = self.client.query_one(
            &self.calculate,
            &[&call.config, &call.state, &call.at, &call.count, &call.reserve],
        )?;
        Ok(Outcome {
            ok: row.get(0),
            retry_after_ms: row.get::<_, Option<f64>>(1).map(|seconds| seconds * 1e3),
            remaining: row.get(2),
            state: row.get(3),
        })
    }
}

impl Subject for Sql {
    const WAIT_UNIT_MS: f64 = 0.001;

    fn accepts(&mut self, config: &str) -> bool {
        let call = Call { config, state: None, at: 0.0, count: 0.0, reserve: false };
        match self.try_call(&call) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(
                    error.code().map(|code| code.code()),
                    Some("22023"),
                    "{config}: {error}"
                );
                false
            }
        }
    }

    fn call(&mut self, call: &Call) -> Outcome {
        self.try_call(call).unwrap_or_else(|error| panic!("{call:?}: {error:?}"))
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn rl_calculate_agrees_with_the_published_algorithms() {
    let database = Database::new("rl_calculate");
    let mut client = database.connect();
    let calculate = client
        .prepare(
            "SELECT ok, retry_after, remaining, state::text
             FROM rl_calculate($1::text::jsonb, $2::text::jsonb,
                               timestamptz 'epoch' + $3::float8 * interval '1 millisecond', $4, $5)",
        )
        .unwrap();
    let scenarios = golden::load();
    let report = golden::run(&mut Sql { client, calculate }, &scenarios);
    println!("{report}");
    golden::assert_nothing_is_missing(&report);
}
