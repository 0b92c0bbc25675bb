//! Reads files back, from the description of the format alone.

use std::collections::BTreeMap;

/// A file.
#[derive(Debug, Default)]
pub struct Read {
    /// Values as texts.
    pub keys: BTreeMap<String, String>,
    /// Extents from the innermost, encoding, and bytes.
    pub tensors: BTreeMap<String, (Vec<u64>, u32, Vec<u8>)>,
}

impl Read {
    /// Panics if the bytes are not a file.
    pub fn of(bytes: &[u8]) -> Self {
        let mut at = Cursor { bytes, place: 0 };
        assert_eq!((at.take(4), at.u32()), (&b"GGUF"[..], 3));
        let (tensors, keys) = (at.u64(), at.u64());
        let mut read = Self::default();
        for _ in 0..keys {
            let (key, kind) = (at.text(), at.u32());
            let value = at.value(kind);
            assert!(read.keys.insert(key.clone(), value).is_none(), "{key} is there twice");
        }
        let infos = (0..tensors).map(|_| {
            let (name, count) = (at.text(), at.u32());
            let extents = (0..count).map(|_| at.u64()).collect::<Vec<_>>();
            (name, extents, at.u32(), at.u64() as usize)
        });
        let infos = infos.collect::<Vec<_>>();
        let start = at.place.next_multiple_of(32);
        let ends = infos.iter().skip(1).map(|info| info.3).chain([bytes.len() - start]);
        for ((name, extents, encoding, offset), end) in infos.iter().zip(ends.collect::<Vec<_>>()) {
            assert_eq!(offset % 32, 0, "{name}");
            let tensor = (extents.clone(), *encoding, bytes[start + offset..start + end].to_vec());
            assert!(read.tensors.insert(name.clone(), tensor).is_none(), "{name} is there twice");
        }
        read
    }

    /// The numbers of a tensor in single precision.
    pub fn singles(&self, name: &str) -> Vec<f32> {
        let (extents, encoding, bytes) = &self.tensors[name];
        assert_eq!(*encoding, 0, "{name}");
        let count = extents.iter().product::<u64>() as usize;
        bytes.as_chunks::<4>().0[..count].iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        self.place += count;
        &self.bytes[self.place - count..self.place]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn text(&mut self) -> String {
        let count = self.u64() as usize;
        String::from_utf8(self.take(count).to_vec()).expect("text")
    }

    fn value(&mut self, kind: u32) -> String {
        match kind {
            0 | 7 => self.take(1)[0].to_string(),
            4 => self.u32().to_string(),
            5 => (self.u32().cast_signed()).to_string(),
            6 => f32::from_bits(self.u32()).to_string(),
            8 => self.text(),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).map(|_| self.value(kind)).collect::<Vec<_>>().join("|")
            }
            other => panic!("a value of type {other}"),
        }
    }
}
