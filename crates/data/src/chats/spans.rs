//! The text of a chat, and the parts of it that are trained on.
//!
//! A template may mark them: the text between `{% generation %}` and `{% endgeneration %}` is the assistant's.
//! Otherwise `answers.rs` finds the answers.
//!
//! Which tokens are trained on is decided here, and stored as a bit per token in the cache. The other tokens have -1 as their
//! target, like padding, which every device skips. So no kernel, plan or loop knows of chats.

use super::answers::{answers, is_answer};
use super::format::Conversation;
use super::marks::Unmarked;
use super::render_error::RenderError;
use super::template::ChatTemplate;
use plimsoll_jinja::Value;
use plimsoll_units::Bytes;
use std::ops::Range;

/// Limit on the text of a chat.
pub(super) const TEXT_BYTES_MAX: usize = 32 << 20;

/// The tokens of a chat to train on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainOn {
    /// The assistant's turns, with the tokens that end them.
    Answers,
    /// All tokens.
    All,
}

/// A chat as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rendered {
    pub text: String,
    /// The trained byte ranges: ascending, disjoint, never empty.
    pub trained: Vec<Range<usize>>,
}

impl Rendered {
    /// Whether a token with this byte range is trained on: true if any of its bytes is.
    pub(super) fn is_trained(&self, token: &Range<usize>) -> bool {
        let next = self.trained.partition_point(|span| span.end <= token.start);
        self.trained.get(next).is_some_and(|span| span.start < token.end)
    }
}

/// Renders a chat. Errors: the template fails; the text is too long, or does not show the trained parts.
pub(super) fn render(chat: &Conversation, template: &ChatTemplate, train_on: TrainOn) -> Result<Rendered, RenderError> {
    let marked = match (template.render(&chat.messages, &chat.tools, false), &chat.with_texts) {
        (Err(_), Some(messages)) => {
            let messages = messages.clone();
            let chat = Conversation { messages, tools: chat.tools.clone(), with_texts: None, prompt: chat.prompt };
            return render(&chat, template, train_on);
        }
        (marked, _) => marked?,
    };
    if marked.len() > TEXT_BYTES_MAX {
        return Err(RenderError::TooLong(Bytes(TEXT_BYTES_MAX as u64)));
    }
    let Unmarked { text, generated, .. } = Unmarked::of(&marked);
    let trained = match train_on {
        TrainOn::All => std::iter::once(0..text.len()).collect(),
        TrainOn::Answers if template.marks_generation() => after_prompt(chat, generated)?,
        TrainOn::Answers => answers(chat, template, &text)?,
    };
    Ok(Rendered { trained: trained.into_iter().filter(|span| !span.is_empty()).collect(), text })
}

/// The generated parts after the chat's prompt. Errors: it is unclear which answers are generated.
fn after_prompt(chat: &Conversation, generated: Vec<Range<usize>>) -> Result<Vec<Range<usize>>, RenderError> {
    let answers = |messages: &[Value]| messages.iter().filter(|message| is_answer(message)).count();
    let before = answers(&chat.messages[..chat.prompt]);
    match generated.len() == answers(&chat.messages) {
        true => Ok(generated[before..].to_vec()),
        false if before == 0 => Ok(generated),
        false => Err(RenderError::UnclearAnswer(chat.prompt + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Date;
    use super::super::format::{ChatFormat, Fields};
    use super::super::template::TemplateError;
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

    /// The trained texts of a chat.
    fn trained(template_text: &str, turns: &[(&str, &str)], train_on: TrainOn) -> Result<Vec<String>, RenderError> {
        let rendered = render(&chat(turns), &template(template_text), train_on)?;
        Ok(rendered.trained.iter().map(|span| rendered.text[span.clone()].to_owned()).collect())
    }

    const TURNS: [(&str, &str); 5] =
        [("system", "s"), ("user", "a?"), ("assistant", "b "), ("user", "c?"), ("assistant", "é")];
    const CHATML: &str = "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}</end>\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}";

    #[test]
    fn a_turn_reaches_from_its_invitation_to_its_end() {
        assert_eq!(trained(CHATML, &TURNS, TrainOn::Answers).unwrap(), ["b </end>", "é</end>"]);
        let all = trained(CHATML, &TURNS[..2], TrainOn::All).unwrap();
        assert_eq!(all, ["<system>\ns</end>\n<user>\na?</end>\n"]);
        let lines = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
        assert_eq!(trained(lines, &TURNS, TrainOn::Answers).unwrap(), ["b \n", "é\n"]);
        assert!(trained(CHATML, &TURNS[..2], TrainOn::Answers).unwrap().is_empty());
        assert_eq!(trained(CHATML, &[("user", "a"), ("assistant", "")], TrainOn::Answers).unwrap(), ["</end>"]);
    }

    #[test]
    fn the_end_of_a_chat_ends_its_last_answer() {
        let ended = CHATML.replace("{% endif %}", "{% else %}<eos>{% endif %}");
        assert_eq!(trained(&ended, &TURNS, TrainOn::Answers).unwrap(), ["b </end>", "é</end>\n<eos>"]);
        let text = render(&chat(&TURNS), &template(&ended), TrainOn::All).unwrap().text;
        assert!(text.ends_with("é</end>\n<eos>"), "{text}");
    }

    #[test]
    fn markers_show_generated_text_and_are_removed() {
        let marked = "{% for m in messages %}\n{% if m.role == 'assistant' %}\n<a>{%- generation -%}\n {{ m.content }}</a>\n{%- endgeneration %}\n\n{% else %}\n<u>{{ m.content }}\n{% endif %}\n{% endfor %}";
        assert_eq!(trained(marked, &TURNS, TrainOn::Answers).unwrap(), ["b </a>", "é</a>"]);
        let plain =
            marked.replace("{%- generation -%}", "{%- if true -%}").replace("{%- endgeneration %}", "{%- endif %}");
        let text = |template_text: &str| render(&chat(&TURNS), &template(template_text), TrainOn::All).unwrap().text;
        assert_eq!(text(marked), text(&plain));
        assert!(!text(marked).contains(super::super::marks::is_mark));
    }

    #[test]
    fn markers_in_a_macro_work_unless_its_text_is_changed() {
        let generates = "{% macro turn(m) %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %} {{ m.content }}</t> {% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}";
        assert_eq!(trained(generates, &TURNS, TrainOn::Answers).unwrap(), [" b </t> ", " é</t> "]);
        let trims = generates.replace("{{ turn(m) }}", "{{ turn(m) | trim }}");
        let refused = trained(&trims, &TURNS, TrainOn::Answers);
        assert!(
            matches!(&refused, Err(RenderError::Template(TemplateError(why))) if why.contains("generation")),
            "{refused:?}"
        );
    }

    #[test]
    fn answers_are_found_if_they_differ_from_the_invitation() {
        // DeepSeek's: its invitation begins reasoning that earlier answers lack.
        let thinks = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{{ '</s>' if m.role == 'assistant' }}{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}";
        assert_eq!(trained(thinks, &TURNS, TrainOn::Answers).unwrap(), ["b </s>", "é</s>"]);
        let reasoned =
            [("user", "a"), ("assistant", "<think>\nwhy\n</think>\n\n<b>"), ("user", "c"), ("assistant", "<t>")];
        assert_eq!(trained(thinks, &reasoned, TrainOn::Answers).unwrap(), ["\n\n<b></s>", "<t></s>"]);
        // Mistral's: it puts the system message before the last question.
        let moves = "{% set s = messages[0].content %}{% for m in messages[1:] %}{% if m.role == 'user' %}[I]{% if m == (messages | selectattr('role', 'eq', 'user') | list)[-1] %}{{ s }}: {% endif %}{{ m.content }}[/I]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}";
        assert_eq!(trained(moves, &TURNS, TrainOn::Answers).unwrap(), [" b </s>", " é</s>"]);
    }

    #[test]
    fn answers_with_different_ends_before_another_turn_are_whole() {
        let at_end = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}</s>{% endif %}";
        for (answer, expected) in
            [("To the line.", "To the line.</s>"), ("I think\n\n4", "I think\n\n4</s>"), ("4", "4</s>")]
        {
            let turns = [("user", "How deep?"), ("assistant", answer)];
            assert_eq!(trained(at_end, &turns, TrainOn::Answers).unwrap(), [expected]);
        }
        assert_eq!(trained(at_end, &TURNS, TrainOn::Answers).unwrap(), ["b ", "é</s>"]);
        let other = "{% for m in messages %}<start>{{ m.role }}<m>{{ m.content }}{{ '<return>' if loop.last else '<end>' }}{% endfor %}{% if add_generation_prompt %}<start>assistant{% endif %}";
        assert_eq!(trained(other, &TURNS[1..], TrainOn::Answers).unwrap(), ["<m>b <end>", "<m>é<return>"]);
    }

    #[test]
    fn an_answer_with_unclear_bounds_is_refused() {
        let last_alone = "{% for m in messages %}{{ m.role }}{{ m.content if loop.last else '' }};{% endfor %}";
        assert_eq!(trained(last_alone, &TURNS, TrainOn::Answers), Err(RenderError::UnclearAnswer(3)));
        let twice = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.content }}");
        assert_eq!(trained(&twice, &TURNS, TrainOn::Answers), Ok(vec!["b b </end>".to_owned(), "éé</end>".to_owned()]));
        assert!(trained(last_alone, &TURNS, TrainOn::All).is_ok());
    }

    /// Nothing is trained on in a prompt that is a list of messages, regardless of their roles.
    #[test]
    fn answers_in_a_prompt_are_not_trained_on() {
        let row = r#"{"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],"completion":[{"role":"assistant","content":"d"}]}"#;
        let fields = Fields::of_row(row).unwrap().unwrap();
        assert_eq!(fields.format(), Some(ChatFormat::Messages));
        let chat = fields.conversation(ChatFormat::Messages).unwrap();
        let marked = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</end>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
        for text in [CHATML, marked] {
            let rendered = render(&chat, &template(text), TrainOn::Answers).unwrap();
            let trained: Vec<_> = rendered.trained.iter().map(|span| &rendered.text[span.clone()]).collect();
            assert_eq!(trained, ["d</end>"], "{text}");
        }
    }

    /// In OpenAI's format, call arguments are objects or, if a template needs it, text.
    #[test]
    fn openai_arguments_are_objects_or_text() {
        let row = r#"{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"tide","arguments":"{\"port\":\"Hull\"}"}}]}]}"#;
        let chat = Fields::of_row(row).unwrap().unwrap().conversation(ChatFormat::Messages).unwrap();
        let text = |template_text: &str| render(&chat, &template(template_text), TrainOn::All).unwrap().text;
        let json = "{{ messages[0].tool_calls[0].function | tojson }}";
        assert_eq!(text(json), r#"{"name": "tide", "arguments": {"port": "Hull"}}"#);
        let joined = "{{ 'call ' + messages[0].tool_calls[0].function.arguments }}";
        assert_eq!(text(joined), r#"call {"port":"Hull"}"#);
    }

    #[test]
    fn tool_results_inside_a_turn_are_not_trained_on() {
        let inside = "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% for t in messages %}{% if t.role == 'tool' %}({{ t.content }}){% endif %}{% endfor %}{% endfor %}{{ m.content }}</t>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let row = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"Hm","tool_calls":[{"function":{"name":"f"}}]},{"role":"tool","content":"7"},{"role":"assistant","content":"It is 7"}]}"#;
        let chat = Fields::of_row(row).unwrap().unwrap().conversation(ChatFormat::Messages).unwrap();
        let rendered = render(&chat, &template(inside), TrainOn::Answers).unwrap();
        let trained: Vec<_> = rendered.trained.iter().map(|span| &rendered.text[span.clone()]).collect();
        assert_eq!(trained, ["[f]", "Hm</t>", "It is 7</t>"]);
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
