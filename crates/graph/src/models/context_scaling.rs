//! Scaling of rotary positions by the length of sequences.

use crate::ops::RopeScaling;

/// Scaling of rotary positions, which can depend on the length of sequences.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContextScaling {
    /// The scaling, of shorter sequences if there is another one.
    pub scaling: RopeScaling,
    /// The scaling of sequences with more than this number of tokens.
    pub longer: Option<(usize, RopeScaling)>,
}

impl ContextScaling {
    /// The scaling of sequences with this number of tokens.
    pub fn at(&self, tokens: usize) -> &RopeScaling {
        match &self.longer {
            Some((most, scaling)) if tokens > *most => scaling,
            _ => &self.scaling,
        }
    }

    /// Whether its factors, if it has any, are for this number of pairs of channels.
    pub(super) fn fits(&self, pairs: usize) -> bool {
        let longer = self.longer.as_ref().map(|(_, scaling)| scaling);
        std::iter::once(&self.scaling).chain(longer).all(|scaling| match scaling {
            RopeScaling::LongRope { factors, .. } => factors.len() == pairs,
            _ => true,
        })
    }
}

impl From<RopeScaling> for ContextScaling {
    fn from(scaling: RopeScaling) -> Self {
        Self { scaling, longer: None }
    }
}
