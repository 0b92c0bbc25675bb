//! The grammar of expressions, which is the engine's, and which of their operations pass a guard.
//! Not here: statements (`guarded.rs`).

use super::tags::Token;
use super::writer::{Operand, Writer, Written};

/// Filters whose work does not grow with what they are given.
pub(super) const CHEAP_FILTERS: [&str; 7] = ["length", "count", "default", "d", "first", "attr", "generation"];
const CHEAP_TESTS: [&str; 17] = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "number",
    "integer",
    "int",
    "float",
    "boolean",
    "true",
    "false",
    "sequence",
    "iterable",
    "odd",
    "even",
    "safe",
];

impl Writer<'_, '_> {
    pub(super) fn expression(&mut self) -> Written {
        self.disjunction()?;
        while self.take_word("if") {
            self.count_operator()?;
            self.disjunction()?;
            if self.take_word("else") {
                self.expression()?;
            }
        }
        Ok(())
    }

    pub(super) fn disjunction(&mut self) -> Written {
        self.negation()?;
        while self.take_word("or") || self.take_word("and") {
            self.count_operator()?;
            self.negation()?;
        }
        Ok(())
    }

    pub(super) fn negation(&mut self) -> Written {
        while self.take_word("not") {
            self.count_operator()?;
        }
        self.comparison()
    }

    pub(super) fn comparison(&mut self) -> Written {
        let mark = self.mark();
        let first = self.sum()?;
        let mut is_first = true;
        while self.is_comparison() {
            if is_first {
                self.guard(mark, first, "| _read");
                is_first = false;
            }
            self.count_operator()?;
            if self.take_word("not") && !self.is_word("in") {
                return Err(self.unexpected("`in`"));
            }
            self.take();
            let mark = self.mark();
            let operand = self.sum()?;
            self.guard(mark, operand, "| _read");
        }
        Ok(())
    }

    pub(super) fn is_comparison(&self) -> bool {
        matches!(self.peek(), Some(Token::Sign("==" | "!=" | "<" | "<=" | ">" | ">=") | Token::Word("in" | "not")))
    }

    /// Sums of lists share their operands' items until they are walked, so they are made here.
    pub(super) fn sum(&mut self) -> Written<Operand> {
        self.chain(&["+", "-"], Self::concatenation)
    }

    pub(super) fn concatenation(&mut self) -> Written<Operand> {
        let mark = self.mark();
        let first = self.product()?;
        if !self.is_sign("~") {
            return Ok(first);
        }
        self.guard(mark, first, "| _read");
        while self.take_sign("~") {
            self.count_operator()?;
            let mark = self.mark();
            let operand = self.product()?;
            self.guard(mark, operand, "| _read");
        }
        Ok(Operand::Chain)
    }

    pub(super) fn product(&mut self) -> Written<Operand> {
        self.chain(&["*", "/", "//", "%"], Self::power)
    }

    pub(super) fn power(&mut self) -> Written<Operand> {
        self.chain(&["**"], Self::filtered)
    }

    /// Operators of one level.
    pub(super) fn chain(&mut self, signs: &[&str], next: fn(&mut Self) -> Written<Operand>) -> Written<Operand> {
        let mark = self.mark();
        let first = next(self)?;
        let (mut operand, mut grows, mut remainders) = (first, false, 0);
        while let Some(Token::Sign(sign)) = self.peek()
            && signs.contains(&sign)
        {
            self.count_operator()?;
            if sign == "%" {
                // The engine's operator formats no text. Each is written with brackets around what precedes it.
                remainders += 1;
                self.check_brackets(self.brackets + remainders)?;
                self.at += 1;
                self.parenthesize(mark);
                self.out.push("| _read | _modulo (".into());
                let right = self.mark();
                next(self)?;
                self.guard(right, Operand::Chain, "| _read )");
                operand = Operand::Chain;
                continue;
            }
            grows |= matches!(sign, "+" | "*");
            operand = Operand::Chain;
            self.take();
            next(self)?;
        }
        if grows {
            self.guard(mark, Operand::Chain, "| _made");
            operand = Operand::Whole;
        }
        Ok(operand)
    }

    pub(super) fn filtered(&mut self) -> Written<Operand> {
        self.signed()?;
        loop {
            if self.is_sign("|") {
                self.at += 1;
                self.filter()?;
            } else if self.is_word("is") {
                self.test()?;
            } else {
                return Ok(Operand::Whole);
            }
        }
    }

    /// A filter of what was written, without the `|` before it.
    pub(super) fn filter(&mut self) -> Written {
        self.count_operator()?;
        let Some(Token::Word(name)) = self.peek() else { return Err(self.unexpected("a filter")) };
        let is_cheap = CHEAP_FILTERS.contains(&name);
        self.out.push(if is_cheap { "|" } else { "| _read |" }.into());
        self.dotted_name()?;
        if self.is_sign("(") {
            self.arguments(!is_cheap)?;
        }
        self.out.push("| _made".into());
        Ok(())
    }

    pub(super) fn dotted_name(&mut self) -> Written {
        self.name()?;
        while self.take_sign(".") {
            self.count_operator()?;
            self.name()?;
        }
        Ok(())
    }

    pub(super) fn test(&mut self) -> Written {
        self.count_operator()?;
        let negated = matches!(self.tokens.get(self.at + 1), Some((Token::Word("not"), _)));
        let name = self.tokens.get(self.at + 1 + usize::from(negated)).map(|&(token, _)| token);
        let is_cheap = matches!(name, Some(Token::Word(name)) if CHEAP_TESTS.contains(&name));
        if !is_cheap {
            self.out.push("| _read".into());
        }
        self.take();
        if negated {
            self.take();
        }
        self.dotted_name()?;
        match self.peek() {
            Some(Token::Sign("(")) => self.arguments(true),
            Some(Token::Word("and" | "or" | "else" | "is")) => Ok(()),
            Some(Token::Word(_) | Token::Text(_) | Token::Number(_) | Token::Sign("+" | "-" | "[" | "{")) => {
                // Where a name follows that is no operand, the engine says so.
                self.out.push("(".into());
                self.signed()?;
                self.out.push("| _read )".into());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn signed(&mut self) -> Written {
        while self.take_sign("-") {
            self.count_operator()?;
        }
        self.postfixed()
    }

    /// An operand with its attributes, subscripts and calls.
    pub(super) fn postfixed(&mut self) -> Written {
        let mark = self.mark();
        // What was written ends with a filter, which needs parentheses before an attribute.
        let mut is_filtered = self.primary()?;
        let mut last_name = "";
        loop {
            let Some(Token::Sign(sign @ ("." | "[" | "("))) = self.peek() else { return Ok(()) };
            self.count_operator()?;
            let key = self.tokens.get(self.at + 1).map(|&(token, _)| token);
            let closes = matches!(self.tokens.get(self.at + 2), Some((Token::Sign("]"), _)));
            let is_plain = matches!((sign, key), (".", Some(Token::Word(_))) | ("(", _))
                || matches!((sign, key, closes), ("[", Some(Token::Text(_)), true));
            if !is_plain {
                self.out.push("| _opened".into());
            }
            if is_filtered || !is_plain {
                self.parenthesize(mark);
            }
            is_filtered = false;
            match sign {
                "." => {
                    self.take();
                    match self.peek() {
                        Some(Token::Word(name)) => last_name = name,
                        Some(Token::Number(_)) => last_name = "",
                        _ => return Err(self.unexpected("an attribute")),
                    }
                    self.take();
                }
                "[" => is_filtered = self.nested(Self::subscript)?,
                _ => self.arguments(last_name == "changed")?,
            }
        }
    }

    /// Returns whether it is a slice, whose result was passed to a filter.
    pub(super) fn subscript(&mut self) -> Written<bool> {
        self.expect_sign("[")?;
        if !self.is_sign(":") {
            self.read_expression()?;
        }
        let mut is_slice = false;
        while self.take_sign(":") {
            is_slice = true;
            if !self.is_sign(":") && !self.is_sign("]") {
                self.expression()?;
            }
        }
        self.expect_sign("]")?;
        if is_slice {
            self.out.push("| _made".into());
        }
        Ok(is_slice)
    }

    /// An expression in brackets, whose value is read.
    pub(super) fn read_expression(&mut self) -> Written {
        let mark = self.mark();
        let first = self.peek();
        let before = self.at;
        self.expression()?;
        let is_literal = matches!(first, Some(Token::Text(_) | Token::Number(_))) && self.at == before + 1;
        if !is_literal {
            self.guard(mark, Operand::Chain, "| _read");
        }
        Ok(())
    }

    /// `( … )` of a call, filter or test.
    pub(super) fn arguments(&mut self, are_read: bool) -> Written {
        self.nested(|writer| {
            writer.expect_sign("(")?;
            while !writer.take_sign(")") {
                let splat = writer.take_sign("*") || writer.take_sign("**");
                let is_keyword = matches!(writer.peek(), Some(Token::Word(_)))
                    && matches!(writer.tokens.get(writer.at + 1), Some((Token::Sign("="), _)));
                if is_keyword && !splat {
                    writer.take();
                    writer.take();
                }
                if are_read || splat {
                    writer.read_expression()?;
                } else {
                    writer.expression()?;
                }
                if !writer.take_sign(",") && !writer.is_sign(")") {
                    return Err(writer.unexpected("`,` or `)`"));
                }
            }
            Ok(())
        })
    }

    /// Returns whether it was passed to a filter.
    pub(super) fn primary(&mut self) -> Written<bool> {
        match self.peek() {
            Some(Token::Text(_)) => {
                // Texts side by side are one.
                while matches!(self.peek(), Some(Token::Text(_))) {
                    self.take();
                }
                Ok(false)
            }
            Some(Token::Word(_) | Token::Number(_)) => {
                self.take();
                Ok(false)
            }
            Some(Token::Sign("[")) => {
                self.items("]", Self::expression).map(|_| self.out.push("| _made".into())).map(|()| true)
            }
            Some(Token::Sign("{")) => {
                self.items("}", |writer| {
                    writer.read_expression()?;
                    writer.expect_sign(":")?;
                    writer.expression()
                })?;
                self.out.push("| _made".into());
                Ok(true)
            }
            Some(Token::Sign("(")) => {
                let is_tuple = self.items(")", Self::expression)?;
                if is_tuple {
                    self.out.push("| _made".into());
                }
                Ok(is_tuple)
            }
            _ => Err(self.unexpected("an expression")),
        }
    }

    /// Items in brackets. Returns whether there are none or a comma.
    pub(super) fn items(&mut self, end: &'static str, item: fn(&mut Self) -> Written) -> Written<bool> {
        self.nested(|writer| {
            writer.take();
            let mut is_list = writer.is_sign(end);
            while !writer.take_sign(end) {
                item(writer)?;
                if writer.take_sign(",") {
                    is_list = true;
                } else if !writer.is_sign(end) {
                    return Err(writer.unexpected(&format!("`,` or `{end}`")));
                }
            }
            Ok(is_list)
        })
    }
}
