//! The flags for the format of the data, and for turning chats into text.

use super::Failure;
use clap::{Args, ValueEnum};
use plimsoll_data::{
    ChatFormat, ChatTemplate, DataFormat, Dataset, Date, PreferenceData, PreferenceSettings, Sources, Tokenizer,
    TrainOn, detect_format, detect_preferences,
};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, Args)]
pub(super) struct ChatArgs {
    /// Format of the rows: `text`, chats as `messages` (OpenAI), `sharegpt` or `alpaca`, or `completion` (`prompt` and
    /// `completion`); `auto` detects it from the first row, and is `text` with `--text-field`
    #[arg(long, value_name = "FORMAT", hide_possible_values = true, default_value = "auto")]
    data_format: FormatName,
    /// Which tokens of chats to train on: the assistant's `answers`, or `all` [default: answers]
    #[arg(long, value_name = "answers|all", hide_possible_values = true)]
    train_on: Option<TrainOnName>,
    /// Chat template: a Jinja file, a tokenizer_config.json, or `chatml` [default: the tokenizer's, else ChatML]
    #[arg(long, value_name = "FILE", value_parser = template_name)]
    chat_template: Option<PathBuf>,
    /// Date passed to chat templates that use the current date [default: today]
    #[arg(long, value_name = "YYYY-MM-DD")]
    chat_date: Option<Date>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatName {
    Auto,
    Text,
    #[value(alias = "openai")]
    Messages,
    Sharegpt,
    Alpaca,
    #[value(alias = "prompt-completion")]
    Completion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TrainOnName {
    Answers,
    All,
}

/// The built-in template.
const CHATML: &str = "chatml";

/// axolotl's names for the tokenizer's template, or ChatML if the tokenizer has none.
const OWN_NAMES: &[&str] = &["tokenizer_default", "tokenizer_default_fallback_chatml"];

/// A chat template's file or name. Errors: it is another trainer's name of a template (`llama3`, `mistral_v1`): without an
/// extension, not built in, and not a file.
fn template_name(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    let is_name = path.extension().is_none() && path.file_name() == Some(path.as_os_str());
    if !is_name || name == CHATML || OWN_NAMES.contains(&name) || path.exists() {
        return Ok(path);
    }
    Err("is not a known template; omit it to use the tokenizer's template, or give a Jinja file, a tokenizer_config.json \
         or `chatml`"
        .to_owned())
}

/// The current date in UTC.
pub(super) fn today() -> Date {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Date::of_unix_seconds(since.map_or(0, |since| since.as_secs()))
}

impl ChatArgs {
    /// The format of the data. `text_field`: the value of `--text-field`.
    /// Errors: those of reading a row; flags for chats are given, but the data is text.
    pub(super) fn format(&self, sources: &Sources, text_field: Option<&str>) -> Result<DataFormat, Failure> {
        let format = match self.data_format {
            FormatName::Text => DataFormat::Text,
            FormatName::Auto if text_field.is_some() => DataFormat::Text,
            FormatName::Auto => detect_format(sources)?,
            FormatName::Messages => DataFormat::Chats(ChatFormat::Messages),
            FormatName::Sharegpt => DataFormat::Chats(ChatFormat::ShareGpt),
            FormatName::Alpaca => DataFormat::Chats(ChatFormat::Alpaca),
            FormatName::Completion => DataFormat::Chats(ChatFormat::Completion),
        };
        if format == DataFormat::Chats(ChatFormat::Completion) && self.chat_template.is_some() {
            let message = "`--chat-template` is for chats, but the data is prompts and completions";
            return Err(Failure::bad_flag(message).hint(
                "to use a template, write both as lists of messages: `[{\"role\": \"user\", \"content\": \"…\"}]`",
            ));
        }
        if format == DataFormat::Text {
            self.refuse_for("text")?;
        }
        Ok(format)
    }

    /// Whether the format is detected from the first row.
    pub(super) fn is_detected(&self) -> bool {
        self.data_format == FormatName::Auto
    }

    /// Errors: flags for chats are given, but the data has none.
    pub(super) fn refuse_for(&self, data: &str) -> Result<(), Failure> {
        let answers = self.train_on == Some(TrainOnName::Answers);
        for (flag, is_given) in [("--train-on answers", answers), ("--chat-template", self.chat_template.is_some())] {
            if is_given {
                return Err(Failure::bad_flag(format!("`{flag}` is for chats, but the data is {data}")).hint(
                    "rows with `messages`, `conversations`, `instruction` or `prompt` and `completion` are chats; \
                     `--data-format` sets the format",
                ));
            }
        }
        Ok(())
    }

    /// How rows of preferences store their answers.
    /// Errors: those of reading a row; flags for other data are given.
    pub(super) fn format_of_preferences(
        &self,
        sources: &Sources,
        data: PreferenceData,
        text_field: Option<&str>,
    ) -> Result<ChatFormat, Failure> {
        let others = [
            ("--data-format", self.data_format != FormatName::Auto),
            ("--text-field", text_field.is_some()),
            ("--train-on", self.train_on.is_some()),
        ];
        for (flag, is_given) in others {
            if is_given {
                let message = format!("`{flag}` is not for preferences, whose answers are compared");
                return Err(Failure::bad_flag(message).hint(format!("omit `{flag}`, or omit `--objective`")));
            }
        }
        let format = detect_preferences(sources, data)?;
        if format == ChatFormat::Completion && self.chat_template.is_some() {
            let message = "`--chat-template` is for chats, but the answers are texts";
            return Err(Failure::bad_flag(message).hint(
                "to use a template, write them as lists of messages: `[{\"role\": \"assistant\", \"content\": \"…\"}]`",
            ));
        }
        Ok(format)
    }

    /// The template for a tokenizer. Errors: it can't be read or used.
    pub(super) fn template(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate, Failure> {
        Ok(match self.chat_template.as_deref() {
            Some(name) if name == Path::new(CHATML) && !name.exists() => ChatTemplate::chatml(self.date()),
            Some(name) if OWN_NAMES.iter().any(|own| name == Path::new(own)) && !name.exists() => {
                ChatTemplate::open(tokenizer, None, self.date())?
            }
            file => ChatTemplate::open(tokenizer, file, self.date())?,
        })
    }

    pub(super) fn train_on(&self) -> TrainOn {
        match self.train_on {
            Some(TrainOnName::All) => TrainOn::All,
            Some(TrainOnName::Answers) | None => TrainOn::Answers,
        }
    }

    fn date(&self) -> Date {
        self.chat_date.unwrap_or_else(today)
    }

    /// These flags as settings, for preferences. They fix the date, as [`Self::resolved`] does.
    pub(super) fn resolved_for_preferences(&self, rows: &PreferenceSettings) -> Map<String, Value> {
        let mut settings = Map::new();
        settings.insert("chat_date".into(), json!(self.date().to_string()));
        settings.extend(self.chat_template.as_ref().map(|path| ("chat_template".to_owned(), json!(path))));
        // Rows are cut at this length, even if none is as long.
        settings.insert("seq_len".into(), json!(rows.len_max));
        settings.insert("bucket".into(), json!(rows.bucket));
        settings
    }

    /// These flags as settings, for data of this format. They fix the date, so that a resumed run uses the same one.
    pub(super) fn resolved(&self, format: DataFormat) -> Map<String, Value> {
        let mut settings = Map::new();
        settings.insert("data_format".into(), json!(format.to_string()));
        if format != DataFormat::Text {
            let train_on = if self.train_on() == TrainOn::All { "all" } else { "answers" };
            settings.insert("train_on".into(), json!(train_on));
            settings.insert("chat_date".into(), json!(self.date().to_string()));
            settings.extend(self.chat_template.as_ref().map(|path| ("chat_template".to_owned(), json!(path))));
        }
        settings
    }
}

/// Whether a chat template turns the data into text.
pub(super) fn has_template(dataset: &Dataset) -> bool {
    let chats = match dataset {
        Dataset::Packed(packed) => packed.chats(),
        Dataset::Preferences(pairs) => Some(pairs.store()),
        Dataset::Windows(_) | Dataset::Pairs(_) => None,
    };
    chats.is_some_and(|chats| chats.format() != ChatFormat::Completion)
}
