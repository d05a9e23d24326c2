//! What `rl_value` returns is all that `rl_calculate` needs: at any time from then on it answers as `rl_check` does,
//! for random limits after random calls. SEED is the seed, and TIMES multiplies them.

use fastrand::Rng;
use ratelimit_tests::{seed, times};
use serde_json::{Map, Value, json};

use crate::database::Database;

const NAMES: usize = 14;
const KEYS: [&str; 3] = ["", "a", "b"];
const SECOND: i64 = 1_000_000;

/// Returns what is wrong with the value of a key, now and at later times, after which the clock is as before. A hold
/// that expires changes the state, so then it looks no further; and a denial may end sooner than the value shows. What
/// has expired is in the value, and not in a denial that it can't change. A limit with shards, also of shards that it
/// had, has no more than their total, and exactly that now.
const WRONG: &str = r#"
CREATE FUNCTION public.wrong(name text, key text, now bigint, spans bigint[], config jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    value jsonb; sharded boolean; dry boolean; unwritten boolean; until float8; expires timestamptz; at timestamptz; span bigint; call record;
    given text; checked text; c record; r record; remaining float8; problem text;
BEGIN
    BEGIN
        value := rl_value(name, key, config);
    EXCEPTION WHEN OTHERS THEN
        given := concat(SQLSTATE, SQLERRM);
    END;
    BEGIN
        PERFORM rl_check(name, key, 0, config => config);
    EXCEPTION WHEN OTHERS THEN
        checked := concat(SQLSTATE, SQLERRM);
    END;
    IF given IS DISTINCT FROM checked THEN RETURN NEXT format('rl_value: %s, rl_check: %s', given, checked); END IF;
    IF value IS NULL THEN RETURN; END IF;
    IF value - '{config,state,now,blockedUntil}'::text[] <> '{}' OR (value ->> 'now')::numeric * 1000 <> now THEN
        RETURN NEXT format('fields of %s at %s', value, now);
    END IF;
    sharded := coalesce((value #>> '{config,shards}')::int > 1, false)
        OR EXISTS (SELECT FROM rateLimits t WHERE t.name = $1 AND t.key = $2 AND t.shard > 0);
    dry := coalesce(value -> 'config' -> 'enforce' = 'false', false);
    until := value ->> 'blockedUntil';
    unwritten := EXISTS (SELECT FROM rateLimits t WHERE t.name = $1 AND t.key = $2
                         AND t.holds_due <= timestamptz 'epoch' + $3 * interval '1 us');
    expires := (SELECT min(h.expires_at) FROM rl_holds h WHERE h.name = $1 AND h.key = $2 AND NOT h.charge
                AND h.count > h.spent AND h.expires_at > timestamptz 'epoch' + $3 * interval '1 us');
    FOREACH span IN ARRAY spans LOOP
        at := timestamptz 'epoch' + (now + span) * interval '1 us';
        EXIT WHEN expires <= at;
        PERFORM set_config('ratelimit.clock', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00', false);
        remaining := (rl_calculate(value -> 'config', value -> 'state', at, 0)).remaining;
        FOR call IN SELECT * FROM (VALUES (0, false), (1, false), (1, true), (3, false), (7, true)) AS v (count, reserve) LOOP
            c := rl_check(name, key, call.count, call.reserve, config => config);
            r := rl_calculate(value -> 'config', value -> 'state', at, call.count, call.reserve);
            problem := CASE
                WHEN until > extract(epoch FROM at) * 1000 THEN
                    CASE WHEN c.ok THEN 'passes while it is blocked'
                        WHEN c.remaining <> remaining AND NOT sharded AND NOT unwritten THEN 'remaining' END
                WHEN sharded AND span > 0 THEN
                    CASE WHEN c.ok AND NOT (r.ok OR dry) THEN 'ok' WHEN c.remaining > remaining + 1e-6 THEN 'remaining' END
                WHEN c.ok <> (r.ok OR dry) THEN 'ok'
                WHEN c.remaining IS DISTINCT FROM remaining AND NOT (unwritten AND c.retry_at IS NULL AND c.limited_by IS NOT NULL) THEN 'remaining'
                WHEN c.capacity IS DISTINCT FROM coalesce(value #>> '{config,capacity}', value #>> '{config,rate}',
                                                          value #>> '{config,slots}')::float8 THEN 'capacity'
                WHEN dry AND NOT r.ok THEN CASE WHEN c.retry_at IS NOT NULL THEN 'retry_at' END
                WHEN (sharded OR expires IS NOT NULL) AND NOT c.ok THEN
                    CASE WHEN sharded AND c.retry_at < r.retry_at THEN 'retry_at' END
                WHEN extract(epoch FROM c.retry_at) * 1000 IS DISTINCT FROM ceil(extract(epoch FROM r.retry_at) * 1000) THEN 'retry_at'
            END;
            IF problem IS NOT NULL THEN
                RETURN NEXT format('%s of %s/%s, count %s, reserve %s, at %s: rl_check %s, rl_calculate %s, of %s, row %s, config %s',
                    problem, name, key, call.count, call.reserve, at, c, r, value,
                    (SELECT string_agg(t::text, ' ') FROM rateLimits t WHERE t.name = $1 AND t.key = $2), config);
            END IF;
        END LOOP;
    END LOOP;
    PERFORM set_config('ratelimit.clock',
        to_char((timestamptz 'epoch' + now * interval '1 us') AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00', false);
END
$$"#;

fn one<T: Clone>(random: &mut Rng, among: &[T]) -> T {
    random.choice(among).cloned().unwrap()
}

/// A config of a kind, which mostly the `n`th limit has.
fn config(random: &mut Rng, n: usize) -> Value {
    let (period, rate) =
        (json!([1000, 60_000, "1 minute", 3333.5, "PT20M"]), json!([1, 3, 10, 2.5, 0.7]));
    let mut one_of = |values: &Value| one(random, values.as_array().unwrap());
    let mut config = Map::new();
    let kind = [
        "token bucket",
        "fixed window",
        "fixed window",
        "sliding window",
        "sliding log",
        "concurrency",
        "unlimited",
    ];
    config.insert("kind".into(), kind[n % 7].into());
    match n % 7 {
        0..4 => drop(config.insert("rate".into(), one_of(&rate))),
        4 => drop(config.insert("rate".into(), one_of(&json!([1, 4, 10])))),
        5 => drop(config.insert("slots".into(), one_of(&json!([1, 4])))),
        _ => {}
    }
    match n % 7 {
        2 => {
            config.insert(
                "period".into(),
                one_of(&json!(["1 day", "1 week", "1 month", "P3M", "45 days"])),
            );
            config.insert(
                "timezone".into(),
                one_of(&json!(["Europe/Berlin", "America/St_Johns", "UTC"])),
            );
        }
        0 | 1 | 3 | 4 => drop(config.insert("period".into(), one_of(&period))),
        5 => drop(config.insert("ttl".into(), one_of(&period))),
        _ => {}
    }
    let mut some = |field: &str, share: u8, values: Value| {
        if random.u8(..10) < share {
            config.insert(field.into(), one(random, values.as_array().unwrap()));
        }
    };
    if n % 7 < 3 {
        some("capacity", 5, json!([2, 5, 20, 0]));
        some("maxReserved", 4, json!([0, 4, 30]));
    }
    match n % 7 {
        0 => some("shards", if Database::STORES.len() > 1 { 2 } else { 0 }, json!([2, 3])),
        1 => some(
            "start",
            4,
            json!([0, 17.5, "2027-01-01T00:00:00+01:00", "first request", "first request"]),
        ),
        2 => some("start", 4, json!(["2020-02-29", "2026-12-31"])),
        _ => {}
    }
    some("enforce", 1, json!([false]));
    some("keyed", 1, json!([true]));
    if config.get("maxReserved").is_none() && (1..3).contains(&(n % 7)) && random.u8(..5) == 0 {
        config.insert("overage".into(), true.into());
    }
    if Database::STORES.len() > 1
        && n % 7 != 4
        && !config.contains_key("shards")
        && random.u8(..3) == 0
    {
        config.insert("store".into(), "memory".into());
    }
    config.into()
}

/// A call of any sort, which may fail.
fn call(random: &mut Rng, name: &str, n: usize, key: &str) -> String {
    let count = one(random, &["1", "1", "2", "3", "0.5", "5"]);
    let reserve = if random.u8(..3) == 0 { ", reserve => true" } else { "" };
    let given = |random: &mut Rng| format!("'{}'", config(random, n));
    match random.u8(..40) {
        0..3 => format!("SELECT rl_define('{name}', {})", given(random)),
        3 => format!("SELECT rl_define('{name}', {}, '{key}')", given(random)),
        4 => format!(
            "SELECT rl_define('{name}', '{{\"plan\": \"limit {}\"}}', '{key}')",
            random.usize(..NAMES)
        ),
        5 => format!("SELECT rl_undefine('{name}', '{key}')"),
        6 => {
            let other = random.usize(..NAMES);
            format!("SELECT rl_define('{name}', '{}')", config(random, other))
        }
        7 => format!("SELECT rl_block('{name}', '{key}', '{} s')", random.u8(1..90)),
        8 => format!("SELECT rl_block('{name}', '{key}', until => 'infinity')"),
        9..11 => format!("SELECT rl_unblock('{name}', '{key}')"),
        11 => format!("SELECT rl_reset('{name}', '{key}')"),
        12..14 => format!(
            "SELECT rl_credit('{name}', '{key}', {}{count})",
            if random.bool() { "-" } else { "" }
        ),
        14..18 => format!(
            "SELECT rl_hold('{name}', '{key}', {count}, '{} ms', 'h{}')",
            random.u32(1..100_000),
            random.u8(..6)
        ),
        18 => format!("SELECT rl_settle('h{}', {count})", random.u8(..6)),
        19..23 => format!("SELECT rl_acquire('{name}', '{key}')"),
        _ => format!("SELECT rl_limit('{name}', '{key}', {count}{reserve})"),
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn rl_calculate_on_a_value_answers_as_rl_check() {
    let (seed, rounds) = (seed(1), Database::part((3_000.0 * times()) as usize));
    let mut random = Rng::with_seed(seed);
    let database = Database::new("value");
    let mut client = database.connect();
    client.batch_execute(WRONG).unwrap();
    for n in 0..NAMES {
        let config = config(&mut random, n);
        client
            .execute(
                "SELECT rl_define($1, $2::text::jsonb)",
                &[&format!("limit {n:02}"), &config.to_string()],
            )
            .unwrap();
    }
    let wrong = client.prepare("SELECT wrong($1, $2, $3, $4, $5::text::jsonb)").unwrap();
    let mut now = 1_800_000_000 * SECOND;
    let (mut made, mut failed) = (0, 0);
    for round in 0..rounds {
        now += match random.u8(..40) {
            0..30 => random.i64(0..5 * SECOND),
            30..36 => random.i64(0..200 * SECOND),
            36 => random.i64(0..40 * 86_400 * SECOND),
            37 => random.i64(-86_400 * SECOND..0),
            _ => random.i64(-5 * SECOND..0),
        };
        let n = random.usize(..NAMES);
        let (name, key) = (format!("limit {n:02}"), one(&mut random, &KEYS));
        let clock = format!("SET ratelimit.clock = '{}'", now as f64 / 1e3);
        client.batch_execute(&clock).unwrap();
        for _ in 0..random.u8(1..4) {
            let call = call(&mut random, &name, n, key);
            made += 1;
            failed += u32::from(client.batch_execute(&call).is_err());
        }
        let mut spans = vec![0];
        for most in [SECOND, 100 * SECOND, 3_600 * SECOND, 100 * 86_400 * SECOND] {
            spans.push(random.i64(0..most));
        }
        spans.sort_unstable();
        let inline = (random.u8(..6) == 0).then(|| config(&mut random, n).to_string());
        let rows = client.query(&wrong, &[&name, &key, &now, &spans, &inline]).unwrap();
        let found: Vec<String> = rows.iter().take(3).map(|row| row.get(0)).collect();
        assert!(found.is_empty(), "SEED={seed}, round {round}:\n{}", found.join("\n"));
    }
    println!("{made} calls, {failed} of them failed");
    assert!(failed < made / 2);
}
