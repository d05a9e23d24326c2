//! Which configs are valid, the errors of the others, and that builders agree.

use super::*;
use crate::kinds::{Calendar, FixedWindow, Unit, Windows};

fn calendar(period: &str, more: &str) -> Result<Calendar, ConfigError> {
    let json = format!(
        r#"{{"kind": "fixed window", "rate": 1, "period": {period}, "timezone": "Asia/Tokyo"{more}}}"#
    );
    match parse(&json)? {
        Limit::FixedWindow(FixedWindow { windows: Windows::Calendar(calendar), .. }) => {
            Ok(calendar)
        }
        limit => panic!("{limit:?}"),
    }
}

fn problem(json: &str) -> String {
    parse(json).unwrap_err().problem
}

#[test]
fn a_definition_wants_or_takes_a_key_only_where_it_says_so() {
    let (takes_none, wants_one) = (r#", "keyed": false"#, r#", "keyed": true"#);
    for (more, keyed) in [("", None), (takes_none, Some(false)), (wants_one, Some(true))] {
        let json = format!(r#"{{"kind": "unlimited"{more}}}"#);
        assert_eq!(definition(&json).unwrap().keyed, keyed, "{json}");
    }
    assert_eq!(problem(r#"{"kind": "unlimited", "keyed": null}"#), r#""keyed" is null"#);
}

#[test]
fn a_plan_is_for_a_key_and_stands_alone() {
    let plan = |json: &str| plan(json, str::len);
    assert_eq!(plan(r#"{"plan": "pro"}"#).unwrap().as_deref(), Some("pro"));
    let longest = "é".repeat(100);
    assert_eq!(plan(&format!(r#"{{"plan": "{longest}"}}"#)).unwrap(), Some(longest.clone()));
    for name in ["5".into(), "null".into(), r#""""#.into(), format!(r#""{longest}x""#)] {
        let error = plan(&format!(r#"{{"plan": {name}}}"#)).unwrap_err();
        assert!(error.problem.starts_with("\"plan\" is "), "{error}");
        assert_eq!(error.allowed, "the name of a limit, 1 to 200 bytes");
        assert!(error.plan);
    }
    for other in [r#"{"plan": "pro", "keyed": true}"#, r#"{"kind": "unlimited"}"#, r#"["plan"]"#] {
        assert_eq!(plan(other).unwrap(), None);
    }
    for whole in [
        r#"{"plan": "pro"}"#,
        r#"{"plan": "pro", "rate": 1}"#,
        r#"{"kind": "unlimited", "plan": "pro"}"#,
    ] {
        let error = definition(whole).unwrap_err();
        assert_eq!(error.problem, r#""plan" is "pro""#);
        assert_eq!(error.allowed, "only in the definition of a key, without other fields");
        assert!(error.plan);
    }
}

#[test]
fn an_error_says_whether_the_config_has_a_timezone() {
    let json = r#"{"kind": "fixed window", "rate": 0, "period": "1 day", "timezone": "UTC"}"#;
    assert!(parse(json).unwrap_err().calendar);
    assert!(!parse(r#"{"kind": "fixed window", "rate": 0}"#).unwrap_err().calendar);
    let given = [("timezone", "UTC".to_owned().into())];
    assert!(build(Kind::FixedWindow, &given).unwrap_err().calendar);
}

#[test]
fn periods_in_every_form_are_the_same_period() {
    for period in [r#"60000"#, r#""1 minute""#, r#""PT1M""#, r#""60s""#, r#""1m""#, r#""00:01:00""#]
    {
        let json = format!(r#"{{"kind": "sliding window", "rate": 1, "period": {period}}}"#);
        let Limit::SlidingWindow(limit) = parse(&json).unwrap() else { panic!("{json}") };
        assert_eq!(limit.period, Micros(60_000_000), "{period}");
    }
    for (period, hours) in [(r#""1 day""#, 24), (r#""1 week""#, 168), (r#""P1DT1H""#, 25)] {
        let json = format!(r#"{{"kind": "sliding window", "rate": 1, "period": {period}}}"#);
        let Limit::SlidingWindow(limit) = parse(&json).unwrap() else { panic!("{json}") };
        assert_eq!(limit.period, Micros(hours * 3_600_000_000), "{period}");
    }
}

#[test]
fn calendar_windows_are_whole_days_or_whole_months() {
    for (period, unit, every) in [
        (r#""1 day""#, Unit::Days, 1),
        (r#""P7D""#, Unit::Days, 7),
        (r#""2 weeks 1 day""#, Unit::Days, 15),
        (r#""36525 days""#, Unit::Days, 36_525),
        (r#""1 month""#, Unit::Months, 1),
        (r#""P1Y6M""#, Unit::Months, 18),
        (r#""100 years""#, Unit::Months, 1_200),
    ] {
        let calendar = calendar(period, "").unwrap();
        assert_eq!((calendar.unit, calendar.every), (unit, every), "{period}");
    }
    for period in [
        "86400000",
        r#""24 hours""#,
        r#""1 day 1 hour""#,
        r#""1 month 1 day""#,
        r#""1.5 days""#,
        r#""0 days""#,
        r#""-1 day""#,
        r#""1 day ago""#,
        r#""36526 days""#,
        r#""1201 months""#,
        r#""9999 years 1 day""#,
        r#""month""#,
    ] {
        let problem = calendar(period, "").unwrap_err().problem;
        assert_eq!(problem, format!(r#""period" is {period}"#));
    }
}

#[test]
fn calendar_windows_count_from_a_date() {
    let start = |period: &str, more: &str| calendar(period, more).unwrap().start.to_string();
    assert_eq!(start(r#""1 week""#, ""), "1970-01-05");
    assert_eq!(start(r#""1 year""#, ""), "1970-01-01");
    assert_eq!(start(r#""1 day""#, r#", "start": "2028-02-29""#), "2028-02-29");
    for value in [
        "0",
        r#""first request""#,
        r#""2027-02-29""#,
        r#""20270131""#,
        r#""2027-01-31T00:00:00Z""#,
        r#""2027-01-31 00:00""#,
        r#"" 2027-01-31""#,
    ] {
        let problem = calendar(r#""1 day""#, &format!(r#", "start": {value}"#)).unwrap_err();
        assert_eq!(problem.problem, format!(r#""start" is {value}"#));
    }
}

#[test]
fn a_bad_field_is_named_with_its_value() {
    let with =
        |field: &str| format!(r#"{{"kind": "token bucket", "rate": 1, "period": 1000, {field}}}"#);
    assert_eq!(problem(&with(r#""capacity": -1"#)), r#""capacity" is -1"#);
    assert_eq!(problem(&with(r#""capacity": null"#)), r#""capacity" is null"#);
    assert_eq!(problem(&with(r#""maxReserved": "5""#)), r#""maxReserved" is "5""#);
    assert_eq!(problem(&with(r#""burst": 1"#)), r#""burst" is not a field"#);
    assert_eq!(problem(&with(r#""start": 1"#)), r#""start" is 1"#);
    assert_eq!(
        problem(&with(r#""timezone": 1"#)),
        r#""timezone" is 1, and a token bucket has no such field"#
    );
    assert_eq!(problem(r#"{"kind": "token bucket", "period": 1}"#), r#""rate" is missing"#);
    assert_eq!(problem("[]"), "it is []");
    assert!(problem(&with(&format!(r#""capacity": 1{}"#, "0".repeat(400)))).ends_with("..."));
}

#[test]
fn what_a_builder_makes_is_what_the_parser_reads() {
    let period = Interval { micros: 1_500, ..Interval::default() };
    let given = |rate: f64, period: Interval, timezone: Option<String>| {
        let arguments = [
            ("rate", rate.into()),
            ("period", period.into()),
            ("capacity", Some(1e15).into()),
            ("max_reserved", Some(0.0).into()),
            ("shards", Option::<i32>::None.into()),
            ("start", Some(Micros(-1_000)).into()),
            ("first_request", false.into()),
            ("timezone", timezone.into()),
        ];
        build(Kind::FixedWindow, &arguments)
    };
    let config = given(2.5, period, None).unwrap();
    assert_eq!(
        config.to_string(),
        r#"{"capacity":1000000000000000,"kind":"fixed window","maxReserved":0,"period":1.5,"rate":2.5,"start":-1}"#
    );
    // With a time zone: dates. In Tokyo the last millisecond of 1969 was in 1970.
    let month = Interval { months: 1, ..Interval::default() };
    let tokyo = || Some("Asia/Tokyo".to_owned());
    assert_eq!(
        given(2.5, month, tokyo()).unwrap().to_string(),
        concat!(
            r#"{"capacity":1000000000000000,"kind":"fixed window","maxReserved":0,"period":"1 month","#,
            r#""rate":2.5,"start":"1970-01-01","timezone":"Asia/Tokyo"}"#
        )
    );
    assert_eq!(given(f64::NAN, month, tokyo()).unwrap_err().problem, "\"rate\" is NaN");
    let day = Interval { days: 1, ..Interval::default() };
    assert_eq!(given(2.5, day, tokyo()).unwrap()["period"], "1 day");
    assert_eq!(given(2.5, day, None).unwrap()["period"], 86_400_000);
    assert_eq!(given(2.5, month, None).unwrap_err().problem, "\"period\" is \"1 month\"");
}

#[test]
fn an_error_has_kind_field_value_and_allowed_values() {
    let error = |json: &str| parse(json).unwrap_err();
    let whole = error(r#"{"kind": "sliding log", "rate": 0.50, "period": 1}"#);
    assert_eq!(
        whole,
        ConfigError {
            problem: r#""rate" is 0.50"#.into(),
            allowed: "a whole number from 1 to 10000".into(),
            kind: Some(Kind::SlidingLog),
            calendar: false,
            plan: false,
        }
    );
    let whole: Box<dyn std::error::Error> = whole.into();
    assert_eq!(whole.to_string(), r#""rate" is 0.50 (allowed: a whole number from 1 to 10000)"#);
    for (json, kind) in [
        ("1", None),
        (r#"{"rate": 1}"#, None),
        (r#"{"kind": "leaky bucket"}"#, None),
        (r#"{"kind": "fixed window"}"#, Some(Kind::FixedWindow)),
        (r#"{"kind": "sliding window", "shards": 2}"#, Some(Kind::SlidingWindow)),
    ] {
        assert_eq!(error(json).kind, kind, "{json}");
    }
}

#[test]
fn a_repeated_field_is_refused_and_not_guessed() {
    for (field, json) in [
        ("kind", r#"{"kind": "sliding window", "kind": "sliding log", "rate": 1, "period": 1}"#),
        ("rate", r#"{"kind": "sliding log", "rate": 1, "period": 1, "r\u0061te": 2}"#),
        (
            "timezone",
            r#"{"kind": "fixed window", "rate": 1, "period": "1 day", "timezone": "UTC", "timezone": "UTC"}"#,
        ),
    ] {
        assert_eq!(problem(json), format!("\"{field}\" is given more than once"));
    }
}

#[test]
fn the_same_of_several_faults_is_reported_in_any_order() {
    for json in [
        r#"{"kind": "token bucket", "shards": 0, "capacity": -1, "period": 1, "rate": 1}"#,
        r#"{"capacity": -1, "rate": 1, "shards": 0, "period": 1, "kind": "token bucket"}"#,
    ] {
        assert_eq!(problem(json), r#""capacity" is -1"#);
    }
    // A field that no kind has comes first, also where there is no kind.
    assert_eq!(problem(r#"{"rate": 0, "Kind": "token bucket"}"#), r#""Kind" is not a field"#);
    assert_eq!(
        problem(r#"{"kind": "sliding log", "rate": 0, "capacity": 1}"#),
        r#""capacity" is 1, and a sliding log has no such field"#
    );
}

#[test]
fn numbers_are_what_their_digits_say() {
    let rate = |digits: &str| {
        let json = format!(r#"{{"kind": "token bucket", "rate": {digits}, "period": 1}}"#);
        parse(&json).map(|limit| limit.capacity())
    };
    // Half a unit in the last place above 1, and a digit more, thousands of digits later.
    let half = "1.00000000000000011102230246251565404236316680908203125";
    assert_eq!(rate(half), Ok(1.0));
    assert_eq!(rate(&format!("{half}{}1", "0".repeat(5_000))), Ok(1.0f64.next_up()));
    let problem = rate(&"9".repeat(5_000)).unwrap_err().problem;
    assert_eq!(problem, format!(r#""rate" is {}..."#, "9".repeat(80)));
    assert!(rate(&format!("0.{}1", "0".repeat(5_000))).is_err());
}

#[test]
fn durations_are_cut_to_whole_microseconds() {
    for (duration, micros) in [
        ("1 ms 999 ns", 1_000),
        ("1 ms 1 us 999 ns", 1_001),
        ("1 week 2 days 3 hours 4 minutes 5 seconds 6 ms 7 us 8 ns", 788_645_006_007),
        ("PT0.0015005S", 1_500),
    ] {
        let json = format!(r#"{{"kind": "sliding window", "rate": 1, "period": "{duration}"}}"#);
        assert_eq!(parse(&json).unwrap().policy().1, Some(Micros(micros)), "{duration}");
    }
}

#[test]
fn updates_that_come_later_are_those_of_a_saved_limit() {
    let kept = |more: &str| {
        let json = format!(r#"{{"kind": "token bucket", "rate": 1, "period": 1000{more}}}"#);
        definition(&json).map(|definition| (definition.store, definition.save.map(|save| save.0)))
    };
    let second = Some(1_000_000);
    for (more, is) in [
        (r#", "applyUpdates": "asynchronously""#, (StoreKind::Memory, second)),
        (r#", "applyUpdates": "asynchronously", "store": "memory""#, (StoreKind::Memory, second)),
        (r#", "applyUpdates": "asynchronously", "save": 100"#, (StoreKind::Memory, Some(100_000))),
        (r#", "applyUpdates": "transactionally""#, (StoreKind::Table, None)),
        (r#", "applyUpdates": "transactionally", "store": "memory""#, (StoreKind::Memory, None)),
        (r#", "store": "memory", "save": "1 hour""#, (StoreKind::Memory, Some(3_600_000_000))),
    ] {
        assert_eq!(kept(more), Ok(is), "{more}");
    }
    for (more, problem) in [
        (r#", "applyUpdates": "asynchronously", "store": "table""#, "\"applyUpdates\" is"),
        (r#", "applyUpdates": "synchronously""#, "\"applyUpdates\" is \"synchronously\""),
        (r#", "save": 100"#, "\"save\" is 100"),
        (r#", "store": "memory", "save": 99.9"#, "\"save\" is 99.9"),
    ] {
        let error = kept(more).unwrap_err();
        assert!(error.problem.starts_with(problem), "{more}: {}", error.problem);
    }
}

#[test]
fn a_config_in_a_call_counts_where_a_saved_limit_does() {
    let hour = Micros(3_600_000_000);
    let parsed = |more: &str, kind: &str| {
        let json = format!(r#"{{"kind": "{kind}", "rate": 1, "period": 1000{more}}}"#);
        definition(&json).unwrap()
    };
    let later = parsed(r#", "applyUpdates": "asynchronously""#, "token bucket").passed().unwrap();
    assert_eq!((later.store, later.save), (StoreKind::Memory, None));
    assert_eq!(later.check_in_call(), Ok(()));
    assert_eq!(later.for_saved(hour).map(|limit| limit.save), Ok(Some(hour)));
    let saved = parsed(r#", "store": "memory", "save": "1 hour""#, "token bucket");
    for more in ["", r#", "store": "memory""#, r#", "store": "memory", "save": 3600000"#] {
        assert_eq!(parsed(more, "token bucket").for_saved(hour), Ok(saved.clone()), "{more}");
    }
    for (more, kind, problem) in [
        (r#", "store": "table""#, "token bucket", r#""store" is "table""#),
        (r#", "store": "memory", "save": 100"#, "token bucket", r#""save" is 100"#),
        (r#", "shards": 2"#, "fixed window", r#""shards" is 2"#),
        ("", "sliding log", r#""kind" is "sliding log""#),
    ] {
        let error = parsed(more, kind).for_saved(hour).unwrap_err();
        assert_eq!(error.problem, problem, "{more}");
    }
    let slots = |slots| {
        let json = format!(r#"{{"kind": "concurrency", "slots": {slots}, "ttl": 1000}}"#);
        definition(&json).unwrap().for_saved(hour).map(|limit| limit.store)
    };
    assert_eq!(slots(100), Ok(StoreKind::Memory));
    assert_eq!(slots(101).unwrap_err().problem, r#""slots" is 101"#);
    // A store that is the default is the same as one that is named.
    assert_eq!(parsed("", "token bucket"), parsed(r#", "store": "table""#, "token bucket"));
}

#[test]
fn a_start_of_null_is_for_token_buckets_only() {
    let parsed = |kind: &str, start: &str| {
        let json = format!(r#"{{"kind": "{kind}", "rate": 1, "period": 1000, "start": {start}}}"#);
        parse(&json).map_err(|error| (error.problem, error.allowed))
    };
    let without = parse(r#"{"kind": "token bucket", "rate": 1, "period": 1000}"#);
    assert_eq!(parsed("token bucket", "null").ok(), without.ok());
    let refused = parsed("token bucket", "0").unwrap_err();
    assert_eq!(refused.0, r#""start" is 0"#);
    assert_eq!(refused.1, "null, or none: a token bucket has no windows");
    for kind in ["fixed window", "sliding window", "sliding log"] {
        assert!(parsed(kind, "null").unwrap_err().0.starts_with(r#""start" is null"#), "{kind}");
    }
}
