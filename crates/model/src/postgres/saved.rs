//! Saved entries, in a partition of `ratelimit_memory` with one lock, and the steps of the writer.

use ratelimit_core::Micros;
use ratelimit_memory::saved::{Cell, NewKey, Outcome, Piece, SavedCopy, SavedHead, SavedPartition};

use super::{Content, Database, FROZEN, Flaw, Primitive, RowKey, StepReply, Version};
use crate::content::Total;
use crate::statement::{KEYS, NAME};
use crate::world::tokens;

/// The scope of all keys.
const SCOPE: [u32; 2] = [1, 1];
/// The time that a key may be unsaved, in milliseconds. Time doesn't pass here.
const SAVE: u32 = 1000;
/// The only instant, on the monotonic clock.
const INSTANT: Micros = Micros(1);

/// The outcome of [`Primitive::LoadSaved`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadedKey {
    /// The key is there.
    Yes,
    /// Keys were evicted meanwhile.
    Moved,
    /// All keys are unsaved.
    Full,
}

/// The memory of saved keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct SavedPlaces {
    head: SavedHead,
    buckets: Vec<u32>,
    cells: Vec<Cell>,
    pieces: Vec<Piece>,
    /// Whether the writer has begun a turn.
    pub is_in_turn: bool,
}

/// The hash of a key.
fn hash(key: u8) -> [u64; 2] {
    [key.into(), 0]
}

impl SavedPlaces {
    /// Makes room for this number of keys.
    pub fn new(keys: usize) -> SavedPlaces {
        SavedPlaces {
            buckets: vec![0; keys],
            cells: vec![Cell::default(); keys],
            pieces: vec![Piece::default(); keys],
            ..SavedPlaces::default()
        }
    }

    /// The same, empty.
    pub fn emptied(&self) -> SavedPlaces {
        SavedPlaces::new(self.cells.len())
    }

    fn partition(&mut self) -> SavedPartition<'_> {
        let SavedPlaces { head, buckets, cells, pieces, .. } = self;
        SavedPartition::new(head, buckets, cells, pieces)
    }

    /// The state that a call would find; `Some(None)`: the key is full.
    pub fn entry(&self, key: u8, on_standby: bool) -> Option<Option<Total>> {
        let found = self.clone().partition().read(hash(key), on_standby)?;
        Some(found.map(Total))
    }

    /// The unsaved keys.
    pub fn unsaved(&self) -> Vec<u8> {
        let mut copies = Vec::new();
        self.clone().partition().copy(0, KEYS.len(), SCOPE, None, &mut copies);
        copies.iter().map(|copy| copy.hash[0] as u8).collect()
    }

    /// Whether a new key fits, possibly after an eviction.
    pub fn has_room(&self) -> bool {
        self.unsaved().len() < self.cells.len()
    }

    fn copy(&mut self, from: u8) -> StepReply {
        let mut copies = Vec::new();
        let next = self.partition().copy(from.into(), 1, SCOPE, None, &mut copies);
        copies_of(copies, next.map(|next| next as u8))
    }
}

/// Copies with their keys' numbers.
fn copies_of(copies: Vec<SavedCopy>, next: Option<u8>) -> StepReply {
    let of = |copy: SavedCopy| (copy.hash[0] as u8, copy.state.map(Total));
    StepReply::Copies(copies.into_iter().map(of).collect(), next)
}

impl Database {
    /// Executes a step on saved entries.
    pub(super) fn save(&mut self, session: usize, step: &Primitive) -> StepReply {
        let in_recovery = self.in_recovery;
        match step {
            Primitive::OfWriter(step) => {
                let writer = self.open.len() - 1;
                self.execute(writer, step, 0)
            }
            Primitive::BeforeRead => {
                StepReply::BeforeRead(self.saved.partition().head().evictions as u8, in_recovery)
            }
            Primitive::LoadSaved(key, state, before) => {
                self.load_saved(*key, state.as_ref(), *before)
            }
            &Primitive::ReadSaved(key) => {
                let on_standby = in_recovery || self.has(Flaw::StandbyTrusted);
                let found = self.saved.partition().read(hash(key), on_standby);
                StepReply::Saved(found.map(|state| state.map(Total)))
            }
            &Primitive::WriteSaved(key, ref state) => {
                let state = state.as_ref().map(|Total(state)| state);
                if state.is_none() {
                    self.noted.push((key, None));
                }
                let set = self.saved.partition().set(hash(key), state, SAVE, INSTANT);
                StepReply::Was(set.is_ok())
            }
            Primitive::ListSaved => {
                copies_of(self.saved.partition().keys(SCOPE, None, in_recovery), None)
            }
            &Primitive::Replicate(key, left) => {
                self.replicate(
                    RowKey { key, shard: 0 },
                    Content::Limit(tokens(left.into()).into()),
                );
                StepReply::Done
            }
            Primitive::Promote => {
                self.in_recovery = false;
                StepReply::Done
            }
            _ => self.turn(session, step),
        }
    }

    /// A step of the writer.
    fn turn(&mut self, session: usize, step: &Primitive) -> StepReply {
        match *step {
            Primitive::BeginTurn => {
                self.saved.is_in_turn = true;
                StepReply::Done
            }
            Primitive::CopySaved(from) => self.saved.copy(from),
            Primitive::EndWrites(commits, _) => {
                self.end(session, commits);
                StepReply::Done
            }
            Primitive::FinishSaved(key, ref state, is_written) => {
                let state = state.clone().map(|Total(state)| state);
                let (name, text) = (NAME.to_vec(), KEYS[usize::from(key)].to_vec());
                let (hash, since) = (hash(key), INSTANT);
                let copy = SavedCopy { hash, name, key: text, state, since, tries: 0 };
                let outcome = if is_written { Outcome::Written } else { Outcome::Failed };
                self.saved.partition().finish(&copy, outcome, INSTANT, INSTANT);
                StepReply::Done
            }
            Primitive::EndTurn => {
                self.saved.is_in_turn = false;
                StepReply::Done
            }
            _ => StepReply::Done,
        }
    }

    fn load_saved(
        &mut self,
        key: u8,
        state: Option<&Total>,
        (evictions, on_standby): (u8, bool),
    ) -> StepReply {
        let moved = self.saved.partition().head().evictions as u8 != evictions;
        if moved && !self.has(Flaw::EvictionsOverlooked) {
            return StepReply::Loaded(LoadedKey::Moved);
        }
        let on_standby = match self.has(Flaw::StandbyReadTrusted) {
            true => self.in_recovery,
            false => on_standby,
        };
        let new = NewKey {
            hash: hash(key),
            scope: SCOPE,
            name: NAME,
            key: KEYS[usize::from(key)],
            on_standby,
        };
        let was_there = self.saved.entry(key, self.in_recovery).is_some();
        if self.saved.partition().load(new, state.map(|Total(state)| state)).is_err() {
            self.refused |= self.saved.has_room();
            return StepReply::Loaded(LoadedKey::Full);
        }
        // A standby counts from the row that it has read.
        if self.in_recovery && !was_there {
            self.noted.push((key, state.cloned()));
        }
        StepReply::Loaded(LoadedKey::Yes)
    }

    /// Sets a row as the primary has written it.
    fn replicate(&mut self, place: RowKey, content: Content) {
        self.versions.retain(|_, version| version.place != place);
        let tid = self.new_tid(self.open.len());
        let lockers = Vec::new();
        let version =
            Version { place, content, xmin: FROZEN, is_speculative: false, lockers, xmax: None };
        self.versions.insert(tid, version);
    }
}
