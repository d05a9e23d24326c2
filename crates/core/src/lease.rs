//! The text form of a lease of a concurrency limit: `name/key/id`.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};

use crate::Micros;
use crate::requests::{MAX_KEY, MAX_NAME};

/// The bytes that are percent-encoded: all except visible ASCII, and the separators.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'/');

/// A lease's limit, key and id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// The limit's name.
    pub name: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
    /// The [id](crate::kinds::Lease::id).
    pub id: Micros,
}

/// Writes a lease as text: name and key percent-encoded, the id as a number.
///
/// ```
/// use ratelimit_core::{Micros, lease};
///
/// let text = lease::to_text(b"upload", "zo\u{eb}/1".as_bytes(), Micros(2_514_019_286_301_774));
/// assert_eq!(text, "upload/zo%C3%AB%2F1/2514019286301774");
/// assert_eq!(lease::parse(text.as_bytes()).unwrap().key, "zo\u{eb}/1".as_bytes());
/// ```
pub fn to_text(name: &[u8], key: &[u8], id: Micros) -> String {
    let encoded = |text| percent_encode(text, ENCODED);
    format!("{}/{}/{}", encoded(name), encoded(key), id.0)
}

/// Reads a text written by [`to_text`]; `None` for any other.
pub fn parse(text: &[u8]) -> Option<LeaseName> {
    let mut parts = text.split(|&byte| byte == b'/');
    let mut decoded = || Some(percent_decode(parts.next()?).collect::<Vec<u8>>());
    let (name, key) = (decoded()?, decoded()?);
    let id = str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let read = LeaseName { name, key, id: Micros(id) };
    let lengths = (1..=MAX_NAME).contains(&read.name.len()) && read.key.len() <= MAX_KEY;
    // Only the exact form of `to_text`: `%61`, `+1` and a zero byte are in no lease.
    let same = to_text(&read.name, &read.key, read.id).as_bytes() == text;
    (lengths && same && !read.name.contains(&0) && !read.key.contains(&0)).then_some(read)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(
            name in prop::collection::vec(1..=255u8, 1..=20),
            key in prop::collection::vec(1..=255u8, 0..=20),
            id in any::<i64>(),
        ) {
            let text = to_text(&name, &key, Micros(id));
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(parse(text.as_bytes()), Some(LeaseName { name, key, id: Micros(id) }));
        }

        #[test]
        fn what_is_read_is_written_the_same(text in "[a-c%/0-9+-]{0,20}") {
            if let Some(LeaseName { name, key, id }) = parse(text.as_bytes()) {
                prop_assert_eq!(to_text(&name, &key, id), text);
            }
        }
    }

    #[test]
    fn anything_else_is_no_lease() {
        for text in [
            "", "/", "//1", "a/b", "a/b/", "a/b/1/", "a/b/01", "a/b/+1", "%61/b/1", "a/%00/1",
            "a/%0/1",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        let long = format!("{}//1", "n".repeat(201));
        assert_eq!(parse(long.as_bytes()), None);
        assert!(parse(b"a//-1").is_some());
    }
}
