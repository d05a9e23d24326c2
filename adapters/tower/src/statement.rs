//! The statements of calls, and their parameters.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Limit;

/// The headers that the responses of a layer have in addition to `Retry-After`, which denials have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// `RateLimit` and `RateLimit-Policy`.
    #[default]
    Ietf,
    /// `x-ratelimit-limit`, `-remaining`, `-used`, `-reset` and `-resource`.
    Github,
    /// None. The role then needs no EXECUTE on `rl_headers`.
    Off,
}

const ROW: &str =
    "json_build_object('ok', r.ok, 'wait', r.retry_after, 'at', extract(epoch FROM r.retry_at),
    'remaining', r.remaining, 'capacity', r.capacity, 'reset', extract(epoch FROM r.reset_at))";

impl Headers {
    /// A call of a function that makes them, with these arguments.
    fn sql(self, schema: &str, function: &str, arguments: &str) -> String {
        match self {
            Self::Ietf => format!("{schema}{function}({arguments})"),
            Self::Github => format!("{schema}{function}({arguments}, style => 'github')"),
            Self::Off => "NULL".into(),
        }
    }
}

/// Adds the tag to the text of a statement, which ends with an expression that it equals. All have five parameters,
/// texts or NULL: two texts, a number, JSON, and the tag, a hash of the text. With another tag the statement does
/// nothing and returns no row. Drivers count the names of prepared statements from 1, so behind a pooler a name can be
/// that of another connection's statement, or of another version's.
fn tagged(sql: String) -> String {
    // FNV-1a.
    let hash = sql.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{sql} = 'rl_{hash:016x}'")
}

/// The parameters of a statement: these values, and its tag, the last text in it.
pub(crate) fn parameters<'a>(sql: &'a str, values: [Option<&'a str>; 4]) -> [Option<&'a str>; 5] {
    let [a, b, c, d] = values;
    [a, b, c, d, sql.rsplit('\'').nth(1)]
}

/// Takes tokens from one limit. Values: name, key, count, config.
pub(crate) fn one(schema: &str, headers: Headers) -> String {
    let arguments = "$1::text, r, key => $2::text, config => $4::text::jsonb";
    let headers = headers.sql(schema, "rl_headers", arguments);
    tagged(format!(
        "SELECT json_build_object('row', {ROW}, 'headers', {headers})::text
            FROM {schema}rl_limit($1::text, $2::text, $3::text::float8, config => $4::text::jsonb) AS r
            WHERE $5::text"
    ))
}

/// Takes tokens from several limits, all or nothing. Value: the requests, as the fourth. The row is that of the limit
/// that denies with the longest wait, otherwise of that with the smallest share of its capacity left.
pub(crate) fn all(schema: &str, headers: Headers) -> String {
    let rows = "jsonb_agg(to_jsonb(r) || ($4::text::jsonb -> (r.n - 1)) ORDER BY r.n)";
    let headers = headers.sql(schema, "rl_headers_all", rows);
    tagged(format!(
        "SELECT json_build_object('row', json_agg({ROW} ORDER BY r.limited_by IS NULL,
                r.retry_after DESC NULLS FIRST, r.remaining / nullif(r.capacity, 0)) -> 0, 'headers', {headers})::text
            FROM {schema}rl_limit_all($4::text::jsonb) AS r
            HAVING {ONLY_TAG}"
    ))
}

/// Takes tokens from one limit for several calls, each on its own. It doesn't wait for rows that others have locked
/// until these look for deadlocks. Value: the requests, as the fourth.
pub(crate) fn each(schema: &str, headers: Headers) -> String {
    let arguments = "r.name, r, key => r.key, config => q.requests -> (r.n - 1) -> 'config'";
    let headers = headers.sql(schema, "rl_headers", arguments);
    tagged(format!(
        "WITH q AS MATERIALIZED (SELECT $4::text::jsonb AS requests)
            SELECT json_agg(json_build_object('row', {ROW}, 'error', r.error,
                'headers', CASE WHEN r.error IS NULL THEN {headers} END) ORDER BY r.n)::text
            FROM q, {schema}rl_limit_each(q.requests,
                least('5 milliseconds', current_setting('deadlock_timeout')::interval / 10)) AS r
            HAVING {ONLY_TAG}"
    ))
}

/// Returns the isolation of transactions.
pub(crate) fn isolation() -> String {
    tagged(format!(
        "SELECT current_setting('transaction_isolation') WHERE $4::text IS NULL AND {ONLY_TAG}"
    ))
}

/// The tag, where the first three values are NULL.
const ONLY_TAG: &str = "coalesce($1::text, $2::text, $3::text, $5::text)";

/// A request for a list of them, as JSON.
pub(crate) fn request(limit: &Limit, key: &str, count: f64) -> String {
    let (name, key) = (Value::from(&*limit.name), Value::from(key));
    // JSON has no NaN and no infinity: as texts they are refused like any text.
    let quote = if count.is_finite() { "" } else { "\"" };
    let config = limit.config.as_ref().map(|config| format!(",\"config\":{config}"));
    let config = config.unwrap_or_default();
    format!("{{\"name\":{name},\"key\":{key},\"count\":{quote}{count}{quote}{config}}}")
}

/// The key as it is stored: its hash if it is too long, has a NUL, or could be taken for a hash. The packages for Node
/// and Python do the same.
pub(crate) fn stored_key(key: String) -> String {
    if key.len() <= 1024 && !key.contains('\0') && !key.starts_with("sha256:") {
        return key;
    }
    format!("sha256:{}", hex(&Sha256::digest(key)))
}

/// Bytes in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}
