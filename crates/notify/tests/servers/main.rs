//! Messages to real servers on loopback, both working and faulty ones.

mod canaries;
mod http;
mod http_server;
mod mail;
mod smtp_server;

use plimsoll_notify::{Kind, Message, NotifySettings, Service, Timing};
use plimsoll_secrets::Secrets;
use std::ffi::OsString;
use std::time::Duration;

/// Short waits, to keep the tests fast.
fn quick() -> Timing {
    Timing {
        connect: Duration::from_millis(500),
        total: Duration::from_millis(500),
        first_delay: Duration::from_millis(2),
        longest_delay: Duration::from_millis(20),
        attempts: 3,
        pace: 0.001,
        seed: 1,
        ..Timing::default()
    }
}

/// Long enough for every message to arrive.
const LONG: Duration = Duration::from_secs(8);

fn settings(services: &[Service]) -> NotifySettings {
    NotifySettings { services: services.to_vec(), every_steps: 1, mail: None, timing: quick() }
}

fn secrets(pairs: &[(&str, &str)]) -> Secrets {
    let find = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
    Secrets::load(find, None, None).expect("valid secrets")
}

fn message(kind: Kind, step: u64) -> Message {
    let mut message = Message::new(kind, "nano-1", format!("text of {step}"), 1_700_000_000.0);
    message.step = Some(step);
    message
}
