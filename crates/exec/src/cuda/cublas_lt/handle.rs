//! The library on a card.

use super::library::{CublasLt, CublasLtError, Object, SUCCESS, Status};
use crate::cuda::context::Context;
use std::ptr;
use std::sync::Arc;

/// The library's handle for a card, which uses some of its memory.
#[derive(Debug)]
pub(in crate::cuda) struct Handle {
    context: Arc<Context>,
    library: &'static CublasLt,
    at: Object,
}

// SAFETY: according to NVIDIA's documentation, any thread may call the library's functions, also with one handle.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// A handle for the context's card. Errors: the library does not support it.
    pub(in crate::cuda) fn new(context: &Arc<Context>, library: &'static CublasLt) -> Result<Self, CublasLtError> {
        let mut at = ptr::null_mut();
        context.count_request();
        // SAFETY: the context is current, and the destination is on this stack.
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

    /// The handle that the library's functions take.
    pub(super) fn at(&self) -> Object {
        self.at
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was created, and products that use it are done. If the library fails here, nothing more can be
        // done.
        let _ = unsafe { (self.library.functions.destroy)(self.at) };
    }
}

/// One of the library's descriptions, destroyed on drop.
#[derive(Debug)]
pub(super) struct Owned {
    at: Object,
    destroy: unsafe extern "C" fn(Object) -> Status,
}

impl Owned {
    /// The object that `create` makes and `destroy` frees.
    pub(super) fn new(
        function: &'static str,
        destroy: unsafe extern "C" fn(Object) -> Status,
        create: impl FnOnce(*mut Object) -> Status,
    ) -> Result<Self, CublasLtError> {
        let mut at = ptr::null_mut();
        check(function, create(&mut at))?;
        Ok(Self { at, destroy })
    }

    /// The handle that the library's functions take.
    pub(super) fn at(&self) -> Object {
        self.at
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was created, and there is no other copy of it.
        let _ = unsafe { (self.destroy)(self.at) };
    }
}

/// An error if a function did not succeed.
pub(super) fn check(function: &'static str, status: Status) -> Result<(), CublasLtError> {
    if status == SUCCESS { Ok(()) } else { Err(CublasLtError::Failed { function, status, of: None }) }
}
