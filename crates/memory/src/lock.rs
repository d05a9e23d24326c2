//! A value with its lock, in memory that several sessions share.
//!
//! `&mut` to the value comes from a [`WriteGuard`] alone, of which there is one at a time, and lives no longer than
//! the guard is borrowed for it:
//!
//! ```compile_fail,E0499
//! # use ratelimit_memory::{ReadWriteLock, WriteGuard};
//! fn twice<L: ReadWriteLock>(guard: &mut WriteGuard<'_, L, u64>) {
//!     let (one, other) = (&mut **guard, &mut **guard);
//!     std::mem::swap(one, other);
//! }
//! ```
//!
//! and who holds the lock shared can't write:
//!
//! ```compile_fail,E0594
//! # use ratelimit_memory::{ReadGuard, ReadWriteLock};
//! fn write<L: ReadWriteLock>(mut guard: ReadGuard<'_, L, u64>) {
//!     *guard = 1;
//! }
//! ```

use std::ops::{Deref, DerefMut};

use crate::sync::{ConstPtr, MutPtr, UnsafeCell};

/// A lock that lies in the memory that it guards.
///
/// # Safety
/// The guard holds the lock: from when `exclusive` returns until its [guard](ReadWriteLock::Guard) is dropped,
/// no other call of either function returns, in no session and not in the same one (it waits, for ever if it must);
/// from when `shared` returns until that is dropped, none of `exclusive` does. The present holder sees
/// everything written under the lock before. If a lock also ends otherwise, as PostgreSQL's do with their transaction,
/// the implementor makes sure that no hold outlives that.
pub unsafe trait ReadWriteLock {
    /// Holds the lock until dropped, or longer.
    type Guard<'a>
    where
        Self: 'a;

    /// Waits until the lock is not held exclusively.
    fn shared(&self) -> Self::Guard<'_>;

    /// Waits until the lock is free.
    fn exclusive(&self) -> Self::Guard<'_>;
}

/// A value with its lock. Zeroed memory is valid if zeros are a free lock and a valid value.
#[repr(C, align(128))]
pub struct Guarded<L, T> {
    lock: L,
    value: UnsafeCell<T>,
}

// SAFETY: `&T` is given to several threads at once, under a shared lock, and `&mut T` to one after another.
unsafe impl<L: Sync, T: Send + Sync> Sync for Guarded<L, T> {}

impl<L: ReadWriteLock, T> Guarded<L, T> {
    /// The lock itself, to initialize or inspect it.
    pub fn lock(&self) -> &L {
        &self.lock
    }

    /// Waits for a writer.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, L, T> {
        let guard = self.lock.shared();
        ReadGuard { value: self.value.get(), _guard: guard }
    }

    /// Waits for readers and writers.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, L, T> {
        let guard = self.lock.exclusive();
        WriteGuard { value: self.value.get_mut(), _guard: guard }
    }
}

/// A value that does not change while this exists.
///
/// Holds a pointer to the value instead of a reference: a reference would have to be valid to the end of a function
/// that this is moved into, beyond the end of the lock. The pointer comes first.
pub struct ReadGuard<'a, L: ReadWriteLock + 'a, T> {
    value: ConstPtr<T>,
    _guard: L::Guard<'a>,
}

/// A value that nothing else reads while this exists; a pointer, as in a [`ReadGuard`].
pub struct WriteGuard<'a, L: ReadWriteLock + 'a, T> {
    value: MutPtr<T>,
    _guard: L::Guard<'a>,
}

impl<'a, L: ReadWriteLock + 'a, T> Deref for ReadGuard<'a, L, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value lies in a `Guarded`, which is borrowed for as long as its lock is held, shared, by this.
        // `&mut` to the value is made of a `WriteGuard` only, of which there is none until this is dropped.
        unsafe { self.value.deref() }
    }
}

impl<'a, L: ReadWriteLock + 'a, T> Deref for WriteGuard<'a, L, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`; made of `&self`, so that there is no `&mut` at the same time.
        unsafe { self.value.deref() }
    }
}

impl<'a, L: ReadWriteLock + 'a, T> DerefMut for WriteGuard<'a, L, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value lies in a `Guarded`, which is borrowed for as long as its lock is held, exclusively, by
        // this: no session has another guard of it. Of this one the reference borrows all: there is no second one.
        unsafe { self.value.deref() }
    }
}

#[cfg(test)]
pub mod tests;
