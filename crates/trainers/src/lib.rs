//! What a PyTorch trainer is told: the run itself (`run.rs`).
//! Not here: what it costs in memory, processes, files.

mod run;

pub use run::{
    Attention, Checkpointing, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Run, Sharding, Targets,
};
