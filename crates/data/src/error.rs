//! What can go wrong between text and batches, with the numbers.
//! Not here: how a message is shown, and what to do about it, which the command line says.

use crate::{Damage, Preferences, RowNumber};
use plimsoll_units::Bytes;
use std::io;
use std::path::{Path, PathBuf};

/// Why data could not be found, read, tokenized or cached.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// No argument named any data.
    #[error("no data was given")]
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
    #[error("can't read {}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A pipe, socket, device or file of the kernel's: it could be read only once, or would never end.
    #[error("{} is {found}, not a file", path.display())]
    NotAFile {
        /// As it was given.
        path: PathBuf,
        /// What it is, with its article.
        found: &'static str,
    },
    /// A pointer that Git LFS left in the place of a file.
    #[error("{} is a Git LFS pointer, not the file itself", path.display())]
    LfsPointer {
        /// The pointer.
        path: PathBuf,
    },
    /// A file that is read whole and is longer than anything of its kind.
    #[error("{} is longer than {limit}", path.display())]
    FileTooLong {
        /// The file.
        path: PathBuf,
        /// How long it may be.
        limit: Bytes,
    },
    /// A line of a .jsonl, or a row of a table, that is longer than may be held in memory.
    #[error("{} {row} is longer than {limit}", path.display())]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// How long it may be.
        limit: Bytes,
    },
    /// A folder or pattern with more files than a list of them may have.
    #[error("{found_in} has more than {files_max} files")]
    TooManyFiles {
        /// The folder or pattern.
        found_in: String,
        /// How many there may be.
        files_max: usize,
    },
    /// A pattern that cannot be parsed.
    #[error("`{pattern}` is not a valid pattern: {message} at character {position}")]
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
    #[error("no data was given, and cargo has no downloaded Rust sources under {} to train on", path.display())]
    NoCargoSources {
        /// Where they would lie.
        path: PathBuf,
    },
    /// A .json that does not show where its rows are.
    #[error("{} has no rows that are clear{}", path.display(), keys_in_words(keys))]
    NoRows {
        /// The file.
        path: PathBuf,
        /// The first keys of the object that the file is; none of an array.
        keys: Vec<String>,
    },
    /// All sources together hold no text.
    #[error("the data is empty: {files} files without text, the first is {}", first.display())]
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
    /// Text in UTF-16.
    #[error("{} is {encoding}; text must be UTF-8", path.display())]
    Utf16 {
        /// The file.
        path: PathBuf,
        /// The encoding's name.
        encoding: &'static str,
    },
    /// A .gz or .zst that does not decompress.
    #[error("{} can't be decompressed: {source}", path.display())]
    BadCompression {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        source: io::Error,
    },
    /// A line of a .jsonl that is not a JSON object.
    #[error("{} {row} is not a JSON object: {message}", path.display())]
    BadJsonLine {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// What the parser said.
        message: String,
    },
    /// A line of a .jsonl without the field that holds the text.
    #[error("{} {row} has no field `{field}`; it has {}", path.display(), listed(present))]
    NoTextField {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// The field that was asked for.
        field: String,
        /// The fields that hold text on that line.
        present: Vec<String>,
    },
    /// A line of a .jsonl whose text field holds something else.
    #[error("{} {row}: field `{field}` is {found}, not text", path.display())]
    FieldIsNotText {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
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
    #[error("`{text}` is not a tokenizer: expected `bytes`, `gpt2`, or the path of a tokenizer.json or of its folder")]
    UnknownTokenizer {
        /// As it was given.
        text: String,
        /// The known name that is nearest.
        nearest: Option<&'static str>,
    },
    /// A folder without the files of a tokenizer.
    #[error("{} has no tokenizer.json, nor vocab.json and merges.txt", folder.display())]
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
    #[error("the tokenizer `{tokenizer}` failed on {}: {message}", path.display())]
    TokenizerFailed {
        /// The tokenizer.
        tokenizer: String,
        /// The file that the text is from.
        path: PathBuf,
        /// What the tokenizer said.
        message: String,
    },
    /// The folder for token caches cannot be written: read-only, full, or not a folder.
    #[error("can't write the token cache in {}: {source}", folder.display())]
    CacheUnwritable {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A token cache is there but the system refuses to read it.
    #[error("can't read the token cache {}: {source}", path.display())]
    CacheUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A token cache that is in use was cut short or overwritten.
    #[error("the token cache {} changed while it was in use", path.display())]
    CacheChanged {
        /// The file.
        path: PathBuf,
    },
    /// A token cache that was just written does not read back.
    #[error("the token cache {} was written but can't be read back: {damage}", path.display())]
    CacheDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// A column that is neither a number from 1 nor a name.
    #[error("`{text}` is not a column")]
    BadColumn {
        /// As it was given.
        text: String,
    },
    /// A file whose extension does not say how its rows hold pairs.
    #[error("{} is not a .tsv, .csv, .jsonl or .parquet, so it can't be read as pairs", path.display())]
    NotPairs {
        /// The file.
        path: PathBuf,
    },
    /// A table that lacks a column.
    #[error("{} has no column `{name}`; it has {}", path.display(), listed(present))]
    NoSuchColumn {
        /// The file.
        path: PathBuf,
        /// The column that was asked for.
        name: String,
        /// What its header names.
        present: Vec<String>,
    },
    /// A table with two columns of the name that was asked for.
    #[error("{} has more than one column `{name}`", path.display())]
    DuplicateColumn {
        /// The file.
        path: PathBuf,
        /// The column that was asked for.
        name: String,
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
    #[error("{} {row}: the {side} is empty", path.display())]
    EmptySide {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// `source` or `target`.
        side: &'static str,
    },
    /// A row that cannot be read.
    #[error("{} {row} can't be read: {message}", path.display())]
    BadRow {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// What is wrong with it.
        message: String,
    },
    /// A file of text among files of chats.
    #[error("{} is text, but the data's rows are chats", path.display())]
    NotChats {
        /// The file.
        path: PathBuf,
    },
    /// A file of preferences.
    #[error("{} is a preference file ({kind})", path.display())]
    Preferences {
        /// The file.
        path: PathBuf,
        /// What they are for.
        kind: Preferences,
    },
    /// A row that is no chat, or a chat of another format than the data's.
    #[error("{} {row} is not a chat of the data's format: {message}", path.display())]
    NotAChat {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// What is wrong with it.
        message: String,
    },
    /// A chat template that is not valid, or a file without one.
    #[error("the chat template in {} can't be used: {message}", path.display())]
    BadChatTemplate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A chat that its template can't write.
    #[error("the chat template can't write the chat in {} {row}: {message}", path.display())]
    ChatTemplateFailed {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// What the template raised.
        message: String,
    },
    /// A template that does not mark what is generated, and whose text does not show it.
    #[error(
        "the chat template does not show where the answer in message {message} begins and ends ({} {row})",
        path.display()
    )]
    UnclearAnswer {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// The first such message of the assistant, counted from 1.
        message: usize,
    },
    /// A chat that is longer than may be held in memory.
    #[error("the text of the chat in {} {row}, or what the template writes to find its answers, is longer than {limit}",
        path.display())]
    ChatTooLong {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        row: RowNumber,
        /// How long it may be.
        limit: Bytes,
    },
    /// Chats without a turn of the assistant, of which answers alone were to be trained on.
    #[error("no chat has an answer to train on; the first file is {}", first.display())]
    NoAnswers {
        /// One of the files.
        first: PathBuf,
    },
    /// A Parquet file that cannot be read.
    #[error("{} can't be read as Parquet: {message}", path.display())]
    BadTable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Documents are to be packed, but nothing separates their tokens.
    #[error("the tokenizer `{tokenizer}` has no token to separate documents, so they can't be packed")]
    NoSeparator {
        /// The tokenizer.
        tokenizer: String,
    },
    /// More documents than the packing of rows keeps in memory.
    #[error("the data has more than {documents_max} documents, too many to pack")]
    TooManyDocuments {
        /// How many there may be.
        documents_max: usize,
    },
    /// A tokenizer that could not be trained.
    #[error("can't train a tokenizer of {vocab_size} tokens on this text: {message}")]
    TrainingFailed {
        /// The vocabulary that was asked for.
        vocab_size: usize,
        /// What is wrong.
        message: String,
    },
    /// A tokenizer that was trained but cannot be kept.
    #[error("can't write the tokenizer {}: {source}", path.display())]
    TokenizerUnwritable {
        /// Where it was to be written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused a thread.
    #[error("{what} needs a thread, which can't be started: {reason}")]
    NoThread {
        /// What needed it.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The thread that makes batches is gone.
    #[error("the data loader failed: {message}")]
    LoaderFailed {
        /// What it said last.
        message: String,
    },
    /// Fewer tokens than one sample needs.
    #[error("the data has only {tokens} tokens, but one sample needs {needed}")]
    TooShort {
        /// Tokens that there are.
        tokens: u64,
        /// Tokens of one sample: the sequence length and one.
        needed: u64,
    },
}

impl DataError {
    /// What it means that a file or folder cannot be opened or read.
    pub(crate) fn unreadable(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        let inner = source.get_ref();
        if let Some(plimsoll_files::NotRegular { found }) = inner.and_then(|inner| inner.downcast_ref()) {
            return Self::NotAFile { path, found };
        }
        if let Some(plimsoll_files::TooLong { limit }) = inner.and_then(|inner| inner.downcast_ref()) {
            return Self::FileTooLong { path, limit: *limit };
        }
        if let Some(plimsoll_files::Utf16 { encoding }) = inner.and_then(|inner| inner.downcast_ref()) {
            return Self::Utf16 { path, encoding };
        }
        if inner.is_some_and(|inner| inner.is::<plimsoll_files::LfsPointer>()) {
            return Self::LfsPointer { path };
        }
        Self::Unreadable { path, source }
    }
}

/// So many names of a file's fields or columns are kept for a message; the last of them only says that there are more.
pub(crate) const NAMES_MAX: usize = 6;

/// A name of a field or column, cut where it is long.
pub(crate) fn cut_name(name: &str) -> String {
    const CHARACTERS: usize = 60;
    match name.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// What the top of a .json is, given the keys of an object.
fn keys_in_words(keys: &[String]) -> String {
    match keys {
        [] => ": it is neither an array of objects nor objects in lines".to_owned(),
        keys => format!(": it is one object with the keys {}", listed(keys)),
    }
}

/// `a`, `b` and more; or "none with text".
fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "none with text".to_owned();
    }
    let shown = names.iter().take(NAMES_MAX - 1).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() < NAMES_MAX { shown } else { format!("{shown} and more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_the_numbers() {
        let error = DataError::TooShort { tokens: 100, needed: 257 };
        assert_eq!(error.to_string(), "the data has only 100 tokens, but one sample needs 257");
        let fields = ["a", "b", "c", "d", "e", "f", "g"].map(str::to_owned).to_vec();
        assert_eq!(listed(&fields), "`a`, `b`, `c`, `d`, `e` and more");
        assert_eq!(listed(&fields[..5]), "`a`, `b`, `c`, `d`, `e`");
        assert_eq!(cut_name(&"é".repeat(61)), "é".repeat(60) + "…");
    }

    #[test]
    fn what_is_no_file_is_said() {
        let not_regular = plimsoll_files::open_regular(std::env::temp_dir().as_path()).unwrap_err();
        let error = DataError::unreadable(Path::new("x"), not_regular);
        assert_eq!(error.to_string(), "x is a folder, not a file");
    }
}
