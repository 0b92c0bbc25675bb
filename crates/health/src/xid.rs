//! XID errors of NVIDIA's driver: the ones that occur in training.
//! Source: NVIDIA, "GPU Deployment and Management: XID Errors" (docs.nvidia.com/deploy/xid-errors), reworded.

use plimsoll_telemetry::Level;

/// An XID error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    /// NVIDIA's XID number.
    pub number: u64,
    /// What it means.
    pub what: &'static str,
    /// What to do.
    pub advice: &'static str,
    /// Severity.
    pub level: Level,
}

const fn entry(number: u64, level: Level, what: &'static str, advice: &'static str) -> Xid {
    Xid { number, what, advice, level }
}

const REPLACE: &str = "if it happens again, run NVIDIA's field diagnostic or contact the vendor";

const TABLE: &[Xid] = &[
    entry(
        13,
        Level::Warn,
        "a kernel performed an illegal operation, or the GPU computed incorrectly",
        "if the program also fails on another GPU, the program is at fault; otherwise reset clock offsets and check this GPU",
    ),
    entry(
        31,
        Level::Warn,
        "a kernel accessed an invalid address in GPU memory",
        "usually a bug in the program or its libraries, rarely a faulty GPU; other programs on the GPU continue",
    ),
    entry(
        43,
        Level::Warn,
        "a program on the GPU failed, and the driver ended its work",
        "check the program's own log for the reason; other programs continue",
    ),
    entry(
        45,
        Level::Warn,
        "the driver ended a program's work on the GPU, because the program was killed or had failed",
        "look for an earlier error; if there is none, the program was killed",
    ),
    entry(
        48,
        Level::Error,
        "GPU memory has an uncorrectable error",
        "results may be wrong: resume from an earlier checkpoint, and reboot so that the GPU retires the faulty row",
    ),
    entry(
        61,
        Level::Warn,
        "the GPU's internal microcontroller hit a breakpoint or raised a warning",
        "update driver and firmware, and reboot",
    ),
    entry(
        62,
        Level::Error,
        "the GPU's internal microcontroller halted",
        "reboot and update the driver; if it happens again, have the GPU checked",
    ),
    entry(
        63,
        Level::Warn,
        "a page or row of GPU memory was retired",
        "takes effect when the GPU is reset; results are not affected",
    ),
    entry(
        64,
        Level::Error,
        "a page or row of GPU memory could not be retired",
        "stop using the GPU and reboot; have the GPU replaced if it happens again",
    ),
    entry(
        74,
        Level::Error,
        "an NVLink connection between GPUs had an error",
        "check that the NVLink bridge is seated firmly, and reboot; multi-GPU runs may hang",
    ),
    entry(
        79,
        Level::Error,
        "the GPU fell off the bus",
        "reboot; check power cables, power supply, seating, risers, and earlier temperatures",
    ),
    entry(92, Level::Warn, "GPU memory has an unusual number of corrected errors", REPLACE),
    entry(
        94,
        Level::Error,
        "a GPU memory error ended the program that used that memory; other programs are not affected",
        "resume the program from its checkpoint; reboot when convenient",
    ),
    entry(
        95,
        Level::Error,
        "a GPU memory error may have affected every program on the GPU",
        "stop all programs on the GPU, reset it or reboot, and resume from an earlier checkpoint",
    ),
    entry(
        119,
        Level::Error,
        "the GPU's system processor (GSP) did not respond to the driver",
        "reboot and update the driver; if it happens again, disable the GSP firmware (NVreg_EnableGpuFirmware=0)",
    ),
];

/// The meaning of an XID number; `None` if it is not in the table.
pub fn xid(number: u64) -> Option<&'static Xid> {
    TABLE.iter().find(|xid| xid.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_errors_are_known_with_advice() {
        for number in [13, 31, 43, 45, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119] {
            let xid = xid(number).expect("in the table");
            assert!(!xid.what.is_empty() && !xid.advice.is_empty(), "{number}");
        }
        assert_eq!(xid(1), None);
        assert!(TABLE.windows(2).all(|pair| pair[0].number < pair[1].number));
    }
}
