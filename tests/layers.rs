//! The dependencies between source files: a floor depends on those below it only, and no two files
//! form a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The floors of `src`, from the top down; first the tests that look into all of them.
const FLOORS: [&str; 5] = ["pg_tests", "functions", "limiter", "store", "pg"];

/// A module's path, such as `["store", "heap"]`; the crate's root has none.
type Module = Vec<String>;

/// Returns the source files below a folder, by their module.
fn files(folder: &Path) -> BTreeMap<Module, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = path.strip_prefix(folder).unwrap().with_extension("");
                let mut module: Module =
                    module.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
                if module == ["lib"] {
                    module.clear();
                }
                found.insert(module, path);
            }
        }
    }
    found
}

/// Returns the paths in a file: `crate::…` and `super::…` anywhere, with those in the braces of a `use`.
fn paths(source: &str, module: &Module, children: &BTreeSet<&str>) -> Vec<Module> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join(" ");
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices(is_word) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| is_word(c) || c == ':') {
            continue;
        }
        let path: String = code[at..].chars().take_while(|&c| is_word(c) || c == ':').collect();
        if !path.contains("::") {
            continue;
        }
        let mut parts: Vec<&str> = path.split("::").collect();
        let mut prefix = match parts[0] {
            "crate" => Module::new(),
            "super" => module[..module.len() - 1].to_vec(),
            "self" => module.clone(),
            child if children.contains(child) => {
                parts.insert(0, "self");
                module.clone()
            }
            _ => continue,
        };
        prefix.extend(parts[1..].iter().filter(|part| !part.is_empty()).map(|&part| part.into()));
        // The first segments of a list in braces, one by one.
        let list = code[at + path.len()..].strip_prefix('{').filter(|_| path.ends_with("::"));
        match list.and_then(|list| list.split_once('}')) {
            Some((names, _)) => found.extend(names.split(',').map(|name| {
                let name = name.trim().split("::").next().unwrap_or_default();
                [prefix.clone(), vec![name.to_owned()]].concat()
            })),
            None => found.push(prefix),
        }
    }
    found
}

/// Returns the modules that each module depends on: of each path the innermost file that it begins with.
fn graph(folder: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let files = files(folder);
    let graph = files.iter().map(|(module, path)| {
        let children = files
            .keys()
            .filter(|child| child.len() == module.len() + 1 && child.starts_with(module))
            .map(|child| child[module.len()].as_str())
            .collect();
        let source = fs::read_to_string(path).unwrap();
        let named = paths(&source, module, &children)
            .into_iter()
            .filter_map(|path| {
                let mut path = path;
                while !files.contains_key(&path) {
                    path.pop()?;
                }
                (path != *module).then_some(path)
            })
            .collect();
        (module.clone(), named)
    });
    graph.collect()
}

/// Returns a circle of files, if there is one.
fn circle(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    fn walk<'a>(
        graph: &'a BTreeMap<Module, BTreeSet<Module>>,
        at: &'a Module,
        way: &mut Vec<&'a Module>,
        done: &mut BTreeSet<&'a Module>,
    ) -> Option<Vec<Module>> {
        if let Some(begin) = way.iter().position(|&module| module == at) {
            return Some(way[begin..].iter().map(|&module| module.clone()).collect());
        }
        if !done.insert(at) {
            return None;
        }
        way.push(at);
        let found = graph[at].iter().find_map(|next| walk(graph, next, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|module| walk(graph, module, &mut Vec::new(), &mut done))
}

fn source(folder: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(folder)
}

#[test]
fn a_floor_knows_only_those_below() {
    let floor = |module: &Module| FLOORS.iter().position(|&name| module[0] == name);
    let mut upwards = Vec::new();
    for (module, named) in graph(&source("src")).iter().filter(|(module, _)| !module.is_empty()) {
        assert!(floor(module).is_some(), "{module:?} stands on no floor");
        let above = |other: &&Module| other.is_empty() || floor(other) < floor(module);
        upwards.extend(named.iter().filter(above).map(|other| (module.clone(), other.clone())));
    }
    assert_eq!(upwards, []);
}

#[test]
fn no_files_form_a_circle() {
    assert_eq!(circle(&graph(&source("src"))), None);
}

#[test]
fn a_circle_would_be_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry(vec![to.to_string()]).or_default();
            graph.entry(vec![from.to_string()]).or_default().insert(vec![to.to_string()]);
        }
        graph
    };
    assert_eq!(circle(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    assert!(circle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])).is_some());
}
