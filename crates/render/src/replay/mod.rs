//! The analysis of a snapshot of PyTorch's memory: as text, as JSON, as a page and as a picture.

mod charts;
mod json;
mod page;
mod text;

#[cfg(test)]
mod tests;

pub use json::replay_json;
pub use page::{replay_html, replay_svg};
pub use text::replay_text;

use plimsoll_torch_memory::examine::Examined;
use plimsoll_torch_memory::findings::Owners;
use plimsoll_torch_memory::snapshot::{AllocatorSettings, Snapshot};
use plimsoll_torch_memory::what_if::Outcome;

/// The contents of the report.
pub struct ReplayReport<'a> {
    /// The file's name.
    pub name: &'a str,
    /// Its contents.
    pub snapshot: &'a Snapshot,
    /// The owners of its stacks.
    pub owners: &'a Owners,
    /// The analysis of each card.
    pub cards: &'a [Examined<'a>],
}

/// The line that sets an allocator.
fn line_of(settings: &AllocatorSettings) -> String {
    format!("PYTORCH_CUDA_ALLOC_CONF={}", settings.conf())
}

/// The reserved bytes beyond the peak in use.
fn wasted(card: &Examined, outcome: &Outcome) -> u64 {
    outcome.peak_reserved.saturating_sub(card.at_its_peak().requested)
}

/// Possible reasons for a difference between the simulation and the recording.
fn reasons(report: &ReplayReport, card: &Examined) -> Vec<String> {
    let agreement = &card.replay.agreement;
    let settings = &report.snapshot.settings;
    let mut reasons = vec![];
    if agreement.is_whole() {
        return reasons;
    }
    if agreement.contradictions > 0 {
        reasons.push(format!(
            "{} events and blocks contradict each other: other threads continued while the snapshot was made, or the file is \
             damaged",
            agreement.contradictions
        ));
    }
    if !report.snapshot.settings_recorded {
        reasons.push("the file does not record the allocator's settings; PyTorch's defaults are assumed".to_owned());
    }
    if settings.garbage_collection_threshold > 0.0 {
        reasons.push(
            "with garbage_collection_threshold, the released blocks depend on ages from before the recording, and on a limit \
             that the file does not have"
                .to_owned(),
        );
    }
    if !card.replay.start.private.is_empty() {
        reasons.push(
            "pools of CUDA graphs and of MemPool: the pool of an allocation is not recorded after its segment is freed"
                .to_owned(),
        );
    }
    if card.replay.start.blocks.iter().any(|block| block.bytes > settings.rounded(block.requested)) {
        reasons.push(
            "blocks from before the recording may be larger than requested; their ends are not recorded".to_owned(),
        );
    }
    reasons.push("settings may have changed during the run; the file has the last ones".to_owned());
    reasons
}
