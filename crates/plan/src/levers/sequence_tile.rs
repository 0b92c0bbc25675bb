//! Tiles of the sequence: blocks pass this many rows at a time through everything after attention, so that the widest tensors
//! exist for one tile only. The gradient computes them again. A parameter of the graph (`plimsoll_graph::TrainShape`).
//!
//! Sums over rows are added up tile by tile, so gradients of weights are those without tiles up to rounding, as with another
//! micro-batch. Where it is left open it is used only if nothing fits without.

use super::{Alternative, Lever};
use crate::request::Request;
use crate::settings::{Level, LeverRequest, Levers, Recompute, SequenceTile, Settings};

/// Rows of a tile: enough for a card's products to be as fast as with all rows. In bf16 the feed-forward layer of
/// Llama-3.1-8B takes some 60 MB for each of its tensors.
const ROWS: usize = 2048;

/// The request with tiles, if it leaves them open, its samples are longer than a tile, and blocks may be recomputed.
pub(crate) fn in_tiles(request: &Request) -> Option<Request> {
    let may_recompute = request.levers.recompute.is_none_or(|recompute| recompute == Recompute::all(Level::Block));
    if request.levers.sequence_tile.is_some() || request.seq_len <= ROWS || !may_recompute {
        return None;
    }
    let mut tiled = request.clone();
    tiled.levers.sequence_tile = Some(SequenceTile::Rows(ROWS));
    Some(tiled)
}

pub(super) struct SequenceTileLever;

impl Lever for SequenceTileLever {
    fn name(&self) -> &'static str {
        "sequence-tile"
    }

    fn describe(&self, now: &Settings, request: &Request) -> String {
        let all = request.rows(now.micro_batch) * request.seq_len;
        match now.levers.sequence_tile {
            Some(rows) if rows < all => format!("{rows} of {all} rows"),
            _ => "off".to_owned(),
        }
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { sequence_tile: None, ..now.levers }, ..*now }
    }

    fn further(&self, request: &Request) -> Vec<Alternative> {
        if request.levers.sequence_tile != Some(SequenceTile::Off) {
            return Vec::new();
        }
        let tile = |levers: &mut LeverRequest| levers.sequence_tile = Some(SequenceTile::Rows(ROWS));
        vec![Alternative::of_lever(self, ROWS, request, tile)]
    }

    fn leave_open(&self, levers: &mut LeverRequest) -> bool {
        levers.sequence_tile.take().is_some()
    }
}
