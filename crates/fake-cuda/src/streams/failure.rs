//! Why an operation failed.

/// Why an operation failed: the driver's code, and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// `CUresult`.
    pub code: u32,
    /// Message.
    pub message: String,
}
