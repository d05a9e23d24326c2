//! Keeps the section with the extension's SQL in the library where the linker would drop it, as on
//! aarch64 without LTO: what cargo-pgrx asks for by a flag for every crate.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_TARGET_OS").is_some_and(|os| os == "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--no-gc-sections");
    }
}
