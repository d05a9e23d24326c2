//! The keys that are denied most, with their counts. The text of no other key is stored.

use crate::lock::{Guarded, ReadWriteLock};
use crate::sketch::{Counter, Sketch};

/// The number of rankings, over which keys are distributed at random.
const RANKINGS: usize = if cfg!(test) { 2 } else { 16 };
/// The number of keys in each.
const KEYS: usize = if cfg!(test) { 2 } else { 64 };
/// The maximum number of bytes stored of a name and key.
pub const TEXT: usize = 320;

/// A ranking. Under a shared lock only the counts change, which are atomic.
#[repr(C)]
struct Ranking<S> {
    sketch: Sketch<[Counter; KEYS]>,
    denied: [DeniedKey<S>; KEYS],
}

/// The key of a counter.
#[derive(Clone, Copy)]
#[repr(C)]
struct DeniedKey<S> {
    scope: S,
    name: u32,
    key: u32,
    /// The name, and the key, possibly cut off.
    text: [u8; TEXT],
}

/// A denied key, in the caller's encoding.
#[derive(Debug, PartialEq)]
pub struct Denied {
    /// The limit's name.
    pub name: Vec<u8>,
    /// Cut off after [`TEXT`] minus the length of the name.
    pub key: Vec<u8>,
    /// The maximum number of denials.
    pub denied: u64,
    /// The maximum excess in `denied`.
    pub error: u64,
}

/// The rankings in shared memory; each key is in a scope `S`. All is behind locks. Zeroed memory is valid if zeros are
/// an `S`, and locks that are free, or unused until they are initialized.
#[repr(C)]
pub struct SharedRankings<L, S> {
    rankings: [Guarded<L, Ranking<S>>; RANKINGS],
}

impl<S: Copy + PartialEq> DeniedKey<S> {
    fn is_of(&self, scope: S, name: Option<&[u8]>) -> bool {
        self.scope == scope && name.is_none_or(|name| name == self.texts().0)
    }

    fn texts(&self) -> (&[u8], &[u8]) {
        let (name, key) = self.text.split_at(TEXT.min(self.name as usize));
        (name, &key[..key.len().min(self.key as usize)])
    }

    fn set(&mut self, scope: S, name: &[u8], key: &[u8]) {
        self.scope = scope;
        let name = &name[..name.len().min(TEXT)];
        let key = &key[..key.len().min(TEXT - name.len())];
        let (name_of, key_of) = self.text.split_at_mut(name.len());
        name_of.copy_from_slice(name);
        key_of[..key.len()].copy_from_slice(key);
        (self.name, self.key) = (name.len() as u32, key.len() as u32);
    }
}

impl<S: Copy + PartialEq> Ranking<S> {
    /// The keys with a counter, and their counters.
    fn denied(&self) -> impl Iterator<Item = (&DeniedKey<S>, &Counter)> {
        self.sketch.counted().map(|(number, counter)| (&self.denied[number], counter))
    }
}

impl<L: ReadWriteLock, S: Copy + PartialEq> SharedRankings<L, S> {
    /// The locks, to be initialized.
    pub fn locks(&self) -> impl Iterator<Item = &L> {
        self.rankings.iter().map(Guarded::lock)
    }

    /// Counts a denial of a key, by the hash of name and key; cuts off the text of both after [`TEXT`]. Returns the
    /// number of the counter. Passed as `last` with the session's next denial, it makes a shared lock sufficient.
    pub fn count(
        &self,
        id: [u64; 2],
        last: Option<usize>,
        scope: S,
        name: &[u8],
        key: &[u8],
    ) -> usize {
        let ranking = &self.rankings[(id[0] >> 32) as usize % RANKINGS];
        if let Some(number) = last
            && ranking.read().sketch.add(number, id)
        {
            return number;
        }
        let mut ranking = ranking.write();
        let (number, is_new) = ranking.sketch.count(id);
        if is_new {
            ranking.denied[number].set(scope, name, key);
        }
        number
    }

    /// Returns the keys of a name, or of all of a scope, that were denied most, in descending order.
    pub fn most_denied(&self, scope: S, name: Option<&[u8]>, rows: usize) -> Vec<Denied> {
        let mut all = Vec::new();
        for ranking in &self.rankings {
            let ranking = ranking.read();
            let of_it = ranking.denied().filter(|(denied, _)| denied.is_of(scope, name));
            all.extend(of_it.map(|(denied, counter)| {
                let (name, key) = denied.texts();
                Denied {
                    name: name.to_vec(),
                    key: key.to_vec(),
                    denied: counter.count(),
                    error: counter.error(),
                }
            }));
        }
        all.sort_by(|a, b| {
            b.denied.cmp(&a.denied).then_with(|| (&a.name, &a.key).cmp(&(&b.name, &b.key)))
        });
        all.truncate(rows);
        all
    }

    /// The scopes of the keys, in no order, with repeats.
    pub fn scopes(&self) -> Vec<S> {
        let mut scopes = Vec::new();
        for ranking in &self.rankings {
            scopes.extend(ranking.read().denied().map(|(denied, _)| denied.scope));
        }
        scopes
    }

    /// Removes a key of every name; `id`: the key's hash under a name.
    pub fn forget_key(&self, scope: S, id: impl Fn(&[u8]) -> [u64; 2]) {
        for ranking in &self.rankings {
            let Ranking { sketch, denied } = &mut *ranking.write();
            sketch.remove_if(|number, counter| {
                let of = &denied[number];
                of.is_of(scope, None) && counter.counts(id(of.texts().0))
            });
        }
    }

    /// Removes the keys of a name, or of a scope.
    pub fn forget(&self, scope: S, name: Option<&[u8]>) {
        for ranking in &self.rankings {
            let Ranking { sketch, denied } = &mut *ranking.write();
            sketch.remove_if(|number, _| denied[number].is_of(scope, name));
        }
    }
}

#[cfg(test)]
mod tests;
