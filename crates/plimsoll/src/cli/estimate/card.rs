//! The card of an estimate: by its name, by its memory, or the first of this machine.

use super::args::EstimateArgs;
use crate::cli::Failure;
use crate::cli::budget::{VRAM_MAX, refuse_size};
use ::plimsoll_plan::{assumed_card, card, card_with_memory};
use plimsoll_eager::Gpu;
use plimsoll_telemetry::gpus;
use plimsoll_units::Bytes;

/// Memory to leave free by default: for a display and the driver, and for the uncertainty of CUDA's context.
pub(super) const MARGIN: Bytes = Bytes::mib(512);

/// The share of a card's memory that a driver reports.
const REPORTED_PART: (u64, u64) = (98, 100);

/// A card, and how much of it the run may use.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TargetCard {
    /// Its name, or its memory.
    pub(super) name: String,
    /// All of its memory, as a driver reports it.
    pub(super) memory: Bytes,
    /// The part to leave free.
    pub(super) margin: Bytes,
    pub(super) compute_capability: (u8, u8),
}

impl TargetCard {
    /// The card without the margin.
    pub(super) fn gpu(&self) -> Gpu {
        Gpu { memory: self.memory.saturating_sub(self.margin), compute_capability: self.compute_capability }
    }
}

/// The requested card. `None` if none was requested and this machine has none. Errors: the card is unknown.
pub(super) fn target_card(args: &EstimateArgs) -> Result<Option<TargetCard>, Failure> {
    let margin = args.vram_margin.unwrap_or(MARGIN);
    let of = |name: String, memory: Bytes, compute_capability| TargetCard { name, memory, margin, compute_capability };
    let card = match (&args.gpu, args.vram) {
        (Some(name), _) => {
            let card = card(name)?;
            let (part, whole) = REPORTED_PART;
            let memory = if card.memory_is_reported { card.memory } else { Bytes(card.memory.0 / whole * part) };
            Some(of(card.name.to_owned(), memory, card.compute_capability))
        }
        (None, Some(vram)) => {
            refuse_size("--vram", vram, VRAM_MAX)?;
            Some(of(format!("a GPU with {vram}"), vram, assumed_card().compute_capability))
        }
        (None, None) => gpus().ok().and_then(|found| found.cards.into_iter().next()).map(|found| {
            let card = card_with_memory(&found.name, found.total).unwrap_or(assumed_card());
            of(found.name, found.total, card.compute_capability)
        }),
    };
    match card {
        Some(card) if card.margin >= card.memory => {
            let TargetCard { memory, margin, .. } = card;
            let message = format!("nothing is left of {memory} after a margin of {margin}");
            Err(Failure::bad_flag(message).hint("use a smaller `--vram-margin`, or a larger `--vram`"))
        }
        card => Ok(card),
    }
}
