//! Hints for data that can't be used. They name flags and commands, which `plimsoll_data::DataError` does not know.

use super::Failure;
use super::failure::{THREAD_LIMITS, line, no_threads};
use plimsoll_data::{DataError, PreferenceData};

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error {
            DataError::NoThread { .. } => no_threads(1, line(&error)),
            _ => Self::bad_input(line(&error)).hint(line(&hint(&error))),
        }
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
        DataError::NothingNamed => "give a file, a folder or a pattern with `--data PATH`",
        DataError::NoCargoSources { .. } => "give text with `--data PATH`",
        DataError::Empty { .. } => "give files with text to `--data PATH`",
        DataError::NotFound { .. } => "check the path; put patterns such as `texts/**/*.txt` in quotes",
        DataError::Unreadable { .. } | DataError::CacheUnreadable { .. } => "check its permissions",
        DataError::NotAFile { .. } => "save its contents to a regular file first; data is read twice",
        DataError::LfsPointer { .. } => "run `git lfs pull` in its repository, or download the file itself",
        DataError::FileTooLong { .. } => "check that this is the right file",
        DataError::TooManyFiles { .. } => "join small files into one .jsonl, one document per line",
        DataError::BadPattern { .. } => "use `*`, `?`, `**` and `[a-z]`; `[[]` matches a bracket",
        DataError::NoMatch { .. } | DataError::NoTextInFolder { .. } => {
            "a file named by its path is read as text, whatever its extension; in folders, only .txt, .md, .jsonl, \
             .parquet, source code, and these compressed as .gz or .zst are read"
        }
        DataError::NotText { extension, .. } => not_text(extension),
        DataError::NotUtf8 { .. } => {
            "convert it (`iconv -f latin1 -t utf-8`), leave it out, or use `--tokenizer bytes`"
        }
        DataError::Utf16 { encoding: "UTF-16LE", .. } => "convert it: `iconv -f utf-16le -t utf-8 FILE > NEW`",
        DataError::Utf16 { encoding: "UTF-16BE", .. } => "convert it: `iconv -f utf-16be -t utf-8 FILE > NEW`",
        DataError::Utf16 { .. } => "convert it: `iconv -f utf-16 -t utf-8 FILE > NEW`",
        DataError::BadCompression { .. } => "it may be truncated; download it again, or decompress it yourself",
        DataError::LineTooLong { .. } => {
            "split it into several lines, or save its text as a .txt file, whose lines may have any length"
        }
        DataError::BadJsonLine { .. } => "each line of a .jsonl must be one object such as {\"text\": \"…\"}",
        DataError::NoTextField { present, .. } if present.is_empty() => "add a text field to that line, or drop it",
        DataError::NoTextField { .. } => {
            "`--text-field NAME` names the field of documents, `--source-column` and `--target-column` those of pairs"
        }
        DataError::FieldIsNotText { .. } => "name a field that holds a string, or drop that line",
        DataError::ChangedWhileRead { .. } => "wait until no process writes to it, then start again",
        DataError::UnknownTokenizer { .. } => "`--tokenizer gpt2` suits most text",
        DataError::NoTokenizerInFolder { .. } => {
            "in Python, `AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER)` writes one"
        }
        DataError::BadTokenizer { .. } => "save it again with a recent `transformers`, or use `--tokenizer gpt2`",
        DataError::TokenizerFailed { .. } => "leave the file out, or use `--tokenizer bytes`",
        DataError::CacheUnwritable { .. } => "free some space, or choose another folder with `--cache-dir FOLDER`",
        DataError::CacheDamaged { .. } => "the disk may be failing; choose another folder with `--cache-dir FOLDER`",
        DataError::CacheChanged { .. } => "start again to rebuild it; `--resume auto` continues the run",
        DataError::BadColumn { .. } => "give a column's number, from 1, or its name in the table's header",
        DataError::NoRows { .. } => {
            "write its rows as an array of objects, or one per line: `jq '.KEY' FILE > NEW.json`; to train on the file as text, rename it to .txt"
        }
        DataError::NotPairs { .. } => "save it as .tsv, .csv, .jsonl or .parquet; all but the last may be compressed",
        DataError::BadTable { .. } => {
            "it may be truncated: download it again; or in Python, `pandas.read_parquet(…).to_parquet(…)` rewrites it"
        }
        DataError::NoSuchColumn { path, .. } if path.extension().is_some_and(|e| e == "parquet") => {
            "`--text-field NAME` names the column of documents, `--source-column` and `--target-column` those of pairs"
        }
        DataError::NoSuchColumn { .. } => {
            "a table with named columns starts with a header; without one, give numbers: `--source-column 1`"
        }
        DataError::DuplicateColumn { .. } => "rename one of them, or give a number to name a column of a .tsv or .csv",
        DataError::RowTooShort { .. } => {
            "check the row; `--source-column` and `--target-column` name the columns of the pairs"
        }
        DataError::UnexpectedField { .. } => {
            "give all rows the same fields: either all have negatives, or none has; put the others into a file of their own"
        }
        DataError::EmptySide { .. } => "fill it in or drop that row",
        DataError::BadRow { .. } => "fix or drop that row; text must be UTF-8",
        DataError::NotChats { .. } => "leave it out of `--data`, or name the chats' files one by one",
        DataError::Preferences { kind: PreferenceData::Paired, .. } => {
            "`--objective dpo --method lora` or `--objective orpo` trains on preferences; or write the chosen answers as `completion` next to \
             `prompt`, or as `messages`, to train on them alone"
        }
        DataError::Preferences { kind: PreferenceData::Judged, .. } => {
            "`--objective kto --method lora` trains on answers with a label; or keep the rows whose `label` is true, without \
             `label`, to train on their completions alone"
        }
        DataError::NotPreferred { data: PreferenceData::Judged, .. } => {
            "each row needs `prompt`, `completion` and a `label` that is true or false, the first two of them texts or lists of \
             messages; fix or drop other rows; `--objective dpo` trains on pairs of answers"
        }
        DataError::OneLabel { .. } => {
            "KTO needs answers with either label; omit `--objective` and drop `label` to train on all completions"
        }
        DataError::NotPreferred { .. } | DataError::TextNotPreferences { .. } => {
            "each row needs `chosen` and `rejected`, and may have `prompt`, all of them texts or all lists of messages; fix or drop \
             other rows, or omit `--objective` to train on them as they are"
        }
        DataError::LongPrompts { .. } => "use a longer `--seq-len`, or shorten the prompts",
        DataError::NotAChat { .. } => {
            "all rows must have one format; set it with `--data-format messages`, `sharegpt`, `alpaca` or `completion`"
        }
        DataError::BadChatTemplate { .. } => "`--chat-template FILE` takes a Jinja file or a tokenizer_config.json",
        DataError::ChatTemplateFailed { .. } => {
            "fix or drop that row, or give a template that accepts it with `--chat-template FILE`"
        }
        DataError::UnclearAnswer { .. } => {
            "put `{% generation %}` and `{% endgeneration %}` around what the assistant writes, in a copy of the template \
             for `--chat-template FILE`; or train on whole chats with `--train-on all`"
        }
        DataError::ChatTooLong { .. } => "split it into several chats",
        DataError::NoAnswers { .. } => "`--train-on all` trains on whole chats",
        DataError::NoSeparator { .. } => {
            "use a tokenizer with `<|endoftext|>` or `</s>`, such as `gpt2`, or leave out `--packing`"
        }
        DataError::TooManyDocuments { .. } => "join short documents, or leave out `--packing`",
        DataError::TrainingFailed { .. } => "give more text, or another `--vocab-size`",
        DataError::TokenizerUnwritable { .. } => "free some space, or choose another file with `--output`",
        DataError::NoThread { .. } => THREAD_LIMITS,
        DataError::LoaderFailed { .. } => "this is a bug in plimsoll; please report it",
    };
    hint.to_owned()
}

fn not_text(extension: &str) -> &'static str {
    match extension {
        "arrow" | "feather" => {
            "in Python, `datasets.load_from_disk(FOLDER).to_parquet(\"data.parquet\")` converts it; `[\"train\"]` after \
             the first call selects one of several splits"
        }
        "parquet" => "decompress it; Parquet already compresses its contents",
        "bz2" | "xz" | "lz4" => "decompress it, or compress it as .gz or .zst",
        "zip" | "tar" | "tgz" | "7z" | "rar" => "unpack it and give the folder",
        _ => "convert it to .txt, .md or .jsonl",
    }
}
