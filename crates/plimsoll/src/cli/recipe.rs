//! The default settings of a run: samples per step, length, learning rate and warm-up. They follow from the model, from
//! whether it starts from trained weights, and from the data. docs/src/settings.md states the same rules.

use super::model::Chosen;
use ::plimsoll_train::Length;
use plimsoll_graph::DeviceKind;

/// Tokens per step from scratch: 512 samples of 1,024. Source: Brown et al. 2020 (GPT-3), table 2.1: half a million tokens for
/// models of GPT-2's sizes.
const PRETRAINING_TOKENS: usize = 1 << 19;

/// Tokens per step from trained weights, and for encoder-decoders: 128 samples of 512. Sources: Raffel et al. 2020 (T5),
/// section 3.1.2, for both; Taori et al. 2023 (Alpaca) for fine-tuning Llama.
const FINE_TUNING_TOKENS: usize = 1 << 16;

/// An epoch has at least this many updates, which limits the samples per step. With little data, a step has
/// [`FEWEST_SAMPLES`] as long as an epoch has at least [`STEPS_OF_LEAST_EPOCH`] updates.
const STEPS_OF_EPOCH: u64 = 100;
const FEWEST_SAMPLES: u64 = 4;
const STEPS_OF_LEAST_EPOCH: u64 = 8;

/// Epochs from trained weights. Sources: the defaults of Hugging Face's `TrainingArguments` and of TRL; Taori et al. 2023.
const FINE_TUNING_EPOCHS: f64 = 3.0;

/// Steps from scratch: with `nano`, one to two minutes on two cores.
const PRETRAINING_STEPS: u64 = 1000;

/// Full fine-tuning of a decoder: the learning rate for a number of parameters. For other numbers it is inversely
/// proportional to their square root. Source of the pair: Taori et al. 2023 (Alpaca). The rule agrees with published rates of
/// smaller models: 5e-5 for 1 billion (the default of Hugging Face's `TrainingArguments`). scripts/fine_tuning_defaults.py
/// checks it.
const FINE_TUNING_RATE: (f64, f64) = (2e-5, 7e9);

/// AdamW's learning rate of adapters. Source: Dettmers et al. 2023 (QLoRA), table 9, for 7 and 13 billion parameters.
pub(super) const ADAPTER_RATE: f64 = 2e-4;

/// AdamW's learning rate of adapters trained on preferences: ten times TRL's default of `DPOConfig`, as its guide for PEFT
/// recommends for adapters.
pub(super) const PREFERENCE_RATE: f64 = 1e-5;

/// The same for all weights: TRL's default of `ORPOConfig`.
pub(super) const FULL_PREFERENCE_RATE: f64 = 1e-6;

/// AdamW's learning rate from scratch, and for encoder-decoders.
const USUAL_RATE: f64 = 3e-4;

/// The same for `nano`; no default is higher.
const NANO_RATE: f64 = 4e-3;

/// Warm-up takes one out of this many steps of a run, and at most [`MOST_WARM_UP`] steps.
const STEPS_OF_WARM_UP: u64 = 10;
const MOST_WARM_UP: u64 = 100;

/// A run of fewer updates prints a warning.
pub(super) const FEW_UPDATES: u64 = 30;

/// The properties of a run that determine its defaults.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recipe {
    is_nano: bool,
    has_decoder: bool,
    starts_from_weights: bool,
}

impl Recipe {
    pub(super) fn new(chosen: &Chosen, starts_from_weights: bool) -> Self {
        Self { is_nano: chosen.name == "nano", has_decoder: chosen.takes_pairs(), starts_from_weights }
    }

    /// The number of samples of `tokens` each per step. On a GPU, a step has as many tokens as the model's authors used, or as
    /// is usual from trained weights, which is enough to use the GPU well. The CPU, which would need minutes for these, gets
    /// 4 samples, or 16 from trained weights. `records`: the number of training samples, if known; a step takes a small part
    /// of them.
    pub(super) fn samples_of_step(self, device: DeviceKind, tokens: usize, records: Option<u64>) -> usize {
        let most = match device {
            _ if self.is_nano => 32,
            DeviceKind::Cpu if self.starts_from_weights => 16,
            DeviceKind::Cpu => 4,
            DeviceKind::Cuda if self.starts_from_weights || self.has_decoder => FINE_TUNING_TOKENS / tokens,
            DeviceKind::Cuda => PRETRAINING_TOKENS / tokens,
        };
        let part = records.map(|records| {
            let fewest = FEWEST_SAMPLES.min(records / STEPS_OF_LEAST_EPOCH);
            (records / STEPS_OF_EPOCH).max(fewest).min(most as u64) as usize
        });
        // A power of two, which has many divisors.
        1 << part.unwrap_or(most).max(1).ilog2()
    }

    pub(super) fn length(self) -> Length {
        match self.starts_from_weights {
            true => Length::Epochs(FINE_TUNING_EPOCHS),
            false => Length::MaxSteps(PRETRAINING_STEPS),
        }
    }

    /// AdamW's peak learning rate, to two digits.
    pub(super) fn learning_rate(self, parameters: u64) -> f64 {
        let (rate, of) = FINE_TUNING_RATE;
        match self {
            Self { has_decoder: false, starts_from_weights: true, .. } => {
                two_digits(rate * (of / parameters.max(1) as f64).sqrt()).min(NANO_RATE)
            }
            Self { is_nano: true, .. } => NANO_RATE,
            _ => USUAL_RATE,
        }
    }
}

/// Steps of linear warm-up in a run with this last step, if known. A run limited by time ends warm-up after at most a tenth
/// of the time, see [`::plimsoll_train::Schedule::at`].
pub(super) fn warm_up(last_step: Option<u64>) -> u64 {
    last_step.map_or(MOST_WARM_UP, |last| (last / STEPS_OF_WARM_UP).min(MOST_WARM_UP))
}

/// A positive number rounded to two significant digits.
fn two_digits(number: f64) -> f64 {
    format!("{number:.1e}").parse().expect("a number in scientific notation")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Recipe = Recipe { is_nano: false, has_decoder: false, starts_from_weights: false };
    const TUNED: Recipe = Recipe { starts_from_weights: true, ..FRESH };

    #[test]
    fn a_step_takes_a_small_part_of_an_epoch() {
        let on_card = |records| TUNED.samples_of_step(DeviceKind::Cuda, 512, records);
        assert_eq!(on_card(None), 128);
        for (records, samples) in [(1, 1), (7, 1), (16, 2), (55, 4), (400, 4), (2_000, 16), (52_000, 128)] {
            assert_eq!(on_card(Some(records)), samples, "{records} training samples");
        }
        for records in 8..100_000 {
            let samples = on_card(Some(records)) as u64;
            assert!(samples * STEPS_OF_LEAST_EPOCH <= records, "{samples} of {records}");
            assert!(samples <= 4 || samples * STEPS_OF_EPOCH <= records, "{samples} of {records}");
        }
    }

    #[test]
    fn without_data_a_step_has_the_published_number_of_tokens() {
        let of = |recipe: Recipe, device, tokens| recipe.samples_of_step(device, tokens, None);
        assert_eq!(of(FRESH, DeviceKind::Cuda, 1024), 512);
        assert_eq!(of(TUNED, DeviceKind::Cuda, 1024), 64);
        assert_eq!(of(Recipe { has_decoder: true, ..FRESH }, DeviceKind::Cuda, 512), 128);
        assert_eq!(of(Recipe { is_nano: true, ..FRESH }, DeviceKind::Cuda, 1024), 32);
        assert_eq!((of(FRESH, DeviceKind::Cpu, 1024), of(TUNED, DeviceKind::Cpu, 1024)), (4, 16));
        assert_eq!(of(TUNED, DeviceKind::Cuda, 1 << 20), 1);
    }

    #[test]
    fn rates_from_trained_weights_fall_with_the_size_of_the_model() {
        for (parameters, rate) in
            [(8_030_000_000, 1.9e-5), (7_000_000_000, 2e-5), (1_240_000_000, 4.8e-5), (135_000_000, 1.4e-4), (1, 4e-3)]
        {
            assert_eq!(TUNED.learning_rate(parameters), rate, "{parameters} parameters");
        }
        assert_eq!(FRESH.learning_rate(7_000_000_000), 3e-4);
        assert_eq!(Recipe { has_decoder: true, ..TUNED }.learning_rate(7_000_000_000), 3e-4);
        assert_eq!(Recipe { is_nano: true, ..FRESH }.learning_rate(834_304), 4e-3);
    }

    #[test]
    fn warm_up_is_a_tenth_of_the_run_up_to_100_steps() {
        for (last, warm) in [(Some(1), 0), (Some(189), 18), (Some(1000), 100), (Some(1 << 40), 100), (None, 100)] {
            assert_eq!(warm_up(last), warm, "{last:?}");
        }
    }
}
