//! Discord: an embed, sent through a webhook. Source: Discord, "Execute Webhook", "Embed Limits".

use crate::http::Poster;
use crate::message::Message;
use crate::send_error::SendError;
use crate::service::Service;
use crate::words::{lines, shortened, story, title};
use serde_json::{Value, json};

pub(crate) fn send(poster: &Poster, message: &Message) -> Result<(), SendError> {
    poster.post_to(Service::Discord, &rendered(message), is_accepted)
}

/// Accepts an empty response, or the message with its ID if the webhook's URL has `wait=true`.
fn is_accepted(answer: &str) -> bool {
    answer.is_empty() || serde_json::from_str::<Value>(answer).is_ok_and(|answer| answer["id"].is_string())
}

fn rendered(message: &Message) -> Value {
    let field = |(name, value): (String, String)| json!({ "name": shortened(&name, 256), "value": shortened(&value, 1024), "inline": true });
    json!({
        // A run's name or an error may contain `@everyone`.
        "allowed_mentions": { "parse": [] },
        "embeds": [{
            "title": shortened(&title(message), 256),
            "description": shortened(&story(message), 2000),
            "color": message.kind.color(),
            "fields": lines(message).into_iter().take(10).map(field).collect::<Vec<_>>(),
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::tests::full;

    #[test]
    fn an_embed_is_within_the_limits_and_mentions_no_user() {
        let mut message = full();
        message.text = "@everyone ".repeat(1000);
        message.run = "r".repeat(1000);
        message.cards = vec![message.cards[0].clone(); 40];
        let value = rendered(&message);
        assert_eq!(value["allowed_mentions"]["parse"], json!([]));
        let embed = &value["embeds"][0];
        let length = |value: &Value| value.as_str().expect("text").encode_utf16().count();
        assert_eq!(length(&embed["title"]), 256);
        let fields = embed["fields"].as_array().expect("fields");
        let all = fields.iter().map(|field| length(&field["name"]) + length(&field["value"])).sum::<usize>();
        assert!(fields.len() <= 25 && all + length(&embed["title"]) + length(&embed["description"]) <= 6000);
        assert_eq!(fields[1], json!({ "name": "loss", "value": "2.3012", "inline": true }));
        assert_eq!(embed["color"], 0xe6_7e22);
    }
}
