//! Several limits in one call, all or nothing: one ask of the engine for each limit, made of the requests for it.

use std::collections::BTreeMap;

use ratelimit_core::ArgumentError;
use ratelimit_faults::Fault;

use crate::change::{Change, Decided};
use crate::engine::{self, Ask, Outcome};
use crate::error::{LimiterError, Result};
use crate::ports::{Host, Verdict};
use crate::request::{Answer, Request};
use crate::stores;
use crate::target::{Target, check_count};

/// The most requests of one call for limits in memory: their takes are written under locks that others wait for.
pub const MAX_IN_MEMORY: usize = 1_000;

/// The outcome of one request.
pub struct RequestOutcome {
    /// Whether it can never be admitted, and so never lets the whole call pass.
    pub never: bool,
    /// The answer. Its `ok` is the whole call's; its `limited_by` is about this limit alone, after the earlier requests
    /// for it.
    pub answer: Answer,
}

/// Takes tokens from all the limits, or from none.
///
/// # Errors
/// The errors of [`single::limit`](crate::single::limit), each with the number of its request.
pub fn limit<H: Host>(host: &H, requests: &[Request]) -> Result<Vec<RequestOutcome>> {
    let groups = Groups::new("rl_limit_all", host, requests)?;
    let outcomes = groups.outcomes(engine::run(host, &groups.asks)?);
    for (request, outcome) in requests.iter().zip(&outcomes) {
        let verdict = match (outcome.answer.limited_by, outcome.answer.ok) {
            (None, true) => Verdict::Allowed,
            (None, false) => continue, // it took nothing, because of another
            _ => Verdict::Denied { enforced: outcome.answer.enforced },
        };
        let counter = host.counter(request.name, request.key)?;
        host.count(counter, request.counted(verdict, &outcome.answer));
    }
    Ok(outcomes)
}

/// Answers as [`limit`] would, without locking or writing anything.
pub fn check<H: Host>(host: &H, requests: &[Request]) -> Result<Vec<RequestOutcome>> {
    let groups = Groups::new("rl_check_all", host, requests)?;
    Ok(groups.outcomes(engine::check(host, &groups.asks)?))
}

/// The requests, grouped by name and key.
struct Groups<'a> {
    /// An ask for each name and key, in the order in which rows are locked.
    asks: Vec<Ask<'a>>,
    /// For each ask the numbers of its requests, from 0.
    numbers: Vec<Vec<usize>>,
}

/// The requests for one name and key.
struct Group<'a> {
    ask: Ask<'a>,
    /// Whether a request has no config, and so uses the definition.
    defined: bool,
    numbers: Vec<usize>,
}

impl<'a> Groups<'a> {
    /// Groups the requests.
    ///
    /// # Errors
    /// [`LimiterError::InRequest`], with an error of [`resolve`]; 22023 also for more than [`MAX_IN_MEMORY`] requests of
    /// limits in memory.
    fn new<H: Host>(
        function: &'static str,
        host: &H,
        requests: &'a [Request],
    ) -> Result<Groups<'a>> {
        let mut groups: BTreeMap<(&[u8], &[u8]), Group> = BTreeMap::new();
        let mut in_memory = 0;
        for (n, request) in requests.iter().enumerate() {
            let group = groups.get_mut(&(request.name, request.key));
            let earlier = group.as_ref().map(|group| (&group.ask.target, group.defined));
            let target = resolve(function, host, request, earlier)
                .map_err(|error| LimiterError::in_request(n + 1, error))?;
            in_memory += usize::from(target.store.is_in_memory());
            match group {
                Some(group) => {
                    group.defined |= request.config.is_none();
                    group.numbers.push(n);
                    if let Change::Takes(takes) = &mut group.ask.change {
                        takes.push(request.tokens());
                    }
                }
                None => {
                    let entry = match target.store.is_in_memory() {
                        false => None,
                        true => Some(stores::memory::id(host.entries()?, &target, None)),
                    };
                    let ask = Ask { target, change: Change::Takes(vec![request.tokens()]), entry };
                    let group = Group { ask, defined: request.config.is_none(), numbers: vec![n] };
                    groups.insert((request.name, request.key), group);
                }
            }
        }
        if in_memory > MAX_IN_MEMORY {
            let value = format!("a list with {in_memory} requests for limits in memory");
            let allowed = format!("at most {MAX_IN_MEMORY} of them in one call");
            return Err(ArgumentError::invalid("requests", value, allowed).into());
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        if Fault::RequestsUnsorted.is_on() {
            groups.sort_by_key(|group| group.numbers[0]);
        }
        let (asks, numbers) = groups.into_iter().map(|group| (group.ask, group.numbers)).unzip();
        Ok(Groups { asks, numbers })
    }

    /// The outcomes in the order of the requests.
    fn outcomes(&self, outcome: Outcome) -> Vec<RequestOutcome> {
        let mut all = Vec::with_capacity(outcome.decided.len());
        let request_outcome = request_outcome(&outcome);
        for (numbers, decided) in self.numbers.iter().zip(&outcome.decided) {
            all.extend(numbers.iter().copied().zip(decided.answers().map(&request_outcome)));
        }
        all.sort_by_key(|&(n, _)| n);
        all.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

/// Resolves a request of a list. `earlier`: the target of an earlier request for its name and key, and whether one used
/// the definition.
///
/// # Errors
/// Those of [`Target::resolve`], [`Target::refuse_leases`] and [`check_count`]; 22023 also for another config than the
/// earlier request's.
pub(crate) fn resolve<'a, H: Host>(
    function: &'static str,
    host: &H,
    request: &Request<'a>,
    earlier: Option<(&Target<'a>, bool)>,
) -> Result<Target<'a>> {
    let target = match earlier {
        // Not resolved again: the definition may have changed meanwhile.
        Some((earlier, true)) if request.config.is_none() => earlier.clone(),
        _ => Target::resolve(host, request)?,
    };
    target.refuse_leases(function)?;
    check_count(target.limit(), request.count)?;
    if earlier.is_some_and(|(earlier, _)| earlier.definition != target.definition) {
        let value = "different from that of an earlier request for the same name and key";
        return Err(ArgumentError::invalid("config", value, "one config per name and key").into());
    }
    Ok(target)
}

/// Makes the outcome of a request from its answer.
pub(crate) fn request_outcome(outcome: &Outcome) -> impl Fn(&Answer) -> RequestOutcome {
    let ok = outcome.ok;
    let is_over = !ok && outcome.decided.iter().any(Decided::is_never);
    move |answer| {
        // In a refused call, a request that its limit allows has nothing to wait for. If a request never passes,
        // neither does the call.
        let waits = if ok { answer.ok } else { !answer.passes() && !is_over };
        let retry_after = answer.retry_after.filter(|_| waits);
        let answer_of_call = Answer { ok, retry_after, ..answer.clone() };
        RequestOutcome { never: answer.is_never(), answer: answer_of_call }
    }
}
