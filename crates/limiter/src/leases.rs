//! Leases of concurrency limits: taken as tokens are, and extended and released by their ids.

use ratelimit_core::kinds::{Concurrency, Lease};
use ratelimit_core::{Micros, State};

use crate::error::{LimiterError, Result};
use crate::ports::Host;
use crate::request::{Answer, Request, Take};
use crate::single;
use crate::stores::{self, Contents};
use crate::target::{FOREVER, Store, Target, check_count};

/// Returns the concurrency limit of a target.
///
/// # Errors
/// [`LimiterError::NotForKind`] (0A000): it is another kind.
fn concurrency<'a>(target: &'a Target, function: &'static str) -> Result<&'a Concurrency> {
    let kind = target.limit().kind();
    target.limit().concurrency().ok_or(LimiterError::NotForKind { function, kind })
}

/// Takes slots; the answer has their lease.
///
/// # Errors
/// As [`single::limit`]; 0A000: the limit is of another kind.
pub fn acquire<H: Host>(host: &H, request: &Request) -> Result<Answer> {
    let place = host.place(request.name, request.key)?;
    let target = Target::resolve(host, request).map_err(LimiterError::for_leases)?;
    // Where it has no limit there is no lease, and none is needed.
    if target.store != Store::Nowhere {
        concurrency(&target, "rl_acquire")?;
    }
    check_count(target.limit(), request.count)?;
    // Not made of the clock, which may stand or step back, nor of what is stored, which may be reset, pruned, rolled
    // back or lost: a holder from before could then release another's lease.
    let id = Lease::random_id(host.unguessable()?);
    let answer = single::take(host, &target, Take { lease: Some(id), ..request.take() }, None)?;
    host.count(place, request.counted(answer.verdict(), &answer));
    Ok(answer.or_let_pass())
}

/// What becomes of a lease.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It expires `ttl` from now on.
    Extended,
    /// Its slots are free.
    Released,
}

impl Fate {
    fn function(self) -> &'static str {
        match self {
            Fate::Extended => "rl_extend",
            Fate::Released => "rl_release",
        }
    }
}

/// Extends or releases a lease; `None` where it has expired or was released, otherwise when it expires now. Where the
/// key is exempt meanwhile its holder may go on indefinitely, and its slots are left to expire.
///
/// # Errors
/// As [`acquire`], but for the count.
pub fn settle<H: Host>(
    host: &H,
    request: &Request,
    id: Micros,
    fate: Fate,
) -> Result<Option<Micros>> {
    let target = Target::resolve_lease(host, request).map_err(LimiterError::for_leases)?;
    if target.store == Store::Nowhere {
        return Ok(matches!(fate, Fate::Extended).then_some(FOREVER));
    }
    let limit = concurrency(&target, fate.function())?;
    let decide = |contents: Contents, now: Micros| {
        let Contents::One(State::Leases(held)) = contents else { return Ok((None, None)) };
        let after = match fate {
            Fate::Extended => limit.extend(held, now, id),
            Fate::Released => limit.release(held, now, id),
        };
        let settled = after.as_ref().map(|after| {
            let lease = after.leases.iter().find(|lease| lease.id == id);
            lease.map_or(now, |lease| lease.expires_at)
        });
        Ok((settled, after.map(State::Leases)))
    };
    Ok(stores::change(host, &target, None, (0.0, false), decide)?.0)
}
