//! The layers of `src` and of `crates/limiter`: a file names its own module and those below it.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `src` from the bottom up, each with those that it may name: none that comes later. Nothing names the
/// tests, which look into all of them.
const MODULES: [(&str, &[&str]); 10] = [
    ("schema", &[]),
    ("store", &["schema"]),
    ("cache", &["schema"]),
    ("tally", &["schema", "store"]),
    ("host", &["schema", "store", "cache", "tally"]),
    ("writer", &["schema", "store", "cache", "host"]),
    ("redefined", &["schema", "store", "cache", "host", "writer"]),
    ("declaration", &["schema"]),
    ("functions", &["schema", "cache", "tally", "host", "writer", "redefined", "declaration"]),
    (
        "pg_tests",
        &["schema", "store", "cache", "tally", "host", "writer", "declaration", "functions"],
    ),
];

/// The modules of `crates/limiter` from the bottom up; each may name all before it.
const LIMITER: [&str; 16] = [
    "error", "ports", "request", "target", "keys", "change", "stores", "engine", "single",
    "leases", "several", "each", "holds", "status", "forget", "prune",
];

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

/// Returns those of `modules` that a source names after `crate::` or `super::`.
fn named<'m>(source: &str, modules: impl IntoIterator<Item = &'m str>) -> Vec<&'m str> {
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(str::split_whitespace).collect();
    let begins = |module: &str, path: &str| {
        let rest = path.strip_prefix(module);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let roots = ["crate::", "super::"];
    let names = |module: &str| {
        let mut behind = roots.iter().flat_map(|root| code.split(root).skip(1));
        behind.any(|source| paths(source).iter().any(|path| begins(module, path)))
    };
    modules.into_iter().filter(|module| names(module)).collect()
}

/// Returns the names in the files of a folder that stand on no module below. `below` returns the module of a file, and
/// those that it may name.
fn others<'m>(
    folder: &str,
    modules: &[&'m str],
    below: impl Fn(&str) -> Vec<&'m str>,
) -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut others = Vec::new();
    for path in files(&source).iter().filter(|path| !path.ends_with("lib.rs")) {
        let file = path.strip_prefix(&source).unwrap().with_extension("");
        let own = modules.iter().find(|module| file.starts_with(module));
        let own = own.unwrap_or_else(|| panic!("{file:?} is in no module of the list"));
        let named = named(&fs::read_to_string(path).unwrap(), modules.iter().copied());
        let allowed = below(own);
        let named = named.iter().filter(|module| *module != own && !allowed.contains(module));
        others.extend(named.map(|module| format!("{} names {module}", file.display())));
    }
    others
}

#[test]
fn a_module_names_only_those_on_which_it_stands() {
    let modules: Vec<&str> = MODULES.iter().map(|&(module, _)| module).collect();
    let below = |own: &str| MODULES.iter().find(|(module, _)| *module == own).unwrap().1.to_vec();
    assert_eq!(others("../src", &modules, below), [""; 0]);
    let below = |own: &str| LIMITER.into_iter().take_while(|module| *module != own).collect();
    assert_eq!(others("../crates/limiter/src", &LIMITER, below), [""; 0]);
}

#[test]
fn no_test_of_src_needs_a_build_of_its_own() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src"));
    for path in files(source) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("#[test]"), "{path:?}: make test runs #[pg_test] alone");
    }
}

#[test]
fn no_module_stands_on_one_that_comes_later() {
    for (place, (module, below)) in MODULES.iter().enumerate() {
        let before = |other| MODULES[..place].iter().any(|(module, _)| module == other);
        assert!(below.iter().all(before), "{module}");
    }
}

#[test]
fn a_module_that_is_named_is_found() {
    for (source, found) in [
        ("use crate::store::memory;", vec!["store"]),
        (
            "use crate::{host, store};\nuse super::functions::limits;",
            vec!["store", "host", "functions"],
        ),
        ("use crate::{\n    schema::{self, store},\n    host,\n};", vec!["schema", "host"]),
        ("fn f() { crate::host::inline() }", vec!["host"]),
        ("macro_rules! m { () => { $crate::declaration::One } }", vec!["declaration"]),
        ("// crate::store\nuse crate::storey; use ratelimit_pg::store;", vec![]),
    ] {
        let modules = MODULES.iter().map(|&(module, _)| module);
        assert_eq!(named(source, modules), found, "{source}");
    }
}
