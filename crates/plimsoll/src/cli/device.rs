//! The device of a plan: the processor, a GPU by name, or a GPU of this machine.

use super::Failure;
use super::budget::{Budget, BudgetArgs, CardMemory, OwnUse, Presence, is_more_than, refuse_size, vram_max_of};
use super::machine::known;
use super::processor::guessed_rates;
use super::speed::{Speed, check_tf32, speed_by_name};
use ::plimsoll_plan::{Card, Machine, Precision, Rates, card, card_with_memory};
use ::plimsoll_train::CalibrationSubject;
use plimsoll_graph::{Products, Targets};
use plimsoll_telemetry::{Gpu, GpuNote, Gpus, card_place, gpus};
use plimsoll_units::Bytes;
use std::path::Path;

/// A device with its budget and its speed.
#[derive(Debug, Clone)]
pub(super) struct Device {
    /// The name that users see.
    pub(super) name: String,
    pub(super) targets: Targets,
    pub(super) machine: Machine,
    pub(super) budget: Budget,
    /// The precision of `--precision auto`.
    pub(super) precision: Precision,
    /// Where predicted times come from.
    pub(super) times: String,
}

impl Device {
    /// The processor. Errors: no memory is left for a plan; the file of its speed can't be used.
    pub(super) fn processor(budget: &BudgetArgs, speed: Option<&Path>) -> Result<Self, Failure> {
        let threads = budget.threads()?;
        let subject = CalibrationSubject { threads, card: None, tf32: false, products: Products::Kernels };
        let (machine, times) = known(subject, (guessed_rates(threads), ""), speed)?;
        Ok(Self {
            name: "CPU".to_owned(),
            targets: Targets::cpu(threads),
            machine,
            budget: budget.budget()?,
            precision: Precision::Fp32,
            times,
        })
    }

    /// The GPU of this name; for `auto`, all GPUs of this machine that CUDA can see. Errors: there is no such GPU, no driver,
    /// or no TF32 on a GPU.
    pub(super) fn cards(name: &str, budget: &BudgetArgs, speed: Speed) -> Result<Vec<Self>, Failure> {
        if !name.eq_ignore_ascii_case("auto") {
            let card = card(name)?;
            check_vram(card, budget)?;
            let (name, total) = (card.name.to_owned(), card.memory);
            let memory = CardMemory { name, total, presence: Presence::Elsewhere { is_any: false } };
            if speed.tf32 {
                check_tf32(card.name, card.compute_capability)?;
            }
            return Ok(vec![Self::of_card(card, budget.of_card(memory)?, budget.threads()?, speed)]);
        }
        let found = gpus()?;
        let visible = found.cards.iter().filter(|gpu| gpu.cuda_index.is_some()).collect::<Vec<_>>();
        if visible.is_empty() {
            return Err(none_visible(&found));
        }
        visible.into_iter().map(|gpu| Self::present(gpu, budget, speed)).collect()
    }

    /// A GPU with the memory of `--vram`, otherwise like `card`. Errors: no memory is left for a plan.
    pub(super) fn of_vram(
        vram: Bytes,
        card: &'static Card,
        budget: &BudgetArgs,
        speed: Speed,
    ) -> Result<Self, Failure> {
        let name = format!("NVIDIA GPU with {vram}");
        let presence = Presence::Elsewhere { is_any: true };
        let memory = CardMemory { name: name.clone(), total: vram, presence };
        let times = format!("times are estimates from the data sheet of {}, assumed for any memory", card.name);
        let device = Self::of_card(card, budget.of_card(memory)?, budget.threads()?, speed);
        Ok(Self { name, times, ..device })
    }

    /// A GPU of this machine. The driver reports its memory; its speed is measured, or from the data sheet of its name.
    fn present(gpu: &Gpu, budget: &BudgetArgs, speed: Speed) -> Result<Self, Failure> {
        let card = card_with_memory(&gpu.name, gpu.total)?;
        if speed.tf32 {
            check_tf32(&gpu.name, card.compute_capability)?;
        }
        let used = gpu.used + gpu.reserved.unwrap_or(Bytes::ZERO);
        let place = card_place(&gpu.uuid);
        let drives_display = place.drives_display || cfg!(windows);
        let presence = Presence::Here { uuid: gpu.uuid.clone(), used, own: OwnUse::Known(Bytes::ZERO), drives_display };
        let memory = CardMemory { name: gpu.name.clone(), total: gpu.total, presence };
        let threads = budget.threads()?;
        let (machine, times) = speed_by_name(&gpu.name, (card, ""), place.link, threads, speed)?;
        let on_paper = Self::of_card(card, budget.of_card(memory)?, threads, speed);
        Ok(Self { name: gpu.name.clone(), machine, times, ..on_paper })
    }

    /// A GPU with the figures of its data sheet.
    pub(super) fn of_card(
        card: &'static Card,
        budget: Budget,
        threads: usize,
        Speed { tf32, products, .. }: Speed,
    ) -> Self {
        let precision = match card.compute_capability {
            (8.., _) => Precision::Bf16,
            (7, _) => Precision::Fp16,
            _ => Precision::Fp32,
        };
        Self {
            name: card.name.to_owned(),
            targets: Targets::cuda(card.compute_capability, threads).multiplying_by(products),
            machine: Machine::of_rates(Rates::of_products(card, products, tf32)),
            budget,
            precision,
            times: format!("times are estimates from the GPU's data sheet ({})", card.source),
        }
    }
}

/// Checks `--vram` against the GPU's memory. Errors: it is more than the GPU has. It may be slightly more, since drivers
/// report less than the nominal size.
fn check_vram(card: &Card, budget: &BudgetArgs) -> Result<(), Failure> {
    budget.most().map_or(Ok(()), |vram| refuse_size("--vram", vram, vram_max_of(card.memory)))?;
    match budget.most() {
        Some(vram) if is_more_than(vram, card.memory) => {
            let message = format!("`--vram` asks for {vram}, but the {} has {}", card.name, card.memory);
            Err(Failure::bad_flag(message).hint("omit `--vram` to use all of the GPU; `--gpu list` lists others"))
        }
        _ => Ok(()),
    }
}

/// Why CUDA sees no GPU of this machine.
fn none_visible(found: &Gpus) -> Failure {
    let is_of_slices = |note: &GpuNote| matches!(note, GpuNote::MigMode { .. } | GpuNote::MigEntry { .. });
    if let Some(note) = found.notes.iter().find(|note| is_of_slices(note)) {
        let failure = Failure::bad_flag(format!("no whole NVIDIA GPU is visible: {note}"));
        return failure.hint("`--device cuda` plans for the MIG instance that CUDA sees");
    }
    Failure::bad_flag("no NVIDIA GPU is visible; check CUDA_VISIBLE_DEVICES")
        .hint("`--gpu NAME` or `--vram 12` plans without a GPU")
}
