//! The supported services.

use std::fmt;
use std::str::FromStr;

/// A notification service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// SMTP with TLS.
    Mail,
    /// A Discord webhook.
    Discord,
    /// An incoming Slack webhook.
    Slack,
    /// A Telegram bot.
    Telegram,
    /// Push messages through ntfy.sh or a self-hosted server.
    Ntfy,
    /// JSON to any URL.
    Webhook,
}

/// An unknown service name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown service `{name}`; use mail, discord, slack, telegram, ntfy or webhook")]
pub struct UnknownService {
    /// The given name.
    pub name: String,
}

impl Service {
    /// All services.
    pub const ALL: [Self; 6] = [Self::Mail, Self::Discord, Self::Slack, Self::Telegram, Self::Ntfy, Self::Webhook];

    /// The name used in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mail => "mail",
            Self::Discord => "discord",
            Self::Slack => "slack",
            Self::Telegram => "telegram",
            Self::Ntfy => "ntfy",
            Self::Webhook => "webhook",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Service {
    type Err = UnknownService;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.trim().to_ascii_lowercase();
        let found = Self::ALL.into_iter().find(|service| service.name() == name);
        found.ok_or_else(|| UnknownService { name: text.trim().to_owned() })
    }
}
