//! The library's allocator, with a reserve. In Rust a failed allocation aborts the process, and an aborted backend ends
//! all sessions of the server; in Postgres it is an error of one statement. So after a failed allocation the reserve is
//! freed, and the allocation tried again. The freed reserve suffices until the next [`check_for_interrupts`], which
//! raises the error; pgrx needs it, too, to turn Postgres's own "out of memory" into a panic.
//!
//! No single allocation exceeds the reserve: memory that grows with a caller's input is bounded, read by pages, or
//! palloc'd, and a loop that collects calls [`check_for_interrupts`] each time. If the reserve does not suffice, only
//! this session ends (FATAL).
//!
//! [`check_for_interrupts`]: crate::interrupts::check_for_interrupts

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The reserve in bytes: enough for the state of a sliding log with 10,000 entries in all its forms, the maximum that a
/// call allocates between two checks. It is never written to, so it takes no memory, except on a system that does not
/// overcommit.
pub const RESERVE: usize = 2 << 20;

/// Added to the reserve while a long argument is read, in bytes: several times the maximum size of a list of requests.
const FOR_LONG: usize = 6 << 20;

/// An argument is long above this number of bytes.
const LONG: usize = 64 << 10;

/// The detail of the error if it can't be allocated.
pub const NO_RESERVE: &CStr = c"The rate limiter could not allocate its reserve.";

/// A block reserved for a failed allocation.
struct Block {
    /// Null while it is in use.
    address: AtomicPtr<u8>,
    layout: Layout,
}

static ALWAYS: Block = Block::new(RESERVE);
static WHILE_LONG: Block = Block::new(FOR_LONG);

/// The number of nested calls that read a long argument.
static READING_LONG: AtomicUsize = AtomicUsize::new(0);

/// Ends the session; not set outside a server.
static EXHAUSTED: OnceLock<fn()> = OnceLock::new();

/// The system's allocator with the reserve; the library's `#[global_allocator]`.
pub struct Allocator;

impl Block {
    const fn new(size: usize) -> Block {
        let layout = match Layout::from_size_align(size, 16) {
            Ok(layout) => layout,
            Err(_) => Layout::new::<u8>(),
        };
        Block { address: AtomicPtr::new(null_mut()), layout }
    }

    /// Frees the block for the next allocation; false if it is in use.
    fn release(&self) -> bool {
        let block = self.address.swap(null_mut(), Ordering::AcqRel);
        if block.is_null() {
            return false;
        }
        // SAFETY: swapped out once only; allocated with this layout.
        unsafe { System.dealloc(block, self.layout) };
        true
    }

    /// Allocates the block unless it is there; false if that fails.
    fn refill(&self) -> bool {
        if !self.address.load(Ordering::Relaxed).is_null() {
            return true;
        }
        // SAFETY: the size is not 0.
        let block = unsafe { System.alloc(self.layout) };
        if block.is_null() {
            return false;
        }
        let (done, seen) = (Ordering::AcqRel, Ordering::Relaxed);
        if self.address.compare_exchange(null_mut(), block, done, seen).is_err() {
            // SAFETY: another thread was first; this block is unused.
            unsafe { System.dealloc(block, self.layout) };
        }
        true
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

/// Allocates, if necessary with the reserve freed.
#[inline]
fn with_retry(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let block = allocate();
    if block.is_null() { retry(&allocate) } else { block }
}

/// Tries an allocation again with the reserve freed. Ends the session if that fails.
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

/// Allocates the reserve, once, when the library is loaded. `end_session` runs if even the reserve does not suffice.
pub fn init(end_session: fn()) {
    let _ = EXHAUSTED.set(end_session);
    refill();
}

/// Frees the reserve for the next allocation; false if it is in use.
pub fn release() -> bool {
    let long = WHILE_LONG.release();
    ALWAYS.release() || long
}

/// Allocates the reserve unless it is there; false if that fails.
pub fn refill() -> bool {
    ALWAYS.refill() && (READING_LONG.load(Ordering::Relaxed) == 0 || WHILE_LONG.refill())
}

/// Enlarges the reserve until dropped.
pub struct Larger(());

impl Larger {
    /// Enlarges the reserve for a long argument, from the next [`refill`] on.
    pub fn for_argument(bytes: usize) -> Option<Larger> {
        (bytes > LONG).then(|| {
            READING_LONG.fetch_add(1, Ordering::Relaxed);
            Larger(())
        })
    }
}

impl Drop for Larger {
    fn drop(&mut self) {
        if READING_LONG.fetch_sub(1, Ordering::Relaxed) == 1 {
            WHILE_LONG.release();
        }
    }
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
        assert!(refill() && refill());
        assert!(with_retry(fail).is_null());
        assert_eq!(tries.get(), 2);
        assert!(with_retry(fail).is_null());
        assert_eq!(tries.get(), 3);
        assert!(!release());
        assert!(refill() && release() && !release());
        // While a long argument is read, in a call in a call.
        assert!(Larger::for_argument(LONG).is_none());
        let (outer, inner) = (Larger::for_argument(LONG + 1), Larger::for_argument(2_000_000));
        let is_full = || !WHILE_LONG.address.load(Ordering::Relaxed).is_null();
        assert!(refill() && is_full());
        drop(inner);
        assert!(is_full() && release() && !is_full() && refill() && is_full());
        drop(outer);
        assert!(!is_full() && refill() && !is_full());
    }
}
