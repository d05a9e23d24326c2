//! Denials in the server's log: a share of them, as `ratelimit.log_denials` says.

use crate::limiter::request::{Answer, Request};
use crate::pg::server_log;
use crate::pg::settings;
use crate::pg::values::utf8;

/// Writes a line for a denied call, or for a share of such calls: name, wait and role, never the key.
pub fn log(request: &Request, answer: &Answer) {
    let share = settings::log_denials();
    if share == 0.0 || fastrand::f64() >= share {
        return; // what is drawn is less than 1
    }
    let name = utf8(request.name);
    let role = server_log::current_role();
    let when = match answer.retry_after {
        Some(wait) => format!("retry after {} s", wait.ceil_to_millis().as_secs()),
        None => "this call can never pass".into(),
    };
    server_log::line(&format!("rate limit \"{name}\" exceeded by role \"{role}\": {when}"));
}
