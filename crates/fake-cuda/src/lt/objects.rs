//! The library's objects by their handles.

use super::description::{Description, Layout, Preference};
use super::problem::Problem;
use super::{INVALID_VALUE, Status};
use std::collections::{BTreeSet, HashMap};

/// All cuBLASLt objects, by handle.
#[derive(Debug, Default)]
pub struct Lt {
    pub(super) handles: HashMap<u64, Handle>,
    pub(super) descriptions: HashMap<u64, Description>,
    pub(super) layouts: HashMap<u64, Layout>,
    pub(super) preferences: HashMap<u64, Preference>,
}

/// A library handle on a card.
#[derive(Debug, Default)]
pub(super) struct Handle {
    /// Algorithms whose kernels are loaded on the card.
    pub(super) loaded: BTreeSet<u64>,
}

impl Lt {
    /// The object of a handle. Errors: it does not exist.
    pub(super) fn handle(&mut self, handle: u64) -> Result<&mut Handle, Status> {
        self.handles.get_mut(&handle).ok_or(INVALID_VALUE)
    }

    /// The problem D = alpha · op(A) · op(B) + beta · C, on a card of this compute capability. Errors: an object does not
    /// exist, or the shapes do not match.
    pub(super) fn problem(
        &self,
        description: u64,
        layouts: [u64; 4],
        capability: (i32, i32),
    ) -> Result<Problem, Status> {
        let description = *self.descriptions.get(&description).ok_or(INVALID_VALUE)?;
        let [a, b, c, d] = layouts.map(|layout| self.layouts.get(&layout).copied());
        let all = [a, b, c, d].into_iter().collect::<Option<Vec<_>>>().ok_or(INVALID_VALUE)?;
        Problem::new(description, [all[0], all[1], all[2], all[3]], capability)
    }

    /// Number of objects not destroyed.
    pub fn open_objects(&self) -> usize {
        self.handles.len() + self.descriptions.len() + self.layouts.len() + self.preferences.len()
    }
}
