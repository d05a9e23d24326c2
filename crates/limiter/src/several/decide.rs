//! The decisions for the requests of one name and key.

use ratelimit_core::kinds::{Kind, first_pass};
use ratelimit_core::{Decision, Micros, Shards, State, decide};

use crate::error::Result;
use crate::holds::expiry::Expiries;
use crate::ports::{Host, Id, Interrupts};
use crate::request::Take;
use crate::target::{FOREVER, Target, after_block};

/// The requests for one (name, key).
pub(super) struct Group<'a> {
    pub(super) target: Target<'a>,
    /// Whether one of them has no config, and so uses the definition.
    pub(super) defined: bool,
    /// In the given order.
    pub(super) takes: Vec<Taken>,
    /// Where its windows begin, of a kind that has windows.
    pub(super) phase: Micros,
    /// Where the state is, of a limit in memory.
    pub(super) entry: Option<Id>,
}

/// What one of the requests takes.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    /// Its index.
    pub(super) n: usize,
    /// Tokens.
    pub(super) count: f64,
    pub(super) reserve: bool,
}

/// The decisions for a group at an instant.
pub(super) struct GroupVerdict<'a> {
    pub(super) now: Micros,
    pub(super) shards: Shards<'a>,
    /// Whether a refusal is one; otherwise this is a dry run.
    pub(super) enforced: bool,
    /// In the order of the group's takes.
    pub(super) decisions: Vec<Decision>,
    /// The state of the total before and after the takes that pass; `None`: unchanged.
    pub(super) change: Option<(State, State)>,
    /// As in [`Peeked`](crate::stores::Peeked).
    pub(super) holds_due: Option<Micros>,
}

impl Group<'_> {
    /// Whether its only take is denied by a limit in full, too.
    pub(super) fn never_passes(&self, now: Micros) -> bool {
        let [Taken { count, reserve, .. }] = self.takes[..] else { return false };
        Take { count, reserve, lease: None, at_least: None }.never_passes(&self.target, now)
    }

    /// Whether no hold that has expired can change its denials: by a block at whose end all pass, or for ever.
    pub(super) fn is_final(&self, verdict: &GroupVerdict) -> bool {
        match self.target.block(verdict.now) {
            Some(FOREVER) => true,
            Some(until) => {
                let wait = Some(until.minus(verdict.now));
                verdict.decisions.iter().all(|decision| decision.retry_after == wait)
            }
            None => !verdict.allows() && self.never_passes(verdict.now),
        }
    }

    /// Decides the takes at `now`, unless the key is blocked.
    pub(super) fn decide<'a>(
        &'a self,
        host: &impl Interrupts,
        shards: Shards<'a>,
        now: Micros,
    ) -> GroupVerdict<'a> {
        let Some(until) = self.target.block(now) else {
            return self.decide_unblocked(host, shards, now);
        };
        let then = self.decide_unblocked(host, shards.clone(), until).decisions;
        let denied = |then: Decision| Decision {
            ok: false,
            retry_after: after_block(until, now, |_| {
                let passes = then.ok || !self.target.definition.enforce;
                if passes { Some(Micros(0)) } else { then.retry_after }
            }),
            level: shards.level(now),
            state: None,
        };
        let decisions = then.into_iter().map(denied).collect();
        GroupVerdict {
            now,
            shards: shards.clone(),
            enforced: true,
            decisions,
            change: None,
            holds_due: None,
        }
    }

    /// Decides the takes at `now`, whether the key is blocked or not.
    fn decide_unblocked<'a>(
        &'a self,
        host: &impl Interrupts,
        shards: Shards<'a>,
        now: Micros,
    ) -> GroupVerdict<'a> {
        let (mut decisions, change) = self.run(shards.total(now), now);
        // Takes that exceed even a full limit together never pass.
        let ever = self.takes.len() == 1 || {
            let fresh = self.target.limit().initial_state(now, self.phase);
            self.run(fresh, now).0.iter().all(|decision| decision.ok)
        };
        if decisions.iter().any(|decision| !decision.ok) {
            let soonest = self.run(shards.upper_bound(now), now).0;
            let refused = soonest.iter().filter(|decision| !decision.ok);
            let least = refused
                .map(|decision| decision.retry_after)
                .max_by_key(|wait| wait.unwrap_or(Micros(i64::MAX)))
                .unwrap_or(Some(Micros(0)));
            let passes = |wait: Micros| {
                host.check_for_interrupts();
                let then = now.plus(wait);
                self.run(shards.total(then), then).0.iter().all(|decision| decision.ok)
            };
            // The first take of a window would meet a change of its rate, which a denial doesn't.
            let is_late = |least: Micros| {
                let has_windows = self.target.limit().kind() == Kind::FixedWindow;
                self.takes.len() > 1 && has_windows && least.0 > 0 && passes(Micros(least.0 - 1))
            };
            let retry_after = least.filter(|_| ever).and_then(|least| {
                first_pass(if is_late(least) { Micros(0) } else { least }, passes)
            });
            for decision in decisions.iter_mut().filter(|decision| !decision.ok) {
                decision.retry_after = retry_after;
            }
        }
        let enforced = self.target.definition.enforce;
        GroupVerdict { now, shards, enforced, decisions, change, holds_due: None }
    }

    /// Computes the wait of a refusal again, which knows what expires.
    #[cold]
    pub(super) fn wait_for_expiries<H: Host>(
        &self,
        host: &H,
        verdict: &mut GroupVerdict,
    ) -> Result<()> {
        let [state] = verdict.shards.states() else { return Ok(()) };
        let (target, now) = (&self.target, verdict.now);
        let limit = target.limit();
        let decide = |state: &State, at: Micros| {
            let shards = Shards::new(limit, vec![state.clone()]);
            let decisions = self.decide_unblocked(host, shards, at).decisions;
            let refused = decisions.iter().find(|decision| !decision.ok);
            let always = target.block(now).is_some() && !target.definition.enforce;
            (refused.is_none() || always, refused.and_then(|refused| refused.retry_after))
        };
        let refused = verdict.decisions.iter().find(|decision| !decision.ok);
        let denied = refused.and_then(|refused| refused.retry_after);
        let row = (state, verdict.holds_due);
        let wait = Expiries::wait(host, target, row, now, denied, decide)?;
        for decision in verdict.decisions.iter_mut().filter(|decision| !decision.ok) {
            decision.retry_after = wait;
        }
        Ok(())
    }

    /// Whether the takes pass at `now`, and the state after those that do; `None`: the same. As
    /// [`run`](Group::run), without a list of the decisions.
    pub(super) fn pass(&self, before: &State, now: Micros) -> (bool, Option<State>) {
        let (limit, mut after) = (self.target.limit(), None);
        let mut passes = self.target.block(now).is_none();
        for &Taken { count, reserve, .. } in &self.takes {
            let decision = decide(limit, after.as_ref().unwrap_or(before), now, count, reserve);
            passes &= decision.ok || !self.target.definition.enforce;
            after = decision.state.or(after);
        }
        (passes, after)
    }

    /// Decides the takes one after the other, each on the state that those before it left. Returns the
    /// decisions and the states before and after; `None` if unchanged.
    fn run(&self, before: State, now: Micros) -> (Vec<Decision>, Option<(State, State)>) {
        let limit = self.target.limit();
        let (mut after, mut changed) = (before.clone(), false);
        let decide = |&Taken { count, reserve, .. }: &Taken| {
            let decision = decide(limit, &after, now, count, reserve);
            if let Some(state) = &decision.state {
                after = state.clone();
                changed = true;
            }
            decision
        };
        let decisions = self.takes.iter().map(decide).collect();
        (decisions, changed.then_some((before, after)))
    }
}

impl GroupVerdict<'_> {
    pub(super) fn allows(&self) -> bool {
        self.decisions.iter().all(|decision| self.passes(decision))
    }

    /// Whether a request passes as far as this limit is asked.
    pub(super) fn passes(&self, decision: &Decision) -> bool {
        decision.ok || !self.enforced
    }

    /// Whether one of the requests is refused for ever.
    pub(super) fn is_never(&self) -> bool {
        let mut refusals = self.decisions.iter().filter(|decision| !self.passes(decision));
        refusals.any(|decision| decision.retry_after.is_none())
    }

    /// Takes nothing, as if the tokens were not there: the rows are locked by others, and can't be waited
    /// for.
    pub(super) fn give_up(&mut self) {
        self.change = None;
        for decision in &mut self.decisions {
            (decision.ok, decision.retry_after) = (false, Some(Micros(0)));
        }
    }
}
