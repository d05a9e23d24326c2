//! Bounded states compared with a map without bounds.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ratelimit_core::Micros;
use ratelimit_core::kinds::{Counters, Lease, Tokens};
use ratelimit_memory::states::{Content, Entry, Evictions, Head, Owner, Partition, places};

use crate::cases;

/// The memory of a partition.
pub struct Memory {
    head: Head,
    entries: Vec<Entry>,
}

impl Memory {
    pub fn new(room: usize) -> Memory {
        Memory { head: Head::default(), entries: vec![Entry::default(); places(room)] }
    }

    /// Mapped again, as by another process.
    pub fn partition(&mut self) -> Partition<'_> {
        Partition::new(&mut self.head, &mut self.entries)
    }
}

/// The hash of a small number: several have one place, at the end of the places, too.
fn key(n: u8) -> [u64; 2] {
    [u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15), u64::MAX / 9 * u64::from(n % 10)]
}

/// Entries of one owner and name.
pub const OF_ONE: Owner = owner(1, 1);

const fn owner(id: u32, name: u64) -> Owner {
    Owner { id, name, fair_by_name: true }
}

/// No tokens.
const EMPTY: Content = Content::Tokens(Tokens { value: 0.0, ts: Micros(-5), added: None });

/// Whatever an entry can keep.
fn content() -> impl Strategy<Value = Content> {
    let (number, ts) = (|| prop_oneof![Just(0.0), -1e9..1e15], || any::<i64>().prop_map(Micros));
    prop_oneof![
        (number(), ts(), prop::option::of(number()))
            .prop_map(|(value, ts, added)| Content::Tokens(Tokens { value, ts, added })),
        (number(), number(), ts()).prop_map(|(value, prior, ts)| Content::Counters(Counters {
            value,
            prior,
            ts
        })),
        (ts(), ts(), ts(), any::<bool>()).prop_map(|(id, expires_at, ts, is_first)| {
            Content::Slot { lease: Lease { id, expires_at }, ts, is_first }
        }),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, Content, i64),
    Remove(u8),
    RemoveEven,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40u8, content(), 0..100i64).prop_map(|(n, content, at)| Step::Put(n, content, at)),
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
        let mut map: BTreeMap<u8, (Content, i64)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(n, content, idle_at) => {
                    let was_full = map.len() == room && !map.contains_key(&n);
                    let mut partition = memory.partition();
                    let (entry, evicted) = partition.entry(key(n), owner(1, u64::from(n % 2)), Micros(now));
                    entry.set(content, Some(Micros(idle_at)), n % 3 == 0);
                    prop_assert_eq!(evicted == Evictions::default(), !was_full);
                    map.insert(n, (content, idle_at));
                    let gone: Vec<u8> =
                        map.keys().copied().filter(|&n| partition.view().find(key(n)).is_none()).collect();
                    prop_assert_eq!(gone.len(), usize::from(was_full));
                    for n in gone {
                        let (_, idle_at) = map.remove(&n).unwrap();
                        prop_assert_eq!(evicted.idle == 1, idle_at <= now);
                    }
                }
                Step::Remove(n) => {
                    prop_assert_eq!(memory.partition().remove_entry(key(n)), map.remove(&n).is_some());
                }
                Step::RemoveEven => {
                    let is_key = |content: &Content| !matches!(content, Content::Slot { is_first: false, .. });
                    let even = map.iter().filter(|(n, (content, _))| *n % 2 == 0 && is_key(content));
                    prop_assert_eq!(memory.partition().remove_name(0), even.count() as u64);
                    map.retain(|n, _| n % 2 == 1);
                }
            }
            let partition = memory.partition();
            prop_assert_eq!(partition.view().iter().count(), map.len());
            prop_assert_eq!(partition.view().count(), map.len() as u64);
            for (&n, (content, _)) in &map {
                prop_assert_eq!(partition.view().find(key(n)).map(Entry::content), Some(*content));
            }
        }
    }

    /// Nothing loops, panics or reads past the end, whatever the memory has.
    #[test]
    fn any_content_is_survived(
        kept in prop::collection::vec(any::<bool>(), places(8)),
        steps in prop::collection::vec(step(), 1..20),
    ) {
        let mut memory = Memory::new(8);
        for n in 0..8 {
            memory.partition().entry(key(n), OF_ONE, Micros(0));
        }
        // Entries that are at no place of theirs, or twice there, and a count that is wrong.
        let filled = memory.partition().view().iter().next().copied().unwrap();
        for (entry, kept) in memory.entries.iter_mut().zip(kept) {
            *entry = if kept { filled } else { Entry::default() };
        }
        for step in steps {
            match step {
                Step::Put(n, ..) => drop(memory.partition().entry(key(n), OF_ONE, Micros(0))),
                Step::Remove(n) => drop(memory.partition().remove_entry(key(n))),
                Step::RemoveEven => drop(memory.partition().remove_name(1)),
            }
        }
    }
}

/// A hash of a number that is far from those of its neighbours.
pub fn hash(n: u64) -> [u64; 2] {
    let n = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [n, (n ^ (n >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)]
}

/// Calls a key that is never idle; true if it had to be made.
fn call(memory: &mut Memory, n: u64, owner: Owner) -> bool {
    let mut partition = memory.partition();
    if partition.touch(hash(n)).is_some() {
        return false;
    }
    partition.entry(hash(n), owner, Micros(0)).0.set(EMPTY, None, true);
    true
}

/// If every key was called since the last new one, all are equally old, wherever the hand is.
#[test]
fn one_is_dropped_where_all_were_just_called() {
    for room in [40, 60, 90, 120] {
        let mut memory = Memory::new(room);
        for n in 0..3000u64 {
            for old in n.saturating_sub(500)..n {
                memory.partition().touch(hash(old));
            }
            call(&mut memory, n, owner(n as u32 % 7, 0));
            let partition = memory.partition();
            let there = partition.view().iter().count();
            assert_eq!(
                (partition.view().count(), there),
                (there as u64, room.min(n as usize + 1)),
                "{n}"
            );
        }
    }
}

#[test]
fn a_key_that_is_called_again_and_again_stays_however_often_new_ones_are() {
    const ROOM: u64 = 1_000;
    for calls in [1, 2, 3, 10] {
        let mut memory = Memory::new(ROOM as usize);
        for n in 0..20 {
            (0..5).for_each(|_| _ = call(&mut memory, n, OF_ONE));
        }
        for n in 20..100_000 {
            (0..calls).for_each(|_| _ = call(&mut memory, n, OF_ONE));
            // Each of the 20 once while half as many new keys come as there is room for.
            if n % (ROOM / 2 / 20) == 0 {
                let again = n / (ROOM / 2 / 20) % 20;
                assert!(
                    !call(&mut memory, again, OF_ONE),
                    "{again} was driven out at {n}, {calls} calls"
                );
            }
        }
    }
}

#[test]
fn an_empty_limit_outlives_many_keys_that_come_once_and_take_little() {
    let mut memory = Memory::new(1_000);
    (0..100).for_each(|n| (0..2).for_each(|_| _ = call(&mut memory, n, OF_ONE)));
    for n in 1_000..3_000 {
        let mut partition = memory.partition();
        partition.entry(hash(n), OF_ONE, Micros(0)).0.set(EMPTY, None, false);
    }
    assert!((0..100).all(|n| memory.partition().view().find(hash(n)).is_some()));
}

/// An owner of less than half of the entries keeps them during a flood of another's, without calls.
#[test]
fn an_owner_that_fills_the_partition_evicts_its_own_entries_first() {
    for (mine, floods) in
        [(owner(1, 1), owner(1, 2)), (owner(1, 1), owner(2, 1)), (owner(2, 3), owner(2, 1))]
    {
        let mut memory = Memory::new(1_000);
        (0..400).for_each(|n| _ = call(&mut memory, n, mine));
        // Another's, each under a name of its own, are not distinguished.
        (1_000..100_000).for_each(|n| _ = call(&mut memory, n, floods));
        let kept = (0..400).filter(|&n| memory.partition().view().find(hash(n)).is_some()).count();
        assert_eq!(kept, 400);
    }
}

/// The names of an owner that chooses them freely don't count.
#[test]
fn many_names_of_one_owner_have_no_more_than_its_share() {
    let mut memory = Memory::new(1_000);
    let mine = Owner { id: 1, name: 0, fair_by_name: false };
    (0..400).for_each(|n| _ = call(&mut memory, n, mine));
    for n in 1_000..100_000 {
        call(&mut memory, n, Owner { id: 2, name: n, fair_by_name: false });
    }
    let kept = (0..400).filter(|&n| memory.partition().view().find(hash(n)).is_some()).count();
    assert_eq!(kept, 400);
}

#[test]
fn an_idle_entry_goes_before_one_that_is_not() {
    let mut memory = Memory::new(8);
    for n in 0..8 {
        let idle_at = if n == 3 { Micros(0) } else { Micros(1_000) };
        memory.partition().entry(key(n), OF_ONE, Micros(0)).0.set(EMPTY, Some(idle_at), true);
    }
    let evicted = memory.partition().entry(key(9), OF_ONE, Micros(5)).1;
    assert_eq!(evicted, Evictions { idle: 1, live: 0 });
    assert!(memory.partition().view().find(key(3)).is_none());
}
