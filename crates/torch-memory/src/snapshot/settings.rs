//! The settings of PyTorch's allocator: `PYTORCH_CUDA_ALLOC_CONF`.
//! Source: `c10/cuda/CUDAAllocatorConfig.cpp` and PyTorch's "Memory management" notes.

/// A mebibyte.
const MIB: u64 = 1 << 20;

/// Number of powers of two for which divisions can be set: from 1 MiB and below, to 32 GiB and above.
const DIVISIONS: usize = 16;

/// The allocator's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocatorSettings {
    /// Blocks of at least this size are not split; `None` means that all are.
    pub max_split_bytes: Option<u64>,
    /// Number of parts into which each range between powers of two is divided for rounding up; indexed by the power of
    /// two in MiB. 0 means rounding to 512 bytes.
    pub roundup_divisions: [u32; DIVISIONS],
    /// Above this fraction of the allowed memory, blocks that were unused for long are freed. 0 means never.
    pub garbage_collection_threshold: f64,
    /// Whether segments can grow.
    pub expandable_segments: bool,
    /// Maximum excess of an unsplit block over the request.
    pub max_non_split_rounding_bytes: u64,
    /// Size of segments for allocations between 1 and 10 MiB.
    pub large_segment_bytes: u64,
    /// The fraction of the card's memory that the process may use.
    pub memory_fraction: Option<f64>,
}

impl Default for AllocatorSettings {
    fn default() -> Self {
        Self {
            max_split_bytes: None,
            roundup_divisions: [0; DIVISIONS],
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            max_non_split_rounding_bytes: 20 * MIB,
            large_segment_bytes: 20 * MIB,
            memory_fraction: None,
        }
    }
}

/// An unknown setting, or a setting with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting {0}")]
pub struct UnknownSetting(pub String);

/// Settings that affect the placement of blocks.
const WITH_EFFECT: &[&str] = &[
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
];

/// Settings that do not affect the placement of blocks. Source: PyTorch 2.15, `c10/cuda/CUDAAllocatorConfig.h` and
/// `c10/core/AllocatorConfig.cpp`.
const WITHOUT_EFFECT: &[&str] = &[
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_use_hip_host_register",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
];

/// The names of all settings of PyTorch's allocator.
pub fn setting_names() -> impl Iterator<Item = &'static str> {
    WITH_EFFECT.iter().chain(WITHOUT_EFFECT).copied()
}

/// Entries of a settings text with an unknown name or without a value: PyTorch refuses to start with them.
pub fn refused_settings(conf: &str) -> Vec<&str> {
    let is_known = |entry: &&str| {
        let name = entry.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
        name.is_some_and(|(name, value)| !value.is_empty() && setting_names().any(|known| known == name))
    };
    split_entries(conf).into_iter().filter(|entry| !is_known(entry)).collect()
}

impl AllocatorSettings {
    /// Applies a settings text such as `max_split_size_mb:128,roundup_power2_divisions:[256:1,>:4]`. Returns the
    /// settings that are not supported.
    pub fn set(&mut self, conf: &str) -> Vec<UnknownSetting> {
        let unknown = split_entries(conf).into_iter().filter(|entry| self.set_one(entry).is_none());
        unknown.map(|entry| UnknownSetting(entry.to_owned())).collect()
    }

    /// Applies one entry; `None` if its name or value is unknown.
    fn set_one(&mut self, entry: &str) -> Option<()> {
        let (name, value) = entry.split_once(':')?;
        let (name, value) = (name.trim(), value.trim());
        let bytes_of_mib = || value.parse::<u64>().ok()?.checked_mul(MIB);
        match name {
            "max_split_size_mb" => self.max_split_bytes = Some(bytes_of_mib()?),
            "max_non_split_rounding_mb" => self.max_non_split_rounding_bytes = bytes_of_mib()?,
            "large_segment_size_mb" => self.large_segment_bytes = bytes_of_mib().filter(|bytes| *bytes > 0)?,
            "garbage_collection_threshold" => self.garbage_collection_threshold = part(value)?,
            "per_process_memory_fraction" => self.memory_fraction = Some(part(value)?),
            "expandable_segments" => self.expandable_segments = truth(value)?,
            "roundup_power2_divisions" => self.roundup_divisions = divisions(value)?,
            "backend" if value == "native" => {}
            _ if WITHOUT_EFFECT.contains(&name) => {}
            _ => return None,
        }
        Some(())
    }

    /// Sets the divisions for sizes from `mib` MiB to twice that.
    pub(super) fn set_divisions(&mut self, mib: u64, count: u32) {
        if mib.is_power_of_two() {
            self.roundup_divisions[(mib.ilog2() as usize).min(DIVISIONS - 1)] = count;
        }
    }

    /// The size to which PyTorch rounds a request.
    pub fn rounded(&self, bytes: u64) -> u64 {
        const UNIT: u64 = 512;
        if bytes < UNIT {
            return UNIT;
        }
        let interval = (bytes.ilog2().saturating_sub(MIB.ilog2()) as usize).min(DIVISIONS - 1);
        let divisions = u64::from(self.roundup_divisions[interval]);
        if divisions <= 1 || bytes <= UNIT * divisions {
            return bytes.checked_next_multiple_of(UNIT).unwrap_or(!(UNIT - 1));
        }
        let power = 1 << bytes.ilog2();
        match power >> divisions.ilog2() {
            _ if bytes == power => bytes,
            0 => power << 1,
            step => bytes.next_multiple_of(step),
        }
    }

    /// Whether reserved memory grows until the card is full, regardless of the program's needs: with `max_split_bytes`,
    /// large free blocks of expandable segments are not reused. Source: pytorch/pytorch#123548.
    pub fn fills_cards(&self) -> bool {
        self.expandable_segments && self.max_split_bytes.is_some()
    }

    /// The settings as text; empty for the defaults.
    pub fn conf(&self) -> String {
        let default = Self::default();
        let mut entries = vec![];
        if self.expandable_segments {
            entries.push("expandable_segments:True".to_owned());
        }
        if let Some(bytes) = self.max_split_bytes {
            entries.push(format!("max_split_size_mb:{}", bytes / MIB));
        }
        if self.roundup_divisions != default.roundup_divisions {
            let same = self.roundup_divisions.iter().all(|count| *count == self.roundup_divisions[0]);
            let each =
                self.roundup_divisions.iter().enumerate().map(|(power, count)| format!("{}:{count}", 1u64 << power));
            entries.push(match same {
                true => format!("roundup_power2_divisions:{}", self.roundup_divisions[0]),
                false => format!("roundup_power2_divisions:[{}]", each.collect::<Vec<_>>().join(",")),
            });
        }
        if self.garbage_collection_threshold > 0.0 {
            entries.push(format!("garbage_collection_threshold:{}", self.garbage_collection_threshold));
        }
        if self.max_non_split_rounding_bytes != default.max_non_split_rounding_bytes {
            entries.push(format!("max_non_split_rounding_mb:{}", self.max_non_split_rounding_bytes / MIB));
        }
        if self.large_segment_bytes != default.large_segment_bytes {
            entries.push(format!("large_segment_size_mb:{}", self.large_segment_bytes / MIB));
        }
        if let Some(fraction) = self.memory_fraction {
            entries.push(format!("per_process_memory_fraction:{fraction}"));
        }
        entries.join(",")
    }
}

/// Splits entries at commas, except inside brackets.
fn split_entries(conf: &str) -> Vec<&str> {
    let mut depth = 0i32;
    let entries = conf.split(|c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth <= 0
    });
    entries.map(str::trim).filter(|entry| !entry.is_empty()).collect()
}

fn part(value: &str) -> Option<f64> {
    value.parse().ok().filter(|part| (0.0..=1.0).contains(part))
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "True" | "true" | "1" => Some(true),
        "False" | "false" | "0" => Some(false),
        _ => None,
    }
}

/// Parses one number for all sizes, or `[256:1,512:2,>:8]`: sizes that are not listed use the number of the next
/// smaller one.
fn divisions(value: &str) -> Option<[u32; DIVISIONS]> {
    let Some(list) = value.strip_prefix('[') else {
        return Some([value.parse().ok().filter(is_division)?; DIVISIONS]);
    };
    let mut all = [0; DIVISIONS];
    let mut next = 0;
    for entry in list.strip_suffix(']')?.split(',') {
        let (mib, count) = entry.split_once(':')?;
        let count = count.trim().parse().ok().filter(is_division)?;
        if mib.trim() == ">" {
            all[next.min(DIVISIONS)..].fill(count);
            continue;
        }
        let mib = mib.trim().parse::<u64>().ok().filter(|mib| mib.is_power_of_two())?;
        let index = (mib.ilog2() as usize).min(DIVISIONS - 1);
        if next == 0 {
            all[..index].fill(count);
        }
        all[index] = count;
        next = index + 1;
    }
    Some(all)
}

fn is_division(count: &u32) -> bool {
    *count == 0 || count.is_power_of_two()
}
