//! The library on a card.

use super::library::{CublasLt, CublasLtError, Object, SUCCESS, Status};
use crate::cuda::context::Context;
use std::ptr;
use std::sync::Arc;

/// The library's handle for a card, which takes memory of it.
#[derive(Debug)]
pub(in crate::cuda) struct Handle {
    context: Arc<Context>,
    library: &'static CublasLt,
    at: Object,
}

// SAFETY: NVIDIA's documentation says that the library's functions may be called from any thread, also with one handle.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// A handle for the context's card. Errors: the library can't be used on it.
    pub(in crate::cuda) fn new(context: &Arc<Context>, library: &'static CublasLt) -> Result<Self, CublasLtError> {
        let mut at = ptr::null_mut();
        context.count_request();
        // SAFETY: the context is this thread's, and the place is on this stack.
        check("cublasLtCreate", unsafe { (library.functions.create)(&mut at) })?;
        Ok(Self { context: context.clone(), library, at })
    }

    /// The library.
    pub(in crate::cuda) fn library(&self) -> &'static CublasLt {
        self.library
    }

    /// The card's context.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// For the library's functions.
    pub(super) fn at(&self) -> Object {
        self.at
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was created, and products that hold on to it are done. A library that fails here leaves nothing to be
        // done.
        let _ = unsafe { (self.library.functions.destroy)(self.at) };
    }
}

/// One of the library's descriptions, which is given back with this.
#[derive(Debug)]
pub(super) struct Owned {
    at: Object,
    destroy: unsafe extern "C" fn(Object) -> Status,
}

impl Owned {
    /// What `create` makes and `destroy` ends.
    pub(super) fn new(
        function: &'static str,
        destroy: unsafe extern "C" fn(Object) -> Status,
        create: impl FnOnce(*mut Object) -> Status,
    ) -> Result<Self, CublasLtError> {
        let mut at = ptr::null_mut();
        check(function, create(&mut at))?;
        Ok(Self { at, destroy })
    }

    /// For the library's functions.
    pub(super) fn at(&self) -> Object {
        self.at
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was created, and nobody else has it.
        let _ = unsafe { (self.destroy)(self.at) };
    }
}

/// An error if a function did not succeed.
pub(super) fn check(function: &'static str, status: Status) -> Result<(), CublasLtError> {
    if status == SUCCESS { Ok(()) } else { Err(CublasLtError::Failed { function, status, of: None }) }
}
