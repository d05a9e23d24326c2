//! Counters of the answers to each name's calls, added to immediately and without a lock: a rollback takes
//! nothing back.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ratelimit_core::Micros;
use ratelimit_core::requests::MAX_NAME;

use crate::lock::{Guarded, ReadWriteLock};
use crate::sync::{AtomicI64, AtomicU64};

/// The number of names counted at the same time. Few under loom, which explores every order, and under Miri, which
/// checks all of them at each reference.
const TALLIES: usize = match (cfg!(test), cfg!(miri)) {
    (true, _) => 2,
    (false, true) => 64,
    (false, false) => 1024,
};
/// The number of tallies in which a name may be. If all are in use, the one with the fewest calls is replaced.
const WINDOW: usize = if cfg!(test) { 2 } else { 16 };
/// The number of stripes of a counter, for sessions on several processors.
const STRIPES: usize = if cfg!(test) { 2 } else { 8 };

/// The counters of a name, all atomic. The id changes under the lock of the names; counters are added to without it. So
/// a call counted while another name replaces this one may count for that name.
#[repr(C, align(128))]
struct Tally {
    /// A zero first word: free.
    id: [AtomicU64; 2],
    /// Epoch microseconds.
    since: AtomicI64,
    stripes: [Stripe; STRIPES],
}

#[repr(C, align(64))]
struct Stripe {
    /// Calls that were allowed, denied, and denied in a dry run.
    calls: [AtomicU64; 3],
    /// The tokens of those that were allowed: the bits of a float.
    tokens: AtomicU64,
}

/// The name of a tally.
#[derive(Clone, Copy)]
#[repr(C)]
struct Name<S> {
    scope: S,
    length: u32,
    text: [u8; MAX_NAME],
}

/// The answer to count.
#[derive(Clone, Copy)]
pub enum Count {
    /// Allowed; the tokens taken.
    Allowed(f64),
    /// Denied.
    Denied,
    /// Allowed in a dry run, and denied otherwise.
    DeniedInDryRun,
}

/// The counters of a name.
#[derive(Debug, PartialEq)]
pub struct Totals {
    /// In the caller's encoding.
    pub name: Vec<u8>,
    /// Calls that were allowed.
    pub allowed: u64,
    /// Calls that were denied.
    pub denied: u64,
    /// Calls that were allowed only because of a dry run.
    pub denied_in_dry_run: u64,
    /// The tokens of the calls that were allowed.
    pub tokens: f64,
    /// The time when counting began.
    pub since: Micros,
}

/// The tallies in shared memory; each name is in a scope `S`. All is atomic, or behind a lock. Zeroed memory is valid
/// if zeros are an `S`, and a lock that is free, or unused until it is initialized.
#[repr(C, align(128))]
pub struct SharedTallies<L, S> {
    /// The calls of replaced names.
    dropped: AtomicU64,
    names: Guarded<L, [Name<S>; TALLIES]>,
    tallies: [Tally; TALLIES],
}

impl Stripe {
    /// Sets the counters to zero; returns the number of calls counted before.
    fn clear(&self) -> u64 {
        self.tokens.store(0, Relaxed);
        self.calls.iter().map(|counter| counter.swap(0, Relaxed)).sum()
    }
}

impl Tally {
    fn is(&self, id: [u64; 2]) -> bool {
        self.id[0].load(Acquire) == id[0] && self.id[1].load(Relaxed) == id[1]
    }

    fn is_free(&self) -> bool {
        self.id[0].load(Relaxed) == 0
    }

    fn calls(&self) -> u64 {
        let counters = self.stripes.iter().flat_map(|stripe| &stripe.calls);
        counters.map(|counter| counter.load(Relaxed)).sum()
    }

    /// Starts counting at `now`; returns the number of calls counted before.
    fn begin(&self, now: Micros) -> u64 {
        self.since.store(now.0, Relaxed);
        self.stripes.iter().map(Stripe::clear).sum()
    }

    #[inline]
    fn add(&self, session: usize, count: Count) {
        let stripe = &self.stripes[session % STRIPES];
        let answer = match count {
            Count::Allowed(_) => 0,
            Count::Denied => 1,
            Count::DeniedInDryRun => 2,
        };
        stripe.calls[answer].fetch_add(1, Relaxed);
        if let Count::Allowed(tokens) = count {
            let plus = |bits| Some((f64::from_bits(bits) + tokens).to_bits());
            let _ = stripe.tokens.fetch_update(Relaxed, Relaxed, plus);
        }
    }

    fn totals(&self, name: &[u8]) -> Totals {
        let calls =
            |answer: usize| self.stripes.iter().map(|of| of.calls[answer].load(Relaxed)).sum();
        let tokens = |stripe: &Stripe| f64::from_bits(stripe.tokens.load(Relaxed));
        Totals {
            name: name.to_vec(),
            allowed: calls(0),
            denied: calls(1),
            denied_in_dry_run: calls(2),
            tokens: self.stripes.iter().map(tokens).sum(),
            since: Micros(self.since.load(Relaxed)),
        }
    }
}

impl<S: Copy> Name<S> {
    fn new(scope: S, name: &[u8]) -> Name<S> {
        let length = name.len().min(MAX_NAME);
        let mut text = [0; MAX_NAME];
        text[..length].copy_from_slice(&name[..length]);
        Name { scope, length: length as u32, text }
    }

    fn text(&self) -> &[u8] {
        &self.text[..MAX_NAME.min(self.length as usize)]
    }
}

impl<L: ReadWriteLock, S: Copy + PartialEq> SharedTallies<L, S> {
    /// The lock of the names, to be initialized.
    pub fn lock(&self) -> &L {
        self.names.lock()
    }

    /// Counts an answer for a name, by its hash; false if the name has no tally yet. `session` chooses the stripe.
    #[inline]
    pub fn count(&self, id: [u64; 2], session: usize, count: Count) -> bool {
        let found = self.window(id).map(|number| &self.tallies[number]).find(|tally| tally.is(id));
        found.inspect(|tally| tally.add(session, count)).is_some()
    }

    /// Counts the first call of a name. If no tally is free, the name replaces the one with the fewest calls.
    pub fn enter(
        &self,
        id: [u64; 2],
        scope: S,
        name: &[u8],
        session: usize,
        now: Micros,
        count: Count,
    ) {
        let mut names = self.names.write();
        if self.count(id, session, count) {
            return; // another session was first
        }
        let calls = |tally: &Tally| if tally.is_free() { 0 } else { tally.calls() + 1 };
        let Some(number) = self.window(id).min_by_key(|&number| calls(&self.tallies[number]))
        else {
            return;
        };
        let tally = &self.tallies[number];
        let was_free = tally.is_free();
        tally.id[0].store(0, Relaxed);
        let dropped = tally.begin(now);
        if !was_free {
            self.dropped.fetch_add(dropped, Relaxed);
        }
        names[number] = Name::new(scope, name);
        tally.id[1].store(id[1], Relaxed);
        tally.id[0].store(id[0], Release);
        tally.add(session, count);
    }

    /// The scopes in this window, with repeats; empty if a tally is free.
    pub fn crowd(&self, id: [u64; 2]) -> Vec<S> {
        let names = self.names.read();
        let is_open = |number| {
            let tally: &Tally = &self.tallies[number];
            tally.is_free() || tally.is(id)
        };
        if self.window(id).any(is_open) {
            return Vec::new();
        }
        self.window(id).map(|number| names[number].scope).collect()
    }

    /// Removes all names of a scope.
    pub fn free(&self, scope: S) {
        let names = self.names.write();
        let free = |(_, tally): (_, &Tally)| tally.id[0].store(0, Relaxed);
        self.named(&names[..]).filter(|(name, _)| name.scope == scope).for_each(free);
    }

    /// The scopes of the names, in no order, with repeats.
    pub fn scopes(&self) -> Vec<S> {
        let names = self.names.read();
        self.named(&names[..]).map(|(name, _)| name.scope).collect()
    }

    /// The number of calls not counted any more, because their names were replaced.
    pub fn dropped_calls(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Returns the counters of all names of a scope, in no order.
    pub fn totals(&self, scope: S) -> Vec<Totals> {
        let names = self.names.read();
        let of_it = self.named(&names[..]).filter(|(name, _)| name.scope == scope);
        of_it.map(|(name, tally)| tally.totals(name.text())).collect()
    }

    /// Sets the counters of a name, or of all names of a scope, to zero; returns the number of names.
    pub fn reset(&self, scope: S, name: Option<&[u8]>, now: Micros) -> u64 {
        let names = self.names.write();
        let of_it = self.named(&names[..]).filter(|(of, _)| of.scope == scope);
        let wanted = of_it.filter(|(of, _)| name.is_none_or(|name| name == of.text()));
        wanted.inspect(|(_, tally)| _ = tally.begin(now)).count() as u64
    }

    /// The tallies in use, with their names.
    fn named<'a>(&'a self, names: &'a [Name<S>]) -> impl Iterator<Item = (&'a Name<S>, &'a Tally)> {
        names.iter().zip(&self.tallies).filter(|(_, tally)| !tally.is_free())
    }

    /// The tallies in which a name may be.
    fn window(&self, id: [u64; 2]) -> impl Iterator<Item = usize> + use<L, S> {
        let first = (id[1] % TALLIES as u64) as usize;
        (first..first + WINDOW).map(|number| number % TALLIES)
    }
}

#[cfg(test)]
mod tests;
