//! `ratelimit-schema LIBRARY CONTROL VERSION`: prints the install script of the extension, which pgrx's
//! macros and `sql_function!` left in a section of the library.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::{env, fs};

use object::{Object, ObjectSection};
use pgrx_sql_entity_graph::section::{ELF_SECTION_NAME, MACHO_SECTION_NAME, decode_entities};
use pgrx_sql_entity_graph::{ControlFile, PgrxSql, SqlGraphEntity, ToSql};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [library, control, version] = args.as_slice() else {
        return Err("usage: ratelimit-schema LIBRARY CONTROL VERSION".into());
    };
    let control = ControlFile::from_path_with_cargo_version(control, version)?;
    let bytes = fs::read(library)?;
    let file = object::File::parse(&*bytes)?;
    let section = [ELF_SECTION_NAME, MACHO_SECTION_NAME]
        .into_iter()
        .find_map(|name| file.section_by_name(name))
        .ok_or_else(|| format!("{library} has no section {ELF_SECTION_NAME}"))?;
    print!("{}", install_script(control, decode_entities(section.data()?)?)?);
    Ok(())
}

/// What CREATE EXTENSION runs to make `entities`, in one order: each behind what it requires, and of those that
/// could be next the one whose text, which begins with its place in the source, sorts first. The order of
/// `PgrxSql::to_sql` is another one each time, and two builds of one source are to be the same.
fn install_script(
    control: ControlFile,
    entities: Vec<SqlGraphEntity<'_>>,
) -> Result<String, Box<dyn Error>> {
    let all = [SqlGraphEntity::ExtensionRoot(control)].into_iter().chain(entities);
    let sql = PgrxSql::build(all, "ratelimit".to_owned(), false)?;
    let mut requires: HashMap<_, usize> = HashMap::new();
    for dependent in sql.graph.node_indices().flat_map(|node| sql.graph.neighbors(node)) {
        *requires.entry(dependent).or_default() += 1;
    }
    let mut ready = BTreeSet::new();
    for node in sql.graph.node_indices().filter(|node| !requires.contains_key(node)) {
        ready.insert((sql.graph[node].to_sql(&sql)?, node));
    }
    let mut script = String::new();
    while let Some((text, node)) = ready.pop_first() {
        if node != sql.graph_root && !text.trim().is_empty() {
            script.push_str(text.trim());
            script.push_str("\n\n");
        }
        for dependent in sql.graph.neighbors(node) {
            let Entry::Occupied(mut left) = requires.entry(dependent) else { continue };
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
                ready.insert((sql.graph[dependent].to_sql(&sql)?, dependent));
            }
        }
    }
    if requires.is_empty() { Ok(script) } else { Err("declarations require each other".into()) }
}

#[cfg(test)]
mod tests {
    use pgrx_sql_entity_graph::{ExtensionSqlEntity, PositioningRef};

    use super::*;

    fn part(line: u32, name: &'static str, requires: &[&str]) -> SqlGraphEntity<'static> {
        SqlGraphEntity::CustomSql(ExtensionSqlEntity {
            module_path: "ratelimit",
            full_path: name,
            sql: name,
            file: "src/functions.rs",
            line,
            name,
            bootstrap: name == "the tables",
            finalize: name == "the grants",
            requires: requires.iter().map(|&name| PositioningRef::Name(name.to_owned())).collect(),
            creates: Vec::new(),
        })
    }

    /// Each call of `build` hashes by another seed, as each run of the program does.
    #[test]
    fn the_same_declarations_make_the_same_script() -> Result<(), Box<dyn Error>> {
        let control = "comment = ''\ndefault_version = '1.0.0'\nrelocatable = false\nsuperuser = false\nschema = ''";
        let control = ControlFile::try_from(control)?;
        let mut parts = vec![
            part(11, "the grants", &[]),
            part(12, "first trigger", &["last function"]),
            part(13, "second trigger", &["last function", "first trigger"]),
            part(14, "trigger b", &["function b"]),
            part(15, "trigger c", &["function c"]),
            part(16, "trigger d", &["function d", "function b"]),
            part(17, "function b", &["the tables"]),
            part(18, "function c", &["the tables"]),
            part(19, "function d", &[]),
            part(20, "last function", &["the tables"]),
            part(21, "the tables", &[]),
        ];
        let expected = [
            "the tables",
            "function b",
            "trigger b",
            "function c",
            "trigger c",
            "function d",
            "trigger d",
            "last function",
            "first trigger",
            "second trigger",
            "the grants",
        ];
        for _ in 0..parts.len() {
            parts.rotate_left(1);
            let script = install_script(control.clone(), parts.clone())?;
            let order: Vec<&str> = script.lines().filter(|line| expected.contains(line)).collect();
            assert_eq!(order, expected, "{script}");
        }
        Ok(())
    }
}
