//! Loads secrets from the environment, a named file, and a `.env`, in this order of priority. Each value is wrapped as
//! soon as it is read.

use crate::error::SecretsError;
use crate::secret::{Redactor, Secret};
use crate::secret_files;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// The variables that are read, each with its meaning.
pub const VARIABLES: [(&str, &str); 11] = [
    ("PLIMSOLL_SMTP_USER", "user name for the mail server"),
    ("PLIMSOLL_SMTP_PASSWORD", "password for the mail server"),
    ("PLIMSOLL_DISCORD_WEBHOOK", "URL of a Discord webhook"),
    ("PLIMSOLL_SLACK_WEBHOOK", "URL of a Slack webhook"),
    ("PLIMSOLL_TELEGRAM_TOKEN", "token of a Telegram bot"),
    ("PLIMSOLL_TELEGRAM_CHAT", "ID of the chat that the bot posts to"),
    ("PLIMSOLL_TELEGRAM_SERVER", "self-hosted Bot API server"),
    ("PLIMSOLL_NTFY_TOPIC", "ntfy topic"),
    ("PLIMSOLL_NTFY_TOKEN", "ntfy access token, if the topic needs one"),
    ("PLIMSOLL_NTFY_SERVER", "self-hosted ntfy server"),
    ("PLIMSOLL_WEBHOOK_URL", "URL that receives JSON"),
];

/// The variables of trackers, with the names that the trackers' own programs use.
pub const TRACKER_VARIABLES: [(&str, &str); 5] = [
    ("WANDB_API_KEY", "API key of Weights & Biases"),
    ("MLFLOW_TRACKING_URI", "URL of an MLflow server"),
    ("MLFLOW_TRACKING_TOKEN", "token for the MLflow server"),
    ("MLFLOW_TRACKING_USERNAME", "user name for the MLflow server"),
    ("MLFLOW_TRACKING_PASSWORD", "password for the MLflow server"),
];

/// Aliases that other programs use for these variables. The variable's own name takes precedence.
const ALIASES: [(&str, &str); 2] =
    [("DISCORD_WEBHOOK", "PLIMSOLL_DISCORD_WEBHOOK"), ("DISCORD_WEBHOOK_URL", "PLIMSOLL_DISCORD_WEBHOOK")];

/// Variables with other programs' secrets: not used here, but removed from every text that is sent.
const OTHERS: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// Variables that name a server, each with the secrets that are sent to it.
const SERVERS: [(&str, &[&str]); 3] = [
    ("PLIMSOLL_TELEGRAM_SERVER", &["PLIMSOLL_TELEGRAM_TOKEN", "PLIMSOLL_TELEGRAM_CHAT"]),
    ("PLIMSOLL_NTFY_SERVER", &["PLIMSOLL_NTFY_TOKEN", "PLIMSOLL_NTFY_TOPIC"]),
    ("MLFLOW_TRACKING_URI", &["MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"]),
];

/// The values of [`VARIABLES`] and [`TRACKER_VARIABLES`]. `Debug` shows which are set, but not their values.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    values: BTreeMap<&'static str, Secret>,
    others: Vec<Secret>,
}

impl Secrets {
    /// Loads the environment, a file, and a `.env` if there is one. A `.env` without any variable of Plimsoll belongs
    /// to another program, and is not checked. A `.env` may come from another person's folder, so the servers that it
    /// names receive only secrets that it contains itself.
    /// Errors: a file with secrets that other users can read, or that cannot be read; an invalid value; a `.env` that
    /// names a server for a secret from the environment or the file.
    pub fn load(
        environment: impl Fn(&str) -> Option<OsString>,
        file: Option<&Path>,
        dot_env: Option<&Path>,
    ) -> Result<Self, SecretsError> {
        let mut secrets = Self::default();
        for (variable, _) in all_variables() {
            let aliases = ALIASES.iter().filter(|(_, of)| *of == variable).map(|(alias, _)| *alias);
            let value = [variable].into_iter().chain(aliases).filter_map(&environment).find(|value| !value.is_empty());
            if let Some(value) = value {
                secrets.add(variable, value.to_str().ok_or(SecretsError::Characters { variable })?)?;
            }
        }
        let others = OTHERS.into_iter().filter_map(|variable| environment(variable)?.into_string().ok());
        secrets.others = others.filter(|value| !value.is_empty()).map(Secret::new).collect();
        if let Some(path) = file {
            let found = secret_files::read(path)?;
            if let Some(problem) = found.problem {
                return Err(problem);
            }
            if !secrets.add_all(&found.pairs)? {
                return Err(SecretsError::Nothing { path: path.to_owned() });
            }
        }
        if let Some(path) = dot_env {
            match secret_files::read(path) {
                Ok(found) => match found.problem {
                    Some(problem) if found.pairs.iter().any(|(key, _)| known(key).is_some()) => return Err(problem),
                    _ => {
                        secrets.refuse_foreign_server(&found.pairs, path)?;
                        secrets.add_all(&found.pairs)?;
                    }
                },
                Err(SecretsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(secrets)
    }

    /// A variable's value.
    pub fn get(&self, variable: &str) -> Option<&Secret> {
        self.values.get(variable)
    }

    /// Whether a variable has a value.
    pub fn has(&self, variable: &str) -> bool {
        self.values.contains_key(variable)
    }

    /// A redactor for all of them.
    pub fn redactor(&self) -> Redactor {
        let mut all = self.values.values().chain(&self.others).cloned().collect::<Vec<_>>();
        // The credentials as `AUTH PLAIN` sends them. Source: RFC 4616.
        if let (Some(user), Some(password)) = (self.get("PLIMSOLL_SMTP_USER"), self.get("PLIMSOLL_SMTP_PASSWORD")) {
            all.push(Secret::new(format!("\0{}\0{}", user.expose(), password.expose())));
        }
        Redactor::new(&all)
    }

    /// Errors: a server named by a `.env` would receive a secret from another source.
    fn refuse_foreign_server(&self, pairs: &[(String, String)], path: &Path) -> Result<(), SecretsError> {
        let is_named =
            |server: &str| !self.has(server) && pairs.iter().any(|(key, value)| key == server && !value.is_empty());
        for (server, sent) in SERVERS.into_iter().filter(|(server, _)| is_named(server)) {
            if let Some(secret) = sent.iter().find(|secret| self.has(secret)) {
                return Err(SecretsError::ForeignServer { path: path.to_owned(), server, secret });
            }
        }
        Ok(())
    }

    fn add_all(&mut self, pairs: &[(String, String)]) -> Result<bool, SecretsError> {
        let mut of_file = Self::default();
        // Aliases first, so that a variable's own name replaces them.
        let (own, aliases): (Vec<_>, Vec<_>) = pairs.iter().partition(|(key, _)| known(key) == Some(key));
        for (key, value) in aliases.into_iter().rev().chain(own) {
            if let Some(variable) = known(key) {
                of_file.add(variable, value)?;
            }
        }
        let any = !of_file.values.is_empty();
        for (variable, value) in of_file.values {
            self.values.entry(variable).or_insert(value);
        }
        Ok(any)
    }

    fn add(&mut self, variable: &'static str, value: &str) -> Result<(), SecretsError> {
        let value = value.trim();
        if value.chars().any(char::is_control) {
            return Err(SecretsError::Characters { variable });
        }
        if !value.is_empty() {
            self.values.insert(variable, Secret::new(value));
        }
        Ok(())
    }
}

fn all_variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    VARIABLES.into_iter().chain(TRACKER_VARIABLES)
}

fn known(key: &str) -> Option<&'static str> {
    let named = ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, variable)| variable);
    all_variables().map(|(name, _)| name).find(|name| *name == named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_discord_webhook_is_also_read_from_its_common_alias() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(".env");
        let discord = |environment: &[(&str, &str)], text: &str| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
            let of_environment =
                |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
            let secrets = Secrets::load(of_environment, None, Some(&path)).expect("secrets");
            secrets.get("PLIMSOLL_DISCORD_WEBHOOK").map(|secret| secret.expose().to_owned())
        };
        let both = "PLIMSOLL_DISCORD_WEBHOOK=own\nDISCORD_WEBHOOK=alias\n";
        assert_eq!(discord(&[], "DISCORD_WEBHOOK=alias\n").as_deref(), Some("alias"));
        assert_eq!(discord(&[], both).as_deref(), Some("own"));
        assert_eq!(discord(&[("DISCORD_WEBHOOK", "said")], both).as_deref(), Some("said"));
        assert_eq!(
            discord(&[("DISCORD_WEBHOOK", "said"), ("PLIMSOLL_DISCORD_WEBHOOK", "own")], "").as_deref(),
            Some("own")
        );
        assert_eq!(discord(&[], "OTHER=x\n"), None);
    }
}
