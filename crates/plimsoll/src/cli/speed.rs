//! How fast a card is: by what was measured, else by its data sheet.

use super::Failure;
use super::machine::known;
use ::plimsoll_plan::{Card as PaperCard, Machine, Rates, card_with_memory, cards};
use ::plimsoll_train::CalibrationSubject;
use plimsoll_exec::cuda::{Card, OLDEST_WITH_TF32};
use plimsoll_graph::Products;
use std::path::Path;

/// What a card's speed is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speed<'a> {
    /// Whether products in single precision round their operands to TF32.
    pub(super) tf32: bool,
    /// What multiplies matrices.
    pub(super) products: Products,
    /// The file of measurements; `None` for the one that `calibrate` writes.
    pub(super) measured: Option<&'a Path>,
}

/// What is known of the speed of a card, with products in TF32 or without: what was measured, else what its namesake's data
/// sheet says, or that of the most alike.
pub(super) fn speed_of(card: &Card, threads: usize, speed: Speed) -> Result<(Machine, String), Failure> {
    let (paper, is_the_card) = on_paper(card);
    let other = if is_the_card { String::new() } else { format!("; {} is not known", card.name) };
    speed_by_name(&card.name, (paper, &other), threads, speed)
}

/// Like [`speed_of`], of the card of this name, of which this is known on paper, and said of that.
pub(super) fn speed_by_name(
    name: &str,
    (paper, said): (&'static PaperCard, &str),
    threads: usize,
    Speed { tf32, products, measured }: Speed,
) -> Result<(Machine, String), Failure> {
    let source = format!(" from the data sheet of {} ({}{said})", paper.name, paper.source);
    let rates = Rates::of_card(paper);
    let rates = if tf32 { rates.in_tf32(paper) } else { rates };
    known(CalibrationSubject { threads, card: Some(name), tf32, products }, (rates, &source), measured)
}

/// Whether a card can be asked for TF32. Errors: it has none.
pub(super) fn check_tf32(name: &str, compute_capability: (u8, u8)) -> Result<(), Failure> {
    if compute_capability >= OLDEST_WITH_TF32 {
        return Ok(());
    }
    let ((major, minor), (first, then)) = (compute_capability, OLDEST_WITH_TF32);
    let message =
        format!("{name} has no TF32: its compute capability is {major}.{minor}, TF32 came with {first}.{then}");
    Err(Failure::bad_flag(message).hint("`--tf32 off` computes in single precision"))
}

/// A card's figures, or those of a card that computes alike and has about as much memory; and whether it is the card.
pub(super) fn on_paper(card: &Card) -> (&'static PaperCard, bool) {
    if let Ok(paper) = card_with_memory(&card.name, card.memory) {
        return (paper, true);
    }
    let far = |paper: &&PaperCard| {
        let (major, minor) = card.compute_capability;
        let (other, other_minor) = paper.compute_capability;
        (major.abs_diff(other), minor.abs_diff(other_minor), card.memory.0.abs_diff(paper.memory.0))
    };
    (cards().iter().min_by_key(far).expect("a table of cards"), false)
}
