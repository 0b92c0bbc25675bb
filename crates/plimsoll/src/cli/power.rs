//! The flags for a card's power limit and clock offsets: checks them against the card's limits, sets them after storing
//! the previous values on disk, and restores those. Not here: the mechanism (`plimsoll-power`), and lowering the limit
//! for heat (`plimsoll-session`).

use super::Failure;
use super::state::state_folder;
use crate::streams::talk;
use clap::Args;
use plimsoll_power::{
    HoldError, Knob, KnobError, Knobs, NvmlCard, Price, PutBack, Range, Settled, Settlement, Store, Wish, hold, settle,
};
use plimsoll_session::CardPower;
use serde_json::{Map, Value, json};
use std::str::FromStr;

#[derive(Debug, Clone, Default, Args)]
pub(super) struct PowerArgs {
    /// Power limit of the GPU during the run: in watts, as a percentage of its default (`80%`), or `auto`, which
    /// lowers it when the GPU gets hot, before pausing the run, and raises it again. Needs administrator rights. The
    /// previous limit is restored at the end of the run, by the next start after a crash, or by `plimsoll gpus
    /// --restore`
    #[arg(long, value_name = "auto|W|N%")]
    power_limit: Option<PowerLimit>,
    /// MHz to add to the clock of the GPU's multiprocessors during the run; negative to save power. Positive values
    /// may void the warranty, and cause undetected errors
    #[arg(long, value_name = "MHZ", allow_hyphen_values = true)]
    clock_offset: Option<i64>,
    /// As `--clock-offset`, for the GPU's memory: too high an offset causes undetected errors in the weights
    #[arg(long, value_name = "MHZ", allow_hyphen_values = true)]
    memory_clock_offset: Option<i64>,
    /// Price of a kilowatt-hour, to report the cost of the run's energy: `0.31`, `0.31EUR`
    #[arg(long, value_name = "PRICE")]
    kwh_price: Option<Price>,
}

/// `--power-limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PowerLimit {
    Auto,
    Watts(f64),
    /// Of the card's default limit.
    Percent(f64),
}

impl FromStr for PowerLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not `auto`, watts such as 200, or a percentage such as 80%");
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0 && *n <= 1e5);
        match (text, text.strip_suffix('%'), text.strip_suffix(['W', 'w'])) {
            ("auto", ..) => Ok(Self::Auto),
            (_, Some(percent), _) => number(percent).map(Self::Percent).ok_or_else(bad),
            (_, _, watts) => number(watts.unwrap_or(text)).map(Self::Watts).ok_or_else(bad),
        }
    }
}

/// The settings for a run's card, within its limits.
pub(super) struct Wished {
    uuid: String,
    card: NvmlCard,
    wishes: Vec<Wish>,
    /// The range of the power limit for heat.
    auto: Option<Range>,
}

impl PowerArgs {
    /// The price of energy, if given.
    pub(super) fn price(&self) -> Option<Price> {
        self.kwh_price.clone()
    }

    /// Whether the limit follows the temperature.
    pub(super) fn is_auto(&self) -> bool {
        self.power_limit == Some(PowerLimit::Auto)
    }

    fn flags(&self) -> impl Iterator<Item = &'static str> {
        let power = self.power_limit.map(|_| "--power-limit");
        let clocks =
            [self.clock_offset.map(|_| "--clock-offset"), self.memory_clock_offset.map(|_| "--memory-clock-offset")];
        power.into_iter().chain(clocks.into_iter().flatten())
    }

    /// The settings with which a resumed run sets the same.
    pub(super) fn resolved(&self) -> Map<String, Value> {
        let limit = self.power_limit.map(|limit| match limit {
            PowerLimit::Auto => "auto".to_owned(),
            PowerLimit::Watts(watts) => watts.to_string(),
            PowerLimit::Percent(percent) => format!("{percent}%"),
        });
        let told = [
            ("power_limit", limit),
            ("clock_offset", self.clock_offset.map(|mhz| mhz.to_string())),
            ("memory_clock_offset", self.memory_clock_offset.map(|mhz| mhz.to_string())),
            ("kwh_price", self.kwh_price.as_ref().map(ToString::to_string)),
        ];
        told.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))).collect()
    }

    /// The settings for this card; `None` if none are requested, or if the card does not report its limits, with a
    /// warning. Errors: there is no card; a value is outside its limits.
    pub(super) fn wished(&self, uuid: Option<&str>, name: &str) -> Result<Option<Wished>, Failure> {
        let Some(first) = self.flags().next() else { return Ok(None) };
        let Some(uuid) = uuid else {
            return Err(Failure::bad_flag(format!("`{first}` is for GPUs, but this run uses the CPU")));
        };
        let card = match NvmlCard::new(uuid) {
            Ok(card) => card,
            Err(error) => {
                talk(format_args!("warning: `{first}` has no effect: {error}"));
                return Ok(None);
            }
        };
        let mut wished = Wished { uuid: uuid.to_owned(), card, wishes: vec![], auto: None };
        if let Some(limit) = self.power_limit {
            wished.add_power(limit, name)?;
        }
        for (knob, flag, mhz) in [
            (Knob::ClockOffset, "--clock-offset", self.clock_offset),
            (Knob::MemoryClockOffset, "--memory-clock-offset", self.memory_clock_offset),
        ] {
            if let Some(mhz) = mhz {
                wished.add_offset(knob, flag, mhz, name)?;
            }
        }
        Ok(Some(wished).filter(|wished| !wished.wishes.is_empty()))
    }
}

fn watts(milliwatts: i64) -> String {
    let watts = milliwatts as f64 / 1000.0;
    if milliwatts % 1000 == 0 { format!("{watts:.0} W") } else { format!("{watts:.1} W") }
}

fn shown(knob: Knob, value: i64) -> String {
    match knob {
        Knob::PowerLimit => watts(value),
        _ => format!("{value:+} MHz"),
    }
}

fn called(knob: Knob) -> &'static str {
    match knob {
        Knob::PowerLimit => "power limit",
        Knob::ClockOffset => "clock offset",
        Knob::MemoryClockOffset => "memory clock offset",
    }
}

impl Wished {
    fn range(&self, knob: Knob) -> Option<Range> {
        match self.card.range(knob) {
            Ok(range) => Some(range),
            Err(error) => {
                talk(format_args!(
                    "warning: the GPU does not report the range of its {}, so it is not set: {error}",
                    called(knob)
                ));
                None
            }
        }
    }

    fn add_power(&mut self, limit: PowerLimit, name: &str) -> Result<(), Failure> {
        let Some(range) = self.range(Knob::PowerLimit) else { return Ok(()) };
        let usual = range.default.unwrap_or(range.max);
        let (asked, value) = match limit {
            PowerLimit::Auto => {
                let Ok(now) = self.card.get(Knob::PowerLimit) else {
                    talk("warning: the GPU does not report its power limit, so it is not lowered for heat");
                    return Ok(());
                };
                self.auto = Some(Range { max: now, min: range.min.min(now), default: range.default });
                self.wishes.push(Wish { knob: Knob::PowerLimit, value: now });
                return Ok(());
            }
            PowerLimit::Watts(watts) => (format!("{watts}"), (watts * 1000.0).round() as i64),
            PowerLimit::Percent(percent) => (format!("{percent}%"), (usual as f64 * percent / 100.0).round() as i64),
        };
        if !range.has(value) {
            let of = if asked.ends_with('%') { format!(", {},", watts(value)) } else { String::new() };
            let message = format!(
                "`--power-limit {asked}`{of} is outside the range of {name}: {} to {}, {} by default",
                watts(range.min),
                watts(range.max),
                watts(usual)
            );
            return Err(Failure::bad_flag(message));
        }
        self.wishes.push(Wish { knob: Knob::PowerLimit, value });
        Ok(())
    }

    fn add_offset(&mut self, knob: Knob, flag: &str, mhz: i64, name: &str) -> Result<(), Failure> {
        let Some(range) = self.range(knob) else { return Ok(()) };
        if !range.has(mhz) {
            let message = format!("`{flag} {mhz}` is outside the range of {name}: {} to {} MHz", range.min, range.max);
            return Err(Failure::bad_flag(message));
        }
        self.wishes.push(Wish { knob, value: mhz });
        Ok(())
    }

    /// Sets the values and reports the results. A run continues without values that can't be set.
    pub(super) fn set(self, run: &str) -> Option<CardPower> {
        let Self { uuid, card, wishes, auto } = self;
        let Some(store) = store() else {
            talk("warning: found no home folder to store the GPU's previous settings, so none is changed");
            return None;
        };
        if wishes.iter().any(|wish| wish.knob != Knob::PowerLimit && wish.value != 0) {
            talk(
                "warning: clock offsets run the GPU outside of its tested range: they may void its warranty, and undetected \
                 memory errors may corrupt the weights; `plimsoll doctor --self-test` compares its results",
            );
        }
        let before = |knob| card.get(knob).ok();
        let were = wishes.iter().map(|wish| (wish.knob, before(wish.knob))).collect::<Vec<_>>();
        let held = hold(&store, &uuid, Box::new(card.clone()), &format!("plimsoll train {run}"), &wishes);
        let (held, came, back) = match held {
            Ok(held) => held,
            Err(error) => {
                say_refusal(&error);
                return None;
            }
        };
        back.iter().for_each(say_put_back);
        let mut is_held = false;
        for (knob, result) in came {
            let was = were.iter().find(|(of, _)| *of == knob).and_then(|(_, value)| *value);
            match result {
                Ok(_) if knob == Knob::PowerLimit && auto.is_some() => is_held = true,
                Ok(value) => {
                    is_held = true;
                    let was = was.map_or(String::new(), |was| format!("; {} before", shown(knob, was)));
                    talk(format_args!("{}: {}{was}, restored at the end", called(knob), shown(knob, value)));
                }
                Err(error) => say_not_set(&uuid, &wishes, knob, &error, auto),
            }
        }
        let auto = auto.filter(|_| is_held);
        is_held.then_some(CardPower { uuid, held, auto })
    }
}

fn say_refusal(error: &HoldError) {
    talk(format_args!("warning: the GPU's power and clocks are not changed: {error}"));
    match error {
        HoldError::InUse { .. } => {
            talk("hint: wait until that run ends; `plimsoll gpus --restore` restores what a crashed run left")
        }
        HoldError::LeftBehind { .. } => talk("hint: `sudo -E plimsoll gpus --restore` restores it"),
        HoldError::Record(_) => talk(
            "hint: `nvidia-smi -q -d POWER,CLOCK` shows the current settings; then the damaged file can be removed",
        ),
    }
}

/// Reports a value that was not set, and the command that sets it.
fn say_not_set(uuid: &str, wishes: &[Wish], knob: Knob, error: &KnobError, auto: Option<Range>) {
    let value = wishes.iter().find(|wish| wish.knob == knob).map_or(0, |wish| wish.value);
    let what = match auto.filter(|_| knob == Knob::PowerLimit) {
        Some(_) => "the power limit can't be lowered for heat; only pauses cool the GPU".to_owned(),
        None => format!("the {} of {} is not set", called(knob), shown(knob, value)),
    };
    talk(format_args!("warning: {what}: {error}; the run continues without it"));
    if *error != KnobError::NoPermission {
        return;
    }
    let attribute = |name: &str, value: i64| {
        format!(
            "`sudo nvidia-settings -c :0 -a '[gpu:0]/{name}AllPerformanceLevels={value}'` sets it for the first GPU"
        )
    };
    talk(format_args!(
        "hint: {}",
        match knob {
            Knob::PowerLimit => {
                // For heat, a limit far enough below the card's current one.
                let value = auto.map_or(value, |range| (value * 4 / 5).max(range.min));
                format!("`sudo nvidia-smi -i {uuid} -pl {}` sets it", value / 1000)
            }
            Knob::ClockOffset => attribute("GPUGraphicsClockOffset", value),
            // The driver's tool counts transfers, two per clock.
            Knob::MemoryClockOffset => attribute("GPUMemoryTransferRateOffset", 2 * value),
        }
    ));
}

pub(super) fn say_put_back(back: &PutBack) {
    match back {
        PutBack::Done { knob, value } => {
            talk(format_args!("{}: {} again, as before", called(*knob), shown(*knob, *value)))
        }
        PutBack::Already { .. } | PutBack::Forgotten { .. } => {}
        PutBack::ChangedByOthers { knob, now, before } => talk(format_args!(
            "note: another process set the {} to {} meanwhile, so it stays; it was {} before the run",
            called(*knob),
            shown(*knob, *now),
            shown(*knob, *before)
        )),
        PutBack::Failed { knob, before, error } => talk(format_args!(
            "warning: the {} is not restored to {}: {error}; `plimsoll gpus --restore` tries again",
            called(*knob),
            shown(*knob, *before)
        )),
    }
}

fn store() -> Option<Store> {
    state_folder().map(|folder| Store::new(folder.join("power")))
}

/// Restores what ended runs left, and reports the results. Returns whether everything is restored. `insists`: the user
/// asked for it, so report everything, and restore also if it is unknown whether the run still runs.
pub(super) fn settle_leftovers(insists: bool) -> bool {
    let Some(store) = store() else { return true };
    let open = |uuid: &str| NvmlCard::new(uuid).map(|card| -> Box<dyn Knobs> { Box::new(card) });
    let settled = match settle(&store, insists, open) {
        Ok(settled) => settled,
        Err(error) => {
            talk(format_args!("warning: can't check for power and clock settings that runs left: {error}"));
            return false;
        }
    };
    if insists && settled.is_empty() {
        talk("nothing to restore");
    }
    // Report every card, whatever the results before.
    settled.iter().filter(|one| !say_settled(one, insists)).count() == 0
}

fn say_settled(Settled { card, outcome }: &Settled, insists: bool) -> bool {
    match outcome {
        Settlement::Tried { owner, back } => {
            talk(format_args!("{} ended without restoring the settings of {card}:", owner.what));
            back.iter().for_each(say_put_back);
            if insists && back.iter().all(|back| matches!(back, PutBack::Already { .. } | PutBack::Forgotten { .. })) {
                talk("already restored");
            }
            !back.iter().any(|back| matches!(back, PutBack::Failed { .. }))
        }
        Settlement::InUse { .. } if !insists => true,
        Settlement::InUse { owner, .. } => {
            talk(format_args!("{} (process {}) still runs, and restores {card} at its end", owner.what, owner.pid));
            false
        }
        Settlement::NoCard { error } => {
            talk(format_args!("warning: can't restore the settings of {card}: {error}"));
            false
        }
        Settlement::Failed { error } => {
            talk(format_args!("warning: can't restore the settings of {card}: {error}"));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_watts_percentages_or_auto() {
        let parsed = |text: &str| text.parse::<PowerLimit>().ok();
        assert_eq!(parsed("auto"), Some(PowerLimit::Auto));
        assert_eq!((parsed("200"), parsed("200W")), (Some(PowerLimit::Watts(200.0)), Some(PowerLimit::Watts(200.0))));
        assert_eq!(parsed("80%"), Some(PowerLimit::Percent(80.0)));
        for text in ["", "0", "-5", "NaN", "inf", "%", "80 %x", "Auto!", "1e9"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
