//! What an entry keeps, in three words and a tag.

use ratelimit_core::kinds::{Counters, Lease, Tokens};
use ratelimit_core::{Micros, State};

/// What an entry keeps: a state that fits into it, or one of the slots of a concurrency limit, since it has no room for
/// more than one lease. A log has no place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kept {
    /// The state of a token bucket or a fixed window.
    Tokens(Tokens),
    /// The state of a sliding window.
    Counters(Counters),
    /// A slot that is taken.
    Slot {
        /// The lease that takes it.
        lease: Lease,
        /// When the slots of its key were changed last.
        ts: Micros,
        /// Whether it is the first of its key, so that a key with several is counted once.
        is_first: bool,
    },
}

/// [`Tokens`] that don't tell what a window brought, and of a new entry zeros: value, ts.
pub(super) const TOKENS: u8 = 1;
/// [`Tokens`] that do: value, ts, brought.
const WINDOW: u8 = 2;
/// [`Counters`]: value, ts, prior.
const COUNTERS: u8 = 3;
/// [`Kept::Slot`], the first: id, expires_at, ts.
const FIRST_SLOT: u8 = 4;
/// [`Kept::Slot`], another: the same.
const SLOT: u8 = 5;

impl Kept {
    /// What is kept of a state; `None` of a log and of leases.
    pub fn of(state: &State) -> Option<Kept> {
        match state {
            State::Tokens(tokens) => Some(Kept::Tokens(*tokens)),
            State::Counters(counters) => Some(Kept::Counters(*counters)),
            State::Log(_) | State::Leases(_) => None,
        }
    }

    /// The state; `None` of a slot.
    pub fn state(self) -> Option<State> {
        match self {
            Kept::Tokens(tokens) => Some(State::Tokens(tokens)),
            Kept::Counters(counters) => Some(State::Counters(counters)),
            Kept::Slot { .. } => None,
        }
    }

    /// The tag, which is not 0, and the words.
    pub(crate) fn encode(self) -> (u8, [u64; 3]) {
        let instant = |at: Micros| at.0.cast_unsigned();
        match self {
            Kept::Tokens(Tokens { value, ts, brought: None }) => {
                (TOKENS, [value.to_bits(), instant(ts), 0])
            }
            Kept::Tokens(Tokens { value, ts, brought: Some(brought) }) => {
                (WINDOW, [value.to_bits(), instant(ts), brought.to_bits()])
            }
            Kept::Counters(Counters { value, prior, ts }) => {
                (COUNTERS, [value.to_bits(), instant(ts), prior.to_bits()])
            }
            Kept::Slot { lease: Lease { id, expires_at }, ts, is_first } => {
                let tag = if is_first { FIRST_SLOT } else { SLOT };
                (tag, [instant(id), instant(expires_at), instant(ts)])
            }
        }
    }

    /// Reads what [`encode`](Kept::encode) wrote; of a tag that it doesn't write, tokens.
    pub(crate) fn decode(tag: u8, [first, second, third]: [u64; 3]) -> Kept {
        let instant = |word: u64| Micros(word.cast_signed());
        let (value, ts) = (f64::from_bits(first), instant(second));
        match tag {
            COUNTERS => Kept::Counters(Counters { value, prior: f64::from_bits(third), ts }),
            FIRST_SLOT | SLOT => Kept::Slot {
                lease: Lease { id: instant(first), expires_at: instant(second) },
                ts: instant(third),
                is_first: tag == FIRST_SLOT,
            },
            _ => {
                let brought = (tag == WINDOW).then(|| f64::from_bits(third));
                Kept::Tokens(Tokens { value, ts, brought })
            }
        }
    }
}
