//! Causes of ends in words: for reports, for loops of crashes, and for people.

use crate::SUCCESS;
use crate::ends::{CardAllocator, Cause, Fault, Reason, Told};

/// The kind of an end, by which ends are counted.
pub(super) fn kind(cause: &Cause) -> String {
    match cause {
        Cause::Done => SUCCESS.to_owned(),
        Cause::Fault(Fault::Crashed { signal }) => format!("signal_{signal}"),
        Cause::Fault(Fault::Exit { code }) => format!("exit_{code}"),
        cause => cause.kind().to_owned(),
    }
}

/// The same for two ends of the same cause: numbers in what was said are those of a step, a size or a process.
pub(super) fn cause(reason: &Reason) -> String {
    let line: String =
        reason.line.iter().flat_map(|line| line.chars()).filter(|c| !c.is_ascii_digit()).take(200).collect();
    [kind(&reason.cause), reason.cause.detail(), line].join(" ").trim_end().to_owned()
}

/// Whether a program may end so because of a flag, a key or a value that it does not know, or a module that it lacks.
pub(super) fn may_refuse(fault: &Fault) -> bool {
    matches!(fault, Fault::Configuration | Fault::Import | Fault::Exception { .. } | Fault::Exit { .. })
}

/// A shortage of which only is known that there was one.
pub(super) fn unknown_shortage() -> Cause {
    Cause::CardMemory { by: CardAllocator::PyTorch, told: Told::default() }
}

/// A cause in words.
pub(super) fn words(cause: &Cause) -> String {
    match cause {
        Cause::CardMemory { by, told } => {
            let tried = told.tried.map(|tried| format!(": {tried} more were asked for")).unwrap_or_default();
            format!("the card's memory did not suffice ({}{tried})", by.name())
        }
        Cause::HostMemory(by) => format!("the machine's memory did not suffice ({})", by.name()),
        cause => cause.kind().to_owned(),
    }
}
