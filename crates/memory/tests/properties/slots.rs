//! Leases in slots compared with lists, which lose none.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ratelimit_core::kinds::{Lease, Leases, Tokens};
use ratelimit_core::{Micros, State};
use ratelimit_memory::states::{Evictions, Id, Retention};

use crate::cases;
use crate::states::{Memory, OF_ONE, hash};

/// The most slots of a limit.
const SLOTS: u32 = 5;

fn id(n: u64, slots: u32) -> Id {
    Id { key: hash(n), slots }
}

fn retention(now: i64) -> Retention {
    Retention { idle_at: None, half_used: true, now: Micros(now) }
}

/// Leases that expire at these instants.
fn leases(expiries: &[i64], ts: i64) -> State {
    let lease = |(n, &at): (i64, &i64)| Lease { id: Micros(100 * ts + n), expires_at: Micros(at) };
    State::Leases(Leases { leases: (0..).zip(expiries).map(lease).collect(), ts: Micros(ts) })
}

fn list(state: Option<State>) -> Vec<Lease> {
    match state {
        Some(State::Leases(leases)) => leases.leases,
        other => {
            assert_eq!(other, None);
            Vec::new()
        }
    }
}

/// A key with the expiries of its leases; none: it is removed.
fn step() -> impl Strategy<Value = (u64, Vec<i64>)> {
    (0..12u64, prop::collection::vec(0..100i64, 0..=SLOTS as usize))
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn each_key_has_the_leases_last_written_but_for_those_reported_as_evicted(
        steps in prop::collection::vec(step(), 1..60),
        capacity in 1..70usize,
        now in 0..100i64,
    ) {
        let mut memory = Memory::new(capacity);
        let mut lists: BTreeMap<u64, Vec<Lease>> = BTreeMap::new();
        for (ts, (n, expiries)) in (0..).zip(steps) {
            let before = memory.partition().view().count() as usize;
            let mut evictions = Evictions::default();
            if expiries.is_empty() {
                let was = lists.remove(&n).is_some_and(|list| !list.is_empty());
                prop_assert_eq!(memory.partition().remove(id(n, SLOTS)), was);
            } else {
                let state = leases(&expiries, ts);
                evictions = memory.partition().write(id(n, SLOTS), OF_ONE, &state, retention(now));
                lists.insert(n, list(Some(state)));
            }
            if before + expiries.len() <= capacity {
                prop_assert_eq!(evictions, Evictions::default());
            }
            let mut gone = Evictions::default();
            for (&n, list) in &mut lists {
                let kept = self::list(memory.partition().read(id(n, SLOTS)));
                list.retain(|lease| {
                    let is_kept = kept.contains(lease);
                    let is_idle = lease.expires_at.0 <= now;
                    gone.idle += u64::from(!is_kept && is_idle);
                    gone.live += u64::from(!is_kept && !is_idle);
                    is_kept
                });
                prop_assert_eq!(&kept, &*list);
            }
            // Also evicted: leases that this write was to replace.
            prop_assert!(gone.idle <= evictions.idle && gone.live <= evictions.live);
            let all: usize = lists.values().map(Vec::len).sum();
            prop_assert_eq!(memory.partition().view().count() as usize, all);
        }
    }
}

#[test]
fn leases_beyond_the_slots_of_a_limit_count_until_they_are_released() {
    let mut memory = Memory::new(10);
    let mut write = |slots: u32, expiries: &[i64]| {
        let state = leases(expiries, slots.into());
        memory.partition().write(id(1, slots), OF_ONE, &state, retention(0));
        [1, 3, SLOTS].map(|slots| list(memory.partition().read(id(1, slots))).len())
    };
    assert_eq!(write(SLOTS, &[9; 5]), [5; 3]);
    assert_eq!(write(1, &[9; 4]), [4; 3]);
    assert_eq!(write(1, &[9]), [1; 3]);
    assert_eq!(write(3, &[]), [0; 3]);
    assert_eq!(write(3, &[9; 3]), [3; 3]);
    assert!(memory.partition().remove(id(1, 1)));
    assert_eq!(memory.partition().view().count(), 0);
}

#[test]
fn a_state_of_another_kind_and_leases_end_each_other() {
    let tokens = State::Tokens(Tokens { value: 1.0, ts: Micros(0), added: None });
    let mut memory = Memory::new(10);
    let mut partition = memory.partition();
    partition.write(id(1, 2), OF_ONE, &leases(&[9, 9], 0), retention(0));
    assert_eq!(partition.read(id(1, 0)), None);
    partition.write(id(1, 0), OF_ONE, &tokens, retention(0));
    assert_eq!(partition.read(id(1, 2)), Some(tokens.clone()));
    partition.write(id(1, 2), OF_ONE, &leases(&[9], 1), retention(0));
    assert_eq!(partition.read(id(1, 0)), None);
    assert_eq!(partition.view().read(id(1, 2)), Some(leases(&[9], 1)));
    assert_eq!(partition.view().count(), 1);
}
