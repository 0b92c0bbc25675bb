//! Storages: memory ranges with owners but without values.

use super::Rt;
use super::trace::Place;
use std::rc::Rc;

/// A memory range, owned by the tensors that view it.
pub(crate) struct Storage {
    pub rt: Rt,
    /// The index of its record in the trace; 0 if it is not on the GPU.
    pub id: u32,
    pub place: Place,
    pub elements: u64,
    /// Storages that a fused storage is computed from.
    pub operands: Vec<Rc<Self>>,
}

impl Storage {
    /// The number of elements of a fused storage; `None` for other storages.
    pub fn fused_elements(&self) -> Option<u64> {
        (self.place == Place::Fused).then_some(self.elements)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.place == Place::Card {
            self.rt.trace.borrow_mut().free(self.id);
        }
        // Not recursive: chains of fused storages can be as long as the model is deep and would overflow the stack.
        let mut open = std::mem::take(&mut self.operands);
        while let Some(operand) = open.pop() {
            if let Ok(mut operand) = Rc::try_unwrap(operand) {
                open.append(&mut operand.operands);
            }
        }
    }
}
