//! The speed of a GPU: measured, or from its data sheet.

use super::Failure;
use super::machine::known;
use ::plimsoll_plan::{Card as PaperCard, Machine, Rates, card_with_memory, cards};
use ::plimsoll_train::CalibrationSubject;
use plimsoll_exec::cuda::{Card, OLDEST_WITH_TF32};
use plimsoll_graph::Products;
use std::path::Path;

/// The conditions for which to find a GPU's speed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speed<'a> {
    /// Whether products in single precision round their operands to TF32.
    pub(super) tf32: bool,
    /// The implementation of matrix products.
    pub(super) products: Products,
    /// The file of measurements; `None` for the default file of `calibrate`.
    pub(super) measured: Option<&'a Path>,
}

/// The speed of a GPU, and a message with its source: measurements, else the data sheet of its name, or of the most similar
/// GPU.
pub(super) fn speed_of(card: &Card, threads: usize, speed: Speed) -> Result<(Machine, String), Failure> {
    let (paper, is_the_card) = on_paper(card);
    let other = if is_the_card { String::new() } else { format!("; unknown GPU {}", card.name) };
    speed_by_name(&card.name, (paper, &other), threads, speed)
}

/// Like [`speed_of`], for the GPU of this name. `paper`: its data sheet; `said`: a remark about the data sheet's source.
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

/// Checks that a GPU has TF32. Errors: it has none.
pub(super) fn check_tf32(name: &str, compute_capability: (u8, u8)) -> Result<(), Failure> {
    if compute_capability >= OLDEST_WITH_TF32 {
        return Ok(());
    }
    let ((major, minor), (first, then)) = (compute_capability, OLDEST_WITH_TF32);
    let message =
        format!("{name} has no TF32: its compute capability is {major}.{minor}, TF32 needs {first}.{then} or newer");
    Err(Failure::bad_flag(message).hint("`--tf32 off` computes in single precision"))
}

/// The data sheet of a GPU, or of the most similar GPU by compute capability and memory; and whether it is the GPU's own.
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
