//! A conversation: each line of stdin is a message, answered in the context of all messages before it, until stdin
//! ends.

use super::prompts::{PROMPT_BYTES_MAX, Prompt, chat_prompt};
use super::{Session, Stopped};
use crate::cli::Failure;
use crate::cli::failure::io_failure;
use crate::streams::{finish, talk};
use plimsoll_data::{Chat, ChatTemplate};
use plimsoll_telemetry::READER_PATIENCE;
use std::io::{BufRead, IsTerminal, Read, Write, stderr, stdin};

/// The most tokens of a conversation, unless the model has fewer positions or an answer may be longer.
pub(super) const POSITIONS: usize = 4096;

impl Session<'_> {
    /// Answers the lines of stdin. Errors: those of answering; stdin has no line.
    pub(super) fn converse(&mut self, template: &ChatTemplate) -> Result<(), Stopped> {
        let mut chat = self.args.prompts.chat().map_err(Stopped::Failure)?;
        let is_terminal = stdin().is_terminal();
        let mut has_answered = false;
        while let Some(line) = next_message(is_terminal).map_err(Stopped::Failure)? {
            let not_text = |words| Stopped::Failure(Failure::bad_input(format!("the message is not text: {words}")));
            chat.push("user", &line).map_err(not_text)?;
            let prompt = self.fitting(&mut chat, template).map_err(Stopped::Failure)?;
            let answer = match self.args.json {
                true => self.answer_all(std::slice::from_ref(&prompt))?.remove(0),
                false => self.answer(&prompt)?,
            };
            chat.push("assistant", &answer).map_err(not_text)?;
            has_answered = true;
        }
        if !has_answered && !is_terminal {
            let failure = Failure::bad_flag("`--chat` has no message to answer");
            let hint = "use `--prompt`, `--prompt-file` or `--messages`, or write messages to stdin";
            return Err(Stopped::Failure(failure.hint(hint)));
        }
        Ok(())
    }

    /// The prompt of a chat, without the oldest turns if they leave no space for the answer.
    fn fitting(&self, chat: &mut Chat, template: &ChatTemplate) -> Result<Prompt, Failure> {
        let mut dropped = 0;
        loop {
            let prompt = chat_prompt(chat, template, &self.tokenizer, &self.chosen)?;
            if prompt.ids.len() + self.args.max_tokens > self.positions && chat.drop_oldest_turn() {
                dropped += 1;
                continue;
            }
            if dropped > 0 {
                let turns = if dropped == 1 { "turn is" } else { "turns are" };
                talk(format_args!("note: the chat is too long: its oldest {dropped} {turns} dropped"));
            }
            return Ok(prompt);
        }
    }
}

/// The next line that is not blank; `None` at the end. Errors: stdin can't be read, or has a line that is too long or
/// not text.
fn next_message(is_terminal: bool) -> Result<Option<String>, Failure> {
    loop {
        if is_terminal {
            finish(READER_PATIENCE);
            // If the terminal refuses the prompt, it shows no answers either.
            let _ = write!(stderr(), "> ");
        }
        let mut line = String::new();
        let read = stdin().lock().take(PROMPT_BYTES_MAX.0).read_line(&mut line).map_err(io_failure("stdin"))?;
        match line.trim_end_matches(['\n', '\r']) {
            _ if read == 0 => return Ok(None),
            text if text.trim().is_empty() => {}
            text => return Ok(Some(text.to_owned())),
        }
    }
}
