//! docs/configuration.md lists the kinds and fields that the core has.

use ratelimit_core::Kind;

#[test]
fn the_page_on_configs_lists_every_kind_and_field() {
    let page = include_str!("../../docs/configuration.md");
    let kinds = page.lines().find(|line| line.starts_with("| `kind` |")).unwrap_or_default();
    for kind in Kind::ALL {
        assert!(kinds.contains(&format!("`\"{kind}\"`")), "{kind}");
        assert!(page.contains(&format!("[`{0}`](reference.md#{0})", kind.builder())), "{kind}");
    }
    for field in Kind::all_fields() {
        assert!(page.contains(&format!("\n| `{field}` |")), "{field}");
    }
}
