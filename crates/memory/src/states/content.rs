//! The content of an entry, in three words and a tag.

use ratelimit_core::kinds::{Counters, Lease, Tokens};
use ratelimit_core::{Micros, State};

/// A state that fits into an entry, or one lease of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// The state of a token bucket or a fixed window.
    Tokens(Tokens),
    /// The state of a sliding window.
    Counters(Counters),
    /// A taken slot.
    Slot {
        /// The lease that holds the slot.
        lease: Lease,
        /// The time when the slots of its key last changed.
        ts: Micros,
        /// Whether it is the first of its key: a key with several is counted once.
        is_first: bool,
    },
}

/// [`Tokens`] without `added`, as in a new entry: value, ts.
pub(super) const TOKENS: u8 = 1;
/// [`Tokens`] with `added`: value, ts, added.
const WINDOW: u8 = 2;
/// [`Counters`]: value, ts, prior.
const COUNTERS: u8 = 3;
/// [`Content::Slot`], the first: id, expires_at, ts.
const FIRST_SLOT: u8 = 4;
/// [`Content::Slot`], another: the same.
const SLOT: u8 = 5;

impl Content {
    /// The content for a state; `None` for a log and for leases, which don't fit.
    pub fn new(state: &State) -> Option<Content> {
        match state {
            State::Tokens(tokens) => Some(Content::Tokens(*tokens)),
            State::Counters(counters) => Some(Content::Counters(*counters)),
            State::Log(_) | State::Leases(_) => None,
        }
    }

    /// The state; `None` for a slot.
    pub fn state(self) -> Option<State> {
        match self {
            Content::Tokens(tokens) => Some(State::Tokens(tokens)),
            Content::Counters(counters) => Some(State::Counters(counters)),
            Content::Slot { .. } => None,
        }
    }

    /// The tag, which is not 0, and the words.
    pub(crate) fn encode(self) -> (u8, [u64; 3]) {
        let instant = |at: Micros| at.0.cast_unsigned();
        match self {
            Content::Tokens(Tokens { value, ts, added: None }) => {
                (TOKENS, [value.to_bits(), instant(ts), 0])
            }
            Content::Tokens(Tokens { value, ts, added: Some(added) }) => {
                (WINDOW, [value.to_bits(), instant(ts), added.to_bits()])
            }
            Content::Counters(Counters { value, prior, ts }) => {
                (COUNTERS, [value.to_bits(), instant(ts), prior.to_bits()])
            }
            Content::Slot { lease: Lease { id, expires_at }, ts, is_first } => {
                let tag = if is_first { FIRST_SLOT } else { SLOT };
                (tag, [instant(id), instant(expires_at), instant(ts)])
            }
        }
    }

    /// Decodes the result of [`encode`](Content::encode); any other tag counts as tokens.
    pub(crate) fn decode(tag: u8, [first, second, third]: [u64; 3]) -> Content {
        let instant = |word: u64| Micros(word.cast_signed());
        let (value, ts) = (f64::from_bits(first), instant(second));
        match tag {
            COUNTERS => Content::Counters(Counters { value, prior: f64::from_bits(third), ts }),
            FIRST_SLOT | SLOT => Content::Slot {
                lease: Lease { id: instant(first), expires_at: instant(second) },
                ts: instant(third),
                is_first: tag == FIRST_SLOT,
            },
            _ => {
                let added = (tag == WINDOW).then(|| f64::from_bits(third));
                Content::Tokens(Tokens { value, ts, added })
            }
        }
    }
}
