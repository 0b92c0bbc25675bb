//! Parses expressions with the grammar of Jinja2's parser.

use crate::Value;
use crate::ast::{ArgumentExprs, BinaryOperator, Call, CompareOperator, Conditional, Expr, Filter, Name, Test};
use crate::error::{Error, Result};
use crate::lexer::Token;
use crate::parser::Parser;

impl Parser {
    /// An expression, or several separated by commas.
    pub(crate) fn tuple(&mut self) -> Result<Expr> {
        self.tuple_of(false, Self::expression)
    }

    /// A tuple whose items are not conditional, since `if` follows it.
    pub(crate) fn tuple_without_condition(&mut self) -> Result<Expr> {
        self.tuple_of(false, Self::disjunction)
    }

    fn tuple_of(&mut self, may_be_empty: bool, part: fn(&mut Self) -> Result<Expr>) -> Result<Expr> {
        let mut parts = Vec::new();
        let mut is_tuple = false;
        while !self.is_tuple_end() {
            parts.push(part(self)?);
            if !self.take_operator(",") {
                break;
            }
            is_tuple = true;
        }
        if is_tuple {
            return Ok(Expr::Tuple(parts));
        }
        match parts.pop() {
            Some(part) => Ok(part),
            None if may_be_empty => Ok(Expr::Tuple(parts)),
            None => Err(self.unexpected("an expression")),
        }
    }

    pub(crate) fn expression(&mut self) -> Result<Expr> {
        let mut then = self.disjunction()?;
        while self.take_word("if") {
            self.count_operator()?;
            let test = self.disjunction()?;
            let otherwise = if self.take_word("else") { Some(self.expression()?) } else { None };
            then = Expr::Conditional(Box::new(Conditional { test, then, otherwise }));
        }
        Ok(then)
    }

    fn disjunction(&mut self) -> Result<Expr> {
        let mut left = self.conjunction()?;
        while self.take_word("or") {
            self.count_operator()?;
            left = Expr::Or(Box::new((left, self.conjunction()?)));
        }
        Ok(left)
    }

    fn conjunction(&mut self) -> Result<Expr> {
        let mut left = self.negation()?;
        while self.take_word("and") {
            self.count_operator()?;
            left = Expr::And(Box::new((left, self.negation()?)));
        }
        Ok(left)
    }

    fn negation(&mut self) -> Result<Expr> {
        if self.take_word("not") {
            self.count_operator()?;
            return Ok(Expr::Not(Box::new(self.negation()?)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut others = Vec::new();
        while let Some(operator) = self.compare_operator() {
            self.count_operator()?;
            others.push((operator, self.sum()?));
        }
        Ok(if others.is_empty() { first } else { Expr::Compare(Box::new(first), others) })
    }

    fn compare_operator(&mut self) -> Option<CompareOperator> {
        let operator = match self.peek() {
            Token::Operator("==") => CompareOperator::Equal,
            Token::Operator("!=") => CompareOperator::NotEqual,
            Token::Operator("<") => CompareOperator::Less,
            Token::Operator("<=") => CompareOperator::LessOrEqual,
            Token::Operator(">") => CompareOperator::Greater,
            Token::Operator(">=") => CompareOperator::GreaterOrEqual,
            Token::Name(word) if word == "in" => CompareOperator::In,
            Token::Name(word) if word == "not" && *self.peek_second() == Token::Name("in".to_owned()) => {
                self.next();
                CompareOperator::NotIn
            }
            _ => return None,
        };
        self.next();
        Some(operator)
    }

    /// A left-associative chain of operators of one level.
    fn chain(&mut self, operators: &[(&str, BinaryOperator)], part: fn(&mut Self) -> Result<Expr>) -> Result<Expr> {
        let mut left = part(self)?;
        while let Some(&(_, operator)) = operators.iter().find(|(sign, _)| self.is_operator(sign)) {
            self.next();
            self.count_operator()?;
            left = Expr::Binary(operator, Box::new((left, part(self)?)));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr> {
        self.chain(&[("+", BinaryOperator::Add), ("-", BinaryOperator::Subtract)], Self::concatenation)
    }

    fn concatenation(&mut self) -> Result<Expr> {
        let mut parts = vec![self.product()?];
        while self.take_operator("~") {
            self.count_operator()?;
            parts.push(self.product()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Concat(parts) })
    }

    fn product(&mut self) -> Result<Expr> {
        use BinaryOperator::{Divide, FloorDivide, Modulo, Multiply};
        self.chain(&[("*", Multiply), ("/", Divide), ("//", FloorDivide), ("%", Modulo)], Self::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.chain(&[("**", BinaryOperator::Power)], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let signed: Option<fn(Box<Expr>) -> Expr> = match self.peek() {
            Token::Operator("-") => Some(Expr::Negative),
            Token::Operator("+") => Some(Expr::Positive),
            _ => None,
        };
        let expr = match signed {
            Some(signed) => {
                self.next();
                self.count_operator()?;
                signed(Box::new(self.unary(false)?))
            }
            None => self.primary()?,
        };
        let expr = self.postfix(expr)?;
        if with_filters { self.filters_and_tests(expr) } else { Ok(expr) }
    }

    fn primary(&mut self) -> Result<Expr> {
        let expected = self.unexpected("an expression");
        Ok(match self.next() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Expr::Const(Value::Bool(true)),
                "false" | "False" => Expr::Const(Value::Bool(false)),
                "none" | "None" => Expr::Const(Value::None),
                _ => Expr::Name(Name { name: name.into(), slot: Default::default() }),
            },
            Token::Text(mut text) => {
                while let Token::Text(more) = self.peek() {
                    text += more;
                    self.next();
                }
                Expr::Const(Value::from(text))
            }
            Token::Int(number) => Expr::Const(Value::Int(number)),
            Token::Float(number) => Expr::Const(Value::Float(number)),
            Token::Operator("(") => {
                let expr = self.nested(|parser| parser.tuple_of(true, Self::expression))?;
                self.expect_operator(")")?;
                expr
            }
            Token::Operator("[") => self.nested(|parser| Ok(Expr::List(parser.items("]", Self::expression)?)))?,
            Token::Operator("{") => self.nested(|parser| {
                Ok(Expr::Dict(parser.items("}", |parser| {
                    let key = parser.expression()?;
                    parser.expect_operator(":")?;
                    Ok((key, parser.expression()?))
                })?))
            })?,
            _ => return Err(expected),
        })
    }

    /// Items separated by commas, up to and including the closing bracket.
    fn items<T>(&mut self, end: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.take_operator(end) {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.take_operator(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn postfix(&mut self, mut expr: Expr) -> Result<Expr> {
        loop {
            expr = match self.peek() {
                Token::Operator(".") => self.attribute(expr)?,
                Token::Operator("[") => self.subscript(expr)?,
                Token::Operator("(") => self.call(expr)?,
                _ => return Ok(expr),
            };
        }
    }

    fn filters_and_tests(&mut self, mut expr: Expr) -> Result<Expr> {
        loop {
            expr = match self.peek() {
                Token::Operator("|") => {
                    self.next();
                    self.filter(Some(expr))?
                }
                Token::Operator("(") => self.call(expr)?,
                Token::Name(word) if word == "is" => self.test(expr)?,
                _ => return Ok(expr),
            };
        }
    }

    fn attribute(&mut self, of: Expr) -> Result<Expr> {
        self.next();
        self.count_operator()?;
        let expected = self.unexpected("a name or number");
        match self.next() {
            Token::Name(name) => Ok(Expr::Attribute(Box::new(of), name.into())),
            Token::Int(index) => Ok(Expr::Item(Box::new((of, Expr::Const(Value::Int(index)))))),
            _ => Err(expected),
        }
    }

    fn subscript(&mut self, of: Expr) -> Result<Expr> {
        self.next();
        self.count_operator()?;
        self.nested(|parser| {
            if let Some(slice) = parser.slice()? {
                parser.expect_operator("]")?;
                return Ok(Expr::Slice(Box::new(of), Box::new(slice.0)));
            }
            let mut keys = Vec::new();
            while !parser.take_operator("]") {
                if !keys.is_empty() {
                    parser.expect_operator(",")?;
                }
                keys.push(parser.expression()?);
                if parser.is_operator(":") {
                    let start = keys.pop();
                    if !keys.is_empty() {
                        return Err(Error::raised("a slice can't be one of several subscripts"));
                    }
                    let slice = parser.slice_from(start)?;
                    parser.expect_operator("]")?;
                    return Ok(Expr::Slice(Box::new(of), Box::new(slice.0)));
                }
            }
            let key = if keys.len() == 1 { keys.remove(0) } else { Expr::Tuple(keys) };
            Ok(Expr::Item(Box::new((of, key))))
        })
    }

    /// A slice without a start, if one follows.
    fn slice(&mut self) -> Result<Option<SliceParts>> {
        if self.is_operator(":") { self.slice_from(None).map(Some) } else { Ok(None) }
    }

    /// The rest of a slice, from the first colon.
    fn slice_from(&mut self, start: Option<Expr>) -> Result<SliceParts> {
        self.next();
        let is_end = |parser: &Self| parser.is_operator("]") || parser.is_operator(",");
        let stop = if is_end(self) || self.is_operator(":") { None } else { Some(self.expression()?) };
        let step = if self.take_operator(":") && !is_end(self) { Some(self.expression()?) } else { None };
        Ok(SliceParts([start, stop, step]))
    }

    fn call(&mut self, of: Expr) -> Result<Expr> {
        self.count_operator()?;
        let line = self.line();
        Ok(Expr::Call(Box::new(Call { of, arguments: self.arguments()?, line })))
    }

    fn arguments(&mut self) -> Result<ArgumentExprs> {
        self.nested(|parser| {
            parser.expect_operator("(")?;
            let mut arguments = ArgumentExprs::default();
            let mut is_first = true;
            let wrong = || Error::raised("arguments are in an order that Python does not allow");
            while !parser.take_operator(")") {
                if !std::mem::take(&mut is_first) {
                    parser.expect_operator(",")?;
                    if parser.take_operator(")") {
                        break;
                    }
                }
                if parser.take_operator("*") {
                    if arguments.all_positional.is_some() || arguments.all_named.is_some() {
                        return Err(wrong());
                    }
                    arguments.all_positional = Some(parser.expression()?);
                } else if arguments.all_named.is_some() {
                    return Err(wrong());
                } else if parser.take_operator("**") {
                    arguments.all_named = Some(parser.expression()?);
                } else if matches!(parser.peek(), Token::Name(_)) && *parser.peek_second() == Token::Operator("=") {
                    let name = parser.expect_name()?;
                    parser.next();
                    if arguments.named.iter().any(|(other, _)| *other == name) {
                        return Err(Error::raised(format!("the argument `{name}` is given twice")));
                    }
                    arguments.named.push((name, parser.expression()?));
                } else {
                    if arguments.all_positional.is_some() || !arguments.named.is_empty() {
                        return Err(wrong());
                    }
                    arguments.positional.push(parser.expression()?);
                }
            }
            Ok(arguments)
        })
    }

    fn dotted_name(&mut self) -> Result<std::sync::Arc<str>> {
        let mut name = self.expect_name()?;
        while self.take_operator(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }

    /// A filter after its `|`.
    fn filter(&mut self, of: Option<Expr>) -> Result<Expr> {
        self.count_operator()?;
        let line = self.line();
        let name = self.dotted_name()?;
        let arguments = if self.is_operator("(") { self.arguments()? } else { ArgumentExprs::default() };
        Ok(Expr::Filter(Box::new(Filter { of, name, arguments, line })))
    }

    /// Filters of a block's text; in `{% filter … %}` the first has no `|`.
    pub(crate) fn block_filter(&mut self, is_begun: bool) -> Result<Option<Expr>> {
        let mut filter = if is_begun { Some(self.filter(None)?) } else { None };
        while self.take_operator("|") {
            filter = Some(self.filter(filter)?);
        }
        Ok(filter)
    }

    fn test(&mut self, of: Expr) -> Result<Expr> {
        self.count_operator()?;
        let line = self.line();
        self.next();
        let is_negated = self.take_word("not");
        let name = self.dotted_name()?;
        let mut arguments = ArgumentExprs::default();
        match self.peek() {
            Token::Operator("(") => arguments = self.arguments()?,
            Token::Name(word) if matches!(word.as_str(), "else" | "or" | "and") => {}
            Token::Name(word) if word == "is" => return Err(Error::raised("tests can't be chained with `is`")),
            Token::Name(_) | Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Operator("[" | "{") => {
                let argument = self.primary()?;
                arguments.positional.push(self.postfix(argument)?);
            }
            _ => {}
        }
        let test = Expr::Test(Box::new(Test { of, name, arguments, line }));
        Ok(if is_negated { Expr::Not(Box::new(test)) } else { test })
    }
}

/// The start, stop and step of a slice.
struct SliceParts([Option<Expr>; 3]);
