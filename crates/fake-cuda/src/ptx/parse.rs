//! Parses a PTX text into a module: directives, constants, entries. Read next: `body.rs`, the statements of an entry.

use super::body::parse_body;
use super::error::{ParseError, ParseErrorKind};
use super::lexer::{Placed, Token, tokens};
use super::program::{Kernel, Module, Parameter};
use super::run::CONSTANT_WINDOW;
use super::types::Type;
use std::collections::HashMap;

/// Limit of shared memory, and of a module's constants, above every card's.
const MOST_BYTES: u32 = 256 << 10;

/// Parses a module. Errors: invalid or unsupported text, with its line.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    let tokens = tokens(text)?;
    let mut cursor = Cursor { text, tokens: &tokens, at: 0 };
    let mut parser = Parser {
        module: Module { version: 0, target: 0, files: Vec::new(), constants: Vec::new(), kernels: Vec::new() },
        symbols: Symbols::default(),
    };
    while !cursor.done() {
        parser.directive(&mut cursor)?;
    }
    let Parser { mut module, .. } = parser;
    for kernel in &mut module.kernels {
        kernel.constants.clone_from(&module.constants);
    }
    Ok(module)
}

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

struct Parser {
    module: Module,
    symbols: Symbols,
}

impl Parser {
    fn directive(&mut self, cursor: &mut Cursor) -> Result<(), ParseError> {
        let word = match cursor.next()? {
            Token::Word(word) => word,
            Token::Source { .. } | Token::Punct(';') => return Ok(()),
            _ => return Err(cursor.error(ParseErrorKind::Expected("a directive"))),
        };
        match word {
            ".version" => {
                let version = cursor.word("a version")?;
                let digits = version.split_once('.').and_then(|(major, minor)| {
                    Some(major.parse::<u32>().ok()?.checked_mul(10)? + minor.parse::<u32>().ok().filter(|m| *m < 10)?)
                });
                self.module.version = digits.ok_or_else(|| cursor.number(version))?;
            }
            ".target" => {
                let target = cursor.word("a target")?;
                let digits = target.strip_prefix("sm_").unwrap_or(target).trim_end_matches(['a', 'f']);
                self.module.target = digits.parse().map_err(|_| cursor.number(target))?;
                while cursor.take(',') {
                    cursor.word("an option of the target")?;
                }
            }
            ".address_size" => {
                let size = cursor.word("a size")?;
                if size != "64" {
                    return Err(cursor.unsupported(format!(".address_size {size}")));
                }
            }
            ".file" => self.file(cursor)?,
            ".section" => while cursor.next()? != Token::Punct('}') {},
            ".visible" | ".weak" => {}
            ".entry" => {
                let kernel = self.entry(cursor)?;
                self.module.kernels.push(kernel);
            }
            ".shared" | ".extern" => declare(cursor, word, &mut self.symbols)?,
            ".const" | ".global" => self.constant(cursor, word)?,
            other => return Err(cursor.unsupported(other.to_owned())),
        }
        Ok(())
    }

    /// `.file 1 "path"`, optionally followed by a time and a size.
    fn file(&mut self, cursor: &mut Cursor) -> Result<(), ParseError> {
        let index = cursor.integer("the index of a file")?;
        let Token::Quoted(path) = cursor.next()? else {
            return Err(cursor.error(ParseErrorKind::Expected("the path of a file")));
        };
        while cursor.take(',') {
            cursor.word("a number")?;
        }
        self.module.files.push((index, path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned()));
        Ok(())
    }

    /// `.const .align 4 .b8 name[8] = {1, 2, …};`, or the same with `.global`, which must have a value and is
    /// read-only.
    fn constant(&mut self, cursor: &mut Cursor, space: &str) -> Result<(), ParseError> {
        let declared = Declaration::parse(cursor)?;
        if !cursor.take('=') {
            return Err(cursor.unsupported(format!("{space} {} without a value", declared.name)));
        }
        let constants = &mut self.module.constants;
        let start = (constants.len() as u32).next_multiple_of(declared.align);
        let Some(size) = declared.bytes().filter(|bytes| start + bytes <= MOST_BYTES) else {
            return Err(cursor.number(declared.name));
        };
        constants.resize((start + size) as usize, 0);
        let (mut at, end) = (start as usize, constants.len());
        let bytes = declared.ty.bytes() as usize;
        let list = cursor.take('{');
        loop {
            let value = cursor.immediate()?;
            if at + bytes > end {
                return Err(cursor.error(ParseErrorKind::Expected("no more values than elements")));
            }
            self.module.constants[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            at += bytes;
            if !list || !cursor.take(',') {
                break;
            }
        }
        if list {
            cursor.expect('}', "`}` behind values")?;
        }
        cursor.expect(';', "`;` behind a declaration")?;
        let window = if space == ".global" { CONSTANT_WINDOW } else { 0 };
        self.symbols.addresses.insert(declared.name.to_owned(), Symbol::Constant(window + u64::from(start)));
        Ok(())
    }

    /// Parses an entry from its name to the end of its body.
    fn entry(&mut self, cursor: &mut Cursor) -> Result<Kernel, ParseError> {
        let name = cursor.word("the name of an entry")?;
        let mut kernel = Kernel { name: name.to_owned(), ..Kernel::default() };
        if cursor.take('(') && !cursor.take(')') {
            loop {
                parameter(cursor, &mut kernel)?;
                if cursor.take(')') {
                    break;
                }
                cursor.expect(',', "`,` or `)` after a parameter")?;
            }
        }
        while !cursor.take('{') {
            match cursor.word("a directive of an entry")? {
                ".maxntid" => kernel.max_threads = Some(cursor.extents()?),
                ".reqntid" => kernel.max_threads = Some(cursor.extents()?),
                ".minnctapersm" | ".maxnreg" => {
                    cursor.integer("a number")?;
                }
                other => return Err(cursor.unsupported(other.to_owned())),
            }
        }
        parse_body(cursor, self.symbols.clone(), &mut kernel)?;
        Ok(kernel)
    }
}

fn parameter(cursor: &mut Cursor, kernel: &mut Kernel) -> Result<(), ParseError> {
    if cursor.word("`.param`")? != ".param" {
        return Err(cursor.error(ParseErrorKind::Expected("`.param`")));
    }
    let declared = Declaration::parse(cursor)?;
    let offset = kernel.parameter_bytes.next_multiple_of(declared.align);
    let bytes = declared.bytes().filter(|bytes| offset + bytes <= 32 << 10);
    let bytes = bytes.ok_or_else(|| cursor.number(declared.name))?;
    kernel.parameters.push(Parameter { name: declared.name.to_owned(), offset, bytes });
    kernel.parameter_bytes = offset + bytes;
    Ok(())
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
struct Declaration<'a> {
    align: u32,
    ty: Type,
    count: u32,
    name: &'a str,
}

impl<'a> Declaration<'a> {
    fn parse(cursor: &mut Cursor<'a, '_>) -> Result<Self, ParseError> {
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
    fn bytes(&self) -> Option<u32> {
        self.count.checked_mul(self.ty.bytes()).filter(|bytes| *bytes <= MOST_BYTES)
    }
}

/// A position in the tokens.
pub(super) struct Cursor<'a, 't> {
    /// The whole text.
    pub text: &'a str,
    /// Its tokens.
    pub tokens: &'t [Placed<'a>],
    /// Index of the next token.
    pub at: usize,
}

impl<'a> Cursor<'a, '_> {
    /// Whether no tokens are left.
    pub fn done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Line of the previous token.
    pub fn line(&self) -> u32 {
        self.tokens.get(self.at.saturating_sub(1)).map_or(1, |placed| placed.line)
    }

    /// An error at this position.
    pub fn error(&self, kind: ParseErrorKind) -> ParseError {
        ParseError { line: self.line(), kind }
    }

    /// An error about unsupported text at this position.
    pub fn unsupported(&self, what: String) -> ParseError {
        self.error(ParseErrorKind::Unsupported(what))
    }

    /// An error about an invalid number at this position.
    pub fn number(&self, text: &str) -> ParseError {
        self.error(ParseErrorKind::Number(text.to_owned()))
    }

    /// The next token, which is not taken.
    pub fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|placed| placed.token)
    }

    /// Takes a token.
    pub fn next(&mut self) -> Result<Token<'a>, ParseError> {
        let token = self.peek().ok_or_else(|| self.error(ParseErrorKind::Unfinished))?;
        self.at += 1;
        Ok(token)
    }

    /// Takes a character if it is next.
    pub fn take(&mut self, c: char) -> bool {
        let there = self.peek() == Some(Token::Punct(c));
        self.at += usize::from(there);
        there
    }

    /// Takes a required character.
    pub fn expect(&mut self, c: char, what: &'static str) -> Result<(), ParseError> {
        if self.take(c) { Ok(()) } else { Err(self.error(ParseErrorKind::Expected(what))) }
    }

    /// Takes a word.
    pub fn word(&mut self, what: &'static str) -> Result<&'a str, ParseError> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            _ => Err(self.error(ParseErrorKind::Expected(what))),
        }
    }

    /// Takes a small integer.
    pub fn integer(&mut self, what: &'static str) -> Result<u32, ParseError> {
        let word = self.word(what)?;
        word.parse().map_err(|_| self.number(word))
    }

    /// Takes up to three extents and returns their product.
    fn extents(&mut self) -> Result<u32, ParseError> {
        let mut product = 1u32;
        loop {
            let extent = self.integer("an extent")?;
            product = product.checked_mul(extent).ok_or_else(|| self.number(&extent.to_string()))?;
            if !self.take(',') {
                return Ok(product);
            }
        }
    }

    /// Takes an immediate: an integer, hexadecimal, or a float's bits after `0f` or `0d`.
    pub fn immediate(&mut self) -> Result<u64, ParseError> {
        let negative = self.take('-');
        let word = self.word("a number")?;
        let value = immediate(word).ok_or_else(|| self.number(word))?;
        Ok(if negative { value.wrapping_neg() } else { value })
    }
}

/// The bits of an immediate without its sign.
pub(super) fn immediate(word: &str) -> Option<u64> {
    let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let prefixed = |prefix: &str| word.strip_prefix(prefix);
    if let Some(digits) = prefixed("0f").or(prefixed("0F")).or(prefixed("0d")).or(prefixed("0D")) {
        return hexadecimal(digits);
    }
    let word = word.strip_suffix('U').unwrap_or(word);
    match word.strip_prefix("0x").or(word.strip_prefix("0X")) {
        Some(digits) => hexadecimal(digits),
        None => word.parse().ok(),
    }
}
