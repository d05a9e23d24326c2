//! Where the library's own memory comes from. To Rust an allocation that fails is the end of the
//! process, and a backend that aborts takes all sessions of the server with it; to Postgres it is an
//! error of one statement. So there is a reserve: what fails is tried again with it, which lasts until
//! the next place where an error can be raised ([`check_for_interrupts`]), and it is what pgrx makes a
//! panic of Postgres's own "out of memory" with.
//!
//! That holds where nothing asks for more at once than the reserve has, so whatever grows with what a
//! caller passes is bounded, read a page at a time, or Postgres's memory. Should more fail than the
//! reserve can bear, the session ends (FATAL), and no other.
//!
//! [`check_for_interrupts`]: crate::pg::values::check_for_interrupts

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Its size in bytes: several times the longest list of requests. It is never written to, so it is
/// address space and no memory.
pub const RESERVE: usize = 8 << 20;

/// What an error says where there is none.
pub const NO_RESERVE: &CStr = c"The rate limiter could not allocate its reserve.";

/// The reserve; null while it is in use.
static HELD: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// How a session is ended that has no memory left; not set outside a server.
static END: OnceLock<fn()> = OnceLock::new();

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

struct Allocator;

const fn layout() -> Layout {
    match Layout::from_size_align(RESERVE, 16) {
        Ok(layout) => layout,
        Err(_) => Layout::new::<u8>(),
    }
}

// SAFETY: all memory is the system allocator's, asked as the caller asked. Nothing here unwinds: `END`
// leaves the process, or returns.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, wanted: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        or_again(|| unsafe { System.alloc(wanted) })
    }

    unsafe fn alloc_zeroed(&self, wanted: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        or_again(|| unsafe { System.alloc_zeroed(wanted) })
    }

    unsafe fn realloc(&self, block: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller says; where it fails the block is as it was.
        or_again(|| unsafe { System.realloc(block, old, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(block, layout) }
    }
}

#[inline]
fn or_again(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let block = allocate();
    if block.is_null() { again(&allocate) } else { block }
}

#[cold]
fn again(allocate: &dyn Fn() -> *mut u8) -> *mut u8 {
    let mut block = null_mut();
    if release() {
        block = allocate();
    }
    if block.is_null()
        && let Some(end) = END.get()
    {
        end();
    }
    block
}

/// Called once, when the library is loaded, with what ends the session.
pub fn init(end: fn()) {
    let _ = END.set(end);
    hold();
}

/// Gives the reserve back to the system, for whoever needs it next; false if it was in use.
pub fn release() -> bool {
    let block = HELD.swap(null_mut(), Ordering::AcqRel);
    if block.is_null() {
        return false;
    }
    // SAFETY: whoever swapped it out is alone with it; it was allocated with this layout.
    unsafe { System.dealloc(block, layout()) };
    true
}

/// Makes sure that there is a reserve; false if there is no memory for it.
pub fn hold() -> bool {
    if !HELD.load(Ordering::Relaxed).is_null() {
        return true;
    }
    // SAFETY: the size is not 0.
    let block = unsafe { System.alloc(layout()) };
    if block.is_null() {
        return false;
    }
    let held = HELD.compare_exchange(null_mut(), block, Ordering::AcqRel, Ordering::Relaxed);
    if held.is_err() {
        // SAFETY: another thread was first; this block is nobody's.
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
        assert!(or_again(fail).is_null());
        assert_eq!(tries.get(), 2);
        assert!(or_again(fail).is_null());
        assert_eq!(tries.get(), 3);
        assert!(!release());
        assert!(hold() && release() && !release());
    }
}
