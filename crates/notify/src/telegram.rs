//! Telegram: plain text from a bot, whose token is part of the URL. Source: Telegram, "Bot API", `sendMessage`.

use crate::http::Poster;
use crate::message::{Kind, Message};
use crate::send_error::SendError;
use crate::service::Service;
use crate::words::{body, shortened, title};
use plimsoll_secrets::Secret;
use serde_json::{Value, json};

/// Telegram's own server; self-hosted ones exist too.
pub(crate) const SERVER: &str = "https://api.telegram.org";

/// The URL for a bot's messages.
pub(crate) fn address(server: &str, token: &Secret) -> Secret {
    Secret::new(format!("{}/bot{}/sendMessage", server.trim_end_matches('/'), token.expose()))
}

pub(crate) fn send(poster: &Poster, chat: &Secret, message: &Message) -> Result<(), SendError> {
    poster.post_to(Service::Telegram, &rendered(chat, message), is_accepted)
}

/// Source: Telegram, "Making requests".
fn is_accepted(answer: &str) -> bool {
    serde_json::from_str::<Value>(answer).is_ok_and(|answer| answer["ok"] == true)
}

fn rendered(chat: &Secret, message: &Message) -> Value {
    // Without a parse mode, no text is interpreted as markup.
    let text = format!("{}\n{}", title(message), body(message));
    let silent = matches!(message.kind, Kind::Progress | Kind::Checkpoint);
    json!({
        "chat_id": chat.expose(),
        "text": shortened(text.trim(), 4096),
        "disable_notification": silent,
        "link_preview_options": { "is_disabled": true },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::tests::full;

    #[test]
    fn a_text_is_within_the_limit_and_progress_makes_no_sound() {
        let chat = Secret::new("-100123");
        let mut message = full();
        let value = rendered(&chat, &message);
        assert_eq!((&value["chat_id"], &value["disable_notification"]), (&json!("-100123"), &json!(false)));
        assert!(value["text"].as_str().is_some_and(|text| text.starts_with("nano-1: hot\nThe GPU is at 84 °C")));
        assert!(value.get("parse_mode").is_none());
        message.kind = Kind::Progress;
        message.text = "\u{1f525}".repeat(5000);
        let value = rendered(&chat, &message);
        assert_eq!(value["disable_notification"], true);
        assert!(value["text"].as_str().is_some_and(|text| (4095..=4096).contains(&text.encode_utf16().count())));
    }
}
