//! Atomics and a cell: from the standard library, or in the unit tests from loom, which observes each use.

#[cfg(test)]
pub use loom::{
    cell::{ConstPtr, MutPtr, UnsafeCell},
    sync::atomic::{AtomicI64, AtomicU64},
};

#[cfg(not(test))]
pub use {
    cell::{ConstPtr, MutPtr, UnsafeCell},
    std::sync::atomic::{AtomicI64, AtomicU64},
};

/// The standard library's cell with the interface of loom's: a pointer represents the time of its use.
#[cfg(not(test))]
mod cell {
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    pub struct ConstPtr<T>(*const T);

    pub struct MutPtr<T>(*mut T);

    impl<T> UnsafeCell<T> {
        #[inline]
        pub fn get(&self) -> ConstPtr<T> {
            ConstPtr(self.0.get())
        }

        #[inline]
        pub fn get_mut(&self) -> MutPtr<T> {
            MutPtr(self.0.get())
        }
    }

    impl<T> ConstPtr<T> {
        /// # Safety
        /// The value exists, and is not written for as long as the reference exists.
        #[inline]
        pub unsafe fn deref(&self) -> &T {
            // SAFETY: as the caller says.
            unsafe { &*self.0 }
        }
    }

    impl<T> MutPtr<T> {
        /// # Safety
        /// The value is there, and no other reference to it for as long as this one is.
        #[inline]
        #[expect(clippy::mut_from_ref, reason = "the pointer gives no access, its target does")]
        pub unsafe fn deref(&self) -> &mut T {
            // SAFETY: as the caller says.
            unsafe { &mut *self.0 }
        }
    }
}
