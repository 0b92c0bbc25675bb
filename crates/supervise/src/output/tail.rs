//! The last bytes of an output.

use std::collections::VecDeque;

/// Keeps up to `max_bytes`.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    max_bytes: usize,
}

impl Tail {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { bytes: VecDeque::new(), max_bytes }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.max_bytes)..];
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(self.max_bytes);
        self.bytes.drain(..surplus);
        self.bytes.extend(bytes);
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }

    /// Returns the bytes and clears them.
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
        fn the_last_bytes_are_kept(pieces in proptest::collection::vec(proptest::collection::vec(0u8..255, 0..20), 0..20)) {
            let mut tail = Tail::new(16);
            pieces.iter().for_each(|piece| tail.push(piece));
            let all = pieces.concat();
            prop_assert_eq!(tail.take(), &all[all.len().saturating_sub(16)..]);
        }
    }
}
