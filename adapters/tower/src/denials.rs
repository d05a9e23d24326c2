//! The answers to requests, and the denials of them that a process remembers, to answer the denied calls without the
//! database until they end.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;

use crate::limit::Decision;

/// A decision, and the headers of its response.
#[derive(Clone)]
pub(crate) struct Answer {
    pub decision: Decision,
    pub headers: HeaderMap,
}

impl Answer {
    pub fn of(result: &Value) -> Self {
        let decision = Decision::of(&result["row"]);
        let headers = result["headers"].as_object().into_iter().flatten();
        let headers = headers
            .filter_map(|(name, value)| {
                let value = HeaderValue::from_str(value.as_str()?).ok()?;
                Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
            })
            .collect();
        Self { decision, headers }.with_retry_after()
    }

    /// A denial, some time later.
    fn later(mut self, passed: Duration) -> Self {
        let wait = self.decision.retry_after.map(|wait| wait.saturating_sub(passed));
        self.decision.retry_after = wait;
        if let Some(text) = self.headers.get_mut("ratelimit") {
            let less = text.to_str().ok().and_then(|text| {
                let (before, seconds) = text.rsplit_once(";t=")?;
                let left = seconds.parse::<u64>().ok()?.saturating_sub(passed.as_secs());
                HeaderValue::from_str(&format!("{before};t={left}")).ok()
            });
            *text = less.unwrap_or_else(|| text.clone());
        }
        self.with_retry_after()
    }

    /// Sets the header Retry-After of a denial: its wait in whole seconds, rounded up.
    fn with_retry_after(mut self) -> Self {
        if let (false, Some(wait)) = (self.decision.ok, self.decision.retry_after) {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            self.headers.insert(header::RETRY_AFTER, seconds.into());
        }
        self
    }
}

/// Remembers denials of one limit, by key, on the monotonic clock.
pub(crate) struct Denials {
    pub most: usize,
    pub at_most: Duration,
    known: Mutex<Known>,
}

/// In two halves: when the younger is full, it replaces the older, which is forgotten. A denial that is used moves to
/// the younger. Each has the time when its call was sent.
#[derive(Default)]
struct Known {
    younger: HashMap<String, (Instant, Answer)>,
    older: HashMap<String, (Instant, Answer)>,
}

impl Denials {
    pub fn new(most: usize, at_most: Duration) -> Self {
        Self { most, at_most, known: Mutex::default() }
    }

    /// The denial that a call of this key would get, too, with the rest of its waits.
    pub fn known(&self, key: &str) -> Option<Answer> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, answer) = known.younger.remove(key).or_else(|| known.older.remove(key))?;
        let passed = began.elapsed();
        // The time for which no other answer is possible.
        let lasts = answer.decision.retry_after.map_or(self.at_most, |wait| wait.min(self.at_most));
        if passed >= lasts {
            return None;
        }
        known.add(key, (began, answer.clone()), self.most);
        Some(answer.later(passed))
    }

    /// Remembers an answer if it is a denial. `began`: before the call was sent, so that the denial ends here no later
    /// than in the database.
    pub fn learn(&self, key: &str, began: Instant, answer: &Answer) {
        if answer.decision.ok {
            return;
        }
        let denial = (began, answer.clone());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.older.remove(key);
        known.add(key, denial, self.most);
    }
}

impl Known {
    fn add(&mut self, key: &str, denial: (Instant, Answer), most: usize) {
        self.younger.insert(key.to_owned(), denial);
        if self.younger.len() > most / 2 {
            self.older = mem::take(&mut self.younger);
        }
    }
}
