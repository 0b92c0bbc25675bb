//! A training run with all that acts on it while it trains: heat slows it, orders pause it, stop it or give it another budget,
//! for which it is planned again; samples, health findings and energy are recorded.
//!
//! ```text
//!   SessionSettings ─► Session ─► run ─► Outcome         session.rs
//!                        │  ▲
//!       Backend: plan, load │                            backend.rs   plans and devices
//!       Observer: events ◄──┤                            observer.rs  what a caller sees
//!       Control: orders ────┘                            control.rs   what other threads ask
//!
//!   samples ─► watched.rs ─► speed limit ──────────────┐
//!              memory.rs ─► budget, wait, save, stop ──┤
//!   listener.rs, orders.rs ─► pause, budget, stop ─────┴─► pace.rs, between micro-batches and steps
//!                                                          waiting.rs, without memory
//! ```
//!
//! Not here: the loop (`plimsoll-train`), the decisions about heat (`plimsoll-heat`), and everything that is printed.
//!
//! # Example
//!
//! Trains `nano` for two steps in 64 MiB; budgets and sizes are in bytes, sequences in tokens.
//!
//! ```
//! use plimsoll_data::{Batches, Dataset, HeldOut, Split, TokenStore, Tokenizer, TokenizerSpec, model_files};
//! use plimsoll_exec::CpuDevice;
//! use plimsoll_graph::{Targets, models::ModelConfig};
//! use plimsoll_plan::{Budget, Machine, Rates, Request, search};
//! use plimsoll_session::{OnDevice, Session, SessionSettings, System, Unobserved};
//! use plimsoll_train::{checkpoint::ModelFolder, Length, RunFolder, Schedule, Shape, Start, TrainerConfig};
//! use plimsoll_units::Bytes;
//! use std::sync::Arc;
//!
//! let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes)?;
//! let mut model = ModelConfig::preset("nano")?;
//! model.set_vocab_size(tokenizer.vocab_size());
//!
//! // 4,096 tokens of text, in samples of 32.
//! let tokens = (0..4096).map(|i| i % 97).collect::<Vec<u32>>();
//! let store = TokenStore::in_memory(&tokens, tokenizer.vocab_size(), Bytes(4096));
//! let dataset = Dataset::Windows(Batches::new(store, 32, Split { seed: 1, held_out: HeldOut::Nothing })?);
//!
//! // A plan for steps of 4 samples in 64 MiB.
//! let machine = Machine::of_rates(Rates::guess(1));
//! let mut request = Request::new(model.clone(), Targets::cpu(1), machine);
//! (request.global_batch, request.seq_len) = (4, 32);
//! request.budget = Budget::shared(Bytes::mib(64));
//! let found = search(&request)?.expect("nano fits in 64 MiB");
//!
//! let folder = tempfile::tempdir()?;
//! let files = model_files(&tokenizer, None, None, None)?;
//! let settings = SessionSettings {
//!     folder: RunFolder::open(&folder.path().join("run"), false)?,
//!     start: Start::Fresh,
//!     trainer: TrainerConfig {
//!         name: "run".to_owned(),
//!         model_name: "nano".to_owned(),
//!         model_folder: ModelFolder::new(&model, &tokenizer, &Default::default(), None, files),
//!         model,
//!         length: Length::MaxSteps(2),
//!         schedule: Schedule { shape: Shape::Constant, decay_part: 0.2, learning_rate: 1e-3, warmup_steps: 0, final_part: 1.0 },
//!         seed: 1,
//!         eval_every: None,
//!         eval_samples: 1,
//!         checkpoint_every: None,
//!         checkpoint_time_part: None,
//!         keep_checkpoints: 1,
//!         tokenizer: tokenizer.spec().to_string(),
//!         precision: "fp32".to_owned(),
//!         loss_scale: None,
//!         base: None,
//!         safe_settings: None,
//!     },
//!     dataset: Arc::new(dataset),
//!     found,
//!     card: None,
//!     watch: None,
//!     notices: Arc::new(|_| {}),
//!     surroundings: Arc::new(System),
//! };
//! let mut session = Session::new(settings, OnDevice::new(request, || Ok(Box::new(CpuDevice::new()))))?;
//! let outcome = session.run(&mut Unobserved)?;
//! assert_eq!(outcome.report.losses.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backend;
mod control;
mod error;
mod heat;
mod listener;
mod memory;
mod notice;
mod observer;
mod orders;
mod pace;
mod power;
mod room;
mod samples;
mod session;
mod shared_memory;
mod surroundings;
mod waiting;
mod watch;
mod watched;

pub use backend::{Backend, OnDevice, arenas, exchange, same_sums};
pub use control::{Control, SampleTap};
pub use error::SessionError;
pub use heat::{Guarded, HeatMessage};
pub use memory::{MemoryReader, MemorySettings, UsableMemory};
pub use notice::{Notice, Notices};
pub use observer::{Observer, Setup, Unobserved};
pub use power::CardPower;
pub use room::DiskRoom;
pub use samples::KeptSamples;
pub use session::{Session, SessionSettings};
pub use surroundings::{EachSample, Repeated, Surroundings, System};
pub use watched::WatchSettings;
