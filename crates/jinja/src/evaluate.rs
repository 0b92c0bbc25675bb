//! Evaluates expressions.

use crate::ast::{CompareOperator, Expr, Filter};
use crate::error::{Error, Result};
use crate::filters::filter_function;
use crate::predicates::test_function;
use crate::state::Render;
use crate::value::Dict;
use crate::value::Undefined;
use crate::value::compare::{equal, order};
use crate::{Value, View};
use std::cmp::Ordering;
use std::sync::Arc;

impl<'t> Render<'t> {
    pub(crate) fn evaluate(&mut self, expr: &'t Expr, frame: usize) -> Result<Value> {
        self.meter.step()?;
        match expr {
            Expr::Const(value) => Ok(value.clone()),
            Expr::Name(name) => Ok(match self.variable(name.slot, frame) {
                Some(value) => value.clone(),
                None => Value::Undefined(Undefined::Name(Arc::clone(&name.name))),
            }),
            Expr::Call(node) => self.call(node, frame, None),
            _ => self.deeper(|render| render.evaluate_parts(expr, frame)),
        }
    }

    fn evaluate_parts(&mut self, expr: &'t Expr, frame: usize) -> Result<Value> {
        match expr {
            Expr::Const(_) | Expr::Name(_) | Expr::Call(_) => self.evaluate(expr, frame),
            Expr::List(items) => Value::list(self.evaluate_all(items, frame)?).within_depth(),
            Expr::Tuple(items) => Value::tuple(self.evaluate_all(items, frame)?).within_depth(),
            Expr::Dict(pairs) => {
                let mut values = Vec::with_capacity(pairs.len());
                for (key, value) in pairs {
                    values.push((self.evaluate(key, frame)?, self.evaluate(value, frame)?));
                }
                Value::Dict(Arc::new(Dict::new(&mut self.meter, values)?)).within_depth()
            }
            Expr::Negative(of) => {
                let value = self.evaluate(of, frame)?;
                crate::arithmetic::negative(&value)
            }
            Expr::Positive(of) => {
                let value = self.evaluate(of, frame)?;
                crate::arithmetic::positive(&value)
            }
            Expr::Not(of) => Ok(Value::Bool(!self.evaluate(of, frame)?.is_true())),
            Expr::And(parts) => {
                let left = self.evaluate(&parts.0, frame)?;
                if left.is_true() { self.evaluate(&parts.1, frame) } else { Ok(left) }
            }
            Expr::Or(parts) => {
                let left = self.evaluate(&parts.0, frame)?;
                if left.is_true() { Ok(left) } else { self.evaluate(&parts.1, frame) }
            }
            Expr::Binary(operator, parts) => {
                let left = self.evaluate(&parts.0, frame)?;
                let right = self.evaluate(&parts.1, frame)?;
                self.binary(*operator, &left, &right)
            }
            Expr::Compare(first, others) => self.evaluate_comparison(first, others, frame),
            Expr::Concat(parts) => {
                let mut text = String::new();
                for part in parts {
                    let value = self.evaluate(part, frame)?;
                    self.append_text(&mut text, &value)?;
                }
                Ok(Value::from(text))
            }
            Expr::Conditional(node) => {
                if self.evaluate(&node.test, frame)?.is_true() {
                    return self.evaluate(&node.then, frame);
                }
                match &node.otherwise {
                    Some(otherwise) => self.evaluate(otherwise, frame),
                    None => Ok(Value::undefined("an `if` without `else` was false")),
                }
            }
            Expr::Attribute(of, name) => {
                let of = self.evaluate(of, frame)?;
                self.attribute(&of, name)
            }
            Expr::Item(parts) => {
                let of = self.evaluate(&parts.0, frame)?;
                let key = self.evaluate(&parts.1, frame)?;
                self.item(&of, &key)
            }
            Expr::Slice(of, parts) => {
                let of = self.evaluate(of, frame)?;
                let mut bounds = [None, None, None];
                for (bound, part) in bounds.iter_mut().zip(&**parts) {
                    *bound = part.as_ref().map(|part| self.evaluate(part, frame)).transpose()?;
                }
                self.slice(&of, &bounds)
            }
            Expr::Filter(node) => match &node.of {
                Some(of) => {
                    let value = self.evaluate(of, frame)?;
                    self.apply_filter(node, value, frame)
                }
                None => Err(Error::raised("a filter has no operand")),
            },
            Expr::Test(node) => {
                let value = self.evaluate(&node.of, frame)?;
                let arguments = self.arguments(&node.arguments, frame, None)?;
                let Some(function) = test_function(&node.name) else {
                    return Err(Error::raised(format!("unknown test `{}`", node.name)).at(node.line));
                };
                function(self, value, arguments).map(Value::Bool).map_err(|error| error.at(node.line))
            }
        }
    }

    fn evaluate_all(&mut self, exprs: &'t [Expr], frame: usize) -> Result<Vec<Value>> {
        self.meter.charge_items(exprs.len())?;
        exprs.iter().map(|expr| self.evaluate(expr, frame)).collect()
    }

    fn apply_filter(&mut self, node: &'t Filter, value: Value, frame: usize) -> Result<Value> {
        let arguments = self.arguments(&node.arguments, frame, None)?;
        let Some(function) = filter_function(&node.name) else {
            return Err(Error::raised(format!("unknown filter `{}`", node.name)).at(node.line));
        };
        function(self, value, arguments).map_err(|error| error.at(node.line))
    }

    /// Applies the filters of a block to its text.
    pub(crate) fn evaluate_block_filter(&mut self, expr: &'t Expr, text: Value, frame: usize) -> Result<Value> {
        let Expr::Filter(node) = expr else { return self.evaluate(expr, frame) };
        let value = match &node.of {
            Some(of) => self.deeper(|render| render.evaluate_block_filter(of, text, frame))?,
            None => text,
        };
        self.apply_filter(node, value, frame)
    }

    /// A chain such as `a < b < c`.
    fn evaluate_comparison(
        &mut self,
        first: &'t Expr,
        others: &'t [(CompareOperator, Expr)],
        frame: usize,
    ) -> Result<Value> {
        let mut left = self.evaluate(first, frame)?;
        for (operator, other) in others {
            let right = self.evaluate(other, frame)?;
            if !self.compare(*operator, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub(crate) fn compare(&mut self, operator: CompareOperator, left: &Value, right: &Value) -> Result<bool> {
        let sign = operator.sign();
        Ok(match operator {
            CompareOperator::Equal => equal(&mut self.meter, left, right)?,
            CompareOperator::NotEqual => !equal(&mut self.meter, left, right)?,
            CompareOperator::In => self.contains(right, left)?,
            CompareOperator::NotIn => !self.contains(right, left)?,
            CompareOperator::Less => order(&mut self.meter, left, right, sign)? == Some(Ordering::Less),
            CompareOperator::Greater => order(&mut self.meter, left, right, sign)? == Some(Ordering::Greater),
            CompareOperator::LessOrEqual => {
                matches!(order(&mut self.meter, left, right, sign)?, Some(Ordering::Less | Ordering::Equal))
            }
            CompareOperator::GreaterOrEqual => {
                matches!(order(&mut self.meter, left, right, sign)?, Some(Ordering::Greater | Ordering::Equal))
            }
        })
    }

    /// Python's `in`.
    pub(crate) fn contains(&mut self, all: &Value, item: &Value) -> Result<bool> {
        match all {
            Value::Text(text) => {
                let item = item.as_str().ok_or_else(|| match item {
                    // In Python the text's `in` accepts only texts.
                    Value::Undefined(_) => Error::raised("`in` of a text needs a text, not an undefined value"),
                    _ => Error::raised(format!("`in` of a text needs a text, not a {}", item.type_name())),
                })?;
                self.meter.charge(text.text.len() + item.len())?;
                Ok(text.text.contains(item))
            }
            Value::Dict(dict) | Value::View(View::Keys, dict) => Ok(dict.find(&mut self.meter, item)?.is_some()),
            Value::Range(range) => Ok(match item {
                Value::Float(number) if number.fract() == 0.0 => range.position(*number as i128).is_some(),
                _ => item.as_int().is_some_and(|number| range.position(number).is_some()),
            }),
            _ => {
                let mut iter = self.iter(all)?;
                while let Some(other) = self.next(&mut iter)? {
                    self.meter.step()?;
                    if equal(&mut self.meter, &other, item)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}
