//! Chats for a model to answer: the prompt, and the tokens and texts that end the answer.
//! Not here: the templates themselves (`template.rs`), and training chats (`prepare.rs`).

use super::format::{ChatError, Conversation, Fields, message, without_marks};
use super::marks::Unmarked;
use super::spans::render;
use super::template::TemplateError;
use super::{ChatFormat, ChatTemplate, TrainOn};
use crate::Tokenizer;
use plimsoll_jinja::Value;

/// The messages so far.
#[derive(Debug, Clone)]
pub struct Chat {
    messages: Vec<Value>,
    tools: Value,
}

/// The ends of an answer: ids, and texts for templates that do not end a turn with a single token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerEnds {
    /// Tokens that end an answer.
    pub ids: Vec<u32>,
    /// Texts that end an answer.
    pub texts: Vec<String>,
}

impl Chat {
    /// A chat without turns. Errors: the system message contains noncharacters of Unicode.
    pub fn new(system: Option<&str>) -> Result<Self, String> {
        let mut chat = Self { messages: Vec::new(), tools: Value::None };
        system.map_or(Ok(()), |text| chat.push("system", text))?;
        Ok(chat)
    }

    /// Parses JSON: a list of messages, or an object with `messages` and optionally `tools`. Errors: other JSON, in
    /// words.
    pub fn of_json(text: &str) -> Result<Self, String> {
        let is_list = text.trim_start().starts_with('[');
        let wrapped = if is_list { format!("{{\"messages\":{text}}}") } else { text.to_owned() };
        let fields = Fields::of_row(&wrapped).map_err(ChatError::into_words)?;
        let chat = fields.ok_or("it is empty")?.conversation(ChatFormat::Messages);
        let Conversation { messages, tools, .. } = chat.map_err(ChatError::into_words)?;
        Ok(Self { messages, tools })
    }

    /// Adds a message. Errors: it contains noncharacters of Unicode, which mark positions in templates.
    pub fn push(&mut self, role: &str, text: &str) -> Result<(), String> {
        without_marks(text)?;
        self.messages.push(message(role, text.to_owned()));
        Ok(())
    }

    /// The text of the last message; empty if it has none.
    pub fn last_text(&self) -> &str {
        self.messages.last().and_then(|last| last.get("content")?.as_str()).unwrap_or_default()
    }

    /// Removes the oldest question and its answer. Returns false if there is nothing to remove: the last question and
    /// the system message stay.
    pub fn drop_oldest_turn(&mut self) -> bool {
        let is_from = |role: &str, message: &Value| message.get("role").and_then(Value::as_str) == Some(role);
        let first = usize::from(self.messages.first().is_some_and(|message| is_from("system", message)));
        let next = (first + 1..self.messages.len()).find(|&at| is_from("user", &self.messages[at]));
        next.map(|next| self.messages.drain(first..next)).is_some()
    }
}

impl AnswerEnds {
    /// The ends of a tokenizer alone.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        Self { ids: tokenizer.ends(), texts: Vec::new() }
    }

    /// Adds an id unless it is already present.
    pub fn add(&mut self, id: u32) {
        if !self.ids.contains(&id) {
            self.ids.push(id);
        }
    }
}

impl ChatTemplate {
    /// The prompt for an answer to a chat. Errors: the template's message about the chat.
    pub fn prompt(&self, chat: &Chat) -> Result<String, String> {
        let marked = self.render(&chat.messages, &chat.tools, true).map_err(|TemplateError(message)| message)?;
        Ok(Unmarked::of(&marked).text)
    }

    /// The ends of an answer: the tokenizer's ends, and the text that the template writes after an answer, both as the
    /// last message and elsewhere.
    pub fn answer_ends(&self, tokenizer: &Tokenizer) -> AnswerEnds {
        let mut ends = AnswerEnds::of(tokenizer);
        for turns in [1, 2] {
            for end in self.ends_of_turns(turns) {
                let first = tokenizer.encode(end.as_bytes()).ok().and_then(|ids| ids.first().copied());
                match first.filter(|&id| tokenizer.is_special(id)) {
                    Some(id) => ends.add(id),
                    None if ends.texts.contains(&end) => {}
                    None => ends.texts.push(end),
                }
            }
        }
        ends
    }

    /// The text after each answer of a chat of questions and answers, without white space; empty if the template
    /// refuses the chat or does not show where answers end.
    fn ends_of_turns(&self, turns: usize) -> Vec<String> {
        const ANSWER: &str = "an answer";
        let turn = [message("user", "a question".to_owned()), message("assistant", ANSWER.to_owned())];
        let chat =
            Conversation { messages: vec![turn; turns].concat(), tools: Value::None, with_texts: None, prompt: 0 };
        let Ok(rendered) = render(&chat, self, TrainOn::Answers) else { return Vec::new() };
        let ends = rendered.trained.iter().filter_map(|span| {
            let (_, end) = rendered.text[span.clone()].rsplit_once(ANSWER)?;
            Some(end.trim().to_owned()).filter(|end| !end.is_empty())
        });
        ends.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Date;
    use super::*;
    use crate::TokenizerSpec;
    use crate::tokenizer::tests::file_with_tokens;

    fn template(text: &str) -> ChatTemplate {
        ChatTemplate::of_text(text, Date::of_unix_seconds(0)).unwrap()
    }

    const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    #[test]
    fn a_prompt_asks_for_an_answer() {
        let mut chat = Chat::new(Some("s")).unwrap();
        chat.push("user", "a").unwrap();
        let asked = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(template(CHATML).prompt(&chat).unwrap(), asked);
        let list = r#" [{"role":"system","content":"s"},{"role":"user","content":"a"}]"#;
        for json in [list.to_owned(), format!(r#"{{"messages":{list}}}"#)] {
            let chat = Chat::of_json(&json).unwrap();
            assert_eq!((template(CHATML).prompt(&chat).unwrap().as_str(), chat.last_text()), (asked, "a"));
        }
        for bad in ["", "7", "[]", "{}", r#"[{"role":"user"}]"#, "[", r#"[{"content":"a"}]"#] {
            assert!(Chat::of_json(bad).is_err(), "{bad}");
        }
        assert!(chat.push("user", "\u{fdd0}").is_err());
        assert!(template("{{ raise_exception('no') }}").prompt(&chat).unwrap_err().contains("no"));
    }

    #[test]
    fn the_oldest_turns_are_dropped_but_not_the_system_message_or_the_last() {
        let mut chat = Chat::new(Some("s")).unwrap();
        for (role, text) in [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")] {
            chat.push(role, text).unwrap();
        }
        let contents = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let mut seen = Vec::new();
        while chat.drop_oldest_turn() {
            seen.push(template(contents).prompt(&chat).unwrap());
        }
        assert_eq!(seen, ["scde", "se"]);
    }

    /// By the token that ends a turn if it is a single token; otherwise by its text.
    #[test]
    fn answers_end_as_the_template_ends_turns() {
        let folder = file_with_tokens(&["<|im_end|>", "<return>", "<end>"]);
        let file = Tokenizer::open(&TokenizerSpec::File(folder.path().to_owned())).unwrap();
        let bytes = Tokenizer::open(&TokenizerSpec::Bytes).unwrap();
        let ends = |text: &str, tokenizer: &Tokenizer| {
            let AnswerEnds { ids, texts } = template(text).answer_ends(tokenizer);
            (ids, texts)
        };
        let end = file.encode(b"<|im_end|><return><end>").unwrap();
        let eos = file.separator().unwrap();
        assert_eq!(ends(CHATML, &file), (vec![eos, end[0]], vec![]));
        assert_eq!(ends(CHATML, &bytes), (vec![0], vec!["<|im_end|>".to_owned()]));
        let two = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '<return>' if loop.last else '<end>' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        assert_eq!(ends(two, &file), (vec![eos, end[1], end[2]], vec![]));
        let marked = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{% generation %}{{ m.content }}<end>{% endgeneration %}{% endif %}{% endfor %}";
        assert_eq!(ends(marked, &file), (vec![eos, end[2]], vec![]));
        for nothing in ["{% for m in messages %}{{ m.content }}\n\n{% endfor %}", "{{ raise_exception('no') }}"] {
            assert_eq!(ends(nothing, &file), (vec![eos], vec![]), "{nothing}");
        }
    }
}
