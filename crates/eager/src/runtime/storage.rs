//! Storages: bytes with owners, but without values.

use super::Rt;
use super::trace::Place;
use std::rc::Rc;

/// Bytes, owned by the tensors that view them.
pub(crate) struct Storage {
    pub rt: Rt,
    /// The number of its record.
    pub id: u32,
    pub place: Place,
    pub elements: u64,
    /// What a fused one is made of.
    pub operands: Vec<Rc<Self>>,
}

impl Storage {
    /// How many elements a fused one has.
    pub fn fused_elements(&self) -> Option<u64> {
        (self.place == Place::Fused).then_some(self.elements)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.place == Place::Card {
            self.rt.trace.borrow_mut().free(self.id);
        }
        // One behind the other, since chains are as long as models are deep.
        let mut open = std::mem::take(&mut self.operands);
        while let Some(operand) = open.pop() {
            if let Ok(mut operand) = Rc::try_unwrap(operand) {
                open.append(&mut operand.operands);
            }
        }
    }
}
