//! Parses statements with the grammar of Jinja2's parser, including `break`, `continue` and `{% generation %}`.
//! Not here: expressions (`expressions.rs`), and resolving names to variables (`scopes.rs`).

use crate::Value;
use crate::ast::{
    Body, CompareOperator, Expr, FilterBlock, For, LoopTest, Macro, Name, Parameter, Scope, SetBlock, Statement,
    StatementKind, Target, With,
};
use crate::error::{Error, Result};
use crate::lexer::{Located, Token, tokens};
use std::sync::Arc;

/// Limits. Real templates have up to 20 KB, 20 operators per tag, 4 open brackets, and 13 open blocks and branches.
const TEMPLATE_BYTES_MAX: usize = 512 << 10;
const OPERATORS_MAX: usize = 400;
const BRACKETS_MAX: usize = 32;
/// Open blocks, plus the `elif` branches before each.
const BLOCKS_MAX: usize = 140;

/// Parses a template to statements. Errors: it is invalid, too long, or nested too deep.
pub(crate) fn parsed(template: &str) -> Result<Body> {
    if template.len() > TEMPLATE_BYTES_MAX {
        return Err(Error::over_budget(format!("it has more than {} KiB", TEMPLATE_BYTES_MAX >> 10)));
    }
    let mut parser = Parser { tokens: tokens(template)?, at: 0, operators: 0, brackets: 0, blocks: 0, loops: 0 };
    let body = parser.body(&[]).map_err(|error| error.at(parser.line()))?;
    debug_assert_eq!(parser.peek(), &Token::End);
    Ok(body)
}

pub(crate) struct Parser {
    tokens: Vec<Located>,
    at: usize,
    /// Number of operators, attributes, subscripts, calls, filters, tests and conditions in the tag.
    operators: usize,
    brackets: usize,
    blocks: usize,
    /// Number of open loops in the function.
    loops: usize,
}

impl Parser {
    pub(crate) fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    pub(crate) fn peek_second(&self) -> &Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].0
    }

    pub(crate) fn line(&self) -> usize {
        self.tokens[self.at].1
    }

    /// Consumes and returns the next token. The last one is never consumed.
    pub(crate) fn next(&mut self) -> Token {
        if self.at + 1 == self.tokens.len() {
            return Token::End;
        }
        self.at += 1;
        self.tokens[self.at - 1].0.clone()
    }

    pub(crate) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Token::Operator(found) if *found == operator)
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if found == word)
    }

    pub(crate) fn take_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.next();
        }
        found
    }

    pub(crate) fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    pub(crate) fn unexpected(&self, expected: &str) -> Error {
        Error::raised(format!("unexpected {}, expected {expected}", self.peek().describe())).at(self.line())
    }

    pub(crate) fn expect_operator(&mut self, operator: &str) -> Result<()> {
        if self.take_operator(operator) { Ok(()) } else { Err(self.unexpected(&format!("`{operator}`"))) }
    }

    fn expect_end(&mut self, end: Token) -> Result<()> {
        if *self.peek() != end {
            return Err(self.unexpected(&end.describe()));
        }
        self.next();
        Ok(())
    }

    pub(crate) fn expect_name(&mut self) -> Result<Arc<str>> {
        match self.peek() {
            Token::Name(name) => {
                let name = name.as_str().into();
                self.next();
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(crate) fn count_operator(&mut self) -> Result<()> {
        self.operators += 1;
        if self.operators <= OPERATORS_MAX {
            return Ok(());
        }
        Err(Error::over_budget(format!("a tag has more than {OPERATORS_MAX} operators")))
    }

    /// Parses the contents of brackets.
    pub(crate) fn nested<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.brackets += 1;
        if self.brackets > BRACKETS_MAX {
            return Err(Error::over_budget(format!("more than {BRACKETS_MAX} brackets are open")));
        }
        let parsed = inside(self)?;
        self.brackets -= 1;
        Ok(parsed)
    }

    /// Parses one more nested block or branch.
    fn in_block<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.blocks += 1;
        if self.blocks > BLOCKS_MAX {
            return Err(Error::over_budget(format!("more than {BLOCKS_MAX} blocks and branches are open")));
        }
        let parsed = inside(self)?;
        self.blocks -= 1;
        Ok(parsed)
    }

    /// Statements up to a tag that begins with one of these words, or to the end of the template if there are none.
    /// Does not consume the word.
    fn body(&mut self, ends: &[&str]) -> Result<Body> {
        let mut body = Body::new();
        loop {
            let line = self.line();
            self.operators = 0;
            match self.next() {
                Token::Data(text) => body.push(Statement { line, kind: StatementKind::Text(text) }),
                Token::PrintBegin => {
                    let line = self.line();
                    let kind = StatementKind::Print(self.tuple()?);
                    self.expect_end(Token::PrintEnd)?;
                    body.push(Statement { line, kind });
                }
                Token::BlockBegin => {
                    let Token::Name(word) = self.peek().clone() else { return Err(self.unexpected("a statement")) };
                    if ends.contains(&word.as_str()) {
                        return Ok(body);
                    }
                    self.statement(&word, &mut body)?;
                    self.expect_end(Token::BlockEnd)?;
                }
                Token::End if ends.is_empty() => return Ok(body),
                Token::End => {
                    let ends = ends.iter().map(|end| format!("`{{% {end} %}}`")).collect::<Vec<_>>().join(" or ");
                    return Err(Error::raised(format!("the template ends without {ends}")));
                }
                token => return Err(Error::raised(format!("unexpected {}", token.describe()))),
            }
        }
    }

    /// Reads the end of a block's first tag and its statements; returns them and the word that ends the block.
    fn block(&mut self, ends: &[&str]) -> Result<(Body, Arc<str>)> {
        self.take_operator(":");
        self.expect_end(Token::BlockEnd)?;
        let body = self.in_block(|parser| parser.body(ends))?;
        Ok((body, self.expect_name()?))
    }

    /// A block that is compiled as a function: `break` and `continue` can't leave a loop around it.
    fn function_block(&mut self, end: &str) -> Result<Body> {
        let loops = std::mem::take(&mut self.loops);
        let (body, _) = self.block(&[end])?;
        self.loops = loops;
        Ok(body)
    }

    fn statement(&mut self, word: &str, body: &mut Body) -> Result<()> {
        let line = self.line();
        self.next();
        let kind = match word {
            "if" => self.condition()?,
            "for" => self.for_loop()?,
            "set" => self.assignment()?,
            "with" => self.with()?,
            "macro" => {
                let name = self.expect_name()?;
                let parameters = self.parameters()?;
                let body = self.function_block("endmacro")?;
                let target = Name { name: Arc::clone(&name), slot: Default::default() };
                let function = Macro { name: Some(name), parameters, body, ..Macro::default() };
                StatementKind::Macro(target, Box::new(function))
            }
            "call" => {
                let parameters = if self.is_operator("(") { self.parameters()? } else { Vec::new() };
                let Expr::Call(call) = self.expression()? else { return Err(Error::raised("`call` needs a call")) };
                let body = self.function_block("endcall")?;
                StatementKind::CallBlock(Box::new((*call, Macro { parameters, body, ..Macro::default() })))
            }
            "generation" => {
                let body = self.function_block("endgeneration")?;
                StatementKind::Generation(Box::new(Macro { body, ..Macro::default() }))
            }
            "filter" => {
                let filter = self.block_filter(true)?.ok_or_else(|| self.unexpected("a filter"))?;
                let (body, _) = self.block(&["endfilter"])?;
                StatementKind::FilterBlock(Box::new(FilterBlock { filter, body, scope: Scope::default() }))
            }
            "print" => {
                let mut is_first = true;
                while *self.peek() != Token::BlockEnd {
                    if !std::mem::take(&mut is_first) {
                        self.expect_operator(",")?;
                    }
                    body.push(Statement { line, kind: StatementKind::Print(self.expression()?) });
                }
                return Ok(());
            }
            "break" | "continue" if self.loops == 0 => {
                return Err(Error::raised(format!("`{word}` is not in a loop")));
            }
            "break" => StatementKind::Break,
            "continue" => StatementKind::Continue,
            "block" | "extends" | "include" | "import" | "from" | "autoescape" => {
                return Err(Error::unsupported(format!("`{{% {word} %}}`")));
            }
            _ => return Err(Error::raised(format!("unknown statement `{word:.60}`")).at(line)),
        };
        body.push(Statement { line, kind });
        Ok(())
    }

    fn condition(&mut self) -> Result<StatementKind> {
        let (mut branches, blocks) = (Vec::new(), self.blocks);
        loop {
            let test = self.tuple_without_condition()?;
            let (body, end) = self.block(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match &*end {
                "elif" => {
                    self.blocks += 1;
                    self.operators = 0;
                }
                "else" => {
                    let (body, _) = self.block(&["endif"])?;
                    branches.push((Expr::Const(Value::Bool(true)), body));
                    break;
                }
                _ => break,
            }
        }
        self.blocks = blocks;
        Ok(StatementKind::If(branches))
    }

    fn for_loop(&mut self) -> Result<StatementKind> {
        let begin = self.at;
        let target = self.target(false)?;
        if !self.take_word("in") {
            return Err(self.unexpected("`in`"));
        }
        let items = self.tuple_without_condition()?;
        let test = if self.take_word("if") { Some(self.expression()?) } else { None };
        let is_recursive = self.take_word("recursive");
        let test = match test {
            Some(test) => {
                // The test has its own variables.
                let (end, operators) = (std::mem::replace(&mut self.at, begin), self.operators);
                let target = self.target(false)?;
                (self.at, self.operators) = (end, operators);
                Some(LoopTest { test, target, scope: Scope::default(), slots: 0 })
            }
            None => None,
        };
        self.loops += 1;
        let (body, end) = self.block(&["endfor", "else"])?;
        self.loops -= 1;
        let loops = self.loops;
        if is_recursive {
            // The `else` belongs to the loop's function, but not to a loop.
            self.loops = 0;
        }
        let otherwise = if &*end == "else" { self.block(&["endfor"])?.0 } else { Body::new() };
        self.loops = loops;
        Ok(StatementKind::For(Box::new(For {
            target,
            items,
            test,
            body,
            otherwise,
            scope: Scope::default(),
            otherwise_scope: Scope::default(),
            loop_slot: None,
            recursive: is_recursive.then_some(0),
        })))
    }

    fn assignment(&mut self) -> Result<StatementKind> {
        let target = self.target(true)?;
        if self.take_operator("=") {
            return Ok(StatementKind::Set(target, self.tuple()?));
        }
        let filter = self.block_filter(false)?;
        let (body, _) = self.block(&["endset"])?;
        Ok(StatementKind::SetBlock(Box::new(SetBlock { target, filter, body, scope: Scope::default() })))
    }

    fn with(&mut self) -> Result<StatementKind> {
        let mut targets = Vec::new();
        while *self.peek() != Token::BlockEnd {
            if !targets.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target(false)?;
            self.expect_operator("=")?;
            targets.push((target, self.expression()?));
        }
        let (body, _) = self.block(&["endwith"])?;
        Ok(StatementKind::With(Box::new(With { targets, body, scope: Scope::default() })))
    }

    fn parameters(&mut self) -> Result<Vec<Parameter>> {
        self.nested(|parser| {
            parser.expect_operator("(")?;
            let mut parameters: Vec<Parameter> = Vec::new();
            while !parser.take_operator(")") {
                if !parameters.is_empty() {
                    parser.expect_operator(",")?;
                }
                let name = assignable(parser.expect_name()?)?;
                if parameters.iter().any(|parameter| parameter.name.name == name.name) {
                    return Err(Error::raised(format!("the parameter `{}` is repeated", name.name)));
                }
                let default = if parser.take_operator("=") { Some(parser.expression()?) } else { None };
                if default.is_none() && parameters.last().is_some_and(|before| before.default.is_some()) {
                    return Err(Error::raised("a parameter without a default follows one with a default"));
                }
                parameters.push(Parameter { name, default });
            }
            Ok(parameters)
        })
    }

    /// The target of an assignment: a name, or a tuple of names.
    fn target(&mut self, may_be_attribute: bool) -> Result<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if self.is_tuple_end() {
                break;
            }
            targets.push(self.single_target(may_be_attribute)?);
            if !self.take_operator(",") {
                break;
            }
            self.count_operator()?;
            is_tuple = true;
        }
        match targets.pop() {
            Some(target) if !is_tuple => Ok(target),
            Some(last) => {
                targets.push(last);
                Ok(Target::Tuple(targets))
            }
            None => Err(self.unexpected("a name")),
        }
    }

    fn single_target(&mut self, may_be_attribute: bool) -> Result<Target> {
        if self.take_operator("(") {
            // Within parentheses, attributes are read and can't be assigned.
            let target = self.nested(|parser| parser.target(false))?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = assignable(self.expect_name()?)?;
        if may_be_attribute && self.take_operator(".") {
            return Ok(Target::Attribute(name, self.expect_name()?));
        }
        Ok(Target::Name(name))
    }

    /// Whether a tuple without parentheses ends here.
    pub(crate) fn is_tuple_end(&self) -> bool {
        matches!(self.peek(), Token::PrintEnd | Token::BlockEnd | Token::Operator(")"))
    }
}

/// A name that a template may assign to.
fn assignable(name: Arc<str>) -> Result<Name> {
    if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
        return Err(Error::raised(format!("can't assign to `{name}`")));
    }
    Ok(Name { name, slot: Default::default() })
}

impl CompareOperator {
    /// Its spelling in a template.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::In => "in",
            Self::NotIn => "not in",
        }
    }
}
