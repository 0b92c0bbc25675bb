//! Rewrites a chat template so that every operation whose work or result could be large passes a guard of the budget
//! (`budget.rs`) first, and refuses templates that nest too deep before the engine parses them, since it recurses.
//!
//! ```text
//!   {% set x = [a] + b[1:] %}   →   {% set x = ( [ a ] | _made + ( b | _opened ) [ 1 : ] | _made ) | _made %}
//! ```
//!
//! What the engine gets is written here, token by token, so nothing reaches it that was not looked at.
//! Not here: what the guards do.

use super::super::marks::{LOOP, LOOP_END, TURN};
use super::expressions::CHEAP_FILTERS;
use super::tags::{Part, Scanner, Tag, Token};
use super::writer::{LoopMark, Operand, Writer, Written};

/// Real templates have up to 20 KB, 20 operators in a tag, 4 open brackets, and 13 open blocks and branches.
const TEMPLATE_BYTES_MAX: usize = 512 << 10;
/// Open blocks, each with the `elif` branches before.
const OPEN_BLOCKS_MAX: usize = 140;

/// A template that the engine may parse.
#[derive(Debug)]
pub(super) struct Guarded {
    pub text: String,
    /// Whether it has `{% generation %}`, by which it says what the assistant writes. The engine can't be taught this block:
    /// blocks of a filter stand in for it, with the same white space.
    pub marks_generation: bool,
}

/// Rewrites a template. Errors: it is too long or nests too deep, or is not a template; as words.
pub(super) fn guarded(template: &str) -> Result<Guarded, String> {
    if template.len() > TEMPLATE_BYTES_MAX {
        return Err(format!("it has more than {} KiB", TEMPLATE_BYTES_MAX >> 10));
    }
    let mut scanner = Scanner::new(template);
    let mut guarded = Guarded { text: String::with_capacity(template.len() * 2), marks_generation: false };
    let mut blocks = Vec::new();
    loop {
        let part = scanner.next().map_err(|problem| in_line(&problem, scanner.line()))?;
        match part {
            None => return Ok(guarded),
            Some(Part::Verbatim(text)) => guarded.text.push_str(text),
            Some(Part::Tag(tag)) => {
                let opens = tag.tokens.first().is_some_and(|&(token, _)| token == Token::Word("generation"));
                guarded.marks_generation |= opens && tag.opening.starts_with("{%");
                guarded.text += &rewritten(&tag, &mut blocks)?;
            }
        }
    }
}

pub(super) fn in_line(problem: &str, line: usize) -> String {
    format!("{problem} (line {line} of the template)")
}

/// A block that is open.
struct Block {
    /// 1, and 1 more for each `elif`.
    branches: usize,
    /// Whether its text becomes a value instead of the template's text.
    captures: bool,
    /// Whether marks show where the iterations of this loop begin and end.
    is_marked: bool,
}

/// A tag as the engine gets it, over as many lines. Marks surround the iterations of loops that write to the template's text, and
/// the white space control of the tag applies outside of them.
fn rewritten(tag: &Tag<'_>, blocks: &mut Vec<Block>) -> Result<String, String> {
    let mut writer = Writer::new(tag);
    let written = if tag.opening.starts_with("{%") { writer.statement(blocks) } else { writer.expression() };
    let end = written.and_then(|()| if writer.peek().is_none() { Ok(()) } else { Err(writer.unexpected("the end")) });
    end.map_err(|problem| in_line(&problem, writer.line))?;
    let lines = "\n".repeat(tag.last_line - writer.line);
    let (opening, closing, words) = (tag.opening, tag.closing, writer.out.join(" "));
    Ok(match writer.loop_mark {
        None => format!("{opening} {words} {lines}{closing}"),
        Some(LoopMark::Begin) => format!(
            "{opening} if true %}}{LOOP}{{% endif %}}{{% {words} {lines}%}}{{% if true %}}{TURN}{{% endif {closing}"
        ),
        Some(LoopMark::End) => {
            format!("{opening} {words} {lines}%}}{{% if true %}}{LOOP_END}{{% endif {closing}")
        }
    })
}

impl Writer<'_, '_> {
    fn statement(&mut self, blocks: &mut Vec<Block>) -> Written {
        let Some(Token::Word(word)) = self.peek() else { return Err(self.unexpected("a statement")) };
        if word == "generation" || word == "endgeneration" {
            self.at += 1;
            self.out.push(if word == "generation" { "filter generation" } else { "endfilter" }.into());
        } else {
            self.take();
        }
        let opens = match word {
            "if" | "elif" => self.disjunction().map(|()| word == "if"),
            "for" => {
                let is_recursive = self.loop_head()?;
                if !is_recursive && blocks.iter().all(|block| !block.captures) {
                    self.loop_mark = Some(LoopMark::Begin);
                }
                Ok(true)
            }
            "set" => self.assignment_or_block(),
            "with" => self.with_head().map(|()| true),
            "macro" => self.name().and_then(|_| self.parameters()).map(|()| true),
            "call" => {
                if self.is_sign("(") {
                    self.parameters()?;
                }
                self.expression().map(|()| true)
            }
            "filter" => self.block_filters().map(|()| true),
            "generation" => Ok(true),
            "do" => self.expression().map(|()| false),
            "endmacro" | "endcall" if self.peek().is_some() => self.name().map(|_| false),
            "else" | "break" | "continue" => Ok(false),
            _ if word.starts_with("end") => Ok(false),
            _ => Err(format!("unknown statement `{word}`")),
        }?;
        match word {
            _ if opens => {
                let captures = !matches!(word, "if" | "for" | "with");
                blocks.push(Block { branches: 1, captures, is_marked: self.loop_mark.is_some() });
            }
            "elif" => blocks.last_mut().ok_or("`elif` without `if`")?.branches += 1,
            _ if word.starts_with("end") => {
                let closed = blocks.pop();
                self.loop_mark = closed.filter(|block| block.is_marked).map(|_| LoopMark::End);
            }
            _ => {}
        }
        if blocks.iter().map(|block| block.branches).sum::<usize>() > OPEN_BLOCKS_MAX {
            return Err(format!("more than {OPEN_BLOCKS_MAX} blocks and branches are open"));
        }
        Ok(())
    }

    /// Names to assign to. Returns whether one of them is an attribute.
    fn targets(&mut self) -> Written<bool> {
        let mut has_attribute = false;
        loop {
            if self.is_sign("(") {
                has_attribute |= self.nested(|writer| {
                    writer.take();
                    let has_attribute = writer.targets()?;
                    writer.expect_sign(")").map(|()| has_attribute)
                })?;
            } else {
                self.name()?;
                while self.take_sign(".") {
                    self.count_operator()?;
                    self.name()?;
                    has_attribute = true;
                }
            }
            if !self.take_sign(",") || matches!(self.peek(), None | Some(Token::Sign(")" | "=") | Token::Word("in"))) {
                return Ok(has_attribute);
            }
        }
    }

    /// Returns whether the loop is recursive.
    fn loop_head(&mut self) -> Written<bool> {
        self.targets()?;
        if !self.take_word("in") {
            return Err(self.unexpected("`in`"));
        }
        let mark = self.mark();
        self.disjunction()?;
        self.guard(mark, Operand::Chain, "| _opened");
        if self.take_word("if") {
            self.expression()?;
        }
        Ok(self.take_word("recursive"))
    }

    /// Returns whether it opens a block.
    fn assignment_or_block(&mut self) -> Written<bool> {
        let has_attribute = self.targets()?;
        if self.peek().is_none() {
            return Ok(true);
        } else if self.is_sign("|") {
            self.at += 1;
            self.out.push("|".into());
            return self.block_filters().map(|()| true);
        }
        self.expect_sign("=")?;
        let mark = self.mark();
        self.expression()?;
        let is_tuple = self.is_sign(",");
        while self.take_sign(",") && self.peek().is_some() {
            self.expression()?;
        }
        if is_tuple {
            self.guard(mark, Operand::Chain, "| _made");
        }
        if has_attribute {
            let operand = if is_tuple { Operand::Whole } else { Operand::Chain };
            self.guard(mark, operand, "| _data");
        }
        Ok(false)
    }

    fn with_head(&mut self) -> Written {
        while self.peek().is_some() {
            if self.is_sign("(") {
                self.nested(|writer| {
                    writer.take();
                    writer.targets()?;
                    writer.expect_sign(")")
                })?;
            } else {
                self.name()?;
            }
            self.expect_sign("=")?;
            self.expression()?;
            if !self.take_sign(",") && self.peek().is_some() {
                return Err(self.unexpected("`,`"));
            }
        }
        Ok(())
    }

    fn parameters(&mut self) -> Written {
        self.nested(|writer| {
            writer.expect_sign("(")?;
            while !writer.take_sign(")") {
                writer.name()?;
                if writer.take_sign("=") {
                    writer.expression()?;
                }
                if !writer.take_sign(",") && !writer.is_sign(")") {
                    return Err(writer.unexpected("`,` or `)`"));
                }
            }
            Ok(())
        })
    }

    /// Filters of a block's text.
    fn block_filters(&mut self) -> Written {
        loop {
            self.count_operator()?;
            let Some(Token::Word(name)) = self.peek() else { return Err(self.unexpected("a filter")) };
            if !CHEAP_FILTERS.contains(&name) {
                self.out.push("_read |".into());
            }
            self.dotted_name()?;
            if self.is_sign("(") {
                self.arguments(true)?;
            }
            self.out.push("| _made".into());
            if !self.take_sign("|") {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_grow_pass_a_guard() {
        let rewritten = |template: &str| {
            let words = |text: &str| text.split(' ').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
            guarded(template).map(|guarded| words(&guarded.text))
        };
        for (template, expected) in [
            ("a {{ b }}{# c #}", "a {{ b }}{# c #}"),
            ("{{ a[0] == 'x' }}", "{{ ( a | _opened ) [ 0 ] | _read == 'x' | _read }}"),
            ("{{ a['b'].c(d) }}", "{{ a [ 'b' ] . c ( d ) }}"),
            ("{{ [a, 1][0] }}", "{{ ( [ a , 1 ] | _made | _opened ) [ 0 ] }}"),
            ("{% set x = a + b %}", "{% set x = ( a + b ) | _made %}"),
            ("{% set n.x = a %}", "{% set n . x = ( a ) | _data %}"),
            ("{{ a ~ b[1:] }}", "{{ a | _read ~ ( b | _opened ) [ 1 : ] | _made | _read }}"),
            ("{{ a | trim | length }}", "{{ a | _read | trim | _made | length | _made }}"),
            (
                "{%- for m in a if m is eq 'b' -%}",
                "{%- if true %}\u{fdd2}{% endif %}{% for m in ( a ) | _opened if m | _read is eq ( 'b' | _read ) %}\
                 {% if true %}\u{fdd3}{% endif -%}",
            ),
            (
                "{% set x %}{% for m in a %}{% endfor %}{% endset %}",
                "{% set x %}{% for m in ( a ) | _opened %}{% endfor %}{% endset %}",
            ),
            ("{% set x\n = 1 %}", "{% set x \n = 1 %}"),
            ("{%- generation -%}a{% endgeneration %}", "{%- filter generation -%}a{% endfilter %}"),
            ("{% raw %}{{ [ }}{% endraw %}", "{% raw %}{{ [ }}{% endraw %}"),
            ("{{ '}}' }}", "{{ '}}' }}"),
        ] {
            assert_eq!(rewritten(template).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_is_not_a_template_is_refused_with_its_line() {
        for (template, problem) in [
            ("\n{{ a b }}", "unexpected `b`, expected the end (line 2 of the template)"),
            ("{{ a", "a tag is not closed (line 1 of the template)"),
            ("{{ ) }}", "unexpected `)` (line 1 of the template)"),
            ("{% include 'a' %}", "unknown statement `include` (line 1 of the template)"),
            ("{{ 'a }}", "a text in quotes does not end (line 1 of the template)"),
        ] {
            assert_eq!(guarded(template).unwrap_err(), problem, "{template}");
        }
    }
}
