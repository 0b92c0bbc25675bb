//! JSON to any URL: the message's fields, with units in their keys, and its text.

use crate::http::Poster;
use crate::message::Message;
use crate::send_error::SendError;
use crate::words::{body, title};
use serde::Serialize;

/// Version of the format, raised when a key changes its meaning or is removed.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Rendered<'a> {
    v: u32,
    title: String,
    body: String,
    #[serde(flatten)]
    message: &'a Message,
}

pub(crate) fn send(poster: &Poster, message: &Message) -> Result<(), SendError> {
    poster.post(&rendered(message))
}

fn rendered(message: &Message) -> Rendered<'_> {
    Rendered { v: VERSION, title: title(message), body: body(message), message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::tests::full;
    use serde_json::json;

    #[test]
    fn keys_have_their_units() {
        let mut message = full();
        message.curve = vec![crate::LossPoint { step: 1, loss: 5.5 }];
        let mut value = serde_json::to_value(rendered(&message)).unwrap();
        let body = value["body"].take();
        assert!(body.as_str().is_some_and(|body| body.contains("loss: 2.3012")));
        let expected = json!({
            "v": 1, "title": "nano-1: hot", "body": null, "kind": "heat", "run": "nano-1",
            "text": "The GPU is at 84 °C; slowed to 70 %.", "advice": "Check the fans.", "time_s": 1_700_000_000.0,
            "step": 1200, "last_step": 5000, "loss": 2.301_23, "tokens_per_s": 45_678.9, "time_left_s": 3700.0,
            "memory_bytes": 536_870_912, "dropped_messages": 3, "energy": { "energy_j": 9.0e6, "by": "counter", "missed_s": 0.0 }, "curve": [{ "step": 1, "loss": 5.5 }],
            "cards": [{
                "name": "RTX 3090", "temperature_c": 84.0, "memory_temperature_c": 96.0, "power_w": 341.2,
                "power_limit_w": 350.0, "busy_percent": 99, "used_bytes": 21_474_836_480u64,
                "total_bytes": 25_769_803_776u64,
            }],
        });
        assert_eq!(value, expected);
    }
}
