//! The requests of a list for one name and key: takes decided one after the other, all or none, or each on its own.

use ratelimit_core::kinds::{Kind, first_pass};
use ratelimit_core::{Decision, Limit, Micros, Shards, State, decide as decide_one};

use super::{Decided, Mode};
use crate::ports::Host;
use crate::request::{Answer, Take};
use crate::target::Target;

/// Decides the takes at `now`, each on the state that those before it left. Together, all that are denied have one
/// wait.
pub(super) fn decide(
    host: &impl Host,
    target: &Target,
    takes: &[Take],
    mode: Mode,
    shards: &Shards,
    now: Micros,
) -> Decided {
    let limit = target.limit();
    let before = shards.total(now);
    let mut after: Option<State> = None;
    let mut answers = takes.iter().map(|take| {
        let decision = on_state(take, limit, after.as_ref().unwrap_or(&before), now);
        let answer = Answer::new(&target.definition, &decision, now);
        after = decision.state.or(after.take());
        answer
    });
    let answer = answers.next().unwrap_or_else(|| {
        let level = limit.level(&before, now);
        let nothing = Decision { ok: true, retry_after: None, level, state: None };
        Answer::new(&target.definition, &nothing, now)
    });
    let later = answers.collect();
    let mut decided = Decided { later, ..Decided::of(answer, after) };
    if mode == Mode::Together && decided.answers().any(|answer| !answer.ok) {
        let retry_after = retry_after(host, target, takes, shards, now);
        for answer in decided.answers_mut().filter(|answer| !answer.ok) {
            answer.retry_after = retry_after;
        }
    }
    decided
}

/// The wait from `now` until all pass; `None`: they never do.
fn retry_after(
    host: &impl Host,
    target: &Target,
    takes: &[Take],
    shards: &Shards,
    now: Micros,
) -> Option<Micros> {
    let limit = target.limit();
    // Takes that exceed even a full limit together never pass.
    let fresh = || limit.initial_state(now, target.phase());
    if takes.len() > 1 && !pass(limit, takes, &fresh(), now).0 {
        return None;
    }
    let (mut state, mut least) = (shards.upper_bound(now), Micros(0));
    for take in takes {
        let decision = on_state(take, limit, &state, now);
        if !decision.ok {
            least = least.max(decision.retry_after?);
        }
        state = decision.state.unwrap_or(state);
    }
    let passes = |wait: Micros| {
        host.check_for_interrupts();
        let then = now.plus(wait);
        pass(limit, takes, &shards.total(then), then).0
    };
    // The first take of a window would adopt a changed rate; a denial doesn't.
    let has_windows = limit.kind() == Kind::FixedWindow;
    let is_late = takes.len() > 1 && has_windows && least.0 > 0 && passes(Micros(least.0 - 1));
    first_pass(if is_late { Micros(0) } else { least }, passes)
}

/// Whether all pass on a state at `now`, and the state after the ones that do; `None`: unchanged.
pub(crate) fn pass(
    limit: &Limit,
    takes: &[Take],
    before: &State,
    now: Micros,
) -> (bool, Option<State>) {
    let (mut pass, mut after) = (true, None);
    for take in takes {
        let decision = on_state(take, limit, after.as_ref().unwrap_or(before), now);
        pass &= decision.ok;
        after = decision.state.or(after);
    }
    (pass, after)
}

fn on_state(take: &Take, limit: &Limit, state: &State, now: Micros) -> Decision {
    decide_one(limit, state, now, take.count, take.reserve)
}
