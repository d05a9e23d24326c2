//! The floors of `src`, within which the compiler lets everything know everything: no file names a floor above its
//! own. What the crates below know of each other, the compiler says.

use std::fs;
use std::path::{Path, PathBuf};

/// From the top down; first the tests that look into all of them.
const FLOORS: [&str; 6] = ["pg_tests", "functions", "limiter", "store", "pg", "schema"];

/// Returns the source files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let (folders, files): (Vec<_>, Vec<_>) = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .partition(|path| path.is_dir());
    files.into_iter().chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
}

/// Returns the path at the start of a source, or those of the list in braces there, each up to the source's end.
fn paths(source: &str) -> Vec<&str> {
    let mut paths = Vec::new();
    let mut depth = 0;
    for (at, c) in source.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 1 && (c == '{' || c == ',') {
            paths.push(&source[at + 1..]);
        } else if depth == 0 {
            break;
        }
    }
    if paths.is_empty() { vec![source] } else { paths }
}

/// Returns those of the floors that a source names after `crate::` or `super::`.
fn named<'a>(source: &str, floors: &[&'a str]) -> Vec<&'a str> {
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(str::split_whitespace).collect();
    let begins = |floor: &str, path: &str| {
        let rest = path.strip_prefix(floor);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let roots = ["crate::", "super::"];
    let names = |floor: &str| {
        let mut behind = roots.iter().flat_map(|root| code.split(root).skip(1));
        behind.any(|source| paths(source).iter().any(|path| begins(floor, path)))
    };
    floors.iter().copied().filter(|floor| names(floor)).collect()
}

#[test]
fn a_floor_knows_only_those_below() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src"));
    let mut upwards = Vec::new();
    for path in files(source).iter().filter(|path| !path.ends_with("lib.rs")) {
        let module = path.strip_prefix(source).unwrap().with_extension("");
        let floor = FLOORS.iter().position(|&floor| module.starts_with(floor));
        let above = &FLOORS[..floor.unwrap_or_else(|| panic!("{module:?} stands on no floor"))];
        let named = named(&fs::read_to_string(path).unwrap(), above);
        upwards
            .extend(named.into_iter().map(|floor| format!("{} names {floor}", module.display())));
    }
    assert_eq!(upwards, [""; 0]);
}

#[test]
fn a_floor_above_would_be_found() {
    for (source, found) in [
        ("use crate::store::rows;", vec!["store"]),
        (
            "use crate::{limiter, store};\nuse super::functions::rl_limit;",
            vec!["functions", "limiter", "store"],
        ),
        ("use crate::{\n    schema::{self, store},\n    limiter,\n};", vec!["limiter"]),
        ("fn f() { crate::limiter::single::limit() }", vec!["limiter"]),
        ("// crate::store\nuse crate::storey; use crate::pg::store;", vec![]),
    ] {
        assert_eq!(named(source, &FLOORS[..4]), found, "{source}");
    }
}
