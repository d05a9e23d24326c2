//! What calls of each name were answered, whatever the store of the limit: counted at once, and kept
//! whatever becomes of the transaction.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU64};

use pgrx::pg_sys;
use ratelimit_core::Micros;
use ratelimit_core::requests::MAX_NAME;
use ratelimit_limiter::ports::Id;

use super::id::Scope;
use crate::pg::clock;
use crate::pg::shared_memory::Lock;

/// How many names are counted at once.
const TALLIES: usize = 1024;
/// In how many of them a name may be. Where all are taken, what was dropped is freed, or the one with the fewest calls
/// makes room.
const WINDOW: usize = 16;
/// Into how many each counter is divided, for sessions on several processors.
const STRIPES: usize = 8;

/// The counters of a name. Its identity is changed under the lock of all tallies, and counters are
/// added to without: what is added while another name takes the place may count for that.
#[repr(C, align(128))]
struct Tally {
    /// Zero: free.
    id: [AtomicU64; 2],
    /// Epoch microseconds.
    since: AtomicI64,
    scope: Scope,
    length: u32,
    name: [u8; MAX_NAME],
    stripes: [Stripe; STRIPES],
}

#[derive(Default)]
#[repr(C, align(64))]
struct Stripe {
    allowed: AtomicU64,
    denied: AtomicU64,
    denied_in_dry_run: AtomicU64,
    /// The bits of a float.
    tokens: AtomicU64,
}

/// What a call adds.
#[derive(Clone, Copy)]
pub enum Count {
    /// Passed, and took so many tokens.
    Allowed(f64),
    Denied,
    /// Passed in a dry run, and would have been denied.
    DeniedInDryRun,
}

/// The counters of a name.
pub struct Totals {
    /// In the server's encoding.
    pub name: Vec<u8>,
    pub allowed: u64,
    pub denied: u64,
    pub denied_in_dry_run: u64,
    /// Taken by the calls that were allowed.
    pub tokens: f64,
    /// From when on they count.
    pub since: Micros,
}

impl Stripe {
    fn clear(&self) {
        for counter in [&self.allowed, &self.denied, &self.denied_in_dry_run, &self.tokens] {
            counter.store(0, Relaxed);
        }
    }
}

impl Tally {
    fn is(&self, id: Id) -> bool {
        self.id[0].load(Acquire) == id.name[0] && self.id[1].load(Relaxed) == id.name[1]
    }

    fn is_free(&self) -> bool {
        self.id[0].load(Relaxed) == 0
    }

    fn is_of(&self, scope: Scope) -> bool {
        !self.is_free() && self.scope == scope
    }

    fn calls(&self) -> u64 {
        let of = |stripe: &Stripe| {
            stripe.allowed.load(Relaxed)
                + stripe.denied.load(Relaxed)
                + stripe.denied_in_dry_run.load(Relaxed)
        };
        self.stripes.iter().map(of).sum()
    }

    fn name(&self) -> &[u8] {
        &self.name[..MAX_NAME.min(self.length as usize)]
    }

    fn begin(&self) {
        self.stripes.iter().for_each(Stripe::clear);
        self.since.store(clock::system_time().0, Relaxed);
    }
}

/// The tallies, in shared memory: a lock, and after it one for each of some names.
pub struct Tallies(*mut Shared);

#[repr(C, align(128))]
struct Shared {
    lock: Lock,
    /// The calls of names that made room for others.
    dropped: AtomicU64,
    tallies: [Tally; TALLIES],
}

impl Tallies {
    /// How many bytes they take.
    pub const SIZE: usize = size_of::<Shared>();

    /// Looks at tallies.
    ///
    /// # Safety
    /// There are so many bytes at the address, for as long as the process; all zeros, and soon to be
    /// [initialized](Tallies::init), or what other sessions have made of that.
    pub unsafe fn new(address: *mut u8) -> Tallies {
        Tallies(address.cast())
    }

    /// Initializes the lock, before anybody else sees it.
    pub fn init(&self, lock_group: i32) {
        self.lock().init(lock_group);
    }

    /// Counts the answer of a call.
    #[inline]
    pub fn count(&self, id: Id, scope: Scope, name: &[u8], count: Count) {
        match self.window(id).find(|tally| tally.is(id)) {
            Some(tally) => tally.add(count),
            None => self.enter(id, scope, name, count),
        }
    }

    /// Counts the first call of a name.
    #[cold]
    fn enter(&self, id: Id, scope: Scope, name: &[u8], count: Count) {
        self.make_room(id, scope);
        let _held = self.lock().exclusive();
        if let Some(tally) = self.window(id).find(|tally| tally.is(id)) {
            return tally.add(count); // another session's was the first
        }
        let fewest = self
            .window(id)
            .min_by_key(|tally| if tally.is_free() { 0 } else { tally.calls().max(1) });
        let Some(tally) = fewest else { return };
        if !tally.is_free() {
            self.dropped().fetch_add(tally.calls(), Relaxed);
        }
        tally.id[0].store(0, Relaxed);
        tally.begin();
        // SAFETY: under the lock nobody else reads or writes these.
        unsafe {
            let tally = std::ptr::from_ref(tally).cast_mut();
            (*tally).scope = scope;
            let length = name.len().min(MAX_NAME);
            (&raw mut (*tally).name).cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), length);
            (*tally).length = length as u32;
        }
        tally.id[1].store(id.name[1], Relaxed);
        tally.id[0].store(id.name[0], Release);
        tally.add(count);
    }

    /// Frees the names of dropped databases and extensions where a name has no room.
    fn make_room(&self, id: Id, own: Scope) {
        let held = self.lock().shared();
        let is_full = !self.window(id).any(|tally| tally.is_free() || tally.is(id));
        let mut others: Vec<Scope> =
            self.window(id).filter(|_| is_full).map(|tally| tally.scope).collect();
        drop(held);
        others.sort_unstable();
        others.dedup();
        for dropped in others.into_iter().filter(|other| other.is_dropped(own)) {
            self.free(dropped);
        }
    }

    /// Frees all names of an extension.
    pub fn free(&self, scope: Scope) {
        let _held = self.lock().exclusive();
        let free = |tally: &Tally| tally.id[0].store(0, Relaxed);
        self.tallies().filter(|tally| tally.is_of(scope)).for_each(free);
    }

    /// Whose the names are, in no order and some several times.
    pub fn scopes(&self) -> Vec<Scope> {
        let _held = self.lock().shared();
        self.tallies().filter(|tally| !tally.is_free()).map(|tally| tally.scope).collect()
    }

    /// How many calls of the server are counted no more, since their names made room for others.
    pub fn dropped_calls(&self) -> u64 {
        self.dropped().load(Relaxed)
    }

    /// Returns the counters of all names of an extension in this database, in no order.
    pub fn totals(&self, scope: Scope) -> Vec<Totals> {
        let _held = self.lock().shared();
        let totals = |tally: &Tally| {
            let sum = |of: fn(&Stripe) -> &AtomicU64| {
                tally.stripes.iter().map(|stripe| of(stripe).load(Relaxed)).sum()
            };
            let tokens = |stripe: &Stripe| f64::from_bits(stripe.tokens.load(Relaxed));
            Totals {
                name: tally.name().to_vec(),
                allowed: sum(|stripe| &stripe.allowed),
                denied: sum(|stripe| &stripe.denied),
                denied_in_dry_run: sum(|stripe| &stripe.denied_in_dry_run),
                tokens: tally.stripes.iter().map(tokens).sum(),
                since: Micros(tally.since.load(Relaxed)),
            }
        };
        self.tallies().filter(|tally| tally.is_of(scope)).map(totals).collect()
    }

    /// Sets the counters of a name to zero, or those of all names; returns of how many.
    pub fn reset(&self, scope: Scope, name: Option<&[u8]>) -> u64 {
        let _held = self.lock().exclusive();
        let wanted =
            |tally: &&Tally| tally.is_of(scope) && name.is_none_or(|name| name == tally.name());
        self.tallies().filter(wanted).map(Tally::begin).count() as u64
    }

    fn lock(&self) -> &Lock {
        // SAFETY: a lock is made to be shared.
        unsafe { &(*self.0).lock }
    }

    fn dropped(&self) -> &AtomicU64 {
        // SAFETY: it is atomic.
        unsafe { &(*self.0).dropped }
    }

    /// What is not atomic in them is read under the lock only.
    fn tallies(&self) -> impl Iterator<Item = &Tally> {
        (0..TALLIES).map(|number| self.tally(number))
    }

    /// The tallies in which a name may be.
    fn window(&self, id: Id) -> impl Iterator<Item = &Tally> {
        let first = (id.name[1] % TALLIES as u64) as usize;
        (first..first + WINDOW).map(|number| self.tally(number % TALLIES))
    }

    fn tally(&self, number: usize) -> &Tally {
        // SAFETY: there are so many.
        unsafe { &*(&raw const (*self.0).tallies).cast::<Tally>().add(number) }
    }
}

impl Tally {
    #[inline]
    fn add(&self, count: Count) {
        // SAFETY: constant in a process.
        let stripe = &self.stripes[unsafe { pg_sys::MyProcPid } as usize % STRIPES];
        match count {
            Count::Denied => {
                stripe.denied.fetch_add(1, Relaxed);
            }
            Count::DeniedInDryRun => {
                stripe.denied_in_dry_run.fetch_add(1, Relaxed);
            }
            Count::Allowed(tokens) => {
                stripe.allowed.fetch_add(1, Relaxed);
                let plus = |bits| Some((f64::from_bits(bits) + tokens).to_bits());
                let _ = stripe.tokens.fetch_update(Relaxed, Relaxed, plus);
            }
        }
    }
}
