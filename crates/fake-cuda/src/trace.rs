//! Cost of launches in the memory system, computed from addresses: sectors of 32 bytes and wavefronts of shared memory,
//! each with the minimum for the same bytes; bytes moved; matrix instructions. Not a measure of time.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Size of a transfer of device memory.
const SECTOR: u64 = 32;
/// Banks of shared memory, each of 4 bytes.
const BANKS: usize = 32;

/// An instruction that accesses memory, summed over all launches of its kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    /// The instruction.
    pub text: String,
    /// Its source file and line.
    pub source: String,
    /// Whether it accesses shared memory; otherwise device memory.
    pub shared: bool,
    /// Number of executions by a warp.
    pub requests: u64,
    /// Sectors or wavefronts used.
    pub taken: u64,
    /// Minimum number of sectors or wavefronts.
    pub fewest: u64,
}

impl Site {
    /// Counts an execution.
    pub fn count(&mut self, (taken, fewest): (u64, u64)) {
        self.requests += 1;
        self.taken += taken;
        self.fewest += fewest;
    }
}

/// Counters of a kernel's launches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Launches.
    pub launches: u64,
    /// Warp instructions.
    pub warp_instructions: u64,
    /// Thread instructions.
    pub lane_instructions: u64,
    /// Block barriers.
    pub barriers: u64,
    /// Bytes that threads read from device memory.
    pub read_bytes: u64,
    /// Bytes that threads wrote to device memory.
    pub written_bytes: u64,
    /// Distinct bytes read, summed over launches.
    pub distinct_read_bytes: u64,
    /// Distinct bytes written, summed over launches.
    pub distinct_written_bytes: u64,
    /// Floating-point operations, except of matrix instructions.
    pub flops: u64,
    /// Matrix instructions.
    pub matrix_instructions: u64,
    /// Floating-point operations of matrix instructions.
    pub matrix_flops: u64,
    /// Instructions that access memory, by index.
    pub sites: BTreeMap<usize, Site>,
}

impl Counters {
    /// Used and minimum, over all sites of device or of shared memory.
    pub fn total(&self, shared: bool) -> (u64, u64) {
        let sites = self.sites.values().filter(|site| site.shared == shared);
        sites.fold((0, 0), |(taken, fewest), site| (taken + site.taken, fewest + site.fewest))
    }

    /// Adds the counters of another launch.
    pub fn add(&mut self, other: &Self) {
        self.launches += other.launches;
        self.warp_instructions += other.warp_instructions;
        self.lane_instructions += other.lane_instructions;
        self.barriers += other.barriers;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.distinct_read_bytes += other.distinct_read_bytes;
        self.distinct_written_bytes += other.distinct_written_bytes;
        self.flops += other.flops;
        self.matrix_instructions += other.matrix_instructions;
        self.matrix_flops += other.matrix_flops;
        for (index, site) in &other.sites {
            let mine =
                self.sites.entry(*index).or_insert_with(|| Site { requests: 0, taken: 0, fewest: 0, ..site.clone() });
            mine.requests += site.requests;
            mine.taken += site.taken;
            mine.fewest += site.fewest;
        }
    }
}

/// Header of [`csv`].
const HEADER: &str = "kernel,launches,warp_instructions,lane_instructions,barriers,read_bytes,written_bytes,\
distinct_read_bytes,distinct_written_bytes,flops,matrix_instructions,matrix_flops,sectors,fewest_sectors,wavefronts,\
fewest_wavefronts";

/// Counters per kernel, as CSV with a header.
pub fn csv<'a>(kernels: impl IntoIterator<Item = (&'a String, &'a Counters)>) -> String {
    let mut text = format!("{HEADER}\n");
    for (kernel, counters) in kernels {
        let ((sectors, fewest_sectors), (waves, fewest_waves)) = (counters.total(false), counters.total(true));
        let Counters { launches, warp_instructions, lane_instructions, barriers, read_bytes, .. } = counters;
        let Counters { written_bytes, distinct_read_bytes, distinct_written_bytes, flops, .. } = counters;
        let Counters { matrix_instructions, matrix_flops, .. } = counters;
        // Writing to a string never fails.
        let _ = writeln!(
            text,
            "{kernel},{launches},{warp_instructions},{lane_instructions},{barriers},{read_bytes},{written_bytes},\
             {distinct_read_bytes},{distinct_written_bytes},{flops},{matrix_instructions},{matrix_flops},{sectors},\
             {fewest_sectors},{waves},{fewest_waves}"
        );
    }
    text
}

/// Number of sectors of device memory that a warp's accesses of `bytes` each touch, and the minimum for the same number
/// of distinct bytes. Each access is aligned to its size.
pub fn sectors(addresses: &[u64], bytes: u64) -> (u64, u64) {
    // Sizes are powers of two.
    let distinct = |size: u64| {
        let shift = size.trailing_zeros();
        let mut keys = [0; 32];
        let keys = &mut keys[..addresses.len().min(32)];
        for (key, address) in keys.iter_mut().zip(addresses) {
            *key = address >> shift;
        }
        if !keys.is_sorted() {
            keys.sort_unstable();
        }
        keys.chunk_by(|a, b| a == b).count() as u64
    };
    (distinct(SECTOR), (distinct(bytes) * bytes).div_ceil(SECTOR))
}

/// Number of wavefronts that shared memory needs for a warp's accesses of `bytes` each, and the minimum: 16-byte
/// accesses are served for 8 lanes at a time, 8-byte accesses for 16. `addresses`: lane and address, by lane.
pub fn wavefronts(addresses: &[(usize, u64)], bytes: u64) -> (u64, u64) {
    let lanes = if bytes <= 4 { 32 } else { 128 / bytes as usize };
    let (mut taken, mut fewest) = (0, 0);
    for phase in addresses.chunk_by(|a, b| a.0 / lanes == b.0 / lanes) {
        // The first word of each bank that has one, and further words: empty in kernels without conflicts.
        let (mut used, mut first, mut others, mut count) = (0u32, [0; BANKS], [0; 32], 0);
        for (_, address) in phase {
            for word in address / 4..=(address + bytes - 1) / 4 {
                let bank = word as usize % BANKS;
                if used >> bank & 1 == 0 {
                    used |= 1 << bank;
                    first[bank] = word;
                } else if first[bank] != word && count < others.len() && !others[..count].contains(&word) {
                    others[count] = word;
                    count += 1;
                }
            }
        }
        let of_bank = |bank: u64| others[..count].iter().filter(|word| *word % BANKS as u64 == bank).count() as u64;
        taken += 1 + others[..count].iter().map(|word| of_bank(word % BANKS as u64)).max().unwrap_or(0);
        fewest += 1;
    }
    (taken, fewest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_share_sectors_and_strides_do_not() {
        let every = |stride: u64| (0..32).map(|lane| 0x1000 + lane * stride).collect::<Vec<_>>();
        assert_eq!(sectors(&every(4), 4), (4, 4));
        assert_eq!(sectors(&every(64), 4), (32, 4));
        assert_eq!(sectors(&every(0), 4), (1, 1));
        assert_eq!(sectors(&every(16), 16), (16, 16));
        assert_eq!(sectors(&[0x101c, 0x1020], 4), (2, 1));
    }

    #[test]
    fn strides_of_all_banks_conflict() {
        let every = |stride: u64| (0..32).map(|lane| (lane, lane as u64 * stride)).collect::<Vec<_>>();
        assert_eq!(wavefronts(&every(4), 4), (1, 1));
        assert_eq!(wavefronts(&every(128), 4), (32, 1));
        assert_eq!(wavefronts(&every(0), 4), (1, 1), "a broadcast");
        assert_eq!(wavefronts(&every(16), 16), (4, 4));
        assert_eq!(wavefronts(&every(128), 16), (32, 4), "rows of 128 bytes");
        assert_eq!(wavefronts(&every(80), 16), (4, 4), "rows padded by 16 bytes");
        assert_eq!(wavefronts(&every(2), 2), (1, 1));
    }
}
