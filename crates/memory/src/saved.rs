//! A hash table of states with their names and keys, as a cache of rows: what has changed since its row was written is
//! never evicted.
//!
//! As a [`Partition`](crate::states::Partition) of a table, a [`SavedPartition`] borrows its memory from the caller, who
//! may share it between processes, locks it while it has one, and spreads keys over several. It has no pointers, and
//! zeroed memory is an empty partition. Unlike there a key keeps its place, so that a visit of the places in several
//! steps misses none: cells are chained from buckets ([Knuth, The Art of Computer Programming 3, 6.4]), and what of a
//! name, a key and leases has no room in a cell is in a chain of other pieces.
//!
//! A key is unsaved from its first change until its state is [settled](SavedPartition::settle) as written: the same
//! state, unsaved since the same instant. So no write takes a later change for written. Instants are of a clock that
//! never steps, after 0.
//!
//! Only a key that is saved is evicted, since its row is read again when it is called next: by second chance (Corbató,
//! A Paging Experiment with the Multics System, 1968), and one that was just loaded last. Evictions and removals are
//! counted: a call that reads a row without a lock, and then finds that one was evicted meanwhile, has to read again.
//! Where no key can be evicted, a new one has no place. The last eighth of the cells is for new keys of names that have
//! less than half of all that is unsaved: one name can't keep others from having new keys.
//!
//! [Knuth, The Art of Computer Programming 3, 6.4]: https://www-cs-faculty.stanford.edu/~knuth/taocp.html

use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::{Micros, State};
use ratelimit_faults::Fault;

use crate::states::{Content, place};

/// The bytes of name, key and leases that a cell holds itself.
const INLINE: usize = 42;
/// The bytes of a further piece.
const PIECE: usize = 60;
/// The bytes of a lease.
const LEASE: usize = 16;

/// The tag of a key that has no state: it is full.
const FULL: u8 = 254;
/// The tag of leases, which are behind the texts; the first word is their instant.
const LEASES: u8 = 255;

/// The pause before the second try to write a key; each next one is twice as long, up to the longest.
const FIRST_PAUSE: Micros = Micros(250_000);
const LONGEST_PAUSE: Micros = Micros(60_000_000);

/// A state with its name and key, in 128 bytes, or their beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub struct Cell {
    key: [u64; 2],
    words: [u64; 3],
    /// Since when it is unsaved; 0: it is saved.
    since: i64,
    /// When it is to be written.
    due: i64,
    scope: [u32; 2],
    /// Milliseconds.
    save: u32,
    /// The next cell of its bucket, or the next free one, plus 1.
    next: u32,
    /// The piece after it, plus 1.
    rest: u32,
    name: u16,
    key_text: u16,
    leases: u16,
    /// 0: the cell is free.
    tag: u8,
    /// How often it could not be written.
    tries: u8,
    /// Whether it was called since the last look for a key to evict: 0 or 1.
    called: u8,
    /// Whether it was read on a standby, and so counts there only: 0 or 1.
    on_standby: u8,
    text: Text<INLINE>,
}

/// A further piece of a name, key and leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub struct Piece {
    /// The next one of its chain, or the next free one, plus 1.
    next: u32,
    text: Text<PIECE>,
}

/// Bytes of a name, a key and leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
struct Text<const N: usize>([u8; N]);

/// What a partition knows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SavedHead {
    /// The cell that is looked at next for a key to evict.
    hand: u32,
    /// How many cells were ever taken, and the first that is free again, plus 1; the same of pieces.
    cells: u32,
    free_cell: u32,
    pieces: u32,
    free_piece: u32,
    /// How many cells and pieces are taken.
    keys: u32,
    pieces_taken: u32,
    /// How many keys are unsaved.
    unsaved: u32,
    /// How many keys were evicted or removed, modulo 2^32.
    evictions: u32,
    /// How many of a standby were evicted that had changed, modulo 2^32.
    lost: u32,
}

/// A key that is to be put in.
#[derive(Clone, Copy, Debug)]
pub struct NewKey<'a> {
    /// A hash that nobody who chooses keys can foresee.
    pub hash: [u64; 2],
    /// Whose it is: two numbers of the caller's.
    pub scope: [u32; 2],
    /// The limit's name, of at most 65,535 bytes.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// Whether it was read on a standby.
    pub on_standby: bool,
}

/// A copy of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedCopy {
    /// [`NewKey::hash`].
    pub hash: [u64; 2],
    /// The limit's name.
    pub name: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
    /// The state; `None`: it is full.
    pub state: Option<State>,
    /// Since when it is unsaved; 0: it is saved, or counts on a standby.
    pub since: Micros,
    /// How often it could not be written.
    pub tries: u8,
}

/// What came of writing a copy to its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was written.
    Written,
    /// It could not be, and is tried again after a pause.
    Failed,
    /// It was not tried, and is after the first pause.
    Later,
    /// Its limit is not in memory any more.
    Gone,
}

/// There is no room: nothing can be evicted, since all is unsaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The partition of a table, in memory of the caller's.
#[derive(Debug)]
pub struct SavedPartition<'a> {
    head: &'a mut SavedHead,
    buckets: &'a mut [u32],
    cells: &'a mut [Cell],
    pieces: &'a mut [Piece],
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Text<N> {
        Text([0; N])
    }
}

impl Cell {
    /// Whether it is of a scope.
    fn is_of(&self, scope: [u32; 2]) -> bool {
        self.tag != 0 && self.scope == scope
    }

    /// Whether it is to be written.
    fn is_unsaved(&self) -> bool {
        self.since != 0 && self.on_standby == 0
    }

    /// The bytes of its name and key.
    fn texts(&self) -> usize {
        usize::from(self.name) + usize::from(self.key_text)
    }

    /// The bytes of its name, key and leases.
    fn length(&self) -> usize {
        self.texts() + LEASE * usize::from(self.leases)
    }
}

/// How many further pieces so many bytes need.
fn pieces_of(length: usize) -> usize {
    length.saturating_sub(INLINE).div_ceil(PIECE)
}

/// Takes the first free place of a chain, or else the next of those that were never taken.
fn take_free(free: &mut u32, taken: &mut u32, next: impl Fn(usize) -> u32) -> usize {
    if *free == 0 {
        *taken += 1;
        return *taken as usize - 1;
    }
    let at = *free as usize - 1;
    *free = next(at);
    at
}

/// The leases of a state.
fn leases_of(state: Option<&State>) -> &[Lease] {
    match state {
        Some(State::Leases(leases)) => &leases.leases,
        _ => &[],
    }
}

impl<'a> SavedPartition<'a> {
    /// Looks at memory that is zeroed, or what an earlier partition of the same lengths left there. There is at least
    /// one bucket.
    pub fn new(
        head: &'a mut SavedHead,
        buckets: &'a mut [u32],
        cells: &'a mut [Cell],
        pieces: &'a mut [Piece],
    ) -> SavedPartition<'a> {
        SavedPartition { head, buckets, cells, pieces }
    }

    /// How many keys there are.
    pub fn len(&self) -> u32 {
        self.head.keys
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them are unsaved.
    pub fn unsaved(&self) -> u32 {
        self.head.unsaved
    }

    /// How many were evicted or removed, modulo 2^32.
    pub fn evictions(&self) -> u32 {
        self.head.evictions
    }

    /// How many of a standby were evicted that had changed there, modulo 2^32.
    pub fn lost(&self) -> u32 {
        self.head.lost
    }

    /// Reads the state of a key, for a call; `None`: it is not there; of a key that is full, `Some(None)`. What was read
    /// on a standby, which is none any more, is not there: its row has gone on.
    pub fn call(&mut self, hash: [u64; 2], on_standby: bool) -> Option<Option<State>> {
        let at = self.find(hash)?;
        if self.cells[at].on_standby != 0 && !on_standby {
            self.release(at);
            return None;
        }
        self.cells[at].called = 1;
        Some(self.state(at))
    }

    /// Puts in a key with the state of its row, unless it is there.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn load(&mut self, new: NewKey, state: Option<&State>) -> Result<(), NoRoom> {
        if self.find(new.hash).is_some() {
            return Ok(());
        }
        let texts = new.name.len() + new.key.len();
        let pieces = pieces_of(texts + LEASE * leases_of(state).len());
        self.make_room(pieces, (new.scope, new.name), None)?;
        let SavedHead { free_cell, cells, .. } = self.head;
        let at = take_free(free_cell, cells, |at| self.cells[at].next);
        let bucket = place(new.hash, self.buckets.len());
        self.head.keys += 1;
        self.head.hand = at as u32 + 1;
        self.cells[at] = Cell {
            key: new.hash,
            scope: new.scope,
            next: self.buckets[bucket],
            name: new.name.len() as u16,
            key_text: new.key.len() as u16,
            tag: FULL,
            called: 1,
            on_standby: new.on_standby.into(),
            ..Cell::default()
        };
        self.buckets[bucket] = at as u32 + 1;
        self.put(at, &[new.name, new.key].concat());
        self.put_state(at, state);
        Ok(())
    }

    /// Changes the state of a key that is there, `None` to a full one: to be written after `save` milliseconds at most.
    /// Returns when that is, if it is sooner than it was.
    ///
    /// # Errors
    /// There is no room for more leases; it is not there.
    pub fn set(
        &mut self,
        hash: [u64; 2],
        state: Option<&State>,
        save: u32,
        now: Micros,
    ) -> Result<Option<Micros>, NoRoom> {
        let at = self.find(hash).ok_or(NoRoom)?;
        let cell = self.cells[at];
        let needed = pieces_of(cell.texts() + LEASE * leases_of(state).len());
        let more = needed.saturating_sub(pieces_of(cell.length()));
        if more > 0 {
            self.make_room(more, (cell.scope, &[]), Some(at))?;
        }
        self.put_state(at, state);
        let was_unsaved = self.cells[at].is_unsaved();
        let cell = &mut self.cells[at];
        if cell.since == 0 {
            cell.since = now.0;
        }
        if cell.on_standby != 0 {
            return Ok(None);
        }
        self.head.unsaved += u32::from(!was_unsaved);
        cell.save = save;
        let due = cell.since + i64::from(save) * 1000;
        if was_unsaved && (cell.tries > 0 || cell.due <= due) {
            return Ok(None);
        }
        cell.due = due;
        Ok(Some(Micros(due)))
    }

    /// Copies the unsaved keys of a scope that are to be written by `due`, or all, at the places from `from` on, of
    /// which it looks at no more than `most`; the place to go on at, `None` at the end.
    pub fn copy(
        &self,
        (from, most): (usize, usize),
        scope: [u32; 2],
        due: Option<Micros>,
        copies: &mut Vec<SavedCopy>,
    ) -> Option<usize> {
        let cells = self.head.cells as usize;
        let end = cells.min(from + most);
        let is_due = |cell: &Cell| {
            cell.is_of(scope) && cell.is_unsaved() && due.is_none_or(|due| cell.due <= due.0)
        };
        let of = (from..end).filter(|&at| is_due(&self.cells[at])).map(|at| self.of(at));
        copies.extend(of);
        (end < cells).then_some(end)
    }

    /// Notes what came of writing a copy. A key that has changed since it was copied, at `copied` or later, is unsaved
    /// from then on.
    pub fn settle(&mut self, copy: &SavedCopy, outcome: Outcome, (copied, now): (Micros, Micros)) {
        let Some(at) = self.find(copy.hash).filter(|&at| self.cells[at].since == copy.since.0)
        else {
            return;
        };
        let is_same = self.state(at) == copy.state || Fault::ChangedCopyWritten.is_on();
        let cell = &mut self.cells[at];
        match if Fault::FailedCopyWritten.is_on() { Outcome::Written } else { outcome } {
            Outcome::Written if is_same => {
                (cell.since, cell.tries) = (0, 0);
                self.head.unsaved -= 1;
            }
            Outcome::Written => {
                (cell.since, cell.tries) = (copied.0, 0);
                cell.due = copied.0 + i64::from(cell.save) * 1000;
            }
            Outcome::Failed => {
                let pause = FIRST_PAUSE.0 << cell.tries.min(8);
                cell.due = now.0 + pause.min(LONGEST_PAUSE.0);
                cell.tries = cell.tries.saturating_add(1);
            }
            Outcome::Later => cell.due = now.0 + FIRST_PAUSE.0,
            Outcome::Gone => self.release(at),
        }
    }

    /// Removes the keys of a name, or of all, that a test picks, which is told whether they are unsaved, and has the
    /// others written as soon as can be. A call that has read the row of any key reads it again.
    pub fn remove(
        &mut self,
        scope: [u32; 2],
        name: Option<&[u8]>,
        mut test: impl FnMut(&SavedCopy, bool) -> bool,
    ) {
        self.head.evictions = self.head.evictions.wrapping_add(1);
        for at in self.places_of(scope, name) {
            if test(&self.of(at), self.cells[at].is_unsaved()) {
                self.release(at);
            } else {
                self.cells[at].due = 0;
            }
        }
    }

    /// Whether there are keys of a name, or of all, and whether some are unsaved.
    pub fn has_keys(&self, scope: [u32; 2], name: Option<&[u8]>) -> [bool; 2] {
        let places = self.places_of(scope, name);
        [!places.is_empty(), places.iter().any(|&at| self.cells[at].is_unsaved())]
    }

    /// The scopes of the keys at all places, some of them several times.
    pub fn scopes(&self) -> impl Iterator<Item = [u32; 2]> {
        self.cells.iter().filter(|cell| cell.tag != 0).map(|cell| cell.scope)
    }

    /// Copies the keys of a name, or of all, whether unsaved or not, but for those of a standby where this is none.
    pub fn keys(&self, scope: [u32; 2], name: Option<&[u8]>, on_standby: bool) -> Vec<SavedCopy> {
        let places = self.places_of(scope, name).into_iter();
        let counts = |&at: &usize| on_standby || self.cells[at].on_standby == 0;
        places.filter(counts).map(|at| self.of(at)).collect()
    }

    /// Of the unsaved keys of a scope, or of all: how many there are, since when the first of them is unsaved, and when
    /// the next is to be written.
    pub fn waiting(&self, scope: Option<[u32; 2]>) -> (usize, Option<Micros>, Option<Micros>) {
        let unsaved = || {
            let of = |cell: &&Cell| scope.is_none_or(|scope| cell.is_of(scope));
            self.cells.iter().filter(|cell| cell.tag != 0 && cell.is_unsaved()).filter(of)
        };
        if self.head.unsaved == 0 {
            return (0, None, None);
        }
        let first = |at: fn(&Cell) -> i64| unsaved().map(at).min().map(Micros);
        (unsaved().count(), first(|cell| cell.since), first(|cell| cell.due))
    }

    /// The places of the keys of a name, or of all.
    fn places_of(&self, scope: [u32; 2], name: Option<&[u8]>) -> Vec<usize> {
        let is_of = |&at: &usize| match name {
            Some(name) => self.is_of_name(at, scope, name),
            None => self.cells[at].is_of(scope),
        };
        (0..self.head.cells as usize).filter(is_of).collect()
    }

    /// Finds the cell of a key.
    fn find(&self, hash: [u64; 2]) -> Option<usize> {
        let mut next = self.buckets[place(hash, self.buckets.len())];
        while next != 0 {
            let at = next as usize - 1;
            if self.cells[at].key == hash {
                return Some(at);
            }
            next = self.cells[at].next;
        }
        None
    }

    /// Evicts saved keys until so many pieces are free, and a cell, unless there is one to `keep`, for which all that
    /// is there may be used.
    ///
    /// # Errors
    /// There is none left.
    fn make_room(
        &mut self,
        pieces: usize,
        (scope, name): ([u32; 2], &[u8]),
        keep: Option<usize>,
    ) -> Result<(), NoRoom> {
        // One in so many is for others.
        let mut share = if keep.is_none() { 8 } else { usize::MAX };
        loop {
            let free_cells = self.cells.len() - self.head.keys as usize;
            let free_pieces = self.pieces.len() - self.head.pieces_taken as usize;
            let has_cell = keep.is_some() || free_cells > self.cells.len() / share;
            if has_cell && (pieces == 0 || free_pieces >= pieces + self.pieces.len() / share) {
                return Ok(());
            }
            if self.evict(keep) {
                continue;
            }
            if share != 8 || !self.has_less_than_half(scope, name) {
                return Err(NoRoom);
            }
            share = usize::MAX;
        }
    }

    /// Whether a name has less than half of what is unsaved.
    fn has_less_than_half(&self, scope: [u32; 2], name: &[u8]) -> bool {
        let unsaved = (0..self.head.cells as usize).filter(|&at| self.cells[at].is_unsaved());
        let own = unsaved.filter(|&at| self.is_of_name(at, scope, name)).count();
        2 * own < self.head.unsaved as usize
    }

    /// Evicts a saved key; false if there is none.
    fn evict(&mut self, keep: Option<usize>) -> bool {
        let spares_unsaved = !Fault::UnsavedEvicted.is_on();
        if spares_unsaved && self.head.unsaved >= self.head.keys {
            return false;
        }
        // Everywhere once, to take second chances, and once more.
        let cells = self.head.cells as usize;
        for _ in 0..2 * cells {
            let at = self.head.hand as usize % cells;
            self.head.hand = at as u32 + 1;
            let cell = &mut self.cells[at];
            if cell.tag == 0 || spares_unsaved && cell.is_unsaved() || keep == Some(at) {
                continue;
            }
            if std::mem::take(&mut cell.called) == 0 {
                self.head.lost = self.head.lost.wrapping_add(u32::from(cell.since != 0));
                self.release(at);
                return true;
            }
        }
        false
    }

    /// Frees a cell.
    fn release(&mut self, at: usize) {
        let bucket = place(self.cells[at].key, self.buckets.len());
        let next = self.cells[at].next;
        let mut link = &mut self.buckets[bucket];
        while *link as usize != at + 1 {
            link = &mut self.cells[*link as usize - 1].next;
        }
        *link = next;
        self.put(at, &[]);
        self.head.keys -= 1;
        self.head.unsaved -= u32::from(self.cells[at].is_unsaved());
        let counted = u32::from(!Fault::EvictionNotCounted.is_on());
        self.head.evictions = self.head.evictions.wrapping_add(counted);
        self.cells[at] = Cell { next: self.head.free_cell, ..Cell::default() };
        self.head.free_cell = at as u32 + 1;
    }

    /// The state in a cell.
    fn state(&self, at: usize) -> Option<State> {
        let cell = &self.cells[at];
        match cell.tag {
            FULL => None,
            LEASES => {
                let bytes = self.bytes(at);
                let instant = |bytes: &[u8]| Micros(bytes.try_into().map_or(0, i64::from_le_bytes));
                let lease = |bytes: &[u8]| Lease {
                    id: instant(&bytes[..LEASE / 2]),
                    expires_at: instant(&bytes[LEASE / 2..]),
                };
                let leases = bytes[cell.texts()..].chunks_exact(LEASE).map(lease).collect();
                Some(State::Leases(Leases { leases, ts: Micros(cell.words[0].cast_signed()) }))
            }
            tag => Content::decode(tag, cell.words).state(),
        }
    }

    /// Puts a state into a cell, for whose leases there is room.
    fn put_state(&mut self, at: usize, state: Option<&State>) {
        let cell = self.cells[at];
        let leases = leases_of(state);
        let (tag, words) = match state {
            Some(State::Leases(leases)) => (LEASES, [leases.ts.0.cast_unsigned(), 0, 0]),
            state => state.and_then(Content::new).map_or((FULL, [0; 3]), Content::encode),
        };
        if cell.leases > 0 || !leases.is_empty() {
            let mut bytes = self.bytes(at);
            bytes.truncate(cell.texts());
            for lease in leases {
                bytes.extend(lease.id.0.to_le_bytes());
                bytes.extend(lease.expires_at.0.to_le_bytes());
            }
            self.cells[at].leases = leases.len() as u16;
            self.put(at, &bytes);
        }
        let cell = &mut self.cells[at];
        (cell.tag, cell.words) = (tag, words);
    }

    /// The bytes of a cell and of the pieces after it.
    fn bytes(&self, at: usize) -> Vec<u8> {
        let cell = &self.cells[at];
        let (mut bytes, mut next) = (cell.text.0.to_vec(), cell.rest);
        while next != 0 {
            let piece = &self.pieces[next as usize - 1];
            bytes.extend(piece.text.0);
            next = piece.next;
        }
        bytes.truncate(cell.length());
        bytes
    }

    /// Puts bytes into a cell and into pieces after it, of which there are enough.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(INLINE));
        self.cells[at].text.0[..first.len()].copy_from_slice(first);
        let mut free = std::mem::take(&mut self.cells[at].rest);
        while free != 0 {
            let piece = &mut self.pieces[free as usize - 1];
            let next = std::mem::replace(&mut piece.next, self.head.free_piece);
            (self.head.free_piece, free) = (free, next);
            self.head.pieces_taken -= 1;
        }
        for bytes in rest.chunks(PIECE).rev() {
            let SavedHead { free_piece, pieces, .. } = self.head;
            let taken = take_free(free_piece, pieces, |at| self.pieces[at].next);
            self.head.pieces_taken += 1;
            self.pieces[taken] = Piece { next: self.cells[at].rest, ..Piece::default() };
            self.pieces[taken].text.0[..bytes.len()].copy_from_slice(bytes);
            self.cells[at].rest = taken as u32 + 1;
        }
    }

    /// Whether a cell is of a name.
    fn is_of_name(&self, at: usize, scope: [u32; 2], name: &[u8]) -> bool {
        let cell = &self.cells[at];
        let inline = name.len().min(INLINE);
        cell.is_of(scope)
            && usize::from(cell.name) == name.len()
            && cell.text.0[..inline] == name[..inline]
            && (name.len() <= INLINE || self.bytes(at).starts_with(name))
    }

    /// Copies what is in a cell.
    fn of(&self, at: usize) -> SavedCopy {
        let cell = &self.cells[at];
        let mut name = self.bytes(at);
        name.truncate(cell.texts());
        let key = name.split_off(usize::from(cell.name));
        let since = Micros(if cell.is_unsaved() { cell.since } else { 0 });
        SavedCopy { hash: cell.key, name, key, state: self.state(at), since, tries: cell.tries }
    }
}
