//! Sends notifications about a run by mail, Discord, Slack, Telegram, ntfy or any webhook.
//! Not here: observing runs (`telemetry`), and the flags that select services (`plimsoll`).
//!
//! ```text
//!   events, samples ─► Narrator ─► Message ─► a bounded queue ─► a thread ─► a sender
//!                                            └──────── one for each service ───────┘
//! ```
//!
//! Sending never blocks the caller: a full queue merges or drops messages, and a later message reports how many. A
//! sender that hangs, fails or is rejected blocks only its own thread. No text that leaves this crate contains a secret
//! (`plimsoll-secrets`). Read next: `notifier.rs`, `message.rs`, then one sender (`ntfy.rs` is the shortest).

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
mod send_error;
mod service;
mod settings;
mod slack;
mod telegram;
mod webhook;
mod words;
mod worker;

pub use message::{Card, Kind, LossPoint, Message};
pub use narrator::{Narrator, NotifySink};
pub use notifier::{Notifier, Report, SenderReport};
pub use service::{Service, UnknownService};
pub use settings::{Encryption, MailSettings, NotifyError, NotifySettings, Timing};
