//! Levers: the choices by which a run is made to fit or made faster, one file each. A lever is a parameter or a
//! rewrite of the graph; no kernel, model or loop knows that it was pulled.

mod head_chunk;
mod micro_batch;
mod recompute;

pub use head_chunk::default_head_chunk;
pub use micro_batch::divisors;
pub use recompute::{Recompute, recompute};
