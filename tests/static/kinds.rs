//! The documents list the kinds and fields that the core has, and the SQL says the version of the crates.

use ratelimit_core::Kind;

#[test]
fn every_kind_and_field_is_documented() {
    let page = include_str!("../../docs/configuration.md");
    let head = include_str!("../../crates/core/src/config.rs");
    let kinds = page.lines().find(|line| line.starts_with("| `kind` |")).unwrap_or_default();
    for kind in Kind::ALL {
        assert!(kinds.contains(&format!("`\"{kind}\"`")), "{kind}");
        assert!(head.contains(&format!("`\"{kind}\"`")), "{kind}");
        assert!(page.contains(&format!("[`{0}`](reference.md#{0})", kind.builder())), "{kind}");
    }
    for field in Kind::all_fields() {
        assert!(page.contains(&format!("\n| `{field}` |")), "{field}");
        assert!(head.contains(&format!("\n//! - `{field}` (")), "{field}");
    }
}

#[test]
fn rl_version_says_the_version() {
    let manifest = include_str!("../../Cargo.toml");
    let version = manifest.split("[workspace.package]\nversion = \"").nth(1).unwrap_or_default();
    let version = version.split('"').next().unwrap_or_default();
    let sql = include_str!("../../sql/functions.sql");
    assert!(sql.contains(&format!("\n    RETURN '{version}';\n")), "{version}");
    let file = include_str!("../../sql/plain/75-operation.sql");
    assert!(file.contains(&format!("\n    SELECT '{version}'::text\n")), "{version}");
}
