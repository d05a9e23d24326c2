//! The documents list the kinds and fields that the core has, the packages the facts that they share, and the SQL says
//! the version of the crates.

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

/// A loan is a hold: of a kind that tokens can be given back to, or of no limit.
#[test]
fn the_packages_lend_the_kinds_that_can_be_given_back_to() {
    let configs = [
        r#"{"kind": "token bucket", "rate": 1, "period": 1000}"#,
        r#"{"kind": "fixed window", "rate": 1, "period": 1000}"#,
        r#"{"kind": "sliding window", "rate": 1, "period": 1000}"#,
        r#"{"kind": "sliding log", "rate": 1, "period": 1000}"#,
        r#"{"kind": "concurrency", "slots": 1, "ttl": 1000}"#,
        r#"{"kind": "unlimited"}"#,
    ];
    assert_eq!(configs.len(), Kind::ALL.len());
    let limits = configs.map(|config| ratelimit_core::config::parse(config).unwrap());
    let lends = limits.iter().filter(|limit| limit.can_be_credited() || limit.is_unlimited());
    let lends: Vec<String> = lends.map(|limit| limit.kind().to_string()).collect();
    assert_eq!(serde_json::json!(lends), facts()["lends"]);
}

/// The facts that the packages share, and compare their own with.
fn facts() -> serde_json::Value {
    serde_json::from_str(include_str!("../../adapters/facts.json")).unwrap()
}

#[test]
fn a_page_and_the_packages_without_a_test_of_facts_list_the_errors_that_say_not_now() {
    let page = include_str!("../../docs/failing.md");
    let states: Vec<String> =
        serde_json::from_value(facts()["not now"]["sqlstates"].clone()).unwrap();
    assert!(page.contains(&format!("NOT_NOW = {{\"{}\"}}", states.join("\", \""))), "{states:?}");
    let node = include_str!("../clients/node.mjs");
    assert!(node.contains(&format!("NOT_NOW = ['{}']", states.join("', '"))), "{states:?}");
    let ruby = include_str!("../../adapters/ruby/lib/rate_limit_store.rb");
    assert!(ruby.contains(&format!("NOT_NOW = %w[{}]", states.join(" "))), "{states:?}");
    let tower = include_str!("../../adapters/tower/src/error.rs");
    assert!(tower.contains(&format!("[\"{}\"]", states.join("\", \""))), "{states:?}");
}

#[test]
fn rl_version_says_the_version() {
    let manifest = include_str!("../../Cargo.toml");
    let version = manifest.split("[workspace.package]\nversion = \"").nth(1).unwrap_or_default();
    let version = version.split('"').next().unwrap_or_default();
    let sql = include_str!("../../sql/functions.sql");
    assert!(sql.contains(&format!("\n    RETURN '{version}';\n")), "{version}");
}
