//! `ratelimit-schema LIBRARY CONTROL VERSION`: prints the install script of the extension, which pgrx's
//! macros and `sql_function!` left in a section of the library.

use std::error::Error;
use std::{env, fs};

use object::{Object, ObjectSection};
use pgrx_sql_entity_graph::section::{ELF_SECTION_NAME, MACHO_SECTION_NAME, decode_entities};
use pgrx_sql_entity_graph::{ControlFile, PgrxSql, SqlGraphEntity};

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
    let entities = decode_entities(section.data()?)?;
    let all = [SqlGraphEntity::ExtensionRoot(control)].into_iter().chain(entities);
    let sql = PgrxSql::build(all, "ratelimit".to_owned(), false)?.to_sql()?;
    print!("{}", in_one_order(&sql));
    Ok(())
}

/// Puts the parts that require the tables only right after these, in order: pgrx writes them in another
/// one each time, and two builds of one source are to be the same.
fn in_one_order(sql: &str) -> String {
    let parts: Vec<&str> = sql.split_inclusive("/* </end connected objects> */\n").collect();
    let (head, tail) = parts.split_at(parts.len().min(2)); // a comment, and the tables
    let (mut free, bound): (Vec<&str>, Vec<&str>) =
        tail.iter().partition(|part| part.contains("\n-- requires:\n--   bootstrap\n\n"));
    free.sort_unstable();
    [head, &free, &bound].concat().concat()
}
