//! Passwords, tokens and secret URLs: loaded from the environment and from private files, and removed from text that leaves
//! the process. And what clients of servers share that receive them: delays before retries, and the hosts that are reached
//! without a network. Not here: the servers' formats (`plimsoll-notify`, `plimsoll-trackers`, `plimsoll-hub`).

mod backoff;
mod error;
mod loopback;
mod secret;
mod secret_files;
mod secrets;

pub use backoff::{Backoff, retry_after};
pub use error::SecretsError;
pub use loopback::is_loopback;
pub use secret::{Redactor, Secret};
pub use secrets::{Secrets, TRACKER_VARIABLES, VARIABLES};
