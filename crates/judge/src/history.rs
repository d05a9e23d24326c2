//! Histories: the calls of sessions, the answers, and the ends of transactions. Instants are microseconds; those of
//! clients are on one timeline, which never steps.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The storage of a limit's state, which determines the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// In one row, which stays locked from its change to the end of the transaction.
    Row,
    /// In several rows, one for each shard.
    Shards,
    /// In memory: each call takes effect at once, whether the transaction commits or not.
    Memory,
}

/// A limit and one of its keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limited {
    /// The limit's name.
    pub name: String,
    /// The key.
    pub key: String,
    /// The limit's config, in JSON.
    pub config: String,
    /// The storage of its state.
    pub storage: Storage,
}

/// The end of a transaction, or the rollback to a savepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The time of the client's request, or another before which the calls were surely not ended. It may be earlier
    /// than the answer to the last of them, where something else ended the session.
    pub invoked: i64,
    /// The time of the answer; `i64::MAX`: never.
    pub answered: i64,
    /// Whether the changes are kept; `None`: unknown, because the answer was lost.
    pub kept: Option<bool>,
}

/// A call's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Asked {
    /// `rl_limit`, or a request of `rl_limit_all` if all were allowed.
    Limit {
        /// Tokens.
        count: f64,
        /// Whether it may go into debt.
        reserve: bool,
    },
    /// `rl_check`, or a request of `rl_limit_all` if not all were allowed: it takes nothing.
    Check {
        /// Tokens.
        count: f64,
        /// Whether the call may go into debt.
        reserve: bool,
    },
    /// `rl_credit`.
    Credit {
        /// Tokens.
        count: f64,
    },
    /// `rl_hold`, or a request of `rl_hold_all`.
    Hold {
        /// The hold's id, as a number: [`hold_number`].
        hold: u64,
        /// Tokens.
        count: f64,
        /// The fewest tokens that suffice; equal to `count` if a part does not.
        at_least: f64,
        /// Its duration in microseconds.
        ttl: i64,
        /// Whether its tokens stay taken when it expires.
        charge: bool,
        /// The answer: the tokens held.
        held: f64,
        /// The answer: the time when it expires; `i64::MAX`: unknown.
        expires_at: i64,
    },
    /// `rl_settle`, or a limit of `rl_settle_all`; `ok`: whether the hold existed.
    Settle {
        /// The hold's id, as a number.
        hold: u64,
        /// The tokens used; `None`: all.
        used: Option<f64>,
    },
    /// `rl_reset`; `ok`: whether there was a state.
    Reset,
    /// `rl_acquire`.
    Acquire {
        /// Slots.
        count: f64,
        /// The id of the lease; 0: none.
        lease: i64,
    },
    /// `rl_extend`; `ok`: whether the lease was live.
    Extend {
        /// The lease's id.
        lease: i64,
    },
    /// `rl_release`; `ok`: whether the lease was live.
    Release {
        /// The lease's id.
        lease: i64,
    },
}

/// The number of a hold's id: FNV-1a, G. Fowler, L. C. Noll, P. Vo.
pub fn hold_number(id: &str) -> u64 {
    id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A call's answer. Fields that are `None` are not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether the call was allowed.
    pub ok: bool,
    /// Tokens left after it; for a check, before it would take any.
    pub remaining: Option<f64>,
    /// The time when a denied call can pass, in whole milliseconds; `Some(None)`: never.
    pub retry_at: Option<Option<i64>>,
}

/// A call and its answer. A call that fails takes nothing and is not recorded, except for the end of its transaction.
/// If it was a transaction of its own, or on a limit in memory, and its answer was lost, it is `unanswered`: it may
/// have taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Invocation {
    /// The session's number.
    pub session: u32,
    /// The transaction's number.
    pub transaction: u32,
    /// The index of its limit and key.
    pub key: u32,
    /// Its arguments.
    pub asked: Asked,
    /// The time of the client's call.
    pub invoked: i64,
    /// The time when the client had the answer, or gave up: the call was decided by then, if ever.
    pub answered: i64,
    /// The server's clock at the decision, if known.
    pub now: Option<i64>,
    /// The answer.
    pub reply: Reply,
    /// The index of the end that keeps or undoes it; `None`: the call was a transaction of its own.
    pub end: Option<u32>,
    /// Whether the answer was lost: the call may have taken, or not. The reply is only `ok`, and its end is its own.
    #[serde(default)]
    pub unanswered: bool,
}

/// A row of a limit with shards after a call that changed it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardSeen {
    /// The call's transaction.
    pub transaction: u32,
    /// The call's key.
    pub key: u32,
    /// The time of the client's call.
    pub invoked: i64,
    /// The number of the row's shard.
    pub shard: i32,
    /// Tokens.
    pub value: f64,
    /// The time of the row.
    pub ts: i64,
}

/// The calls of concurrent sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The maximum difference of the server's clock from the clients' timeline; `None`: a test has set that clock, and
    /// each call has its `now`.
    pub skew: Option<i64>,
    /// Limits and keys.
    pub keys: Vec<Limited>,
    /// Ends of transactions and savepoints.
    pub ends: Vec<End>,
    /// The calls, those of a transaction in their order.
    pub calls: Vec<Invocation>,
    /// The rows of limits with shards after calls, if known.
    pub rows: Vec<ShardSeen>,
}

/// A line of a file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Skew(Option<i64>),
    Key(Limited),
    End(End),
    Call(Invocation),
    Row(ShardSeen),
}

impl History {
    /// The history with one answer changed: the take from a row or from memory that left most becomes a denial. A judge
    /// must refuse it if there were always that many tokens. `None`: there is no such take.
    pub fn with_a_denial(&self) -> Option<History> {
        let is_kept = |call: &Invocation| {
            call.end.is_none_or(|end| self.ends[end as usize].kept == Some(true))
        };
        let is_plain = |call: &Invocation| {
            self.keys[call.key as usize].storage != Storage::Shards && is_kept(call)
        };
        let takes = self.calls.iter().enumerate().filter(|(_, call)| {
            call.reply.ok && matches!(call.asked, Asked::Limit { .. }) && is_plain(call)
        });
        let left = |call: &Invocation| call.reply.remaining.unwrap_or(f64::MIN);
        let (most, _) = takes.max_by(|(_, one), (_, other)| left(one).total_cmp(&left(other)))?;
        let mut changed = self.clone();
        changed.calls[most].reply.ok = false;
        Some(changed)
    }

    /// Writes the history to a file, as lines of JSON; the first line is `note`, a text.
    pub fn write(&self, path: &Path, note: &str) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let mut put = |line: String| writeln!(file, "{line}");
        put(serde_json::to_string(note)?)?;
        put(serde_json::to_string(&Line::Skew(self.skew))?)?;
        for key in &self.keys {
            put(serde_json::to_string(&Line::Key(key.clone()))?)?;
        }
        for end in &self.ends {
            put(serde_json::to_string(&Line::End(*end))?)?;
        }
        for call in &self.calls {
            put(serde_json::to_string(&Line::Call(*call))?)?;
        }
        for row in &self.rows {
            put(serde_json::to_string(&Line::Row(*row))?)?;
        }
        file.flush()
    }

    /// Reads a file of [`write`](History::write).
    pub fn read(path: &Path) -> io::Result<History> {
        let mut history = History::default();
        for line in BufReader::new(File::open(path)?).lines().skip(1) {
            match serde_json::from_str(&line?)? {
                Line::Skew(skew) => history.skew = skew,
                Line::Key(key) => history.keys.push(key),
                Line::End(end) => history.ends.push(end),
                Line::Call(call) => history.calls.push(call),
                Line::Row(row) => history.rows.push(row),
            }
        }
        Ok(history)
    }
}
