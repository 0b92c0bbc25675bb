//! Why a card can't be used, or failed. Fields are data; the caller, who knows the request, says what to do about it.

use super::cublas_lt::CublasLtError;
use std::fmt;

/// The kind of a card's fault. After any of them, the process can't use anything on the card any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An uncorrectable memory error.
    Memory,
    /// A kernel made an invalid access: a bug, or a defective card.
    Kernel,
    /// A kernel exceeded the system's time limit.
    Timeout,
    /// The card no longer responds: it lost power or its bus, or its driver restarted.
    Lost,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "its memory has errors that cannot be corrected",
            Self::Kernel => "a kernel failed",
            Self::Timeout => "a kernel exceeded the time limit",
            Self::Lost => "it no longer responds",
        })
    }
}

/// A function of the driver that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{function} gives {}{}", meaning(*.code, .name.as_deref(), .words.as_deref()), .detail.as_ref().map_or(String::new(), |detail| format!(" ({detail})")))]
pub struct CallError {
    /// The function.
    pub function: &'static str,
    /// `CUresult`.
    pub code: u32,
    /// Its name in `cuda.h`; `None` if the driver does not know it.
    pub name: Option<Box<str>>,
    /// The driver's description.
    pub words: Option<Box<str>>,
    /// Further details from the driver.
    pub detail: Option<Box<str>>,
}

impl CallError {
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    const OUT_OF_MEMORY: u32 = 2;

    /// Whether there was too little memory.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.code == Self::OUT_OF_MEMORY
    }

    /// The fault that this means; `None` if the card can still be used.
    fn fault(&self) -> Option<Fault> {
        match self.code {
            // ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED
            214 | 220 | 226 => Some(Fault::Memory),
            // LAUNCH_TIMEOUT
            702 => Some(Fault::Timeout),
            // ILLEGAL_ADDRESS, ASSERT, HARDWARE_STACK_ERROR to LAUNCH_FAILED, TENSOR_MEMORY_LEAK
            700 | 710 | 714..=719 | 721 => Some(Fault::Kernel),
            // DEINITIALIZED, DEVICE_UNAVAILABLE, CONTEXT_IS_DESTROYED, EXTERNAL_DEVICE, UNKNOWN
            4 | 46 | 709 | 911 | 999 => Some(Fault::Lost),
            _ => None,
        }
    }
}

/// Why a card cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver's library was not found, or is another library.
    #[error("no NVIDIA driver was found: {}", .tried.join("; "))]
    NoDriver {
        /// The names that were tried, with the system's messages.
        tried: Vec<String>,
    },
    /// The driver is too old for the kernels.
    #[error("{library} is too old: {}, CUDA {}.{} is needed", .lacks, .needed.0, .needed.1)]
    DriverTooOld {
        /// The driver's library.
        library: String,
        /// What is missing.
        lacks: String,
        /// The oldest sufficient version of CUDA.
        needed: (u32, u32),
    },
    /// The driver shows no card.
    #[error("the NVIDIA driver shows no GPU{}", hidden(.visible.as_deref()))]
    NoCards {
        /// `CUDA_VISIBLE_DEVICES`, if it is set.
        visible: Option<String>,
    },
    /// No card has this number.
    #[error("there is no GPU {index}: the driver shows {count}, counted from 0{}", hidden(.visible.as_deref()))]
    NoSuchCard {
        /// The requested number.
        index: usize,
        /// Number of cards.
        count: usize,
        /// `CUDA_VISIBLE_DEVICES`, if it is set.
        visible: Option<String>,
    },
    /// The card is older than the kernels.
    #[error("{name} has compute capability {}.{}, {}.{} is the oldest that is supported", .found.0, .found.1, .oldest.0, .oldest.1)]
    CardTooOld {
        /// The card.
        name: String,
        /// Its compute capability.
        found: (u8, u8),
        /// The oldest supported one.
        oldest: (u8, u8),
    },
    /// The card allows one process, and another one uses it.
    #[error("{name} is in exclusive mode, and another process uses it")]
    InUse {
        /// The card.
        name: String,
    },
    /// The card allows no process.
    #[error("{name} is in prohibited mode: no process may use it")]
    Prohibited {
        /// The card.
        name: String,
    },
    /// The card has too little free memory for the driver itself.
    #[error("{name} has no room for the driver's own memory, before any memory of a plan")]
    NoRoomForDriver {
        /// The card.
        name: String,
        /// Its UUID.
        uuid: String,
    },
    /// There is no kernel for a step of the plan.
    #[error("GPUs cannot run `{op}`: {reason}")]
    NoKernel {
        /// The op.
        op: &'static str,
        /// The reason.
        reason: String,
    },
    /// The driver refuses a module of kernels.
    #[error("the driver refuses the kernels `{module}`: {call}{}", compiler_message(.log))]
    ModuleRefused {
        /// The module.
        module: &'static str,
        /// The call that failed.
        call: CallError,
        /// The message of its compiler.
        log: Box<str>,
    },
    /// The card had a fault, and this process can't use it any more.
    #[error("the GPU failed, {fault}: {call}")]
    CardFailed {
        /// The fault.
        fault: Fault,
        /// The call that reported it; it may have happened earlier.
        call: CallError,
    },
    /// NVIDIA's library of products can't be used, or failed.
    #[error(transparent)]
    CublasLt(#[from] CublasLtError),
    /// Any other failure of the driver.
    #[error("the NVIDIA driver failed: {0}")]
    Call(CallError),
}

impl From<CallError> for CudaError {
    fn from(call: CallError) -> Self {
        match call.fault() {
            Some(fault) => Self::CardFailed { fault, call },
            None => Self::Call(call),
        }
    }
}

fn meaning(code: u32, name: Option<&str>, words: Option<&str>) -> String {
    match (name, words) {
        (Some(name), Some(words)) => format!("{name}: {words}"),
        _ => format!("error {code}, which it does not describe"),
    }
}

fn hidden(visible: Option<&str>) -> String {
    visible.map_or(String::new(), |visible| format!("; CUDA_VISIBLE_DEVICES is `{visible}`"))
}

fn compiler_message(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: u32) -> CallError {
        CallError { function: "cuX", code, name: Some("CUDA_ERROR_X".into()), words: Some("x".into()), detail: None }
    }

    #[test]
    fn only_errors_that_end_a_card_are_faults() {
        for (code, fault) in [
            (214, Some(Fault::Memory)),
            (700, Some(Fault::Kernel)),
            (702, Some(Fault::Timeout)),
            (999, Some(Fault::Lost)),
        ] {
            assert!(
                matches!(CudaError::from(call(code)), CudaError::CardFailed { fault: found, .. } if Some(found) == fault),
                "{code}"
            );
        }
        for code in [1, 2, 400, 801] {
            assert_eq!(CudaError::from(call(code)), CudaError::Call(call(code)));
        }
    }
}
