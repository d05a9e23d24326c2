//! `rl_trigger`: takes tokens for the rows that a statement writes. Reads the trigger's options, adds up the count of
//! each key, and calls the limiter. A statement may have any number of keys: only a part of their counts is in memory.

use std::collections::BTreeMap;
use std::ffi::CStr;

use ratelimit_core::ArgumentError;
use ratelimit_core::text::shortened;
use ratelimit_limiter::request::Request;
use ratelimit_limiter::single;
use ratelimit_limiter::target::{Target, valid_count};

use super::answers::denied;
use super::arguments::{valid_key, valid_name};
use crate::declaration::{Proceed, sql_function};
use crate::host::{Session, Use};
use crate::schema::error::{Error, Result};
use crate::schema::settings;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::trigger_data::{Column, Event, Timing, Trigger};
use ratelimit_pg::interrupts::check_for_interrupts;
use ratelimit_pg::memory_context::Scratch;
use ratelimit_pg::sort::Sort;
use ratelimit_pg::transaction::refuse_parallel;
use ratelimit_pg::values::utf8;

sql_function! {
    /// The trigger's arguments are name, 'key=column', 'count=column'. PT429; 39P01: the trigger can't work, or comes too
    /// early for a limit in memory; 42703, 22004, 22023; 25006 in a read-only transaction, which may write to temporary
    /// tables.
    #[effect(Trigger)]
    fn rl_trigger(call: &Call) -> Proceed {
        let trigger = call.trigger().ok_or_else(|| misuse("can only be called by a trigger", None))?;
        usable(&trigger)?;
        refuse_parallel(c"rl_trigger()")?;
        let options = Options::parse(&trigger)?;
        let function = call.function();
        let mut scratch = Scratch::new();
        // In byte order of the keys, so no two statements lock them in opposite orders.
        options.counts(&trigger)?.each(|key, count| {
            check_for_interrupts();
            scratch.run(|| {
                let request =
                    Request { name: options.name, key, count, reserve: false, config: None };
                let allowed = |target: &Target| match target.store.is_in_memory() {
                    true => Ok(comes_last(&trigger, options.name)?),
                    false => Ok(()),
                };
                let answer = Session::run(Use::Takes, function, |host| single::limit(host, &request, allowed))?;
                if answer.ok { Ok(()) } else { Err(denied(&request, &answer)) }
            })
        })?;
        Ok(Proceed(trigger.proceed()))
    }
}

/// Refuses an event without rows, or whose rows come too late to be refused one by one (39P01).
fn usable(trigger: &Trigger) -> Result<()> {
    let problem = match (trigger.event(), trigger.timing()) {
        (Event::Truncate, _) => "cannot limit TRUNCATE, which has no rows",
        (_, Timing::BeforeRow) => return Ok(()),
        (_, Timing::AfterStatement) if trigger.has_rows() => return Ok(()),
        (Event::Delete, Timing::AfterStatement) => "needs REFERENCING OLD TABLE to see the rows",
        (_, Timing::AfterStatement) => "needs REFERENCING NEW TABLE to see the rows",
        (_, Timing::AfterRow) => "cannot be fired AFTER an event FOR EACH ROW",
        (_, Timing::BeforeStatement) => "cannot be fired BEFORE an event FOR EACH STATEMENT",
        (_, Timing::InsteadOf) => "cannot be fired INSTEAD OF an event",
    };
    Err(misuse(problem, Some(trigger)))
}

/// Refuses a limit in memory before the row is written (39P01): if row security, a view's CHECK OPTION, a constraint or
/// a later trigger refused the row, its tokens would stay taken, whatever key it names.
fn comes_last(trigger: &Trigger, name: &[u8]) -> Result<()> {
    match trigger.timing() {
        Timing::AfterStatement => Ok(()),
        _ => Err(Error::TriggerTooEarly {
            name: utf8(name).into_owned(),
            firing: firing(trigger.event(), true),
        }),
    }
}

/// Returns an error whose hint shows a trigger for the same event, if possible on the same level.
fn misuse(problem: &'static str, trigger: Option<&Trigger>) -> Error {
    let (event, level) = trigger
        .map_or((Event::Insert, Timing::BeforeRow), |trigger| (trigger.event(), trigger.timing()));
    let statement = matches!(level, Timing::BeforeStatement | Timing::AfterStatement);
    Error::TriggerMisuse { problem, firing: firing(event, statement) }
}

/// Returns the clause of CREATE TRIGGER for an event.
fn firing(event: Event, statement: bool) -> String {
    let [row, all] = match event {
        Event::Delete => ["BEFORE DELETE", "AFTER DELETE ON messages REFERENCING OLD"],
        Event::Update => ["BEFORE UPDATE", "AFTER UPDATE ON messages REFERENCING NEW"],
        _ => ["BEFORE INSERT", "AFTER INSERT ON messages REFERENCING NEW"],
    };
    if statement {
        format!("{all} TABLE AS limited FOR EACH STATEMENT")
    } else {
        format!("{row} ON messages FOR EACH ROW")
    }
}

/// The arguments in CREATE TRIGGER.
struct Options<'a> {
    name: &'a [u8],
    key: Option<Named<'a>>,
    count: Option<Named<'a>>,
}

/// A column and its name in messages.
struct Named<'a> {
    option: &'static str,
    name: &'a CStr,
    column: Column,
}

impl<'a> Options<'a> {
    /// Parses the trigger's arguments. 22023: an invalid one; 42703: there is no such column.
    fn parse(trigger: &Trigger<'a>) -> Result<Options<'a>> {
        let mut arguments = trigger.arguments();
        let allowed = "rl_trigger('<name>', 'key=<column>', 'count=<column>')";
        let missing = || ArgumentError::invalid("name", "missing", allowed);
        let name = arguments.next().ok_or_else(missing)?;
        let mut options = Options { name: valid_name(name.to_bytes())?, key: None, count: None };
        for argument in arguments {
            let invalid = |problem: &str| {
                let value = format!("\"{}\"{problem}", shortened(&utf8(argument.to_bytes())));
                let allowed = "'key=<column>' and 'count=<column>', each at most once";
                ArgumentError::invalid("option", value, allowed)
            };
            let (option, column) = split(argument).ok_or_else(|| invalid(""))?;
            let column = Named::find(trigger, option, column)?;
            let place = if option == "key" { &mut options.key } else { &mut options.count };
            if place.replace(column).is_some() {
                return Err(invalid(", given twice").into());
            }
        }
        Ok(options)
    }

    /// Adds up the tokens that the rows take, for each key. 22004: a NULL key or count; 22023: an invalid one.
    fn counts(&self, trigger: &Trigger) -> Result<Counts> {
        let mut counts = Counts { near: BTreeMap::new(), near_bytes: 0, rest: Sort::new() };
        let settings = self.key.as_ref().map_or(&[][..], |key| key.column.text_settings());
        settings::locally(settings, || {
            trigger.each_row(|row| {
                let key = match &self.key {
                    Some(key) => valid_key(key.not_null(trigger, row.text(&key.column))?)?,
                    None => b"",
                };
                let count = match &self.count {
                    Some(count) => {
                        valid_count(count.not_null(trigger, row.number(&count.column))?)?
                    }
                    None => 1.0,
                };
                counts.add(key, count);
                Ok::<_, Error>(())
            })
        })?;
        Ok(counts)
    }
}

/// The number of keys, and of their bytes, whose counts are in memory.
const KEYS: usize = 10_000;
const KEY_BYTES: usize = 1_000_000;

/// A sum for each key, in the order of the rows.
struct Counts {
    near: BTreeMap<Box<[u8]>, f64>,
    near_bytes: usize,
    /// The rows of all other keys.
    rest: Sort,
}

impl Counts {
    fn add(&mut self, key: &[u8], count: f64) {
        if let Some(total) = self.near.get_mut(key) {
            *total += count;
        } else if self.rest.is_empty() && self.near.len() < KEYS && self.near_bytes < KEY_BYTES {
            self.near.insert(key.into(), count);
            self.near_bytes += key.len();
        } else {
            self.rest.put(key, count);
        }
    }

    /// Visits the sum of each key, in byte order.
    fn each(mut self, mut visit: impl FnMut(&[u8], f64) -> Result<()>) -> Result<()> {
        let mut near = self.near.into_iter().peekable();
        let mut row = self.rest.next().map(|(key, count)| (Vec::from(key), count));
        while let Some((key, mut total)) = row {
            row = loop {
                match self.rest.next() {
                    Some((same, count)) if same == key => total += count,
                    other => break other.map(|(key, count)| (Vec::from(key), count)),
                }
            };
            while let Some((first, count)) = near.next_if(|(first, _)| **first < *key) {
                visit(&first, count)?;
            }
            visit(&key, total)?;
        }
        self.rest.end();
        near.try_for_each(|(key, count)| visit(&key, count))
    }
}

/// Splits an argument such as "key=user_id". The column's name is as in the catalog, and may have any character.
fn split(argument: &CStr) -> Option<(&'static str, &CStr)> {
    let bytes = argument.to_bytes_with_nul();
    let (option, column) = match bytes.strip_prefix(b"key=") {
        Some(column) => ("key", column),
        None => ("count", bytes.strip_prefix(b"count=")?),
    };
    Some((option, CStr::from_bytes_until_nul(column).ok()?))
}

impl<'a> Named<'a> {
    /// Finds the column of an option. 42703: there is none; 22023: it can't be used.
    fn find(trigger: &Trigger, option: &'static str, name: &'a CStr) -> Result<Named<'a>> {
        let text = shortened(&utf8(name.to_bytes()));
        let column = trigger
            .column(name)
            .ok_or_else(|| Error::NoColumn { column: text.clone(), table: trigger.table() })?;
        let invalid = |problem: String, allowed: &str| {
            Err(ArgumentError::invalid(option, format!("column \"{text}\"{problem}"), allowed)
                .into())
        };
        if option == "count" && !column.is_number() {
            return invalid(
                format!(" of type {}", column.type_name()),
                "smallint, integer, bigint, real, double precision, numeric, or a domain over one",
            );
        }
        if !trigger.has_computed(&column) {
            return invalid(
                ", which is generated".into(),
                "an ordinary column; a stored generated one only AFTER the event FOR EACH STATEMENT, \
                 since BEFORE triggers run before it is computed",
            );
        }
        Ok(Named { option, name, column })
    }

    /// Refuses a NULL in the column (22004).
    fn not_null<T>(&self, trigger: &Trigger, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::NullColumn {
            option: self.option,
            column: utf8(self.name.to_bytes()).into_owned(),
            table: trigger.table(),
        })
    }
}
