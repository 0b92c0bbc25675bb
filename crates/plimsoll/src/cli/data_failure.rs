//! What to do about data that can't be used: the flags and commands that `data::DataError` knows nothing of.

use super::Failure;
use super::failure::line;
use data::DataError;

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Self::bad_input(line(&error)).hint(line(&hint(&error)))
    }
}

fn hint(error: &DataError) -> String {
    let hint = match error {
        DataError::NotFound { nearest: Some(nearest), .. } => return format!("did you mean {}?", nearest.display()),
        DataError::UnknownTokenizer { nearest: Some(nearest), .. } => return format!("did you mean `{nearest}`?"),
        DataError::TooShort { tokens, .. } if *tokens >= 2 => {
            return format!("add data, or make the sequence length at most {}", tokens - 1);
        }
        DataError::TooShort { .. } => "add data",
        DataError::NothingNamed => "name a file, a folder or a pattern with `--data PATH`",
        DataError::NoCargoSources { .. } => "name text with `--data PATH`",
        DataError::Empty { .. } => "name files that hold text with `--data PATH`",
        DataError::NotFound { .. } => "check the path; patterns such as `texts/**/*.txt` want quotes",
        DataError::Unreadable { .. } | DataError::CacheUnreadable { .. } => "check its permissions",
        DataError::NotAFile { .. } => "save its contents to a regular file first; data is read twice",
        DataError::FileTooLong { .. } => "is it the file that you meant?",
        DataError::TooManyFiles { .. } => "join small files into one .jsonl, a document a line",
        DataError::BadPattern { .. } => "`*` `?` `**` and `[a-z]` are understood; `[[]` is a literal bracket",
        DataError::NoMatch { .. } | DataError::NoTextInFolder { .. } => {
            "files named one by one are read as text whatever their extension; in folders only .txt, .md, .jsonl, \
             source code and their .gz and .zst are"
        }
        DataError::NotText { extension, .. } => not_text(extension),
        DataError::NotUtf8 { .. } => {
            "convert it (`iconv -f latin1 -t utf-8`), leave it out, or use `--tokenizer bytes`"
        }
        DataError::BadCompression { .. } => "it may be cut short; fetch it again, or decompress it yourself",
        DataError::LineTooLong { .. } => {
            "cut it into several lines, or save its text as a .txt, which may be of any length"
        }
        DataError::BadJsonLine { .. } => "each line of a .jsonl is one object such as {\"text\": \"…\"}",
        DataError::NoTextField { present, .. } if present.is_empty() => "no field of that line holds text",
        DataError::NoTextField { .. } => {
            "`--text-field NAME` names the field of documents, `--source-column` and `--target-column` those of pairs"
        }
        DataError::FieldIsNotText { .. } => "name a field that holds a string, or drop that line",
        DataError::ChangedWhileRead { .. } => "start again when nothing writes to it",
        DataError::UnknownTokenizer { .. } => "`--tokenizer gpt2` suits most text",
        DataError::NoTokenizerInFolder { .. } => {
            "in Python, `AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER)` writes one"
        }
        DataError::BadTokenizer { .. } => "save it again with a recent `transformers`, or use `--tokenizer gpt2`",
        DataError::TokenizerFailed { .. } => "leave the file out, or use `--tokenizer bytes`",
        DataError::CacheUnwritable { .. } => "free some space, or name another folder with `--cache-dir FOLDER`",
        DataError::CacheDamaged { .. } => "the disk may be failing; name another folder with `--cache-dir FOLDER`",
        DataError::CacheChanged { .. } => "start again, which rebuilds it; `--resume auto` resumes the run",
        DataError::BadColumn { .. } => "columns are counted from 1, or named as in the table's header",
        DataError::NotPairs { .. } => "save it as .tsv, .csv or .jsonl; each may be compressed as .gz or .zst",
        DataError::NoSuchColumn { .. } => {
            "a table with named columns starts with a header; without one, give numbers: `--source-column 1`"
        }
        DataError::RowTooShort { .. } => {
            "check the row; `--source-column` and `--target-column` say where the pairs are"
        }
        DataError::EmptySide { .. } => "fill it in or drop that row",
        DataError::BadRow { .. } => "mend or drop that row; text must be UTF-8",
        DataError::NoSeparator { .. } => {
            "use a tokenizer with `<|endoftext|>` or `</s>`, such as `gpt2`, or leave out `--packing`"
        }
        DataError::TooManyDocuments { .. } => "join short documents, or leave out `--packing`",
        DataError::TrainingFailed { .. } => "give more text, or another `--vocab-size`",
        DataError::TokenizerUnwritable { .. } => "free some space, or name another file with `--output`",
        DataError::LoaderFailed { .. } => "this is a bug of plimsoll; please report it",
    };
    hint.to_owned()
}

fn not_text(extension: &str) -> &'static str {
    match extension {
        "parquet" | "arrow" | "feather" => {
            "in Python, `datasets.load_dataset(…)` and `.to_json(\"data.jsonl\")` make a .jsonl of it"
        }
        "bz2" | "xz" | "lz4" => "decompress it, or compress it as .gz or .zst",
        "zip" | "tar" | "tgz" | "7z" | "rar" => "unpack it and name the folder",
        _ => "convert it to .txt, .md or .jsonl",
    }
}
