//! Runs kernels without a driver: device memory and launches.

use crate::ptx::run::{self, Fault, Launch, Order, Outcome, RunSettings};
use crate::ptx::{Kernel, Module};
use crate::shadow::Memory;

/// Four orders of warps and blocks.
pub const ORDERS: [Order; 4] = [Order::Forward, Order::Backward, Order::Interleaved, Order::Random(7)];

/// A card's memory and its settings.
#[derive(Debug, Default)]
pub struct Workbench {
    /// Its memory.
    pub memory: Memory,
    /// RunSettings for behavior that the hardware leaves open.
    pub settings: RunSettings,
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl Workbench {
    /// Sets the order of warps and blocks; approximate instructions are blurred with the seed `blur`, or exact if it is
    /// 0.
    pub fn with(order: Order, blur: u64) -> Self {
        Self { settings: RunSettings { order, blur, ..RunSettings::default() }, ..Self::default() }
    }

    /// Allocates memory with these bytes.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let address = self.memory.allocate(bytes.len() as u64);
        self.memory.write(address, bytes).expect("allocated memory");
        address
    }

    /// Allocates unwritten memory.
    pub fn room(&mut self, bytes: usize) -> u64 {
        self.memory.allocate(bytes as u64)
    }

    /// Reads bytes. Panics unless all of them were written.
    pub fn get(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        let (data, written) = self.memory.read(address, bytes as u64).expect("allocated memory");
        let unwritten = written.iter().filter(|written| !**written).count();
        assert_eq!(unwritten, 0, "unwritten bytes");
        data
    }

    /// Runs a kernel of a module to its end. Panics if the module has no such kernel. Errors: the first fault.
    pub fn start(
        &mut self,
        module: &Module,
        kernel: &Kernel,
        shape: &Shape,
        parameters: &[u8],
    ) -> Result<Outcome, Box<Fault>> {
        let block = [shape.threads, 1, 1];
        let launch = Launch { grid: shape.grid, block, dynamic_shared: shape.shared_bytes, parameters };
        run::launch(kernel, &launch, &self.settings, &mut self.memory, &module.files)
    }
}
