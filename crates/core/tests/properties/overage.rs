//! Fixed windows with overage, compared with a count of what each window used.

use proptest::prelude::*;

use ratelimit_core::{Limit, Micros, config, credit, decide};

use crate::cases;

fn limit(rate: f64, period: i64, capacity: f64, calendar: bool) -> Limit {
    let more = match calendar {
        true => r#""period": "1 day", "timezone": "UTC""#.to_owned(),
        false => format!(r#""period": {}, "start": 0"#, period as f64 / 1e3),
    };
    let json = format!(
        r#"{{"kind": "fixed window", "rate": {rate}, {more}, "capacity": {capacity}, "overage": true}}"#
    );
    config::parse(&json).unwrap()
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// Every call passes; the tokens left are what the windows gave less what was used in this one; and the overage
    /// ends with its window.
    #[test]
    fn what_is_over_ends_with_its_window(
        rate in 1..20u32,
        more in 0..20u32,
        period in 1_000..100_000i64,
        calendar in any::<bool>(),
        steps in prop::collection::vec((0.0..3.0f64, 0..30u32, any::<bool>()), 1..40),
    ) {
        let period = if calendar { 86_400_000_000 } else { period };
        let capacity = f64::from(rate + more);
        let limit = limit(rate.into(), period, capacity, calendar);
        let mut now = 1_798_804_800_000_000;
        let mut state = limit.initial_state(Micros(now), Micros(0));
        let (mut window, mut left) = (now.div_euclid(period), capacity);
        for (gap, count, gives_back) in steps {
            now += (gap * period as f64) as i64;
            let turned = now.div_euclid(period) - window;
            if turned > 0 {
                left = (left.max(0.0) + turned as f64 * f64::from(rate)).min(capacity);
                window += turned;
            }
            prop_assert_eq!(limit.level(&state, Micros(now)).remaining, left);
            let count = f64::from(count);
            let decision = match gives_back {
                true => credit(&limit, &state, Micros(now), count, None).unwrap(),
                false => decide(&limit, &state, Micros(now), count, false),
            };
            left = if gives_back { (left + count).min(capacity) } else { left - count };
            prop_assert!(decision.ok);
            prop_assert_eq!(decision.retry_after, None);
            prop_assert_eq!(decision.level.remaining, left);
            prop_assert_eq!(decision.level.reset_at, Some(Micros((window + 1) * period)));
            state = decision.state.unwrap_or(state);
            // Idle when the window with its last token begins: a debt is none of the next.
            let missing = match left >= capacity {
                true => 0.0,
                false => ((capacity - left.max(0.0)) / f64::from(rate)).ceil().max(1.0),
            };
            let idle_at = if missing == 0.0 { now } else { (window + missing as i64) * period };
            prop_assert_eq!(limit.idle_at(&state, Micros(now), Micros(0)), Some(Micros(idle_at)));
        }
    }
}
