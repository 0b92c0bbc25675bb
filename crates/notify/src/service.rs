//! Which services there are.

use std::fmt;
use std::str::FromStr;

/// A way to reach somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// SMTP with TLS.
    Mail,
    /// A webhook of Discord's.
    Discord,
    /// An incoming webhook of Slack's.
    Slack,
    /// A bot of Telegram's.
    Telegram,
    /// Push messages by ntfy.sh or a server of one's own.
    Ntfy,
    /// JSON to any address.
    Webhook,
}

/// A name that no service has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no service; known are mail, discord, slack, telegram, ntfy and webhook")]
pub struct UnknownService {
    /// What was written.
    pub name: String,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Mail, Self::Discord, Self::Slack, Self::Telegram, Self::Ntfy, Self::Webhook];

    /// As it is written in settings.
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
