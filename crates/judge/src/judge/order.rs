//! Searches for an order that explains every answer of a key, by backtracking (Wing and Gong), and remembers the places
//! that led nowhere (Lowe).
//!
//! An item takes effect at a point between `earliest` and `latest`. A change begins when the one before it has ended,
//! and not after `begun`. So the tenures of explicit transactions have one order only, and there is little to search.
//!
//! A read explained by the stored state comes next without a try of the alternatives, if that excludes none: its point
//! is no later than any remaining change allows.

use std::collections::HashSet;
use std::rc::Rc;

use super::items::{Item, Step, Writes};
use super::oracle::{Belief, Oracle};
use crate::history::History;

/// The maximum number of beliefs of a key. Many unknown ends make more; an order that needs them is refused.
const MOST: usize = 4096;

/// The items not placed yet, in the order of an instant: a linked list.
struct Queue {
    items: Vec<u32>,
    position: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// Marks an option: the item has changed nothing.
const UNCHANGED: u32 = 1 << 31;

impl Queue {
    /// Makes a queue of the items for which `at` has an instant.
    fn new(items: &[Item], at: impl Fn(&Item) -> Option<i64>) -> Queue {
        let mut order: Vec<u32> =
            (0..items.len() as u32).filter(|&n| at(&items[n as usize]).is_some()).collect();
        order.sort_by_key(|&n| at(&items[n as usize]));
        let len = order.len() as u32;
        let mut position = vec![NONE; items.len()];
        order.iter().enumerate().for_each(|(n, &item)| position[item as usize] = n as u32);
        // Place `len` is before the first and after the last.
        let next = (0..=len).map(|n| (n + 1) % (len + 1)).collect();
        let previous = (0..=len).map(|n| (n + len) % (len + 1)).collect();
        Queue { items: order, position, next, previous }
    }

    fn remove(&mut self, item: u32) {
        let at = self.position[item as usize];
        if at != NONE {
            let (next, previous) = (self.next[at as usize], self.previous[at as usize]);
            self.next[previous as usize] = next;
            self.previous[next as usize] = previous;
        }
    }

    /// Puts back the item that was removed last.
    fn restore(&mut self, item: u32) {
        let at = self.position[item as usize];
        if at != NONE {
            let (next, previous) = (self.next[at as usize], self.previous[at as usize]);
            self.next[previous as usize] = at;
            self.previous[next as usize] = at;
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        let end = self.items.len() as u32;
        let mut at = end;
        std::iter::from_fn(move || {
            at = self.next[at as usize];
            (at != end).then(|| self.items[at as usize])
        })
    }

    /// The first that is not `item`.
    fn first_but(&self, item: u32) -> Option<u32> {
        self.iter().take(2).find(|&first| first != item)
    }
}

/// A place of the search.
#[derive(Clone)]
struct Place {
    /// The possible states.
    beliefs: Rc<Vec<Belief>>,
    /// The point of the last item.
    point: i64,
    /// The point of the last change.
    released: i64,
    /// The point of the last kept change.
    committed: i64,
    /// A hash of the placed items.
    hash: u64,
}

impl Place {
    fn fingerprint(&self) -> (u64, u64) {
        let beliefs =
            self.beliefs.iter().fold(0, |sum: u64, belief| sum.wrapping_add(belief.fingerprint()));
        (self.hash, beliefs ^ mixed(self.released as u64) ^ mixed(!self.committed as u64))
    }
}

struct Frame {
    place: Place,
    options: Vec<u32>,
    tried: usize,
}

/// The reason why there is no order.
pub(super) struct NoOrder {
    /// The index of the unexplained call.
    pub call: u32,
    /// The attempts.
    pub why: String,
}

/// The search on one key.
pub(super) struct Search<'h> {
    history: &'h History,
    oracle: Oracle,
    items: Vec<Item>,
    by_earliest: Queue,
    by_latest: Queue,
    by_begun: Queue,
    by_seen: Queue,
    /// The number of items still to be placed.
    left: usize,
    /// The fewest items left, some of them, and the beliefs there.
    closest: (usize, Vec<u32>, Rc<Vec<Belief>>),
}

fn mixed(value: u64) -> u64 {
    let z = value.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl<'h> Search<'h> {
    pub(super) fn new(history: &'h History, oracle: Oracle, items: Vec<Item>) -> Search<'h> {
        let by_earliest = Queue::new(&items, |item| Some(item.earliest));
        let by_latest = Queue::new(&items, |item| Some(item.latest));
        let by_begun = Queue::new(&items, |item| (item.writes != Writes::No).then_some(item.begun));
        let by_seen = Queue::new(&items, |item| (item.writes != Writes::No).then_some(item.seen));
        let left = items.iter().filter(|item| !item.optional).count();
        let closest = (usize::MAX, Vec::new(), Rc::new(Vec::new()));
        Search { history, oracle, items, by_earliest, by_latest, by_begun, by_seen, left, closest }
    }

    /// Finds an order.
    ///
    /// # Errors
    /// There is no order, or the search takes too long.
    pub(super) fn run(mut self) -> Result<(), NoOrder> {
        let beliefs = Rc::new(vec![Belief::nothing()]);
        let place =
            Place { beliefs, point: i64::MIN, released: i64::MIN, committed: i64::MIN, hash: 0 };
        let mut budget = 1_000_000 + 400 * self.items.len() as u64;
        let mut placed: Vec<u32> = Vec::with_capacity(self.items.len());
        let mut frames: Vec<Frame> = vec![self.frame(place)];
        let mut known: HashSet<(u64, u64)> = HashSet::new();
        while self.left > 0 {
            let Some(frame) = frames.last_mut() else { return Err(self.refusal()) };
            let Some(&item) = frame.options.get(frame.tried) else {
                known.insert(frame.place.fingerprint());
                frames.pop();
                if let Some(item) = placed.pop() {
                    self.restore(item);
                }
                continue;
            };
            frame.tried += 1;
            budget -= 1;
            if budget == 0 {
                let NoOrder { call, why } = self.refusal();
                return Err(NoOrder { call, why: format!("the search takes too long; {why}") });
            }
            let before = frame.place.clone();
            let Some(after) = self.after(&before, item) else { continue };
            if !known.is_empty() && known.contains(&after.fingerprint()) {
                continue;
            }
            self.remove(item & !UNCHANGED);
            placed.push(item & !UNCHANGED);
            frames.push(self.frame(after));
        }
        Ok(())
    }

    fn queues(&mut self) -> [&mut Queue; 4] {
        [&mut self.by_earliest, &mut self.by_latest, &mut self.by_begun, &mut self.by_seen]
    }

    fn remove(&mut self, item: u32) {
        self.queues().into_iter().for_each(|queue| queue.remove(item));
        self.left -= usize::from(!self.items[item as usize].optional);
    }

    fn restore(&mut self, item: u32) {
        self.queues().into_iter().for_each(|queue| queue.restore(item));
        self.left += usize::from(!self.items[item as usize].optional);
    }

    /// The options at a place.
    fn frame(&mut self, place: Place) -> Frame {
        let mut options = Vec::new();
        let last = self.by_latest.iter().next().map_or(i64::MAX, |n| self.items[n as usize].latest);
        let seen = self.by_seen.iter().next().map_or(i64::MAX, |n| self.items[n as usize].seen);
        let mut later = Vec::new();
        for n in self.by_earliest.iter() {
            let item = &self.items[n as usize];
            if item.earliest > last {
                break;
            }
            if item.writes != Writes::No {
                later.push(n);
                if item.writes == Writes::Perhaps {
                    later.push(n | UNCHANGED);
                }
                continue;
            }
            let Some(after) = self.after(&place, n) else { continue };
            if after.beliefs.len() == place.beliefs.len() && item.earliest <= seen.max(place.point)
            {
                options = vec![n];
                later.clear();
                break;
            }
            options.push(n);
        }
        later.sort_by_key(|&n| self.items[(n & !UNCHANGED) as usize].begun);
        options.extend(later);
        if self.left < self.closest.0 {
            let left = self.by_latest.iter().take(4).collect();
            self.closest = (self.left, left, place.beliefs.clone());
        }
        Frame { place, options, tried: 0 }
    }

    /// The place after an item; `None`: it can't come next.
    fn after(&self, place: &Place, option: u32) -> Option<Place> {
        let n = option & !UNCHANGED;
        let item = &self.items[n as usize];
        let changes = item.writes != Writes::No && option == n;
        let only = (item.writes == Writes::Perhaps).then_some(changes);
        if changes && (place.released > item.begun || place.committed > item.seen) {
            return None;
        }
        let (after, wrote) = self.explain(&place.beliefs, item, only)?;
        let earliest = if wrote { item.earliest_end } else { item.earliest };
        let point = place.point.max(earliest);
        let but = |queue: &Queue, at: fn(&Item) -> i64| {
            queue.first_but(n).map_or(i64::MAX, |other| at(&self.items[other as usize]))
        };
        if point > item.latest || point > but(&self.by_latest, |item| item.latest) {
            return None;
        }
        if wrote && point > but(&self.by_begun, |item| item.begun) {
            return None;
        }
        if wrote && item.kept == Some(true) && point > but(&self.by_seen, |item| item.seen) {
            return None;
        }
        let hash = place.hash ^ mixed(u64::from(n));
        if !wrote {
            return Some(Place { beliefs: Rc::new(after), point, hash, ..*place });
        }
        let mut beliefs = after;
        let committed = if item.kept == Some(true) { point } else { place.committed };
        match item.kept {
            Some(true) => {}
            Some(false) => beliefs = place.beliefs.to_vec(),
            None => place.beliefs.iter().for_each(|belief| add(&mut beliefs, belief.clone())),
        }
        Some(Place { beliefs: Rc::new(beliefs), point, released: point, committed, hash })
    }

    /// The possible states after an item, and whether it changed something; `None`: an answer is not explained. `only`
    /// asks for explanations with a change, or without.
    fn explain(
        &self,
        beliefs: &[Belief],
        item: &Item,
        only: Option<bool>,
    ) -> Option<(Vec<Belief>, bool)> {
        let mut stack: Vec<Vec<Belief>> = vec![beliefs.to_vec()];
        let mut wrote = false;
        for step in &item.steps {
            let Step::Call(n) = step else {
                stack.pop();
                continue;
            };
            let before = stack.last()?;
            let (after, changed) = self.explain_call(before, *n, only);
            if after.is_empty() {
                return None;
            }
            wrote |= changed;
            let is_change =
                matches!(super::items::writes(&self.history.calls[*n as usize]), Writes::Yes);
            match (is_change, stack.last_mut()) {
                (false, Some(last)) => *last = after,
                _ => stack.push(after),
            }
        }
        Some((stack.pop()?, wrote))
    }

    /// The possible states after a call, and whether it changed something.
    fn explain_call(&self, beliefs: &[Belief], n: u32, only: Option<bool>) -> (Vec<Belief>, bool) {
        let call = &self.history.calls[n as usize];
        let span = super::span(self.history, call);
        let (mut after, mut wrote) = (Vec::new(), false);
        for belief in beliefs {
            for explained in self.oracle.explain(belief, call, span) {
                if only.is_some_and(|only| only != explained.wrote) {
                    continue;
                }
                wrote |= explained.wrote;
                add(&mut after, explained.after);
            }
        }
        (after, wrote)
    }

    /// Describes the closest place that the search reached.
    fn refusal(&self) -> NoOrder {
        let (_, left, beliefs) = &self.closest;
        let mut call = 0;
        let mut why = String::from("no order explains");
        for &n in left.iter().rev() {
            for step in &self.items[n as usize].steps {
                if let Step::Call(n) = step {
                    call = *n;
                    why += &format!("\n  {:?}", self.history.calls[*n as usize]);
                    break;
                }
            }
        }
        why += &format!("\nwhere the key has {:?}", beliefs.iter().take(3).collect::<Vec<_>>());
        NoOrder { call, why }
    }
}

/// Adds a belief unless it is there.
fn add(beliefs: &mut Vec<Belief>, belief: Belief) {
    if beliefs.len() < MOST && !beliefs.contains(&belief) {
        beliefs.push(belief);
    }
}
