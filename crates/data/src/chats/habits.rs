//! How a chat template treats answers in ways that users may not expect, observed on short chats.

use super::ChatTemplate;
use super::marks::Unmarked;
use plimsoll_jinja::Value;

/// How a template treats answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateHabits {
    /// The end of the invitation that is not written before an answer, such as `<think>`.
    pub invites_with: Option<String>,
    /// Whether the reasoning in `<think>` is removed from an answer that is not the last.
    pub drops_reasoning: bool,
}

impl ChatTemplate {
    /// Observes the template on short chats. A template that refuses them has no habits.
    pub fn habits(&self) -> TemplateHabits {
        let chat = |turns: &[(&str, &str)], invite: bool| {
            let message = |&(role, content): &(&str, &str)| {
                Value::dict([("role", Value::from(role)), ("content", Value::from(content))])
            };
            let messages: Vec<Value> = turns.iter().map(message).collect();
            let marked = self.render(&messages, &Value::None, invite).ok()?;
            Some(Unmarked::of(&marked))
        };
        let question = ("user", "a question");
        let invites_with = || {
            let invited = chat(&[question], true)?;
            let answered = chat(&[question, ("assistant", "an answer")], false)?;
            let ((differs, _), _) =
                invited.text.char_indices().zip(answered.text.chars()).find(|((_, a), b)| a != b)?;
            let is_invitation = differs >= invited.loops_end? && !self.marks_generation();
            let words = invited.text[differs..].trim();
            (is_invitation && !words.is_empty()).then(|| words.to_owned())
        };
        let reasoned = ("assistant", "<think>\nits reasoning\n</think>\n\nan answer");
        let two = chat(&[question, reasoned, question, ("assistant", "another")], false);
        TemplateHabits {
            invites_with: invites_with(),
            drops_reasoning: two.is_some_and(|it| it.text.contains("an answer") && !it.text.contains("its reasoning")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Date;
    use super::*;

    #[test]
    fn habits_are_observed_on_short_chats() {
        let habits = |text: &str| ChatTemplate::of_text(text, Date::of_unix_seconds(0)).unwrap().habits();
        let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</t>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        assert_eq!(habits(plain), TemplateHabits::default());
        let thinks = plain
            .replace("<assistant>", "<assistant><think>\n")
            .replace("m.content", "m.content.split('</think>')[-1]");
        let expected = TemplateHabits { invites_with: Some("<think>".to_owned()), drops_reasoning: true };
        assert_eq!(habits(&thinks), expected);
        assert_eq!(habits("{{ raise_exception('no') }}"), TemplateHabits::default());
    }
}
