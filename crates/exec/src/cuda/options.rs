//! Options of a card as a device.

/// Options of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaOptions {
    /// Whether programs are captured once and then launched by one call each.
    pub graphs: bool,
    /// Whether products in single precision, those of linear layers and output heads, round their operands to TF32 and
    /// use tensor cores. No effect on cards before [`OLDEST_WITH_TF32`](super::OLDEST_WITH_TF32).
    pub tf32: bool,
    /// Whether the algorithms of a library's products are timed to choose the fastest; otherwise the library's
    /// recommendations are used. Takes a few seconds when a plan is loaded.
    pub autotune: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { graphs: true, tf32: false, autotune: false }
    }
}
