//! `plimsoll run --workers`: how many commands run on each card, and which share of its memory each may use. Refuses
//! more than a card has.

use crate::cli::Failure;
use crate::cli::options::positive_size;
use plimsoll_supervise::Share;
use plimsoll_telemetry::Gpu;
use plimsoll_units::Bytes;
use std::str::FromStr;

/// More commands on a card than this are a mistake.
const MOST: usize = 1024;

/// `--workers`: `7`, or `7@3.33GiB`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Workers {
    /// Commands on each card, or in total if there is no card.
    pub(super) per_card: usize,
    /// The memory of its card that each may use, if given in bytes.
    pub(super) each: Option<Bytes>,
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (count, each) = text.split_once('@').map_or((text, None), |(count, each)| (count, Some(each)));
        let per_card = match positive_size(count)? {
            count @ ..=MOST => count,
            _ => return Err(format!("must be at most {MOST}")),
        };
        let each = each.map(|each| each.parse::<Bytes>().map_err(|error| error.to_string())).transpose()?;
        match each {
            Some(Bytes(0)) => Err("a worker needs more than 0 bytes".to_owned()),
            each => Ok(Self { per_card, each }),
        }
    }
}

impl Workers {
    /// Checks that the workers of a card use no more than it has. `fraction`: `--memory-fraction`; `cards`: the visible
    /// ones. Errors: they use more.
    pub(super) fn check(self, fraction: Option<f32>, cards: &[Gpu]) -> Result<(), Failure> {
        let Self { per_card, each } = self;
        if let Some(fraction) = fraction.map(f64::from) {
            if each.is_some() {
                return Err(Failure::bad_flag(
                    "`--memory-fraction` and a size in `--workers` both set the memory of a worker",
                )
                .hint(format!("leave one out: `--workers {per_card} --memory-fraction {fraction}`")));
            }
            let all = fraction * per_card as f64;
            if all > 1.0 + f64::from(f32::EPSILON) * per_card as f64 {
                let message = format!(
                    "{per_card} workers with `--memory-fraction {fraction}` use {:.0} % of a GPU's memory",
                    all * 100.0
                );
                let fits = (1.0 / fraction) as usize;
                return Err(Failure::bad_flag(message).hint(format!(
                    "`--workers {fits}` fits, or `--memory-fraction {:.3}` for {per_card}",
                    (1000.0 / per_card as f64).floor() / 1000.0
                )));
            }
        }
        let Some(each) = each else { return Ok(()) };
        for card in cards {
            let all = Bytes(each.0.saturating_mul(per_card as u64));
            if all <= card.free {
                continue;
            }
            let Gpu { index, name, free, total, .. } = card;
            let message =
                format!("{per_card} workers of {each} use {all}, but GPU {index} ({name}) has {free} free of {total}");
            let fits = free.0 / each.0;
            let part = (free.0 / per_card as u64) >> 20;
            let ways = match fits {
                0 => format!("`--workers {per_card}@{part}MiB` fits"),
                fits => format!("`--workers {fits}@{}MiB` fits, or `--workers {per_card}@{part}MiB`", each.0 >> 20),
            };
            return Err(Failure::bad_flag(message).hint(ways));
        }
        Ok(())
    }

    /// Gives each worker its share of its card, from `each` in bytes; of the smallest card if the worker may use all.
    pub(super) fn divide(self, shares: &mut [Share], cards: &[Gpu]) {
        let Some(each) = self.each else { return };
        for share in shares {
            let own = cards.iter().filter(|card| share.card.as_ref().is_none_or(|uuid| *uuid == card.uuid));
            let total = own.map(|card| card.total.0).min().filter(|total| *total > 0);
            share.memory_fraction = total.map(|total| (each.0 as f64 / total as f64).min(1.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_a_number_with_an_optional_size() {
        let read = |text: &str| text.parse::<Workers>().map(|workers| (workers.per_card, workers.each));
        assert_eq!(read("7"), Ok((7, None)));
        assert_eq!(read("7@3.5GiB"), Ok((7, Some(Bytes::mib(3584)))));
        for text in ["0", "-1", "", "@3GiB", "7@", "7@0", "7@x", "2000", "7@3@4"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
