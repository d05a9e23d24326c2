//! A memory context that is reset as a whole.

use pgrx::PgMemoryContexts;

/// A memory context for a loop: a million rows need no more memory than one.
pub struct Scratch(PgMemoryContexts);

impl Scratch {
    /// Creates one in the current memory context.
    #[allow(clippy::new_without_default, reason = "it depends on where it is created")]
    pub fn new() -> Scratch {
        Scratch(PgMemoryContexts::new("ratelimit scratch"))
    }

    /// Runs `work` and frees its palloc'd memory. The result must own its data.
    pub fn run<T: 'static>(&mut self, work: impl FnOnce() -> T) -> T {
        // SAFETY: a 'static result borrows nothing from the context.
        unsafe {
            let result = self.0.switch_to(|_| work());
            self.0.reset();
            result
        }
    }
}
