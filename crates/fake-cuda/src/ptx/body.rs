//! The body of an entry: scopes, registers, labels, and statements with their operands. Read next: `decode.rs`.

use super::cursor::{Cursor, immediate};
use super::declaration::{Symbol, Symbols, declare};
use super::decode::decode;
use super::error::{ParseError, ParseErrorKind};
use super::lexer::Token;
use super::program::{Action, Instruction, Kernel, Origin, Reg, Special};
use super::statement::{Level, Operand, Statement};
use super::types::Type;
use std::collections::HashMap;

/// Limits far above what our kernels need.
const MOST_REGISTERS: usize = 1 << 16;
const MOST_INSTRUCTIONS: usize = 1 << 20;

/// Parses up to the closing brace of an entry, into `kernel`.
pub(super) fn parse_body(
    cursor: &mut Cursor,
    symbols: Symbols,
    level: Level,
    kernel: &mut Kernel,
) -> Result<(), ParseError> {
    let mut body = Body {
        kernel,
        symbols,
        level,
        scopes: vec![HashMap::new()],
        interned: HashMap::new(),
        labels: HashMap::new(),
        jumps: Vec::new(),
        source: None,
    };
    while !body.scopes.is_empty() {
        body.step(cursor)?;
    }
    body.finish()
}

struct Body<'k, 'a> {
    kernel: &'k mut Kernel,
    symbols: Symbols,
    level: Level,
    /// Registers by name, innermost scope last.
    scopes: Vec<HashMap<String, Reg>>,
    /// Registers for constants and special registers, shared by all their uses.
    interned: HashMap<String, Reg>,
    labels: HashMap<&'a str, usize>,
    /// Branches whose targets are not resolved yet: instruction, label, line.
    jumps: Vec<(usize, String, u32)>,
    /// Source file and line of the next instruction.
    source: Option<(u32, u32)>,
}

impl<'a> Body<'_, 'a> {
    /// Parses one declaration, label, brace or statement.
    fn step(&mut self, cursor: &mut Cursor<'a, '_>) -> Result<(), ParseError> {
        match cursor.next()? {
            Token::Punct('{') => self.scopes.push(HashMap::new()),
            Token::Punct('}') => {
                self.scopes.pop();
            }
            Token::Punct(';') => {}
            Token::Source { file, line } => self.source = (line > 0).then_some((file, line)),
            Token::Punct('@') => {
                let negated = cursor.take('!');
                let name = cursor.word("a predicate")?;
                let predicate = (self.register(name, cursor)?, negated);
                let word = cursor.word("an instruction")?;
                self.statement(cursor, word, Some(predicate))?;
            }
            Token::Word(".reg") => self.declare_registers(cursor)?,
            Token::Word(space @ (".shared" | ".local" | ".extern")) => declare(cursor, space, &mut self.symbols)?,
            Token::Word(".pragma") => while cursor.next()? != Token::Punct(';') {},
            Token::Word(word) if cursor.take(':') => {
                self.labels.insert(word, self.kernel.instructions.len());
            }
            Token::Word(word) if word.starts_with('.') => return Err(cursor.unsupported(word.to_owned())),
            Token::Word(word) => self.statement(cursor, word, None)?,
            _ => return Err(cursor.error(ParseErrorKind::Expected("a statement"))),
        }
        Ok(())
    }

    /// `.reg .b32 %r<8>, %x;`
    fn declare_registers(&mut self, cursor: &mut Cursor<'a, '_>) -> Result<(), ParseError> {
        let ty = cursor.word("a type")?;
        if ty.strip_prefix('.').and_then(Type::parse).is_none() {
            return Err(cursor.unsupported(format!(".reg {ty}")));
        }
        loop {
            let name = cursor.word("the name of a register")?;
            if cursor.take('<') {
                let count = cursor.integer("a number of registers")?;
                if count as usize > MOST_REGISTERS {
                    return Err(cursor.number(&count.to_string()));
                }
                for index in 0..count {
                    self.declare_register(format!("{name}{index}"), cursor)?;
                }
                cursor.expect('>', "`>` after a number of registers")?;
            } else {
                self.declare_register(name.to_owned(), cursor)?;
            }
            if !cursor.take(',') {
                return cursor.expect(';', "`;` behind registers");
            }
        }
    }

    fn declare_register(&mut self, name: String, cursor: &Cursor) -> Result<(), ParseError> {
        let reg = self.push(Origin::Declared(name.clone()), cursor)?;
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, reg);
        }
        Ok(())
    }

    fn push(&mut self, origin: Origin, cursor: &Cursor) -> Result<Reg, ParseError> {
        if self.kernel.registers.len() >= MOST_REGISTERS {
            return Err(cursor.unsupported(format!("more than {MOST_REGISTERS} registers")));
        }
        self.kernel.registers.push(origin);
        Ok(self.kernel.registers.len() as Reg - 1)
    }

    /// The register with this origin, created if necessary.
    fn intern(&mut self, origin: Origin, cursor: &Cursor) -> Result<Reg, ParseError> {
        let key = format!("{origin:?}");
        if let Some(reg) = self.interned.get(&key) {
            return Ok(*reg);
        }
        let reg = self.push(origin, cursor)?;
        self.interned.insert(key, reg);
        Ok(reg)
    }

    fn lookup(&self, name: &str) -> Option<Reg> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied()
    }

    fn register(&self, name: &str, cursor: &Cursor) -> Result<Reg, ParseError> {
        self.lookup(name).ok_or_else(|| cursor.error(ParseErrorKind::Unknown(name.to_owned())))
    }

    /// Parses operands up to the semicolon, and decodes the statement.
    fn statement(
        &mut self,
        cursor: &mut Cursor<'a, '_>,
        word: &'a str,
        predicate: Option<(Reg, bool)>,
    ) -> Result<(), ParseError> {
        let (start, line) = (cursor.tokens[cursor.at - 1].at, cursor.line());
        let mut operands = Vec::new();
        while !cursor.take(';') {
            operands.push(self.operand(cursor)?);
            if !cursor.take(',') && !cursor.take('|') && cursor.peek() != Some(Token::Punct(';')) {
                return Err(cursor.error(ParseErrorKind::Expected("`,` or `;` after an operand")));
            }
        }
        if self.kernel.instructions.len() >= MOST_INSTRUCTIONS {
            return Err(cursor.unsupported(format!("more than {MOST_INSTRUCTIONS} instructions")));
        }
        let end = cursor.tokens[cursor.at - 1].at;
        let text = cursor.text[start..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let zero = self.intern(Origin::Constant(0), cursor)?;
        let statement = Statement { word, operands, zero, level: self.level };
        let action = decode(&statement).map_err(|kind| match kind {
            ParseErrorKind::Unsupported(_) => cursor.unsupported(text.clone()),
            ParseErrorKind::Newer { version, target, .. } => {
                cursor.error(ParseErrorKind::Newer { statement: text.clone(), version, target })
            }
            other => cursor.error(other),
        })?;
        if let (Action::Branch(_), Some(Operand::Label(label))) = (&action, statement.operands.last()) {
            self.jumps.push((self.kernel.instructions.len(), label.clone(), line));
        }
        let (file, line) = self.source.unwrap_or((0, line));
        self.kernel.instructions.push(Instruction { predicate, action, text, file, line });
        Ok(())
    }

    fn operand(&mut self, cursor: &mut Cursor<'a, '_>) -> Result<Operand, ParseError> {
        match cursor.peek() {
            Some(Token::Punct('!')) => {
                cursor.at += 1;
                let name = cursor.word("a predicate")?;
                Ok(Operand::Negated(self.register(name, cursor)?))
            }
            Some(Token::Punct('{')) => {
                cursor.at += 1;
                let mut parts = vec![self.value(cursor)?];
                while cursor.take(',') {
                    parts.push(self.value(cursor)?);
                }
                cursor.expect('}', "`}` after the parts of a vector")?;
                Ok(Operand::Vector(parts))
            }
            Some(Token::Punct('[')) => {
                cursor.at += 1;
                let base = self.value(cursor)?;
                let offset = if cursor.take('+') { cursor.immediate()? as i64 } else { 0 };
                cursor.expect(']', "`]` after an address")?;
                Ok(Operand::Memory { base, offset })
            }
            Some(Token::Word(word)) if self.is_label(word) => {
                cursor.at += 1;
                Ok(Operand::Label(word.to_owned()))
            }
            _ => Ok(Operand::Register(self.value(cursor)?)),
        }
    }

    fn is_label(&self, word: &str) -> bool {
        let number = word.starts_with(|c: char| c.is_ascii_digit());
        let known = self.lookup(word).is_some() || self.symbols.addresses.contains_key(word);
        let parameter = self.kernel.parameters.iter().any(|parameter| parameter.name == word);
        !number && !known && !parameter && !word.starts_with('%') && word != "_"
    }

    /// The register for a register, number, special register or address.
    fn value(&mut self, cursor: &mut Cursor<'a, '_>) -> Result<Reg, ParseError> {
        let word = match cursor.peek() {
            Some(Token::Word(word)) => word,
            Some(Token::Punct('-')) => {
                let value = cursor.immediate()?;
                return self.intern(Origin::Constant(value), cursor);
            }
            _ => return Err(cursor.error(ParseErrorKind::Expected("an operand"))),
        };
        cursor.at += 1;
        if let Some(reg) = self.lookup(word) {
            return Ok(reg);
        }
        if word == "_" {
            return self.intern(Origin::Declared("_".to_owned()), cursor);
        }
        let origin = self.origin(word).ok_or_else(|| cursor.error(ParseErrorKind::Unknown(word.to_owned())))?;
        self.intern(origin, cursor)
    }

    fn origin(&self, word: &str) -> Option<Origin> {
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return immediate(word).map(Origin::Constant);
        }
        if let Some(name) = word.strip_prefix('%') {
            return special(name).map(Origin::Special);
        }
        if let Some(parameter) = self.kernel.parameters.iter().find(|parameter| parameter.name == word) {
            return Some(Origin::Constant(parameter.offset.into()));
        }
        // The address of a name is an offset in its space; `cvta` adds the window.
        Some(match *self.symbols.addresses.get(word)? {
            Symbol::Shared(at) | Symbol::Local(at) => Origin::Constant(at.into()),
            Symbol::Constant(at) => Origin::Constant(at),
            Symbol::DynamicShared => Origin::DynamicShared,
        })
    }

    /// Resolves the targets of branches.
    fn finish(self) -> Result<(), ParseError> {
        for (index, label, line) in self.jumps {
            let target = self.labels.get(label.as_str()).copied();
            let unknown = ParseError { line, kind: ParseErrorKind::Unknown(label) };
            self.kernel.instructions[index].action = Action::Branch(target.ok_or(unknown)?);
        }
        self.kernel.shared_bytes = self.symbols.shared_bytes;
        self.kernel.local_bytes = self.symbols.local_bytes;
        Ok(())
    }
}

fn special(name: &str) -> Option<Special> {
    let (base, axis) = name.split_once('.').map_or((name, None), |(base, axis)| (base, Some(axis)));
    let axis = match axis {
        None => None,
        Some(axis) => Some(["x", "y", "z"].iter().position(|name| *name == axis)?),
    };
    Some(match (base, axis) {
        ("tid", Some(axis)) => Special::Thread(axis),
        ("ntid", Some(axis)) => Special::Threads(axis),
        ("ctaid", Some(axis)) => Special::Block(axis),
        ("nctaid", Some(axis)) => Special::Blocks(axis),
        ("laneid", None) => Special::Lane,
        ("warpid", None) => Special::Warp,
        ("lanemask_eq", None) => Special::MaskEqual,
        ("lanemask_lt", None) => Special::MaskLess,
        ("lanemask_le", None) => Special::MaskLessEqual,
        ("lanemask_gt", None) => Special::MaskGreater,
        ("lanemask_ge", None) => Special::MaskGreaterEqual,
        ("dynamic_smem_size", None) => Special::DynamicSharedBytes,
        _ => return None,
    })
}
