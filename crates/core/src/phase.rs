//! The phase of a key's windows.

use xxhash_rust::xxh64::xxh64;

use crate::Micros;

/// The phase of a fixed window without a `start`, for [`Limit::initial_state`](crate::Limit::initial_state): a hash of
/// the limit's name and the key, both in UTF-8. It is the same on every machine and in every version, and spreads the
/// ends of different keys' windows.
///
/// It is [XXH64] with seed 0 of name, a zero byte and key, shifted right by one bit, in microseconds.
///
/// [XXH64]: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
pub fn phase(name: &[u8], key: &[u8]) -> Micros {
    let hash = xxh64(&[name, &[0], key].concat(), 0);
    Micros((hash >> 1) as i64)
}
