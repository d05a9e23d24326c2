//! The contents of rows and entries, which can be compared and hashed.

use std::hash::{Hash, Hasher};

use ratelimit_core::hold::Hold;
use ratelimit_core::kinds::{Counters, Lease, Tokens};
use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{Stored, Version};

/// The contents of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// The contents of a limit or a shard.
    Limit(Version),
    /// A hold of a key.
    Hold(HoldOf),
}

/// A hold of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldOf {
    /// The hold's id.
    pub id: Vec<u8>,
    /// The hold itself.
    pub hold: Hold,
}

/// The state of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Total(pub State);

// No NaN is stored: no limit counts one.
impl Eq for Content {}
impl Eq for Total {}
impl Eq for HoldOf {}

impl Hash for Content {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Version { stored, holds_due } = match self {
            Content::Limit(version) => version,
            Content::Hold(hold) => return (13, hold).hash(hasher),
        };
        holds_due.map(|Micros(at)| at).hash(hasher);
        match stored {
            Stored::State(state) => hash_state(state, hasher),
            Stored::Reset { ts } => (10, ts.0).hash(hasher),
            Stored::Marker { reset } => (11, reset).hash(hasher),
            Stored::Invalid { ts, .. } => (12, ts.0).hash(hasher),
        }
    }
}

impl Hash for Total {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hash_state(&self.0, hasher);
    }
}

impl Hash for HoldOf {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Hold { count, spent, returned, taken_at, expires_at, charge, lease } = self.hold;
        let tokens = [count, spent, returned].map(bits);
        let lease = lease.map(|Micros(id)| id);
        (&self.id, tokens, taken_at.0, expires_at.0, charge, lease).hash(hasher);
    }
}

/// The bits of a number, the same for 0 and -0, which are equal.
fn bits(value: f64) -> u64 {
    (value + 0.0).to_bits()
}

fn hash_state<H: Hasher>(state: &State, hasher: &mut H) {
    match state {
        State::Tokens(tokens) => hash_tokens(tokens, hasher),
        State::Counters(counters) => hash_counters(counters, hasher),
        State::Log(log) => {
            (3, log.ts.0).hash(hasher);
            log.entries.iter().for_each(|Micros(at)| at.hash(hasher));
        }
        State::Leases(leases) => {
            (4, leases.ts.0).hash(hasher);
            leases.leases.iter().for_each(|lease| hash_lease(lease, hasher));
        }
    }
}

fn hash_tokens<H: Hasher>(tokens: &Tokens, hasher: &mut H) {
    (1, bits(tokens.value), tokens.ts.0, tokens.added.map(bits)).hash(hasher);
}

fn hash_counters<H: Hasher>(counters: &Counters, hasher: &mut H) {
    (2, bits(counters.value), bits(counters.prior), counters.ts.0).hash(hasher);
}

fn hash_lease<H: Hasher>(lease: &Lease, hasher: &mut H) {
    (lease.id.0, lease.expires_at.0).hash(hasher);
}
