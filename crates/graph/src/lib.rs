//! The computation: tensors, ops, programs, their gradients, and the models built from them.
//!
//! Pure: no clock, no files, no threads. `plan` decides where bytes are stored and when ops run; `exec` runs them. Read
//! next: `tensor.rs`, `ops/mod.rs`, `gradient.rs`, `training.rs`.

mod adaptable;
mod adapter_file;
mod adapter_parameters;
mod adapter_targets;
mod adapters;
mod embedding;
mod error;
mod gradient;
mod magnitudes;
mod memory;
pub mod models;
mod noise;
pub mod ops;
pub mod optimizers;
mod pass;
mod program;
mod program_name;
mod row_tiles;
mod target;
mod tensor;
mod training;
mod weight_codes;

pub use adaptable::{ADAPTER_PREFIX, LayerRole, LinearLayer};
pub use adapter_file::{AdapterFile, AdapterFileError, BASE_COPY};
pub use adapter_targets::{AdapterError, AdapterSettings, AdapterTargets};
pub use adapters::{Adapter, Adapters};
pub use embedding::{EmbedShape, build_embedding};
pub use error::GraphError;
pub use gradient::differentiate;
pub use memory::{ALIGNMENT, Link, Memories, Memory, MemoryId, MemoryKind, MemorySet, PerMemory};
pub use ops::{Access, Backward, Emit, Example, Fill, Io, Op, Operation, Scalars};
pub use optimizers::Optimizer;
pub use pass::Pass;
pub use program::{
    Coded, Graph, Node, OutputNorms, Parameter, Ports, Program, ProgramBuilder, StoredPiece, TensorIds, Training,
};
pub use program_name::{Lengths, NoProgramName, ProgramKind, ProgramName, first_of_step};
pub use target::{DeviceKind, OLDEST_WITH_FP8, Products, Target, Targets};
pub use tensor::{DType, Init, Role, Shape, Storage, Tensor, TensorId, TensorType};
pub use training::{Contrastive, Objective, Preferences, SampleShape, TrainShape, build_sampling, build_training};
pub use weight_codes::{NESTED_BLOCK, NF4_BLOCK, WeightCodes};
