//! Plans of whole models, and the search that chooses one.

mod base_weights;
mod chosen;
mod effects;
mod engines;
mod fp8;
mod memories;
mod packing;
mod plans;
mod prices;
mod queues;
mod search;
mod sent;
mod sequence_tile;
