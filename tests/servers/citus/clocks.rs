//! Nodes whose clocks differ, by libfaketime. What is admitted is bounded from both sides by the clock readings
//! around each call, whatever time it takes.

use std::thread;
use std::time::{Duration, SystemTime};

use postgres::Client;

use crate::cluster::Cluster;
use crate::one;

/// A second in microseconds.
const SECOND: i64 = 1_000_000;

/// An answer, and its node's clock before and after. Instants are microseconds here.
struct Told {
    before: i64,
    after: i64,
    ok: bool,
    retry_after: Option<f64>,
    retry_at: Option<i64>,
}

/// A session on a node with the machine's clock, and one on a node that is ahead of it.
struct Pair {
    behind: Client,
    ahead: Client,
    /// By how much.
    skew: i64,
}

impl Pair {
    fn new(cluster: &Cluster, node: usize, skew: i64) -> Pair {
        let mut pair =
            Pair { behind: cluster.coordinator(), ahead: cluster.nodes[node].client(), skew };
        for (client, skew) in [(&mut pair.behind, 0), (&mut pair.ahead, skew)] {
            let (before, now, after) = (machine(), clock(client), machine());
            assert!(before + skew <= now && now <= after + skew, "{before} {now} {after}");
        }
        pair
    }

    /// Calls in turn by each, until so much has passed.
    fn alternating(&mut self, span: i64, call: &str) -> Vec<Told> {
        let mut calls = Vec::new();
        let end = machine() + span;
        while calls.len() < 100 || machine() < end {
            calls.push(told(&mut self.behind, call));
            calls.push(told(&mut self.ahead, call));
        }
        calls
    }
}

/// Returns the machine's clock.
fn machine() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.as_micros() as i64
}

/// Returns a node's clock.
fn clock(client: &mut Client) -> i64 {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    client.query_one(sql, &[]).unwrap().get(0)
}

fn told(client: &mut Client, call: &str) -> Told {
    let before = clock(client);
    let sql = format!(
        "SELECT ok, retry_after, (extract(epoch FROM retry_at) * 1000000)::bigint FROM {call}"
    );
    let row = client.query_one(&sql, &[]).unwrap();
    let after = clock(client);
    Told { before, after, ok: row.get(0), retry_after: row.get(1), retry_at: row.get(2) }
}

/// Calls until one is denied, which is the last.
fn until_denied(client: &mut Client, call: &str) -> Vec<Told> {
    let mut calls = vec![told(client, call)];
    while calls.last().unwrap().ok {
        calls.push(told(client, call));
    }
    calls
}

fn admitted(calls: &[Told]) -> usize {
    calls.iter().filter(|call| call.ok).count()
}

/// From before the first call to after the last, by the clock that shows most.
fn span(calls: &[Told]) -> i64 {
    calls.iter().map(|call| call.after).max().unwrap() - calls[0].before
}

/// Counts the periods that begin in the span, with that of the first call.
fn periods(calls: &[Told], period: i64) -> i64 {
    let last = calls.iter().map(|call| call.after).max().unwrap();
    last / period - calls[0].before / period + 1
}

/// Between which instants each call that passed was decided: by its node's clock, or at the later instant that the
/// key had seen.
fn decided(calls: &[Told]) -> Vec<(i64, i64)> {
    let mut seen = (i64::MIN, i64::MIN);
    let mut at = |call: &Told| {
        seen = (seen.0.max(call.before), seen.1.max(call.after));
        seen
    };
    calls.iter().filter(|call| call.ok).map(&mut at).collect()
}

/// Calls in turn pass as often in each window as it gives, and no more.
fn assert_each_window(pair: &mut Pair, name: &str, rate: usize) {
    let calls = pair.alternating(3 * SECOND / 2, &format!("rl_limit('{name}', 'in turn')"));
    println!("{name}: {} in {} windows of {rate}", admitted(&calls), periods(&calls, SECOND));
    let window = |&(from, to): &(i64, i64)| (from / SECOND == to / SECOND).then_some(from / SECOND);
    for of_one in decided(&calls).chunk_by(|one, next| window(one) == window(next)) {
        assert!(of_one.len() <= rate || window(&of_one[0]).is_none(), "{} passed", of_one.len());
    }
}

fn define(pair: &mut Pair, name: &str, config: &str) {
    one(&mut pair.behind, &format!("rl_define('{name}', {config})"));
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_clock_that_is_ahead_costs_once_what_it_is_ahead() {
    let cluster = Cluster::with_clocks(&["+1", "+0.05"]).distribute();
    let mut second = Pair::new(&cluster, 1, SECOND);
    let mut hair = Pair::new(&cluster, 2, SECOND / 20);
    for (pair, rate) in [(&mut hair, 100), (&mut second, 10)] {
        bucket_in_turn(pair, rate);
        bucket_is_exact(pair, rate);
    }
    fixed_window(&mut second);
    sliding_window(&mut second);
    sliding_log(&mut second);
    pruned_ahead(&mut second);
    leases(&mut second);
    blocks(&mut second);
}

/// A clock that goes back and forth gives nothing twice: what came in by the clock that shows most, and the capacity.
fn bucket_in_turn(pair: &mut Pair, rate: i64) {
    let name = format!("{rate} a second");
    define(pair, &name, &format!("rl_token_bucket({rate}, '1 second', capacity => 10)"));
    let calls = pair.alternating(SECOND, &format!("rl_limit('{name}')"));
    let seconds = |span| span as f64 / SECOND as f64;
    let bound = 10.0 + rate as f64 * seconds(span(&calls));
    let admitted = admitted(&calls);
    println!(
        "{name}, capacity 10, {} s ahead: {admitted} of {} in {:.3} s; at most {bound:.1}, and {:.1} by one clock",
        seconds(pair.skew),
        calls.len(),
        seconds(span(&calls) - pair.skew),
        bound - rate as f64 * seconds(pair.skew)
    );
    assert!(admitted as f64 <= bound + 1e-6, "{admitted} of {bound}");
}

/// A bucket that is never full gives all that is refilled: what a node is ahead of the first call, and no more.
fn bucket_is_exact(pair: &mut Pair, rate: i64) {
    let name = format!("{rate} a second, deep");
    define(pair, &name, &format!("rl_token_bucket({rate}, '1 second', capacity => 1000000)"));
    let empties = told(&mut pair.behind, &format!("rl_limit('{name}', '', 1000000)"));
    assert!(empties.ok);
    let call = format!("rl_limit('{name}')");
    let mut calls = pair.alternating(SECOND / 4, &call);
    calls.extend(until_denied(&mut pair.ahead, &call));
    let (denied, admitted) = (calls.last().unwrap(), admitted(&calls) as i64);
    let (least, most) = (denied.before - empties.after, denied.after - empties.before);
    // Less than one token is left.
    assert!((admitted + 1) * SECOND > rate * least && admitted * SECOND <= rate * most + 1);
    assert!(least >= pair.skew);

    // The others are asked to wait until the same instant, which their clock shows later.
    let waits = told(&mut pair.behind, &call);
    let taken = calls.iter().rfind(|call| call.ok).unwrap();
    assert!(!waits.ok || waits.after > taken.before);
    for call in [denied, &waits].into_iter().filter(|call| !call.ok) {
        assert_wait(call);
        assert!((call.retry_at.unwrap() - denied.retry_at.unwrap()).abs() <= SECOND / 1000);
    }
    thread::sleep(Duration::from_secs_f64(waits.retry_after.unwrap_or(0.0)));
    assert!(told(&mut pair.behind, &call).ok);
}

/// retry_at is retry_after from the node's own clock; each is rounded up to a millisecond.
fn assert_wait(denied: &Told) {
    let wait = (denied.retry_after.unwrap() * SECOND as f64).round() as i64;
    let now = denied.retry_at.unwrap() - wait;
    assert!(denied.before - SECOND / 1000 <= now && now <= denied.after + SECOND / 1000);
}

/// Empties a key by the clock behind, and then as much as the other gives of it; of keys, one for which neither
/// clock turned meanwhile.
fn emptied_twice(pair: &mut Pair, name: &str) -> (String, Vec<Told>, Vec<Told>) {
    for n in 0.. {
        let call = format!("rl_limit('{name}', '{n}')");
        let behind = until_denied(&mut pair.behind, &call);
        let ahead = until_denied(&mut pair.ahead, &call);
        if periods(&behind, SECOND) == 1 && periods(&ahead, SECOND) == 1 {
            assert!(ahead[0].before / SECOND > behind[0].before / SECOND);
            return (call, behind, ahead);
        }
    }
    unreachable!()
}

/// Its windows end for all when the clock that is ahead says so.
fn fixed_window(pair: &mut Pair) {
    define(pair, "window", "rl_fixed_window(10, '1 second', start => '2026-01-01 00:00:00+00')");
    let (call, behind, ahead) = emptied_twice(pair, "window");
    assert_eq!((admitted(&behind), admitted(&ahead)), (10, 10));
    let turns = (ahead[0].before / SECOND + 1) * SECOND;
    let later = told(&mut pair.behind, &call);
    assert!(!later.ok || later.after >= turns);
    if !later.ok {
        assert_eq!(later.retry_at, Some(turns));
        assert_wait(&later);
    }
    assert_each_window(pair, "window", 10);
}

/// As a fixed window; and of the next window comes what the clock that is ahead has seen of it.
fn sliding_window(pair: &mut Pair) {
    define(pair, "sliding", "rl_sliding_window(100, '1 second')");
    let (_, behind, ahead) = emptied_twice(pair, "sliding");
    assert_eq!(admitted(&behind), 100);
    let share = |at: i64| (at % SECOND * 100 / SECOND) as usize;
    let (least, most) = (share(ahead[0].before), share(ahead.last().unwrap().after));
    assert!((least..=most).contains(&admitted(&ahead)), "{least} {most} {}", admitted(&ahead));
    assert_each_window(pair, "sliding", 100);
}

/// What was taken leaves the log when the clock that is ahead says so.
fn sliding_log(pair: &mut Pair) {
    define(pair, "log", "rl_sliding_log(10, '1 second')");
    let (call, behind, ahead) = emptied_twice(pair, "log");
    // Each of the ten a period after it was taken.
    let left =
        |now: i64| behind.iter().filter(|call| call.ok && call.after + SECOND <= now).count();
    assert!(admitted(&behind) == 10 && admitted(&ahead) >= left(ahead[0].before));
    assert!(admitted(&ahead) <= 10);
    let gone = ahead[0].before + SECOND;
    let later = told(&mut pair.behind, &call);
    assert!(!later.ok || later.after >= gone);
    if !later.ok {
        assert_wait(&later);
    }
    let calls = pair.alternating(3 * SECOND / 2, "rl_limit('log', 'in turn')");
    println!("log: {} in {} µs, 10 a second", admitted(&calls), span(&calls));
    for eleven in decided(&calls).windows(11) {
        assert!(eleven[10].1 - eleven[0].0 >= SECOND, "{eleven:?}");
    }
}

/// What a prune forgets is full to all: where it is made by a clock that is ahead, before its time for the others.
fn pruned_ahead(pair: &mut Pair) {
    define(pair, "pruned", "rl_token_bucket(10, '1 second')");
    let call = "rl_limit('pruned', '', 10)";
    let taken = told(&mut pair.behind, call);
    let kept = |client: &mut Client| {
        one(client, "rl_prune()");
        one(client, "SELECT count(*) FROM rateLimits WHERE name = 'pruned'")
    };
    let by_behind = kept(&mut pair.behind);
    assert!(by_behind == "1" || clock(&mut pair.behind) >= taken.before + SECOND);
    assert_eq!(kept(&mut pair.ahead), "0");
    let again = told(&mut pair.behind, call);
    assert!(taken.ok && again.ok);
    println!("pruned: full {} µs after it was emptied", again.after - taken.before);
}

/// A lease ends for each node when that node's clock says so, so one that another gave is given again before it
/// ends for its holder, which can't extend it then.
fn leases(pair: &mut Pair) {
    define(pair, "slots", "rl_concurrency(2, '1 second')");
    let mut given: Vec<(i64, i64)> = Vec::new();
    let mut greatest = i64::MIN;
    let mut acquire = |client: &mut Client| {
        let sql = "SELECT lease, (extract(epoch FROM expires_at) * 1000000)::bigint FROM rl_acquire('slots')";
        let before = clock(client);
        let row = client.query_one(sql, &[]).unwrap();
        let after = clock(client);
        greatest = greatest.max(after);
        let expires: Option<i64> = row.get(1);
        given.extend(expires.map(|expires| (before, expires)));
        // Never more than there are, by the clock that shows most.
        assert!(given.iter().filter(|&&(_, expires)| expires > greatest).count() <= 2);
        row.get::<_, Option<String>>(0).zip(expires)
    };
    let extend = |client: &mut Client, lease: &str| {
        one(client, &format!("coalesce(rl_extend('{lease}')::text, 'none')"))
    };
    let (lease, expires) = acquire(&mut pair.behind).unwrap();
    assert!(acquire(&mut pair.behind).is_some());
    let now = clock(&mut pair.ahead);
    assert!(acquire(&mut pair.ahead).is_some() || now < expires);
    assert!(acquire(&mut pair.ahead).is_some() || now < expires);
    let shared = expires - clock(&mut pair.behind);
    println!("leases: for {shared} µs two slots had four holders");
    assert_eq!(extend(&mut pair.behind, &lease), "none");
    let end = machine() + 3 * SECOND / 2;
    while machine() < end {
        acquire(&mut pair.behind);
        acquire(&mut pair.ahead);
    }
}

/// A block ends for each node when that node's clock shows its end.
fn blocks(pair: &mut Pair) {
    let check = "rl_check('window', 'blocked')";
    for by_ahead in [false, true] {
        let Pair { behind, ahead, .. } = pair;
        let sql =
            "(extract(epoch FROM rl_block('window', 'blocked', '1 second')) * 1000000)::bigint";
        let until: i64 =
            one(if by_ahead { &mut *ahead } else { &mut *behind }, sql).parse().unwrap();
        for client in [behind, ahead] {
            let call = told(client, check);
            assert!(if call.ok { call.after >= until } else { call.before < until });
            if !call.ok {
                assert!((0..SECOND / 1000).contains(&(call.retry_at.unwrap() - until)));
                assert_wait(&call);
            }
        }
        one(&mut pair.behind, "rl_unblock('window', 'blocked')");
    }
}

/// Citus sends parameters as text, which a session's settings change: 02/03/2027 is another day on another node.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn what_a_session_sets_changes_no_instant_and_no_number() {
    let cluster = Cluster::distributed();
    for (n, client) in cluster.clients().iter_mut().enumerate() {
        client.batch_execute("SET ratelimit.clock = '2027-03-02 12:00:00+00'").unwrap();
        for style in ["SQL, DMY", "SQL, MDY", "Postgres, DMY", "German", "ISO"] {
            for zone in ["UTC", "Asia/Kolkata", "America/Sao_Paulo"] {
                let set = format!(
                    "SET datestyle = '{style}'; SET timezone = '{zone}'; SET extra_float_digits = -15;
                     SET standard_conforming_strings = off; SET escape_string_warning = off"
                );
                client.batch_execute(&set).unwrap();
                // With a backslash, which another node reads as the session writes it.
                let key = format!("{n} {style} {zone}'||chr(92)||'");
                for config in [
                    "rl_token_bucket(10, '1 day')",
                    "rl_fixed_window(10, '1 day')",
                    "rl_sliding_window(10, '1 day')",
                    "rl_sliding_log(10, '1 day')",
                ] {
                    let take = |count| {
                        format!(
                            "SELECT ok FROM rl_limit('{config:.16}', '{key}', {count}, config => {config})"
                        )
                    };
                    let answers = [4, 6, 1].map(|count| one(client, &take(count)));
                    assert_eq!(answers, ["true", "true", "false"], "{config}, {key}");
                }
                let config = "rl_concurrency(1, '1 day')";
                let lease =
                    format!("SELECT ok FROM rl_acquire('slots', '{key}', config => {config})");
                assert_eq!([one(client, &lease), one(client, &lease)], ["true", "false"], "{key}");
                one(client, &format!("rl_block('blocked', '{key}', '1 hour')"));
                let config = "rl_token_bucket(10, '1 day')";
                let blocked =
                    format!("SELECT ok FROM rl_check('blocked', '{key}', config => {config})");
                assert_eq!(one(client, &blocked), "false", "{key}");
                let part = format!("rl_limit('part', '{key}', 0.123456789, config => {config})");
                one(client, &format!("SELECT ok FROM {part}"));
                client.batch_execute("RESET extra_float_digits").unwrap();
                let left = format!(
                    "SELECT remaining FROM {}",
                    part.replacen("limit", "check", 1).replace("0.123456789", "0")
                );
                assert_eq!(one(client, &left), "9.876543211", "{key}");
            }
        }
    }
}
