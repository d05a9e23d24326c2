//! Saved states, against a map that evicts nothing.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use ratelimit_core::kinds::{Lease, Leases, Tokens};
use ratelimit_core::{Micros, State};
use ratelimit_memory::saved::{
    Cell, Full, NewKey, Outcome, Piece, SavedCopy, SavedHead, SavedPartition, Unsaved,
};

/// What is done to a key.
#[derive(Clone, Debug)]
enum Change {
    /// Puts it in with what its row has.
    Load,
    /// Changes it, to be written after these milliseconds.
    Set(Option<State>, u32),
    /// Copies all that are unsaved, some places at a time.
    Copy(usize),
    /// Ends a copy.
    Finish(Outcome),
    /// Removes the saved ones of its name, and has the others written at once.
    Remove,
}

fn state() -> impl Strategy<Value = Option<State>> {
    let lease = (1..i64::MAX, any::<i64>())
        .prop_map(|(id, at)| Lease { id: Micros(id), expires_at: Micros(at) });
    let leases = prop::collection::vec(lease, 0..9)
        .prop_map(|leases| State::Leases(Leases { leases, ts: Micros(-5) }));
    prop_oneof![2 => (0..9_i64).prop_map(|value| Some(tokens(value))), 1 => leases.prop_map(Some), 1 => Just(None)]
}

fn change() -> impl Strategy<Value = Change> {
    let outcome = prop_oneof![Just(Outcome::Written), Just(Outcome::Failed), Just(Outcome::Gone)];
    prop_oneof![
        4 => Just(Change::Load),
        4 => (state(), 1..9_u32).prop_map(|(state, save)| Change::Set(state, save)),
        1 => (1..9_usize).prop_map(Change::Copy),
        2 => outcome.prop_map(Change::Finish),
        1 => Just(Change::Remove),
    ]
}

fn tokens(value: i64) -> State {
    State::Tokens(Tokens { value: value as f64, ts: Micros(value), added: None })
}

/// The hash of a key; some share a bucket.
fn hash(key: u8) -> [u64; 2] {
    [key.into(), u64::from(key % 5) << 61]
}

/// Its name and key, of which some are long.
fn texts(key: u8) -> (Vec<u8>, Vec<u8>) {
    (vec![b'a' + key % 3; usize::from(key % 3) * 30 + 1], vec![key; usize::from(key) * 9])
}

fn scope(key: u8) -> [u32; 2] {
    [1, u32::from(key % 2)]
}

fn new(key: u8, (name, text): &(Vec<u8>, Vec<u8>)) -> NewKey<'_> {
    NewKey { hash: hash(key), scope: scope(key), name, key: text, on_standby: false }
}

/// The memory of a partition.
struct Memory(SavedHead, Vec<u32>, Vec<Cell>, Vec<Piece>);

impl Memory {
    fn new(buckets: usize, cells: usize, pieces: usize) -> Memory {
        let (cells, pieces) = (vec![Cell::default(); cells], vec![Piece::default(); pieces]);
        Memory(SavedHead::default(), vec![0; buckets], cells, pieces)
    }

    fn partition(&mut self) -> SavedPartition<'_> {
        SavedPartition::new(&mut self.0, &mut self.1, &mut self.2, &mut self.3)
    }
}

/// All that are unsaved, and when each is due.
fn unsaved(saved: &SavedPartition, most: usize) -> Vec<SavedCopy> {
    let mut copies = Vec::new();
    for scope in [[1, 0], [1, 1]] {
        let mut from = Some(0);
        while let Some(place) = from {
            from = saved.copy(place, most, scope, None, &mut copies);
        }
    }
    copies
}

/// How many keys have room, with so much text each, where all of them are saved.
fn capacity(saved: &mut SavedPartition, length: usize) -> u32 {
    let text = vec![b'k'; length];
    for number in 0..99 {
        let key = NewKey { hash: [1000 + number, number], ..short(0, b"n") };
        let _ = saved.load(NewKey { key: &text, ..key }, None);
    }
    saved.head().keys
}

proptest! {
    #[test]
    fn what_is_not_written_is_never_lost(
        (cells, pieces) in (1..9_usize, 0..40_usize),
        changes in prop::collection::vec((0..12_u8, change()), 0..200),
    ) {
        let mut memory = Memory::new(3, cells, pieces);
        let mut saved = memory.partition();
        // What the rows have, and what is true, of each key; the copies that are not finished, and when they were made.
        let (mut rows, mut truth) = (HashMap::new(), HashMap::<u8, Option<State>>::new());
        let (mut copies, mut copied) = (Vec::new(), Micros(0));
        // Since when a key is unsaved.
        let mut since = HashMap::<u8, i64>::new();
        for (now, (key, change)) in (1..).zip(changes) {
            let now = Micros(now * 1000);
            let known = truth.get(&key).cloned().flatten();
            match change {
                Change::Load => {
                    let row: Option<State> = rows.get(&key).cloned().flatten();
                    match saved.load(new(key, &texts(key)), row.as_ref()) {
                        Ok(()) => prop_assert_eq!(saved.read(hash(key), false), Some(known)),
                        Err(Full) => prop_assert_eq!(saved.read(hash(key), false), None),
                    }
                }
                Change::Set(state, save) => {
                    let was = saved.read(hash(key), false);
                    match saved.set(hash(key), state.as_ref(), save, now) {
                        Ok(due) => {
                            prop_assert!(was.is_some());
                            let since = *since.entry(key).or_insert(now.0);
                            let earliest = Micros(since + i64::from(save) * 1000);
                            prop_assert!(due.is_none_or(|due| due == earliest));
                            truth.insert(key, state);
                        }
                        Err(Full) => prop_assert_eq!(saved.read(hash(key), false), was),
                    }
                }
                Change::Copy(most) if copies.is_empty() => {
                    copies = unsaved(&saved, most);
                    copied = now;
                }
                Change::Finish(outcome) => {
                    for copy in std::mem::take(&mut copies) {
                        let key = copy.hash[0] as u8;
                        prop_assert_eq!((&copy.name, &copy.key), (&texts(key).0, &texts(key).1));
                        saved.finish(&copy, outcome, copied, now);
                        if outcome == Outcome::Failed {
                            continue;
                        }
                        rows.insert(key, copy.state.clone());
                        since.remove(&key);
                        if outcome == Outcome::Gone {
                            truth.insert(key, copy.state);
                        } else if truth[&key] != copy.state {
                            since.insert(key, copied.0);
                        }
                    }
                }
                Change::Remove => {
                    let is_saved = |copy: &SavedCopy| !copy.is_unsaved();
                    saved.remove(scope(key), Some(&texts(key).0), is_saved);
                }
                Change::Copy(_) => {}
            }
            // What is there is true; what is not is in its row; what is unsaved is so since its first change.
            for (&key, state) in &truth {
                match saved.keys(scope(key), None, false).iter().find(|copy| copy.hash == hash(key)) {
                    Some(found) => prop_assert_eq!(&found.state, state),
                    None => prop_assert_eq!(rows.get(&key).unwrap_or(&None), state),
                }
            }
            let found = unsaved(&saved, 4).into_iter().map(|copy| (copy.hash[0] as u8, copy.since.0));
            prop_assert_eq!(found.collect::<HashMap<_, _>>(), since.clone());
            prop_assert_eq!(saved.head().unsaved as usize, since.len());
            prop_assert_eq!(saved.unsaved(None).since.map(|first| first.0), since.values().min().copied());
            let all = [[1, 0], [1, 1]].map(|scope| saved.keys(scope, None, false).len());
            prop_assert_eq!(all.iter().sum::<usize>(), saved.head().keys as usize);
        }
        // No place and no piece has got lost.
        for scope in [[1, 0], [1, 1]] {
            saved.remove(scope, None, |_| true);
        }
        prop_assert_eq!((saved.head().keys, saved.head().unsaved), (0, 0));
        for length in [1, 99] {
            let most = capacity(&mut Memory::new(3, cells, pieces).partition(), length);
            prop_assert_eq!(capacity(&mut saved, length), most);
            saved.remove([1, 1], None, |_| true);
        }
    }

    #[test]
    fn a_key_that_was_just_loaded_makes_room_last(
        steps in prop::collection::vec((0..12_u64, 0..4_u8), 0..100),
    ) {
        let mut memory = Memory::new(3, 7, 7);
        let mut saved = memory.partition();
        let (mut last, mut called_since) = (None, HashSet::new());
        for (number, step) in steps {
            let key = short(number, b"n");
            let is_there = saved.read(key.hash, false).is_some();
            called_since.extend(is_there.then_some(key.hash));
            match step {
                0 => saved.remove([1, 1], None, |copy| copy.hash == key.hash && !copy.is_unsaved()),
                1 if is_there => _ = saved.set(key.hash, Some(&tokens(1)), 1, Micros(1)),
                _ if is_there => {}
                _ => {
                    let is_saved = |copy: &SavedCopy| !copy.is_unsaved();
                    let saved_keys = |saved: &SavedPartition| -> Vec<[u64; 2]> {
                        let keys = saved.keys([1, 1], None, false).into_iter();
                        keys.filter(is_saved).map(|copy| copy.hash).collect()
                    };
                    let before = saved_keys(&saved);
                    let is_loaded = saved.load(key, None).is_ok();
                    let after = saved_keys(&saved);
                    // Another key that was not called since would have been the one.
                    let others = before.iter().filter(|&hash| {
                        Some(*hash) != last && !called_since.contains(hash) && after.contains(hash)
                    });
                    let is_gone = last.is_some_and(|last| before.contains(&last) && !after.contains(&last));
                    prop_assert!(!is_gone || others.count() == 0);
                    if is_loaded {
                        last = Some(key.hash);
                        called_since.clear();
                    }
                }
            }
        }
    }
}

/// Runs a test with space for this number of short keys.
fn with_room(cells: usize, test: impl FnOnce(&mut SavedPartition)) {
    test(&mut Memory::new(cells, cells, cells).partition());
}

fn short(number: u64, name: &[u8]) -> NewKey<'_> {
    NewKey { hash: [number, number << 58], scope: [1, 1], name, key: b"k", on_standby: false }
}

#[test]
fn one_name_leaves_room_for_new_keys_of_others() {
    with_room(64, |saved| {
        let mut take = |number: u64, name: &[u8]| {
            let new = short(number, name);
            saved.load(new, None)?;
            saved.set(new.hash, Some(&tokens(1)), 1, Micros(1))
        };
        let flood = (0..64).take_while(|&number| take(number, b"flood").is_ok()).count();
        assert_eq!(flood, 56, "seven eighths of the cells");
        for number in 100..108 {
            assert!(take(number, b"other").is_ok());
        }
        assert_eq!(take(200, b"other"), Err(Full));
        assert_eq!(take(0, b"flood"), Ok(None), "a key that is there goes on");
    });
}

#[test]
fn a_change_after_the_copy_is_due_a_while_after_the_copy() {
    with_room(2, |saved| {
        let hash = short(1, b"n").hash;
        let set = |saved: &mut SavedPartition, value, save, now| {
            saved.set(hash, Some(&tokens(value)), save, Micros(now)).unwrap()
        };
        saved.load(short(1, b"n"), None).unwrap();
        assert_eq!(set(saved, 3, 5, 1_000), Some(Micros(6_000)));
        assert_eq!(set(saved, 2, 5, 2_000), None, "it is due already");
        assert_eq!(set(saved, 2, 4, 2_000), Some(Micros(5_000)), "of a shorter save");
        let mut copies = Vec::new();
        saved.copy(0, 9, [1, 1], Some(Micros(4_999)), &mut copies);
        assert_eq!(copies, []);
        saved.copy(0, 9, [1, 1], Some(Micros(5_000)), &mut copies);
        assert_eq!(set(saved, 1, 4, 5_500), None);
        saved.finish(&copies[0], Outcome::Written, Micros(5_000), Micros(6_000));
        let unsaved_since =
            Unsaved { keys: 1, since: Some(Micros(5_000)), due: Some(Micros(9_000)) };
        assert_eq!(saved.unsaved(None), unsaved_since);
        // The copy is an older one: to finish it twice changes nothing.
        saved.finish(&copies[0], Outcome::Written, Micros(7_000), Micros(7_000));
        let copy = unsaved(saved, 9).pop().unwrap();
        saved.finish(&copy, Outcome::Written, Micros(9_000), Micros(9_000));
        assert_eq!(saved.unsaved(None), Unsaved::default());
    });
}

#[test]
fn what_cannot_be_written_is_tried_again_after_pauses() {
    with_room(2, |saved| {
        let hash = short(1, b"n").hash;
        saved.load(short(1, b"n"), None).unwrap();
        saved.set(hash, Some(&tokens(3)), 5, Micros(1)).unwrap();
        let mut now = 0;
        for (tries, pause) in (0..300).zip(
            [250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000]
                .into_iter()
                .chain(std::iter::repeat(60_000)),
        ) {
            now += 1_000_000;
            let copy = unsaved(saved, 9).pop().unwrap();
            assert_eq!((copy.since, copy.tries), (Micros(1), tries.min(255) as u8));
            saved.finish(&copy, Outcome::Failed, Micros(now), Micros(now));
            let due = Some(Micros(now + pause * 1000));
            assert_eq!(saved.unsaved(None).due, due);
            assert_eq!(saved.set(hash, Some(&tokens(now)), 1, Micros(now)), Ok(None));
            assert_eq!(saved.unsaved(None).due, due, "a call doesn't hasten it");
        }
        let copy = unsaved(saved, 9).pop().unwrap();
        saved.remove([1, 1], Some(b"n"), |_| false);
        assert_eq!(saved.unsaved(None).due, Some(Micros(0)));
        saved.finish(&copy, Outcome::Written, Micros(now), Micros(now));
        assert_eq!(saved.set(hash, None, 5, Micros(now)), Ok(Some(Micros(now + 5_000))));
        assert_eq!(unsaved(saved, 9)[0].tries, 0);
    });
}

#[test]
fn what_a_standby_counted_is_gone_once_it_is_none() {
    with_room(2, |saved| {
        let evictions = saved.head().evictions;
        let of = |number| NewKey { on_standby: true, ..short(number, b"n") };
        for number in [1, 2] {
            saved.load(of(number), Some(&tokens(3))).unwrap();
            assert_eq!(saved.set(of(number).hash, Some(&tokens(2)), 5, Micros(1)), Ok(None));
            assert_eq!(saved.read(of(number).hash, true), Some(Some(tokens(2))));
        }
        assert_eq!((saved.unsaved(None), saved.head().unsaved), (Unsaved::default(), 0));
        saved.load(of(3), None).unwrap();
        assert_eq!(
            (saved.head().keys, saved.head().lost),
            (2, 1),
            "one that has changed made room"
        );
        saved.load(of(4), None).unwrap();
        saved.load(of(5), None).unwrap();
        assert_eq!(saved.head().lost, 2, "one that has not is no loss");
        assert_eq!(
            (saved.keys([1, 1], None, true).len(), saved.keys([1, 1], None, false).len()),
            (2, 0)
        );
        assert_eq!(saved.read(of(5).hash, false), None);
        assert_eq!((saved.head().keys, saved.head().evictions - evictions), (1, 4));
    });
}

#[test]
fn a_removal_has_calls_read_again() {
    with_room(4, |saved| {
        for (number, name) in [(1, &b"n"[..]), (2, b"n"), (3, b"other")] {
            saved.load(short(number, name), None).unwrap();
        }
        saved.set(short(2, b"n").hash, Some(&tokens(1)), 5, Micros(1)).unwrap();
        let evictions = saved.head().evictions;
        saved.remove([1, 1], Some(b"none"), |_| true);
        assert_ne!(saved.head().evictions, evictions);
        saved.remove([1, 1], Some(b"n"), SavedCopy::is_unsaved);
        let left = |saved: &SavedPartition| saved.keys([1, 1], None, false).len();
        assert_eq!((left(saved), saved.head().unsaved), (2, 0));
        saved.remove([2, 1], None, |_| true);
        assert_eq!(left(saved), 2);
        saved.remove([1, 1], None, |_| true);
        assert_eq!((left(saved), saved.scopes().count()), (0, 0));
    });
}
