//! The states of saved limits, with their names and keys: a cache of rows, which evicts no key that has changed since
//! its row was written.
//!
//! Like a [`Partition`](crate::states::Partition), a [`SavedPartition`] borrows its memory from the caller, which may
//! share it between processes, locks it during use, and distributes keys over several. It has no pointers, and zeroed
//! memory is an empty partition. Unlike there, a key never moves, so a scan in several steps misses none: cells are
//! chained from buckets ([Knuth, The Art of Computer Programming 3, 6.4]). The bytes of a name, a key and leases that
//! don't fit into a cell go into a chain of pieces.
//!
//! A key is unsaved from its first change until [`finish`](SavedPartition::finish) notes that its state was written:
//! the same state, unsaved since the same instant. So a write never counts for a later change. Instants are greater
//! than 0, on a clock that never steps.
//!
//! Only saved keys are evicted, because the next call reads their rows again: by second chance (Corbató, A Paging
//! Experiment with the Multics System, 1968), and the key that was just loaded last. Evictions and removals are
//! counted: a call that reads a row without a lock, and then finds that a key was evicted meanwhile, reads it again. If
//! no key can be evicted, the partition is full. The last eighth of the cells is for new keys of names with less than
//! half of the unsaved keys, so that one name can't keep others from having new keys.
//!
//! [Knuth, The Art of Computer Programming 3, 6.4]: https://www-cs-faculty.stanford.edu/~knuth/taocp.html

#![forbid(unsafe_code)]

use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::{Micros, State};
use ratelimit_faults::Fault;

use crate::states::{Content, place};

/// The number of bytes of name, key and leases that fit into a cell.
const INLINE: usize = 42;
/// The size of a piece in bytes.
const PIECE: usize = 60;
/// The size of a lease in bytes.
const LEASE: usize = 16;

/// The tag of a full limit, which has no state.
const NO_STATE: u8 = 254;
/// The tag of leases, which follow name and key; the first word is their `ts`.
const LEASES: u8 = 255;

/// The pause before the second try to write a key. It doubles at each try, up to the longest.
const FIRST_PAUSE: Micros = Micros(250_000);
const LONGEST_PAUSE: Micros = Micros(60_000_000);

/// A state, and the beginning of its name, key and leases, in 128 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub struct Cell {
    key: [u64; 2],
    words: [u64; 3],
    /// The time since which the key is unsaved; 0: saved.
    since: i64,
    /// The time when the key is due to be written.
    due: i64,
    scope: [u32; 2],
    /// Milliseconds.
    save: u32,
    /// The next cell of its bucket, or the next free one, plus 1.
    next: u32,
    /// The first piece, plus 1.
    rest: u32,
    name: u16,
    key_text: u16,
    leases: u16,
    /// 0: the cell is free.
    tag: u8,
    /// The number of failed writes.
    tries: u8,
    /// Whether the key was called since the hand last passed: 0 or 1.
    called: u8,
    /// Whether the row was read on a standby: the state counts only there. 0 or 1.
    on_standby: u8,
    text: Text<INLINE>,
}

/// A further piece of name, key and leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub struct Piece {
    /// The next one of its chain, or the next free one, plus 1.
    next: u32,
    text: Text<PIECE>,
}

/// Some bytes of name, key and leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
struct Text<const N: usize>([u8; N]);

/// The head of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SavedHead {
    /// The cell at which the search for the next eviction begins.
    hand: u32,
    /// The number of cells ever used, and the first free one, plus 1; the same for pieces.
    cells: u32,
    free_cell: u32,
    pieces: u32,
    free_piece: u32,
    /// The number of pieces in use.
    pieces_used: u32,
    /// The number of keys.
    pub keys: u32,
    /// The number of unsaved keys.
    pub unsaved: u32,
    /// The number of keys evicted or removed so far, modulo 2^32.
    pub evictions: u32,
    /// The number of keys evicted on a standby that had changed there, modulo 2^32.
    pub lost: u32,
}

/// A key to load.
#[derive(Clone, Copy, Debug)]
pub struct NewKey<'a> {
    /// A hash that callers can't predict.
    pub hash: [u64; 2],
    /// The owner: two numbers chosen by the caller.
    pub scope: [u32; 2],
    /// The name of the limit, at most 65,535 bytes.
    pub name: &'a [u8],
    /// The key, at most 65,535 bytes.
    pub key: &'a [u8],
    /// Whether its row was read on a standby.
    pub on_standby: bool,
}

/// A copy of a key and its state.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedCopy {
    /// [`NewKey::hash`].
    pub hash: [u64; 2],
    /// The limit's name.
    pub name: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
    /// The state; `None`: full.
    pub state: Option<State>,
    /// The time since which it is unsaved; 0: saved, or counting on a standby only.
    pub since: Micros,
    /// The number of failed writes.
    pub tries: u8,
}

/// The outcome of writing a copy to its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was written.
    Written,
    /// The write failed, and will be tried again after a pause.
    Failed,
    /// It was not tried, and will be after the first pause.
    Later,
    /// The limit has left memory.
    Gone,
}

/// The partition is full: every key is unsaved, so none can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The unsaved keys of a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsaved {
    /// Their number.
    pub keys: usize,
    /// The time since which the oldest is unsaved.
    pub since: Option<Micros>,
    /// The time when the next is due.
    pub due: Option<Micros>,
}

/// A partition to read and write.
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
    /// Whether its key is in a scope.
    fn is_in(&self, scope: [u32; 2]) -> bool {
        self.tag != 0 && self.scope == scope
    }

    /// Whether its key has to be written.
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

/// The number of pieces for `length` bytes.
fn pieces_of(length: usize) -> usize {
    length.saturating_sub(INLINE).div_ceil(PIECE)
}

/// Unlinks the first free place of a chain, or returns the next one that was never used.
fn next_free(free: &mut u32, used: &mut u32, next: impl Fn(usize) -> u32) -> usize {
    if *free == 0 {
        *used += 1;
        return *used as usize - 1;
    }
    let at = *free as usize - 1;
    *free = next(at);
    at
}

/// The leases of a state, if it is one of a concurrency limit.
fn leases_of(state: Option<&State>) -> &[Lease] {
    match state {
        Some(State::Leases(leases)) => &leases.leases,
        _ => &[],
    }
}

impl SavedCopy {
    /// Whether its key has to be written.
    pub fn is_unsaved(&self) -> bool {
        self.since != Micros(0)
    }
}

impl<'a> SavedPartition<'a> {
    /// Views memory that is zeroed, or left by an earlier partition of the same lengths. There is at least one bucket.
    pub fn new(
        head: &'a mut SavedHead,
        buckets: &'a mut [u32],
        cells: &'a mut [Cell],
        pieces: &'a mut [Piece],
    ) -> SavedPartition<'a> {
        SavedPartition { head, buckets, cells, pieces }
    }

    /// The numbers of its keys.
    pub fn head(&self) -> &SavedHead {
        self.head
    }

    /// Reads the state of a key for a call. `None`: not in memory; `Some(None)`: the limit is full. After a promotion,
    /// drops a key that was read on the standby: its row has changed since.
    pub fn read(&mut self, hash: [u64; 2], on_standby: bool) -> Option<Option<State>> {
        let at = self.find(hash)?;
        if self.cells[at].on_standby != 0 && !on_standby {
            self.release(at);
            return None;
        }
        self.cells[at].called = 1;
        Some(self.state(at))
    }

    /// Loads a key with the state of its row, unless it is in memory.
    pub fn load(&mut self, new: NewKey, state: Option<&State>) -> Result<(), Full> {
        if self.find(new.hash).is_some() {
            return Ok(());
        }
        let texts = new.name.len() + new.key.len();
        let pieces = pieces_of(texts + LEASE * leases_of(state).len());
        self.free_capacity(pieces, (new.scope, new.name), None)?;
        let SavedHead { free_cell, cells, .. } = self.head;
        let at = next_free(free_cell, cells, |at| self.cells[at].next);
        let bucket = place(new.hash, self.buckets.len());
        self.head.keys += 1;
        self.head.hand = at as u32 + 1;
        self.cells[at] = Cell {
            key: new.hash,
            scope: new.scope,
            next: self.buckets[bucket],
            name: new.name.len() as u16,
            key_text: new.key.len() as u16,
            tag: NO_STATE,
            called: 1,
            on_standby: new.on_standby.into(),
            ..Cell::default()
        };
        self.buckets[bucket] = at as u32 + 1;
        self.put(at, &[new.name, new.key].concat());
        self.put_state(at, state);
        Ok(())
    }

    /// Stores the state of a key in memory, `None`: full, to be written after at most `save` milliseconds. Returns the
    /// time when it is due, if earlier than before. [`Full`] also if the key isn't in memory.
    pub fn set(
        &mut self,
        hash: [u64; 2],
        state: Option<&State>,
        save: u32,
        now: Micros,
    ) -> Result<Option<Micros>, Full> {
        let at = self.find(hash).ok_or(Full)?;
        if state.is_none() && Fault::ResetLeavesNoEntry.is_on() {
            self.release(at);
            return Ok(None);
        }
        let cell = self.cells[at];
        let needed = pieces_of(cell.texts() + LEASE * leases_of(state).len());
        let more = needed.saturating_sub(pieces_of(cell.length()));
        if more > 0 {
            self.free_capacity(more, (cell.scope, &[]), Some(at))?;
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

    /// Copies the unsaved keys of a scope, either those due by an instant or all, from at most `most` cells, starting
    /// at `from`. Returns the cell at which to continue; `None` at the end.
    pub fn copy(
        &self,
        from: usize,
        most: usize,
        scope: [u32; 2],
        due: Option<Micros>,
        copies: &mut Vec<SavedCopy>,
    ) -> Option<usize> {
        let cells = self.head.cells as usize;
        let end = cells.min(from + most);
        let is_due = |cell: &Cell| {
            cell.is_in(scope) && cell.is_unsaved() && due.is_none_or(|due| cell.due <= due.0)
        };
        let due = (from..end).filter(|&at| is_due(&self.cells[at]));
        copies.extend(due.map(|at| self.copy_cell(at)));
        (end < cells).then_some(end)
    }

    /// Notes the outcome of writing a copy made at `copied`. If the key has changed since, it is unsaved from
    /// `copied` on.
    pub fn finish(&mut self, copy: &SavedCopy, outcome: Outcome, copied: Micros, now: Micros) {
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

    /// Removes those keys of a name, or of a scope, that a test selects. The others become due at once. A session that
    /// has read the row of a key, and not loaded it yet, will read it again.
    pub fn remove(
        &mut self,
        scope: [u32; 2],
        name: Option<&[u8]>,
        mut test: impl FnMut(&SavedCopy) -> bool,
    ) {
        self.head.evictions = self.head.evictions.wrapping_add(1);
        for at in self.cells_of(scope, name) {
            if test(&self.copy_cell(at)) {
                self.release(at);
            } else {
                self.cells[at].due = 0;
            }
        }
    }

    /// The scopes of the keys, with repeats.
    pub fn scopes(&self) -> impl Iterator<Item = [u32; 2]> {
        self.cells.iter().filter(|cell| cell.tag != 0).map(|cell| cell.scope)
    }

    /// Whether there are keys of a name, or of a scope; `Some(true)`: some are unsaved.
    pub fn has_keys(&self, scope: [u32; 2], name: Option<&[u8]>) -> Option<bool> {
        let cells = self.cells_of(scope, name);
        (!cells.is_empty()).then(|| cells.iter().any(|&at| self.cells[at].is_unsaved()))
    }

    /// Copies the keys of a name, or of a scope, saved or not. Keys read on a standby are copied only on a standby.
    pub fn keys(&self, scope: [u32; 2], name: Option<&[u8]>, on_standby: bool) -> Vec<SavedCopy> {
        let cells = self.cells_of(scope, name).into_iter();
        let counts = |&at: &usize| on_standby || self.cells[at].on_standby == 0;
        cells.filter(counts).map(|at| self.copy_cell(at)).collect()
    }

    /// The unsaved keys of a scope, or of all.
    pub fn unsaved(&self, scope: Option<[u32; 2]>) -> Unsaved {
        let unsaved = || {
            let of = |cell: &&Cell| scope.is_none_or(|scope| cell.is_in(scope));
            self.cells.iter().filter(|cell| cell.tag != 0 && cell.is_unsaved()).filter(of)
        };
        if self.head.unsaved == 0 {
            return Unsaved::default();
        }
        let first = |at: fn(&Cell) -> i64| unsaved().map(at).min().map(Micros);
        let (since, due) = (first(|cell| cell.since), first(|cell| cell.due));
        Unsaved { keys: unsaved().count(), since, due }
    }

    /// The cells of a name, or of a scope.
    fn cells_of(&self, scope: [u32; 2], name: Option<&[u8]>) -> Vec<usize> {
        (0..self.head.cells as usize).filter(|&at| self.is_of(at, scope, name)).collect()
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

    /// Evicts saved keys until this number of pieces and a cell are free. With a cell to `keep`, only pieces, which may
    /// be the last ones.
    fn free_capacity(
        &mut self,
        pieces: usize,
        (scope, name): ([u32; 2], &[u8]),
        keep: Option<usize>,
    ) -> Result<(), Full> {
        // One in `share` is for other names.
        let mut share = if keep.is_none() { 8 } else { usize::MAX };
        loop {
            let free_cells = self.cells.len() - self.head.keys as usize;
            let free_pieces = self.pieces.len() - self.head.pieces_used as usize;
            let has_cell = keep.is_some() || free_cells > self.cells.len() / share;
            if has_cell && (pieces == 0 || free_pieces >= pieces + self.pieces.len() / share) {
                return Ok(());
            }
            if self.evict(keep) {
                continue;
            }
            if share != 8 || !self.has_less_than_half(scope, name) {
                return Err(Full);
            }
            share = usize::MAX;
        }
    }

    /// Whether a name has less than half of the unsaved keys.
    fn has_less_than_half(&self, scope: [u32; 2], name: &[u8]) -> bool {
        let unsaved = (0..self.head.cells as usize).filter(|&at| self.cells[at].is_unsaved());
        let own = unsaved.filter(|&at| self.is_of(at, scope, Some(name))).count();
        2 * own < self.head.unsaved as usize
    }

    /// Evicts a saved key; false if there is none.
    fn evict(&mut self, keep: Option<usize>) -> bool {
        let spares_unsaved = !Fault::UnsavedEvicted.is_on();
        if spares_unsaved && self.head.unsaved >= self.head.keys {
            return false;
        }
        // One round to use up the second chances, and another.
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
            NO_STATE => None,
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

    /// Stores a state in a cell. Enough pieces for its leases are free.
    fn put_state(&mut self, at: usize, state: Option<&State>) {
        let cell = self.cells[at];
        let leases = leases_of(state);
        let (tag, words) = match state {
            Some(State::Leases(leases)) => (LEASES, [leases.ts.0.cast_unsigned(), 0, 0]),
            state => state.and_then(Content::new).map_or((NO_STATE, [0; 3]), Content::encode),
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

    /// The bytes in a cell and its pieces.
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

    /// Stores bytes in a cell and its pieces. Enough of these are free.
    fn put(&mut self, cell: usize, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(INLINE));
        self.cells[cell].text.0[..first.len()].copy_from_slice(first);
        let mut free = std::mem::take(&mut self.cells[cell].rest);
        while free != 0 {
            let piece = &mut self.pieces[free as usize - 1];
            let next = std::mem::replace(&mut piece.next, self.head.free_piece);
            (self.head.free_piece, free) = (free, next);
            self.head.pieces_used -= 1;
        }
        for bytes in rest.chunks(PIECE).rev() {
            let SavedHead { free_piece, pieces, .. } = self.head;
            let at = next_free(free_piece, pieces, |at| self.pieces[at].next);
            self.head.pieces_used += 1;
            self.pieces[at] = Piece { next: self.cells[cell].rest, ..Piece::default() };
            self.pieces[at].text.0[..bytes.len()].copy_from_slice(bytes);
            self.cells[cell].rest = at as u32 + 1;
        }
    }

    /// Whether a cell is of a name, or of a scope.
    fn is_of(&self, at: usize, scope: [u32; 2], name: Option<&[u8]>) -> bool {
        let cell = &self.cells[at];
        cell.is_in(scope)
            && name.is_none_or(|name| {
                let inline = name.len().min(INLINE);
                usize::from(cell.name) == name.len()
                    && cell.text.0[..inline] == name[..inline]
                    && (name.len() <= INLINE || self.bytes(at).starts_with(name))
            })
    }

    /// Copies a cell.
    fn copy_cell(&self, at: usize) -> SavedCopy {
        let cell = &self.cells[at];
        let mut name = self.bytes(at);
        name.truncate(cell.texts());
        let key = name.split_off(usize::from(cell.name));
        let since = Micros(if cell.is_unsaved() { cell.since } else { 0 });
        SavedCopy { hash: cell.key, name, key, state: self.state(at), since, tries: cell.tries }
    }
}
