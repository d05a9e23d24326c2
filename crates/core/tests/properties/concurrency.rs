//! Concurrency limits, compared with a list of all leases that were ever given.

use proptest::prelude::*;
use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::{Limit, Micros, State, config, decide, state};

use crate::cases;

#[derive(Clone, Debug)]
enum Call {
    /// The slots, and where the draw of an id begins: there are few ids, so that some are in use.
    Acquire(u32, i64),
    /// The lease that was given as the n-th, or one that never was.
    Release(usize),
    Extend(usize),
}

/// Slots, ttl, and calls with the time that passes before each.
fn calls(
    gap: impl Strategy<Value = i64> + Clone + 'static,
) -> impl Strategy<Value = (u32, i64, Vec<(i64, Call)>)> {
    let call = prop_oneof![
        4 => (0..6u32, 1..8i64).prop_map(|(count, id)| Call::Acquire(count, id)),
        2 => (0..20usize).prop_map(Call::Release),
        1 => (0..20usize).prop_map(Call::Extend),
    ];
    (1..6u32, 1_000..5_000i64, prop::collection::vec((gap, call), 1..40))
}

fn limit(slots: u32, ttl: i64) -> Limit {
    let ttl = ttl as f64 / 1e3;
    let json = format!(r#"{{"kind": "concurrency", "slots": {slots}, "ttl": {ttl}}}"#);
    config::parse(&json).unwrap()
}

/// The leases of a state.
fn leases(state: &State) -> &Leases {
    match state {
        State::Leases(leases) => leases,
        of_others => panic!("{of_others:?}"),
    }
}

/// A lease of the list.
#[derive(Clone, Copy, Debug)]
struct Given {
    id: Micros,
    count: u32,
    expires_at: i64,
    released: bool,
}

impl Given {
    fn takes(&self, now: i64) -> u32 {
        if self.released || self.expires_at <= now { 0 } else { self.count }
    }
}

/// The slots that are taken, by the list.
fn taken(given: &[Given], now: i64) -> u32 {
    given.iter().map(|lease| lease.takes(now)).sum()
}

/// What a key without a state is answered, from now on.
fn is_as_new(limit: &Limit, state: &State, now: Micros) -> bool {
    let new = limit.initial_state(now, now);
    limit.level(state, now) == limit.level(&new, now)
        && [1.0, 2.0, 6.0].iter().all(|&count| {
            let (kept, fresh) =
                (decide(limit, state, now, count, false), decide(limit, &new, now, count, false));
            kept == fresh
        })
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// No more than the slots are ever taken, none is refused that is free, and a wait is exact.
    #[test]
    fn leases_are_those_of_the_list((slots, ttl, calls) in calls(0..2_000i64)) {
        let limit = limit(slots, ttl);
        let mut now = 1_798_804_800_000_000;
        let mut kept = limit.initial_state(Micros(now), Micros(now));
        let mut given: Vec<Given> = Vec::new();
        for (gap, call) in calls {
            now += gap;
            let at = Micros(now);
            let before = taken(&given, now);
            prop_assert!(before <= slots);
            prop_assert_eq!(limit.level(&kept, at).remaining, f64::from(slots - before));
            // What is stored is what is read.
            let json = state::to_json(&kept).to_string();
            prop_assert_eq!(&state::parse(&json, &limit).unwrap(), &kept, "{}", json);
            match call {
                Call::Acquire(count, id) => {
                    let decision = limit.acquire(&kept, at, count.into(), Micros(id));
                    let pure = decide(&limit, &kept, at, count.into(), false);
                    prop_assert_eq!(
                        (pure.ok, pure.retry_after, pure.level),
                        (decision.ok, decision.retry_after, decision.level)
                    );
                    prop_assert_eq!(decision.ok, before + count <= slots || count == 0);
                    match (decision.ok, decision.retry_after) {
                        (true, wait) => prop_assert_eq!(wait, None),
                        (false, None) => prop_assert!(count > slots),
                        (false, Some(wait)) => {
                            let then = at.plus(wait);
                            prop_assert!(taken(&given, then.0) + count <= slots);
                            prop_assert!(taken(&given, then.0 - 1) + count > slots);
                            prop_assert!(decide(&limit, &kept, then, count.into(), false).ok);
                        }
                    }
                    if let Some(after) = decision.state {
                        let id = leases(&after).given().unwrap().id;
                        prop_assert!(leases(&kept).leases.iter().all(|lease| lease.id != id), "{id:?} is another's");
                        prop_assert_eq!(after.ts(), at);
                        // What has that id by chance has been given back: of it nothing is asked any more.
                        given.iter_mut().filter(|lease| lease.id == id).for_each(|lease| lease.id = Micros(-1));
                        let mine = leases(&after).leases.iter().filter(|lease| lease.id == id);
                        prop_assert_eq!(mine.count() as u32, count);
                        given.push(Given { id, count, expires_at: now + ttl, released: false });
                        kept = after;
                    }
                }
                Call::Release(n) | Call::Extend(n) => {
                    let id = given.get(n).map_or(Micros(77), |lease| lease.id);
                    let live = given.get(n).is_some_and(|lease| lease.takes(now) > 0);
                    let release = matches!(call, Call::Release(_));
                    let after = match release {
                        true => limit.release(&kept, at, id),
                        false => limit.extend(&kept, at, id),
                    };
                    prop_assert_eq!(after.is_some(), live);
                    if let Some(after) = after {
                        kept = after;
                        given[n].released = release;
                        given[n].expires_at = now + ttl;
                    }
                }
            }
            let level = limit.level(&kept, at);
            let last = given.iter().filter(|lease| lease.takes(now) > 0).map(|lease| lease.expires_at).max();
            prop_assert_eq!(level.reset_at, Some(Micros(last.unwrap_or(now))));
        }
    }

    /// Whatever the clock does, no id is held twice, and no more than the slots at one instant; and the time of the
    /// state is the latest.
    #[test]
    fn a_clock_that_jumps_gives_no_slot_twice((slots, ttl, calls) in calls(-6_000..6_000i64)) {
        let limit = limit(slots, ttl);
        let mut now = 1_798_804_800_000_000;
        let mut kept = limit.initial_state(Micros(now), Micros(now));
        let mut ids = Vec::new();
        for (gap, call) in calls {
            now += gap;
            let at = Micros(now);
            let before = kept.ts();
            kept = match call {
                Call::Acquire(count, _) => match decide(&limit, &kept, at, count.into(), false).state {
                    Some(after) => {
                        let id = leases(&after).given().unwrap().id;
                        prop_assert!(leases(&kept).leases.iter().all(|lease| lease.id != id));
                        ids.push(id);
                        after
                    }
                    None => kept,
                },
                Call::Release(n) => {
                    let id = ids.get(n).copied().unwrap_or(Micros(7));
                    limit.release(&kept, at, id).unwrap_or(kept)
                }
                Call::Extend(n) => {
                    let id = ids.get(n).copied().unwrap_or(Micros(7));
                    limit.extend(&kept, at, id).unwrap_or(kept)
                }
            };
            prop_assert!(kept.ts() == before || kept.ts() == before.max(at));
            let live = leases(&kept).leases.iter().filter(|lease| lease.is_live(at)).count() as u32;
            prop_assert!(live <= slots);
        }
    }

    /// An id that is drawn is the same wherever it is stored or shown: as a float, and in milliseconds.
    #[test]
    fn an_id_that_is_drawn_is_kept_exactly(random in prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)]) {
        let id = Lease::random_id(random);
        prop_assert!(id.0 > 0);
        prop_assert_eq!(id.0 as f64 as i64, id.0);
        prop_assert_eq!(Micros::from_millis(id.as_millis()), id);
        let limit = limit(1, 1_000);
        let free = limit.initial_state(Micros(0), Micros(0));
        let after = limit.acquire(&free, Micros(0), 1.0, id).state.unwrap();
        let read = state::parse(&state::to_json(&after).to_string(), &limit).unwrap();
        prop_assert_eq!(leases(&read).given().unwrap().id, id);
    }

    /// An idle state can be deleted, from `idle_at` on and not before.
    #[test]
    fn an_idle_state_is_none((slots, ttl, calls) in calls(0..2_000i64), pause in 0..8_000i64) {
        let limit = limit(slots, ttl);
        let mut now = 1_798_804_800_000_000;
        let mut kept = limit.initial_state(Micros(now), Micros(now));
        for (gap, call) in calls {
            now += gap;
            if let Call::Acquire(count, _) = call {
                kept = decide(&limit, &kept, Micros(now), count.into(), false).state.unwrap_or(kept);
            }
        }
        let at = Micros(now + pause);
        if limit.is_idle(&kept, at, at) {
            prop_assert!(is_as_new(&limit, &kept, at));
        }
        let idle_at = limit.idle_at(&kept, at, at).unwrap();
        prop_assert!(limit.is_idle(&kept, idle_at, at));
        prop_assert!(idle_at == at || !limit.is_idle(&kept, Micros(idle_at.0 - 1), at));
    }
}

#[test]
fn a_lease_of_the_last_slot_is_given_when_the_one_before_expires() {
    let limit = limit(1, 1_000);
    let at = |micros: i64| Micros(1_798_804_800_000_000 + micros);
    let first =
        decide(&limit, &limit.initial_state(at(0), at(0)), at(0), 1.0, false).state.unwrap();
    assert_eq!(leases(&first).given().unwrap().id, at(0));
    assert!(!decide(&limit, &first, at(999), 1.0, false).ok);
    let second = decide(&limit, &first, at(1_000), 1.0, false).state.unwrap();
    assert_eq!(limit.release(&second, at(1_000), at(0)), None, "it expired");
    assert_eq!(limit.extend(&second, at(1_000), at(0)), None);
    let free = limit.release(&second, at(1_000), at(1_000)).unwrap();
    assert!(decide(&limit, &free, at(1_000), 1.0, false).ok);
}

#[test]
fn a_hold_keeps_and_extends_its_slots_where_more_are_taken_than_there_are_and_none_changes_nothing()
{
    let now = Micros(1_798_804_800_000_000);
    let until = |micros| Lease { id: Micros(7), expires_at: now.plus(Micros(micros)) };
    let (three, one) = (limit(3, 1_000), limit(1, 1_000));
    let new = three.initial_state(now, now);
    let held = three.hold_slots(&new, now, 2.0, until(1_000)).unwrap().state.unwrap();
    let decision = one.hold_slots(&held, now, 2.0, until(9_000)).unwrap();
    assert!(decision.ok);
    assert_eq!(leases(&decision.state.unwrap()).leases, [until(9_000); 2]);
    assert_eq!(three.hold_slots(&new, now, 0.0, until(1_000)).unwrap().state, None);
}
