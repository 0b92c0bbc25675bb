//! The training loop, schedules, checkpoints, evaluation and sampling.
