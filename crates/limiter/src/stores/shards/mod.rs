//! A limit spread over several rows, so that as many transactions can hold it at once.
//!
//! A limit of n shards has rows n * 10000 + 1 to n * 10000 + n, all inserted at once, and row 0, which holds no tokens.
//! A call with another number of shards thus finds none of its rows, and must lock row 0, then all others, to reshard
//! them: no token is counted twice.
//!
//! Rows are waited for in ascending order, or singly while no other is locked; locks that turn out
//! useless are released first. A transaction that holds a row from an earlier call, also under another
//! number of shards, waits for no other row of that limit: it reshards if it gets all rows at once.

mod choose;
pub(crate) mod contents;
mod locked;

use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use crate::change::{Ask, Decided};
use crate::error::Result;
use crate::ports::{Host, Rows, Stored};

pub(crate) use choose::apply_to_one_shard;
pub(crate) use contents::lock_all;
use contents::{shard_limit_of, shards_of};
pub(crate) use locked::{Contents, Extent, lock_few};

/// The tokens by which a shard can change in the direction of `amount`: those available, or
/// the room up to its capacity.
fn room(shards: &Shards, shard: usize, now: Micros, amount: f64) -> f64 {
    let available = shards.available(shard, now);
    if amount < 0.0 { available } else { shards.shard_limit().capacity() - available }
}

/// Gives a credit back by one of the transaction's own rows, under the number of shards of that row: others have locked
/// rows that this transaction can't wait for. `None`: no row has room for it.
pub(crate) fn credit_own<H: Host>(
    host: &H,
    rows: &dyn Rows,
    credit: &Ask,
) -> Result<Option<Decided>> {
    let target = &credit.target;
    for number in host.own_rows(target.name, target.key) {
        let id = target.row(number);
        let Some(row) = rows.lock(id, true)? else { continue };
        if row.stored.is_marker() {
            continue;
        }
        let now = host.now();
        let limit = shard_limit_of(target.limit(), shards_of(number));
        let state = target.state(&limit, Some(&row.stored), now)?.into_owned();
        let own = Shards::new(&limit, vec![state]);
        if own.available(0, now) + credit.change.tokens() > limit.capacity() {
            continue;
        }
        let mut decided = credit.decide(host, &own, None, now)?;
        if let Some(after) = decided.after.take_if(|_| !Fault::CreditDropped.is_on()) {
            rows.update(id, row.tuple, &row.with(Stored::State(after)))?;
        }
        let (found, now) = contents::peek(host, rows, target)?;
        decided.set_level(found.shards.level(now));
        return Ok(Some(decided));
    }
    Ok(None)
}
