//! The partitions of a table of saved states, each with a lock of its own: as [`Partitions`](crate::Partitions), but
//! looked at by one session at a time, also to read.

use std::cell::UnsafeCell;
use std::slice;

use crate::saved::{Cell, Piece, SavedHead, SavedPartition};

use crate::lock::{Guarded, ReadWriteLock, WriteGuard};

/// Some partitions with room for as many keys each: what they know of themselves, with their locks, and then the cells,
/// the further pieces and the buckets of all.
pub struct SavedPartitions<'a, L> {
    heads: &'a [Guarded<L, SavedHead>],
    /// Those of a partition are looked at by who has a guard of its head.
    cells: &'a [UnsafeCell<Cell>],
    pieces: &'a [UnsafeCell<Piece>],
    buckets: &'a [UnsafeCell<u32>],
    /// How many cells, pieces and buckets a partition has.
    each: usize,
}

// SAFETY: as `Guarded`, whose guards guard the cells, the pieces and the buckets, too.
unsafe impl<L: Sync> Sync for SavedPartitions<'_, L> {}

/// A partition that nobody else looks at as long as this is there.
pub struct SavedGuard<'a, L: ReadWriteLock + 'a> {
    cells: *mut Cell,
    pieces: *mut Piece,
    buckets: *mut u32,
    count: usize,
    head: WriteGuard<'a, L, SavedHead>,
}

impl<'a, L: ReadWriteLock> SavedPartitions<'a, L> {
    /// How many bytes they take, with room for so many keys each.
    pub const fn size(partitions: usize, keys: usize) -> usize {
        let each = size_of::<Cell>() + size_of::<Piece>() + size_of::<u32>();
        let all = each * keys * partitions;
        size_of::<Guarded<L, SavedHead>>() * partitions + all.next_multiple_of(128)
    }

    /// Looks at partitions, with room for at least one key each.
    ///
    /// # Safety
    /// As [`Partitions::at`](crate::Partitions::at).
    pub unsafe fn at(address: *mut u8, partitions: usize, keys: usize) -> SavedPartitions<'a, L> {
        let all = partitions * keys;
        // SAFETY: as the caller says, they are there, and each part is at a multiple of its alignment: those before it
        // are as long as some of it. The references are to cells, and say nothing of who reads or writes what is in
        // them.
        unsafe {
            let heads = slice::from_raw_parts(address.cast::<Guarded<L, SavedHead>>(), partitions);
            let begin = address.add(size_of_val(heads));
            let cells = slice::from_raw_parts(begin.cast::<UnsafeCell<Cell>>(), all);
            let begin = begin.add(size_of_val(cells));
            let pieces = slice::from_raw_parts(begin.cast::<UnsafeCell<Piece>>(), all);
            let begin = begin.add(size_of_val(pieces));
            let buckets = slice::from_raw_parts(begin.cast::<UnsafeCell<u32>>(), all);
            SavedPartitions { heads, cells, pieces, buckets, each: keys }
        }
    }

    /// The locks, to be initialized.
    pub fn locks(&self) -> impl Iterator<Item = &'a L> {
        self.heads.iter().map(Guarded::lock)
    }

    /// Waits until nobody else looks at a partition.
    #[inline]
    pub fn lock(&self, number: usize) -> SavedGuard<'a, L> {
        fn of<T>(all: &[UnsafeCell<T>], number: usize, each: usize) -> *mut T {
            UnsafeCell::raw_get(all[number * each..][..each].as_ptr())
        }
        let head = self.heads[number].write();
        SavedGuard {
            cells: of(self.cells, number, self.each),
            pieces: of(self.pieces, number, self.each),
            buckets: of(self.buckets, number, self.each),
            count: self.each,
            head,
        }
    }
}

impl<L: ReadWriteLock> SavedGuard<'_, L> {
    /// The partition.
    #[inline]
    pub fn partition(&mut self) -> SavedPartition<'_> {
        // SAFETY: cells, pieces and buckets are those of the head whose lock is held exclusively, and `self` is
        // borrowed as a whole for as long as this is there: no other guard has them, and this one gives them out once.
        // Other partitions have others.
        let (cells, pieces, buckets) = unsafe {
            (
                slice::from_raw_parts_mut(self.cells, self.count),
                slice::from_raw_parts_mut(self.pieces, self.count),
                slice::from_raw_parts_mut(self.buckets, self.count),
            )
        };
        SavedPartition::new(&mut self.head, buckets, cells, pieces)
    }
}
