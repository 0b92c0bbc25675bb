//! Findings about cards and the machine in words, with advice: for the terminal, messages and the journal.

use crate::printable::printable_line;
use plimsoll_health::{Cause, Episode, Finding, Phase, xid};
use plimsoll_telemetry::{Event, Level};
use plimsoll_units::format_duration;

/// An episode as an event.
pub fn health_event(episode: &Episode) -> Event {
    let (what, advice) = words(&episode.finding);
    let (what, advice, level) = match episode.phase {
        Phase::Begins => (what, advice, episode.finding.level()),
        Phase::Ends(after) => (format!("over after {}: {what}", format_duration(after)), None, Level::Info),
    };
    let card = episode.card.as_ref().map(|(index, name)| format!("GPU {index} ({})", printable_line(name)));
    Event::Health { card, kind: episode.finding.kind().to_owned(), what, advice, level }
}

/// An event of health as lines.
pub fn health_line(card: Option<&str>, what: &str, advice: Option<&str>, level: Level) -> String {
    let prefix = match level {
        Level::Info => "",
        Level::Warn => "warning: ",
        Level::Error => "error: ",
    };
    let of = card.map_or(String::new(), |card| format!("{card}: "));
    let hint = advice.map_or(String::new(), |advice| format!("\nhint: {advice}"));
    format!("{prefix}{of}{what}{hint}")
}

/// The finding, and the advice.
fn words(finding: &Finding) -> (String, Option<String>) {
    let (what, advice) = match finding {
        Finding::Lost { reason } => (
            format!("does not answer: {}", printable_line(reason)),
            "usual causes: power cables, seating, overheating; if the GPU does not come back, reboot"
                .to_owned(),
        ),
        Finding::Throttled { reasons } => {
            let advice = if reasons.is_thermal() {
                "check fans and airflow, or lower `--max-temp` or `--power-limit`"
            } else {
                "the power supply or a cable delivers too little; a lower `--power-limit` gives steadier clocks"
            };
            (format!("lowers its own clocks: {}", reasons.words().join(", ")), advice.to_owned())
        }
        Finding::EccUncorrected { count } => (
            format!("its memory has uncorrectable errors, {count} since the driver was loaded"),
            "results since the last checkpoint may be wrong: reboot, then resume from an earlier checkpoint".to_owned(),
        ),
        Finding::EccCorrected { more, over } => (
            format!("its memory had {more} corrected errors in {}", format_duration(*over)),
            "results are correct; if the count keeps rising, undo clock offsets, cool the memory, have the GPU checked".to_owned(),
        ),
        Finding::PcieReplays { more, over } => (
            format!("{more} packets to or from it were resent in {}", format_duration(*over)),
            "the link is bad: reseat the GPU, check risers and cables, or set a lower PCIe generation in the firmware"
                .to_owned(),
        ),
        Finding::RowsReplaced { count, more } => (
            format!("{more} pages or rows of its memory were retired, {count} in total"),
            "takes effect when the GPU is reset; if the count keeps rising, the memory is failing".to_owned(),
        ),
        Finding::Xid { number, times } => xid_words(*number, *times),
        Finding::FansFull { percent } => (
            format!("its fans are at {percent} % of their speed"),
            "no cooling is left: clear dust, improve airflow, or lower `--power-limit`".to_owned(),
        ),
        Finding::PcieNarrow { generation: (now, most), lanes: (lanes, most_lanes) } => (
            format!("its link is PCIe {now} with {lanes} lanes, and could be {most} with {most_lanes}"),
            "reseat it in a full-width slot without a riser; the link limits offloading and loading"
                .to_owned(),
        ),
        Finding::Starved { waited_percent } => (
            format!("the run waits for data {waited_percent:.0} % of the time"),
            "use a faster disk, text that is already tokenized (a restart reuses it), or stop other programs on the CPU"
                .to_owned(),
        ),
        Finding::Underused { busy_percent, cause } => underused(*busy_percent, cause),
        Finding::DiskFull { free, checkpoint } => (
            format!("the disk has {free} left, and the next checkpoint takes {checkpoint}"),
            "free some space now: the run continues, but is not saved; `--keep-checkpoints 1` keeps the fewest".to_owned(),
        ),
        Finding::DiskNearlyFull { free, checkpoint, full_in } => {
            let checkpoint = checkpoint.map_or(String::new(), |bytes| format!(", and a checkpoint takes {bytes}"));
            let soon = full_in.map_or(String::new(), |left| {
                format!("; at the current rate it is full in {}", format_duration(left))
            });
            let advice = "free some space, keep fewer with `--keep-checkpoints`, or store runs elsewhere with `--runs-dir`";
            (format!("the disk has {free} left{checkpoint}{soon}"), advice.to_owned())
        }
        Finding::MemoryShort { waiting_percent, available, total, is_group } => {
            let whose = if *is_group { "the control group" } else { "the machine" };
            let left = match (available, total) {
                (Some(available), Some(total)) => format!(": {available} of {total} are available"),
                _ => String::new(),
            };
            let waits = waiting_percent.filter(|percent| *percent >= 1.0);
            let waits = waits.map_or(String::new(), |percent| format!("; programs wait for it {percent:.0} % of the time"));
            let advice = "close other programs, or raise the group's limit; the system kills the largest program first";
            (format!("{whose} is short of memory{left}{waits}"), advice.to_owned())
        }
    };
    (what, Some(advice).filter(|advice| !advice.is_empty()))
}

fn xid_words(number: u64, times: u32) -> (String, String) {
    let times = if times > 1 { format!(", for the {times}th time") } else { String::new() };
    match xid(number) {
        Some(known) => (format!("Xid {number}{times}: {}", known.what), known.advice.to_owned()),
        None => (
            format!("the driver reported Xid {number}{times}"),
            "docs.nvidia.com/deploy/xid-errors explains it; `dmesg | grep Xid` shows the driver's message".to_owned(),
        ),
    }
}

fn underused(busy_percent: f64, cause: &Cause) -> (String, String) {
    let (because, advice) = match cause {
        Cause::Data => {
            ("it waits for data".to_owned(), "use a faster disk, or stop other programs on the CPU".to_owned())
        }
        Cause::Others(names) => {
            let names = names.iter().map(|name| printable_line(name).into_owned()).collect::<Vec<_>>().join(", ");
            (
                format!("other programs compute on it too: {names}"),
                "end them, or choose another GPU with `--device cuda:N`".to_owned(),
            )
        }
        Cause::Throttled => {
            ("it lowers its own clocks".to_owned(), "cool it, or supply the power that it requests".to_owned())
        }
        Cause::Pcie => (
            "it waits for the host over a link below its full speed".to_owned(),
            "seat the GPU in a full-width slot".to_owned(),
        ),
        Cause::Host => (
            "it waits for the host's work".to_owned(),
            "less `--optimizer-offload`, more `--threads`, or a smaller model".to_owned(),
        ),
        Cause::SmallBatches => (
            "micro-batches are too small for it".to_owned(),
            "use a larger `--micro-batch` or longer samples; `plimsoll plan --find micro-batch` finds what fits"
                .to_owned(),
        ),
    };
    (format!("the GPU computes {busy_percent:.0} % of the time: {because}"), advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::{Bytes, Seconds};

    #[test]
    fn findings_read_as_a_person_would_have_them() {
        let card = Some((0, "RTX\u{1b}[31m 3060".to_owned()));
        let text = |finding: Finding, phase| {
            let Event::Health { card, what, advice, level, .. } =
                health_event(&Episode { card: card.clone(), finding, phase })
            else {
                panic!("not a health event")
            };
            health_line(card.as_deref(), &what, advice.as_deref(), level)
        };
        let fell = text(Finding::Xid { number: 79, times: 1 }, Phase::Begins);
        assert!(
            fell.starts_with("error: GPU 0 (RTX") && fell.contains("Xid 79: the GPU fell off the bus\nhint: "),
            "{fell}"
        );
        assert!(!fell.contains('\u{1b}'), "{fell}");
        let fans = text(Finding::FansFull { percent: 100 }, Phase::Ends(Seconds(90.0)));
        assert!(fans.ends_with("over after 1 min 30 s: its fans are at 100 % of their speed"), "{fans}");
        let disk = Finding::DiskNearlyFull {
            free: Bytes::mib(3000),
            checkpoint: Some(Bytes::mib(2000)),
            full_in: Some(Seconds(1200.0)),
        };
        let disk = text(disk, Phase::Begins);
        assert!(
            disk.contains("2.93 GiB left, and a checkpoint takes 1.95 GiB; at the current rate it is full in 20 min"),
            "{disk}"
        );
        let others = Finding::Underused { busy_percent: 61.7, cause: Cause::Others(vec!["a\nb (7)".to_owned()]) };
        let others = text(others, Phase::Begins);
        assert!(
            others.contains("computes 62 % of the time: other programs compute on it too: a")
                && others.lines().count() == 2,
            "{others}"
        );
    }
}
