//! The keys that are denied most: how often, and who they are, which is kept of no other key.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ratelimit_core::sketch::{Counter, Sketch};
use ratelimit_limiter::ports::Id;

use super::id::Scope;
use crate::pg::shared_memory::Lock;
use crate::pg::values::clipped;

/// Over how many rankings keys are spread, by chance.
const RANKINGS: usize = 16;
/// How many keys each of them has.
const KEYS: usize = 64;
/// How much is kept of a name and key, in bytes.
const TEXT: usize = 320;

#[repr(C, align(128))]
struct Ranking {
    lock: Lock,
    floor: u64,
    counters: [Counter; KEYS],
    keys: [Key; KEYS],
}

/// Whose a counter is.
#[repr(C)]
struct Key {
    scope: Scope,
    name: u32,
    key: u32,
    /// A name, and a key that may be cut off.
    text: [u8; TEXT],
}

/// A key that was denied, in the server's encoding.
pub struct Denied {
    pub name: Vec<u8>,
    /// Cut off where it is longer than 320 bytes less those of the name.
    pub key: Vec<u8>,
    /// How often, at most.
    pub denied: u64,
    /// By how much that may be too many.
    pub error: u64,
}

impl Key {
    fn is_of(&self, scope: Scope, name: Option<&[u8]>) -> bool {
        self.scope == scope && name.is_none_or(|name| name == self.texts().0)
    }

    fn texts(&self) -> (&[u8], &[u8]) {
        let (name, key) = self.text.split_at(TEXT.min(self.name as usize));
        (name, &key[..key.len().min(self.key as usize)])
    }

    fn set(&mut self, scope: Scope, name: &[u8], key: &[u8]) {
        self.scope = scope;
        let name = &name[..name.len().min(TEXT)];
        let (name_of, key_of) = self.text.split_at_mut(name.len());
        name_of.copy_from_slice(name);
        key_of[..key.len()].copy_from_slice(key);
        (self.name, self.key) = (name.len() as u32, key.len() as u32);
    }
}

thread_local! {
    /// The key that this session counted last, and its number.
    static LAST: Cell<([u64; 2], usize)> = const { Cell::new(([0; 2], 0)) };
}

/// The rankings, in shared memory.
pub struct Rankings(*mut Ranking);

impl Rankings {
    /// How many bytes they take.
    pub const SIZE: usize = size_of::<Ranking>() * RANKINGS;

    /// Looks at rankings.
    ///
    /// # Safety
    /// There are so many bytes at the address, for as long as the process; all zeros, and soon to be
    /// [initialized](Rankings::init), or what other sessions have made of that.
    pub unsafe fn new(address: *mut u8) -> Rankings {
        Rankings(address.cast())
    }

    /// Initializes the locks, before anybody else sees them.
    pub fn init(&self, lock_group: i32) {
        // SAFETY: there are so many.
        (0..RANKINGS).for_each(|number| unsafe { (*self.0.add(number)).lock.init(lock_group) });
    }

    /// Counts a denial of a key.
    pub fn count(&self, id: Id, scope: Scope, name: &[u8], key: &[u8]) {
        let key = clipped(key, TEXT.saturating_sub(name.len())); // not under the lock
        let (last, hint) = LAST.get();
        let ranking = self.ranking((id.key[0] >> 32) as usize % RANKINGS);
        // SAFETY: a ranking. Under a shared lock nothing in it changes but counts, by atomic additions;
        // under an exclusive one nobody else looks at it.
        unsafe {
            if last == id.key {
                let _held = (*ranking).lock.shared();
                if (&(*ranking).counters)[hint].is_of(id.key) {
                    let count = &raw mut (&mut (*ranking).counters)[hint].count;
                    AtomicU64::from_ptr(count).fetch_add(1, Relaxed);
                    return;
                }
            }
            let _held = (*ranking).lock.exclusive();
            let (floor, counters) = (&mut (*ranking).floor, &mut (*ranking).counters);
            let (number, is_new) = Sketch::new(floor, counters).count(id.key);
            if is_new {
                (&mut (*ranking).keys)[number].set(scope, name, key);
            }
            LAST.set((id.key, number));
        }
    }

    /// Returns the keys of a name, or of all, that were denied most, the first of them first.
    pub fn most_denied(&self, scope: Scope, name: Option<&[u8]>, rows: usize) -> Vec<Denied> {
        let mut all = Vec::new();
        for number in 0..RANKINGS {
            let ranking = self.ranking(number);
            // SAFETY: as in `count`: counts may grow meanwhile, and here nothing is written.
            unsafe {
                let _held = (*ranking).lock.shared();
                let (floor, counters) = (&mut (*ranking).floor, &mut (*ranking).counters);
                for (number, counter) in Sketch::new(floor, counters).iter() {
                    let whose = &(&(*ranking).keys)[number];
                    if whose.is_of(scope, name) {
                        let (name, key) = whose.texts();
                        all.push(Denied {
                            name: name.to_vec(),
                            key: key.to_vec(),
                            denied: counter.count,
                            error: counter.error,
                        });
                    }
                }
            }
        }
        all.sort_by(|a, b| {
            b.denied.cmp(&a.denied).then_with(|| (&a.name, &a.key).cmp(&(&b.name, &b.key)))
        });
        all.truncate(rows);
        all
    }

    /// Whose the keys are, in no order and some several times.
    pub fn scopes(&self) -> Vec<Scope> {
        let mut scopes = Vec::new();
        for number in 0..RANKINGS {
            let ranking = self.ranking(number);
            // SAFETY: as in `most_denied`.
            unsafe {
                let _held = (*ranking).lock.shared();
                let (floor, counters) = (&mut (*ranking).floor, &mut (*ranking).counters);
                let keys = &(*ranking).keys;
                scopes.extend(
                    Sketch::new(floor, counters).iter().map(|(number, _)| keys[number].scope),
                );
            }
        }
        scopes
    }

    /// Forgets which keys of a name, or of all, were denied.
    pub fn forget(&self, scope: Scope, name: Option<&[u8]>) {
        for number in 0..RANKINGS {
            let ranking = self.ranking(number);
            // SAFETY: as in `count`.
            unsafe {
                let _held = (*ranking).lock.exclusive();
                let (floor, counters) = (&mut (*ranking).floor, &mut (*ranking).counters);
                let keys = &(*ranking).keys;
                Sketch::new(floor, counters).remove_if(|number| keys[number].is_of(scope, name));
            }
        }
    }

    fn ranking(&self, number: usize) -> *mut Ranking {
        // SAFETY: there are so many.
        unsafe { self.0.add(number) }
    }
}
