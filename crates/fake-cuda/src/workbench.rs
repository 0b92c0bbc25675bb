//! Kernels started by hand, without a driver: device memory, and how to run.

use crate::ptx::run::{self, Fault, Launch, Order, Outcome, Settings};
use crate::ptx::{Kernel, Module};
use crate::shadow::Memory;

/// Four orders of warps and blocks.
pub const ORDERS: [Order; 4] = [Order::Forward, Order::Backward, Order::Interleaved, Order::Random(7)];

/// A card with memory, and what it does.
#[derive(Debug, Default)]
pub struct Workbench {
    /// Its memory.
    pub memory: Memory,
    /// How it runs what hardware leaves open.
    pub settings: Settings,
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
    /// In this order, with approximate instructions off as `blur` chooses; 0: exact.
    pub fn with(order: Order, blur: u64) -> Self {
        Self { settings: Settings { order, blur, ..Settings::default() }, ..Self::default() }
    }

    /// Memory that holds these bytes. Panics if there is none.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let address = self.memory.allocate(bytes.len() as u64);
        self.memory.write(address, bytes).expect("memory of its own");
        address
    }

    /// Memory that nothing wrote.
    pub fn room(&mut self, bytes: usize) -> u64 {
        self.memory.allocate(bytes as u64)
    }

    /// What lies there. Panics unless all of it was written.
    pub fn get(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        let (data, written) = self.memory.read(address, bytes as u64).expect("memory of its own");
        let unwritten = written.iter().filter(|written| !**written).count();
        assert_eq!(unwritten, 0, "bytes that nothing wrote");
        data
    }

    /// Runs a kernel of a module to its end. Panics if it has no such kernel. Errors: the first fault.
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
