//! A hash table of states with their names and keys, for states that are written down elsewhere now and then: what
//! has changed since is never evicted.
//!
//! As a [`Partition`](crate::table::Partition) of a table, a [`SavedPartition`] borrows its memory from the caller, who
//! may share it between processes, locks it while it has one, and spreads keys over several. It has no pointers, and
//! zeroed memory is an empty partition. Unlike there a key keeps its place, so that who visits the places in several
//! steps misses none: cells are chained from buckets ([Knuth, The Art of Computer Programming 3, 6.4]), and what of a
//! name, a key and leases has no room in a cell is in a chain of other pieces.
//!
//! A key is clean, dirty or copied. A change makes it dirty; a [copy](SavedPartition::copy) of it, for the writer,
//! copied; and when that is written, and nothing has changed since, it is clean. So no write takes a later change for
//! written, and no generation is counted. Only a clean key is evicted, since its state is read again when it is called
//! next: of [`SAMPLE`] the first that is idle, or else the one that was called longest ago. Each eviction is counted:
//! who reads what is written down without a lock, and then finds that one was evicted meanwhile, has to read again.
//!
//! Where no key is clean, a new one has no place. The last eighth of the cells is for new keys of names that have less
//! than half of all that is not written down: one name can't keep others from having new keys.
//!
//! [Knuth, The Art of Computer Programming 3, 6.4]: https://www-cs-faculty.stanford.edu/~knuth/taocp.html

use crate::algorithm::{Lease, Leases};
use crate::table::{Kept, place};
use crate::{Micros, State};

/// Of how many clean keys one is dropped.
pub const SAMPLE: usize = 16;
/// The bytes of name, key and leases that a cell holds itself.
const INLINE: usize = 39;
/// The bytes of a further piece.
const PIECE: usize = 60;
/// The bytes of a lease.
const LEASE: usize = 16;

/// The tag of a key that has no state: it is full.
const FULL: u8 = 254;
/// The tag of leases, which are behind the texts; the last word is their instant.
const LEASES: u8 = 255;

/// Nothing has changed since the key was written down, or read.
const CLEAN: u8 = 0;
/// It has.
const DIRTY: u8 = 1;
/// It has, and the writer has a copy of what it is now.
const COPIED: u8 = 2;

/// A state with its name and key, in 128 bytes, or their beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub struct Cell {
    key: [u64; 2],
    words: [u64; 3],
    idle_at: i64,
    /// When it became dirty.
    since: i64,
    scope: [u32; 2],
    /// Milliseconds.
    save: u32,
    /// The next cell of its bucket, or the next free one, plus 1.
    next: u32,
    /// The piece after it, plus 1.
    rest: u32,
    /// [`SavedHead::born`] when it was called last.
    called: u32,
    name: u16,
    key_text: u16,
    leases: u16,
    /// 0: the cell is free.
    tag: u8,
    mark: u8,
    /// Whether it was read on a standby: 0 or 1.
    on_standby: u8,
    text: [u8; INLINE],
}

/// A further piece of a name, key and leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub struct Piece {
    /// The next one of its chain, or the next free one, plus 1.
    next: u32,
    text: [u8; PIECE],
}

/// What a partition knows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SavedHead {
    /// The cell that is looked at next for a key to drop.
    hand: u32,
    /// How many cells were ever taken, and the first that is free again, plus 1; the same of pieces.
    cells: u32,
    free_cell: u32,
    pieces: u32,
    free_piece: u32,
    /// How many cells and pieces are taken.
    keys: u32,
    pieces_taken: u32,
    /// How many keys are dirty or copied.
    unsaved: u32,
    /// How many keys were made, modulo 2^32.
    born: u32,
    /// How many were evicted, modulo 2^32.
    evictions: u32,
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
    /// How long it may be dirty, in milliseconds.
    pub save: u32,
    /// Whether it was read on a standby.
    pub on_standby: bool,
}

/// A key to be written down.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsaved {
    /// [`NewKey::hash`].
    pub hash: [u64; 2],
    /// The limit's name.
    pub name: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
    /// The state; `None`: it is full.
    pub state: Option<State>,
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

impl Default for Cell {
    fn default() -> Cell {
        Cell {
            key: [0; 2],
            words: [0; 3],
            idle_at: 0,
            since: 0,
            scope: [0; 2],
            save: 0,
            next: 0,
            rest: 0,
            called: 0,
            name: 0,
            key_text: 0,
            leases: 0,
            tag: 0,
            mark: CLEAN,
            on_standby: 0,
            text: [0; INLINE],
        }
    }
}

impl Default for Piece {
    fn default() -> Piece {
        Piece { next: 0, text: [0; PIECE] }
    }
}

impl Cell {
    /// Whether it is of a limit.
    fn is_of(&self, scope: [u32; 2]) -> bool {
        self.tag != 0 && self.scope == scope
    }

    /// The bytes of its name, key and leases.
    fn length(&self) -> usize {
        usize::from(self.name) + usize::from(self.key_text) + LEASE * usize::from(self.leases)
    }
}

/// How many further pieces so many bytes need.
fn pieces_of(length: usize) -> usize {
    length.saturating_sub(INLINE).div_ceil(PIECE)
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

    /// How many of them are not written down.
    pub fn unsaved(&self) -> u32 {
        self.head.unsaved
    }

    /// How many keys of a scope are not written down.
    pub fn unsaved_of(&self, scope: [u32; 2]) -> usize {
        self.cells.iter().filter(|cell| cell.is_of(scope) && cell.mark != CLEAN).count()
    }

    /// How many were removed or dropped, modulo 2^32.
    pub fn gone(&self) -> u32 {
        self.head.born.wrapping_sub(self.head.keys)
    }

    /// How many were evicted, modulo 2^32.
    pub fn evictions(&self) -> u32 {
        self.head.evictions
    }

    /// Reads the state of a key, for a call; `None`: it is not there; of a key that is full, `Some(None)`.
    pub fn call(&mut self, hash: [u64; 2]) -> Option<Option<State>> {
        let at = self.find(hash)?;
        self.cells[at].called = self.head.born;
        Some(self.state(at))
    }

    /// Whether a key is there, and was read on a standby.
    pub fn is_of_standby(&self, hash: [u64; 2]) -> bool {
        self.find(hash).is_some_and(|at| self.cells[at].on_standby != 0)
    }

    /// Puts in a key that is written down, with its state, unless it is there.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn load(&mut self, new: NewKey, state: Option<&State>, now: Micros) -> Result<(), NoRoom> {
        if self.find(new.hash).is_some() {
            return Ok(());
        }
        let leases = match state {
            Some(State::Leases(leases)) => leases.leases.len(),
            _ => 0,
        };
        let pieces = pieces_of(new.name.len() + new.key.len() + LEASE * leases);
        self.make_room(true, pieces, (new.scope, new.name), None, now)?;
        let at = match self.head.free_cell {
            0 => {
                self.head.cells += 1;
                self.head.cells as usize - 1
            }
            free => {
                let free = free as usize - 1;
                self.head.free_cell = self.cells[free].next;
                free
            }
        };
        let bucket = place(new.hash, self.buckets.len());
        self.head.keys += 1;
        self.head.born = self.head.born.wrapping_add(1);
        self.cells[at] = Cell {
            key: new.hash,
            scope: new.scope,
            save: new.save,
            next: self.buckets[bucket],
            called: self.head.born,
            name: new.name.len() as u16,
            key_text: new.key.len() as u16,
            tag: FULL,
            idle_at: i64::MIN,
            on_standby: new.on_standby.into(),
            ..Cell::default()
        };
        self.buckets[bucket] = at as u32 + 1;
        self.put(at, &[new.name, new.key].concat());
        self.put_state(at, state);
        Ok(())
    }

    /// Changes the state of a key that is there, `None` to a full one, and from when on nobody misses it; `now` is when
    /// it was. With `save` it is dirty, for so many milliseconds at most, if that is not how it was; without, on a
    /// standby, it stays clean. Returns when it is to be written where it was clean before.
    ///
    /// # Errors
    /// There is no room for more leases; it is not there.
    pub fn set(
        &mut self,
        hash: [u64; 2],
        state: Option<&State>,
        idle_at: Option<Micros>,
        (save, now): (Option<u32>, Micros),
    ) -> Result<Option<Micros>, NoRoom> {
        let at = self.find(hash).ok_or(NoRoom)?;
        let texts = self.cells[at].length() - LEASE * usize::from(self.cells[at].leases);
        if let Some(State::Leases(leases)) = state {
            let more = pieces_of(texts + LEASE * leases.leases.len())
                .saturating_sub(pieces_of(self.cells[at].length()));
            self.make_room(false, more, (self.cells[at].scope, &[]), Some(at), now)?;
        }
        self.put_state(at, state);
        let cell = &mut self.cells[at];
        cell.idle_at = match state {
            Some(_) => idle_at.map_or(i64::MAX, |at| at.0),
            None => i64::MIN,
        };
        cell.on_standby = save.is_none().into();
        let Some(save) = save else { return Ok(None) };
        cell.save = save;
        if cell.mark == DIRTY {
            return Ok(None);
        }
        cell.since = now.0;
        self.head.unsaved += u32::from(cell.mark == CLEAN);
        cell.mark = DIRTY;
        Ok(Some(Micros(now.0 + i64::from(save) * 1000)))
    }

    /// Copies the keys of a scope that are not written down and were to be by `due`, or all, at the places from `from`
    /// on, of which it looks at no more than `most`; the place to go on at, `None` at the end. There is one writer:
    /// what is copied already was by one that is gone.
    pub fn copy(
        &mut self,
        (from, most): (usize, usize),
        scope: [u32; 2],
        due: Option<Micros>,
        copies: &mut Vec<Unsaved>,
    ) -> Option<usize> {
        let cells = self.head.cells as usize;
        let end = cells.min(from + most);
        for at in from..end {
            let Cell { mark, since, save, .. } = self.cells[at];
            let is_due = due.is_none_or(|due| since + i64::from(save) * 1000 <= due.0);
            if mark != CLEAN && is_due && self.cells[at].is_of(scope) {
                self.cells[at].mark = COPIED;
                copies.push(self.of(at));
            }
        }
        (end < cells).then_some(end)
    }

    /// Notes that the copy of a key was written, or was not: then it is dirty again.
    pub fn settle(&mut self, hash: [u64; 2], is_written: bool) {
        let Some(at) = self.find(hash).filter(|&at| self.cells[at].mark == COPIED) else { return };
        if is_written {
            self.cells[at].mark = CLEAN;
            self.head.unsaved -= 1;
        } else {
            self.cells[at].mark = DIRTY;
        }
    }

    /// Has whoever is about to put in a key, as its row was read before, read it again.
    pub fn move_on(&mut self) {
        self.head.evictions = self.head.evictions.wrapping_add(1);
    }

    /// Evicts the keys of a name that are written down, to be read anew.
    pub fn forget_clean(&mut self, scope: [u32; 2], name: &[u8]) {
        for at in 0..self.head.cells as usize {
            if self.cells[at].mark == CLEAN && self.is_of_name(at, scope, name) {
                self.head.evictions = self.head.evictions.wrapping_add(1);
                self.release(at);
            }
        }
    }

    /// Removes the keys of scopes that a test picks.
    pub fn remove_scopes(&mut self, mut test: impl FnMut([u32; 2]) -> bool) {
        for at in 0..self.head.cells as usize {
            if self.cells[at].tag != 0 && test(self.cells[at].scope) {
                self.release(at);
            }
        }
    }

    /// The scopes of the keys at all places, some of them several times.
    pub fn scopes(&self) -> impl Iterator<Item = [u32; 2]> {
        self.cells.iter().filter(|cell| cell.tag != 0).map(|cell| cell.scope)
    }

    /// The keys of a name, or of all, with their states, whether written down or not.
    pub fn keys(&self, scope: [u32; 2], name: Option<&[u8]>) -> Vec<Unsaved> {
        let is_of_name = |at| name.is_none_or(|name| self.is_of_name(at, scope, name));
        let cells = 0..self.head.cells as usize;
        let of = cells.filter(|&at| self.cells[at].is_of(scope) && is_of_name(at));
        of.map(|at| self.of(at)).collect()
    }

    /// Whether a key of a name is not written down.
    pub fn has_unsaved(&self, scope: [u32; 2], name: &[u8]) -> bool {
        let is_unsaved = |&at: &usize| self.cells[at].mark != CLEAN;
        let mut unsaved = (0..self.head.cells as usize).filter(is_unsaved);
        unsaved.any(|at| self.is_of_name(at, scope, name))
    }

    /// When the key that has been dirty longest became so.
    pub fn oldest(&self) -> Option<Micros> {
        let unsaved = self.cells.iter().filter(|cell| cell.tag != 0 && cell.mark != CLEAN);
        unsaved.map(|cell| Micros(cell.since)).min()
    }

    /// When the next key of a scope is to be written.
    pub fn due(&self, scope: [u32; 2]) -> Option<Micros> {
        let dirty = self.cells.iter().filter(|cell| cell.is_of(scope) && cell.mark != CLEAN);
        dirty.map(|cell| Micros(cell.since + i64::from(cell.save) * 1000)).min()
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

    /// Evicts clean keys until so much is free. What is not a new key may use all that is there.
    ///
    /// # Errors
    /// There is none left.
    fn make_room(
        &mut self,
        is_new: bool,
        pieces: usize,
        (scope, name): ([u32; 2], &[u8]),
        keep: Option<usize>,
        now: Micros,
    ) -> Result<(), NoRoom> {
        let mut may_use_reserve = !is_new;
        loop {
            let free_cells = self.cells.len() - self.head.keys as usize;
            let free_pieces = self.pieces.len() - self.head.pieces_taken as usize;
            let (reserve, reserved) = if may_use_reserve {
                (0, 0)
            } else {
                (self.cells.len() / 8, self.pieces.len() / 8)
            };
            let has_cell = !is_new || free_cells > reserve;
            if has_cell && (pieces == 0 || free_pieces >= pieces + reserved) {
                return Ok(());
            }
            if self.evict(keep, now) {
                continue;
            }
            if may_use_reserve || !self.has_less_than_half(scope, name) {
                return Err(NoRoom);
            }
            may_use_reserve = true;
        }
    }

    /// Whether a name has less than half of what is not written down.
    fn has_less_than_half(&self, scope: [u32; 2], name: &[u8]) -> bool {
        let unsaved = (0..self.head.cells as usize).filter(|&at| self.cells[at].mark != CLEAN);
        let own = unsaved.filter(|&at| self.is_of_name(at, scope, name)).count();
        2 * own < self.head.unsaved as usize
    }

    /// Evicts a clean key; false if there is none.
    fn evict(&mut self, keep: Option<usize>, now: Micros) -> bool {
        if self.head.unsaved >= self.head.keys {
            return false;
        }
        let cells = self.head.cells as usize;
        let hand = self.head.hand as usize % cells.max(1);
        let (mut first, mut seen) = (None, 0);
        for at in (hand..cells).chain(0..hand) {
            let cell = &self.cells[at];
            if cell.tag == 0 || cell.mark != CLEAN || keep == Some(at) {
                continue;
            }
            let age = self.head.born.wrapping_sub(cell.called);
            first = first.max(Some((cell.idle_at <= now.0, age, at)));
            seen += 1;
            if seen == SAMPLE || cell.idle_at <= now.0 {
                self.head.hand = at as u32 + 1;
                break;
            }
        }
        let Some((_, _, at)) = first else { return false };
        self.head.evictions = self.head.evictions.wrapping_add(1);
        self.release(at);
        true
    }

    /// Frees a cell.
    fn release(&mut self, at: usize) {
        let bucket = place(self.cells[at].key, self.buckets.len());
        let next = self.cells[at].next;
        let mut before = self.buckets[bucket];
        if before as usize == at + 1 {
            self.buckets[bucket] = next;
        } else {
            while self.cells[before as usize - 1].next as usize != at + 1 {
                before = self.cells[before as usize - 1].next;
            }
            self.cells[before as usize - 1].next = next;
        }
        self.put(at, &[]);
        self.head.keys -= 1;
        self.head.unsaved -= u32::from(self.cells[at].mark != CLEAN);
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
                let (texts, _) = bytes.split_at(bytes.len() - LEASE * usize::from(cell.leases));
                let instant = |bytes: &[u8]| Micros(bytes.try_into().map_or(0, i64::from_le_bytes));
                let lease = |bytes: &[u8]| Lease {
                    id: instant(&bytes[..LEASE / 2]),
                    expires_at: instant(&bytes[LEASE / 2..]),
                };
                let leases = bytes[texts.len()..].chunks_exact(LEASE).map(lease).collect();
                Some(State::Leases(Leases { leases, ts: Micros(cell.words[0].cast_signed()) }))
            }
            tag => Kept::decode(tag, cell.words).state(),
        }
    }

    /// Puts a state into a cell, for whose leases there is room.
    fn put_state(&mut self, at: usize, state: Option<&State>) {
        let cell = self.cells[at];
        let texts = cell.length() - LEASE * usize::from(cell.leases);
        let had_leases = cell.leases > 0;
        let (tag, words, leases) = match state {
            Some(State::Leases(leases)) => {
                (LEASES, [leases.ts.0.cast_unsigned(), 0, 0], &leases.leases[..])
            }
            state => {
                let kept = state.and_then(Kept::of).map(Kept::encode);
                let (tag, words) = kept.unwrap_or((FULL, [0; 3]));
                (tag, words, &[][..])
            }
        };
        if had_leases || !leases.is_empty() {
            let mut bytes = self.bytes(at);
            bytes.truncate(texts);
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
        let length = cell.length();
        let mut bytes = cell.text[..length.min(INLINE)].to_vec();
        let mut next = cell.rest;
        while next != 0 && bytes.len() < length {
            let piece = &self.pieces[next as usize - 1];
            bytes.extend(&piece.text[..(length - bytes.len()).min(PIECE)]);
            next = piece.next;
        }
        bytes
    }

    /// Puts bytes into a cell and into pieces after it, of which there are enough.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(INLINE));
        self.cells[at].text[..first.len()].copy_from_slice(first);
        let mut free = std::mem::take(&mut self.cells[at].rest);
        while free != 0 {
            let piece = &mut self.pieces[free as usize - 1];
            let next = std::mem::replace(&mut piece.next, self.head.free_piece);
            (self.head.free_piece, free) = (free, next);
            self.head.pieces_taken -= 1;
        }
        let mut last: Option<usize> = None;
        for bytes in rest.chunks(PIECE) {
            let piece = match self.head.free_piece {
                0 => {
                    self.head.pieces += 1;
                    self.head.pieces as usize - 1
                }
                free => {
                    self.head.free_piece = self.pieces[free as usize - 1].next;
                    free as usize - 1
                }
            };
            self.head.pieces_taken += 1;
            self.pieces[piece] = Piece::default();
            self.pieces[piece].text[..bytes.len()].copy_from_slice(bytes);
            let link = match last {
                None => &mut self.cells[at].rest,
                Some(last) => &mut self.pieces[last].next,
            };
            *link = piece as u32 + 1;
            last = Some(piece);
        }
    }

    /// Whether a cell is of a name.
    fn is_of_name(&self, at: usize, scope: [u32; 2], name: &[u8]) -> bool {
        let cell = &self.cells[at];
        let inline = name.len().min(INLINE);
        cell.is_of(scope)
            && usize::from(cell.name) == name.len()
            && cell.text[..inline] == name[..inline]
            && (name.len() <= INLINE || self.bytes(at).starts_with(name))
    }

    /// What is in a cell.
    fn of(&self, at: usize) -> Unsaved {
        let cell = &self.cells[at];
        let mut name = self.bytes(at);
        name.truncate(usize::from(cell.name) + usize::from(cell.key_text));
        let key = name.split_off(usize::from(cell.name));
        Unsaved { hash: cell.key, name, key, state: self.state(at) }
    }
}
