//! The invariants: the notes agree with the outcomes of the sessions' transactions and with the rows, no
//! limit was exceeded, and table and index are intact.

use postgres::GenericClient;

use crate::rules::Take;
use crate::work::{Limit, Outcome, Works};

/// Returns an error if anything is wrong. The limits were full at `from`.
pub fn check(
    client: &mut impl GenericClient,
    limits: &[Limit],
    works: &Works,
    from: i64,
) -> Result<(), String> {
    told(client, works)?;
    counted(client)?;
    allowed(client, limits, from)?;
    whole(client)
}

/// Committed transactions are there, whole; rolled back ones are not; and those of unknown outcome are
/// there whole or not at all.
fn told(client: &mut impl GenericClient, works: &Works) -> Result<(), String> {
    let sql = "SELECT work, sum(count) FROM takes GROUP BY work";
    let mut noted = std::collections::HashMap::new();
    for row in client.query(sql, &[]).unwrap() {
        noted.insert(row.get::<_, i64>(0), row.get::<_, f64>(1));
    }
    for (number, work) in works {
        let tokens = noted.remove(number).unwrap_or(0.0);
        let right = match work.outcome {
            Outcome::Committed => tokens == work.tokens,
            Outcome::RolledBack => tokens == 0.0,
            Outcome::Prepared | Outcome::Unknown => tokens == 0.0 || tokens == work.tokens,
        };
        if !right {
            return Err(format!("{number}: {work:?}, but there are notes of {tokens} tokens"));
        }
    }
    if let Some((number, tokens)) = noted.iter().next() {
        return Err(format!("{number}: {tokens} tokens noted that nobody took"));
    }
    Ok(())
}

/// Where nothing refills, rows and notes agree to the token; the rows read from the table, and through
/// the limiter, which uses the index.
fn counted(client: &mut impl GenericClient) -> Result<(), String> {
    let differ = |row: postgres::Row| {
        let (name, key): (String, String) = (row.get(0), row.get(1));
        let (taken, used): (Option<f64>, Option<f64>) = (row.get(2), row.get(3));
        format!("{taken:?} taken, {used:?} used of {name:.20}, {key:.20}")
    };
    client
        .batch_execute(
            "SET enable_indexscan = off; SET enable_bitmapscan = off;
             DROP TABLE IF EXISTS used;
             CREATE TEMP TABLE used AS
                 SELECT name, key, CASE WHEN bool_or(sliding) THEN sum(value)
                                        ELSE min(capacity) - sum(value) END AS used
                 FROM rateLimits JOIN limits USING (name)
                 WHERE exact AND kind <> '#' GROUP BY name, key;
             RESET enable_indexscan; RESET enable_bitmapscan",
        )
        .unwrap();
    let noted = "WITH t AS (
             SELECT name, key, sum(count) AS taken FROM takes JOIN limits USING (name) WHERE exact
             GROUP BY name, key)
         SELECT name, key, taken, used FROM t FULL JOIN used USING (name, key)
         WHERE taken IS DISTINCT FROM used";
    let answered = "SELECT name, key, capacity - remaining, used FROM used, rl_check(name, key)
         WHERE capacity - remaining IS DISTINCT FROM used";
    for (what, sql) in [("notes and rows", noted), ("rl_check and rows", answered)] {
        if let Some(row) = client.query(sql, &[]).unwrap().into_iter().next() {
            return Err(format!("{what} differ: {}", differ(row)));
        }
    }
    Ok(())
}

/// No key exceeded its limit.
fn allowed(client: &mut impl GenericClient, limits: &[Limit], from: i64) -> Result<(), String> {
    let sql = "SELECT key, array_agg((extract(epoch FROM at) * 1000000)::bigint ORDER BY at),
                   array_agg(count ORDER BY at) FROM takes WHERE name = $1 GROUP BY key";
    for Limit { name, rule, .. } in limits {
        for row in client.query(sql, &[name]).unwrap() {
            let (key, at, counts): (String, Vec<i64>, Vec<f64>) =
                (row.get(0), row.get(1), row.get(2));
            let takes: Vec<Take> =
                at.into_iter().zip(counts).map(|(at, count)| Take { at, count }).collect();
            rule.check(from, &takes)
                .map_err(|problem| format!("{key:.20} of {rule:?}: {problem}"))?;
        }
    }
    Ok(())
}

/// Returns whether amcheck is installed.
pub fn has_amcheck(client: &mut impl GenericClient) -> bool {
    let sql = "SELECT FROM pg_extension WHERE extname = 'amcheck'";
    client.query_opt(sql, &[]).unwrap().is_some()
}

/// Table, index and TOAST are intact, as far as amcheck sees.
pub fn whole(client: &mut impl GenericClient) -> Result<(), String> {
    if !has_amcheck(client) {
        return Ok(());
    }
    for sql in [
        "SELECT format('%s, %s: %s', blkno, offnum, msg)
         FROM verify_heapam('rateLimits', check_toast => true)",
        "SELECT bt_index_parent_check(indexrelid, heapallindexed => true, rootdescend => true)::text
         FROM pg_index, pg_class
         WHERE pg_class.oid = 'rateLimits'::regclass AND indrelid IN (pg_class.oid, reltoastrelid)",
    ] {
        match client.query(sql, &[]) {
            Ok(rows) => {
                let found = rows.iter().map(|row| row.get::<_, &str>(0)).find(|&found| !found.is_empty());
                if let Some(found) = found {
                    return Err(format!("amcheck of the table: {found}"));
                }
            }
            Err(error) => return Err(format!("amcheck of the indexes: {error:?}")),
        }
    }
    Ok(())
}

/// Takes an instant of the server.
pub fn now(client: &mut impl GenericClient) -> i64 {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    client.query_one(sql, &[]).unwrap().get(0)
}
