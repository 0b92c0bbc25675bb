//! Text for causes of ends: for reports, for crash-loop detection, and for users.

use crate::ends::{AllocatorSizes, CardAllocator, Cause, Fault, Reason};
use plimsoll_registry::SUCCESS;

/// The kind of an end, used to count ends.
pub(super) fn kind(cause: &Cause) -> String {
    match cause {
        Cause::Done => SUCCESS.to_owned(),
        Cause::Fault(Fault::Crashed { signal }) => format!("signal_{signal}"),
        Cause::Fault(Fault::Exit { code }) => format!("exit_{code}"),
        cause => cause.kind().to_owned(),
    }
}

/// Text that is equal for two ends with the same cause. Leaves out digits, which are a step, a size or a process.
pub(super) fn cause(reason: &Reason) -> String {
    let line: String =
        reason.line.iter().flat_map(|line| line.chars()).filter(|c| !c.is_ascii_digit()).take(200).collect();
    [kind(&reason.cause), reason.cause.detail(), line].join(" ").trim_end().to_owned()
}

/// Whether the cause of this fault may be an unknown flag, key or value, or a missing module.
pub(super) fn may_refuse(fault: &Fault) -> bool {
    matches!(fault, Fault::Configuration | Fault::Import | Fault::Exception { .. } | Fault::Exit { .. })
}

/// An out-of-memory error without details.
pub(super) fn unknown_shortage() -> Cause {
    Cause::CardMemory { by: CardAllocator::PyTorch, sizes: AllocatorSizes::default() }
}

/// A cause, for users.
pub(super) fn words(cause: &Cause) -> String {
    match cause {
        Cause::CardMemory { by, sizes } => {
            let tried = sizes.tried.map(|tried| format!(", tried to allocate {tried}")).unwrap_or_default();
            format!("out of GPU memory ({}{tried})", by.name())
        }
        Cause::HostMemory(by) => format!("out of host memory ({})", by.name()),
        Cause::Fault(Fault::Exit { code }) => format!("exit code {code}"),
        Cause::Fault(Fault::Crashed { signal }) => format!("signal {signal}"),
        cause => cause.kind().replace('_', " "),
    }
}
