//! `rl_trigger`: takes tokens for the rows that a statement writes. Reads the options of the trigger, sums the count of
//! each key, and calls the limiter. A statement may have any number of keys: only some of the counts are in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use ratelimit_core::text::shortened;
use ratelimit_core::{ArgumentError, valid_tokens};
use ratelimit_limiter::request::Request;
use ratelimit_limiter::single;
use ratelimit_limiter::target::Target;

use super::answers::denied;
use super::arguments::{joined_key, valid_key, valid_name};
use crate::declaration::sql_function;
use crate::host::{Session, Use};
use crate::schema::error::{Error, Result};
use crate::schema::settings;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::Proceed;
use ratelimit_pg::call::trigger_data::{Column, Event, Timing, Trigger, TriggerRow};
use ratelimit_pg::interrupts::check_for_interrupts;
use ratelimit_pg::memory_context::Scratch;
use ratelimit_pg::sort::Sort;
use ratelimit_pg::transaction::refuse_parallel;
use ratelimit_pg::values::utf8;

sql_function! {
    /// The arguments of the trigger are the name, or 'name=column', and 'key=column,…', 'count=column',
    /// 'message=text'. PT429; 39P01: the trigger can't work, or fires too early for a limit in memory; 42703, 22004,
    /// 22023; 25006 in a read-only transaction, which may write to temporary tables.
    #[effect(Trigger)]
    fn rl_trigger(call: &Call) -> Proceed {
        let trigger = call.trigger().ok_or_else(|| misuse("can only be called by a trigger", None))?;
        usable(&trigger)?;
        refuse_parallel(c"rl_trigger()")?;
        let options = Options::parse(&trigger)?;
        let function = call.function();
        let mut scratch = Scratch::new();
        // In byte order of names and keys, so no two statements lock them in opposite orders.
        options.counts(&trigger)?.each(|limit, count| {
            check_for_interrupts();
            scratch.run(|| {
                let (name, key) = options.split(limit);
                let request = Request { name, key, count, reserve: false, config: None };
                let allowed = |target: &Target| match target.store.is_in_memory() {
                    true => Ok(comes_last(&trigger, name)?),
                    false => Ok(()),
                };
                let answer = Session::run(Use::Takes, function, |host| single::limit(host, &request, allowed))?;
                if answer.ok { Ok(()) } else { Err(denied(&request, &answer, options.message)) }
            })
        })?;
        Ok(Proceed(trigger.proceed()))
    }
}

/// Refuses an event without rows, and one with rows that come too late to be refused one by one (39P01).
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

/// Refuses a limit in memory before the row is written (39P01). Its tokens would stay taken if row security, a view's
/// CHECK OPTION, a constraint or a later trigger then refused the row, and the writer could name any key.
fn comes_last(trigger: &Trigger, name: &[u8]) -> Result<()> {
    match trigger.timing() {
        Timing::AfterStatement => Ok(()),
        _ => Err(Error::TriggerTooEarly {
            name: utf8(name).into_owned(),
            firing: firing(trigger.event(), true),
        }),
    }
}

/// Returns an error with a hint that shows a trigger for the same event, if possible on the same level.
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
    /// Empty if it is in a column.
    name: &'a [u8],
    name_column: Option<Named<'a>>,
    /// The columns of the key: the texts of several become a JSON array, as in rl_key.
    key: Vec<Named<'a>>,
    count: Option<Named<'a>>,
    /// The message for end users in a denial.
    message: Option<&'a [u8]>,
}

/// A column and its name in messages.
struct Named<'a> {
    option: &'static str,
    name: Cow<'a, CStr>,
    column: Column,
}

impl<'a> Options<'a> {
    /// Parses the trigger's arguments. 22023: an invalid one; 42703: there is no such column.
    fn parse(trigger: &Trigger<'a>) -> Result<Options<'a>> {
        let mut arguments = trigger.arguments();
        let allowed = "rl_trigger('<name>', 'key=<column>', 'count=<column>', 'message=<text>'), or 'name=<column>' in \
                       place of '<name>'";
        let missing = || ArgumentError::invalid("name", "missing", allowed);
        let name = arguments.next().ok_or_else(missing)?;
        let (name, name_column) = match value(name, b"name=") {
            Some(column) => (&b""[..], Some(Named::find(trigger, "name", column.into())?)),
            None => (valid_name(name.to_bytes())?, None),
        };
        let mut options =
            Options { name, name_column, key: Vec::new(), count: None, message: None };
        for argument in arguments {
            let invalid = |problem: &str| {
                let value = format!("\"{}\"{problem}", shortened(&utf8(argument.to_bytes())));
                let allowed = "'key=<column>' or 'key=<column>,<column>', 'count=<column>' and 'message=<text>', each at \
                               most once; 'name=<column>' only first";
                Error::from(ArgumentError::invalid("option", value, allowed))
            };
            let given_twice = if let Some(columns) = value(argument, b"key=") {
                !std::mem::replace(&mut options.key, key(trigger, columns)?).is_empty()
            } else if let Some(column) = value(argument, b"count=") {
                options.count.replace(Named::find(trigger, "count", column.into())?).is_some()
            } else if let Some(text) = value(argument, b"message=").filter(|text| !text.is_empty())
            {
                options.message.replace(text.to_bytes()).is_some()
            } else {
                return Err(invalid(""));
            };
            if given_twice {
                return Err(invalid(", given twice"));
            }
        }
        Ok(options)
    }

    /// Sums the tokens that the rows take, for each limit. 22004: a NULL name, key or count; 22023: an invalid one.
    fn counts(&self, trigger: &Trigger) -> Result<Counts> {
        let mut counts = Counts { near: BTreeMap::new(), near_bytes: 0, rest: Sort::new() };
        let texts = self.name_column.iter().chain(&self.key);
        let mut settings = texts.map(|named| named.column.text_settings());
        let settings = settings.find(|settings| !settings.is_empty()).unwrap_or(&[]);
        settings::locally(settings, || {
            trigger.each_row(|row| {
                let text = |column: &Named| column.text(trigger, row);
                let name = self
                    .name_column
                    .as_ref()
                    .map(|column| valid_name(text(column)?).map_err(Error::from));
                let name = name.transpose()?;
                let key: Cow<[u8]> = match &*self.key {
                    [] => b"".into(),
                    [column] => valid_key(text(column)?)?.into(),
                    several => {
                        joined_key(&several.iter().map(text).collect::<Result<Vec<_>>>()?)?.into()
                    }
                };
                let count = match &self.count {
                    Some(count) => {
                        valid_tokens("count", count.not_null(trigger, row.number(&count.column))?)?
                    }
                    None => 1.0,
                };
                match name {
                    Some(name) => counts.add(&[name, b"\0", &key].concat(), count),
                    None => counts.add(&key, count),
                }
                Ok::<_, Error>(())
            })
        })?;
        Ok(counts)
    }

    /// Splits an item of [`Options::counts`] into name and key, which are separated by the byte 0.
    fn split<'n>(&'n self, limit: &'n [u8]) -> (&'n [u8], &'n [u8]) {
        match self.name_column {
            None => (self.name, limit),
            Some(_) => {
                let end = limit.iter().position(|&byte| byte == 0).unwrap_or(limit.len());
                (&limit[..end], limit.get(end + 1..).unwrap_or_default())
            }
        }
    }
}

/// Finds the column of this name, spelled as in the catalog, or else the columns in a comma-separated list. 42703,
/// 22023.
fn key<'a>(trigger: &Trigger, columns: &'a CStr) -> Result<Vec<Named<'a>>> {
    let bytes = columns.to_bytes();
    if !bytes.contains(&b',') || trigger.column(columns).is_some() {
        return Ok(vec![Named::find(trigger, "key", columns.into())?]);
    }
    let columns = bytes.split(|&byte| byte == b',').map(|name| {
        let name = CString::new(name).unwrap_or_default();
        Named::find(trigger, "key", name.into())
    });
    columns.collect()
}

/// The number of keys, and of their bytes, with counts in memory.
const KEYS: usize = 10_000;
const KEY_BYTES: usize = 1_000_000;

/// A sum for each key, in the order of the rows; for each name and key, if rows name their limits.
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

/// Returns the value of an argument such as "key=user_id", if the option matches. A column's name is spelled as in the
/// catalog, and may contain any character.
fn value<'a>(argument: &'a CStr, option: &[u8]) -> Option<&'a CStr> {
    let value = argument.to_bytes_with_nul().strip_prefix(option)?;
    CStr::from_bytes_until_nul(value).ok()
}

impl<'a> Named<'a> {
    /// Finds the column of an option. 42703: there is none; 22023: it can't be used.
    fn find(trigger: &Trigger, option: &'static str, name: Cow<'a, CStr>) -> Result<Named<'a>> {
        let text = shortened(&utf8(name.to_bytes()));
        let column = trigger
            .column(&name)
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

    /// Reads the column's text; refuses a NULL (22004).
    fn text<'r>(&self, trigger: &Trigger, row: &'r TriggerRow) -> Result<&'r [u8]> {
        self.not_null(trigger, row.text(&self.column))
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
