//! Chat templates: Jinja that renders messages as the text a model was trained on, with the semantics of
//! `transformers`.
//! Not here: locating templates (`template_file.rs`), and the trained parts (`spans.rs`).
//!
//! A template comes with a model from an untrusted author: the size of the chat limits its time and memory.

use super::Date;
use super::marks::{BEGIN, END, LOOP, LOOP_END, TURN, Unmarked};
use super::template_file::{TemplateFile, template_file};
use crate::{DataError, Tokenizer};
use plimsoll_jinja::{Host, Limits, Marks, Template, Value, Weight};
use std::path::{Path, PathBuf};

/// Base limit on steps for rendering a chat once; a step covers 64 bytes read or written: 32 MB.
const STEPS: u64 = 500_000;
/// Additional steps per value in the chat, and per byte of its text.
const STEPS_PER_NODE: u64 = 400;
const STEPS_PER_BYTE: u64 = 1;
/// Base limit on a template's output beyond the chat's own text, since tokenizing multiplies it: real templates write
/// up to 20 KB.
const TEXT_BYTES: u64 = 512 << 10;
const TEXT_BYTES_PER_BYTE: u64 = 8;

const MARKS: Marks = Marks { generation: [BEGIN, END], iterations: [LOOP, TURN, LOOP_END] };

/// ChatML, for tokenizers without a template: its marks are plain text to them. The tokenizer's separator follows each
/// chat; a model ends its answer with it.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
                      {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Why a template can't render a chat: the error it raised, or the limit it exceeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TemplateError(pub String);

/// A chat template that any thread can use.
pub struct ChatTemplate {
    template: Template,
    text: String,
    file: Option<PathBuf>,
    /// By their names in tokenizer_config.json.
    special_tokens: Vec<(String, String)>,
    date: Date,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("file", &self.file).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// The template in `file`; by default the tokenizer's, stored next to it as chat_template.jinja or in
    /// tokenizer_config.json; otherwise ChatML. `date` is the current date for the template.
    /// Errors: `BadChatTemplate`, `NotFound`, `Unreadable`, `FileTooLong`.
    pub fn open(tokenizer: &Tokenizer, file: Option<&Path>, date: Date) -> Result<Self, DataError> {
        let found = template_file(tokenizer.spec(), file)?;
        let special_tokens = found.special_tokens.clone();
        let chatml = || Self::new(CHATML.to_owned(), None, special_tokens, date).expect("a template that is built in");
        Ok(Self::of_file(found, date)?.unwrap_or_else(chatml))
    }

    /// The template that comes with the tokenizer; `None` without one. Errors: those of [`ChatTemplate::open`].
    pub fn own(tokenizer: &Tokenizer, date: Date) -> Result<Option<Self>, DataError> {
        Self::of_file(template_file(tokenizer.spec(), None)?, date)
    }

    fn of_file(found: TemplateFile, date: Date) -> Result<Option<Self>, DataError> {
        let TemplateFile { path, text, special_tokens } = found;
        let Some(text) = text else { return Ok(None) };
        let template = Self::new(text, Some(path.clone()), special_tokens, date);
        template.map(Some).map_err(|message| DataError::BadChatTemplate { path, message })
    }

    /// ChatML, even if the tokenizer has a template.
    pub fn chatml(date: Date) -> Self {
        Self::new(CHATML.to_owned(), None, Vec::new(), date).expect("a template that is built in")
    }

    fn new(
        text: String,
        file: Option<PathBuf>,
        special_tokens: Vec<(String, String)>,
        date: Date,
    ) -> Result<Self, String> {
        let template = Template::new(&text).map_err(|error| error.to_string())?;
        Ok(Self { template, text, file, special_tokens, date })
    }

    /// The file that it was read from; `None` for ChatML, which is built in.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The template's source.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is the template that comes with a tokenizer.
    pub(crate) fn is_of(&self, tokenizer: &Tokenizer) -> bool {
        template_file(tokenizer.spec(), None).is_ok_and(|own| own.text.as_ref() == Some(&self.text))
    }

    /// Whether the template marks the assistant's generated text.
    pub(super) fn marks_generation(&self) -> bool {
        self.template.marks_generation()
    }

    /// Whether the template can write an invitation for the assistant.
    pub(super) fn invites(&self) -> bool {
        self.text.contains("add_generation_prompt")
    }

    /// Whether a separator follows each chat.
    pub(crate) fn ends_with_separator(&self) -> bool {
        self.text == CHATML
    }

    /// What determines its output, for the key of a cache.
    pub(super) fn identity(&self) -> String {
        let date = self.text.contains("strftime_now").then_some(self.date);
        format!("{:?} {:?} {:?} {:?}", self.text, self.special_tokens, date, self.ends_with_separator())
    }

    /// Renders messages with marks (`marks.rs`), followed by an invitation for the assistant if requested.
    pub(super) fn render(&self, messages: &[Value], tools: &Value, invite: bool) -> Result<String, TemplateError> {
        let messages = Value::list(messages.to_vec());
        let Weight { nodes, bytes } = messages.weight() + tools.weight();
        let strftime_now = |format: &str| {
            let unknown = |directive| format!("strftime_now does not know {directive}");
            self.date.strftime(format).map_err(unknown)
        };
        let steps = STEPS + STEPS_PER_NODE * nodes + STEPS_PER_BYTE * bytes;
        let host = Host { strftime_now: &strftime_now, marks: Some(MARKS), limits: Limits { steps } };
        let mut variables: Vec<(&str, Value)> = vec![
            ("messages", messages),
            ("tools", tools.clone()),
            ("documents", Value::None),
            ("add_generation_prompt", Value::Bool(invite)),
        ];
        let special_tokens = self.special_tokens.iter();
        variables.extend(special_tokens.map(|(name, token)| (name.as_str(), Value::from(token.as_str()))));
        let failed = |error: plimsoll_jinja::Error| TemplateError(error.to_string());
        let text = self.template.render(&variables, &host).map_err(failed)?;
        let text_bytes_max = TEXT_BYTES + TEXT_BYTES_PER_BYTE * bytes;
        if text.len() as u64 > text_bytes_max {
            let problem =
                format!("its text has {} bytes, more than {text_bytes_max} for a chat of this size", text.len());
            return Err(TemplateError(problem));
        }
        if self.template.generates_in_values() {
            let host = Host { marks: None, ..host };
            let unmarked = self.template.render(&variables, &host).map_err(failed)?;
            if Unmarked::of(&text).text != unmarked {
                let problem = "the template changes a text that holds a `{% generation %}` block";
                return Err(TemplateError(problem.to_owned()));
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
impl ChatTemplate {
    /// A template as if read from a file.
    pub(super) fn of_text(text: &str, date: Date) -> Result<Self, String> {
        Self::new(text.to_owned(), Some(PathBuf::from("test.jinja")), Vec::new(), date)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenizerSpec;

    fn rendered(text: &str) -> Result<String, String> {
        let date = "2024-07-26".parse().unwrap();
        let message = Value::dict([("role", "user"), ("content", " Hi <b> ")]);
        let template = ChatTemplate::of_text(text, date)?;
        let marked = template.render(&[message], &Value::None, true).map_err(|TemplateError(message)| message)?;
        Ok(Unmarked::of(&marked).text)
    }

    #[test]
    fn templates_see_the_same_context_as_in_transformers() {
        for (text, expected) in [
            ("{{ messages[0]['content'].strip() }}|{{ messages[0].content | trim }}", "Hi <b>|Hi <b>"),
            ("{%- for m in messages -%}\n  {%- if loop.first %}a{% continue %}{% endif %}b{%- endfor %}", "a"),
            ("  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
            ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": " Hi <b> "}"#),
            ("{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}", "26 Jul 2024"),
            (
                "{{ tools is none }} {{ documents }} {{ bos_token is defined }} {{ add_generation_prompt }}",
                "True None False True",
            ),
            (
                "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
                "3",
            ),
            ("{{ messages[1:] | length }}{{ messages[-1].role }}{{ 'a\\nb'.split('\\n')[-1] }}", "0userb"),
            (
                "{{ none is iterable }} {{ 'a' is iterable }} {{ [] is iterable }} {{ 1 is iterable }}",
                "False True True False",
            ),
            (
                "{{ '%d of %s' % (messages | length, 'a') }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 * 7 % 4 + 1 }}",
                "1 of a 2 -2 3",
            ),
            ("{{ 'xab'.removeprefix('x') }}{{ 'abx'.removesuffix('x') }}{{ '-7'.zfill(4) }}", "abab-007"),
            (
                "{{ 'a=b=c'.partition('=')[2] }} {{ 'a=b=c'.rpartition('=')[0] }} {{ 'a=b=c'.rsplit('=', 1)[0] }}",
                "b=c a=b a=b",
            ),
            ("a\r\n{% if 1 %}\r\nb\r{% endif %}c", "a\nb\nc"),
            ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('y') }}{% raw %}{{ }}{% endraw %}", "[y]{{ }}"),
        ] {
            assert_eq!(rendered(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_raised_exception_is_the_error() {
        let raised = rendered("\n{{ raise_exception('roles must alternate') }}");
        assert_eq!(raised, Err("roles must alternate (line 2 of the template)".to_owned()));
        assert!(rendered("{% for %}").is_err() && rendered("{{ nothing.at_all.there }}").is_err());
        assert!(rendered("{{ strftime_now('%Q') }}").unwrap_err().contains("does not know %Q"));
        assert!(rendered("{% include '/etc/passwd' %}").is_err());
    }

    #[test]
    fn endless_and_huge_templates_run_out_of_fuel() {
        let nested = "{% for a in range(99999) %}".repeat(4) + "x" + &"{% endfor %}".repeat(4);
        let doubling =
            "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}";
        let recursion = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        for text in [
            &nested,
            doubling,
            "{{ 'x' * 9999999999 }}",
            "{{ [0] * 999999999 }}",
            "{{ range(99999999) | list }}",
            recursion,
        ] {
            assert!(rendered(text).is_err(), "{text}");
        }
        assert!(rendered(&nested).unwrap_err().contains("more steps or memory"));
    }

    #[test]
    fn a_tokenizer_without_a_template_gets_chatml() {
        let tokenizer = Tokenizer::open(&TokenizerSpec::Gpt2).unwrap();
        let template = ChatTemplate::open(&tokenizer, None, Date::of_unix_seconds(0)).unwrap();
        let message = Value::dict([("role", "user"), ("content", "Hi")]);
        let text = Unmarked::of(&template.render(&[message], &Value::None, true).unwrap()).text;
        assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
        assert!(template.ends_with_separator() && template.file().is_none());
    }
}
