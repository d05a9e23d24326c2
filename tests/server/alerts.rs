//! The view of docs/monitoring.md that has a row for each alert, over counters of the test's own.

use std::path::Path;

use postgres::Client;

use crate::database::Database;
use crate::documents::pages::{read, split};

/// Stands for the extension's two functions, which the view finds first on the search_path.
const COUNTERS: &str = "CREATE SCHEMA fake;
    SET search_path = fake, public;
    CREATE TABLE stats (name text, allowed bigint, denied bigint, since timestamptz);
    CREATE TABLE memory (dropped_live bigint, since timestamptz, unsaved_keys bigint, unsaved_since timestamptz,
        save_error text);
    CREATE FUNCTION rl_stats() RETURNS SETOF stats LANGUAGE sql STABLE AS 'TABLE fake.stats';
    CREATE FUNCTION rl_memory() RETURNS SETOF memory LANGUAGE sql STABLE AS 'TABLE fake.memory';";

/// Samples the counters every 5 minutes from 70 minutes ago until now. A limit has denied `slow` calls in each of these
/// intervals, and in the last three `fast` ones; it has allowed `allowed` ones in each.
const SAMPLED: &str = "
    CREATE FUNCTION calls(the_name text, slow bigint, fast bigint, allowed bigint, minutes bigint DEFAULT 70)
    RETURNS void LANGUAGE sql AS $$
    INSERT INTO limit_samples (at, name, since, allowed, denied)
        SELECT now() - ago * interval '5 minutes', the_name, now() - interval '1 day',
            1000 + allowed * (14 - ago), 1000 + slow * least(14 - ago, 11) + fast * greatest(3 - ago, 0)
        FROM generate_series(0, minutes / 5) AS ago;
    INSERT INTO stats SELECT name, limit_samples.allowed, denied, since
        FROM limit_samples WHERE at = now() AND name = the_name
    $$;
    CREATE FUNCTION dropped(former bigint, latter bigint, since timestamptz DEFAULT now() - interval '1 day')
    RETURNS void LANGUAGE sql AS $$
    INSERT INTO limit_samples (at, since, dropped) VALUES
        (now() - interval '16 minutes', now() - interval '1 day', former), (now(), since, latter);
    INSERT INTO memory VALUES (latter, since)
    $$;
    CREATE FUNCTION holds(the_name text, how_many bigint, ago interval DEFAULT '1 minute', charge boolean DEFAULT false)
    RETURNS void LANGUAGE sql AS $$
    INSERT INTO rl_holds (id, name, count, taken_at, expires_at, charge)
        SELECT n || ago::text, the_name, 1, now() - interval '2 days', now() - ago, charge
        FROM generate_series(1, how_many) AS n
    $$;";

/// Returns the alerts, as "alert name detail", after SQL that fills the counters, all at one time and rolled back.
fn alerts(client: &mut Client, counters: &str) -> Vec<String> {
    let mut transaction = client.transaction().unwrap();
    transaction.batch_execute("SET LOCAL timezone = 'UTC'").unwrap();
    transaction.batch_execute(counters).unwrap();
    let query = "SELECT concat_ws(' ', alert, name, regexp_replace(detail, 'since [^,]*', 'since …')) AS row
        FROM limit_alerts ORDER BY 1";
    transaction.query(query, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
#[ignore = "needs a server: make test"]
fn the_view_has_a_row_for_each_alert_and_none_otherwise() {
    let database = Database::new("alerts");
    let mut client = database.connect();
    client.batch_execute(COUNTERS).unwrap();
    let page = read(Path::new("docs/monitoring.md"));
    let (blocks, _) = split(&page.text);
    let made = ["CREATE TABLE limit_samples", "CREATE VIEW limit_alerts"];
    for block in blocks.iter().filter(|block| made.iter().any(|what| block.code.contains(what))) {
        client.batch_execute(&block.code).unwrap();
    }
    client.batch_execute(SAMPLED).unwrap();

    let any = "SELECT calls('any', 0, 0, 10);";
    let cases: [(&str, &[&str]); 25] = [
        ("", &[]),
        // 20 and 21 % of 15 minutes' calls; 99 denials; 95 and 96 %.
        ("SELECT calls('a', 50, 50, 200)", &[]),
        (
            "SELECT calls('a', 50, 50, 180)",
            &["RatelimitDenials a 150 of the last 690 calls were denied"],
        ),
        ("SELECT calls('a', 33, 33, 33)", &[]),
        (
            "SELECT calls('a', 95, 95, 5)",
            &["RatelimitDenials a 285 of the last 300 calls were denied"],
        ),
        (
            "SELECT calls('a', 96, 96, 4)",
            &["RatelimitDeniesNearlyAlways a 288 of the last 300 calls were denied"],
        ),
        // 18 and 21 denials of as many calls, after many that were allowed, or denied.
        ("SELECT calls('a', 6, 6, 0)", &[]),
        (
            "SELECT calls('a', 7, 7, 0)",
            &["RatelimitDeniesNearlyAlways a 21 of the last 21 calls were denied"],
        ),
        ("SELECT calls('a', 400, 0, 0)", &[]),
        // A jump: to five times as many, to six times; from none; to less than 100; while all are denied.
        ("SELECT calls('a', 10, 50, 1000)", &[]),
        (
            "SELECT calls('a', 10, 60, 1000)",
            &["RatelimitDenialsJump a 12.0 calls a minute are denied, before: 2.0"],
        ),
        (
            "SELECT calls('a', 0, 40, 1000)",
            &["RatelimitDenialsJump a 8.0 calls a minute are denied, before: 0.0"],
        ),
        ("SELECT calls('a', 0, 33, 1000)", &[]),
        (
            "SELECT calls('a', 1, 50, 0), calls('b', 0, 0, 5)",
            &[
                "RatelimitDenialsJump a 10.0 calls a minute are denied, before: 0.2",
                "RatelimitDeniesNearlyAlways a 150 of the last 150 calls were denied",
            ],
        ),
        // Sampled for 50 minutes; counted since a restart only.
        ("SELECT calls('a', 0, 40, 1000, minutes => 50)", &[]),
        (
            "SELECT calls('a', 0, 100, 0); UPDATE stats SET since = now() - interval '10 minutes'",
            &[],
        ),
        // Unsaved.
        ("INSERT INTO memory VALUES (0, now(), 3, now() - interval '5 minutes')", &[]),
        (
            "INSERT INTO memory VALUES (0, now(), 3, now() - interval '301 seconds', '55P03')",
            &["RatelimitUnsaved 3 keys, since …, error: 55P03"],
        ),
        // Dropped; and before a restart.
        ("SELECT dropped(7, 7)", &[]),
        ("SELECT dropped(7, 9)", &["RatelimitKeysDropped 2 keys since …"]),
        ("SELECT dropped(7, 9, since => now() - interval '1 minute')", &[]),
        // 19 and 20 holds that expired; 20 of which most are open, are charged, or expired long ago.
        ("SELECT holds('h', 19)", &[]),
        ("SELECT holds('h', 20)", &["RatelimitHoldsExpired h 20 holds expired in the last day"]),
        ("SELECT holds('h', 20, ago => '-1 minute'), holds('h', 20, ago => '25 hours')", &[]),
        ("SELECT holds('h', 20, charge => true)", &[]),
    ];
    for (counters, expected) in cases {
        assert_eq!(alerts(&mut client, &format!("{any} {counters}")), expected, "{counters}");
    }
    let stale = format!("{any} UPDATE limit_samples SET at = at - interval '21 minutes'");
    let no_samples = ["RatelimitNoSamples limit_samples has no row of the last 20 minutes"];
    assert_eq!(alerts(&mut client, &stale), no_samples);
}
