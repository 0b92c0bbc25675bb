//! ntfy: push messages to phones, through ntfy.sh or a self-hosted server. Posted as JSON to the server's root, so that
//! the topic, which is a secret, is not part of a URL. Source: ntfy, "Publish as JSON", "Message priority".

use crate::http::Poster;
use crate::message::{Kind, Message};
use crate::send_error::SendError;
use crate::service::Service;
use crate::words::{body, shortened, title};
use plimsoll_secrets::Secret;
use serde_json::{Value, json};

/// The public server.
pub(crate) const SERVER: &str = "https://ntfy.sh";

pub(crate) fn send(poster: &Poster, topic: &Secret, message: &Message) -> Result<(), SendError> {
    poster.post_to(Service::Ntfy, &rendered(topic, message), is_accepted)
}

/// Accepts the message with its ID.
fn is_accepted(answer: &str) -> bool {
    serde_json::from_str::<Value>(answer).is_ok_and(|answer| answer["id"].is_string())
}

fn rendered(topic: &Secret, message: &Message) -> Value {
    let (priority, tag) = match message.kind {
        Kind::Failure => (5, "rotating_light"),
        Kind::Heat => (4, "fire"),
        Kind::OutOfMemoryAverted => (4, "warning"),
        Kind::Health => (3, "stethoscope"),
        Kind::End => (4, "white_check_mark"),
        Kind::Stopped => (4, "octagonal_sign"),
        Kind::Start => (3, "rocket"),
        Kind::Test => (3, "wave"),
        Kind::Checkpoint => (2, "floppy_disk"),
        Kind::Progress => (2, "chart_with_downwards_trend"),
    };
    let body = body(message);
    json!({
        "topic": topic.expose(),
        "title": shortened(&title(message), 200),
        // A message has at most 4,096 bytes, and longer ones become attachments. A UTF-16 unit takes up to three bytes.
        "message": if body.is_empty() { title(message) } else { shortened(&body, 1300) },
        "priority": priority,
        "tags": [tag],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::tests::full;

    #[test]
    fn urgent_messages_have_priority_and_all_fit_the_limit() {
        let topic = Secret::new("topic");
        let mut message = full();
        message.text = "温".repeat(9000);
        for (kind, priority) in [(Kind::Failure, 5), (Kind::Heat, 4), (Kind::End, 4), (Kind::Progress, 2)] {
            message.kind = kind;
            let value = rendered(&topic, &message);
            assert_eq!((&value["priority"], &value["topic"]), (&json!(priority), &json!("topic")), "{kind:?}");
            assert!(value["message"].as_str().is_some_and(|text| text.len() <= 4096));
        }
        let bare = rendered(&topic, &Message::new(Kind::End, "run", "", 0.0));
        assert_eq!(bare["message"], "run: ended");
    }
}
