//! The one entry: messages go in and never wait, a report comes out at the end.

use crate::http::{Address, Poster};
use crate::mail::Mailer;
use crate::message::{Kind, Message};
use crate::queue::Queue;
use crate::rate::Rate;
use crate::secret::{Redactor, Secret};
use crate::secrets::Secrets;
use crate::service::Service;
use crate::settings::{NotifyError, NotifySettings, Timing};
use crate::worker::{Send, work};
use crate::{discord, ntfy, slack, telegram, webhook};
use plimsoll_telemetry::Lane;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tells messages to all services that are set. Dropped without [`Notifier::finish`], its threads go on until the process
/// ends.
#[derive(Debug)]
pub struct Notifier {
    told: Vec<Told>,
    redactor: Redactor,
}

/// A service, and what waits for it.
#[derive(Debug)]
struct Told {
    service: Service,
    queue: Arc<Lane<Queue>>,
    gate: Mutex<Gate>,
}

/// When progress is due.
#[derive(Debug)]
enum Gate {
    /// At the first step that is no smaller than this.
    Steps { every: u64, next: u64 },
    /// When this moment has come.
    Time { every: Duration, next: Option<Instant> },
}

/// What came of the messages to one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SenderReport {
    /// The service.
    pub service: Service,
    /// Messages that arrived, as far as the server says.
    pub sent: u64,
    /// Messages that were given up.
    pub failed: u64,
    /// Messages that were dropped, or merged into others.
    pub dropped: u64,
    /// Messages that were still waiting, or under way, when the time was up.
    pub unsent: u64,
    /// What went wrong last, without secrets.
    pub last_error: Option<String>,
}

/// What came of all messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// A line for each service, in the order of the settings.
    pub senders: Vec<SenderReport>,
}

impl Report {
    /// Whether every message arrived, those that were merged or dropped for newer ones aside.
    pub fn all_arrived(&self) -> bool {
        self.senders.iter().all(|sender| sender.failed == 0 && sender.unsent == 0)
    }
}

impl Notifier {
    /// Starts a thread for each service. Nothing is sent yet.
    /// Errors: a service lacks a secret or a setting, or one of them can't be used.
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
        let (mut told, redactor) = (Vec::new(), secrets.redactor());
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
            told.push(Told { service, queue, gate: Mutex::new(gate) });
        }
        Ok(Self { told, redactor })
    }

    /// Whether somebody wants to hear of progress after this step. Cheap: for every step of a run.
    pub fn is_progress_due(&self, step: u64) -> bool {
        self.told.iter().any(|told| told.is_due(step, false))
    }

    /// Tells a message to whom it concerns. Never waits for a server. Progress goes where it is due; mails are for what
    /// a person wants to know at once, and for progress.
    pub fn tell(&self, message: &Message) {
        // Of a program that was run, a message may quote what it said.
        let mut message = message.clone();
        message.text = self.redactor.redact(&message.text);
        message.advice = message.advice.map(|advice| self.redactor.redact(&advice));
        for told in &self.told {
            let concerned = match message.kind {
                Kind::Progress => told.is_due(message.step.unwrap_or(0), true),
                Kind::Checkpoint => told.service != Service::Mail,
                _ => true,
            };
            if concerned {
                told.queue.put(|queue, counts| queue.push(counts, message.clone()));
            }
        }
    }

    /// Sends what waits, for `timeout` at most; what must arrive goes first.
    pub fn finish(self, timeout: Duration) -> Report {
        let deadline = Instant::now() + timeout;
        for told in &self.told {
            told.queue.close(deadline, Queue::close);
        }
        let report = |told: &Told| {
            let (counts, unsent) = told.queue.wait_for_end(deadline, Queue::left);
            SenderReport {
                service: told.service,
                sent: counts.done,
                failed: counts.failed,
                dropped: counts.dropped,
                unsent,
                last_error: counts.last_error,
            }
        };
        Report { senders: self.told.iter().map(report).collect() }
    }
}

impl Told {
    /// Whether progress is due after this step; with `and_take`, the next is then due later.
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

/// What sends by a service.
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
        true => Ok(variables.map(|variable| secrets.get(variable).expect("it was looked for").clone())),
        false => Err(NotifyError::MissingSecret { service, variables: missing }),
    }
}

fn poster(url: &Secret, variable: &'static str, token: Option<Secret>, timing: &Timing) -> Result<Poster, NotifyError> {
    let address = Address::new(url).map_err(|reason| NotifyError::BadAddress { variable, reason })?;
    Ok(Poster::new(address, token, timing))
}
