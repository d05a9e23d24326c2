//! The partitions of states and of saved states, each with a lock of its own.
//!
//! A partition that is written comes from a guard that is borrowed for it, so that there is one at a time; guards of
//! several partitions can be there at once:
//!
//! ```compile_fail,E0499
//! # use ratelimit_memory::{PartitionWriteGuard, ReadWriteLock};
//! fn twice<L: ReadWriteLock>(guard: &mut PartitionWriteGuard<'_, L>) {
//!     let (mut one, mut other) = (guard.partition(), guard.partition());
//!     assert!(one.remove_entry([1, 2]) && other.remove_entry([1, 2]));
//! }
//! ```
//!
//! and what is found in it does not outlive the guard:
//!
//! ```compile_fail,E0597
//! # use ratelimit_memory::{Partitions, ReadWriteLock};
//! # fn f<L: ReadWriteLock>(partitions: &Partitions<'_, L>) {
//! let entry = {
//!     let guard = partitions.read(0);
//!     guard.view().find([1, 2])
//! };
//! assert!(entry.is_none());
//! # }
//! ```

use std::cell::UnsafeCell;
use std::slice;

use crate::lock::{Guarded, ReadGuard, ReadWriteLock, WriteGuard};
use crate::saved::{Cell, Piece, SavedHead, SavedPartition};
use crate::states::{Entry, Head, Partition, PartitionView, place};

/// An array for each partition, one after the other. Only the guard of a partition's head makes references
/// into its array.
struct Arrays<'a, T> {
    all: &'a [UnsafeCell<T>],
    /// The length of each array.
    each: usize,
}

// SAFETY: as `Guarded`: its guards guard the arrays, too.
unsafe impl<T: Send + Sync> Sync for Arrays<'_, T> {}

impl<'a, T> Arrays<'a, T> {
    /// Views the arrays of some partitions, and moves the address behind them.
    ///
    /// # Safety
    /// As [`Partitions::at`]; the address is aligned for a `T`.
    unsafe fn at(address: &mut *mut u8, partitions: usize, each: usize) -> Arrays<'a, T> {
        // SAFETY: as the caller says. The references are to cells, and allow no access to their contents.
        unsafe {
            let all = slice::from_raw_parts(address.cast::<UnsafeCell<T>>(), partitions * each);
            *address = address.add(size_of_val(all));
            Arrays { all, each }
        }
    }

    /// The array of a partition.
    #[inline]
    fn slice(&self, partition: usize) -> *mut [T] {
        let cells = &self.all[partition * self.each..][..self.each];
        std::ptr::slice_from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), self.each)
    }
}

/// Views the heads of partitions, and moves the address behind them.
///
/// # Safety
/// As [`Partitions::at`].
unsafe fn heads_at<'a, L, H>(address: &mut *mut u8, partitions: usize) -> &'a [Guarded<L, H>] {
    // SAFETY: as the caller says; locks are made to be shared, and the values are in cells.
    unsafe {
        let heads = slice::from_raw_parts(address.cast::<Guarded<L, H>>(), partitions);
        *address = address.add(size_of_val(heads));
        heads
    }
}

/// The size in bytes of the heads of partitions plus a number of bytes after them.
const fn size<L, H>(partitions: usize, bytes: usize) -> usize {
    size_of::<Guarded<L, H>>() * partitions + bytes.next_multiple_of(128)
}

/// Partitions of states, with the same number of places each.
pub struct Partitions<'a, L> {
    heads: &'a [Guarded<L, Head>],
    places: Arrays<'a, Entry>,
}

/// A partition locked for reading, until this is dropped.
pub struct PartitionReadGuard<'a, L: ReadWriteLock + 'a> {
    places: *const [Entry],
    head: ReadGuard<'a, L, Head>,
}

/// A partition locked exclusively, until this is dropped.
pub struct PartitionWriteGuard<'a, L: ReadWriteLock + 'a> {
    places: *mut [Entry],
    head: WriteGuard<'a, L, Head>,
}

impl<'a, L: ReadWriteLock> Partitions<'a, L> {
    /// The size in bytes of partitions with a number of places each.
    pub const fn size(partitions: usize, places: usize) -> usize {
        size::<L, Head>(partitions, size_of::<Entry>() * places * partitions)
    }

    /// Views partitions, with at least one place each.
    ///
    /// # Safety
    /// At the address, a multiple of 128, there are [that many](Partitions::size) bytes for as long as `'a`: zeros,
    /// which are locks that are free or unused until they are initialized, or what other sessions have made
    /// of that. They are accessed only through `Partitions` with the same numbers.
    pub unsafe fn at(mut address: *mut u8, partitions: usize, places: usize) -> Partitions<'a, L> {
        // SAFETY: as the caller says.
        unsafe {
            let heads = heads_at(&mut address, partitions);
            Partitions { heads, places: Arrays::at(&mut address, partitions, places) }
        }
    }

    /// The locks, to be initialized.
    pub fn locks(&self) -> impl Iterator<Item = &'a L> {
        self.heads.iter().map(Guarded::lock)
    }

    /// Locks a partition for reading.
    #[inline]
    pub fn read(&self, number: usize) -> PartitionReadGuard<'a, L> {
        let (places, head) = (self.places.slice(number), self.heads[number].read());
        PartitionReadGuard { places, head }
    }

    /// Locks a partition exclusively.
    #[inline]
    pub fn write(&self, number: usize) -> PartitionWriteGuard<'a, L> {
        let (places, head) = (self.places.slice(number), self.heads[number].write());
        PartitionWriteGuard { places, head }
    }

    /// The address at which the search for a key begins, to be prefetched.
    #[inline]
    pub fn address(&self, number: usize, key: [u64; 2]) -> *const Entry {
        let Arrays { all, each } = self.places;
        all[number * each..][..each][place(key, each)].get()
    }
}

impl<L: ReadWriteLock> PartitionReadGuard<'_, L> {
    /// The partition to read.
    #[inline]
    pub fn view(&self) -> PartitionView<'_> {
        // SAFETY: the places belong to the head that this guard has locked for reading, for as long as `self` is
        // borrowed; `&mut` to them is made under that lock taken exclusively only.
        PartitionView::new(&self.head, unsafe { &*self.places })
    }
}

impl<L: ReadWriteLock> PartitionWriteGuard<'_, L> {
    /// The partition to read and write.
    #[inline]
    pub fn partition(&mut self) -> Partition<'_> {
        // SAFETY: the places belong to the head that this guard has locked exclusively, and `self` is borrowed as a
        // whole: no other guard has them, and this one gives them out once. Other partitions have other places.
        Partition::new(&mut self.head, unsafe { &mut *self.places })
    }
}

/// Partitions of saved states, for the same number of keys each. Locked exclusively, even for reading.
pub struct SavedPartitions<'a, L> {
    heads: &'a [Guarded<L, SavedHead>],
    cells: Arrays<'a, Cell>,
    pieces: Arrays<'a, Piece>,
    buckets: Arrays<'a, u32>,
}

/// A partition of saved states, locked until this is dropped.
pub struct SavedGuard<'a, L: ReadWriteLock + 'a> {
    cells: *mut [Cell],
    pieces: *mut [Piece],
    buckets: *mut [u32],
    head: WriteGuard<'a, L, SavedHead>,
}

impl<'a, L: ReadWriteLock> SavedPartitions<'a, L> {
    /// The size in bytes of partitions for a number of keys each.
    pub const fn size(partitions: usize, keys: usize) -> usize {
        let each = size_of::<Cell>() + size_of::<Piece>() + size_of::<u32>();
        size::<L, SavedHead>(partitions, each * keys * partitions)
    }

    /// Views partitions, for at least one key each.
    ///
    /// # Safety
    /// As [`Partitions::at`].
    pub unsafe fn at(mut address: *mut u8, partitions: usize, keys: usize) -> Self {
        // SAFETY: as the caller says; the size of each array is a multiple of the next one's alignment.
        unsafe {
            SavedPartitions {
                heads: heads_at(&mut address, partitions),
                cells: Arrays::at(&mut address, partitions, keys),
                pieces: Arrays::at(&mut address, partitions, keys),
                buckets: Arrays::at(&mut address, partitions, keys),
            }
        }
    }

    /// The locks, to be initialized.
    pub fn locks(&self) -> impl Iterator<Item = &'a L> {
        self.heads.iter().map(Guarded::lock)
    }

    /// Locks a partition.
    #[inline]
    pub fn lock(&self, number: usize) -> SavedGuard<'a, L> {
        SavedGuard {
            cells: self.cells.slice(number),
            pieces: self.pieces.slice(number),
            buckets: self.buckets.slice(number),
            head: self.heads[number].write(),
        }
    }
}

impl<L: ReadWriteLock> SavedGuard<'_, L> {
    /// The partition.
    #[inline]
    pub fn partition(&mut self) -> SavedPartition<'_> {
        // SAFETY: the arrays belong to the head that this guard has locked exclusively, and `self` is borrowed as a
        // whole: no other guard has them, and this one gives them out once. Other partitions have others.
        let (cells, pieces, buckets) =
            unsafe { (&mut *self.cells, &mut *self.pieces, &mut *self.buckets) };
        SavedPartition::new(&mut self.head, buckets, cells, pieces)
    }
}
