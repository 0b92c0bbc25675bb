//! What failed on a user's devices, and what later runs do differently because of it: they begin with less memory, or with safe
//! settings. Pure: no clock, no files. Not here: the file of it, and who reports failures (the CLI).

use plimsoll_units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// Limit on remembered failures; the oldest are forgotten first.
const MOST: usize = 64;

/// The part of a size that failed by which the next run stays below it; sizes as close as this are one failure.
const BELOW: u64 = 16;

/// How long a failure counts, the first time and at most. Each further one of the same kind and size doubles the time.
const LASTS: [Seconds; 2] = [Seconds(86_400.0), Seconds(32.0 * 86_400.0)];

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The system or the driver refused memory that it had reported as free.
    Refused,
    /// The kernel killed a run for lack of memory.
    Killed,
    /// The GPU failed: a kernel, a memory error, a lost device.
    Device,
}

impl FailureKind {
    /// After this many failures, runs have safe settings.
    fn many(self) -> u32 {
        match self {
            Self::Refused | Self::Killed => 3,
            Self::Device => 2,
        }
    }

    /// What happened, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Refused => "memory was refused",
            Self::Killed => "killed for lack of memory",
            Self::Device => "the GPU failed",
        }
    }
}

/// What runs with safe settings do without. Each level includes the levels below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SafeLevel {
    /// Nothing: the usual settings.
    #[default]
    Usual,
    /// Whole steps that are launched with one call.
    NoCapture,
    /// Libraries of matrix products.
    NoLibrary,
    /// The last 30 % of the memory.
    LessMemory,
    /// Half precision, if the user did not choose it.
    SinglePrecision,
}

impl SafeLevel {
    /// The safest settings.
    pub const SAFEST: Self = Self::SinglePrecision;

    /// The next level toward the usual settings.
    #[must_use]
    pub fn lowered(self) -> Self {
        match self {
            Self::Usual | Self::NoCapture => Self::Usual,
            Self::NoLibrary => Self::NoCapture,
            Self::LessMemory => Self::NoLibrary,
            Self::SinglePrecision => Self::LessMemory,
        }
    }
}

/// Failures of one kind on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceFailure {
    /// The device, by a name that stays the same.
    pub device: String,
    /// What failed.
    pub kind: FailureKind,
    /// The smallest budget that failed, in bytes.
    #[serde(rename = "bytes")]
    pub size: Bytes,
    /// How often.
    pub count: u32,
    /// The last time, in seconds since 1970.
    pub last_s: f64,
    /// Until when it counts, in seconds since 1970.
    pub until_s: f64,
    /// The last error, in words.
    pub what: String,
}

/// Safe settings of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SafeDevice {
    /// The device.
    pub device: String,
    /// What its runs do without.
    pub level: SafeLevel,
    /// The failures that led to it, in words.
    pub why: String,
}

/// How much of the host's memory a device's driver pins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinLimit {
    /// The device.
    pub device: String,
    /// What it pinned of a run's memory when it refused more.
    #[serde(rename = "bytes")]
    pub pinned: Bytes,
}

/// All failures that are remembered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceFailures {
    /// The failures, oldest first.
    pub failures: Vec<DeviceFailure>,
    /// Devices whose runs have safe settings.
    pub safe: Vec<SafeDevice>,
    /// Devices whose drivers pinned less of the host's memory than a run wanted.
    #[serde(default)]
    pub pinned: Vec<PinLimit>,
}

impl DeviceFailures {
    /// Records that a run with this budget failed. `now`: seconds since 1970.
    pub fn record(&mut self, device: &str, kind: FailureKind, size: Bytes, what: &str, now: Seconds) {
        self.forget_old(now);
        let is_same = |failure: &DeviceFailure| {
            (failure.device.as_str(), failure.kind) == (device, kind)
                && (kind == FailureKind::Device || is_near(failure.size, size))
        };
        let before = self.failures.iter().position(is_same).map(|index| self.failures.remove(index));
        let count = before.as_ref().map_or(1, |before| before.count.saturating_add(1));
        let lasts = LASTS[0].0 * f64::from(count - 1).exp2();
        let failure = DeviceFailure {
            device: device.to_owned(),
            kind,
            size: before.map_or(size, |before| before.size.min(size)),
            count,
            last_s: now.0,
            until_s: now.0 + lasts.min(LASTS[1].0),
            what: what.to_owned(),
        };
        if count >= kind.many() {
            let why = format!("{count} times {}, last: {what}", kind.words());
            self.set_safe(device, SafeLevel::SAFEST, why);
        }
        self.failures.push(failure);
        let surplus = self.failures.len().saturating_sub(MOST);
        self.failures.drain(..surplus);
    }

    /// Records that a run with this budget finished: smaller sizes do not fail any more, and the settings become less safe by one
    /// level.
    pub fn succeed(&mut self, device: &str, size: Bytes, now: Seconds) {
        self.forget_old(now);
        self.failures.retain(|failure| {
            let is_refuted = failure.kind != FailureKind::Device && failure.size <= size;
            failure.device != device || !is_refuted
        });
        let safe = self.safe.iter().find(|safe| safe.device == device).cloned();
        safe.into_iter().for_each(|safe| self.set_safe(device, safe.level.lowered(), safe.why));
    }

    fn set_safe(&mut self, device: &str, level: SafeLevel, why: String) {
        self.safe.retain(|safe| safe.device != device);
        if level == SafeLevel::Usual {
            // What happened before these settings does not count against those after them.
            self.failures.retain(|failure| failure.device != device || failure.kind != FailureKind::Device);
        } else {
            self.safe.push(SafeDevice { device: device.to_owned(), level, why });
            let surplus = self.safe.len().saturating_sub(MOST);
            self.safe.drain(..surplus);
        }
    }

    /// The failure below which a run that wants this much memory begins: the smallest from half of that on. What failed with
    /// much less says nothing about it.
    pub fn near(&self, device: &str, wanted: Bytes, now: Seconds) -> Option<&DeviceFailure> {
        let counts = |failure: &&DeviceFailure| {
            failure.device == device
                && failure.kind != FailureKind::Device
                && now.0 < failure.until_s
                && (wanted.0 / 2..=wanted.0.saturating_add(wanted.0 / BELOW)).contains(&failure.size.0)
        };
        self.failures.iter().filter(counts).min_by_key(|failure| failure.size)
    }

    /// The settings of the next run on this device; `None` if they are the usual ones.
    pub fn safe(&self, device: &str) -> Option<&SafeDevice> {
        self.safe.iter().find(|safe| safe.device == device)
    }

    /// What a device's driver pins of the host's memory, if it refused more.
    pub fn pin_limit(&self, device: &str) -> Option<Bytes> {
        self.pinned.iter().find(|limit| limit.device == device).map(|limit| limit.pinned)
    }

    /// Records how much of a run's host memory a device's driver pinned; `None` if all of it, which was `wanted`. A limit below that
    /// is refuted.
    pub fn set_pin_limit(&mut self, device: &str, pinned: Option<Bytes>, wanted: Bytes) {
        self.pinned.retain(|limit| limit.device != device || pinned.is_none() && limit.pinned >= wanted);
        self.pinned.extend(pinned.map(|pinned| PinLimit { device: device.to_owned(), pinned }));
        let surplus = self.pinned.len().saturating_sub(MOST);
        self.pinned.drain(..surplus);
    }

    /// Forgets everything about a device, or about all. Returns how many entries that were.
    pub fn forget(&mut self, device: Option<&str>) -> usize {
        let count = |known: &Self| known.failures.len() + known.safe.len() + known.pinned.len();
        let before = count(self);
        let keeps = |of: &str| device.is_some_and(|device| of != device);
        self.failures.retain(|failure| keeps(&failure.device));
        self.safe.retain(|safe| keeps(&safe.device));
        self.pinned.retain(|limit| keeps(&limit.device));
        before - count(self)
    }

    fn forget_old(&mut self, now: Seconds) {
        self.failures.retain(|failure| now.0 < failure.until_s);
    }
}

impl DeviceFailure {
    /// The largest budget of the next run.
    pub fn limit(&self) -> Bytes {
        Bytes(self.size.0 - (self.size.0 / BELOW).max(1).min(self.size.0))
    }
}

fn is_near(one: Bytes, other: Bytes) -> bool {
    one.0.abs_diff(other.0) <= one.max(other).0 / BELOW
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: f64 = 86_400.0;

    fn at(days: f64) -> Seconds {
        Seconds(1.7e9 + days * DAY)
    }

    fn refused(memory: &mut DeviceFailures, size: Bytes, days: f64) {
        memory.record("card", FailureKind::Refused, size, "out of memory", at(days));
    }

    fn limit(memory: &DeviceFailures, days: f64) -> Option<Bytes> {
        memory.near("card", Bytes::gib(16), at(days)).map(DeviceFailure::limit)
    }

    #[test]
    fn the_next_run_begins_below_what_failed_until_that_is_forgotten() {
        let mut memory = DeviceFailures::default();
        assert_eq!(limit(&memory, 0.0), None);
        refused(&mut memory, Bytes::gib(16), 0.0);
        assert_eq!((limit(&memory, 0.9), limit(&memory, 1.0)), (Some(Bytes::gib(15)), None));
        assert_eq!(memory.near("other card", Bytes::gib(16), at(0.0)), None);
        assert_eq!(memory.near("card", Bytes::gib(40), at(0.0)), None, "much more");
        assert_eq!(memory.near("card", Bytes::gib(12), at(0.0)), None, "it is below already");
        // Again, a little smaller: one failure, which counts for two days.
        refused(&mut memory, Bytes::gib(15), 0.5);
        assert_eq!((memory.failures.len(), memory.failures[0].count), (1, 2));
        assert_eq!((limit(&memory, 2.4), limit(&memory, 2.5)), (Some(Bytes((15 * 15) << 26)), None));
        // A smaller one is another failure, and the smallest decides.
        refused(&mut memory, Bytes::gib(8), 1.0);
        assert_eq!((memory.failures.len(), limit(&memory, 1.0)), (2, Some(Bytes(15 << 29))));
        memory.succeed("card", Bytes::gib(8), at(1.0));
        assert_eq!(limit(&memory, 1.0), Some(Bytes((15 * 15) << 26)), "only what is refuted is forgotten");
        memory.succeed("other card", Bytes::gib(80), at(1.0));
        assert_eq!(memory.failures.len(), 1);
    }

    #[test]
    fn a_pin_limit_counts_until_more_is_pinned_or_it_is_forgotten() {
        let mut memory = DeviceFailures::default();
        memory.set_pin_limit("card", Some(Bytes::gib(1)), Bytes::gib(4));
        memory.set_pin_limit("other card", Some(Bytes::gib(2)), Bytes::gib(4));
        memory.set_pin_limit("card", None, Bytes::mib(512));
        assert_eq!(memory.pin_limit("card"), Some(Bytes::gib(1)), "a smaller run refutes nothing");
        memory.set_pin_limit("card", None, Bytes::gib(2));
        assert_eq!((memory.pin_limit("card"), memory.pin_limit("other card")), (None, Some(Bytes::gib(2))));
        memory.set_pin_limit("other card", Some(Bytes::gib(3)), Bytes::gib(4));
        assert_eq!(memory.pin_limit("other card"), Some(Bytes::gib(3)));
        assert_eq!((memory.forget(Some("card")), memory.forget(None)), (0, 1));
    }

    #[test]
    fn repeated_failures_of_one_kind_make_settings_safe_and_each_success_undoes_one_level() {
        let mut memory = DeviceFailures::default();
        memory.record("card", FailureKind::Device, Bytes::gib(4), "Xid 79", at(0.0));
        refused(&mut memory, Bytes::gib(4), 0.0);
        refused(&mut memory, Bytes::gib(4), 0.0);
        assert_eq!(memory.safe("card"), None, "no kind is repeated often enough");
        memory.record("card", FailureKind::Device, Bytes::gib(9), "Xid 48", at(0.1));
        let safe = memory.safe("card").expect("two failures of the GPU");
        assert_eq!((safe.level, &*safe.why), (SafeLevel::SAFEST, "2 times the GPU failed, last: Xid 48"));
        assert_eq!(memory.safe("other card"), None);
        let mut levels = Vec::new();
        while let Some(safe) = memory.safe("card") {
            levels.push(safe.level);
            memory.succeed("card", Bytes::gib(1), at(0.2));
        }
        let down = [SafeLevel::SinglePrecision, SafeLevel::LessMemory, SafeLevel::NoLibrary, SafeLevel::NoCapture];
        assert_eq!(levels, down);
        memory.record("card", FailureKind::Device, Bytes::gib(9), "Xid 48", at(0.3));
        assert_eq!(memory.safe("card"), None, "the first failure after that");
        refused(&mut memory, Bytes::gib(4), 0.4);
        assert_eq!(memory.safe("card").map(|safe| safe.level), Some(SafeLevel::SAFEST), "the third refusal");
    }

    #[test]
    fn memory_is_bounded_and_can_be_cleared() {
        let mut memory = DeviceFailures::default();
        for number in 0..500_u32 {
            let device = format!("card {number}");
            memory.record(&device, FailureKind::Killed, Bytes(u64::from(number)), "killed", at(0.0));
            memory.record(&device, FailureKind::Device, Bytes(0), "lost", at(0.0));
            memory.record(&device, FailureKind::Device, Bytes(0), "lost", at(0.0));
        }
        assert_eq!((memory.failures.len(), memory.safe.len()), (MOST, MOST));
        assert_eq!(memory.failures[0].limit(), Bytes(468 - 29), "of the last 32 cards");
        assert_eq!((memory.forget(Some("card 499")), memory.safe("card 499")), (3, None));
        assert_eq!((memory.forget(None), memory), (2 * MOST - 3, DeviceFailures::default()));
    }
}
