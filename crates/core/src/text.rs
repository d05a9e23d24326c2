//! Values as they are written in messages and JSON.

use std::borrow::Cow;

use serde_json::Value;

/// Shortens a value to its first 80 characters, for a message.
pub fn shortened(value: &str) -> String {
    match value.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

/// Writes a float in the fewest digits that identify it: `0.1`, `1e-5`, `1e+16`, `NaN`.
pub fn float_text(number: f64) -> String {
    match number.abs() {
        f64::INFINITY => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        size if size >= 1e16 => format!("{number:e}").replace('e', "e+"),
        size if size > 0.0 && size < 1e-4 => format!("{number:e}"),
        _ => number.to_string(),
    }
}

/// Writes texts as a JSON array without blanks, byte for byte as PostgreSQL's array_to_json does, in any encoding that
/// extends ASCII; the number of its bytes if they are more than `most`.
///
/// ```
/// # use ratelimit_core::text::json_array;
/// assert_eq!(json_array(&[b"acme", b"say \"hi\""], 100).unwrap(), br#"["acme","say \"hi\""]"#);
/// assert_eq!(json_array(&[b"acme", b"ada"], 10), Err(14));
/// ```
pub fn json_array(texts: &[&[u8]], most: usize) -> Result<Vec<u8>, usize> {
    let written = |text: &[u8]| -> usize {
        text.iter().map(|&byte| escaped(byte).map_or(1, |code| code.len())).sum()
    };
    let lengths = texts.iter().map(|text| written(text) + 3);
    let length = 1 + lengths.sum::<usize>().max(1);
    if length > most {
        return Err(length);
    }
    let mut array = Vec::with_capacity(length);
    for text in texts {
        array.push(if array.is_empty() { b'[' } else { b',' });
        array.push(b'"');
        for &byte in *text {
            match escaped(byte) {
                Some(code) => array.extend(code.as_bytes()),
                None => array.push(byte),
            }
        }
        array.push(b'"');
    }
    if array.is_empty() {
        array.push(b'[');
    }
    array.push(b']');
    Ok(array)
}

/// The escape sequence of a byte in JSON.
fn escaped(byte: u8) -> Option<Cow<'static, str>> {
    Some(match byte {
        b'"' => "\\\"".into(),
        b'\\' => "\\\\".into(),
        b'\n' => "\\n".into(),
        b'\r' => "\\r".into(),
        b'\t' => "\\t".into(),
        0x08 => "\\b".into(),
        0x0c => "\\f".into(),
        ..0x20 => format!("\\u{byte:04x}").into(),
        _ => return None,
    })
}

/// Lists names of fields for a message.
pub(crate) fn quoted<'a>(fields: impl IntoIterator<Item = &'a &'a str>) -> String {
    let fields: Vec<_> = fields.into_iter().map(|field| format!("\"{field}\"")).collect();
    fields.join(", ")
}

/// A float as a JSON number, a whole one without a fraction; null if JSON doesn't have it.
pub(crate) fn number(number: f64) -> Value {
    let is_whole = number.fract() == 0.0 && number.abs() <= 2f64.powi(53);
    if is_whole { (number as i64).into() } else { number.into() }
}

/// Writes a float as a JSON [`number`]; one that JSON doesn't have as [`float_text`] does.
pub(crate) fn json_number(float: f64) -> String {
    match number(float) {
        Value::Null => float_text(float),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_is_written_with_an_exponent_where_it_is_large_or_small() {
        for (number, text) in [
            (0.0, "0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (-0.00001, "-1e-5"),
            (9.5e15, "9500000000000000"),
            (-1e16, "-1e+16"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(float_text(number), text);
        }
    }

    #[test]
    fn an_array_of_texts_is_as_serde_writes_it() {
        let every: String = (0u8..=127).map(char::from).chain("é☕\u{10ffff}".chars()).collect();
        for texts in
            [vec![], vec![""], vec!["", ""], vec!["acme", "ada"], vec![&every, "b", &every]]
        {
            let bytes: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
            let json = serde_json::to_string(&texts).unwrap();
            assert_eq!(json_array(&bytes, json.len()).unwrap(), json.as_bytes());
            assert_eq!(json_array(&bytes, json.len() - 1), Err(json.len()));
        }
    }
}
