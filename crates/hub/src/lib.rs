//! Model weights from the Hugging Face hub: the local cache of its tools, and downloads into that cache.
//!
//! ```text
//!   name ─► cached.rs: in a folder, in the cache, or missing
//!               └─► download.rs ─► client.rs (requests) ─► store.rs (the cache's layout)
//! ```
//! Not here: flags, bars and hints (`plimsoll`), reading the weights (`plimsoll-train`).
//!
//! Files become visible under their names once they are complete and their hashes match. The client follows redirects itself,
//! so that the token is sent to the endpoint only.

mod cached;
mod client;
mod download;
mod error;
mod index;
mod steady;
mod store;

pub use cached::{Weights, cache, cached_config, has_weights, is_hub_name, weights};
pub use download::{Parts, Progress, download};
pub use error::{DownloadError, HubError, SettingError};

/// The hub's own address.
pub const HUB: &str = "https://huggingface.co";
