//! Acquires, extends and releases leases of concurrency limits.

use ratelimit_core::kinds::Lease as Given;
use ratelimit_core::lease::{self, LeaseName};
use ratelimit_core::{ArgumentError, Micros};
use ratelimit_limiter::request::Request;
use ratelimit_limiter::single;

use super::answers::{Outcome, denied, time};
use super::arguments::{LimitKey, LimitName};
use crate::declaration::sql_function;
use crate::host::{CallConfig, Session, Use, inline};
use crate::schema::error::Result;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::{Checked, Text, Timestamptz, sql_row};

sql_row! {
    /// A lease, or when to try again.
    pub struct Acquired as "@extschema@.rl_acquire_result" {
        ok: bool,
        lease: Option<Text>,
        expires_at: Option<Timestamptz>,
        ..outcome: Outcome,
    }
}

/// A lease that `rl_acquire` returned. NULL for an exempt key and in a dry run: nothing to extend or release.
pub struct GivenLease(LeaseName);

impl<'a> Checked<'a> for GivenLease {
    type Base = &'a [u8];

    fn check(text: &'a [u8], argument: &'static str) -> Result<GivenLease, ArgumentError> {
        // The value is not shown, because it contains a key.
        let allowed = "a lease that rl_acquire() returned";
        let malformed = || ArgumentError::invalid(argument, "malformed", allowed);
        lease::parse(text).map(GivenLease).ok_or_else(malformed)
    }
}

impl GivenLease {
    /// The request for the slots of the lease.
    fn request<'a>(&'a self, config: &'a Option<CallConfig>) -> Request<'a> {
        let LeaseName { name, key, .. } = &self.0;
        Request { name, key, count: 0.0, reserve: false, config: inline(config) }
    }
}

sql_function! {
    /// As `rl_limit`; 0A000 for the other kinds.
    #[effect(Takes)]
    fn rl_acquire(
        call: &Call,
        name: LimitName,
        key: LimitKey,
        count: f64,
        throws: bool,
        config: Option<CallConfig>,
    ) -> Acquired {
        let request = Request { name: name.0, key: key.0, count, reserve: false, config: inline(&config) };
        let answer = Session::run(Use::Takes, call.function(), |host| single::acquire(host, &request))?;
        if throws && !answer.ok {
            return Err(denied(&request, &answer, None));
        }
        let text = |given: Given| lease::to_text(name.0, key.0, given.id);
        let lease = answer.lease.map(|given| Text::new(text(given).as_bytes()));
        let expires_at = answer.lease.and_then(|given| time(given.expires_at));
        Ok(Acquired { ok: answer.ok, lease, expires_at, outcome: (&answer).into() })
    }
}

sql_function! {
    /// As `rl_acquire`, without PT429.
    #[effect(Takes)]
    fn rl_extend(
        call: &Call,
        lease: Option<GivenLease>,
        config: Option<CallConfig>,
    ) -> Option<Timestamptz> {
        let Some(lease) = lease else { return Ok(time(Micros::FOREVER)) };
        let request = lease.request(&config);
        let extend = |host: &Session| single::extend(host, &request, lease.0.id);
        Ok(Session::run(Use::Takes, call.function(), extend)?.and_then(time))
    }
}

sql_function! {
    /// As `rl_acquire`, without PT429.
    #[effect(Takes)]
    fn rl_release(call: &Call, lease: Option<GivenLease>, config: Option<CallConfig>) -> bool {
        let Some(lease) = lease else { return Ok(true) };
        let request = lease.request(&config);
        Session::run(Use::Takes, call.function(), |host| single::release(host, &request, lease.0.id))
    }
}
