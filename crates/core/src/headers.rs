//! The outcome of a call as HTTP headers.
//!
//! This module decides which headers a style has, how numbers are rounded, and how a name is encoded so that
//! it can be decoded and can't break a header. All values are text. Numbers are integers of at most 15
//! digits: tokens are rounded down and never negative; waits and times are rounded up.
//!
//! ```
//! use ratelimit_core::headers::{CallOutcome, Style, headers};
//! use ratelimit_core::{Micros, config};
//!
//! let limit = config::parse(r#"{"kind": "token bucket", "rate": 10, "period": "1 minute"}"#)?;
//! let now = Micros(1_798_804_800_000_000);
//! let wait = Micros::from_millis(17_200.0);
//! let outcome = CallOutcome {
//!     ok: false,
//!     retry_after: Some(wait),
//!     remaining: 7.9,
//!     capacity: limit.capacity(),
//!     reset_at: Some(now.plus(wait)),
//! };
//! let headers = headers(Style::Ietf, b"api", &limit, &outcome, now);
//! assert_eq!(headers["RateLimit-Policy"], r#""api";q=10;w=60"#);
//! assert_eq!(headers["RateLimit"], r#""api";r=7;t=18"#);
//! assert_eq!(headers["Retry-After"], "18");
//! # Ok::<(), ratelimit_core::ConfigError>(())
//! ```

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use serde_json::{Value, json};

use crate::config::MAX_TOKENS;
use crate::{Kind, Limit, Micros};

/// A set of headers, and its form in JSON.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Style {
    /// `RateLimit-Policy` and `RateLimit` of the IETF's [draft], and `Retry-After`, as an object.
    ///
    /// [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/
    Ietf,
    /// `x-ratelimit-*` and `retry-after`, as in [GitHub's API], as an object.
    ///
    /// [GitHub's API]: https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
    Github,
    /// The headers of [`Style::Ietf`], as the array that [PostgREST's] `response.headers` takes.
    ///
    /// [PostgREST's]: https://docs.postgrest.org/en/stable/references/transactions.html
    Postgrest,
}

impl Style {
    /// The names that [`Style::parse`] reads, for messages.
    pub const ALLOWED: &str = "'ietf', 'github' or 'postgrest'";

    /// Reads the name of a style; `None` if there is no such style.
    pub fn parse(style: &str) -> Option<Style> {
        match style {
            "ietf" => Some(Style::Ietf),
            "github" => Some(Style::Github),
            "postgrest" => Some(Style::Postgrest),
            _ => None,
        }
    }
}

/// The outcome of a call, with the values that headers show.
#[derive(Clone, Copy, Debug)]
pub struct CallOutcome {
    /// Whether the tokens were taken.
    pub ok: bool,
    /// Denied: the time until the same call can succeed, `None` if it never can. Allowed: the time until reserved work
    /// may start, which no header shows.
    pub retry_after: Option<Micros>,
    /// Tokens left; negative: debt; infinite for an unlimited key.
    pub remaining: f64,
    /// The maximum number of tokens of the limit; infinite for an unlimited key.
    pub capacity: f64,
    /// The time when the limit is full again, or its window ends; `None`: unknown.
    pub reset_at: Option<Micros>,
}

impl CallOutcome {
    /// The time until the same call can succeed. `None` if it did, or never can: the wait of a reservation is for the
    /// work, not for another call.
    pub(crate) fn wait(&self) -> Option<Micros> {
        self.retry_after.filter(|_| !self.ok)
    }

    /// The time from `now` to the reset, or to the retry of a denial if that is earlier, because the draft forbids a
    /// Retry-After before the reset. `None`: unknown.
    pub(crate) fn until_reset(&self, now: Micros) -> Option<Micros> {
        let reset = self.reset_at?.minus(now);
        Some(self.wait().map_or(reset, |wait| wait.min(reset)))
    }

    /// Whether less than one token is left, of a limit that can have one.
    pub(crate) fn needs_one(&self) -> bool {
        self.remaining < 1.0 && self.capacity > 1.0
    }
}

/// Writes the outcome of a call at `now` as headers. The name of the limit may be any bytes; bytes other than visible
/// ASCII are percent-encoded.
///
/// For an unlimited key, with infinite capacity, there is only the retry header, if the key is blocked.
pub fn headers(
    style: Style,
    name: &[u8],
    limit: &Limit,
    outcome: &CallOutcome,
    now: Micros,
) -> Value {
    headers_all(style, &[Item { name, limit, outcome: *outcome, denies: !outcome.ok, now }])
}

/// A request of a call for several limits, and its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The limit's name.
    pub name: &'a [u8],
    /// The limit.
    pub limit: &'a Limit,
    /// Its outcome. In a denied call `ok` is false for every request, and `retry_after` is `None` for requests that
    /// their own limit does not deny.
    pub outcome: CallOutcome,
    /// Whether its own limit denies it.
    pub denies: bool,
    /// The time of the call.
    pub now: Micros,
}

impl Item<'_> {
    /// The share of the limit that is left.
    fn share(&self) -> f64 {
        self.outcome.remaining.clamp(-MAX_TOKENS, MAX_TOKENS) / self.outcome.capacity.max(1e-200)
    }
}

/// Writes the outcomes of a call for several limits as headers, each as [`headers`] does. The IETF's style has a list
/// with an item for each request, in their order, without unlimited keys. GitHub's style shows one limit: the denying
/// one with the longest wait, or else the one with the smallest share left.
///
/// The retry header has the longest wait. It is absent if a request can never succeed: then no request has a wait.
pub fn headers_all(style: Style, items: &[Item]) -> Value {
    let wait = items.iter().filter_map(|item| item.outcome.wait()).max();
    let limited: Vec<&Item> =
        items.iter().filter(|item| item.outcome.capacity.is_finite()).collect();
    let (mut headers, retry) = match style {
        Style::Github => (shown(&limited).map(github).unwrap_or_default(), "retry-after"),
        Style::Ietf | Style::Postgrest => (ietf(&limited), "Retry-After"),
    };
    headers.extend(wait.map(|wait| (retry, seconds(wait).to_string())));
    let headers = headers.into_iter();
    match style {
        Style::Postgrest => headers.map(|(header, value)| json!({ header: value })).collect(),
        _ => headers.collect(),
    }
}

/// The limit that GitHub's style shows.
fn shown<'a>(limited: &[&'a Item<'a>]) -> Option<&'a Item<'a>> {
    let longest = limited.iter().filter_map(|item| item.outcome.wait()).max();
    let denies = |item: &Item| match longest {
        Some(_) => item.outcome.wait() == longest,
        None => item.denies,
    };
    let any = limited.iter().any(|item| denies(item));
    let candidates = limited.iter().copied().filter(|item| !any || denies(item));
    candidates.min_by(|a, b| a.share().total_cmp(&b.share()))
}

type Headers = Vec<(&'static str, String)>;

/// The structured fields of draft-ietf-httpapi-ratelimit-headers: `q` of the unit `qu` every `w` seconds, `r`
/// remaining, more of them in `t` seconds.
fn ietf(items: &[&Item]) -> Headers {
    if items.is_empty() {
        return Vec::new();
    }
    let (policies, currents): (Vec<_>, Vec<_>) = items.iter().map(|item| ietf_item(item)).unzip();
    vec![("RateLimit-Policy", policies.join(", ")), ("RateLimit", currents.join(", "))]
}

/// The policy of a limit, and the tokens left.
fn ietf_item(&Item { name, limit, ref outcome, now, .. }: &Item) -> (String, String) {
    let name = structured_string(name);
    let (quota, window) = match limit.capacity().is_finite() {
        true => policy(limit),
        false => (tokens(outcome.capacity), None), // the key has a limit, and its name has none
    };
    let mut policy = format!("{name};q={quota}");
    if limit.kind() == Kind::Concurrency {
        policy += ";qu=\"concurrent-requests\"";
    }
    if let Some(window) = window {
        policy += &format!(";w={window}");
    }
    let mut current = format!("{name};r={}", tokens(outcome.remaining));
    if let Some(until) = limit.until_more(outcome, now) {
        current += &format!(";t={}", seconds(until));
    }
    (policy, current)
}

/// The headers of GitHub's API.
fn github(Item { name, outcome, .. }: &Item) -> Headers {
    let limit = outcome.capacity.floor();
    let mut headers = vec![
        ("x-ratelimit-limit", tokens(limit).to_string()),
        ("x-ratelimit-remaining", tokens(outcome.remaining).to_string()),
        ("x-ratelimit-used", tokens(limit - outcome.remaining.floor()).to_string()),
    ];
    headers.extend(outcome.reset_at.map(|at| ("x-ratelimit-reset", seconds(at).to_string())));
    headers.push(("x-ratelimit-resource", percent_encode(name, ENCODED_AS_WORD).to_string()));
    headers
}

/// The rate of a limit in whole tokens and whole seconds: the period, rounded up, and the tokens added in it, rounded
/// down. If that is less than one token: one token, in a correspondingly longer period.
fn policy(limit: &Limit) -> (i64, Option<i64>) {
    let (rate, period) = limit.policy();
    let Some(period) = period else { return (tokens(rate).max(1), None) };
    let window = seconds(period).max(1);
    let quota = match Micros(window.saturating_mul(Micros::SECOND.0)) {
        whole if whole == period => rate,
        longer => rate * longer.0 as f64 / period.0 as f64,
    };
    if quota >= 1.0 {
        return (tokens(quota), Some(window));
    }
    // Rounded to microseconds first: 604,800 s / 0.072 as floats is slightly more than 8,400,000.
    (1, Some(whole(((period.0 as f64 / rate).round() / 1e6).ceil())))
}

/// The largest integer of a structured field: 15 digits.
const MAX: i64 = 999_999_999_999_999;

fn whole(number: f64) -> i64 {
    number.clamp(0.0, MAX as f64) as i64
}

fn tokens(tokens: f64) -> i64 {
    whole(tokens.floor())
}

fn seconds(span: Micros) -> i64 {
    span.ceil_to_secs().clamp(0, MAX)
}

/// Writes a name as a String of a structured field
/// ([RFC 9651, section 3.3.3](https://www.rfc-editor.org/rfc/rfc9651#section-3.3.3)).
fn structured_string(name: &[u8]) -> String {
    let name = percent_encode(name, ENCODED).to_string();
    format!("\"{}\"", name.replace('\\', r"\\").replace('"', r#"\""#))
}

/// The bytes of a name that are percent-encoded: all except visible ASCII and blanks, so that a name can't end a header
/// line; and `%`, so that decoding returns the same bytes.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
/// These, and blanks.
const ENCODED_AS_WORD: &AsciiSet = &ENCODED.add(b' ');

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sfv::{BareItem, FieldType, List, ListEntry, Parser};

    use super::*;
    use crate::config::parse;

    const NOW: Micros = Micros(1_798_804_800_000_000);

    fn limit(kind: &str, rate: f64, period: f64) -> Limit {
        let json = json!({ "kind": kind, "rate": rate, "period": period });
        parse(&json.to_string()).unwrap()
    }

    fn bucket() -> Limit {
        limit("token bucket", 10.0, 60_000.0)
    }

    fn seconds(seconds: f64) -> Micros {
        Micros::from_millis(seconds * 1e3)
    }

    /// Denied, for 17.2 seconds, with 7.9 of 10 left, full in 17.2 seconds.
    const DENIED: CallOutcome = CallOutcome {
        ok: false,
        retry_after: Some(Micros(17_200_000)),
        remaining: 7.9,
        capacity: 10.0,
        reset_at: Some(Micros(NOW.0 + 17_200_000)),
    };

    fn ietf(limit: &Limit, outcome: &CallOutcome) -> Value {
        headers(Style::Ietf, b"api", limit, outcome, NOW)
    }

    #[test]
    fn tokens_are_rounded_down_and_waits_up() {
        assert_eq!(
            ietf(&bucket(), &DENIED),
            json!({
                "RateLimit-Policy": r#""api";q=10;w=60"#,
                "RateLimit": r#""api";r=7;t=18"#,
                "Retry-After": "18",
            })
        );
        assert_eq!(
            headers(Style::Github, b"api", &bucket(), &DENIED, NOW),
            json!({
                "x-ratelimit-limit": "10",
                "x-ratelimit-remaining": "7",
                "x-ratelimit-used": "3",
                "x-ratelimit-reset": "1798804818",
                "x-ratelimit-resource": "api",
                "retry-after": "18",
            })
        );
    }

    #[test]
    fn postgrest_takes_an_array_of_single_headers() {
        assert_eq!(
            headers(Style::Postgrest, b"api", &bucket(), &DENIED, NOW),
            json!([
                { "RateLimit-Policy": r#""api";q=10;w=60"# },
                { "RateLimit": r#""api";r=7;t=18"# },
                { "Retry-After": "18" },
            ])
        );
    }

    #[test]
    fn only_a_denial_that_can_end_says_when_to_retry() {
        let reserved = CallOutcome { ok: true, remaining: -5.5, ..DENIED };
        let never = CallOutcome { retry_after: None, ..DENIED };
        for outcome in [reserved, never] {
            assert_eq!(ietf(&bucket(), &outcome)["Retry-After"], Value::Null);
            let github = headers(Style::Github, b"api", &bucket(), &outcome, NOW);
            assert_eq!(github["retry-after"], Value::Null);
        }
        assert_eq!(ietf(&bucket(), &reserved)["RateLimit"], r#""api";r=0;t=8"#);
    }

    #[test]
    fn a_debt_leaves_nothing_and_uses_more_than_the_limit() {
        let debt = CallOutcome { ok: true, remaining: -5.5, ..DENIED };
        let github = headers(Style::Github, b"api", &bucket(), &debt, NOW);
        assert_eq!(github["x-ratelimit-remaining"], "0");
        assert_eq!(github["x-ratelimit-used"], "16");
    }

    #[test]
    fn the_reset_is_never_later_than_the_retry_nor_in_the_past() {
        let t = |retry_after, reset| {
            let outcome = CallOutcome { retry_after, reset_at: Some(NOW.plus(reset)), ..DENIED };
            ietf(&bucket(), &outcome)["RateLimit"].as_str().unwrap()[9..].to_owned()
        };
        assert_eq!(t(Some(seconds(6.0)), seconds(60.0)), ";t=6");
        assert_eq!(t(Some(seconds(90.0)), seconds(60.0)), ";t=60");
        assert_eq!(t(None, seconds(60.0)), ";t=60");
        assert_eq!(t(None, seconds(-1.0)), ";t=0");
        let unknown = CallOutcome { reset_at: None, ..DENIED };
        assert_eq!(ietf(&bucket(), &unknown)["RateLimit"], r#""api";r=7"#);
    }

    /// An item of a bucket of 10 a minute, with a name.
    fn of<'a>(name: &'a str, limit: &'a Limit, outcome: CallOutcome) -> Item<'a> {
        Item { name: name.as_bytes(), limit, outcome, denies: !outcome.ok, now: NOW }
    }

    #[test]
    fn several_limits_are_items_in_their_order_and_exempt_ones_left_out() {
        let (bucket, log) = (bucket(), limit("sliding log", 3.0, 1_000.0));
        let exempt = CallOutcome {
            ok: true,
            retry_after: None,
            remaining: f64::INFINITY,
            capacity: f64::INFINITY,
            reset_at: None,
        };
        let taken = CallOutcome { ok: true, retry_after: None, ..DENIED };
        let items = [of("b", &bucket, taken), of("x", &bucket, exempt), of("a b", &log, taken)];
        assert_eq!(
            headers_all(Style::Ietf, &items),
            json!({
                "RateLimit-Policy": r#""b";q=10;w=60, "a b";q=3;w=1"#,
                "RateLimit": r#""b";r=7;t=18, "a b";r=7"#,
            })
        );
        for style in [Style::Ietf, Style::Github] {
            assert_eq!(headers_all(style, &items[1..2]), json!({}));
        }
        let blocked = CallOutcome { ok: false, retry_after: Some(seconds(5.0)), ..exempt };
        let items = [of("x", &bucket, blocked)];
        assert_eq!(headers_all(Style::Postgrest, &items), json!([{ "Retry-After": "5" }]));
    }

    #[test]
    fn the_longest_wait_is_that_of_the_call() {
        let bucket = bucket();
        let waits = |wait: Option<f64>| CallOutcome { retry_after: wait.map(seconds), ..DENIED };
        let item = |name, wait, denies| Item { denies, ..of(name, &bucket, waits(wait)) };
        let items =
            [item("a", Some(3.0), true), item("b", Some(7.5), true), item("c", None, false)];
        assert_eq!(headers_all(Style::Ietf, &items)["Retry-After"], "8");
        let github = headers_all(Style::Github, &items);
        assert_eq!(github["x-ratelimit-resource"], "b");
        assert_eq!(github["retry-after"], "8");
        // One can never succeed: then no request has a wait.
        let items = [item("a", None, false), item("b", None, true), item("c", None, false)];
        assert_eq!(headers_all(Style::Ietf, &items)["Retry-After"], Value::Null);
        let github = headers_all(Style::Github, &items);
        assert_eq!(github["x-ratelimit-resource"], "b");
        assert_eq!(github["retry-after"], Value::Null);
    }

    #[test]
    fn the_smallest_share_is_shown_where_none_denies() {
        let bucket = bucket();
        let left = |name, remaining, capacity| {
            let outcome = CallOutcome { ok: true, remaining, capacity, ..DENIED };
            of(name, &bucket, outcome)
        };
        let shown =
            |items: &[Item]| headers_all(Style::Github, items)["x-ratelimit-resource"].clone();
        assert_eq!(
            shown(&[left("a", 5.0, 10.0), left("b", 40.0, 100.0), left("c", 6.0, 10.0)]),
            "b"
        );
        assert_eq!(
            shown(&[left("a", 5.0, 10.0), left("b", 50.0, 100.0)]),
            "a",
            "the first of equal ones"
        );
        assert_eq!(shown(&[left("a", 1.0, 10.0), left("b", 0.0, 0.0), left("c", -1.0, 10.0)]), "c");
    }

    /// The RateLimit of a bucket of 10 a minute with these tokens left.
    fn with_left(remaining: f64, ok: bool) -> Value {
        let to_full = seconds((10.0 - remaining) * 6.0);
        let retry_after = (!ok).then(|| seconds((1.0 - remaining) * 6.0));
        let reset_at = Some(NOW.plus(to_full));
        let outcome = CallOutcome { ok, retry_after, remaining, capacity: 10.0, reset_at };
        ietf(&bucket(), &outcome)["RateLimit"].clone()
    }

    #[test]
    fn without_a_whole_token_the_reset_is_when_there_is_one() {
        for ok in [true, false] {
            assert_eq!(with_left(0.7, ok), r#""api";r=0;t=2"#);
            assert_eq!(with_left(0.0, ok), r#""api";r=0;t=6"#);
            assert_eq!(with_left(-2.0, ok), r#""api";r=0;t=18"#);
        }
        assert_eq!(with_left(1.0, true), r#""api";r=1;t=54"#);
        // A small bucket never has a token; other kinds get theirs at once, or show no more than the reset.
        let span = seconds(30.0);
        let none =
            CallOutcome { ok: true, remaining: 0.2, reset_at: Some(NOW.plus(span)), ..DENIED };
        let small = CallOutcome { capacity: 0.7, ..none };
        assert_eq!(
            ietf(&limit("token bucket", 0.7, 60_000.0), &small)["RateLimit"],
            r#""api";r=0;t=30"#
        );
        for (kind, t) in [("fixed window", ";t=30"), ("sliding window", ""), ("sliding log", "")] {
            assert_eq!(
                ietf(&limit(kind, 10.0, 60_000.0), &none)["RateLimit"],
                format!(r#""api";r=0{t}"#),
                "{kind}"
            );
        }
        // A debt that one window doesn't pay back.
        let deep = CallOutcome { remaining: -12.0, ..none };
        let window = limit("fixed window", 10.0, 60_000.0);
        assert_eq!(ietf(&window, &deep)["RateLimit"], r#""api";r=0"#);
        let denied = CallOutcome { ok: false, retry_after: Some(seconds(90.0)), ..deep };
        assert_eq!(ietf(&window, &denied)["RateLimit"], r#""api";r=0;t=90"#);
        // The reset is rounded up to a millisecond, which must not add a second.
        let remaining = 1.0 - 2.0 / 6.0;
        let reset_at = Some(NOW.plus(seconds((10.0 - remaining) * 6.0)).plus(Micros(999)));
        let outcome = CallOutcome { ok: true, remaining, reset_at, ..DENIED };
        assert_eq!(ietf(&bucket(), &outcome)["RateLimit"], r#""api";r=0;t=2"#);
    }

    #[test]
    fn slots_are_concurrent_requests() {
        let slots = parse(r#"{"kind": "concurrency", "slots": 3, "ttl": 60000}"#).unwrap();
        let outcome = CallOutcome { ok: true, remaining: 2.0, capacity: 3.0, ..DENIED };
        assert_eq!(
            ietf(&slots, &outcome)["RateLimit-Policy"],
            r#""api";q=3;qu="concurrent-requests""#
        );
        assert_eq!(ietf(&slots, &outcome)["RateLimit"], r#""api";r=2"#);
        let denied = CallOutcome { ok: false, remaining: 0.0, ..outcome };
        assert_eq!(ietf(&slots, &denied)["RateLimit"], r#""api";r=0;t=18"#);
    }

    #[test]
    fn a_policy_is_whole_tokens_in_whole_seconds() {
        for (rate, period, quota, window) in [
            (10.0, 60_000.0, 10, 60),
            (2.9, 1_000.0, 2, 1),
            (0.5, 60_000.0, 1, 120),
            (0.3, 60_000.0, 1, 200),
            (0.7, 60_000.0, 1, 86),
            (0.072, 604_800_000.0, 1, 8_400_000),
            (5.0, 1.0, 5_000, 1),
            (100.0, 100.0, 1_000, 1),
            (100.0, 300.0, 333, 1),
            (0.5, 100.0, 5, 1),
            (0.05, 100.0, 1, 2),
            (5.0, 1_000.001, 9, 2),
            (100.0, 1_500.0, 133, 2),
            (0.7, 1_500.0, 1, 3),
            (1e15, 1.0, MAX, 1),
            (1e15, 1e15, MAX, 1_000_000_000_000),
            (1e-300, 1e15, 1, MAX),
        ] {
            let expected = (quota, Some(window));
            assert_eq!(policy(&limit("token bucket", rate, period)), expected, "{rate}/{period}");
        }
        for kind in ["fixed window", "sliding window", "sliding log"] {
            assert_eq!(policy(&limit(kind, 3.0, 2_000.0)), (3, Some(2)), "{kind}");
        }
    }

    #[test]
    fn a_name_is_quoted_or_percent_encoded() {
        for (name, string, resource) in [
            ("a b", r#""a b""#, "a%20b"),
            (r#"say "hi" \"#, r#""say \"hi\" \\""#, r#"say%20"hi"%20\"#),
            ("100%", r#""100%25""#, "100%25"),
            ("x\r\nSet-Cookie: a=b", r#""x%0D%0ASet-Cookie: a=b""#, "x%0D%0ASet-Cookie:%20a=b"),
            ("café\u{7f}", r#""caf%C3%A9%7F""#, "caf%C3%A9%7F"),
        ] {
            let ietf = headers(Style::Ietf, name.as_bytes(), &bucket(), &DENIED, NOW);
            assert_eq!(ietf["RateLimit"], format!("{string};r=7;t=18"));
            let github = headers(Style::Github, name.as_bytes(), &bucket(), &DENIED, NOW);
            assert_eq!(github["x-ratelimit-resource"], resource);
        }
    }

    fn decoded(visible: &str) -> Vec<u8> {
        let mut parts = visible.split('%');
        let mut bytes = parts.next().unwrap().as_bytes().to_vec();
        for part in parts {
            bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
            bytes.extend(&part.as_bytes()[2..]);
        }
        bytes
    }

    /// The only item of a structured list, with its String and its integer parameters.
    fn item(field: &Value) -> (String, Vec<(String, i64)>) {
        let list = Parser::new(field.as_str().unwrap()).parse::<List>().unwrap();
        assert_eq!(list.serialize().unwrap(), field.as_str().unwrap(), "the canonical form");
        let [ListEntry::Item(sfv::Item { bare_item: BareItem::String(name), params })] = &list[..]
        else {
            panic!("{field}")
        };
        let integer = |value: &BareItem| match value {
            BareItem::Integer(integer) => i64::from(*integer),
            other => panic!("{other:?}"),
        };
        let params = params.iter().map(|(key, value)| (key.to_string(), integer(value)));
        (name.as_str().to_owned(), params.collect())
    }

    fn span() -> impl Strategy<Value = Micros> {
        prop_oneof![any::<i64>(), -100_000_000i64..100_000_000].prop_map(Micros)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// For any name and numbers, the fields parse, have the values that they were made from, and are plain
        /// visible text.
        #[test]
        fn every_outcome_makes_valid_headers(
            name in proptest::collection::vec(any::<u8>(), 1..200),
            kind in proptest::sample::select(vec!["token bucket", "fixed window", "sliding window"]),
            rate in prop_oneof![1e-12..1e15f64, 0.01..100.0],
            period in prop_oneof![1.0..1e15f64, 1.0..100_000.0],
            ok: bool,
            retry_after in proptest::option::of(span()),
            remaining in prop_oneof![-1e300..1e300f64, -20.0..20.0],
            capacity in prop_oneof![0.0..1e15f64, 0.0..20.0],
            reset_at in proptest::option::of(span()),
            now in span(),
        ) {
            let limit = limit(kind, rate, period);
            let outcome = CallOutcome { ok, retry_after, remaining, capacity, reset_at };
            let retry = !ok && retry_after.is_some();

            let ietf = headers(Style::Ietf, &name, &limit, &outcome, now);
            let (policy_name, policy) = item(&ietf["RateLimit-Policy"]);
            prop_assert_eq!(decoded(&policy_name), name.clone());
            prop_assert_eq!(&policy[0].0, "q");
            prop_assert!(policy[0].1 >= 1);
            prop_assert_eq!(&policy[1].0, "w");
            prop_assert!(policy[1].1 >= 1);
            let (current_name, current) = item(&ietf["RateLimit"]);
            prop_assert_eq!(decoded(&current_name), name.clone());
            prop_assert_eq!(&current[0].0, "r");
            prop_assert!(current[0].1 >= 0 && current[0].1 as f64 <= remaining.max(0.0));
            let until = match kind {
                "sliding window" => retry_after.filter(|_| !ok),
                "fixed window" if remaining < 1.0 && capacity > 1.0 && remaining + rate < 1.0 => {
                    retry_after.filter(|_| !ok)
                }
                _ => reset_at,
            };
            prop_assert_eq!(current.get(1).map(|t| &*t.0), until.map(|_| "t"));
            prop_assert!(current.iter().all(|(_, value)| *value >= 0));
            prop_assert_eq!(ietf.get("Retry-After").is_some(), retry);
            prop_assert_eq!(ietf.as_object().unwrap().len(), 2 + usize::from(retry));

            let github = headers(Style::Github, &name, &limit, &outcome, now);
            prop_assert_eq!(decoded(github["x-ratelimit-resource"].as_str().unwrap()), name.clone());
            for (header, value) in github.as_object().unwrap().iter().chain(ietf.as_object().unwrap()) {
                let value = value.as_str().unwrap();
                prop_assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header}");
                if !header.contains("RateLimit") && !header.contains("resource") {
                    prop_assert!(value.parse::<i64>().unwrap() >= 0, "{header}: {value}");
                }
            }

            let postgrest = headers(Style::Postgrest, &name, &limit, &outcome, now);
            let joined: serde_json::Map<String, Value> = postgrest
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|header| header.as_object().unwrap().clone())
                .collect();
            prop_assert_eq!(Value::Object(joined), ietf);
        }
    }
}
