//! The text of a chat, and which parts of it are trained on.
//!
//! A template may say so itself: what it writes between `{% generation %}` and `{% endgeneration %}` is the assistant's.
//! Else a turn is what an assistant's message adds to the text that invites it:
//!
//! ```text
//!   messages before it, and the invitation   <user>2+2?</user><assistant>
//!   messages up to it                        <user>2+2?</user><assistant>4</assistant>␊
//!   trained on                                                           ▔▔▔▔▔▔▔▔▔▔▔▔▔
//! ```
//!
//! White space that a template writes behind the end of a turn is not trained on, since nobody generates it; nor is what
//! it writes behind the last message alone, which is not there if another answer is invited.

use super::format::Conversation;
use super::template::{ChatTemplate, TemplateError};
use plimsoll_units::Bytes;
use std::ops::Range;

/// Put around what a template generates. These two are noncharacters: no text has them.
pub(super) const BEGIN: char = '\u{fdd0}';
pub(super) const END: char = '\u{fdd1}';

/// A chat's text may be this long.
const TEXT_BYTES_MAX: usize = 32 << 20;
/// A template without markers writes a chat twice for each turn of the assistant: so much altogether.
const PREFIX_BYTES_MAX: usize = 1 << 30;

/// Which tokens of a chat are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainOn {
    /// The assistant's turns, with the tokens that end them.
    Answers,
    /// All.
    All,
}

/// Why a chat has no text to train on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RenderError {
    /// The template fails on these messages.
    Template(TemplateError),
    /// Up to this message, counted from 1, the text is another than that of the whole chat begins with.
    NotPrefixStable(usize),
    /// Longer than this.
    TooLong(Bytes),
}

impl From<TemplateError> for RenderError {
    fn from(error: TemplateError) -> Self {
        Self::Template(error)
    }
}

/// A chat as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rendered {
    pub text: String,
    /// The bytes that are trained on: ascending, apart, never empty.
    pub trained: Vec<Range<usize>>,
}

impl Rendered {
    /// Whether a token is trained on that stands for these bytes: if any of them is.
    pub(super) fn is_trained(&self, token: &Range<usize>) -> bool {
        let next = self.trained.partition_point(|span| span.end <= token.start);
        self.trained.get(next).is_some_and(|span| span.start < token.end)
    }
}

/// Writes a chat. Errors: the template fails; its text is too long, or not one that says what is trained on.
pub(super) fn render(chat: &Conversation, template: &ChatTemplate, train_on: TrainOn) -> Result<Rendered, RenderError> {
    let marked = template.render(&chat.messages, &chat.tools, false)?;
    if marked.len() > TEXT_BYTES_MAX {
        return Err(RenderError::TooLong(Bytes(TEXT_BYTES_MAX as u64)));
    }
    let (text, generated) = without_marks(&marked);
    let trained = match train_on {
        TrainOn::All => std::iter::once(0..text.len()).collect(),
        TrainOn::Answers if template.marks_generation() => generated,
        TrainOn::Answers => turns(chat, template, &text)?,
    };
    Ok(Rendered { trained: trained.into_iter().filter(|span| !span.is_empty()).collect(), text })
}

/// A text without its marks, and where what they enclose is in it.
fn without_marks(marked: &str) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(marked.len());
    let (mut spans, mut begin) = (Vec::new(), 0);
    for part in marked.split_inclusive([BEGIN, END]) {
        let unmarked = part.trim_end_matches([BEGIN, END]);
        text.push_str(unmarked);
        match part[unmarked.len()..].chars().next() {
            Some(BEGIN) => begin = text.len(),
            Some(_) => spans.push(begin..text.len()),
            None => {}
        }
    }
    (text, spans)
}

/// The assistant's turns in a text, by the texts of the messages before them.
fn turns(chat: &Conversation, template: &ChatTemplate, text: &str) -> Result<Vec<Range<usize>>, RenderError> {
    let mut spans = Vec::new();
    let mut written = 0;
    for (at, message) in chat.messages.iter().enumerate() {
        if message.get_attr("role").ok().and_then(|role| role.to_str()).as_deref() != Some("assistant") {
            continue;
        }
        let invited = template.render(&chat.messages[..at], &chat.tools, true)?;
        let answered = template.render(&chat.messages[..=at], &chat.tools, false)?;
        // Some templates invite nobody behind an answer.
        let continued = template.render(&chat.messages[..=at], &chat.tools, true).unwrap_or_else(|_| answered.clone());
        written += invited.len() + answered.len() + continued.len();
        if written > PREFIX_BYTES_MAX {
            return Err(RenderError::TooLong(Bytes(PREFIX_BYTES_MAX as u64)));
        }
        let content = message.get_attr("content").ok().and_then(|content| content.to_str());
        let end = without_ending(&answered, &continued);
        let turn = answered[..end].strip_prefix(&invited).filter(|_| text.starts_with(&answered[..end]));
        let turn = turn.ok_or(RenderError::NotPrefixStable(at + 1))?;
        spans.push(invited.len()..invited.len() + turn_len(turn, content.as_deref().unwrap_or_default()));
    }
    Ok(spans)
}

/// The length of a text without what is behind its last message alone, found where `continued` goes on otherwise: at the
/// beginning of the word that differs.
fn without_ending(answered: &str, continued: &str) -> usize {
    if continued.starts_with(answered) {
        return answered.len();
    }
    let same = answered.char_indices().zip(continued.chars()).take_while(|((_, a), b)| a == b);
    let end = same.last().map_or(0, |((at, last), _)| at + last.len_utf8());
    answered[..end].trim_end_matches(|c: char| !c.is_whitespace()).len()
}

/// A turn without the white space behind what ends it. Where white space alone ends it, that belongs to it.
fn turn_len(turn: &str, content: &str) -> usize {
    let content = content.trim();
    // Nothing would be found at the end.
    let end_of_content = if content.is_empty() { 0 } else { turn.rfind(content).map_or(0, |at| at + content.len()) };
    match turn[end_of_content..].trim_end() {
        "" => turn.len(),
        end_of_turn => end_of_content + end_of_turn.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Date;
    use super::super::format::{ChatFormat, Fields};
    use super::*;

    fn chat(turns: &[(&str, &str)]) -> Conversation {
        let messages: Vec<_> =
            turns.iter().map(|(role, text)| serde_json::json!({"role": role, "content": text})).collect();
        let row = serde_json::json!({ "messages": messages }).to_string();
        Fields::of_row(&row).unwrap().unwrap().conversation(ChatFormat::Messages).unwrap()
    }

    fn template(text: &str) -> ChatTemplate {
        ChatTemplate::of_text(text, Date::of_unix_seconds(0)).unwrap()
    }

    /// What is trained on of a chat.
    fn trained(template_text: &str, turns: &[(&str, &str)], train_on: TrainOn) -> Result<Vec<String>, RenderError> {
        let rendered = render(&chat(turns), &template(template_text), train_on)?;
        Ok(rendered.trained.iter().map(|span| rendered.text[span.clone()].to_owned()).collect())
    }

    const TURNS: [(&str, &str); 5] =
        [("system", "s"), ("user", "a?"), ("assistant", "b "), ("user", "c?"), ("assistant", "é")];
    const CHATML: &str = "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}</end>\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}";

    #[test]
    fn a_turn_is_what_follows_its_invitation_to_its_end() {
        assert_eq!(trained(CHATML, &TURNS, TrainOn::Answers).unwrap(), ["b </end>", "é</end>"]);
        let all = trained(CHATML, &TURNS[..2], TrainOn::All).unwrap();
        assert_eq!(all, ["<system>\ns</end>\n<user>\na?</end>\n"]);
        let lines = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
        assert_eq!(trained(lines, &TURNS, TrainOn::Answers).unwrap(), ["b \n", "é\n"]);
        assert!(trained(CHATML, &TURNS[..2], TrainOn::Answers).unwrap().is_empty());
        assert_eq!(trained(CHATML, &[("user", "a"), ("assistant", "")], TrainOn::Answers).unwrap(), ["</end>"]);
    }

    #[test]
    fn what_ends_a_whole_chat_is_no_part_of_an_answer() {
        let ended = CHATML.replace("{% endif %}", "{% else %}<eos>{% endif %}");
        assert_eq!(trained(&ended, &TURNS, TrainOn::Answers).unwrap(), ["b </end>", "é</end>"]);
        let text = render(&chat(&TURNS), &template(&ended), TrainOn::All).unwrap().text;
        assert!(text.ends_with("é</end>\n<eos>"), "{text}");
    }

    #[test]
    fn markers_say_what_is_generated_and_leave_no_trace() {
        let marked = "{% for m in messages %}\n{% if m.role == 'assistant' %}\n<a>{%- generation -%}\n {{ m.content }}</a>\n{%- endgeneration %}\n\n{% else %}\n<u>{{ m.content }}\n{% endif %}\n{% endfor %}";
        assert_eq!(trained(marked, &TURNS, TrainOn::Answers).unwrap(), ["b </a>", "é</a>"]);
        let plain =
            marked.replace("{%- generation -%}", "{%- if true -%}").replace("{%- endgeneration %}", "{%- endif %}");
        let text = |template_text: &str| render(&chat(&TURNS), &template(template_text), TrainOn::All).unwrap().text;
        assert_eq!(text(marked), text(&plain));
        assert!(!text(marked).contains([BEGIN, END]));
    }

    #[test]
    fn a_template_whose_texts_do_not_extend_one_another_is_refused() {
        let last_alone = "{% for m in messages %}{{ m.role }}{{ m.content if loop.last else '' }};{% endfor %}";
        assert_eq!(trained(last_alone, &TURNS, TrainOn::Answers), Err(RenderError::NotPrefixStable(3)));
        let thinks = CHATML.replace("<assistant>\n{% endif %}", "<assistant>\n<think>\n{% endif %}");
        assert_eq!(trained(&thinks, &TURNS, TrainOn::Answers), Err(RenderError::NotPrefixStable(3)));
        assert!(trained(&thinks, &TURNS, TrainOn::All).is_ok());
    }

    #[test]
    fn a_token_is_trained_on_if_any_of_its_bytes_is() {
        let rendered = Rendered { text: "0123456789".to_owned(), trained: vec![2..4, 6..7] };
        let trained: Vec<usize> = (0..10).filter(|&at| rendered.is_trained(&(at..at + 1))).collect();
        assert_eq!(trained, [2, 3, 6]);
        assert!(rendered.is_trained(&(0..3)) && rendered.is_trained(&(3..6)) && !rendered.is_trained(&(4..6)));
        assert!(!rendered.is_trained(&(7..10)));
    }
}
