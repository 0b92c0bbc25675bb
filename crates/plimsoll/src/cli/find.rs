//! `plan --find`: finds the largest size that fits, and makes a request of it.

use super::Failure;
use super::answer::{Answer, Given};
use super::model::{self, Chosen};
use super::request::RequestArgs;
use ::plimsoll_plan::{Request, divisors, largest_that_fits};
use clap::ValueEnum;
use serde_json::{Value, json};

/// The longest sequence and the largest batch to try.
const MOST: usize = 1 << 20;

/// The search tries sequence lengths in steps of this many tokens.
const TOKENS: usize = 64;

/// `--find`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Find {
    /// The longest sequence.
    SeqLen,
    /// The largest micro-batch.
    MicroBatch,
    /// The largest preset.
    Model,
}

/// The largest size that fits.
pub(super) struct FoundMost {
    pub(super) answer: Answer,
    /// The model and the request with that size; `None` if nothing fits.
    pub(super) asked: Option<(Chosen, Request)>,
}

impl Find {
    /// Finds the largest size that fits, starting from this model. `asked` makes a request of `args` for a model and the
    /// given sizes. Errors: those of `asked`.
    pub(super) fn find(
        self,
        args: &RequestArgs,
        chosen: &Chosen,
        asked: impl Fn(Chosen, Given) -> Result<(Chosen, Request), Failure>,
    ) -> Result<FoundMost, Failure> {
        match self {
            Self::SeqLen => {
                let given = |seq_len| Given { seq_len: Some(seq_len), ..Given::default() };
                let of = |seq_len| asked(chosen.clone(), given(seq_len));
                let positions = chosen.most_positions().min(MOST);
                // Try all positions first, then multiples of `TOKENS`.
                let all = largest_that_fits(1, |_| of(positions).map(|(_, request)| request))?;
                let steps = || largest_that_fits(positions / TOKENS, |n| of(n * TOKENS).map(|(_, request)| request));
                let longest = match all {
                    Some(_) => Some(positions),
                    None if positions < TOKENS => None,
                    None => steps()?.map(|n| n * TOKENS),
                };
                let bound = match longest == Some(chosen.most_positions()) {
                    true => format!(", the most positions of {}", chosen.name),
                    false => String::new(),
                };
                let flags = |n| format!("--seq-len {n}");
                FoundMost::new("longest sequence", longest, &bound, flags, longest.map(of).transpose()?)
            }
            Self::MicroBatch => {
                let of = |samples| asked(chosen.clone(), Given { micro_batch: Some(samples), ..Given::default() });
                // With a given global batch, the micro-batch must divide it.
                let sizes = args.global_batch.map(divisors);
                let most = sizes.as_ref().map_or(MOST / args.gradient_accumulation_steps.unwrap_or(1), Vec::len).max(1);
                let samples = |n: usize| sizes.as_ref().map_or(n, |sizes| sizes[n - 1]);
                let largest = largest_that_fits(most, |n| of(samples(n)).map(|(_, request)| request))?.map(samples);
                let flags = |n| match (args.global_batch, args.gradient_accumulation_steps) {
                    (Some(global), _) => format!("--micro-batch {n} --global-batch {global}"),
                    (None, Some(steps)) => format!("--micro-batch {n} --gradient-accumulation-steps {steps}"),
                    (None, None) => format!("--micro-batch {n} --global-batch {n}"),
                };
                FoundMost::new("largest micro-batch", largest, "", flags, largest.map(of).transpose()?)
            }
            Self::Model => {
                let of = |name: &str| asked(model::open(name)?, Given::default());
                let mut found = None;
                for (name, _) in chosen.config.presets_like() {
                    let has_positions = args.seq_len().is_none_or(|tokens| tokens <= most_positions_of(name));
                    if has_positions && largest_that_fits(1, |_| of(name).map(|(_, request)| request))?.is_some() {
                        found = Some(name);
                        break;
                    }
                }
                let flags = |name: &str| format!("--model {name}");
                FoundMost::new("largest preset", found, "", flags, found.map(of).transpose()?)
            }
        }
    }
}

/// The shortest sequence that `--seq-len auto` tries.
const SHORTEST: usize = 16;

/// The longest power of two, up to `most` tokens, whose request fits. If none fits, the shortest, so that the caller can
/// report its shortfall. Errors: those of `request_of`.
pub(super) fn longest_power_of_two(
    most: usize,
    request_of: impl Fn(usize) -> Result<Request, Failure>,
) -> Result<usize, Failure> {
    let Some(doublings) = most.min(MOST).checked_div(SHORTEST).and_then(usize::checked_ilog2) else { return Ok(most) };
    let length = |n: usize| SHORTEST << (n - 1);
    let found = largest_that_fits(doublings as usize + 1, |n| request_of(length(n)))?;
    Ok(length(found.unwrap_or(1)))
}

fn most_positions_of(preset: &str) -> usize {
    model::open(preset).map_or(0, |chosen| chosen.most_positions())
}

impl FoundMost {
    fn new<T: Into<Value> + ToString + Copy>(
        what: &str,
        most: Option<T>,
        bound: &str,
        flags: impl Fn(T) -> String,
        asked: Option<(Chosen, Request)>,
    ) -> Result<Self, Failure> {
        let words = match most {
            Some(most) => format!("{what} that fits: {}{bound}; this plan uses `{}`", most.to_string(), flags(most)),
            None => format!("{what} that fits: none"),
        };
        let value = most.map_or(json!(null), Into::into);
        Ok(Self { answer: Answer { key: "most_that_fits", value, words }, asked })
    }
}
