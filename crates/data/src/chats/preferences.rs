//! Preferences: two answers to one prompt, of which one was chosen. Each example becomes two sequences of tokens, with the
//! answers' tokens marked as trained.
//! Not here: single answers with a label (`judged.rs`), the kinds of preference data (`preference_data.rs`), the cache of tokens (`prepare.rs`), and batches
//! (`../preferences.rs`).
//!
//! A prompt that is not given is what both answers begin with, as in `extract_prompt` of TRL. Texts are not rendered; lists
//! of messages are rendered with the chat template. As in TRL's `DPOTrainer`, an answer begins with the first token in which
//! the tokens of the prompt alone and those of the prompt with an answer differ, for either answer.

use super::ChatTemplate;
use super::format::{ChatError, ChatFormat, Fields, list_of_turns, message};
use super::marks::Unmarked;
use super::preference_data::PreferenceData;
use super::render_error::RenderError;
use super::spans::TEXT_BYTES_MAX;
use super::template::TemplateError;
use plimsoll_jinja::Value;
use plimsoll_units::Bytes;

/// An example as text: the prompt, and the prompt with each answer, the chosen one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Compared {
    pub prompt: String,
    pub answered: [String; 2],
    /// Whether the texts are not rendered, so that the end token of an answer is missing.
    pub is_text: bool,
}

/// The names of the answers' fields.
const ANSWERS: [&str; 2] = ["chosen", "rejected"];

impl Fields {
    /// How the row stores an example: `Completion` for texts, `Messages` for lists of messages. Errors: it has no example.
    pub(super) fn compared_format(&self) -> Result<ChatFormat, ChatError> {
        let [chosen, rejected] = self.answers().map_err(ChatError::NotAChat)?;
        let is_text = |value: &Value| value.as_str().is_some() && list_of_turns(value).is_none();
        match [chosen, rejected].map(is_text) {
            [true, true] => Ok(ChatFormat::Completion),
            [false, false] => Ok(ChatFormat::Messages),
            _ => Err(ChatError::NotAChat("one of `chosen` and `rejected` is text and the other is not".to_owned())),
        }
    }

    /// Both answers. Errors: one is absent.
    fn answers(&self) -> Result<[&Value; 2], String> {
        if self.preferences() == Some(PreferenceData::Judged) {
            return Err("it has one answer with a `label`, not `chosen` and `rejected`".to_owned());
        }
        let [chosen, rejected] = [&self.chosen, &self.rejected].map(Option::as_ref);
        let present = |field: Option<&Value>| field.is_some_and(|field| !field.is_none());
        match [present(chosen), present(rejected)] {
            [true, true] => Ok([chosen, rejected].map(|answer| answer.expect("both are present"))),
            [true, false] => Err("it has no `rejected`".to_owned()),
            [false, true] => Err("it has no `chosen`".to_owned()),
            [false, false] => Err("it has neither `chosen` nor `rejected`".to_owned()),
        }
    }

    /// The texts of an example. Errors: the row has another format, lacks an answer, or both are the same; the template
    /// fails.
    pub(super) fn compared(&self, format: ChatFormat, template: &ChatTemplate) -> Result<Compared, CompareError> {
        let found = self.compared_format()?;
        if found != format {
            let of = |format| if format == ChatFormat::Completion { "texts" } else { "lists of messages" };
            return Err(not_compared(format!("its answers are {}, not {}", of(found), of(format))));
        }
        match format {
            ChatFormat::Completion => self.compared_texts().map_err(not_compared),
            _ => self.compared_chats(template),
        }
    }

    fn compared_texts(&self) -> Result<Compared, String> {
        let [chosen, rejected] = self.answers()?.map(|answer| answer.as_str().unwrap_or_default());
        let (prompt, answers) = match self.prompt.as_ref().filter(|prompt| !prompt.is_none()) {
            Some(prompt) => {
                (prompt.as_str().ok_or("its `prompt` is not text, but its answers are")?, [chosen, rejected])
            }
            None => {
                let shared = shared_text(chosen, rejected);
                (&chosen[..shared], [&chosen[shared..], &rejected[shared..]])
            }
        };
        for (answer, name) in answers.iter().zip(ANSWERS) {
            if answer.trim().is_empty() {
                return Err(format!("its `{name}` is empty"));
            }
        }
        if answers[0] == answers[1] {
            return Err(SAME.to_owned());
        }
        let answered = answers.map(|answer| format!("{prompt}{answer}"));
        Ok(Compared { prompt: prompt.to_owned(), answered, is_text: true })
    }

    fn compared_chats(&self, template: &ChatTemplate) -> Result<Compared, CompareError> {
        let (prompt, answers) = self.messages_of_example().map_err(not_compared)?;
        let invited = if prompt.is_empty() { String::new() } else { self.rendered(prompt.clone(), true, template)? };
        let rendered = |answer| self.rendered([prompt.clone(), answer].concat(), false, template);
        let [chosen, rejected] = answers.map(rendered);
        Ok(Compared { prompt: invited, answered: [chosen?, rejected?], is_text: false })
    }

    /// The text of messages, with the row's tools; if `invite`, followed by the beginning of an answer.
    pub(super) fn rendered(
        &self,
        messages: Vec<Value>,
        invite: bool,
        template: &ChatTemplate,
    ) -> Result<String, CompareError> {
        let chat = self.with_messages(messages).conversation(ChatFormat::Messages)?;
        let marked = match (template.render(&chat.messages, &chat.tools, invite), &chat.with_texts) {
            (Err(_), Some(messages)) => template.render(messages, &chat.tools, invite),
            (marked, _) => marked,
        };
        let marked = marked.map_err(RenderError::Template)?;
        if marked.len() > TEXT_BYTES_MAX {
            return Err(RenderError::TooLong(Bytes(TEXT_BYTES_MAX as u64)).into());
        }
        Ok(Unmarked::of(&marked).text)
    }

    /// The messages of the prompt, and those of each answer.
    fn messages_of_example(&self) -> Result<(Vec<Value>, [Vec<Value>; 2]), String> {
        let [chosen, rejected] = self.answers()?;
        let mut answers = [messages_of(chosen, ANSWERS[0])?, messages_of(rejected, ANSWERS[1])?];
        for (answer, name) in answers.iter().zip(ANSWERS) {
            if answer.is_empty() {
                return Err(format!("its `{name}` is empty"));
            }
        }
        let [good, bad] = &answers;
        if good.len() == bad.len() && good.iter().zip(bad).all(|(a, b)| is_same(a, b)) {
            return Err(SAME.to_owned());
        }
        let prompt = self.prompt.as_ref().filter(|prompt| !prompt.is_none());
        let shared = shared_messages(&answers);
        let is_list = prompt.is_some_and(|prompt| list_of_turns(prompt).is_some());
        // Some data sets repeat the last question as text next to whole chats.
        let prompt = match prompt.and_then(Value::as_str) {
            Some(text) if !is_list && shared == 0 => vec![message("user", text.to_owned())],
            _ if is_list => messages_of(prompt.expect("it is a list"), "prompt")?,
            _ => {
                let prompt = answers[0][..shared].to_vec();
                answers.iter_mut().for_each(|answer| drop(answer.drain(..shared)));
                prompt
            }
        };
        let has_text = |message: &Value| {
            let is_blank = message.get("content").and_then(Value::as_str).is_some_and(|text| text.trim().is_empty());
            !is_blank || message.get("tool_calls").is_some_and(Value::is_true)
        };
        for (answer, name) in answers.iter().zip(ANSWERS) {
            if !answer.iter().any(has_text) {
                return Err(format!("its `{name}` is empty"));
            }
        }
        Ok((prompt, answers))
    }
}

/// The messages of a field. Errors: it is not a list of them.
pub(super) fn messages_of(field: &Value, name: &str) -> Result<Vec<Value>, String> {
    let turns = list_of_turns(field).ok_or(format!("its `{name}` is neither text nor a list of messages"))?;
    Ok(turns.as_list().unwrap_or_default().to_vec())
}

const SAME: &str = "its `chosen` and `rejected` are the same";

/// Bytes that both texts begin with, so that neither rest is empty, and without a space at the end: it belongs to the first
/// token of an answer.
fn shared_text(a: &str, b: &str) -> usize {
    let same = a.char_indices().zip(b.chars()).take_while(|((_, a), b)| a == b);
    let last = same.last().map_or(0, |((at, last), _)| at + last.len_utf8());
    let shared = match last == a.len().min(b.len()) {
        true => a[..last].char_indices().next_back().map_or(0, |(at, _)| at),
        false => last,
    };
    shared - usize::from(a[..shared].ends_with(' '))
}

/// Messages that both answers begin with, so that neither rest is empty.
fn shared_messages([a, b]: &[Vec<Value>; 2]) -> usize {
    let same = a.iter().zip(b).take_while(|(a, b)| is_same(a, b)).count();
    same.min(a.len().min(b.len()) - 1)
}

/// Whether two values of JSON are the same.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => a == b,
        _ => match (a.as_list().zip(b.as_list()), a.as_dict().zip(b.as_dict())) {
            (Some((a, b)), _) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
            (_, Some((a, b))) => {
                let pairs = a.iter().zip(b.iter());
                a.iter().count() == b.iter().count()
                    && pairs.into_iter().all(|((k, v), (l, w))| is_same(k, l) && is_same(v, w))
            }
            _ => a.as_str().is_some() && a.as_str() == b.as_str(),
        },
    }
}

/// Why a row is not an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CompareError {
    Row(ChatError),
    Render(RenderError),
}

pub(super) fn not_compared(message: String) -> CompareError {
    CompareError::Row(ChatError::NotAChat(message))
}

impl From<ChatError> for CompareError {
    fn from(error: ChatError) -> Self {
        Self::Row(error)
    }
}

impl From<RenderError> for CompareError {
    fn from(error: RenderError) -> Self {
        Self::Render(error)
    }
}

impl From<TemplateError> for CompareError {
    fn from(error: TemplateError) -> Self {
        Self::Render(RenderError::Template(error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Date;
    use super::*;

    fn read(row: &str) -> Result<[String; 3], String> {
        let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let template = ChatTemplate::of_text(template, Date::of_unix_seconds(0)).unwrap();
        let fields = Fields::of_row(row).unwrap().unwrap();
        let compared =
            fields.compared_format().map_err(CompareError::from).and_then(|format| fields.compared(format, &template));
        match compared {
            Ok(Compared { prompt, answered: [chosen, rejected], .. }) => Ok([prompt, chosen, rejected]),
            Err(CompareError::Row(error)) => Err(error.into_words()),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn texts_have_a_prompt_or_begin_with_it() {
        let row = r#"{"prompt":"Deep?","chosen":" Yes.","rejected":" No."}"#;
        assert_eq!(read(row).unwrap(), ["Deep?", "Deep? Yes.", "Deep? No."]);
        let row = r#"{"chosen":"Deep? Yes.","rejected":"Deep? No."}"#;
        assert_eq!(read(row).unwrap(), ["Deep?", "Deep? Yes.", "Deep? No."]);
        // Neither answer is empty.
        assert_eq!(read(r#"{"chosen":"ab","rejected":"abc"}"#).unwrap(), ["a", "ab", "abc"]);
        assert_eq!(read(r#"{"chosen":"é","rejected":"è"}"#).unwrap(), ["", "é", "è"]);
    }

    #[test]
    fn chats_have_a_prompt_or_begin_with_it() {
        let say = |role: &str, text: &str| format!(r#"{{"role":"{role}","content":"{text}"}}"#);
        let (user, good, bad) = (say("user", "q"), say("assistant", "a"), say("assistant", "b"));
        let expected =
            ["<user>q</end><assistant>", "<user>q</end><assistant>a</end>", "<user>q</end><assistant>b</end>"];
        for row in [
            format!(r#"{{"prompt":[{user}],"chosen":[{good}],"rejected":[{bad}]}}"#),
            format!(r#"{{"chosen":[{user},{good}],"rejected":[{user},{bad}]}}"#),
            format!(r#"{{"prompt":"q","chosen":[{user},{good}],"rejected":[{user},{bad}],"score_chosen":7}}"#),
            format!(r#"{{"prompt":"q","chosen":[{good}],"rejected":[{bad}]}}"#),
        ] {
            assert_eq!(read(&row).unwrap(), expected, "{row}");
        }
    }

    #[test]
    fn rows_that_are_no_examples_are_explained() {
        for (row, expected) in [
            (r#"{"prompt":"a","chosen":"b"}"#, "it has no `rejected`"),
            (r#"{"prompt":"a","chosen":null,"rejected":"b"}"#, "it has no `chosen`"),
            (r#"{"prompt":"a"}"#, "it has neither `chosen` nor `rejected`"),
            (r#"{"prompt":"a","chosen":"b","rejected":"b"}"#, SAME),
            (r#"{"prompt":"a","chosen":" ","rejected":"b"}"#, "its `chosen` is empty"),
            (
                r#"{"prompt":"a","chosen":"b","rejected":[]}"#,
                "one of `chosen` and `rejected` is text and the other is not",
            ),
            (r#"{"chosen":[],"rejected":[{"role":"user","content":"b"}]}"#, "its `chosen` is empty"),
            (r#"{"chosen":7,"rejected":8}"#, "its `chosen` is neither text nor a list of messages"),
            (r#"{"prompt":["a"],"chosen":"b","rejected":"c"}"#, "its `prompt` is not text, but its answers are"),
            (
                r#"{"prompt":"a","completion":"b","label":true}"#,
                "it has one answer with a `label`, not `chosen` and `rejected`",
            ),
            (
                r#"{"chosen":[{"role":"assistant","content":""}],"rejected":[{"role":"assistant","content":"b"}]}"#,
                "its `chosen` is empty",
            ),
        ] {
            assert_eq!(read(row).unwrap_err(), expected, "{row}");
        }
        let no_role = r#"{"chosen":[{"content":"a"}],"rejected":[{"content":"b"}]}"#;
        assert!(read(no_role).is_err(), "{:?}", read(no_role));
    }
}
