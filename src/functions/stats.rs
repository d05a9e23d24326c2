//! Counters of all limits, in shared memory since the server started.

use super::answers::time;
use super::arguments::{LimitName, MaxRows};
use crate::declaration::sql_function;
use crate::schema::settings;
use crate::tally;
use crate::writer;
use ratelimit_pg::call::sql_types::{Text, Timestamptz, sql_row};
use ratelimit_pg::call::{Call, Rows};

sql_row! {
    /// The counters of a name.
    pub struct StatsRow as "@extschema@.rl_stats_result" {
        name: Text,
        allowed: i64,
        denied: i64,
        denied_in_dry_run: i64,
        tokens: f64,
        since: Option<Timestamptz>,
    }
}

sql_function! {
    /// 53100 or 53200: there is no shared memory for the counters.
    #[effect(Reads)]
    fn rl_stats(call: &Call) -> Rows<StatsRow> {
        let rows = call.rows()?;
        for totals in tally::totals(call.function())? {
            rows.put(StatsRow {
                name: Text::new(&totals.name),
                allowed: totals.allowed as i64,
                denied: totals.denied as i64,
                denied_in_dry_run: totals.denied_in_dry_run as i64,
                tokens: totals.tokens,
                since: time(totals.since),
            });
        }
        Ok(rows)
    }
}

sql_function! {
    /// 22023; 53100 or 53200 as `rl_stats`.
    #[effect(Reads)]
    fn rl_stats_reset(call: &Call, name: Option<LimitName>) -> i64 {
        tally::reset(call.function(), name.map(|name| name.0))
    }
}

sql_row! {
    /// A key that was denied between `denied - overcount` and `denied` times.
    pub struct DeniedRow as "@extschema@.rl_top_denied_result" {
        name: Text,
        key: Text,
        denied: i64,
        overcount: i64,
    }
}

sql_function! {
    /// 22023; 53100 or 53200 as `rl_stats`.
    #[effect(Reads)]
    fn rl_top_denied(
        call: &Call,
        name: Option<LimitName>,
        max_rows: MaxRows,
    ) -> Rows<DeniedRow> {
        let rows = call.rows()?;
        let name = name.map(|name| name.0);
        for denied in tally::most_denied(call.function(), name, max_rows.0)? {
            rows.put(DeniedRow {
                name: Text::new(&denied.name),
                key: Text::new(&denied.key),
                denied: denied.denied as i64,
                overcount: denied.error as i64,
            });
        }
        Ok(rows)
    }
}

sql_row! {
    /// The memory that limits in memory use, in all databases of the server.
    pub struct MemoryRow as "@extschema@.rl_memory_result" {
        keys: i64,
        room: i64,
        inline_keys: i64,
        inline_room: i64,
        bytes: i64,
        dropped_idle: i64,
        dropped_live: i64,
        since: Option<Timestamptz>,
        configured: i64,
        dropped_calls: i64,
        saved_keys: i64,
        saved_room: i64,
        saved_bytes: i64,
        unsaved_keys: i64,
        unsaved_since: Option<Timestamptz>,
        save_error: Option<Text>,
        writer_pid: Option<i32>,
        writer_since: Option<Timestamptz>,
    }
}

sql_function! {
    /// 53100 or 53200 as `rl_stats`.
    #[effect(Reads)]
    fn rl_memory(call: &Call) -> MemoryRow {
        let memory = tally::memory()?;
        let usage = memory.states.usage();
        let saved = writer::usage(call.function())?;
        Ok(MemoryRow {
            keys: usage.keys as i64,
            room: usage.capacity as i64,
            inline_keys: usage.inline_keys as i64,
            inline_room: usage.inline_capacity as i64,
            bytes: memory.size as i64,
            dropped_idle: usage.dropped_idle as i64,
            dropped_live: (usage.dropped_live + saved.lost) as i64,
            since: time(memory.since),
            configured: settings::memory_keys() as i64,
            dropped_calls: memory.tallies.dropped_calls() as i64,
            saved_keys: saved.keys as i64,
            saved_room: saved.capacity as i64,
            saved_bytes: saved.bytes as i64,
            unsaved_keys: saved.unsaved as i64,
            unsaved_since: saved.oldest.and_then(time),
            save_error: Some(saved.problem).filter(|text| !text.is_empty()).map(|text| Text::new(&text)),
            writer_pid: saved.writer.map(|(pid, _)| pid as i32),
            writer_since: saved.writer.and_then(|(_, since)| time(since)),
        })
    }
}

sql_function! {
    /// 53100 or 53200 as `rl_stats`.
    #[effect(Reads)]
    fn rl_save(call: &Call) -> i64 {
        Ok(writer::write_now(call.function())? as i64)
    }
}
