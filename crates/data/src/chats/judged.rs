//! Judged answers: a prompt with one answer, which is liked or not. Each example becomes one sequence of tokens.
//! Not here: two answers to one prompt (`preferences.rs`), and the cache of tokens (`prepare.rs`).
//!
//! Texts are not rendered; lists of messages are rendered with the chat template.

use super::ChatTemplate;
use super::format::{ChatError, ChatFormat, Fields, list_of_turns, message};
use super::preferences::{CompareError, messages_of, not_compared};
use plimsoll_jinja::Value;

/// An example as text: the prompt, and the prompt with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judged {
    pub prompt: String,
    pub answered: String,
    pub is_liked: bool,
    /// Whether the texts are not rendered, so that the end token of an answer is missing.
    pub is_text: bool,
}

impl Fields {
    /// How the row stores an example: `Completion` for texts, `Messages` for lists of messages. Errors: it has no example.
    pub(super) fn judged_format(&self) -> Result<ChatFormat, ChatError> {
        let (_, completion, _) = self.judged_fields().map_err(ChatError::NotAChat)?;
        let is_text = completion.as_str().is_some() && list_of_turns(completion).is_none();
        Ok(if is_text { ChatFormat::Completion } else { ChatFormat::Messages })
    }

    /// The prompt, its answer, and whether that is liked. Errors: one is absent, or the label is not a boolean.
    fn judged_fields(&self) -> Result<(&Value, &Value, bool), String> {
        let present = |field| Option::as_ref(field).filter(|field: &&Value| !field.is_none());
        if present(&self.completion).is_none() && present(&self.chosen).is_some() {
            return Err("it has `chosen`, not one answer with a `label`".to_owned());
        }
        let completion = present(&self.completion).ok_or("it has no `completion`")?;
        let prompt = present(&self.prompt).ok_or("it has no `prompt`")?;
        match present(&self.label).ok_or("it has no `label`")? {
            Value::Bool(is_liked) => Ok((prompt, completion, *is_liked)),
            _ => Err("its `label` is not true or false".to_owned()),
        }
    }

    /// The texts of an example. Errors: the row has another format, or lacks a field; the template fails.
    pub(super) fn judged(&self, format: ChatFormat, template: &ChatTemplate) -> Result<Judged, CompareError> {
        let (prompt, completion, is_liked) = self.judged_fields().map_err(not_compared)?;
        let found = self.judged_format()?;
        if found != format {
            let of = |format| if format == ChatFormat::Completion { "a text" } else { "a list of messages" };
            return Err(not_compared(format!("its `completion` is {}, not {}", of(found), of(format))));
        }
        if let (ChatFormat::Completion, Some(answer)) = (format, completion.as_str()) {
            let text = "its `prompt` is not text, but its `completion` is";
            let prompt = prompt.as_str().ok_or_else(|| not_compared(text.to_owned()))?.to_owned();
            if answer.trim().is_empty() {
                return Err(not_compared(EMPTY.to_owned()));
            }
            return Ok(Judged { answered: format!("{prompt}{answer}"), prompt, is_liked, is_text: true });
        }
        let answer = messages_of(completion, "completion").map_err(not_compared)?;
        if answer.is_empty() {
            return Err(not_compared(EMPTY.to_owned()));
        }
        let prompt = match prompt.as_str() {
            Some(text) if list_of_turns(prompt).is_none() => vec![message("user", text.to_owned())],
            _ => messages_of(prompt, "prompt").map_err(not_compared)?,
        };
        let invited = self.rendered(prompt.clone(), true, template)?;
        let answered = self.rendered([prompt, answer].concat(), false, template)?;
        Ok(Judged { prompt: invited, answered, is_liked, is_text: false })
    }
}

const EMPTY: &str = "its `completion` is empty";

#[cfg(test)]
mod tests {
    use super::super::Date;
    use super::*;

    fn read(row: &str) -> Result<(String, String, bool), String> {
        let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let template = ChatTemplate::of_text(template, Date::of_unix_seconds(0)).unwrap();
        let fields = Fields::of_row(row).unwrap().unwrap();
        match fields.judged_format().map_err(CompareError::from).and_then(|format| fields.judged(format, &template)) {
            Ok(Judged { prompt, answered, is_liked, .. }) => Ok((prompt, answered, is_liked)),
            Err(CompareError::Row(error)) => Err(error.into_words()),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn answers_are_texts_or_messages() {
        let texts = read(r#"{"prompt":"Deep?","completion":" Yes.","label":true}"#).unwrap();
        assert_eq!(texts, ("Deep?".to_owned(), "Deep? Yes.".to_owned(), true));
        let chat = ("<user>q</end><assistant>".to_owned(), "<user>q</end><assistant>a</end>".to_owned(), false);
        for prompt in [r#"[{"role":"user","content":"q"}]"#, r#""q""#] {
            let row =
                format!(r#"{{"prompt":{prompt},"completion":[{{"role":"assistant","content":"a"}}],"label":false}}"#);
            assert_eq!(read(&row).unwrap(), chat, "{row}");
        }
    }

    #[test]
    fn rows_that_are_not_examples_are_explained() {
        for (row, expected) in [
            (r#"{"prompt":"a","completion":"b"}"#, "it has no `label`"),
            (r#"{"prompt":"a","completion":"b","label":null}"#, "it has no `label`"),
            (r#"{"prompt":"a","completion":"b","label":1}"#, "its `label` is not true or false"),
            (r#"{"prompt":"a","completion":"b","label":"true"}"#, "its `label` is not true or false"),
            (r#"{"completion":"b","label":true}"#, "it has no `prompt`"),
            (r#"{"prompt":"a","label":true}"#, "it has no `completion`"),
            (r#"{"prompt":"a","completion":" ","label":true}"#, EMPTY),
            (r#"{"prompt":"a","completion":[],"label":true}"#, EMPTY),
            (
                r#"{"prompt":"a","completion":7,"label":true}"#,
                "its `completion` is neither text nor a list of messages",
            ),
            (r#"{"prompt":["a"],"completion":"b","label":true}"#, "its `prompt` is not text, but its `completion` is"),
            (r#"{"prompt":"a","chosen":"b","rejected":"c"}"#, "it has `chosen`, not one answer with a `label`"),
        ] {
            assert_eq!(read(row).unwrap_err(), expected, "{row}");
        }
    }
}
