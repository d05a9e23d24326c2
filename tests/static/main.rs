//! Tests that read the sources and the pages, and need nothing else.

mod documents;
mod functions;
mod kinds;
mod layers;
mod pages;
