//! Denials that a process remembers, to answer the denied calls without the database until they end.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::answer::Answer;

/// Remembers denials of one limit, by key, on the monotonic clock.
pub(crate) struct Denials {
    most: usize,
    at_most: Duration,
    known: Mutex<Known>,
}

/// In two halves: when the younger is full, it replaces the older, which is forgotten. A denial that is used moves to
/// the younger.
#[derive(Default)]
struct Known {
    younger: HashMap<String, Denial>,
    older: HashMap<String, Denial>,
}

struct Denial {
    /// The time when the call was sent, and the time for which no other answer is possible.
    began: Instant,
    lasts: Duration,
    answer: Answer,
}

impl Denials {
    pub fn new(most: usize, at_most: Duration) -> Self {
        Self { most, at_most, known: Mutex::default() }
    }

    /// Denials of another limit, by the same options.
    pub fn empty(&self) -> Self {
        Self::new(self.most, self.at_most)
    }

    /// The denial that a call of this key would get, too, with the rest of its waits.
    pub fn known(&self, key: &str) -> Option<Answer> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let denial = known.younger.remove(key).or_else(|| known.older.remove(key))?;
        let passed = denial.began.elapsed();
        if passed >= denial.lasts {
            return None;
        }
        let answer = denial.answer.later(passed);
        known.add(key, denial, self.most);
        Some(answer)
    }

    /// Remembers an answer if it is a denial. `began`: before the call was sent, so that the denial ends here no later
    /// than in the database.
    pub fn learn(&self, key: &str, began: Instant, answer: &Answer) {
        if answer.decision.ok {
            return;
        }
        let lasts = answer.decision.retry_after.map_or(self.at_most, |wait| wait.min(self.at_most));
        let denial = Denial { began, lasts, answer: answer.clone() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.older.remove(key);
        known.add(key, denial, self.most);
    }
}

impl Known {
    fn add(&mut self, key: &str, denial: Denial, most: usize) {
        self.younger.insert(key.to_owned(), denial);
        if self.younger.len() > most / 2 {
            self.older = mem::take(&mut self.younger);
        }
    }
}
