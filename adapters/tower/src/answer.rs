//! The answer to a request, as a layer remembers and sends it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;

use crate::limit::{Decision, whole_seconds};

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
        let mut headers: HeaderMap = headers
            .filter_map(|(name, value)| {
                let value = HeaderValue::from_str(value.as_str()?).ok()?;
                Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
            })
            .collect();
        if let (false, Some(wait)) = (decision.ok, decision.retry_after) {
            headers.insert(header::RETRY_AFTER, whole_seconds(wait).into());
        }
        Self { decision, headers }
    }

    /// A denial, some time later.
    pub fn later(&self, passed: Duration) -> Self {
        let mut answer = self.clone();
        let wait = self.decision.retry_after.map(|wait| wait.saturating_sub(passed));
        answer.decision.retry_after = wait;
        if let Some(wait) = wait {
            answer.headers.insert(header::RETRY_AFTER, whole_seconds(wait).into());
        }
        if let Some(text) = answer.headers.get_mut("ratelimit") {
            let less = text.to_str().ok().and_then(|text| {
                let (before, seconds) = text.rsplit_once(";t=")?;
                let left = seconds.parse::<u64>().ok()?.saturating_sub(passed.as_secs());
                HeaderValue::from_str(&format!("{before};t={left}")).ok()
            });
            *text = less.unwrap_or_else(|| text.clone());
        }
        answer
    }
}
