//! Declarations of memory, and the names that refer to it.

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::types::Type;
use std::collections::HashMap;

/// Limit of shared memory, and of a module's constants, above every card's.
pub(super) const MOST_BYTES: u32 = 256 << 10;

/// Memory that names refer to.
#[derive(Debug, Default, Clone)]
pub(super) struct Symbols {
    /// Addresses by name.
    pub addresses: HashMap<String, Symbol>,
    /// Size of shared memory so far.
    pub shared_bytes: u32,
    /// Size of local memory so far.
    pub local_bytes: u32,
}

/// Memory that a name refers to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Symbol {
    /// Shared memory at this offset.
    Shared(u32),
    /// Dynamic shared memory, after all other shared memory.
    DynamicShared,
    /// Local memory of a thread.
    Local(u32),
    /// The module's constants: an offset, or an address if declared as global memory.
    Constant(u64),
}

/// Parses a declaration of `.shared`, `.extern .shared` or `.local` memory, up to its semicolon.
pub(super) fn declare(cursor: &mut Cursor, space: &str, symbols: &mut Symbols) -> Result<(), ParseError> {
    let external = space == ".extern";
    let space = if external { cursor.word("`.shared`")? } else { space };
    let declared = Declaration::parse(cursor)?;
    cursor.expect(';', "`;` behind a declaration")?;
    if external {
        if space != ".shared" {
            return Err(cursor.unsupported(format!(".extern {space}")));
        }
        symbols.addresses.insert(declared.name.to_owned(), Symbol::DynamicShared);
        return Ok(());
    }
    let total = if space == ".shared" { &mut symbols.shared_bytes } else { &mut symbols.local_bytes };
    let start = total.next_multiple_of(declared.align);
    let bytes = declared.bytes().filter(|bytes| start + bytes <= MOST_BYTES);
    *total = start + bytes.ok_or_else(|| cursor.number(declared.name))?;
    let symbol = if space == ".shared" { Symbol::Shared(start) } else { Symbol::Local(start) };
    symbols.addresses.insert(declared.name.to_owned(), symbol);
    Ok(())
}

/// `.align 16 .b8 name[64]`, in any space.
pub(super) struct Declaration<'a> {
    pub align: u32,
    pub ty: Type,
    count: u32,
    pub name: &'a str,
}

impl<'a> Declaration<'a> {
    /// Parses a declaration up to the number of its elements.
    pub fn parse(cursor: &mut Cursor<'a, '_>) -> Result<Self, ParseError> {
        let (mut align, mut ty) = (None, None);
        let name = loop {
            let word = cursor.word("a declaration")?;
            match word.strip_prefix('.') {
                Some("align") => align = Some(cursor.integer("an alignment")?),
                Some("ptr") => {}
                // The space to which a pointer parameter points.
                Some("global" | "shared" | "const" | "local") => {}
                Some(name) => {
                    ty = Some(Type::parse(name).ok_or_else(|| cursor.unsupported(word.to_owned()))?);
                }
                None => break word,
            }
        };
        let ty = ty.ok_or_else(|| cursor.error(ParseErrorKind::Expected("a type")))?;
        let mut count = 1;
        if cursor.take('[') && !cursor.take(']') {
            count = cursor.integer("a number of elements")?;
            cursor.expect(']', "`]` after a number of elements")?;
        }
        let align = align.unwrap_or(1).max(ty.bytes());
        if !align.is_power_of_two() || align > 1024 {
            return Err(cursor.number(&align.to_string()));
        }
        Ok(Self { align, ty, count, name })
    }

    /// The size, if within the limit.
    pub fn bytes(&self) -> Option<u32> {
        self.count.checked_mul(self.ty.bytes()).filter(|bytes| *bytes <= MOST_BYTES)
    }
}
