//! Plans of whole models, and the search that chooses one.

mod chosen;
mod effects;
mod memories;
mod packing;
mod plans;
mod prices;
mod queues;
mod search;
mod sent;
