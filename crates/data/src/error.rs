//! What can go wrong between text and batches, with the numbers, and what to do about it.
//! Not here: how a message is shown; `hint` is the line that the binary prints below it.

use crate::{Damage, Sources};
use std::io;
use std::path::PathBuf;

/// Why data could not be found, read, tokenized or cached.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// No argument named any data.
    #[error("no data was named")]
    NothingNamed,
    /// A path that does not exist and is not a pattern.
    #[error("{} does not exist", path.display())]
    NotFound {
        /// As it was given.
        path: PathBuf,
        /// The entry beside it whose name is nearest.
        nearest: Option<PathBuf>,
    },
    /// A file or folder that the system refuses to read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A pipe, socket or device: it could be read only once, and the data is read twice.
    #[error("{} is neither a file nor a folder", path.display())]
    NotAFile {
        /// As it was given.
        path: PathBuf,
    },
    /// A pattern that cannot be parsed.
    #[error("`{pattern}` is not a pattern: {message} at character {position}")]
    BadPattern {
        /// As it was given.
        pattern: String,
        /// What is wrong with it.
        message: String,
        /// Where, counted from 0.
        position: usize,
    },
    /// A pattern that no text file matches.
    #[error("no text file matches `{pattern}` ({skipped} other files do)")]
    NoMatch {
        /// As it was given.
        pattern: String,
        /// How many matching files were not text by their extension.
        skipped: usize,
    },
    /// A folder without any file that is text by its extension.
    #[error("no text file in {} ({skipped} other files)", path.display())]
    NoTextInFolder {
        /// The folder.
        path: PathBuf,
        /// How many files it has that are not text by their extension.
        skipped: usize,
    },
    /// A file named on purpose that holds no plain text: an archive, a table, a document format.
    #[error("{} is a .{extension} file, which is not read as text", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Its extension in lower case.
        extension: String,
    },
    /// Cargo has downloaded no sources here.
    #[error(
        "no data was named, and cargo has no downloaded Rust sources under {} to train on; name text with `--data PATH`",
        path.display()
    )]
    NoCargoSources {
        /// Where they would lie.
        path: PathBuf,
    },
    /// All sources together hold no text.
    #[error("the data is empty: {files} files without any text, the first is {}", first.display())]
    Empty {
        /// How many files were read.
        files: usize,
        /// One of them.
        first: PathBuf,
    },
    /// The tokenizer needs UTF-8.
    #[error("{} is not UTF-8 at byte {offset}", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first bad byte, counted from 0 in the decompressed file.
        offset: u64,
    },
    /// A .gz or .zst that does not decompress.
    #[error("{} does not decompress: {source}", path.display())]
    BadCompression {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        source: io::Error,
    },
    /// A line of a .jsonl that is not a JSON object.
    #[error("{} line {line} is not a JSON object: {message}", path.display())]
    BadJsonLine {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What the parser said.
        message: String,
    },
    /// A line of a .jsonl without the field that holds the text.
    #[error("{} line {line} has no field `{field}`; it has {}", path.display(), listed(present))]
    NoTextField {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// The field that was asked for.
        field: String,
        /// The fields that hold text on that line.
        present: Vec<String>,
    },
    /// A line of a .jsonl whose text field holds something else.
    #[error("{} line {line}: field `{field}` is {found}, not text", path.display())]
    FieldIsNotText {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// The field that was asked for.
        field: String,
        /// What it holds: "a number", "null"…
        found: &'static str,
    },
    /// A file changed between being hashed and being tokenized.
    #[error("{} changed while it was read", path.display())]
    ChangedWhileRead {
        /// The file.
        path: PathBuf,
    },
    /// A tokenizer's name that is neither known nor a path.
    #[error("`{text}` is no tokenizer: neither `bytes`, `gpt2` nor a tokenizer.json or a folder that holds one")]
    UnknownTokenizer {
        /// As it was given.
        text: String,
        /// The known name that is nearest.
        nearest: Option<&'static str>,
    },
    /// A folder without a tokenizer.json.
    #[error("{} holds no tokenizer.json", folder.display())]
    NoTokenizerInFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// A tokenizer.json that the `tokenizers` library does not accept, or that cannot be used for training.
    #[error("{} is not a usable tokenizer: {message}", path.display())]
    BadTokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The tokenizer failed on a text.
    #[error("the tokenizer failed on {}: {message}", path.display())]
    TokenizerFailed {
        /// The file that the text is from.
        path: PathBuf,
        /// What the tokenizer said.
        message: String,
    },
    /// The folder for token caches cannot be written: read-only, full, or not a folder.
    #[error("cannot write the token cache in {}: {source}", folder.display())]
    CacheUnwritable {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A token cache is there but the system refuses to read it.
    #[error("cannot read the token cache {}: {source}", path.display())]
    CacheUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A token cache that was just written does not read back.
    #[error("the token cache {} was written but does not read back: {damage}", path.display())]
    CacheDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// A column that is neither a number from 1 nor a name.
    #[error("`{text}` names no column")]
    BadColumn {
        /// As it was given.
        text: String,
    },
    /// A file whose extension does not say how its rows hold pairs.
    #[error("{} is neither a .tsv, a .csv nor a .jsonl, so its pairs cannot be told", path.display())]
    NotPairs {
        /// The file.
        path: PathBuf,
    },
    /// A table whose header lacks a column.
    #[error("{} has no column `{name}`; its header has {}", path.display(), listed(present))]
    NoSuchColumn {
        /// The file.
        path: PathBuf,
        /// The column that was asked for.
        name: String,
        /// What the first row holds.
        present: Vec<String>,
    },
    /// A row that ends before the column.
    #[error("{} line {line} has {columns} column{}, not {column}", path.display(), if *columns == 1 { "" } else { "s" })]
    RowTooShort {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Columns of that row.
        columns: usize,
        /// The column that was asked for, counted from 1.
        column: usize,
    },
    /// A row without a source or a target.
    #[error("{} line {line}: the {side} is empty", path.display())]
    EmptySide {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// `source` or `target`.
        side: &'static str,
    },
    /// A row that cannot be read.
    #[error("{} line {line} cannot be read: {message}", path.display())]
    BadRow {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        message: String,
    },
    /// Documents are to be packed, but nothing separates their tokens.
    #[error("the tokenizer `{tokenizer}` puts nothing between documents, so they cannot be packed")]
    NoSeparator {
        /// The tokenizer.
        tokenizer: String,
    },
    /// A tokenizer that could not be trained.
    #[error("no tokenizer of {vocab_size} tokens came of this text: {message}")]
    TrainingFailed {
        /// The vocabulary that was asked for.
        vocab_size: usize,
        /// What is wrong.
        message: String,
    },
    /// A tokenizer that was trained but cannot be kept.
    #[error("cannot write the tokenizer {}: {source}", path.display())]
    TokenizerUnwritable {
        /// Where it was to be written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The thread that makes batches is gone.
    #[error("the thread that makes batches failed: {message}")]
    LoaderFailed {
        /// What it said last.
        message: String,
    },
    /// Fewer tokens than one sample needs.
    #[error("the data has {tokens} tokens, one sample needs {needed}")]
    TooShort {
        /// Tokens that there are.
        tokens: u64,
        /// Tokens of one sample: the sequence length and one.
        needed: u64,
    },
}

impl DataError {
    pub(crate) fn empty(sources: &Sources) -> Self {
        Self::Empty { files: sources.files.len(), first: sources.files[0].path.clone() }
    }

    /// What to do about it, in one line, where there is something to say beyond the message.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NothingNamed => "name a file, a folder or a pattern with `--data PATH`".to_owned(),
            Self::NotFound { nearest: Some(nearest), .. } => format!("did you mean {}?", nearest.display()),
            Self::NotFound { .. } => "check the path; patterns such as `texts/**/*.txt` want quotes".to_owned(),
            Self::Unreadable { .. } | Self::CacheUnreadable { .. } => "check its permissions".to_owned(),
            Self::NotAFile { .. } => "save the text to a file first; the data is read twice".to_owned(),
            Self::BadPattern { .. } => "`*` `?` `**` and `[a-z]` are understood; `[[]` is a literal bracket".to_owned(),
            Self::NoMatch { .. } | Self::NoTextInFolder { .. } => {
                "files named one by one are read as text whatever their extension; in folders only .txt, .md, .jsonl, \
                 source code and their .gz and .zst are"
                    .to_owned()
            }
            Self::NotText { extension, .. } => not_text_hint(extension),
            Self::NoCargoSources { .. } => "name text with `--data PATH`".to_owned(),
            Self::Empty { .. } => "name files that hold text with `--data PATH`".to_owned(),
            Self::NotUtf8 { .. } => {
                "convert it (`iconv -f latin1 -t utf-8`), leave it out, or use `--tokenizer bytes`".to_owned()
            }
            Self::BadCompression { .. } => "it may be cut short; fetch it again, or decompress it yourself".to_owned(),
            Self::BadJsonLine { .. } => "each line of a .jsonl is one object such as {\"text\": \"…\"}".to_owned(),
            Self::NoTextField { present, .. } if present.is_empty() => "no field of that line holds text".to_owned(),
            Self::NoTextField { present, .. } => format!("name the field that holds the text: {}", listed(present)),
            Self::FieldIsNotText { .. } => "name a field that holds a string, or drop that line".to_owned(),
            Self::ChangedWhileRead { .. } => "start again when nothing writes to it".to_owned(),
            Self::UnknownTokenizer { nearest: Some(nearest), .. } => format!("did you mean `{nearest}`?"),
            Self::UnknownTokenizer { .. } => "`--tokenizer gpt2` suits most text".to_owned(),
            Self::NoTokenizerInFolder { .. } => {
                "in Python, `AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER)` writes one".to_owned()
            }
            Self::BadTokenizer { .. } => {
                "save it again with a recent `transformers`, or use `--tokenizer gpt2`".to_owned()
            }
            Self::TokenizerFailed { .. } => "leave the file out, or use `--tokenizer bytes`".to_owned(),
            Self::CacheUnwritable { .. } => "free some space, or name another folder for the cache".to_owned(),
            Self::CacheDamaged { .. } => "the disk may be failing; name another folder for the cache".to_owned(),
            Self::BadColumn { .. } => "columns are counted from 1, or named as in the table's header".to_owned(),
            Self::NotPairs { .. } => "save it as .tsv, .csv or .jsonl; each may be packed as .gz or .zst".to_owned(),
            Self::NoSuchColumn { .. } => {
                "a table with named columns starts with a header; without one, give numbers: `--source-column 1`"
                    .to_owned()
            }
            Self::RowTooShort { .. } => {
                "check the row; `--source-column` and `--target-column` say where the pairs are".to_owned()
            }
            Self::EmptySide { .. } => "fill it in or drop that row".to_owned(),
            Self::BadRow { .. } => "mend or drop that row; text must be UTF-8".to_owned(),
            Self::NoSeparator { .. } => {
                "use a tokenizer with `<|endoftext|>` or `</s>`, such as `gpt2`, or leave out `--packing`".to_owned()
            }
            Self::TrainingFailed { .. } => "give more text, or another `--vocab-size`".to_owned(),
            Self::TokenizerUnwritable { .. } => "free some space, or name another file with `--output`".to_owned(),
            Self::LoaderFailed { .. } => "this is a bug of plimsoll; please report it".to_owned(),
            Self::TooShort { tokens, .. } if *tokens < 2 => "add data".to_owned(),
            Self::TooShort { tokens, .. } => {
                format!("add data, or make the sequence length at most {}", tokens - 1)
            }
        };
        Some(hint)
    }
}

fn not_text_hint(extension: &str) -> String {
    match extension {
        "parquet" | "arrow" | "feather" => {
            "in Python, `datasets.load_dataset(…)` and `.to_json(\"data.jsonl\")` make a .jsonl of it".to_owned()
        }
        "bz2" | "xz" | "lz4" => "decompress it, or pack it as .gz or .zst".to_owned(),
        "zip" | "tar" | "tgz" | "7z" | "rar" => "unpack it and name the folder".to_owned(),
        _ => "convert it to .txt, .md or .jsonl".to_owned(),
    }
}

/// `a`, `b` and 3 more; or "none that holds text".
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 5;
    if names.is_empty() {
        return "none that holds text".to_owned();
    }
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_the_numbers_and_hints_the_remedy() {
        let error = DataError::TooShort { tokens: 100, needed: 257 };
        assert_eq!(error.to_string(), "the data has 100 tokens, one sample needs 257");
        assert_eq!(error.hint().unwrap(), "add data, or make the sequence length at most 99");

        let error = DataError::NoCargoSources { path: "/home/me/.cargo/registry/src".into() };
        assert!(error.to_string().contains("--data PATH"), "{error}");

        let fields = ["a", "b", "c", "d", "e", "f", "g"].map(str::to_owned).to_vec();
        assert_eq!(listed(&fields), "`a`, `b`, `c`, `d`, `e` and 2 more");
        assert!(not_text_hint("parquet").contains("jsonl"));
    }
}
