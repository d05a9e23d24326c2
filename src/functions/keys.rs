//! Makes a key of several texts.

use super::arguments::{MAX_PARTS, joined_key};
use crate::declaration::sql_function;
use crate::schema::error::Error;
use ratelimit_core::ArgumentError;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::{Text, TextArray};

sql_function! {
    /// 22004: a part is NULL; 22023: there is none, or the key is too long.
    #[effect(Computes)]
    fn rl_key(call: &Call, parts: TextArray) -> Text {
        let invalid = |value| Err(ArgumentError::invalid("parts", value, format!("1 to {MAX_PARTS} texts")).into());
        match (parts.dimensions(), parts.len()) {
            (0 | 1, 1..=MAX_PARTS) => {}
            (0 | 1, length) => return invalid(format!("a list of {length}")),
            (dimensions, _) => return invalid(format!("an array of {dimensions} dimensions")),
        }
        let texts = parts.texts().into_iter().enumerate();
        let texts = texts.map(|(n, text)| text.ok_or(Error::NullPart { n: n + 1 }));
        Ok(Text::new(&joined_key(&texts.collect::<Result<Vec<_>, _>>()?)?))
    }
}
