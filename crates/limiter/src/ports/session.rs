//! Services of a session: time, random numbers, interrupts and subtransactions.

use ratelimit_core::Micros;

use crate::error::Result;

/// The clock.
pub trait Clock {
    /// Returns the time.
    fn now(&self) -> Micros;
}

/// Interrupts in long loops.
pub trait Interrupts {
    /// Ends the work with an error of the host if that was requested, or if memory is short.
    fn check_for_interrupts(&self);

    /// Runs `page` until it returns something, and after each run frees what the host allocated for it.
    fn each_page<T: 'static>(&self, page: impl FnMut() -> Option<T>) -> T;
}

/// Random numbers.
pub trait Random {
    /// Draws 64 unpredictable bits.
    ///
    /// # Errors
    /// An error of the host: it has none to give (58000).
    fn unguessable(&self) -> Result<u64>;

    /// Draws a number below `end`, which is not 0, to spread calls.
    fn below(&self, end: usize) -> usize;
}

/// Subtransactions, so that a call that is refused in the end leaves no row locked.
pub trait Subtransaction {
    /// Runs `work` in a subtransaction: commits it if `work` returns `Some`; otherwise, also after an error, rolls it
    /// back, which releases its locks.
    fn attempt<T>(&self, work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>>;

    /// Runs `work` as [`attempt`](Subtransaction::attempt), and waits for no lock in it for longer than `limit`, nor than
    /// the session does: `None` also after that. Returns the time that it took, too.
    fn attempt_within<T>(
        &self,
        limit: Micros,
        work: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<(Option<T>, Micros)>;

    /// Returns the shard numbers of a key's rows that the transaction has locked or written, the last locked one first.
    fn own_rows(&self, name: &[u8], key: &[u8]) -> Vec<i32>;
}
