//! Tests of the files: encodings, which tensor has which, architectures, tokenizers, and whole files by an own reader.

mod architectures;
mod blocks;
mod files;
mod reader;
mod rules;
mod tokenizers;
