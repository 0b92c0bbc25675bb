//! The speed of a GPU: measured, or from its data sheet.

use super::Failure;
use super::machine::known;
use ::plimsoll_plan::{Card as PaperCard, Machine, Rates, card_like};
use ::plimsoll_train::CalibrationSubject;
use plimsoll_exec::cuda::{Card, OLDEST_WITH_TF32};
use plimsoll_graph::Products;
use plimsoll_telemetry::{PcieLink, card_place};
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
    let link = card_place(&card.uuid).link;
    speed_by_name(&card.name, (paper, &other), link, threads, speed)
}

/// Like [`speed_of`], for the GPU of this name. `paper`: its data sheet; `said`: a remark about the data sheet's source; `link`:
/// its link to the host, if that is known.
pub(super) fn speed_by_name(
    name: &str,
    (paper, said): (&'static PaperCard, &str),
    link: Option<PcieLink>,
    threads: usize,
    Speed { tf32, products, measured }: Speed,
) -> Result<(Machine, String), Failure> {
    let of_paper = PcieLink { generation: paper.pcie_generation, lanes: paper.pcie_lanes };
    let link = link.unwrap_or(of_paper);
    let linked = match link == of_paper {
        true => String::new(),
        false => format!(", and its link, PCIe {} with {} lanes", link.generation, link.lanes),
    };
    let source = format!(" from the data sheet of {} ({}{said}){linked}", paper.name, paper.source);
    let rates = Rates::of_products(paper, products, tf32).over_link(link.generation, link.lanes);
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
    card_like(&card.name, card.memory, card.compute_capability)
}
