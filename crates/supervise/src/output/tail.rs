//! The last bytes of what was printed.

use std::collections::VecDeque;

/// Keeps so many bytes at the most.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    most: usize,
}

impl Tail {
    pub(crate) fn new(most: usize) -> Self {
        Self { bytes: VecDeque::new(), most }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.most)..];
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(self.most);
        self.bytes.drain(..surplus);
        self.bytes.extend(bytes);
    }

    /// What is kept.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }

    /// What was kept; nothing is, from then on.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_bytes_stay(pieces in proptest::collection::vec(proptest::collection::vec(0u8..255, 0..20), 0..20)) {
            let mut tail = Tail::new(16);
            pieces.iter().for_each(|piece| tail.push(piece));
            let all = pieces.concat();
            prop_assert_eq!(tail.take(), &all[all.len().saturating_sub(16)..]);
        }
    }
}
