//! Templates of many structures: the trained text is each answer with the end of its turn.

use super::super::Date;
use super::super::format::{ChatFormat, Fields};
use super::super::render_error::RenderError;
use super::super::spans::{TrainOn, render};
use super::super::template::ChatTemplate;
use serde_json::{Value, json};

/// How turns end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    Token,
    /// A different token ends the last turn.
    OtherAtEnd,
    /// One token ends the chat; no token ends a turn.
    OnlyAtEnd,
    /// One after each turn, and a different one after the chat.
    BothAtEnd,
    /// Written before the next turn.
    BetweenTurns,
    /// After every turn but the last.
    ExceptAtEnd,
    LineBreak,
    /// The invitation of the next answer follows, requested or not.
    Inviting,
    Nothing,
}

/// The text that a template writes before an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Invitation {
    Head,
    /// `<think>` follows, only in the invitation.
    Thinking,
    /// The head is written, but never as an invitation.
    Ignored,
    /// Written at the end of a user's turn.
    OfUser,
}

/// How an answer's text is written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Content {
    Whole,
    Trimmed,
    /// Earlier answers have no reasoning, and the last one always does.
    Reasoned,
}

/// How the template iterates over the messages.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Loop {
    Messages,
    /// The system message is merged into the first user message.
    WithoutSystem,
    Numbers,
    /// The macro's text is a value, so the iterations are not visible.
    InMacro,
}

#[derive(Debug, Clone, Copy)]
struct Structure {
    ending: Ending,
    invitation: Invitation,
    content: Content,
    over: Loop,
}

impl Structure {
    fn all() -> Vec<Self> {
        use {Content as C, Ending as E, Invitation as I, Loop as L};
        let mut all = Vec::new();
        for ending in [
            E::Token,
            E::OtherAtEnd,
            E::OnlyAtEnd,
            E::BothAtEnd,
            E::BetweenTurns,
            E::ExceptAtEnd,
            E::LineBreak,
            E::Inviting,
            E::Nothing,
        ] {
            for invitation in [I::Head, I::Thinking, I::Ignored, I::OfUser] {
                for content in [C::Whole, C::Trimmed, C::Reasoned] {
                    for over in [L::Messages, L::WithoutSystem, L::Numbers, L::InMacro] {
                        // Without iterations, only an invitation shows the text before an answer's words.
                        let is_plain = invitation == I::Ignored && over != L::InMacro;
                        if ending == E::Inviting && !is_plain {
                            continue;
                        }
                        let is_seen = over != L::InMacro || content != C::Reasoned || invitation == I::Head;
                        all.extend(is_seen.then_some(Self { ending, invitation, content, over }));
                    }
                }
            }
        }
        all
    }

    fn template(self) -> String {
        let head = match self.invitation {
            Invitation::OfUser => {
                "{% if m.role != 'assistant' %}[INST] {% if m.role == 'user' and loop.index0 == 0 %}{{ system }}{% endif %}"
            }
            _ => {
                "{{ '<|' + m.role + '|>\\n' }}{% if loop.index0 == 0 %}{{ system }}{% endif %}{% if m.role != 'assistant' %}"
            }
        };
        let others = match self.invitation {
            Invitation::OfUser => "{{ m.content }}[/INST]",
            _ => "{{ m.content }}",
        };
        let answer = match self.content {
            Content::Whole => "{{ m.content or '' }}",
            Content::Trimmed => "{{ (m.content or '') | trim }}",
            Content::Reasoned => {
                "{% set parts = (m.content or '').split('</think>') %}\
                 {% if loop.last %}<think>{{ '\n' + (parts[0].split('<think>')[-1].strip() if parts | length > 1 else '') }}</think>\n\n{% endif %}\
                 {{ parts[-1].lstrip() }}"
            }
        };
        let calls = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}({{ c.function.arguments | tojson }})</call>{% endfor %}";
        let (between, ending, at_end) = match self.ending {
            Ending::Token => ("", "</t>\n", ""),
            Ending::OtherAtEnd => ("", "{{ '</end>' if loop.last and m.role == 'assistant' else '</t>' }}\n", ""),
            Ending::OnlyAtEnd => ("", "", "</end>"),
            Ending::BothAtEnd => ("", "</t>\n", "</end>"),
            Ending::BetweenTurns => ("{% if not loop.first %}</t>\n{% endif %}", "", "</t>\n"),
            Ending::ExceptAtEnd => ("", "{% if not loop.last %}</t>\n{% endif %}", ""),
            Ending::LineBreak => ("", "\n", ""),
            Ending::Inviting => ("", "\n", "<|assistant|>\n"),
            Ending::Nothing => ("", "", ""),
        };
        // Engines remove one line break after a tag.
        let ending = ending.replace("\n", "{{ '\\n' }}");
        let invitation = match self.invitation {
            Invitation::Head => "<|assistant|>\n",
            Invitation::Thinking => "<|assistant|>\n<think>\n",
            Invitation::Ignored | Invitation::OfUser => "",
        };
        let (begin, system) = match self.over {
            Loop::Messages | Loop::InMacro => ("{% for m in messages %}", ""),
            Loop::Numbers => ("{% for i in range(messages | length) %}{% set m = messages[i] %}", ""),
            Loop::WithoutSystem => (
                "{% for m in turns %}",
                "{% set turns = messages[1:] if messages[0].role == 'system' else messages %}\
                 {% set system = messages[0].content + ': ' if messages[0].role == 'system' else '' %}",
            ),
        };
        let turns =
            format!("{begin}{between}{head}{others}{{% else %}}{answer}{calls}{{% endif %}}{ending}{{% endfor %}}");
        let turns = match self.over {
            Loop::InMacro => format!("{{% macro all(messages) %}}{turns}{{% endmacro %}}{{{{ all(messages) }}}}"),
            _ => turns,
        };
        let end = match invitation {
            "" => at_end.to_owned(),
            _ => format!("{{% if add_generation_prompt %}}{{{{ {invitation:?} }}}}{{% else %}}{at_end}{{% endif %}}"),
        };
        // The end of a turn that is written before an invitation belongs to that turn.
        let end = match self.ending {
            Ending::BetweenTurns => format!("{}{}", at_end.replace('\n', "{{ '\\n' }}"), end.replace(at_end, "")),
            _ => end,
        };
        format!("{system}<s>{turns}{end}")
    }

    /// The expected trained text of answer `at` of `len` messages.
    fn expected(self, message: &Value, at: usize, len: usize) -> String {
        let is_last = at + 1 == len;
        let content = message["content"].as_str().unwrap_or_default();
        let mut text = match self.content {
            Content::Whole => content.to_owned(),
            Content::Trimmed => content.trim().to_owned(),
            Content::Reasoned => {
                let (reasoning, answer) = content.split_once("</think>").unwrap_or(("", content));
                let reasoning = reasoning.trim_start_matches("<think>").trim();
                let answer = answer.trim_start();
                if is_last { format!("<think>\n{reasoning}</think>\n\n{answer}") } else { answer.to_owned() }
            }
        };
        if self.invitation == Invitation::Thinking && text.starts_with("<think>\n") {
            text.drain(.."<think>\n".len());
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            text += &format!("<call>{}({})</call>", call["function"]["name"].as_str().unwrap(), "{\"a\": 1}");
        }
        text + match (self.ending, is_last) {
            (Ending::Token | Ending::BetweenTurns, _)
            | (Ending::OtherAtEnd | Ending::BothAtEnd | Ending::ExceptAtEnd, false) => "</t>",
            (Ending::OtherAtEnd | Ending::OnlyAtEnd, true) => "</end>",
            (Ending::BothAtEnd, true) => "</t>\n</end>",
            // After calls, white space is not known to end the turn.
            (Ending::LineBreak | Ending::Inviting, _) if message["tool_calls"].is_array() => "",
            (Ending::LineBreak | Ending::Inviting, _) => "\n",
            (Ending::OnlyAtEnd, false) | (Ending::ExceptAtEnd, true) | (Ending::Nothing, _) => "",
        }
    }

    /// Whether a turn's end is not visible before another turn.
    fn may_be_refused(self) -> bool {
        self.over == Loop::InMacro
    }
}

fn conversations() -> Vec<Vec<Value>> {
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let call = json!({"type": "function", "function": {"name": "add", "arguments": {"a": 1}}});
    let asked = |content: &str| json!({"role": "assistant", "content": content, "tool_calls": [call]});
    vec![
        vec![turn("user", "How deep?"), turn("assistant", "To the line.")],
        vec![turn("user", "a"), turn("assistant", "4"), turn("user", "b"), turn("assistant", "I think\n\n4")],
        vec![turn("user", "a"), turn("assistant", "<table> x"), turn("user", "b")],
        vec![turn("system", "s"), turn("user", "a"), turn("assistant", "a"), turn("user", "a"), turn("assistant", "a")],
        vec![
            turn("user", "a"),
            turn("assistant", "<think>\nwhy\n</think>\n\nso"),
            turn("user", "b"),
            turn("assistant", "<think>\nhm\n</think>\n\n<b>"),
        ],
        vec![turn("user", "a"), asked("Let me see."), turn("tool", "7"), turn("assistant", "</t>")],
        vec![turn("user", "a"), asked("x"), turn("tool", "7"), turn("user", "7"), asked("y")],
    ]
}

#[test]
fn answers_include_the_ends_of_their_turns() {
    let (mut right, mut refused, mut problems) = (0, 0, Vec::new());
    for structure in Structure::all() {
        let text = structure.template();
        let template = ChatTemplate::of_text(&text, Date::of_unix_seconds(0)).unwrap();
        for messages in conversations() {
            let row = json!({ "messages": messages }).to_string();
            let chat = Fields::of_row(&row).unwrap().unwrap().conversation(ChatFormat::Messages).unwrap();
            let is_answer = |(_, message): &(usize, &Value)| message["role"] == "assistant";
            let expected: Vec<String> = messages
                .iter()
                .enumerate()
                .filter(is_answer)
                .map(|(at, message)| structure.expected(message, at, messages.len()))
                .collect();
            match render(&chat, &template, TrainOn::Answers) {
                Ok(rendered) => {
                    let found: Vec<&str> = rendered.trained.iter().map(|span| &rendered.text[span.clone()]).collect();
                    if found == expected {
                        right += 1;
                    } else {
                        problems.push(format!("{structure:?}\n{:?}\n  {found:?}\n  {expected:?}", rendered.text));
                    }
                }
                Err(RenderError::UnclearAnswer(_)) if structure.may_be_refused() => refused += 1,
                Err(error) => problems.push(format!("{structure:?} {row}\n  {error:?}")),
            }
        }
    }
    assert!(
        problems.is_empty(),
        "{} problems, {right} right:\n{}",
        problems.len(),
        problems[..problems.len().min(12)].join("\n")
    );
    assert!(right > 2000 && refused < 400, "{right} right, {refused} refused");
}
