//! Memory of Postgres that is freed as a whole.

use pgrx::PgMemoryContexts;

/// Postgres memory for work that repeats, so that it needs no more for a million rows than for one.
pub struct Scratch(PgMemoryContexts);

impl Scratch {
    /// Lives in the current memory context.
    pub fn new() -> Scratch {
        Scratch(PgMemoryContexts::new("ratelimit scratch"))
    }

    /// Runs `work` and frees what it allocated in Postgres memory; its result owns what it holds.
    pub fn run<T: 'static>(&mut self, work: impl FnOnce() -> T) -> T {
        // SAFETY: a result that lives as long as it likes borrows nothing from the context.
        unsafe {
            let result = self.0.switch_to(|_| work());
            self.0.reset();
            result
        }
    }
}
