//! The text of a message: a title, lines of a name and a value, and plain text. Senders add no wording of their own.

use crate::message::{Card, Kind, Message};
use plimsoll_units::format_duration;

/// A line: `"loss", "2.3012"`.
pub(crate) type Line = (String, String);

/// The subject or headline.
pub(crate) fn title(message: &Message) -> String {
    let run = one_line(&message.run);
    let what = match (message.kind, message.step, message.last_step) {
        (Kind::Start, ..) => "started".to_owned(),
        (Kind::Progress, Some(step), Some(last)) => format!("step {step} of {last}"),
        (Kind::Progress, Some(step), None) => format!("step {step}"),
        (Kind::Progress, None, _) => "in progress".to_owned(),
        (Kind::Checkpoint, ..) => "checkpoint saved".to_owned(),
        (Kind::Heat, ..) => "hot".to_owned(),
        (Kind::Health, ..) => "health notice".to_owned(),
        (Kind::OutOfMemoryAverted, ..) => "out of memory averted".to_owned(),
        (Kind::Failure, ..) => "failed".to_owned(),
        (Kind::End, ..) => "ended".to_owned(),
        (Kind::Stopped, ..) => "stopped".to_owned(),
        (Kind::Test, ..) => "test message".to_owned(),
    };
    format!("{run}: {what}")
}

/// What happened and what to do about it; may be empty.
pub(crate) fn story(message: &Message) -> String {
    let dropped = match message.dropped_messages {
        0 => None,
        1 => Some("1 earlier message was dropped.".to_owned()),
        n => Some(format!("{n} earlier messages were dropped.")),
    };
    let text = Some(plain(&message.text));
    let parts = [text, message.advice.as_deref().map(plain), dropped];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The known values, one per line.
pub(crate) fn lines(message: &Message) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push((name.to_owned(), value));
        }
    };
    add(
        "step",
        message.step.map(|step| message.last_step.map_or(step.to_string(), |last| format!("{step} of {last}"))),
    );
    add("loss", message.loss.map(|loss| format!("{loss:.4}")));
    add("speed", message.tokens_per_s.map(|speed| format!("{speed:.0} tokens/s")));
    add("time left", message.time_left.map(format_duration));
    add("memory of the run", message.memory.map(|bytes| bytes.to_string()));
    add("energy", message.energy.as_ref().map(ToString::to_string));
    for card in &message.cards {
        lines.push((one_line(&card.name), of_card(card)));
    }
    lines
}

fn of_card(card: &Card) -> String {
    let used = card.used.map(|used| match card.total {
        Some(total) => format!("{used} of {total}"),
        None => used.to_string(),
    });
    let power = card.power_w.map(|power| match card.power_limit_w {
        Some(limit) => format!("{power:.0} of {limit:.0} W"),
        None => format!("{power:.0} W"),
    });
    let parts = [
        card.temperature_c.map(|c| format!("{c:.0} °C")),
        card.memory_temperature_c.map(|c| format!("memory {c:.0} °C")),
        power,
        card.busy_percent.map(|busy| format!("{busy} % busy")),
        used,
    ];
    let known = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if known.is_empty() { "-".to_owned() } else { known }
}

/// Everything except the title, as plain text.
pub(crate) fn body(message: &Message) -> String {
    let lines = lines(message).into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>();
    let parts = [story(message), lines.join("\n")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// At most `most` characters, counted in UTF-16 units as services do.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.encode_utf16().count() <= most {
        return text.to_owned();
    }
    let mut length = 1;
    let fits = |c: &char| {
        length += c.len_utf16();
        length <= most
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Without line breaks and other control characters, since a subject is a header.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_odd(c) || c == '\n' { ' ' } else { c }).collect()
}

fn plain(text: &str) -> String {
    text.trim().chars().filter(|c| !is_odd(*c)).collect()
}

/// Control characters, and characters that change the text direction.
fn is_odd(c: char) -> bool {
    c.is_control() && c != '\n' || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use plimsoll_units::{Bytes, Seconds};
    use proptest::prelude::*;

    /// A message with all values.
    pub(crate) fn full() -> Message {
        let mut message = Message::new(Kind::Heat, "nano-1", "The GPU is at 84 °C; slowed to 70 %.", 1_700_000_000.0);
        message.advice = Some("Check the fans.".to_owned());
        (message.step, message.last_step, message.loss) = (Some(1200), Some(5000), Some(2.301_23));
        (message.tokens_per_s, message.time_left) = (Some(45_678.9), Some(Seconds(3700.0)));
        message.memory = Some(Bytes::mib(512));
        message.cards = vec![Card {
            name: "RTX 3090".to_owned(),
            temperature_c: Some(84.0),
            memory_temperature_c: Some(96.0),
            power_w: Some(341.2),
            power_limit_w: Some(350.0),
            busy_percent: Some(99),
            used: Some(Bytes::mib(20_480)),
            total: Some(Bytes::mib(24_576)),
        }];
        message.dropped_messages = 3;
        let by = plimsoll_telemetry::EnergySource::Counter;
        let used = plimsoll_telemetry::EnergyUse { energy_j: 9.0e6, by, missed_s: 0.0, cost: None, currency: None };
        message.energy = Some(used);
        message
    }

    #[test]
    fn a_message_is_readable_text() {
        assert_eq!(title(&full()), "nano-1: hot");
        assert_eq!(
            body(&full()),
            "The GPU is at 84 °C; slowed to 70 %.\nCheck the fans.\n3 earlier messages were dropped.\n\n\
             step: 1200 of 5000\nloss: 2.3012\nspeed: 45679 tokens/s\ntime left: 1 h 1 min\nmemory of the run: 512 MiB\n\
             energy: 2.500 kWh\nRTX 3090: 84 °C, memory 96 °C, 341 of 350 W, 99 % busy, 20.0 GiB of 24.0 GiB"
        );
        let mut unknown = Message::new(Kind::Progress, "a\r\nBcc: b", "", 0.0);
        unknown.cards = vec![Card { name: "GPU".to_owned(), ..Card::default() }];
        assert_eq!((title(&unknown), body(&unknown)), ("a  Bcc: b: in progress".to_owned(), "GPU: -".to_owned()));
    }

    proptest! {
        #[test]
        fn shortened_text_fits_and_is_a_prefix(text in "\\PC{0,40}", most in 1usize..50) {
            let short = shortened(&text, most);
            prop_assert!(short.encode_utf16().count() <= most);
            match short == text {
                true => prop_assert!(text.encode_utf16().count() <= most),
                false => prop_assert!(text.starts_with(short.strip_suffix('…').unwrap())),
            }
        }

        #[test]
        fn no_title_has_a_line_break(run in any::<String>()) {
            let title = title(&Message::new(Kind::End, run, "", 0.0));
            prop_assert!(!title.contains(char::is_control));
        }
    }
}
