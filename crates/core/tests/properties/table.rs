//! A table with bounded room beside a map without bounds.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ratelimit_core::table::{Dropped, Entry, Head, Partition, places};
use ratelimit_core::{Micros, State};

use crate::cases;

/// The memory of a partition.
struct Memory {
    head: Head,
    entries: Vec<Entry>,
}

impl Memory {
    fn new(room: usize) -> Memory {
        Memory { head: Head::default(), entries: vec![Entry::default(); places(room)] }
    }

    /// Looked at anew, as by another process.
    fn partition(&mut self) -> Partition<'_> {
        Partition::new(&mut self.head, &mut self.entries)
    }
}

/// The hash of a small number: several have one place, at the end of the places, too.
fn key(n: u8) -> [u64; 2] {
    [u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15), u64::MAX / 9 * u64::from(n % 10)]
}

fn state(value: f64, prior: Option<f64>) -> State {
    State { value, ts: Micros(-5), prior, log: None }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, f64, Option<f64>, i64),
    Remove(u8),
    RemoveEven,
}

fn step() -> impl Strategy<Value = Step> {
    let prior = prop::option::of(0.0..9.0);
    prop_oneof![
        8 => (0..40u8, -1e9..1e15, prior, 0..100i64).prop_map(|(n, v, p, at)| Step::Put(n, v, p, at)),
        3 => (0..40u8).prop_map(Step::Remove),
        1 => Just(Step::RemoveEven),
    ]
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn it_holds_what_a_map_holds_but_for_what_it_says_that_it_dropped(
        steps in prop::collection::vec(step(), 1..200),
        room in 1..50usize,
        now in 0..100i64,
    ) {
        let mut memory = Memory::new(room);
        let mut map: BTreeMap<u8, (State, i64)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(n, value, prior, idle_at) => {
                    let was_full = map.len() == room && !map.contains_key(&n);
                    let state = state(value, prior);
                    let mut partition = memory.partition();
                    let (entry, dropped) = partition.entry(key(n), Micros(now));
                    entry.set(&state, Some(Micros(idle_at)));
                    entry.tag = u64::from(n);
                    prop_assert_eq!(dropped == Dropped::None, !was_full);
                    map.insert(n, (state, idle_at));
                    let gone: Vec<u8> =
                        map.keys().copied().filter(|&n| partition.find(key(n)).is_none()).collect();
                    prop_assert_eq!(gone.len(), usize::from(was_full));
                    for n in gone {
                        let (_, idle_at) = map.remove(&n).unwrap();
                        prop_assert_eq!(dropped == Dropped::Idle, idle_at <= now);
                    }
                }
                Step::Remove(n) => {
                    prop_assert_eq!(memory.partition().remove(key(n)), map.remove(&n).is_some());
                }
                Step::RemoveEven => {
                    let before = map.len();
                    map.retain(|n, _| n % 2 == 1);
                    let removed = memory.partition().remove_if(|entry| entry.tag % 2 == 0);
                    prop_assert_eq!(removed, (before - map.len()) as u64);
                }
            }
            let partition = memory.partition();
            prop_assert_eq!(partition.iter().count(), map.len());
            prop_assert_eq!(partition.len(), map.len() as u64);
            for (&n, (state, _)) in &map {
                prop_assert_eq!(partition.find(key(n)).map(Entry::state), Some(state.clone()));
            }
        }
    }

    /// Nothing loops, panics or reads past the end, whatever stands in the memory.
    #[test]
    fn any_content_is_survived(
        kept in prop::collection::vec(any::<bool>(), places(8)),
        steps in prop::collection::vec(step(), 1..20),
    ) {
        let mut memory = Memory::new(8);
        for n in 0..8 {
            memory.partition().entry(key(n), Micros(0));
        }
        // Entries that are at no place of theirs, or twice there, and a count that is wrong.
        let filled = memory.partition().iter().next().copied().unwrap();
        for (entry, kept) in memory.entries.iter_mut().zip(kept) {
            *entry = if kept { filled } else { Entry::default() };
        }
        for step in steps {
            match step {
                Step::Put(n, ..) => drop(memory.partition().entry(key(n), Micros(0))),
                Step::Remove(n) => drop(memory.partition().remove(key(n))),
                Step::RemoveEven => drop(memory.partition().remove_if(|_| true)),
            }
        }
    }
}

#[test]
fn keys_in_heavy_use_survive_a_flood() {
    let mut memory = Memory::new(1_000);
    let hash = |n: u64| {
        let n = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [n, n.rotate_left(32)]
    };
    let mut live = 0;
    for n in 0..200_000 {
        // The first 100 are empty for a minute, all others full again after a second.
        let now = Micros(n as i64);
        let idle_at = now.plus(if n < 100 { Micros(60_000_000) } else { Micros::SECOND });
        let mut partition = memory.partition();
        let (entry, dropped) = partition.entry(hash(n), now);
        entry.set(&state(0.0, None), Some(idle_at));
        live += u64::from(dropped == Dropped::Live);
    }
    assert!((0..100).all(|n| memory.partition().find(hash(n)).is_some()));
    assert_eq!(live, 200_000 - 1_000, "none is idle yet");
}

#[test]
fn an_idle_entry_goes_before_one_that_is_not() {
    let mut memory = Memory::new(8);
    for n in 0..8 {
        let idle_at = if n == 3 { Micros(0) } else { Micros(1_000) };
        memory.partition().entry(key(n), Micros(0)).0.set(&state(1.0, None), Some(idle_at));
    }
    let dropped = memory.partition().entry(key(9), Micros(5)).1;
    // 16 draws of 8 miss one entry in 12 % of the cases; those of an empty head don't.
    assert_eq!(dropped, Dropped::Idle);
    assert!(memory.partition().find(key(3)).is_none());
}
