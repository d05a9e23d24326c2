//! The table of states that are saved, against a map that evicts nothing.

use std::collections::HashMap;

use proptest::prelude::*;
use ratelimit_core::algorithm::{Lease, Leases, Tokens};
use ratelimit_core::saved::{Cell, NewKey, NoRoom, Piece, SavedHead, SavedPartition, Unsaved};
use ratelimit_core::{Micros, State};

/// What is done to a key.
#[derive(Clone, Debug)]
enum Change {
    /// Puts it in as it is written down, and reads it.
    Load,
    /// Changes it.
    Set(Option<State>),
    /// Copies all that are dirty, from this place on at most so many at a time.
    Copy(usize),
    /// Ends a copy: whether all were written.
    Settle(bool),
    /// Forgets what is written down of its name.
    Forget,
}

fn state() -> impl Strategy<Value = Option<State>> {
    let tokens = (0..9_i64).prop_map(|value| {
        State::Tokens(Tokens { value: value as f64, ts: Micros(value), brought: None })
    });
    let lease = (1..i64::MAX, any::<i64>())
        .prop_map(|(id, at)| Lease { id: Micros(id), expires_at: Micros(at) });
    let leases = prop::collection::vec(lease, 0..9)
        .prop_map(|leases| State::Leases(Leases { leases, ts: Micros(-5) }));
    prop_oneof![2 => tokens.prop_map(Some), 1 => leases.prop_map(Some), 1 => Just(None)]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => Just(Change::Load),
        4 => state().prop_map(Change::Set),
        1 => (1..9_usize).prop_map(Change::Copy),
        2 => any::<bool>().prop_map(Change::Settle),
        1 => Just(Change::Forget),
    ]
}

/// The hash of a key, of which some stand in one bucket.
fn hash(key: u8) -> [u64; 2] {
    [key.into(), u64::from(key % 5) << 61]
}

/// Its name and key, of which some are long.
fn texts(key: u8) -> (Vec<u8>, Vec<u8>) {
    (vec![b'a' + key % 3; usize::from(key % 3) * 30 + 1], vec![key; usize::from(key) * 9])
}

fn new(key: u8, (name, text): &(Vec<u8>, Vec<u8>)) -> NewKey<'_> {
    let scope = [1, u32::from(key % 2)];
    NewKey { hash: hash(key), scope, name, key: text, save: 1, on_standby: false }
}

proptest! {
    #[test]
    fn what_is_not_written_down_is_never_lost(
        (cells, pieces) in (1..9_usize, 0..40_usize),
        changes in prop::collection::vec((0..12_u8, change()), 0..200),
    ) {
        let (mut head, mut buckets) = (SavedHead::default(), vec![0; 3]);
        let (mut cells, mut pieces) = (vec![Cell::default(); cells], vec![Piece::default(); pieces]);
        // What is written down, and what is true, of each key; the copies that are not settled.
        let (mut written, mut truth) = (HashMap::new(), HashMap::<u8, Option<State>>::new());
        let mut copies: Vec<Unsaved> = Vec::new();
        for (at, (key, change)) in changes.into_iter().enumerate() {
            let mut saved = SavedPartition::new(&mut head, &mut buckets, &mut cells, &mut pieces);
            let now = Micros(at as i64);
            let known = truth.get(&key).cloned().flatten();
            if let Some(found) = saved.call(hash(key)) {
                prop_assert_eq!(&found, &known, "what is there is true");
            }
            match change {
                Change::Load => {
                    let row: Option<State> = written.get(&key).cloned().flatten();
                    let was = saved.call(hash(key)).is_some();
                    match saved.load(new(key, &texts(key)), row.as_ref(), now) {
                        Ok(()) => prop_assert_eq!(saved.call(hash(key)), Some(known)),
                        Err(NoRoom) => prop_assert!(!was && saved.call(hash(key)).is_none()),
                    }
                }
                Change::Set(state) => {
                    if saved.set(hash(key), state.as_ref(), None, (Some(1), now)).is_ok() {
                        prop_assert_eq!(saved.call(hash(key)), Some(state.clone()));
                        truth.insert(key, state);
                    }
                }
                Change::Copy(most) if copies.is_empty() => {
                    for scope in [[1, 0], [1, 1]] {
                        let mut from = Some(0);
                        while let Some(place) = from {
                            from = saved.copy((place, most), scope, None, &mut copies);
                        }
                    }
                    prop_assert!(copies.len() <= saved.unsaved() as usize);
                }
                Change::Settle(is_written) => {
                    for copy in copies.drain(..) {
                        let key = copy.hash[0] as u8;
                        prop_assert_eq!(&(copy.name, copy.key), &texts(key));
                        if is_written {
                            written.insert(key, copy.state);
                        }
                        saved.settle(copy.hash, is_written);
                    }
                }
                Change::Forget => saved.forget_clean([1, u32::from(key % 2)], &texts(key).0),
                Change::Copy(_) => {}
            }
            // What is not there is written down, but for a copy that is under way.
            for (&key, state) in &truth {
                if saved.call(hash(key)).is_none() {
                    prop_assert_eq!(written.get(&key).unwrap_or(&None), state);
                }
            }
            prop_assert!(saved.unsaved() <= saved.len());
            let all: usize = [[1, 0], [1, 1]].map(|scope| saved.keys(scope, None).len()).iter().sum();
            prop_assert_eq!(all, saved.len() as usize);
        }
    }
}

/// Room for so many short keys.
fn with_room(cells: usize, test: impl FnOnce(&mut SavedPartition)) {
    let (mut head, mut buckets) = (SavedHead::default(), vec![0; cells]);
    let (mut cells, mut pieces) = (vec![Cell::default(); cells], vec![Piece::default(); cells]);
    test(&mut SavedPartition::new(&mut head, &mut buckets, &mut cells, &mut pieces));
}

fn short(number: u64, name: &[u8]) -> NewKey<'_> {
    let hash = [number, number << 58];
    NewKey { hash, scope: [1, 1], name, key: b"k", save: 1000, on_standby: false }
}

#[test]
fn one_name_leaves_room_for_new_keys_of_others() {
    let full = Some(State::Tokens(Tokens { value: 1.0, ts: Micros(0), brought: None }));
    with_room(64, |saved| {
        let mut take = |number: u64, name: &[u8]| {
            let new = short(number, name);
            saved.load(new, None, Micros(0))?;
            saved.set(new.hash, full.as_ref(), None, (Some(1), Micros(0)))
        };
        let flood = (0..64).take_while(|&number| take(number, b"flood").is_ok()).count();
        assert_eq!(flood, 56, "seven eighths of the cells");
        for number in 100..108 {
            assert!(take(number, b"other").is_ok());
        }
        assert_eq!(take(200, b"other"), Err(NoRoom));
        assert_eq!(take(0, b"flood"), Ok(None), "a key that is there goes on");
    });
}

#[test]
fn a_change_after_the_copy_is_not_taken_for_written() {
    let state = |value| Some(State::Tokens(Tokens { value, ts: Micros(0), brought: None }));
    with_room(2, |saved| {
        let new = short(1, b"n");
        saved.load(new, None, Micros(0)).unwrap();
        let mut copies = Vec::new();
        for (is_changed, unsaved) in [(true, 1), (false, 0)] {
            saved.set(new.hash, state(2.0).as_ref(), None, (Some(1), Micros(0))).unwrap();
            saved.copy((0, 9), [1, 1], None, &mut copies);
            if is_changed {
                saved.set(new.hash, state(1.0).as_ref(), None, (Some(1), Micros(0))).unwrap();
            }
            saved.settle(new.hash, true);
            assert_eq!(saved.unsaved(), unsaved);
        }
        assert_eq!(copies.len(), 2);
    });
}
