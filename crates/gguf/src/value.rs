//! Values of a GGUF file's metadata.
//! Source: "GGUF" in ggml's docs/gguf.md, version 3.

/// A value. Numbers are little-endian.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An unsigned integer.
    U32(u32),
    /// A number.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// Bytes, as an array of unsigned integers of 8 bits.
    Bytes(Vec<u8>),
    /// Integers.
    Integers(Vec<i32>),
    /// Numbers.
    Numbers(Vec<f32>),
    /// Truth values.
    Flags(Vec<bool>),
    /// Texts.
    Texts(Vec<String>),
}

const ARRAY: u32 = 9;

impl Value {
    /// Appends its type and itself.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.code().to_le_bytes());
        if let Some((of_elements, count)) = self.elements() {
            bytes.extend(of_elements.to_le_bytes());
            bytes.extend((count as u64).to_le_bytes());
        }
        match self {
            Self::U32(number) => bytes.extend(number.to_le_bytes()),
            Self::F32(number) => bytes.extend(number.to_le_bytes()),
            Self::Bool(flag) => bytes.push(u8::from(*flag)),
            Self::Text(text) => write_text(text, bytes),
            Self::Bytes(all) => bytes.extend(all),
            Self::Integers(all) => all.iter().for_each(|number| bytes.extend(number.to_le_bytes())),
            Self::Numbers(all) => all.iter().for_each(|number| bytes.extend(number.to_le_bytes())),
            Self::Flags(all) => all.iter().for_each(|flag| bytes.push(u8::from(*flag))),
            Self::Texts(all) => all.iter().for_each(|text| write_text(text, bytes)),
        }
    }

    fn code(&self) -> u32 {
        match self {
            Self::U32(_) => 4,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            _ => ARRAY,
        }
    }

    /// The type and the number of an array's elements.
    fn elements(&self) -> Option<(u32, usize)> {
        match self {
            Self::Bytes(all) => Some((0, all.len())),
            Self::Integers(all) => Some((5, all.len())),
            Self::Numbers(all) => Some((6, all.len())),
            Self::Flags(all) => Some((7, all.len())),
            Self::Texts(all) => Some((8, all.len())),
            _ => None,
        }
    }
}

/// Appends a text and its length before it.
pub(crate) fn write_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl From<usize> for Value {
    /// Sizes of models are far below 2^32; a larger one becomes the largest.
    fn from(size: usize) -> Self {
        Self::U32(u32::try_from(size).unwrap_or(u32::MAX))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::U32(number)
    }
}

impl From<f32> for Value {
    fn from(number: f32) -> Self {
        Self::F32(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Metadata in the order of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Metadata(pub(crate) Vec<(String, Value)>);

impl Metadata {
    pub(crate) fn put(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.0.push((key.into(), value.into()));
    }
}
