//! Runs a kernel block by block and warp by warp, checking every access. Read next: `block.rs`.

mod access;
mod asynchronous;
mod block;
mod copies;
mod exchange;
mod fault;
mod mask;
mod matrix;
mod warp;

pub use fault::{Fault, FaultKind};

use super::program::Kernel;
use crate::shadow::{Memory, Stamp, Touched};
use crate::trace::Counters;
use block::Block;
use warp::{Position, Warp};

/// Start of the generic addresses of shared memory.
pub const SHARED_WINDOW: u64 = 0x7d00_0000_0000;
/// Start of the generic addresses of local memory.
pub const LOCAL_WINDOW: u64 = 0x7e00_0000_0000;
/// Start of the generic addresses of constants.
pub const CONSTANT_WINDOW: u64 = 0x7f00_0000_0000;
/// Size of a window.
pub const WINDOW: u64 = 1 << 32;

/// Order of blocks, and of warps between barriers. Results must not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The first one, as far as possible.
    Forward,
    /// The last one, as far as possible.
    Backward,
    /// All in turn, one instruction each.
    Interleaved,
    /// A random one for a few instructions; the number is the seed.
    Random(u64),
}

/// Rounding of a matrix instruction's sum to single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulation {
    /// Exact, then rounded to nearest.
    Nearest,
    /// Exact, then truncated, as observed on tensor cores.
    /// Source: Fasi, Higham, Mikaitis & Pranesh 2021, "Numerical behavior of NVIDIA tensor cores".
    Truncating,
}

/// RunSettings for behavior that the hardware leaves open.
#[derive(Debug, Clone, Copy)]
pub struct RunSettings {
    /// Order of blocks and warps.
    pub order: Order,
    /// Seed for blurring approximate instructions by up to 2 units in the last place; 0: exact.
    pub blur: u64,
    /// Rounding of matrix instructions.
    pub accumulation: Accumulation,
    /// Maximum number of warp instructions, after which a launch counts as hung.
    pub steps: u64,
    /// The card's shared memory per block, in bytes.
    pub shared_limit: u32,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            order: Order::Forward,
            blur: 0,
            accumulation: Accumulation::Nearest,
            steps: 200_000_000,
            shared_limit: 99 << 10,
        }
    }
}

/// A launch.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub dynamic_shared: u32,
    /// The parameter block.
    pub parameters: &'a [u8],
}

/// Result of a launch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Counters.
    pub counters: Counters,
    /// Ranges of device memory read and written.
    pub touched: Vec<Touched>,
}

/// Runs a kernel to its end. `files`: names of source files for messages. Errors: the first fault, with memory as it
/// was then.
pub fn launch(
    kernel: &Kernel,
    launch: &Launch,
    settings: &RunSettings,
    memory: &mut Memory,
    files: &[(u32, String)],
) -> Result<Outcome, Box<Fault>> {
    let threads = check(kernel, launch, settings)?;
    memory.begin_launch();
    let mut warps = (0..threads.div_ceil(32)).map(|index| Warp::new(kernel, index)).collect::<Vec<_>>();
    let mut block = Block::new(kernel, launch, settings, memory, files);
    for number in block_order(launch.grid, settings.order) {
        let at = [
            (number % u64::from(launch.grid[0])) as u32,
            (number / u64::from(launch.grid[0]) % u64::from(launch.grid[1])) as u32,
            (number / u64::from(launch.grid[0]) / u64::from(launch.grid[1])) as u32,
        ];
        let position = Position {
            grid: launch.grid,
            block: launch.block,
            at,
            dynamic_shared: launch.dynamic_shared,
            dynamic_start: kernel.shared_bytes.next_multiple_of(16),
        };
        block.run(number as u32, position, &mut warps)?;
    }
    let mut counters = block.finish();
    let touched = memory.end_launch();
    for (start, end, written) in &touched {
        let bytes = if *written { &mut counters.distinct_written_bytes } else { &mut counters.distinct_read_bytes };
        *bytes += end - start;
    }
    Ok(Outcome { counters, touched })
}

/// Number of threads per block. Errors: the launch is invalid.
fn check(kernel: &Kernel, launch: &Launch, settings: &RunSettings) -> Result<u32, Box<Fault>> {
    let fault = |what: String| {
        Box::new(Fault {
            kind: FaultKind::Launch(what),
            kernel: kernel.name.clone(),
            source: String::new(),
            text: String::new(),
            block: [0; 3],
            thread: 0,
        })
    };
    let product = |extents: [u32; 3]| extents.into_iter().map(u128::from).product::<u128>();
    let (threads, blocks) = (product(launch.block), product(launch.grid));
    let most = u128::from(kernel.max_threads.unwrap_or(1024).min(1024));
    if threads == 0 || threads > most || launch.block[2] > 64 {
        return Err(fault(format!("blocks of {:?} threads; the maximum is {most}", launch.block)));
    }
    if blocks == 0 || blocks >= u128::from(Stamp::BLOCKS) || launch.grid[1] > 65535 || launch.grid[2] > 65535 {
        return Err(fault(format!("a grid of {:?} blocks", launch.grid)));
    }
    let shared = u64::from(kernel.shared_bytes.next_multiple_of(16)) + u64::from(launch.dynamic_shared);
    if shared > settings.shared_limit.into() {
        return Err(fault(format!("{shared} bytes of shared memory; the maximum is {}", settings.shared_limit)));
    }
    if launch.parameters.len() != kernel.parameter_bytes as usize {
        let (given, declared) = (launch.parameters.len(), kernel.parameter_bytes);
        return Err(fault(format!("{given} bytes of parameters; it declares {declared}")));
    }
    Ok(threads as u32)
}

/// The blocks in the order in which they run.
fn block_order(grid: [u32; 3], order: Order) -> Vec<u64> {
    let mut blocks = (0..grid.into_iter().map(u64::from).product()).collect::<Vec<u64>>();
    match order {
        Order::Forward | Order::Interleaved => {}
        Order::Backward => blocks.reverse(),
        Order::Random(seed) => {
            let mut random = Random(seed);
            for left in (1..blocks.len()).rev() {
                blocks.swap(left, random.below(left as u64 + 1) as usize);
            }
        }
    }
    blocks
}

/// Reproducible pseudorandom numbers.
/// Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators".
#[derive(Debug, Clone, Copy)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Mixes the bits of a number.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}
