//! Shared memory: its segments, and a lock that is held when something fails.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pgrx::pg_sys;
use pgrx::prelude::*;
use ratelimit_core::kinds::Tokens;

use super::{and_rolled_back, with_catalog};
use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{Entries, LockedEntries, Retention};
use ratelimit_pg::shared_memory::{Need, segment};

use crate::store::memory::writer::Origin;
use crate::store::memory::{Memory, SharedEntries};

#[pg_schema]
mod tests {
    use super::*;

    #[pg_test]
    fn two_names_are_two_segments_and_one_is_made_once() {
        let filled = Cell::new(0);
        let open = |name| {
            let fill = |address: *mut u8| {
                filled.set(filled.get() + 1);
                // SAFETY: the segment is zeroed, and has this size.
                unsafe {
                    assert_eq!(std::slice::from_raw_parts(address, 1000), [0; 1000]);
                    address.write(1);
                }
            };
            segment(name, Need::Should, 1000, fill).unwrap().unwrap()
        };
        assert_eq!(segment(c"ratelimit pg_test 1", Need::May, 0, |_| ()).unwrap(), None);
        let one = and_rolled_back(|| open(c"ratelimit pg_test 1"));
        let other = open(c"ratelimit pg_test 2");
        assert_ne!(one, other);
        assert_eq!((open(c"ratelimit pg_test 1"), open(c"ratelimit pg_test 2")), (one, other));
        assert_eq!(filled.get(), 2);
        // SAFETY: both stay mapped as long as the process lives.
        assert_eq!(unsafe { (one.read(), other.read()) }, (1, 1));
    }

    #[pg_test]
    fn a_lock_is_released_by_a_panic_and_by_an_error() {
        let memory = Memory::get().unwrap();
        let origin = with_catalog(|catalog| Origin::new(memory, catalog));
        let entries = SharedEntries::new(memory, origin);
        let id = entries.id(b"locked", b"k");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            and_rolled_back(|| {
                let _locked = entries.lock(&[id]);
                panic!("under the lock")
            })
        }));
        assert!(panicked.is_err());
        let raised = catch_unwind(AssertUnwindSafe(|| {
            and_rolled_back(|| {
                let _locked = entries.lock(&[id]);
                // SAFETY: more than Postgres allocates at once, which is an error.
                unsafe { pg_sys::palloc(usize::MAX) }
            })
        }));
        assert!(raised.is_err());
        // SAFETY: reads a number of this backend.
        assert_eq!(unsafe { pg_sys::InterruptHoldoffCount }, 0, "a cancel is looked at");
        // Otherwise this would wait forever.
        let read = |ids: &[_]| entries.lock(ids).read(id).map(|seen| seen.state);
        assert_eq!((read(&[id]), read(&[id, id])), (Ok(None), Ok(None)));
        let state = State::Tokens(Tokens { value: 1.0, ts: Micros(0), added: None });
        let now = Micros(0);
        let retention = Retention { idle_at: None, half_used: true, now, save: now };
        let write = |state: Option<&State>| entries.lock(&[id]).write(id, state, retention);
        assert!(write(Some(&state)));
        assert_eq!((entries.read(id), read(&[id, id])), (Ok(Some(state.clone())), Ok(Some(state))));
        assert!(write(None));
        assert!(!write(None));
    }
}
