//! Slack: blocks, sent through an incoming webhook. Sources: Slack, "Reference: blocks", "Formatting text for app
//! surfaces".

use crate::http::Poster;
use crate::message::Message;
use crate::send_error::SendError;
use crate::service::Service;
use crate::words::{lines, shortened, story, title};
use serde_json::{Value, json};

pub(crate) fn send(poster: &Poster, message: &Message) -> Result<(), SendError> {
    poster.post_to(Service::Slack, &rendered(message), is_accepted)
}

/// Source: Slack, "Sending messages using incoming webhooks"; workflow webhooks respond with JSON.
fn is_accepted(answer: &str) -> bool {
    answer.trim() == "ok" || serde_json::from_str::<Value>(answer).is_ok_and(|answer| answer["ok"] == true)
}

fn rendered(message: &Message) -> Value {
    let mut blocks = vec![];
    let story = story(message);
    if !story.is_empty() {
        // Escaping lengthens the text, and 3,000 characters are allowed.
        blocks
            .push(json!({ "type": "section", "text": { "type": "mrkdwn", "text": escaped(&shortened(&story, 600)) } }));
    }
    let field = |(name, value): (String, String)| {
        let text = format!("*{}*\n{}", escaped(&shortened(&name, 100)), escaped(&shortened(&value, 200)));
        json!({ "type": "mrkdwn", "text": text })
    };
    let fields = lines(message).into_iter().take(10).map(field).collect::<Vec<_>>();
    if !fields.is_empty() {
        blocks.push(json!({ "type": "section", "fields": fields }));
    }
    // The headline, also shown in notifications.
    let mut rendered = json!({ "text": escaped(&shortened(&title(message), 150)) });
    if !blocks.is_empty() {
        // Only attachments can have a color.
        rendered["attachments"] = json!([{ "color": format!("#{:06x}", message.kind.color()), "blocks": blocks }]);
    }
    rendered
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Kind;
    use crate::words::tests::full;

    #[test]
    fn blocks_are_within_the_limits_and_mention_no_user() {
        let mut message = full();
        message.text = "<!channel> & ".repeat(1000);
        message.run = "<@U1>".repeat(100);
        message.cards = vec![message.cards[0].clone(); 40];
        let value = rendered(&message);
        let blocks = value["attachments"][0]["blocks"].as_array().expect("blocks");
        let section = blocks[0]["text"]["text"].as_str().expect("a section");
        assert!(section.len() <= 3000 && section.starts_with("&lt;!channel&gt; &amp;") && !section.contains('<'));
        assert!(value["text"].as_str().is_some_and(|text| text.starts_with("&lt;@U1&gt;")));
        assert_eq!(blocks[1]["fields"].as_array().map(Vec::len), Some(10));
        assert_eq!(blocks[1]["fields"][1]["text"], "*loss*\n2.3012");
        // Slack rejects a section without text or fields.
        let bare = rendered(&Message::new(Kind::End, "run", "", 0.0));
        assert_eq!(bare, json!({ "text": "run: ended" }));
        message.kind = Kind::Failure;
        assert_eq!(rendered(&message)["attachments"][0]["color"], "#c0392b");
    }
}
