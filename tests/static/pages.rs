//! Reads the README and the pages of docs/, and takes their blocks of code apart.

use std::fs;
use std::path::{Path, PathBuf};

/// A signature is shown as SQL, and not run.
pub const SIGNATURE: &str = "sql signature";

/// A Markdown file of the repository.
pub struct Page {
    /// From the repository's root.
    pub path: PathBuf,
    pub text: String,
}

/// A fenced block of code.
pub struct Block<'a> {
    /// Its line in the file, from 1.
    pub line: usize,
    pub language: &'a str,
    pub code: String,
    /// It follows the block before it at once.
    pub follows: bool,
}

pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

pub fn read(path: &Path) -> Page {
    let text = fs::read_to_string(root().join(path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Page { path: path.to_owned(), text }
}

/// Returns the Markdown files of a folder and the folders in it.
pub fn pages_in(folder: &Path) -> Vec<Page> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(root().join(folder)).expect("the folder is there") {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            pages.extend(pages_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(read(&path));
        }
    }
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    pages
}

/// Returns what a user reads: the README and docs/.
pub fn documents() -> Vec<Page> {
    let mut pages = vec![read(Path::new("README.md"))];
    pages.extend(pages_in(Path::new("docs")));
    pages
}

/// Returns the fenced blocks, and the text without them.
pub fn split(text: &str) -> (Vec<Block<'_>>, String) {
    let mut blocks = Vec::new();
    let mut prose = String::new();
    let mut lines = text.lines().enumerate();
    let mut follows = false;
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let mut code = String::new();
            let end = lines.by_ref().map(|(_, line)| line).find(|line| {
                let end = *line == "```";
                if !end {
                    code += line;
                    code += "\n";
                }
                end
            });
            assert!(end.is_some(), "line {}: the block does not end", number + 1);
            blocks.push(Block { line: number + 1, language, code, follows });
            follows = true;
        } else {
            follows = false;
            prose += line;
            prose += "\n";
        }
    }
    (blocks, prose)
}

/// Returns the cells of the rows of a section's tables that begin with a word in code, without the marks.
pub fn rows(section: &str) -> Vec<Vec<String>> {
    let cells = |row: &str| -> Vec<String> {
        row.split(" | ").map(|cell| cell.replace(['`', '"'], "").trim().to_owned()).collect()
    };
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.filter(|row| row.starts_with(['`', '['])).map(cells).collect()
}
