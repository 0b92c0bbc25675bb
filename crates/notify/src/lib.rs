//! Tells a person where they are what a run does: by mail, Discord, Slack, Telegram, ntfy or any webhook.
//! Not here: how a run is observed (`telemetry`), and which flags say who is told (`plimsoll`).
//!
//!     events, samples ─► Narrator ─► Message ─► a bounded queue ─► a thread ─► a sender
//!                                              └──────── one for each service ───────┘
//!
//! Whoever tells never waits: a queue that is full merges and drops, and says later how much. A sender that hangs, fails
//! or is refused keeps its own thread busy, and nothing else. Secrets come from the environment or from files that nobody
//! else can read, and no text that leaves this crate has them in it.
//! Read next: `notifier.rs`, `message.rs`, then one sender (`ntfy.rs` is the shortest).

mod backoff;
mod curve;
mod discord;
mod http;
mod loss_points;
mod mail;
mod message;
mod narrator;
mod notifier;
mod ntfy;
mod queue;
mod rate;
mod secret;
mod secret_files;
mod secrets;
mod send_error;
mod service;
mod settings;
mod slack;
mod telegram;
mod webhook;
mod words;
mod worker;

pub use backoff::Backoff;
pub use http::is_loopback;
pub use message::{Card, Kind, LossPoint, Message};
pub use narrator::{Narrator, Teller};
pub use notifier::{Notifier, Report, SenderReport};
pub use secret::{Redactor, Secret};
pub use secrets::{Secrets, SecretsError, TRACKER_VARIABLES, VARIABLES};
pub use service::{Service, UnknownService};
pub use settings::{Encryption, MailSettings, NotifyError, NotifySettings, Timing};
