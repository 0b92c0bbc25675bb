//! The entry point: accepts messages without blocking, and returns a report at the end.

use crate::http::{Address, Poster};
use crate::mail::Mailer;
use crate::message::{Kind, Message};
use crate::queue::Queue;
use crate::rate::Rate;
use crate::service::Service;
use crate::settings::{NotifyError, NotifySettings, Timing};
use crate::worker::{Send, work};
use crate::{discord, ntfy, slack, telegram, webhook};
use plimsoll_secrets::Secrets;
use plimsoll_secrets::{Redactor, Secret};
use plimsoll_telemetry::Lane;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Sends messages to all configured services. If it is dropped without [`Notifier::finish`], its threads continue until
/// the process ends.
#[derive(Debug)]
pub struct Notifier {
    channels: Vec<Channel>,
    redactor: Redactor,
}

/// A service and its queue.
#[derive(Debug)]
struct Channel {
    service: Service,
    queue: Arc<Lane<Queue>>,
    gate: Mutex<Gate>,
}

/// When progress is due.
#[derive(Debug)]
enum Gate {
    /// At the first step that is at least `next`.
    Steps { every: u64, next: u64 },
    /// When this time has come.
    Time { every: Duration, next: Option<Instant> },
}

/// Results for one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SenderReport {
    /// The service.
    pub service: Service,
    /// Messages that the server accepted.
    pub sent: u64,
    /// Messages that were given up.
    pub failed: u64,
    /// Messages that were dropped, or merged into others.
    pub dropped: u64,
    /// Messages that were still queued or in flight when the time was up.
    pub unsent: u64,
    /// The last error, without secrets.
    pub last_error: Option<String>,
}

/// Results for all services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// One entry per service, in the order of the settings.
    pub senders: Vec<SenderReport>,
}

impl Report {
    /// Whether every message arrived, except those merged or dropped for newer ones.
    pub fn all_arrived(&self) -> bool {
        self.senders.iter().all(|sender| sender.failed == 0 && sender.unsent == 0)
    }
}

impl Notifier {
    /// Starts a thread for each service, without sending anything.
    /// Errors: a service lacks a secret or a setting, or one of them is invalid.
    pub fn start(settings: &NotifySettings, secrets: &Secrets) -> Result<Self, NotifyError> {
        let mut services = settings.services.clone();
        let mut seen = Vec::new();
        services.retain(|service| {
            !seen.contains(service) && {
                seen.push(*service);
                true
            }
        });
        let senders = services.into_iter().map(|service| Ok((service, sender(service, settings, secrets)?)));
        let senders = senders.collect::<Result<Vec<_>, NotifyError>>()?;
        let (mut channels, redactor) = (Vec::new(), secrets.redactor());
        for (service, send) in senders {
            let queue = Arc::new(Lane::new(Queue::new(settings.timing.waiting_max)));
            let gate = match (service, &settings.mail) {
                (Service::Mail, Some(mail)) => {
                    Gate::Time { every: mail.every, next: Instant::now().checked_add(mail.every) }
                }
                _ => Gate::Steps { every: settings.every_steps, next: settings.every_steps },
            };
            let (timing, redactor) = (settings.timing.clone(), redactor.clone());
            let rate = Rate::of(service, timing.pace);
            queue
                .start(format!("notify-{service}"), move |lane| work(lane, send, rate, &timing, &redactor))
                .map_err(|source| NotifyError::Thread { service, source })?;
            channels.push(Channel { service, queue, gate: Mutex::new(gate) });
        }
        Ok(Self { channels, redactor })
    }

    /// Whether any service wants progress after this step. Cheap enough to call for every step.
    pub fn is_progress_due(&self, step: u64) -> bool {
        self.channels.iter().any(|channel| channel.is_due(step, false))
    }

    /// Queues a message for the services that want it. Never waits for a server. Progress goes to services where it is
    /// due; mail skips checkpoints.
    pub fn send(&self, message: &Message) {
        // A message may quote the output of a supervised program.
        let mut message = message.clone();
        message.text = self.redactor.redact(&message.text);
        message.advice = message.advice.map(|advice| self.redactor.redact(&advice));
        for channel in &self.channels {
            let is_wanted = match message.kind {
                Kind::Progress => channel.is_due(message.step.unwrap_or(0), true),
                Kind::Checkpoint => channel.service != Service::Mail,
                _ => true,
            };
            if is_wanted {
                channel.queue.put(|queue, counts| queue.push(counts, message.clone()));
            }
        }
    }

    /// Sends the queued messages for at most `timeout`; messages that must arrive go first.
    pub fn finish(self, timeout: Duration) -> Report {
        let deadline = Instant::now() + timeout;
        for channel in &self.channels {
            channel.queue.close(deadline, Queue::close);
        }
        let report = |channel: &Channel| {
            let (counts, unsent) = channel.queue.wait_for_end(deadline, Queue::left);
            SenderReport {
                service: channel.service,
                sent: counts.done,
                failed: counts.failed,
                dropped: counts.dropped,
                unsent,
                last_error: counts.last_error,
            }
        };
        Report { senders: self.channels.iter().map(report).collect() }
    }
}

impl Channel {
    /// Whether progress is due after this step; with `and_take`, also schedules the next one.
    fn is_due(&self, step: u64, and_take: bool) -> bool {
        match &mut *self.gate.lock().unwrap_or_else(PoisonError::into_inner) {
            Gate::Steps { every, next } => {
                let is_due = *every > 0 && step >= *next;
                if is_due && and_take {
                    *next = (step / *every).saturating_add(1).saturating_mul(*every);
                }
                is_due
            }
            Gate::Time { every, next } => {
                let now = Instant::now();
                let is_due = next.is_some_and(|next| now >= next);
                if is_due && and_take {
                    *next = now.checked_add(*every);
                }
                is_due
            }
        }
    }
}

/// Creates the sender of a service.
fn sender(service: Service, settings: &NotifySettings, secrets: &Secrets) -> Result<Send, NotifyError> {
    let timing = &settings.timing;
    Ok(match service {
        Service::Mail => {
            let mut mailer = Mailer::new(settings.mail.as_ref().ok_or(NotifyError::NoMail)?, secrets, timing)?;
            Box::new(move |message| mailer.send(message))
        }
        Service::Discord => {
            let [url] = needed(service, secrets, ["PLIMSOLL_DISCORD_WEBHOOK"])?;
            let poster = poster(&url, "PLIMSOLL_DISCORD_WEBHOOK", None, timing)?;
            Box::new(move |message| discord::send(&poster, message))
        }
        Service::Slack => {
            let [url] = needed(service, secrets, ["PLIMSOLL_SLACK_WEBHOOK"])?;
            let poster = poster(&url, "PLIMSOLL_SLACK_WEBHOOK", None, timing)?;
            Box::new(move |message| slack::send(&poster, message))
        }
        Service::Telegram => {
            let [token, chat] = needed(service, secrets, ["PLIMSOLL_TELEGRAM_TOKEN", "PLIMSOLL_TELEGRAM_CHAT"])?;
            if !token.expose().chars().all(|c| c.is_ascii_alphanumeric() || ":_-".contains(c)) {
                let reason = "is no token such as 123456:ABC-DEF";
                return Err(NotifyError::BadAddress { variable: "PLIMSOLL_TELEGRAM_TOKEN", reason });
            }
            let server = secrets.get("PLIMSOLL_TELEGRAM_SERVER").map_or(telegram::SERVER, Secret::expose);
            let url = telegram::address(server, &token);
            let poster = poster(&url, "PLIMSOLL_TELEGRAM_SERVER", None, timing)?;
            Box::new(move |message| telegram::send(&poster, &chat, message))
        }
        Service::Ntfy => {
            let [topic] = needed(service, secrets, ["PLIMSOLL_NTFY_TOPIC"])?;
            let server = secrets.get("PLIMSOLL_NTFY_SERVER").cloned().unwrap_or_else(|| Secret::new(ntfy::SERVER));
            let poster = poster(&server, "PLIMSOLL_NTFY_SERVER", secrets.get("PLIMSOLL_NTFY_TOKEN").cloned(), timing)?;
            Box::new(move |message| ntfy::send(&poster, &topic, message))
        }
        Service::Webhook => {
            let [url] = needed(service, secrets, ["PLIMSOLL_WEBHOOK_URL"])?;
            let poster = poster(&url, "PLIMSOLL_WEBHOOK_URL", None, timing)?;
            Box::new(move |message| webhook::send(&poster, message))
        }
    })
}

fn needed<const N: usize>(
    service: Service,
    secrets: &Secrets,
    variables: [&'static str; N],
) -> Result<[Secret; N], NotifyError> {
    let missing = variables.into_iter().filter(|variable| !secrets.has(variable)).collect::<Vec<_>>();
    match missing.is_empty() {
        true => Ok(variables.map(|variable| secrets.get(variable).expect("checked above").clone())),
        false => Err(NotifyError::MissingSecret { service, variables: missing }),
    }
}

fn poster(url: &Secret, variable: &'static str, token: Option<Secret>, timing: &Timing) -> Result<Poster, NotifyError> {
    let address = Address::new(url).map_err(|reason| NotifyError::BadAddress { variable, reason })?;
    Ok(Poster::new(address, token, timing))
}
