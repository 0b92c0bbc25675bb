//! Training inside a plan: the loop, learning-rate schedule, checkpoints, evaluation, sampling, and the report.
//!
//! Not here: flags and settings files, terminals, signals. Read next: `trainer.rs`, `engine.rs`, `checkpoint/`.

mod bench;
mod calibrate;
pub mod checkpoint;
mod embed;
mod ending;
mod engine;
mod error;
mod evaluate;
mod folder;
mod footprint;
mod generate;
mod history;
mod loss_check;
mod loss_scale;
mod machine_file;
mod norms;
mod outcome;
mod pace;
mod position;
mod profile;
mod reference_point;
mod report;
mod rewards;
mod run;
mod saving;
mod schedule;
mod session;
mod sinks;
mod start;
mod step;
mod trainer;
mod undo;

pub use bench::{BenchResult, RandomStep, bench, random_step};
pub use calibrate::{
    Agreement, Calibration, CalibrationError, Comparison, Stage, agreement, calibrate, compare_predictions,
};
pub use embed::{Embedder, normalize};
pub use engine::{Engine, Feed};
pub use error::TrainError;
pub use evaluate::{HeldOutLoss, evaluate};
pub use folder::{FolderError, RunFolder};
pub use footprint::Footprint;
pub use generate::{Sampling, Writer, choose};
pub use history::History;
pub use loss_check::{LOSS_TOLERANCE, LossCheck, check_losses};
pub use loss_scale::LossScale;
pub use machine_file::{CalibrationSubject, MachineFile, MachineFileError};
pub use outcome::Outcome;
pub use pace::{Ending, MicroBatch, Pace, UnlimitedPace, monotonic};
pub use position::Position;
pub use profile::{Profile, TimedStep};
pub use report::{Evaluation, Measured, MemoryAtStep, PlanSummary, Report, percentile};
pub use run::{Base, Start, Trainer, TrainerConfig};
pub use schedule::{Length, Progress, Schedule, Shape};
pub use trainer::Started;
