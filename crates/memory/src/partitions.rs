//! The partitions of a table of states, each with a lock of its own.
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

use crate::states::{Entry, Head, Partition, PartitionView, place};

use crate::lock::{Guarded, ReadGuard, ReadWriteLock, WriteGuard};

/// Some partitions with as many places each: what they know of themselves, with their locks, and then the places of
/// all.
pub struct Partitions<'a, L> {
    heads: &'a [Guarded<L, Head>],
    /// Those of a partition are looked at by who has a guard of its head, and as that guard allows.
    places: &'a [UnsafeCell<Entry>],
    /// How many places a partition has.
    each: usize,
}

// SAFETY: as `Guarded`, whose guards guard the places, too.
unsafe impl<L: Sync> Sync for Partitions<'_, L> {}

/// A partition that nobody changes as long as this is there.
pub struct PartitionReadGuard<'a, L: ReadWriteLock + 'a> {
    places: *const Entry,
    count: usize,
    head: ReadGuard<'a, L, Head>,
}

/// A partition that nobody else looks at as long as this is there.
pub struct PartitionWriteGuard<'a, L: ReadWriteLock + 'a> {
    places: *mut Entry,
    count: usize,
    head: WriteGuard<'a, L, Head>,
}

impl<'a, L: ReadWriteLock> Partitions<'a, L> {
    /// How many bytes they take, with so many places each.
    pub const fn size(partitions: usize, places: usize) -> usize {
        let places = size_of::<Entry>() * places * partitions;
        size_of::<Guarded<L, Head>>() * partitions + places.next_multiple_of(128)
    }

    /// Looks at partitions, with at least one place each.
    ///
    /// # Safety
    /// At the address, a multiple of 128, there are [so many](Partitions::size) bytes for as long as `'a`: zeros, which
    /// are locks that are free or that nobody uses before they are initialized, or what other sessions have made of
    /// that. Whoever looks at them does so through `Partitions` of the same numbers.
    pub unsafe fn at(address: *mut u8, partitions: usize, places: usize) -> Partitions<'a, L> {
        // SAFETY: as the caller says, they are there. The references are to cells (and locks, which are made to be
        // shared): they say nothing of who reads or writes what is inside.
        unsafe {
            let heads = slice::from_raw_parts(address.cast::<Guarded<L, Head>>(), partitions);
            let begin = address.add(size_of_val(heads)).cast::<UnsafeCell<Entry>>();
            let all = slice::from_raw_parts(begin, partitions * places);
            Partitions { heads, places: all, each: places }
        }
    }

    /// The locks, to be initialized.
    pub fn locks(&self) -> impl Iterator<Item = &'a L> {
        self.heads.iter().map(Guarded::lock)
    }

    /// Waits until nobody writes to a partition.
    #[inline]
    pub fn read(&self, number: usize) -> PartitionReadGuard<'a, L> {
        let (places, head) = (self.places(number), self.heads[number].read());
        PartitionReadGuard { places, count: self.each, head }
    }

    /// Waits until nobody else reads a partition, or writes to it.
    #[inline]
    pub fn write(&self, number: usize) -> PartitionWriteGuard<'a, L> {
        let (places, head) = (self.places(number), self.heads[number].write());
        PartitionWriteGuard { places, count: self.each, head }
    }

    /// Where the search for a key begins, for who asks the processor for it beforehand.
    #[inline]
    pub fn address(&self, number: usize, key: [u64; 2]) -> *const Entry {
        self.places[number * self.each..][..self.each][place(key, self.each)].get()
    }

    /// The places of a partition, of which only a guard makes references.
    #[inline]
    fn places(&self, number: usize) -> *mut Entry {
        UnsafeCell::raw_get(self.places[number * self.each..][..self.each].as_ptr())
    }
}

impl<L: ReadWriteLock> PartitionReadGuard<'_, L> {
    /// The partition to read.
    #[inline]
    pub fn view(&self) -> PartitionView<'_> {
        // SAFETY: the places are those of the head whose lock is held, shared, as long as `self` is borrowed for this;
        // `&mut` to them is made under that lock held exclusively only.
        let places = unsafe { slice::from_raw_parts(self.places, self.count) };
        PartitionView::new(&self.head, places)
    }
}

impl<L: ReadWriteLock> PartitionWriteGuard<'_, L> {
    /// The partition to read and write.
    #[inline]
    pub fn partition(&mut self) -> Partition<'_> {
        // SAFETY: the places are those of the head whose lock is held exclusively, and `self` is borrowed as a whole
        // for as long as this is there: no other guard has them, and this one gives them out once. Other partitions
        // have other places.
        let places = unsafe { slice::from_raw_parts_mut(self.places, self.count) };
        Partition::new(&mut self.head, places)
    }
}
