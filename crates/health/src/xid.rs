//! Errors that NVIDIA's driver reports by number, those that people meet while they train.
//! Source: NVIDIA, "GPU Deployment and Management: XID Errors" (docs.nvidia.com/deploy/xid-errors), in our own words.

use plimsoll_telemetry::Level;

/// An error of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    /// NVIDIA's number.
    pub number: u64,
    /// What it means.
    pub what: &'static str,
    /// What to do.
    pub advice: &'static str,
    /// How bad it is.
    pub level: Level,
}

const fn entry(number: u64, level: Level, what: &'static str, advice: &'static str) -> Xid {
    Xid { number, what, advice, level }
}

const REPLACE: &str = "if it comes again, have the card checked: NVIDIA's field diagnostic, or its seller";

const TABLE: &[Xid] = &[
    entry(
        13,
        Level::Warn,
        "a kernel did what it may not, or the card computed it wrong",
        "if the same program fails on another card too, it is the program; if only here, undo clock offsets and check the card",
    ),
    entry(
        31,
        Level::Warn,
        "a kernel used an address of the card's memory that is not there",
        "it is a bug of the program or its libraries, more seldom of the card; others on the card go on",
    ),
    entry(
        43,
        Level::Warn,
        "a program on the card failed, and the driver ended its work",
        "the program's own log says why; other programs go on",
    ),
    entry(
        45,
        Level::Warn,
        "the driver ended a program's work on the card, because it was killed or failed before",
        "look for an error before this one; alone, a program was only killed",
    ),
    entry(
        48,
        Level::Error,
        "memory of the card has an error that can't be corrected",
        "what was computed may be wrong: go back to a checkpoint of before, and restart the machine so that the card takes the row out of use",
    ),
    entry(
        61,
        Level::Warn,
        "the card's own controller stopped at a breakpoint or warned",
        "update driver and firmware, and restart the machine",
    ),
    entry(
        62,
        Level::Error,
        "the card's own controller halted",
        "restart the machine, and update the driver; if it comes again, have the card checked",
    ),
    entry(
        63,
        Level::Warn,
        "a page or row of the card's memory was taken out of use",
        "it takes effect when the card is reset; no result is wrong by it",
    ),
    entry(
        64,
        Level::Error,
        "a page or row of the card's memory could not be taken out of use",
        "stop using the card, restart the machine, and have it replaced if it comes again",
    ),
    entry(
        74,
        Level::Error,
        "an NVLink between cards had an error",
        "check that the bridge sits firmly, and restart the machine; runs on several cards may hang",
    ),
    entry(
        79,
        Level::Error,
        "the card fell off the bus",
        "restart the machine; check its power cables and supply, its seat, risers, and its temperature before",
    ),
    entry(92, Level::Warn, "memory of the card has unusually many errors that were corrected", REPLACE),
    entry(
        94,
        Level::Error,
        "an error of the card's memory ended the program that used it, and no other",
        "start the program again from its checkpoint; restart the machine when it suits",
    ),
    entry(
        95,
        Level::Error,
        "an error of the card's memory may have reached any program on it",
        "stop all programs on the card, reset it or restart the machine, and go back to a checkpoint of before",
    ),
    entry(
        119,
        Level::Error,
        "the card's system processor did not answer the driver",
        "restart the machine, and update the driver; if it comes again, turn the GSP firmware off (NVreg_EnableGpuFirmware=0)",
    ),
];

/// What an error of this number means; none for one that is not in the table.
pub fn xid(number: u64) -> Option<&'static Xid> {
    TABLE.iter().find(|xid| xid.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_errors_are_known_with_advice() {
        for number in [13, 31, 43, 45, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119] {
            let xid = xid(number).expect("it is in the table");
            assert!(!xid.what.is_empty() && !xid.advice.is_empty(), "{number}");
        }
        assert_eq!(xid(1), None);
        assert!(TABLE.windows(2).all(|pair| pair[0].number < pair[1].number));
    }
}
