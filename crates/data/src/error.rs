//! The errors between text and batches, with their numbers.
//! Not here: how a message is shown and its hint; the command line adds both.

use crate::{Damage, PreferenceData, RowNumber};
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
        /// The path as given.
        path: PathBuf,
        /// The entry in the same folder with the nearest name.
        nearest: Option<PathBuf>,
    },
    /// A file or folder that the system refuses to read.
    #[error("can't read {}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A pipe, socket, device or kernel file: it could be read only once, or would never end.
    #[error("{} is {found}, not a file", path.display())]
    NotAFile {
        /// The path as given.
        path: PathBuf,
        /// Its kind, with an article.
        found: &'static str,
    },
    /// A pointer that Git LFS left in place of a file.
    #[error("{} is a Git LFS pointer, not the file itself", path.display())]
    LfsPointer {
        /// The pointer.
        path: PathBuf,
    },
    /// A file that is read whole and is longer than the limit for its kind.
    #[error("{} is longer than {limit}", path.display())]
    FileTooLong {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: Bytes,
    },
    /// A line of a .jsonl, or a row of a table, that is longer than the limit.
    #[error("{} {row} is longer than {limit}", path.display())]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The limit.
        limit: Bytes,
    },
    /// A folder or pattern with too many files to list.
    #[error("{found_in} has more than {files_max} files")]
    TooManyFiles {
        /// The folder or pattern.
        found_in: String,
        /// The limit.
        files_max: usize,
    },
    /// A pattern that cannot be parsed.
    #[error("`{pattern}` is not a valid pattern: {message} at character {position}")]
    BadPattern {
        /// The pattern as given.
        pattern: String,
        /// What is wrong with it.
        message: String,
        /// Index of the character, counted from 0.
        position: usize,
    },
    /// A pattern that no text file matches.
    #[error("no text file matches `{pattern}` ({skipped} other files do)")]
    NoMatch {
        /// The pattern as given.
        pattern: String,
        /// Number of matching files whose extension is not one of text.
        skipped: usize,
    },
    /// A folder without any file whose extension is one of text.
    #[error("no text file in {} ({skipped} other files)", path.display())]
    NoTextInFolder {
        /// The folder.
        path: PathBuf,
        /// Number of files whose extension is not one of text.
        skipped: usize,
    },
    /// A file that was named explicitly and is not plain text: an archive, a table, a document format.
    #[error("{} is a .{extension} file, which is not read as text", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Its extension in lower case.
        extension: String,
    },
    /// Cargo has not downloaded any sources on this machine.
    #[error("no data was given, and cargo has no downloaded Rust sources under {} to train on", path.display())]
    NoCargoSources {
        /// The folder that would hold them.
        path: PathBuf,
    },
    /// A .json whose rows can't be located.
    #[error("can't tell which part of {} holds the rows{}", path.display(), keys_in_words(keys))]
    NoRows {
        /// The file.
        path: PathBuf,
        /// The first keys of the file's object; empty for an array.
        keys: Vec<String>,
    },
    /// No source has any text.
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
        /// Offset of the first invalid byte in the decompressed file, counted from 0.
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
        /// The decoder's error.
        source: io::Error,
    },
    /// A line of a .jsonl that is not a JSON object.
    #[error("{} {row} is not a JSON object: {message}", path.display())]
    BadJsonLine {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The parser's message.
        message: String,
    },
    /// A line of a .jsonl without the field that holds the text.
    #[error("{} {row} has no field `{field}`; it has {}", path.display(), listed(present))]
    NoTextField {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The requested field.
        field: String,
        /// The fields of that line that hold text.
        present: Vec<String>,
    },
    /// A row has a text that the first row does not have.
    #[error("{} {row} has a field `{field}`, which the first row does not have", path.display())]
    UnexpectedField {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The field.
        field: String,
    },
    /// A line of a .jsonl whose text field holds another type.
    #[error("{} {row}: field `{field}` is {found}, not text", path.display())]
    FieldIsNotText {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The requested field.
        field: String,
        /// The type of its value: "a number", "null"…
        found: &'static str,
    },
    /// A file changed between being hashed and being tokenized.
    #[error("{} changed while it was read", path.display())]
    ChangedWhileRead {
        /// The file.
        path: PathBuf,
    },
    /// A tokenizer name that is neither known nor a path.
    #[error("`{text}` is not a tokenizer: expected `bytes`, `gpt2`, or the path of a tokenizer.json or of its folder")]
    UnknownTokenizer {
        /// The name as given.
        text: String,
        /// The nearest known name.
        nearest: Option<&'static str>,
    },
    /// A folder without tokenizer files.
    #[error("{} has no tokenizer.json, nor vocab.json and merges.txt", folder.display())]
    NoTokenizerInFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// A tokenizer.json that the `tokenizers` library rejects, or that can't be used for training.
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
        /// The file that the text comes from.
        path: PathBuf,
        /// The tokenizer's message.
        message: String,
    },
    /// The folder for token caches can't be written: it is read-only, full, or not a folder.
    #[error("can't write the token cache in {}: {source}", folder.display())]
    CacheUnwritable {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A token cache that the system refuses to read.
    #[error("can't read the token cache {}: {source}", path.display())]
    CacheUnreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A token cache was cut short or overwritten while it was in use.
    #[error("the token cache {} changed while it was in use", path.display())]
    CacheChanged {
        /// The file.
        path: PathBuf,
    },
    /// A token cache that was just written can't be read back.
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
        /// The text as given.
        text: String,
    },
    /// A file whose extension does not show how its rows hold pairs.
    #[error("{} is not a .tsv, .csv, .jsonl or .parquet, so it can't be read as pairs", path.display())]
    NotPairs {
        /// The file.
        path: PathBuf,
    },
    /// A table without the requested column.
    #[error("{} has no column `{name}`; it has {}", path.display(), listed(present))]
    NoSuchColumn {
        /// The file.
        path: PathBuf,
        /// The requested column.
        name: String,
        /// The columns in its header.
        present: Vec<String>,
    },
    /// A table with two columns of the requested name.
    #[error("{} has more than one column `{name}`", path.display())]
    DuplicateColumn {
        /// The file.
        path: PathBuf,
        /// The requested column.
        name: String,
    },
    /// A row that ends before the column.
    #[error("{} line {line} has {columns} column{}, not {column}", path.display(), if *columns == 1 { "" } else { "s" })]
    RowTooShort {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// Number of columns in that row.
        columns: usize,
        /// The requested column, counted from 1.
        column: usize,
    },
    /// A row without a source or a target.
    #[error("{} {row}: the {side} is empty", path.display())]
    EmptySide {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// `source`, `target` or `negative`.
        side: &'static str,
    },
    /// A row that cannot be read.
    #[error("{} {row} can't be read: {message}", path.display())]
    BadRow {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// What is wrong with it.
        message: String,
    },
    /// A text file among chat files.
    #[error("{} is a text file, but the other files hold chats", path.display())]
    NotChats {
        /// The file.
        path: PathBuf,
    },
    /// A file of preferences.
    #[error("{} is a preference file ({kind})", path.display())]
    Preferences {
        /// The file.
        path: PathBuf,
        /// The kind of preferences.
        kind: PreferenceData,
    },
    /// A row that is not an example of preferences, or one in a different format than the rest of the data.
    #[error("{} {row} is not an example of preferences: {message}", path.display())]
    NotPreferred {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The kind of preferences.
        data: PreferenceData,
        /// What is wrong with it.
        message: String,
    },
    /// A file of text among preferences, or instead of them.
    #[error("{} is a text file, not one of preferences", path.display())]
    TextNotPreferences {
        /// The file.
        path: PathBuf,
    },
    /// All judged answers are liked, or all are disliked.
    #[error("the label of all rows is {label}, so there is nothing to tell apart")]
    OneLabel {
        /// The label.
        label: bool,
    },
    /// All prompts are as long as a row.
    #[error("no prompt is shorter than {tokens} tokens, so no answer is left to train on")]
    LongPrompts {
        /// The maximum length of a row.
        tokens: usize,
    },
    /// A row that is not a chat, or a chat in a different format than the rest of the data.
    #[error("{} {row} is not a chat of the data's format: {message}", path.display())]
    NotAChat {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
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
    /// A chat that its template can't render.
    #[error("the chat template can't write the chat in {} {row}: {message}", path.display())]
    ChatTemplateFailed {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The error that the template raised.
        message: String,
    },
    /// A template that does not mark generated text, and whose output does not show it.
    #[error(
        "the chat template does not show where the answer in message {message} begins and ends ({} {row})",
        path.display()
    )]
    UnclearAnswer {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The first assistant message without visible bounds, counted from 1.
        message: usize,
    },
    /// A chat that is longer than the limit.
    #[error("the text of the chat in {} {row}, or what the template writes to find its answers, is longer than {limit}",
        path.display())]
    ChatTooLong {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: RowNumber,
        /// The limit.
        limit: Bytes,
    },
    /// Chats without an assistant turn, although only answers are trained on.
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
    /// Documents that can't be packed because no token separates them.
    #[error("the tokenizer `{tokenizer}` has no token to separate documents, so they can't be packed")]
    NoSeparator {
        /// The tokenizer.
        tokenizer: String,
    },
    /// More documents than packing can hold in memory.
    #[error("the data has more than {documents_max} documents, too many to pack")]
    TooManyDocuments {
        /// The limit.
        documents_max: usize,
    },
    /// A tokenizer that could not be trained.
    #[error("can't train a tokenizer of {vocab_size} tokens on this text: {message}")]
    TrainingFailed {
        /// The requested vocabulary size.
        vocab_size: usize,
        /// What is wrong.
        message: String,
    },
    /// A trained tokenizer that could not be stored.
    #[error("can't write the tokenizer {}: {source}", path.display())]
    TokenizerUnwritable {
        /// The path of the tokenizer.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused to start a thread.
    #[error("{what} needs a thread, which can't be started: {reason}")]
    NoThread {
        /// What needed the thread.
        what: &'static str,
        /// The system's error.
        reason: String,
    },
    /// The thread that makes batches has ended.
    #[error("the data loader failed: {message}")]
    LoaderFailed {
        /// Its last error.
        message: String,
    },
    /// Fewer tokens than one sample needs.
    #[error("the data has only {tokens} tokens, but one sample needs {needed}")]
    TooShort {
        /// Tokens in the data.
        tokens: u64,
        /// Tokens of one sample: the sequence length plus one.
        needed: u64,
    },
}

impl DataError {
    /// The error for a file or folder that can't be opened or read.
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

/// At most this many field or column names are kept for a message; the last one only signals that more exist.
pub(crate) const NAMES_MAX: usize = 6;

/// Cuts a long name of a field or column.
pub(crate) fn cut_name(name: &str) -> String {
    const CHARACTERS: usize = 60;
    match name.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Describes the top level of a .json, given the keys of its object.
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
    fn anything_but_a_file_is_named() {
        let not_regular = plimsoll_files::open_regular(std::env::temp_dir().as_path()).unwrap_err();
        let error = DataError::unreadable(Path::new("x"), not_regular);
        assert_eq!(error.to_string(), "x is a folder, not a file");
    }
}
