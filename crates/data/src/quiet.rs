//! Calls a library that panics on bad input, and keeps its panic messages off the terminal.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether [`caught`] is active on this thread and reports the panic.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Returns the result of `work`, or the message of its panic. Do not use data that the panic interrupted unless it is
/// valid after any panic. The process's panic hook is wrapped once, so that it is silent about panics caught here.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static WRAPPED: Once = Once::new();
    WRAPPED.call_once(|| {
        let previous_hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                previous_hook(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    result.map_err(|panic| message_of(&*panic))
}

/// The message of a panic.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_returned_and_the_next_call_works() {
        assert_eq!(caught(|| -> u8 { panic!("at {}", 3) }), Err("at 3".to_owned()));
        assert_eq!(caught(|| 7), Ok(7));
        assert!(!QUIET.get());
    }
}
