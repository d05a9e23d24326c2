//! Leases of concurrency limits: taken as tokens are, and extended and released by their ids.

use ratelimit_core::Micros;
use ratelimit_core::kinds::Lease;
use ratelimit_faults::Fault;

use crate::change::Change;
use crate::engine::Ask;
use crate::error::{LimiterError, Result};
use crate::ports::Host;
use crate::request::{Answer, Request, Take};
use crate::single;
use crate::target::{FOREVER, Store, Target, check_count};

/// Refuses a limit of another kind.
///
/// # Errors
/// [`LimiterError::NotForKind`] (0A000).
fn refuse_others(target: &Target, function: &'static str) -> Result<()> {
    match target.limit().concurrency() {
        Some(_) => Ok(()),
        None => Err(LimiterError::NotForKind { function, kind: target.limit().kind() }),
    }
}

/// Takes slots; the answer has their lease.
///
/// # Errors
/// 0A000: the limit is of another kind.
pub fn acquire<H: Host>(host: &H, request: &Request) -> Result<Answer> {
    let counter = host.counter(request.name, request.key)?;
    let target = Target::resolve(host, request).map_err(LimiterError::for_leases)?;
    // A key without a limit has no lease, and needs none.
    if target.store != Store::Nowhere {
        refuse_others(&target, "rl_acquire")?;
    }
    check_count(target.limit(), request.count)?;
    // Not made from the clock, which may stand or step back, nor from stored data, which may be reset, pruned, rolled
    // back or lost: an earlier lease with this id would then release another's slots.
    let id = match Fault::IdOfClock.is_on() {
        true => host.now(),
        false => Lease::random_id(host.unguessable()?),
    };
    let take = Take { lease: Some(id), ..request.tokens() };
    let answer = single::apply(host, &Ask { target, change: Change::Take(take), entry: None })?;
    host.count(counter, request.counted(answer.verdict(), &answer));
    Ok(answer.or_let_pass())
}

/// Extends a lease; returns its new expiry, or `None` if it has expired or was released. If the key has become exempt,
/// its user may go on indefinitely.
pub fn extend<H: Host>(host: &H, request: &Request, id: Micros) -> Result<Option<Micros>> {
    let answer = change_lease(host, request, "rl_extend", Change::Extend(id))?;
    Ok(answer.map_or(Some(FOREVER), |answer| answer.lease.map(|lease| lease.expires_at)))
}

/// Releases a lease; false if it has expired or was released. If the key has become exempt, its slots are left to
/// expire.
pub fn release<H: Host>(host: &H, request: &Request, id: Micros) -> Result<bool> {
    let answer = change_lease(host, request, "rl_release", Change::Release(id))?;
    Ok(answer.is_some_and(|answer| answer.ok))
}

/// Extends or releases a lease; `None`: the key is exempt.
fn change_lease<H: Host>(
    host: &H,
    request: &Request,
    function: &'static str,
    change: Change<'static>,
) -> Result<Option<Answer>> {
    let target = Target::resolve_lease(host, request).map_err(LimiterError::for_leases)?;
    if target.store == Store::Nowhere {
        return Ok(None);
    }
    refuse_others(&target, function)?;
    single::apply(host, &Ask { target, change, entry: None }).map(Some)
}
