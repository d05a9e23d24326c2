//! Entries that are saved, and what saving them does: the table is the core's own, with one lock.

use ratelimit_core::Micros;
use ratelimit_core::saved::{Cell, NewKey, NoRoom, Piece, SavedHead, SavedPartition, Unsaved};

use super::{Content, Database, FROZEN, Flaw, Primitive, RowKey, StepReply, Version};
use crate::content::Total;
use crate::statement::{KEYS, NAME};
use crate::world::tokens;

/// Whose keys they are.
const SCOPE: [u32; 2] = [1, 1];
/// How long a key may be unsaved, in milliseconds: it is not waited for.
const SAVE: u32 = 1000;

/// What came of [`Primitive::LoadSaved`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadedKey {
    /// It is there.
    Yes,
    /// Others were evicted meanwhile.
    Moved,
    /// All that is there is unsaved.
    NoRoom,
}

/// A saved entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SavedContent {
    /// Its state; `None`: it is full.
    pub state: Option<Total>,
    /// Whether it was counted on a standby; as it is read, and this is none any more.
    pub of_standby: bool,
}

/// The memory of saved keys, and whether somebody saves them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct SavedPlaces {
    head: SavedHead,
    buckets: Vec<u32>,
    cells: Vec<Cell>,
    pieces: Vec<Piece>,
    /// The session that saves.
    pub saver: Option<u8>,
}

/// The hash of a key.
fn hash(key: u8) -> [u64; 2] {
    [key.into(), 0]
}

impl SavedPlaces {
    /// Those for so many keys.
    pub fn new(keys: usize) -> SavedPlaces {
        SavedPlaces {
            buckets: vec![0; keys],
            cells: vec![Cell::default(); keys],
            pieces: vec![Piece::default(); keys],
            ..SavedPlaces::default()
        }
    }

    /// The same, empty: as of a server that starts.
    pub fn emptied(&self) -> SavedPlaces {
        SavedPlaces::new(self.cells.len())
    }

    fn partition(&mut self) -> SavedPartition<'_> {
        let SavedPlaces { head, buckets, cells, pieces, .. } = self;
        SavedPartition::new(head, buckets, cells, pieces)
    }

    /// What is there of a key.
    pub fn entry(&self, key: u8) -> Option<SavedContent> {
        let mut copy = self.clone();
        let mut partition = copy.partition();
        let state = partition.call(hash(key))?.map(Total);
        Some(SavedContent { state, of_standby: partition.is_of_standby(hash(key)) })
    }

    /// The keys that are not saved.
    pub fn unsaved(&self) -> Vec<u8> {
        let mut copies = Vec::new();
        let mut copy = self.clone();
        copy.partition().copy((0, KEYS.len()), SCOPE, None, &mut copies);
        copies.iter().map(|copy| copy.hash[0] as u8).collect()
    }

    /// Whether a new key could take the place of another, or a free one.
    pub fn has_room(&self) -> bool {
        self.unsaved().len() < self.cells.len()
    }

    fn copy(&mut self, from: u8) -> StepReply {
        let mut copies = Vec::new();
        let next = self.partition().copy((from.into(), 1), SCOPE, None, &mut copies);
        let of = |Unsaved { hash, state, .. }: Unsaved| (hash[0] as u8, state.map(Total));
        StepReply::Copies(copies.into_iter().map(of).collect(), next.map(|next| next as u8))
    }

    /// Forgets a key as a limiter would that knows of no rows: the core can't, so it is evicted as one that is saved.
    fn remove(&mut self, key: u8) -> bool {
        let mut partition = self.partition();
        let was = partition.call(hash(key)).is_some();
        let now = (Some(SAVE), Micros(0));
        if was && partition.set(hash(key), None, None, now).is_ok() {
            partition.copy((0, KEYS.len()), SCOPE, None, &mut Vec::new());
            partition.settle(hash(key), true);
            partition.forget_clean(SCOPE, NAME);
        }
        was
    }
}

impl Database {
    /// What is done to saved entries.
    pub(super) fn save(&mut self, session: usize, step: &Primitive) -> StepReply {
        let (now, in_recovery) = (Micros(self.now), self.in_recovery);
        match step {
            Primitive::OfWorker(step) => {
                let worker = self.open.len() - 1;
                self.execute(worker, step, 0)
            }
            Primitive::CountSavedGone => StepReply::Number(self.saved.partition().gone() as u8),
            Primitive::BeforeRead => {
                StepReply::BeforeRead(self.saved.partition().evictions() as u8, in_recovery)
            }
            Primitive::LoadSaved(key, state, before) => {
                self.load_saved(*key, state.as_ref(), *before)
            }
            &Primitive::ReadSaved(key) => {
                // A call's, which makes it the last one to be evicted.
                self.saved.partition().call(hash(key));
                let is_trusted = in_recovery || self.has(Flaw::StandbyTrusted);
                StepReply::Saved(self.saved.entry(key).map(|entry| SavedContent {
                    of_standby: entry.of_standby && !is_trusted,
                    ..entry
                }))
            }
            &Primitive::WriteSaved(key, ref state, idle_at) => {
                let save = (!in_recovery).then_some(SAVE);
                let (state, idle_at) =
                    (state.as_ref().map(|Total(state)| state), idle_at.map(Micros));
                if state.is_none() {
                    self.noted.push((key, None));
                }
                let set = self.saved.partition().set(hash(key), state, idle_at, (save, now));
                StepReply::Was(set.is_ok())
            }
            &Primitive::RemoveSaved(key) => {
                self.noted.push((key, None));
                StepReply::Was(self.saved.remove(key))
            }
            Primitive::ListSaved => {
                let keys = self.saved.partition().keys(SCOPE, None);
                let of = |Unsaved { hash, state, .. }: Unsaved| (hash[0] as u8, state.map(Total));
                StepReply::Copies(keys.into_iter().map(of).collect(), None)
            }
            &Primitive::Replicate(key, left) => {
                self.replicate(RowKey { key, shard: 0 }, Content(tokens(left.into())));
                StepReply::Done
            }
            Primitive::Promote => {
                self.in_recovery = false;
                StepReply::Done
            }
            _ => self.turn(session, step),
        }
    }

    /// What who saves does.
    fn turn(&mut self, session: usize, step: &Primitive) -> StepReply {
        match *step {
            Primitive::BeginTurn(_) => {
                let begins = self.saved.saver.is_none() || self.has(Flaw::TwoWriters);
                if begins {
                    self.saved.saver = Some(session as u8);
                }
                StepReply::Was(begins)
            }
            Primitive::CopySaved(from) => self.saved.copy(from),
            Primitive::EndWrites(commits, _) => {
                self.end(session, commits);
                StepReply::Done
            }
            Primitive::SettleSaved(key, is_written) => {
                self.saved.partition().settle(hash(key), is_written);
                StepReply::Done
            }
            Primitive::EndTurn => {
                self.saved.saver = None;
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
        let moved = self.saved.partition().evictions() as u8 != evictions;
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
            save: SAVE,
            on_standby,
        };
        let was_there = self.saved.entry(key).is_some();
        let read = state.map(|Total(state)| state);
        match self.saved.partition().load(new, read, Micros(self.now)) {
            Err(NoRoom) => {
                self.refused |= self.saved.has_room();
                return StepReply::Loaded(LoadedKey::NoRoom);
            }
            // A standby goes on from the row that it has read.
            Ok(()) if self.in_recovery && !was_there => self.noted.push((key, state.cloned())),
            Ok(()) => {}
        }
        StepReply::Loaded(LoadedKey::Yes)
    }

    /// A standby's row is what the primary has made of it.
    fn replicate(&mut self, place: RowKey, content: Content) {
        self.versions.retain(|_, version| version.place != place);
        let tid = self.new_tid(self.open.len());
        let lockers = Vec::new();
        let version =
            Version { place, content, xmin: FROZEN, is_speculative: false, lockers, xmax: None };
        self.versions.insert(tid, version);
    }
}
