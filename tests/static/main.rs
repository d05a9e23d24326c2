//! Tests that read the sources and the pages, and need nothing else.

mod documents;
mod kinds;
mod layers;
mod pages;
