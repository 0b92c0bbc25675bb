//! Finds the assistant's answers in the text of a chat, for a template without `{% generation %}`.
//!
//! A probe is a mark that is put into a message after its last word. It shows where the template writes that message:
//!
//! ```text
//!   earlier messages and the invitation      <user>2+2?</user><assistant>
//!   the whole chat, with a probe             <user>2+2?</user><assistant>4^</assistant>␊<user>Thanks</user>␊
//!   one iteration of the loop                                 ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔
//!   trained on                                                           ▔▔▔▔▔▔▔▔▔▔▔▔
//! ```
//!
//! An answer begins after its invitation. If the template invites with words that it does not write before the answer,
//! such as `<think>`, the answer begins where the two texts diverge, and at its first word at the latest. If the
//! template does not invite, the answer begins after the text that precedes every answer.
//!
//! An answer ends with the text that follows it both as the last message and elsewhere; if the two differ, with the
//! text of the loop's iteration; the last message ends with all text after it. Trailing white space is not trained on,
//! since no model generates it. An answer whose bounds are not certain is an error.

use super::format::{Conversation, field, with_field};
use super::marks::{PROBE, Probe, Unmarked};
use super::render_error::RenderError;
use super::template::ChatTemplate;
use plimsoll_jinja::Value;
use plimsoll_units::Bytes;
use std::ops::Range;

/// Limit on all text that a template may write while the answers of one chat are searched.
const BYTES_MAX: usize = 1 << 30;
/// The marks around reasoning that precedes the answer in a message. Templates cut texts at these.
const REASONING_BEGIN: &str = "<think>";
const REASONING_END: &str = "</think>";

/// The answers of a chat whose text is `text`. Errors: the template fails, writes too much, or does not show the bounds
/// of an answer.
pub(super) fn answers(
    chat: &Conversation,
    template: &ChatTemplate,
    text: &str,
) -> Result<Vec<Range<usize>>, RenderError> {
    let mut search = Search { chat, template, text, written: 0 };
    let numbers: Vec<usize> = (chat.prompt..chat.messages.len()).filter(|&at| is_answer(&chat.messages[at])).collect();
    let places = search.places(&numbers)?;
    let results = search.results(&numbers, &places)?;
    let mut spans = Vec::new();
    for (at, place) in numbers.into_iter().zip(places) {
        let answer = search.answer(at, place.as_ref())?.and_then(|answer| without_results(answer, &results));
        spans.extend(answer.ok_or(RenderError::UnclearAnswer(at + 1))?);
    }
    Ok(spans)
}

/// The parts of an answer without tool results, which some templates write in the turn that made the call. `None` if
/// the bounds of a result are not certain.
fn without_results(mut answer: Range<usize>, results: &[ToolResult]) -> Option<Vec<Range<usize>>> {
    let mut parts = Vec::new();
    for result in results {
        if !answer.contains(&result.at) {
            continue;
        }
        let written = result.written.clone()?;
        if written.start < answer.start || answer.end < written.end {
            return None;
        }
        parts.push(answer.start..written.start);
        answer.start = written.end;
    }
    parts.push(answer);
    Some(parts)
}

/// The result of a tool in the text of a chat.
struct ToolResult {
    at: usize,
    /// The text that one iteration of a loop over results writes.
    written: Option<Range<usize>>,
}

pub(super) fn is_answer(message: &Value) -> bool {
    field(message, "role").is_some_and(|role| role.as_str() == Some("assistant"))
}

/// The location of a message in the text of a chat.
struct MessagePlace {
    /// The end of its last word; for a message without words, the position of its text.
    end: usize,
    /// The words that were probed.
    words: Words,
    /// The text that one iteration of the template's loop over messages writes.
    turn: Option<Range<usize>>,
}

impl MessagePlace {
    fn of(unmarked: &Unmarked, number: usize, words: Words) -> Self {
        let probe = &unmarked.probes[number];
        Self { end: probe.at, words, turn: unmarked.turn(probe, &[]) }
    }
}

struct Search<'a> {
    chat: &'a Conversation,
    template: &'a ChatTemplate,
    text: &'a str,
    /// Total bytes of all rendered texts.
    written: usize,
}

impl Search<'_> {
    /// Renders other messages; `None` if the template refuses them. Errors: the limit on text is exceeded.
    fn render(&mut self, messages: &[Value], invite: bool) -> Result<Option<Unmarked>, RenderError> {
        let Ok(marked) = self.template.render(messages, &self.chat.tools, invite) else { return Ok(None) };
        self.written += marked.len();
        if self.written > BYTES_MAX {
            return Err(RenderError::TooLong(Bytes(BYTES_MAX as u64)));
        }
        Ok(Some(Unmarked::of(&marked)))
    }

    /// The location of each answer; `None` if a probe changes the rest of its text.
    fn places(&mut self, numbers: &[usize]) -> Result<Vec<Option<MessagePlace>>, RenderError> {
        let mut messages = self.chat.messages.clone();
        for &at in numbers {
            if let Some(message) = with_probe(&messages[at], Words::Last) {
                messages[at] = message;
            }
        }
        let together = self.render(&messages, false)?;
        if let Some(unmarked) = together.filter(|it| it.text == self.text && it.probes.len() == numbers.len()) {
            return Ok((0..numbers.len())
                .map(|number| Some(MessagePlace::of(&unmarked, number, Words::Last)))
                .collect());
        }
        numbers.iter().map(|&at| self.first_place(at, &[Words::Last, Words::Call, Words::Absent])).collect()
    }

    /// The tool results that the text shows, in text order.
    fn results(&mut self, numbers: &[usize], places: &[Option<MessagePlace>]) -> Result<Vec<ToolResult>, RenderError> {
        let mut messages = self.chat.messages.clone();
        let mut probed = 0;
        for message in &mut messages {
            let is_result = field(message, "role").is_some_and(|role| role.as_str() == Some("tool"));
            if let Some(with_probe) = with_probe(message, Words::Last).filter(|_| is_result) {
                *message = with_probe;
                probed += 1;
            }
        }
        if probed == 0 {
            return Ok(Vec::new());
        }
        let mut answers: Vec<usize> = places.iter().flatten().map(|place| place.end).collect();
        for &at in numbers {
            answers.extend(self.place(at, Words::Call)?.map(|place| place.end));
        }
        let unmarked = self.render(&messages, false)?.filter(|it| it.text == self.text);
        let result =
            |unmarked: &Unmarked, probe: &Probe| ToolResult { at: probe.at, written: unmarked.turn(probe, &answers) };
        Ok(unmarked.map_or(Vec::new(), |it| it.probes.iter().map(|probe| result(&it, probe)).collect()))
    }

    /// The location of the first of these words that the message has.
    fn first_place(&mut self, at: usize, all: &[Words]) -> Result<Option<MessagePlace>, RenderError> {
        for &words in all {
            if let Some(place) = self.place(at, words)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// The location of one kind of words in a message.
    fn place(&mut self, at: usize, words: Words) -> Result<Option<MessagePlace>, RenderError> {
        let Some(message) = with_probe(&self.chat.messages[at], words) else { return Ok(None) };
        let mut messages = self.chat.messages.clone();
        messages[at] = message;
        // A function's name may occur again in its result.
        let is_right = |it: &Unmarked| match words {
            Words::Call => !it.probes.is_empty(),
            _ => it.probes.len() == 1,
        };
        let found = self.render(&messages, false)?.filter(|it| it.text == self.text && is_right(it));
        Ok(found.map(|unmarked| MessagePlace::of(&unmarked, 0, words)))
    }

    /// The trained part of a message. `None` if it is not certain.
    fn answer(&mut self, at: usize, place: Option<&MessagePlace>) -> Result<Option<Range<usize>>, RenderError> {
        let Some(start) = self.start(at, place)? else { return Ok(None) };
        let Some(end) = self.end(at, place)?.filter(|&end| start <= end) else { return Ok(None) };
        let last_word = place.map_or(start, |place| place.end.clamp(start, end));
        // White space alone may be the end of an answer.
        Ok(Some(match self.text[last_word..end].trim_end() {
            "" => start..end,
            ending => start..last_word + ending.len(),
        }))
    }

    fn start(&mut self, at: usize, place: Option<&MessagePlace>) -> Result<Option<usize>, RenderError> {
        let before = &self.chat.messages[..at];
        let invited = if self.template.invites() { self.render(before, true)? } else { None };
        if let Some(invited) = &invited
            && self.text.starts_with(&invited.text)
        {
            return Ok(Some(invited.text.len()));
        }
        let first_word = self.first_place(at, &[Words::First, Words::AfterReasoning, Words::Absent])?;
        let first_word = first_word.map(|place| place.end);
        let before_turn = match place.and_then(|place| place.turn.as_ref()) {
            Some(turn) => Some(turn.start),
            None => self.render(before, false)?.filter(|it| self.text.starts_with(&it.text)).map(|it| it.text.len()),
        };
        let Some(before_turn) = before_turn else { return Ok(first_word) };
        let invitation = invited.and_then(|it| Some(it.text[it.loops_end?..].to_owned()));
        let invitation = invitation.filter(|invitation| !invitation.is_empty());
        let turn = &self.text[before_turn..];
        if let Some(invitation) = &invitation
            && turn.starts_with(invitation)
        {
            return Ok(Some(before_turn + invitation.len()));
        }
        let head = match invitation {
            Some(invitation) => Some(invitation),
            None => self.head(before, "assistant")?,
        };
        Ok(match head.map(|head| (shared_head(&head, turn), head)) {
            Some((_, head)) if head.trim().is_empty() => Some(before_turn),
            None | Some((0, _)) => first_word,
            Some((shared, _)) => Some(first_word.map_or(before_turn + shared, |word| word.min(before_turn + shared))),
        })
    }

    /// The text that the template writes before any message of a role that follows these messages.
    fn head(&mut self, before: &[Value], role: &str) -> Result<Option<String>, RenderError> {
        let message = Value::dict([("role", Value::from(role)), ("content", Value::from(format!("{PROBE}a")))]);
        let Some(unmarked) = self.render(&[before, &[message]].concat(), false)? else { return Ok(None) };
        let [probe] = &unmarked.probes[..] else { return Ok(None) };
        let start = match unmarked.turn(probe, &[]) {
            Some(turn) => Some(turn.start),
            None => {
                self.render(before, false)?.filter(|it| unmarked.text.starts_with(&it.text)).map(|it| it.text.len())
            }
        };
        let head = start.and_then(|start| unmarked.text.get(start..probe.at));
        Ok(head.map(|head| head.split(REASONING_BEGIN).next().unwrap_or_default().to_owned()))
    }

    /// The text that the template writes after the last message, whose words have a probe, without an unrequested
    /// invitation.
    fn ending<'t>(&mut self, chat: &'t Unmarked, through: &[Value]) -> Result<Option<&'t str>, RenderError> {
        let Some(probe) = chat.probes.first() else { return Ok(None) };
        let turn = chat.turn(probe, &[]).unwrap_or(0..chat.text.len());
        let after_turn = chat.text[turn.end..].trim();
        let mut end = chat.text.len();
        if !after_turn.is_empty() && chat.text[turn.start..].starts_with(after_turn) {
            // The end of a turn may be written at the start of the next one, regardless of its role.
            let next = self.head(through, "user")?;
            end = if next.is_some_and(|next| next.starts_with(after_turn)) { end } else { turn.end };
        }
        Ok(Some(&chat.text[probe.at..end]))
    }

    /// The end of an answer, including trailing white space.
    fn end(&mut self, at: usize, place: Option<&MessagePlace>) -> Result<Option<usize>, RenderError> {
        let is_last = at + 1 == self.chat.messages.len();
        let mut messages = self.chat.messages[..=at].to_vec();
        let Some(place) = place else {
            let Some(last) = self.render(&messages, false)? else { return Ok(None) };
            let ended = last.text.trim_end();
            return Ok(self.text.starts_with(ended).then_some(if is_last { self.text.len() } else { ended.len() }));
        };
        messages[at] = with_probe(&messages[at], place.words).expect("the message was located");
        let last = self.render(&messages, false)?;
        let ending = match &last {
            Some(last) => self.ending(last, &self.chat.messages[..=at])?,
            None => None,
        };
        let ends_with = |ending: &str| self.text[place.end..].starts_with(ending).then(|| place.end + ending.len());
        if is_last {
            return Ok(ending.and_then(ends_with));
        }
        let same = ending.map(str::trim_end).filter(|ending| !ending.is_empty()).and_then(ends_with);
        if let Some(turn) = &place.turn {
            return Ok(same.max(Some(turn.end)));
        }
        // Calls after the words look like the end of the turn.
        let has_calls = field(&self.chat.messages[at], "tool_calls").is_some_and(|calls| calls.is_true());
        let blank = || ending.filter(|ending| !ending.is_empty()).and_then(ends_with);
        Ok(same.or_else(blank).filter(|_| !has_calls))
    }
}

/// Length of the head's prefix at the beginning of a turn. If the two diverge, counts whole tags of the head: `<a>` of
/// `<a><think>` and `<a><tool>`.
fn shared_head(head: &str, turn: &str) -> usize {
    let same = head.char_indices().zip(turn.chars()).take_while(|((_, a), b)| a == b);
    let len = same.last().map_or(0, |((at, last), _)| at + last.len_utf8());
    if len == head.len() {
        return len;
    }
    let ends_word = |c: char| c.is_whitespace() || matches!(c, '>' | ']' | '}' | ':');
    head[..len].trim_end_matches(|c| !ends_word(c)).len()
}

/// The position of a probe in a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Words {
    First,
    /// The first word after reasoning.
    AfterReasoning,
    Last,
    /// The name of the last function called.
    Call,
    /// A text without words.
    Absent,
}

/// A message with a probe; `None` if it lacks these words.
fn with_probe(message: &Value, words: Words) -> Option<Value> {
    match words {
        Words::Call => Some(with_field(message, "tool_calls", probed_calls(&field(message, "tool_calls")?)?)),
        Words::Absent => {
            let blank = field(message, "content")?.as_str().filter(|text| text.trim().is_empty())?.to_owned();
            Some(with_field(message, "content", Value::from(format!("{PROBE}{blank}"))))
        }
        _ => Some(with_field(message, "content", probed_content(&field(message, "content")?, words)?)),
    }
}

fn probed_calls(calls: &Value) -> Option<Value> {
    let mut calls = calls.as_list()?.to_vec();
    let call = calls.pop()?;
    let function = field(&call, "function");
    let named = function.as_ref().unwrap_or(&call);
    let name = format!("{}{PROBE}", field(named, "name")?.as_str()?);
    let named = with_field(named, "name", Value::from(name));
    calls.push(if function.is_some() { with_field(&call, "function", named) } else { named });
    Some(Value::list(calls))
}

/// A text, or a list of parts with texts.
fn probed_content(content: &Value, words: Words) -> Option<Value> {
    if let Some(text) = content.as_str() {
        return probed_text(text, words).map(Value::from);
    }
    let mut parts = content.as_list()?.to_vec();
    let has_words = |part: &Value| {
        field(part, "text").is_some_and(|text| text.as_str().is_some_and(|text| !text.trim().is_empty()))
    };
    let at =
        if words == Words::Last { parts.iter().rposition(has_words)? } else { parts.iter().position(has_words)? };
    let text = probed_text(field(&parts[at], "text")?.as_str()?, words)?;
    parts[at] = with_field(&parts[at], "text", Value::from(text));
    Some(Value::list(parts))
}

fn probed_text(text: &str, words: Words) -> Option<String> {
    if text.trim().is_empty() {
        return None;
    }
    let first = |from: usize| text.len() - text[from..].trim_start().len();
    let at = match words {
        Words::First => first(0),
        Words::AfterReasoning => first(text.rfind(REASONING_END)? + REASONING_END.len()),
        Words::Last => text.trim_end().len(),
        Words::Call | Words::Absent => return None,
    };
    let (before, after) = text.split_at(at);
    Some(format!("{before}{PROBE}{after}"))
}

#[cfg(test)]
mod structures;
