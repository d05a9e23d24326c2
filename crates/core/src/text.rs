//! Values as messages and JSON write them.

use serde::Serializer;

/// Shortens a value to its first 80 characters, for a message.
pub fn shortened(value: &str) -> String {
    match value.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

/// Writes a float in the fewest digits that identify it, as PostgreSQL does: `0.1`, `1e+16`, `NaN`.
pub fn float_text(number: f64) -> String {
    match number.abs() {
        f64::INFINITY => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        size if size >= 1e16 => format!("{number:e}").replace('e', "e+"),
        size if size > 0.0 && size < 1e-4 => format!("{number:e}"),
        _ => number.to_string(),
    }
}

/// Lists names of fields for a message.
pub(crate) fn quoted<'a>(fields: impl IntoIterator<Item = &'a &'a str>) -> String {
    let fields: Vec<_> = fields.into_iter().map(|field| format!("\"{field}\"")).collect();
    fields.join(", ")
}

/// Writes a float as a JSON number, a whole one without a fraction; a number that JSON doesn't have as [`float_text`]
/// does.
pub(crate) fn json_number(number: f64) -> String {
    match serde_json::to_value(JsonNumber(number)) {
        Ok(serde_json::Value::Number(number)) => number.to_string(),
        _ => float_text(number),
    }
}

/// A float that is written as a JSON number, a whole one without a fraction.
pub(crate) struct JsonNumber(pub f64);

impl serde::Serialize for JsonNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let JsonNumber(number) = *self;
        if number.fract() == 0.0 && number.abs() <= 2f64.powi(53) {
            serializer.serialize_i64(number as i64)
        } else {
            serializer.serialize_f64(number)
        }
    }
}
