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

use std::slice;

use crate::lock::{Guarded, ReadGuard, ReadWriteLock, WriteGuard};
use crate::saved::{Cell, Piece, SavedHead, SavedPartition};
use crate::states::{Entry, Head, Partition, PartitionView, place};

/// The head of a partition, which has arrays of the same length besides.
pub trait PartHead {
    /// The size in bytes of a place in all of them.
    const PLACE: usize;
}

impl PartHead for Head {
    const PLACE: usize = size_of::<Entry>();
}

/// Its arrays begin with that of the greatest alignment, and the size of each is a multiple of the next one's.
impl PartHead for SavedHead {
    const PLACE: usize = size_of::<Cell>() + size_of::<Piece>() + size_of::<u32>();
}

/// Partitions with the same number of places each.
pub struct Parts<'a, L, H> {
    heads: &'a [Guarded<L, H>],
    /// The arrays of each partition, one after the other. Only the guard of a partition's head makes references into
    /// them.
    arrays: *mut u8,
    places: usize,
}

/// Partitions of states.
pub type Partitions<'a, L> = Parts<'a, L, Head>;
/// Partitions of saved states, for as many keys each as they have places. Sessions lock them exclusively, also to read.
pub type SavedPartitions<'a, L> = Parts<'a, L, SavedHead>;

/// A partition locked by the guard of its head, until this is dropped.
pub struct PartGuard<G> {
    arrays: *mut u8,
    places: usize,
    head: G,
}

/// A partition of states locked for reading.
pub type PartitionReadGuard<'a, L> = PartGuard<ReadGuard<'a, L, Head>>;
/// A partition of states locked exclusively.
pub type PartitionWriteGuard<'a, L> = PartGuard<WriteGuard<'a, L, Head>>;
/// A partition of saved states, locked.
pub type SavedGuard<'a, L> = PartGuard<WriteGuard<'a, L, SavedHead>>;

impl<'a, L: ReadWriteLock, H: PartHead> Parts<'a, L, H> {
    /// The size in bytes of partitions with a number of places each.
    pub const fn size(partitions: usize, places: usize) -> usize {
        (size_of::<Guarded<L, H>>() + Self::arrays(places)) * partitions
    }

    /// The size in bytes of the arrays of a partition.
    const fn arrays(places: usize) -> usize {
        (H::PLACE * places).next_multiple_of(128)
    }

    /// Views partitions, with at least one place each.
    ///
    /// # Safety
    /// At the address, a multiple of 128, there are [that many](Parts::size) bytes for as long as `'a`: zeros,
    /// which are locks that are free or unused until they are initialized, or what other sessions have made
    /// of that. They are accessed only through this type with the same numbers.
    pub unsafe fn at(address: *mut u8, partitions: usize, places: usize) -> Self {
        // SAFETY: as the caller says; locks are made to be shared, and the values are in cells.
        unsafe {
            let heads = slice::from_raw_parts(address.cast::<Guarded<L, H>>(), partitions);
            Parts { heads, arrays: address.add(size_of_val(heads)), places }
        }
    }

    /// The locks, to be initialized.
    pub fn locks(&self) -> impl Iterator<Item = &'a L> {
        self.heads.iter().map(Guarded::lock)
    }

    /// Locks a partition for reading.
    #[inline]
    pub fn read(&self, number: usize) -> PartGuard<ReadGuard<'a, L, H>> {
        self.locked(number, self.heads[number].read())
    }

    /// Locks a partition exclusively.
    #[inline]
    pub fn write(&self, number: usize) -> PartGuard<WriteGuard<'a, L, H>> {
        self.locked(number, self.heads[number].write())
    }

    #[inline]
    fn locked<G>(&self, number: usize, head: G) -> PartGuard<G> {
        PartGuard { arrays: self.arrays_of(number), places: self.places, head }
    }

    /// The address of a partition's arrays.
    #[inline]
    fn arrays_of(&self, number: usize) -> *mut u8 {
        self.arrays.wrapping_add(number * Self::arrays(self.places))
    }
}

impl<L: ReadWriteLock> Partitions<'_, L> {
    /// The address at which the search for a key begins, to be prefetched.
    #[inline]
    pub fn address(&self, number: usize, key: [u64; 2]) -> *const Entry {
        self.arrays_of(number).cast::<Entry>().wrapping_add(place(key, self.places))
    }
}

impl<L: ReadWriteLock> PartitionReadGuard<'_, L> {
    /// The partition to read.
    #[inline]
    pub fn view(&self) -> PartitionView<'_> {
        // SAFETY: the array belongs to the head that this guard has locked for reading, for as long as `self` is
        // borrowed; `&mut` to it is made under that lock taken exclusively only. Any content is an entry.
        let entries = unsafe { slice::from_raw_parts(self.arrays.cast(), self.places) };
        PartitionView::new(&self.head, entries)
    }
}

impl<L: ReadWriteLock> PartitionWriteGuard<'_, L> {
    /// The partition to read and write.
    #[inline]
    pub fn partition(&mut self) -> Partition<'_> {
        // SAFETY: the array belongs to the head that this guard has locked exclusively, and `self` is borrowed as a
        // whole: no other guard has it, and this one gives it out once. Other partitions have others.
        let entries = unsafe { slice::from_raw_parts_mut(self.arrays.cast(), self.places) };
        Partition::new(&mut self.head, entries)
    }
}

impl<L: ReadWriteLock> SavedGuard<'_, L> {
    /// The partition.
    #[inline]
    pub fn partition(&mut self) -> SavedPartition<'_> {
        let (cells, places) = (self.arrays.cast::<Cell>(), self.places);
        let pieces = cells.wrapping_add(places).cast::<Piece>();
        let buckets = pieces.wrapping_add(places).cast();
        // SAFETY: as for a partition of states; the arrays follow each other.
        let (cells, pieces, buckets) = unsafe {
            (
                slice::from_raw_parts_mut(cells, places),
                slice::from_raw_parts_mut(pieces, places),
                slice::from_raw_parts_mut(buckets, places),
            )
        };
        SavedPartition::new(&mut self.head, buckets, cells, pieces)
    }
}
