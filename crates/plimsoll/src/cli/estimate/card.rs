//! The card that a run is estimated for: by its name, by its memory, or the first of this machine.

use super::args::EstimateArgs;
use crate::cli::Failure;
use crate::cli::budget::{VRAM_MAX, refuse_size};
use ::plimsoll_plan::{card, card_of_memory, card_with_memory};
use plimsoll_eager::Gpu;
use plimsoll_telemetry::gpus;
use plimsoll_units::Bytes;

/// Left free by default: what a display and the driver take, and by how much CUDA's context is known.
pub(super) const MARGIN: Bytes = Bytes::mib(512);

/// A driver reports some percent less than a card is sold with.
const REPORTED_PART: (u64, u64) = (98, 100);

/// Cards are counted as this one where only their memory is known and no such card is: of the family of the RTX 3090.
const USUAL: (u8, u8) = (8, 6);

/// A card, and how much of it may be taken.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    /// Its name, or its memory.
    pub(super) name: String,
    /// All of its memory, as a driver reports it.
    pub(super) memory: Bytes,
    /// Kept free of it.
    pub(super) margin: Bytes,
    pub(super) compute_capability: (u8, u8),
}

impl Asked {
    /// The card less the margin.
    pub(super) fn gpu(&self) -> Gpu {
        Gpu { memory: self.memory.saturating_sub(self.margin), compute_capability: self.compute_capability }
    }
}

/// The card that is asked for. None: none is, and none is here. Errors: no such card is known.
pub(super) fn asked(args: &EstimateArgs) -> Result<Option<Asked>, Failure> {
    let margin = args.vram_margin.unwrap_or(MARGIN);
    let asked = |name: String, memory: Bytes, compute_capability| Asked { name, memory, margin, compute_capability };
    let asked = match (&args.gpu, args.vram) {
        (Some(name), _) => {
            let card = card(name)?;
            let (part, whole) = REPORTED_PART;
            let memory = if card.memory_is_reported { card.memory } else { Bytes(card.memory.0 / whole * part) };
            Some(asked(card.name.to_owned(), memory, card.compute_capability))
        }
        (None, Some(vram)) => {
            refuse_size("--vram", vram, VRAM_MAX)?;
            let of_table = card_of_memory(vram).map_or(USUAL, |card| card.compute_capability);
            Some(asked(format!("a card of {vram}"), vram, of_table))
        }
        (None, None) => gpus().ok().and_then(|found| found.cards.into_iter().next()).map(|found| {
            let of_table = card_with_memory(&found.name, found.total).map_or(USUAL, |card| card.compute_capability);
            asked(found.name, found.total, of_table)
        }),
    };
    match asked {
        Some(asked) if asked.margin >= asked.memory => {
            let Asked { memory, margin, .. } = asked;
            let message = format!("nothing is left of {memory} after a margin of {margin}");
            Err(Failure::bad_flag(message).hint("use a smaller `--vram-margin`, or a larger `--vram`"))
        }
        asked => Ok(asked),
    }
}
