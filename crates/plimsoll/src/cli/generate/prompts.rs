//! The text to continue or to answer: its flags, and its tokens.

use crate::cli::Failure;
use crate::cli::chats::today;
use crate::cli::model::Chosen;
use crate::streams::talk;
use clap::Args;
use plimsoll_data::{AnswerEnds, Chat, ChatTemplate, Tokenizer, generation_ends};
use plimsoll_units::Bytes;
use std::path::{Path, PathBuf};

/// Far larger than prompts and a run's own files.
pub(super) const PROMPT_BYTES_MAX: Bytes = Bytes::mib(16);

#[derive(Debug, Args)]
pub(super) struct PromptArgs {
    /// Text to continue; for an encoder-decoder, the source; with `--chat`, a message to answer [default: the beginning of
    /// a document]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// File of prompts, one per line; writes one line for each, in the same order
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "logits"])]
    pub(super) prompt_file: Option<PathBuf>,
    /// Prompts are messages to a chat model: write them with its chat template, and end with its turn. Without `--prompt`,
    /// each line of stdin is a message
    #[arg(long)]
    chat: bool,
    /// System message before the chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// JSON file of a chat to answer: a list of messages with `role` and `content`, or an object with `messages` and `tools`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_file", "system"])]
    messages: Option<PathBuf>,
}

/// A text to continue or to answer.
#[derive(Debug)]
pub(super) struct Prompt {
    /// As the user gave it.
    pub(super) text: String,
    /// Its tokens; at least one.
    pub(super) ids: Vec<u32>,
}

/// How prompts become input of a model.
pub(super) struct Addressing {
    /// The template of its chats, if prompts are messages.
    pub(super) template: Option<ChatTemplate>,
    /// The token IDs and strings that end an answer.
    pub(super) ends: AnswerEnds,
}

impl PromptArgs {
    /// Whether prompts are messages of a chat.
    pub(super) fn is_chat(&self) -> bool {
        self.chat || self.messages.is_some()
    }

    /// Whether messages are lines of stdin.
    pub(super) fn is_conversation(&self) -> bool {
        self.chat && self.prompt.is_none() && self.prompt_file.is_none() && self.messages.is_none()
    }

    /// How prompts become input of the model in a folder. Errors: `--chat` is given, and the model has no template or
    /// an unreadable one.
    pub(super) fn addressing(
        &self,
        folder: &Path,
        tokenizer: &Tokenizer,
        chosen: &Chosen,
    ) -> Result<Addressing, Failure> {
        let own = ChatTemplate::own(tokenizer, today());
        let mut addressing = if self.is_chat() {
            let none = || {
                let message = format!("{} has no chat template", folder.display());
                Failure::bad_input(message).hint(
                    "omit `--chat` to continue a text; chat models have a chat_template.jinja or a `chat_template` in \
                     tokenizer_config.json",
                )
            };
            let template = own?.ok_or_else(none)?;
            if chosen.has_decoder() {
                let message = "`--chat` is for models that continue text, but this one is an encoder-decoder";
                return Err(Failure::bad_flag(message).hint("omit `--chat`"));
            }
            Addressing { ends: template.answer_ends(tokenizer), template: Some(template) }
        } else {
            let mut ends = AnswerEnds::of(tokenizer);
            // An unusable template is an error only with `--chat`.
            if let Ok(Some(template)) = own {
                talk("note: this model has a chat template; `--chat` uses it");
                template.answer_ends(tokenizer).ids.into_iter().for_each(|id| ends.add(id));
            }
            Addressing { ends, template: None }
        };
        generation_ends(folder)?.into_iter().for_each(|id| addressing.ends.add(id));
        Ok(addressing)
    }

    /// The prompts. Errors: a file can't be read or is empty, or the template refuses a chat.
    pub(super) fn prompts(
        &self,
        addressing: &Addressing,
        tokenizer: &Tokenizer,
        chosen: &Chosen,
    ) -> Result<Vec<Prompt>, Failure> {
        if let (Some(path), Some(template)) = (&self.messages, &addressing.template) {
            let wrong = |words: String| {
                Failure::bad_input(format!("{} is not a chat: {words}", path.display()))
                    .hint(r#"write [{"role": "user", "content": "…"}], or an object with such `messages`"#)
            };
            let chat = Chat::of_json(&text_of(path)?).map_err(wrong)?;
            return Ok(vec![chat_prompt(&chat, template, tokenizer, chosen)?]);
        }
        let texts = match &self.prompt_file {
            Some(path) => {
                let text = text_of(path)?;
                let texts = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned);
                Some(texts.collect::<Vec<_>>()).filter(|texts| !texts.is_empty()).ok_or_else(|| {
                    let message = format!("{} has no prompt", path.display());
                    Failure::bad_input(message).hint("write one prompt per line")
                })?
            }
            None => vec![self.prompt.clone().unwrap_or_default()],
        };
        let prompt = |text: String| match &addressing.template {
            Some(template) => {
                let mut chat = self.chat()?;
                chat.push("user", &text)
                    .map_err(|words| Failure::bad_input(format!("the prompt is not text: {words}")))?;
                chat_prompt(&chat, template, tokenizer, chosen)
            }
            None => text_prompt(text, tokenizer, chosen),
        };
        texts.into_iter().map(prompt).collect()
    }

    /// A chat without turns.
    pub(super) fn chat(&self) -> Result<Chat, Failure> {
        Chat::new(self.system.as_deref())
            .map_err(|words| Failure::bad_input(format!("`--system` is not text: {words}")))
    }
}

/// The prompt that asks for an answer to a chat. Errors: the template refuses the chat.
pub(super) fn chat_prompt(
    chat: &Chat,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    chosen: &Chosen,
) -> Result<Prompt, Failure> {
    let written = template.prompt(chat).map_err(|words| {
        let failure = Failure::bad_input(format!("the chat template refuses the messages: {words}"));
        failure.hint("some templates accept no system message, or need alternating roles")
    })?;
    let ids = checked(tokens_of(&written, tokenizer)?, tokenizer, chosen)?;
    Ok(Prompt { text: chat.last_text().to_owned(), ids })
}

/// A text to continue, or the source of an answer, with the end token of the sources that encoder-decoders are trained
/// on.
fn text_prompt(text: String, tokenizer: &Tokenizer, chosen: &Chosen) -> Result<Prompt, Failure> {
    let mut ids = tokens_of(&text, tokenizer)?;
    if chosen.has_decoder() {
        ids.extend(tokenizer.end_token());
    } else if !ids.starts_with(tokenizer.beginning()) {
        ids.splice(..0, tokenizer.beginning().iter().copied());
    }
    Ok(Prompt { text, ids: checked(ids, tokenizer, chosen)? })
}

fn tokens_of(text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    tokenizer.encode(text.as_bytes()).map_err(|e| Failure::bad_input(format!("the prompt can't be tokenized: {e}")))
}

/// The IDs of a prompt, or one ID if it is empty. Errors: an ID is outside the model's vocabulary.
fn checked(mut ids: Vec<u32>, tokenizer: &Tokenizer, chosen: &Chosen) -> Result<Vec<u32>, Failure> {
    if ids.is_empty() {
        ids.push(tokenizer.separator().unwrap_or(0));
    }
    chosen.check_ids(&ids, "the prompt")?;
    Ok(ids)
}

fn text_of(path: &Path) -> Result<String, Failure> {
    plimsoll_files::read_any_text(path, PROMPT_BYTES_MAX)
        .map_err(|e| Failure::bad_input(format!("{} can't be read: {e}", path.display())))
        .map_err(|failure| failure.hint("the file must be UTF-8 text"))
}
