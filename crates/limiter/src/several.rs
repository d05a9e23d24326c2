//! Several limits in one call, all or nothing: one ask of the engine for each limit, made of the requests for it.

use std::collections::BTreeMap;

use ratelimit_core::ArgumentError;
use ratelimit_faults::Fault;

use crate::change::{Ask, Change, Decided, Mode};
use crate::engine::{self, Outcome};
use crate::error::{LimiterError, Result};
use crate::ports::Host;
use crate::request::{Answer, Request};
use crate::stores;
use crate::target::Target;

/// The most requests of one call for limits in memory: their takes are written under locks that others wait for.
pub const MAX_IN_MEMORY: usize = 1_000;

/// Takes tokens from all the limits, or from none. `ok` of the answers is the whole call's; their `limited_by` is about
/// one limit alone, after the earlier requests for it.
///
/// # Errors
/// The errors of [`single::limit`](crate::single::limit), each with the number of its request.
pub fn limit<H: Host>(host: &H, requests: &[Request]) -> Result<Vec<Answer>> {
    let answers = run("rl_limit_all", host, requests, engine::run)?;
    for (request, answer) in requests.iter().zip(&answers) {
        if answer.limited_by.is_none() && !answer.ok {
            continue; // it took nothing, because of another
        }
        let counter = host.counter(request.name, request.key)?;
        host.count(counter, request.counted(answer));
    }
    Ok(answers)
}

/// Answers as [`limit`] would, without locking or writing anything.
pub fn check<H: Host>(host: &H, requests: &[Request]) -> Result<Vec<Answer>> {
    run("rl_check_all", host, requests, engine::check)
}

/// The requests of a list for one name and key.
pub(crate) struct Group<'a> {
    pub(crate) target: Target<'a>,
    /// Whether a request has no config, and so uses the definition.
    defined: bool,
    /// The numbers of the requests, from 0.
    pub(crate) numbers: Vec<usize>,
}

/// Groups requests by name and key, in the order in which rows are locked. A request that is wrong goes to `wrong` with
/// its number, from 0, and its error: one of [`Target::resolve`], [`Target::check_kind`] and
/// [`Take::check`](ratelimit_core::Take::check), or 22023 for another config than an earlier request's.
pub(crate) fn groups<'a, H: Host>(
    function: &'static str,
    host: &H,
    requests: &'a [Request],
    mut wrong: impl FnMut(usize, LimiterError) -> Result<()>,
) -> Result<Vec<Group<'a>>> {
    let mut groups: BTreeMap<(&[u8], &[u8]), Group> = BTreeMap::new();
    for (n, request) in requests.iter().enumerate() {
        host.check_for_interrupts();
        let earlier = groups.get_mut(&(request.name, request.key));
        let resolve = || {
            let target = match &earlier {
                // Not resolved again: the definition may have changed meanwhile.
                Some(earlier) if earlier.defined && request.config.is_none() => {
                    earlier.target.clone()
                }
                _ => Target::resolve(host, request)?,
            };
            target.check_kind(function, false)?;
            request.tokens().check(target.limit())?;
            let is_other = |own: &&mut Group| own.target.definition != target.definition;
            if earlier.as_ref().is_some_and(is_other) {
                let value = "different from that of an earlier request for the same name and key";
                let allowed = "one config per name and key";
                return Err(ArgumentError::invalid("config", value, allowed).into());
            }
            Ok(target)
        };
        match (resolve(), earlier) {
            (Err(error), _) => wrong(n, error)?,
            (Ok(_), Some(group)) => {
                group.defined |= request.config.is_none();
                group.numbers.push(n);
            }
            (Ok(target), None) => {
                let group = Group { target, defined: request.config.is_none(), numbers: vec![n] };
                groups.insert((request.name, request.key), group);
            }
        }
    }
    Ok(groups.into_values().collect())
}

/// Makes an ask for each name and key, and all of them by `make`; returns the answers in the order of the requests.
///
/// # Errors
/// [`LimiterError::InRequest`]; 22023 for more than [`MAX_IN_MEMORY`] requests of limits in memory.
fn run<H: Host>(
    function: &'static str,
    host: &H,
    requests: &[Request],
    make: impl FnOnce(&H, &[Ask]) -> Result<Outcome>,
) -> Result<Vec<Answer>> {
    let wrong = |n, error| Err(LimiterError::in_request(n + 1, error));
    let mut groups = groups(function, host, requests, wrong)?;
    let in_memory = groups.iter().filter(|group| group.target.store.is_in_memory());
    let in_memory: usize = in_memory.map(|group| group.numbers.len()).sum();
    if in_memory > MAX_IN_MEMORY {
        let value = format!("a list with {in_memory} requests for limits in memory");
        let allowed = format!("at most {MAX_IN_MEMORY} of them in one call");
        return Err(ArgumentError::invalid("requests", value, allowed).into());
    }
    if Fault::RequestsUnsorted.is_on() {
        groups.sort_by_key(|group| group.numbers[0]);
    }
    let ask = |Group { target, numbers, .. }| {
        let entry = match target.store.is_in_memory() {
            false => None,
            true => Some(stores::memory::id(host.entries()?, &target, None)),
        };
        let takes = numbers.iter().map(|&n: &usize| requests[n].tokens()).collect();
        Ok((numbers, Ask { target, change: Change::Takes(takes, Mode::Together), entry }))
    };
    let asks = groups.into_iter().map(ask).collect::<Result<_>>()?;
    let (numbers, asks): (Vec<Vec<usize>>, Vec<Ask>) = asks;
    let outcome = make(host, &asks)?;
    let answers = outcome.decided.iter().flat_map(Decided::answers).map(answer_of_call(&outcome));
    Ok(in_order(numbers.iter().flatten(), answers))
}

/// Puts the results of requests into the order of their numbers.
pub(crate) fn in_order<'n, T>(
    numbers: impl IntoIterator<Item = &'n usize>,
    results: impl IntoIterator<Item = T>,
) -> Vec<T> {
    let mut all: Vec<(&usize, T)> = numbers.into_iter().zip(results).collect();
    all.sort_by_key(|&(n, _)| n);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Makes the answer to a request in the call from that of its limit.
pub(crate) fn answer_of_call(outcome: &Outcome) -> impl Fn(&Answer) -> Answer {
    let ok = outcome.ok;
    let is_over = !ok && outcome.decided.iter().flat_map(Decided::answers).any(Answer::is_never);
    move |answer| {
        // In a refused call, a request that its limit allows has nothing to wait for. If a request never passes,
        // neither does the call.
        let waits = if ok { answer.ok } else { !answer.passes() && !is_over };
        let retry_after = answer.retry_after.filter(|_| waits);
        Answer { ok, retry_after, never: answer.is_never(), ..answer.clone() }
    }
}
