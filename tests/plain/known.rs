//! Where the SQL file's answers may differ from the extension's, and why. All others are the same.

/// A difference between two answers: rows, or an error in full, as text.
pub struct Known {
    /// Text in the extension's answer, and in the file's.
    pub extension: &'static str,
    pub file: &'static str,
    pub why: &'static str,
}

pub const KNOWN: &[Known] = &[
    Known {
        extension: "Only limits in memory can be used here",
        file: "in a read-only transaction",
        why: "the hint is on limits in memory, which the file has none of",
    },
    Known {
        extension: "is 1e+",
        file: "is 1000000000000000",
        why: "a builder's number that is out of range is shown with all its digits, as jsonb has it",
    },
    Known { extension: "is 1e-300", file: "is 0.00000000000000000000", why: "as above" },
];

/// Rounds the seconds of a very long wait in an error: the extension writes all digits of a float, more than are exact.
pub fn alike(text: String) -> String {
    const BEFORE: &str = "Try again in ";
    let Some((before, rest)) = text.split_once(BEFORE) else { return text };
    match rest.split_once(" seconds.").map(|(seconds, after)| (seconds.parse::<f64>(), after)) {
        Some((Ok(seconds), after)) if seconds > 1e9 => {
            format!("{before}{BEFORE}{seconds:.3} seconds.{after}")
        }
        _ => text,
    }
}

/// Whether this difference is in the list.
pub fn is_known(extension: &str, file: &str) -> bool {
    KNOWN.iter().any(|known| {
        assert!(!known.why.is_empty());
        extension.contains(known.extension) && file.contains(known.file)
    })
}
