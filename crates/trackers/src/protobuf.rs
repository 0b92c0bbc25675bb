//! The parts of protocol buffers that event files and W&B's logs need: writes fields in sequence, and reads them back.
//! Source: "Encoding", protobuf.dev.

/// A message being written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// An integer, a boolean or an enum value.
    pub(crate) fn integer(mut self, field: u32, value: u64) -> Self {
        self.tag(field, 0);
        self.varint(value);
        self
    }

    pub(crate) fn double(mut self, field: u32, value: f64) -> Self {
        self.tag(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn float(mut self, field: u32, value: f32) -> Self {
        self.tag(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn text(self, field: u32, text: &str) -> Self {
        self.blob(field, text.as_bytes())
    }

    pub(crate) fn message(self, field: u32, message: &Self) -> Self {
        self.blob(field, &message.0)
    }

    fn blob(mut self, field: u32, bytes: &[u8]) -> Self {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn tag(&mut self, field: u32, kind: u64) {
        self.varint(u64::from(field) << 3 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The length-delimited fields of a message, with their numbers; skips other fields. Ends at the first damage.
pub(crate) fn blobs(mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            let tag = take_varint(&mut bytes)?;
            match tag & 7 {
                0 => drop(take_varint(&mut bytes)?),
                1 => bytes = bytes.get(8..)?,
                5 => bytes = bytes.get(4..)?,
                2 => {
                    let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
                    let (blob, rest) = bytes.split_at_checked(length)?;
                    bytes = rest;
                    return Some((tag >> 3, blob));
                }
                _ => return None,
            }
        }
    })
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_per_the_format() {
        // Examples from "Encoding": 150 in field 1, "testing" in field 2, a message with 150 in field 3.
        let inner = Message::new().integer(1, 150);
        assert_eq!(inner.bytes(), [0x08, 0x96, 0x01]);
        let text = Message::new().text(2, "testing");
        assert_eq!(text.bytes(), b"\x12\x07testing");
        assert_eq!(Message::new().message(3, &inner).bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(Message::new().integer(1, u64::MAX).bytes().len(), 11);
    }

    #[test]
    fn parts_are_read_back_and_others_skipped() {
        let message = Message::new().integer(1, 1 << 40).text(2, "a").double(3, 1.0).float(4, 2.0).text(200, "b");
        assert_eq!(blobs(message.bytes()).collect::<Vec<_>>(), [(2, &b"a"[..]), (200, &b"b"[..])]);
    }

    proptest::proptest! {
        #[test]
        fn damaged_messages_end(bytes: Vec<u8>) {
            proptest::prop_assert!(blobs(&bytes).count() <= bytes.len());
        }
    }
}
