//! Blocks: keys that are denied until an instant, however many tokens are left. They are rows of `rl_blocks`, which
//! no change of a limit or of its state touches, and are cached with the definitions: a trigger on the table
//! invalidates every session's cache.

use pgrx::pg_sys::BuiltinOid::{INT8OID, TEXTOID, TIMESTAMPTZOID};
use ratelimit_core::Micros;
use ratelimit_limiter::ports::{Block, Key};

use crate::schema::catalog::{Catalog, TableLock};
use crate::schema::error::Result;
use crate::schema::spi::{self, Statement};
use ratelimit_pg::clock;
use ratelimit_pg::interrupts::check_for_interrupts;
use ratelimit_pg::values::text_datum;

/// Reads whether any key of a name is or was blocked, and the end of the key's block, past or future, or
/// [`Micros::FOREVER`].
pub fn read(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<(bool, Option<Micros>)> {
    const UNTIL: Statement = Statement::reads(
        "SELECT until FROM ONLY @schema@.rl_blocks WHERE name @=@ $1 AND key @=@ $2",
        &[TEXTOID, TEXTOID],
        &[TIMESTAMPTZOID],
    );
    const ANY_KEY: Statement = Statement::reads(
        "SELECT FROM ONLY @schema@.rl_blocks WHERE name @=@ $1 LIMIT 1",
        &[TEXTOID],
        &[],
    );
    spi::with_owner(catalog, catalog.rl_blocks, TableLock::Read, |spi| {
        let name = Some(text_datum(name));
        if spi.execute(&ANY_KEY, &[name])? == 0 {
            return Ok((false, None));
        }
        let found = spi.execute(&UNTIL, &[name, Some(text_datum(key))])? > 0;
        let until = found.then(|| spi.field(0, 1)).flatten();
        Ok((true, until.map(|until| clock::from_timestamptz(until.value() as i64))))
    })
}

/// Blocks a name and key until an instant or [`Micros::FOREVER`], and replaces an earlier block. The reason is
/// optional.
///
/// # Errors
/// 55000: the row could not be written.
pub fn put(
    catalog: &Catalog,
    name: &[u8],
    key: &[u8],
    until: Micros,
    reason: Option<&[u8]>,
) -> Result<()> {
    const PUT: Statement = Statement::writes(
        "INSERT INTO @schema@.rl_blocks (name, key, until, reason) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (name, key) DO UPDATE SET until = EXCLUDED.until, reason = EXCLUDED.reason",
        &[TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID],
        &[],
    );
    spi::with_owner(catalog, catalog.rl_blocks, TableLock::Write, |spi| {
        let until = match until {
            Micros::FOREVER => i64::MAX,
            until => clock::to_nearest_timestamptz(until),
        };
        let (name, key) = (Some(text_datum(name)), Some(text_datum(key)));
        let row = [name, key, Some(until.into()), reason.map(text_datum)];
        if spi.execute(&PUT, &row)? > 0 { Ok(()) } else { Err(spi.not_written()) }
    })
}

/// Ends the block of a name and key; false if the key was not blocked any more.
pub fn remove(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<bool> {
    let until = delete(catalog, name, key)?;
    Ok(until.is_some_and(|until| until > clock::now()))
}

/// Reads the names under which a key is or was blocked.
pub fn names(catalog: &Catalog, key: &[u8]) -> Result<Vec<Vec<u8>>> {
    const NAMES: Statement = Statement::reads(
        "SELECT name FROM ONLY @schema@.rl_blocks WHERE name @>@ '' AND key @=@ $1",
        &[TEXTOID],
        &[TEXTOID],
    );
    let key = [Some(text_datum(key))];
    super::names(catalog, catalog.rl_blocks, TableLock::Write, &NAMES, &key)
}

/// Deletes the block of a name and key, expired or not; returns its end, `None` if there was none.
pub fn delete(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<Option<Micros>> {
    const LOCK: Statement = Statement::locks(
        "SELECT until FROM ONLY @schema@.rl_blocks WHERE name @=@ $1 AND key @=@ $2 FOR UPDATE",
        &[TEXTOID, TEXTOID],
        &[TIMESTAMPTZOID],
    );
    const REMOVE: Statement = Statement::writes(
        "DELETE FROM ONLY @schema@.rl_blocks WHERE name @=@ $1 AND key @=@ $2",
        &[TEXTOID, TEXTOID],
        &[],
    );
    super::delete(catalog, catalog.rl_blocks, [&LOCK, &REMOVE], name, key, |spi| {
        let until = spi.field(0, 1).map_or(i64::MIN, |until| until.value() as i64);
        Ok(clock::from_timestamptz(until))
    })
}

// True for every name, and allows an index scan: with enable_seqscan off any other plan is so expensive that it
// would be compiled (JIT) at each call.

/// Deletes at most `max_rows` expired blocks; returns their number. Skips rows that others have locked.
pub fn prune(catalog: &Catalog, max_rows: i64) -> Result<i64> {
    const PRUNE: Statement = Statement::writes(
        "DELETE FROM ONLY @schema@.rl_blocks WHERE ctid @=@ ANY \
         (ARRAY(SELECT ctid FROM ONLY @schema@.rl_blocks WHERE name @>@ '' AND until @<=@ $1 \
                LIMIT $2 FOR UPDATE SKIP LOCKED))",
        &[TIMESTAMPTZOID, INT8OID],
        &[],
    );
    const PRUNE_ALL: Statement = Statement {
        sql: "DELETE FROM ONLY @schema@.rl_blocks WHERE name @>@ '' AND until @<=@ $1",
        parameters: &[TIMESTAMPTZOID],
        ..PRUNE
    };
    let table = catalog.rl_blocks;
    let now = Some(clock::to_nearest_timestamptz(clock::now()).into());
    spi::with_owner(catalog, table, TableLock::Write, |spi| {
        // Citus has no ctid, and can't skip locks on all copies.
        let deleted = match table.distributed {
            true => spi.execute(&PRUNE_ALL, &[now])?,
            false => spi.execute(&PRUNE, &[now, Some(max_rows.into())])?,
        };
        Ok(deleted as i64)
    })
}

/// Reads the blocks that have not expired.
pub fn in_force(
    catalog: &Catalog,
    name: Option<&[u8]>,
    key: Option<&[u8]>,
) -> Result<Vec<(Key, Block)>> {
    const IN_FORCE: Statement = Statement::reads(
        "SELECT name, key, until, reason FROM ONLY @schema@.rl_blocks \
         WHERE name @>@ '' AND until @>@ $1 \
         AND name @=@ COALESCE($2, name) AND key @=@ COALESCE($3, key)",
        &[TIMESTAMPTZOID, TEXTOID, TEXTOID],
        &[TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID],
    );
    let now = clock::to_nearest_timestamptz(clock::now());
    spi::with_owner(catalog, catalog.rl_blocks, TableLock::Read, |spi| {
        let count =
            spi.execute(&IN_FORCE, &[Some(now.into()), name.map(text_datum), key.map(text_datum)])?;
        let block = |row| {
            check_for_interrupts();
            let until = clock::from_timestamptz(spi.field(row, 3)?.value() as i64);
            let block = Block { until, reason: spi.text(row, 4) };
            Some(((spi.text(row, 1)?, spi.text(row, 2)?), block))
        };
        Ok((0..count).filter_map(block).collect())
    })
}
