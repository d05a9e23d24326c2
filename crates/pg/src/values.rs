//! Converts jsonb, text and double precision from and to datums.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int};

use pgrx::{direct_function_call_as_datum, pg_sys};

use ratelimit_core::ArgumentError;

use crate::error::Result;

/// A jsonb value.
#[derive(Clone, Copy)]
pub struct Jsonb<'a> {
    /// The binary form, the same for equal values: a key for a cache.
    pub bytes: &'a [u8],
    /// The detoasted value.
    pub datum: pg_sys::Datum,
}

impl Jsonb<'_> {
    /// Converts it to JSON text of at most `most` bytes, with invalid ones replaced; for a longer text, returns its
    /// number of bytes. The text lives as long as the current memory context.
    pub fn to_json(self, most: usize) -> std::result::Result<Cow<'static, str>, usize> {
        Ok(utf8(self.to_server_json(most)?))
    }

    /// Converts it, as [`to_json`](Jsonb::to_json), without replacing a byte, for names and keys. 22023: a longer text,
    /// or one that is not UTF-8 in a database with an encoding that can't be converted.
    pub fn to_exact_json(self, argument: &'static str, most: usize) -> Result<&'static str> {
        let invalid =
            |value, allowed| Err(ArgumentError::Invalid { argument, value, allowed }.into());
        match self.to_server_json(most).map(utf8_bytes).map(str::from_utf8) {
            Err(bytes) => invalid(format!("{bytes} bytes long"), format!("at most {most} bytes")),
            Ok(Err(_)) => invalid("text of another encoding".into(), "text in UTF-8".into()),
            Ok(Ok(json)) => Ok(json),
        }
    }

    /// Returns the number of elements of an array; `None` for any other value.
    pub fn array_length(self) -> Option<usize> {
        // SAFETY: a detoasted jsonb begins with its header, its root container follows.
        let header = unsafe { (*self.datum.cast_mut_ptr::<pg_sys::Jsonb>()).root.header };
        let is_array = header & pg_sys::JB_FARRAY != 0 && header & pg_sys::JB_FSCALAR == 0;
        is_array.then_some((header & pg_sys::JB_CMASK) as usize)
    }

    /// Converts it to JSON text in the server's encoding, of at most `most` bytes; for a longer text, returns its
    /// number of bytes.
    pub fn to_server_json(self, most: usize) -> std::result::Result<&'static [u8], usize> {
        if self.bytes.len() > most {
            return Err(self.bytes.len());
        }
        // SAFETY: a detoasted jsonb begins with its header, its root container follows. The text lives as long as the
        // current memory context.
        let json = unsafe {
            let jsonb = self.datum.cast_mut_ptr::<pg_sys::Jsonb>();
            let json = pg_sys::JsonbToCString(
                std::ptr::null_mut(),
                &mut (*jsonb).root,
                self.bytes.len() as c_int,
            );
            CStr::from_ptr(json).to_bytes()
        };
        // A number of a few bytes can have thousands of digits.
        if json.len() > most { Err(json.len()) } else { Ok(json) }
    }
}

/// Cuts a text in the server's encoding to at most `most` bytes, between two characters.
pub fn clipped(text: &[u8], most: usize) -> &[u8] {
    if text.len() <= most {
        return text;
    }
    // SAFETY: reads as many bytes as there are.
    let length =
        unsafe { pg_sys::pg_mbcliplen(text.as_ptr().cast(), text.len() as c_int, most as c_int) };
    &text[..length as usize]
}

/// Converts JSON text made from a jsonb to a jsonb.
pub fn jsonb_from_json(json: &str) -> Jsonb<'static> {
    let json = CString::new(server_text(json)).unwrap_or_default();
    // SAFETY: the input function of jsonb takes a C string and returns a new jsonb.
    unsafe {
        let input = [Some(pg_sys::Datum::from(json.as_ptr()))];
        jsonb(
            direct_function_call_as_datum(pg_sys::jsonb_in, &input)
                .unwrap_or(pg_sys::Datum::from(0)),
        )
    }
}

/// Converts a jsonb to JSON text in the server's encoding.
pub fn json_text(jsonb: Jsonb) -> Vec<u8> {
    jsonb.to_server_json(usize::MAX).map_or(Vec::new(), <[u8]>::to_vec)
}

/// Detoasts a jsonb.
///
/// # Safety
/// `datum` is a jsonb; the value lives as long as it, or as the current memory context.
pub unsafe fn jsonb<'a>(datum: pg_sys::Datum) -> Jsonb<'a> {
    // SAFETY: as the caller says; JsonbToCString needs a four-byte header.
    unsafe {
        let jsonb = pg_sys::pg_detoast_datum(datum.cast_mut_ptr());
        let bytes = std::slice::from_raw_parts(
            pgrx::vardata_any(jsonb).cast::<u8>(),
            pgrx::varsize_any_exhdr(jsonb),
        );
        Jsonb { bytes, datum: pg_sys::Datum::from(jsonb) }
    }
}

/// Returns the bytes of a text or another varlena, detoasted.
///
/// # Safety
/// `datum` is a varlena; the bytes live as long as it, or as the current memory context.
pub unsafe fn varlena_bytes<'a>(datum: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: as the caller says.
    unsafe {
        let mut varlena = datum.cast_mut_ptr();
        if !is_plain(varlena) {
            varlena = pg_sys::pg_detoast_datum_packed(varlena);
        }
        std::slice::from_raw_parts(
            pgrx::vardata_any(varlena).cast(),
            pgrx::varsize_any_exhdr(varlena),
        )
    }
}

/// Whether a varlena is neither compressed nor stored out of line.
///
/// # Safety
/// The pointer is that of a varlena.
pub unsafe fn is_plain(varlena: *const pg_sys::varlena) -> bool {
    // SAFETY: as the caller says.
    unsafe { !pgrx::varatt_is_1b_e(varlena) && !pgrx::varatt_is_4b_c(varlena) }
}

/// Whether Postgres can't convert between the database's encoding and UTF-8: SQL_ASCII, an unknown encoding, and
/// MULE_INTERNAL.
fn is_unconvertible() -> bool {
    // SAFETY: reads a setting.
    let encoding = unsafe { pg_sys::GetDatabaseEncoding() };
    [pg_sys::pg_enc::PG_SQL_ASCII, pg_sys::pg_enc::PG_MULE_INTERNAL]
        .iter()
        .any(|&known| known as c_int == encoding)
}

/// Converts UTF-8 to the server's encoding; unchanged if Postgres can't. Raises 22P05 for a character missing in
/// the encoding.
pub fn server_text(text: &str) -> Vec<u8> {
    // ASCII is the same in all encodings that a server can have.
    if text.is_ascii() || is_unconvertible() {
        return text.as_bytes().to_vec();
    }
    // SAFETY: the conversion reads the text's bytes, and returns them or a C string.
    unsafe {
        let source = text.as_ptr().cast::<c_char>();
        let length = text.len() as c_int;
        let target = pg_sys::pg_any_to_server(source, length, pg_sys::pg_enc::PG_UTF8 as c_int);
        if target.cast_const() == source {
            text.as_bytes().to_vec()
        } else {
            CStr::from_ptr(target).to_bytes().to_vec()
        }
    }
}

/// Converts text from the server's encoding to UTF-8, with invalid bytes replaced.
pub fn utf8(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(utf8_bytes(bytes))
}

/// Converts bytes from the server's encoding to UTF-8; unchanged if Postgres can't.
pub fn utf8_bytes(bytes: &[u8]) -> &[u8] {
    if bytes.is_ascii() || is_unconvertible() {
        return bytes;
    }
    // SAFETY: the conversion reads `bytes.len()` bytes and returns its argument or a C string, which lives as long as
    // the current memory context.
    unsafe {
        let source = bytes.as_ptr().cast::<c_char>();
        let target = pg_sys::pg_server_to_any(
            source,
            bytes.len() as c_int,
            pg_sys::pg_enc::PG_UTF8 as c_int,
        );
        if target.cast_const() == source { bytes } else { CStr::from_ptr(target).to_bytes() }
    }
}

/// Copies a C string in the server's encoding; `None`: the pointer is null.
///
/// # Safety
/// The pointer is null or that of a C string.
pub unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: as the caller says.
    (!text.is_null()).then(|| utf8(unsafe { CStr::from_ptr(text) }.to_bytes()).into_owned())
}

/// Copies a text into Postgres memory.
pub fn text_datum(bytes: &[u8]) -> pg_sys::Datum {
    // SAFETY: copies `bytes.len()` bytes.
    unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), bytes.len() as c_int).into() }
}

/// Converts to a double precision.
pub fn float_datum(value: f64) -> pg_sys::Datum {
    pg_sys::Datum::from(value.to_bits() as usize)
}
