//! The allocator of the library's own memory. In Rust a failed allocation aborts the process, and an
//! aborted backend ends all sessions of the server; in Postgres it is an error of one statement. So
//! there is a reserve: it is freed for a failed allocation, which is tried again, and lasts until the
//! next [`check_for_interrupts`], which raises the error; pgrx needs it, too, to turn Postgres's own
//! "out of memory" into a panic.
//!
//! No single allocation exceeds the reserve: memory that grows with a caller's input is bounded, read
//! by pages, or Postgres's. Where the reserve does not suffice, the session ends (FATAL), and no other.
//!
//! [`check_for_interrupts`]: crate::pg::interrupts::check_for_interrupts

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The size of the reserve in bytes: several times the longest list of requests. It is never written
/// to, so it takes address space only.
pub const RESERVE: usize = 8 << 20;

/// The detail of the error where it can't be allocated.
pub const NO_RESERVE: &CStr = c"The rate limiter could not allocate its reserve.";

/// The reserve; null while it is in use.
static BLOCK: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Ends the session; not set outside a server.
static EXHAUSTED: OnceLock<fn()> = OnceLock::new();

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The system's allocator, with the reserve.
struct Allocator;

/// The layout of the reserve.
const fn layout() -> Layout {
    match Layout::from_size_align(RESERVE, 16) {
        Ok(layout) => layout,
        Err(_) => Layout::new::<u8>(),
    }
}

// SAFETY: all memory is the system allocator's, with the caller's layout. Nothing here unwinds:
// `EXHAUSTED` exits the process, or returns.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, wanted: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        with_retry(|| unsafe { System.alloc(wanted) })
    }

    unsafe fn alloc_zeroed(&self, wanted: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        with_retry(|| unsafe { System.alloc_zeroed(wanted) })
    }

    unsafe fn realloc(&self, block: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller says; a failed try leaves the block as it is.
        with_retry(|| unsafe { System.realloc(block, old, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Allocates, and tries again with the reserve freed.
#[inline]
fn with_retry(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let block = allocate();
    if block.is_null() { retry(&allocate) } else { block }
}

/// Tries an allocation again with the reserve freed, and ends the session if that fails.
#[cold]
fn retry(allocate: &dyn Fn() -> *mut u8) -> *mut u8 {
    let mut block = null_mut();
    if release() {
        block = allocate();
    }
    if block.is_null()
        && let Some(end_session) = EXHAUSTED.get()
    {
        end_session();
    }
    block
}

/// Allocates the reserve; called once, when the library is loaded.
pub fn init(end_session: fn()) {
    let _ = EXHAUSTED.set(end_session);
    hold();
}

/// Frees the reserve for the next allocation; false if it is in use.
pub fn release() -> bool {
    let block = BLOCK.swap(null_mut(), Ordering::AcqRel);
    if block.is_null() {
        return false;
    }
    // SAFETY: swapped out once only; allocated with this layout.
    unsafe { System.dealloc(block, layout()) };
    true
}

/// Allocates the reserve unless it is held; false if that fails.
pub fn hold() -> bool {
    if !BLOCK.load(Ordering::Relaxed).is_null() {
        return true;
    }
    // SAFETY: the size is not 0.
    let block = unsafe { System.alloc(layout()) };
    if block.is_null() {
        return false;
    }
    let held = BLOCK.compare_exchange(null_mut(), block, Ordering::AcqRel, Ordering::Relaxed);
    if held.is_err() {
        // SAFETY: another thread was first; this block is unused.
        unsafe { System.dealloc(block, layout()) };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_there_for_one_allocation_that_fails() {
        let tries = std::cell::Cell::new(0);
        let fail = || {
            tries.set(tries.get() + 1);
            null_mut()
        };
        assert!(hold() && hold());
        assert!(with_retry(fail).is_null());
        assert_eq!(tries.get(), 2);
        assert!(with_retry(fail).is_null());
        assert_eq!(tries.get(), 3);
        assert!(!release());
        assert!(hold() && release() && !release());
    }
}
