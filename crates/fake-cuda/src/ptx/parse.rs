//! Parses a PTX text into a module: directives, constants, entries. Read next: `body.rs`, the statements of an entry.

use super::body::parse_body;
use super::cursor::Cursor;
use super::declaration::{Declaration, MOST_BYTES, Symbol, Symbols, declare};
use super::error::{ParseError, ParseErrorKind};
use super::lexer::{Token, tokens};
use super::program::{Kernel, Module, Parameter};
use super::run::CONSTANT_WINDOW;
use super::statement::Level;

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
        let level = Level { version: self.module.version, target: self.module.target };
        parse_body(cursor, self.symbols.clone(), level, &mut kernel)?;
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
