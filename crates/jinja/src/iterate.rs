//! Iteration, lazy wherever Python's is.

use crate::Value;
use crate::error::{Error, Result};
use crate::state::{Each, Generator, Iter, Object, Render};
use crate::value::{ObjectId, View};
use std::sync::Arc;

impl<'t> Render<'t> {
    /// Python's `iter`. Errors: the value is not iterable.
    pub(crate) fn iter(&mut self, value: &Value) -> Result<Iter<'t>> {
        Ok(match value {
            Value::Undefined(_) => Iter::Empty,
            Value::Text(text) => Iter::Characters(Arc::clone(&text.text), 0),
            Value::List(items) | Value::Tuple(items) => Iter::Items(Arc::clone(items), 0),
            Value::Dict(dict) => Iter::Entries(View::Keys, Arc::clone(dict), 0),
            Value::View(view, dict) => Iter::Entries(*view, Arc::clone(dict), 0),
            Value::Range(range) => Iter::Range(*range, 0),
            Value::Object(id) => match self.objects[id.0] {
                Object::Generator(_) => Iter::Generator(*id),
                Object::Loop(_) => return Err(Error::unsupported("iteration over `loop`")),
                _ => return Err(not_iterable(value)),
            },
            _ => return Err(not_iterable(value)),
        })
    }

    pub(crate) fn next(&mut self, iter: &mut Iter<'t>) -> Result<Option<Value>> {
        match iter {
            Iter::Empty => Ok(None),
            Iter::Items(items, at) => {
                *at += 1;
                Ok(items.get(*at - 1).cloned())
            }
            Iter::Characters(text, at) => {
                let Some(next) = text[*at..].chars().next() else { return Ok(None) };
                self.meter.charge(32)?;
                *at += next.len_utf8();
                Ok(Some(Value::from(next.encode_utf8(&mut [0; 4]) as &str)))
            }
            Iter::Entries(view, dict, at) => {
                *at += 1;
                let Some((key, value)) = dict.entry(*at - 1) else { return Ok(None) };
                Ok(Some(match view {
                    View::Keys => key.clone(),
                    View::Values => value.clone(),
                    View::Items => {
                        self.meter.charge_items(3)?;
                        Value::tuple(vec![key.clone(), value.clone()])
                    }
                }))
            }
            Iter::Range(range, at) => {
                *at += 1;
                Ok((*at <= range.len()).then(|| Value::Int(range.at(*at - 1))))
            }
            Iter::Values(values) => Ok(values.next()),
            Iter::Generator(id) => self.resume(*id),
            Iter::Tested { source, test, frame } => loop {
                self.meter.step()?;
                let Some(item) = self.next(source)? else { return Ok(None) };
                self.assign(&test.target, item.clone(), *frame)?;
                if self.evaluate(&test.test, *frame)?.is_true() {
                    return Ok(Some(self.assigned(&test.target, item, *frame)));
                }
            },
        }
    }

    /// The next item of a generator, which may resume others. Each uses the stack of several levels.
    fn resume(&mut self, id: ObjectId) -> Result<Option<Value>> {
        let Object::Generator(generator) = &mut self.objects[id.0] else { return Ok(None) };
        // A generator that resumes itself gets no item.
        let generator = std::mem::replace(generator, Generator::Iter(Iter::Empty));
        let (generator, item) = self.deeper_by(3, |render| {
            let mut generator = render.started(generator)?;
            let item = render.next_of_generator(&mut generator)?;
            Ok((generator, item))
        })?;
        self.objects[id.0] = Object::Generator(generator);
        Ok(item)
    }

    fn next_of_generator(&mut self, generator: &mut Generator<'t>) -> Result<Option<Value>> {
        match generator {
            Generator::Iter(iter) => self.next(iter),
            Generator::Mapped(source, each) => match self.next(source)? {
                Some(item) => each.apply(self, item).map(Some),
                None => Ok(None),
            },
            Generator::Selected(source, kept, each) => loop {
                self.meter.step()?;
                let Some(item) = self.next(source)? else { return Ok(None) };
                if each.apply(self, item.clone())?.is_true() == kept.if_true {
                    return Ok(Some(item));
                }
            },
            Generator::Whole(..) | Generator::Map(..) | Generator::Select(..) => unreachable!("it was started above"),
        }
    }

    fn started(&mut self, generator: Generator<'t>) -> Result<Generator<'t>> {
        Ok(match generator {
            Generator::Whole(function, value, arguments) => {
                let items = function(self, value, arguments)?;
                Generator::Iter(Iter::Values(items.into_iter()))
            }
            Generator::Map(value, _) | Generator::Select(_, value, _) if !value.is_true() => {
                Generator::Iter(Iter::Empty)
            }
            Generator::Map(value, arguments) => {
                let each = Each::of_map(&mut self.meter, arguments)?;
                Generator::Mapped(self.iter(&value)?, each)
            }
            Generator::Select(kept, value, arguments) => {
                let each = Each::of_select(&mut self.meter, kept, arguments)?;
                Generator::Selected(self.iter(&value)?, kept, each)
            }
            started => started,
        })
    }

    /// All remaining items. Charges for each.
    pub(crate) fn items(&mut self, value: &Value) -> Result<Vec<Value>> {
        let mut iter = self.iter(value)?;
        let mut items = Vec::new();
        while let Some(item) = self.next(&mut iter)? {
            self.meter.charge_items(2)?;
            items.push(item);
        }
        Ok(items)
    }

    /// Python's `len`. Errors: the value has no length.
    pub(crate) fn len_of(&mut self, value: &Value) -> Result<usize> {
        match value {
            Value::Undefined(_) => Ok(0),
            Value::Text(text) => {
                self.meter.charge(text.text.len())?;
                Ok(text.text.chars().count())
            }
            Value::List(items) | Value::Tuple(items) => Ok(items.len()),
            Value::Dict(dict) | Value::View(_, dict) => Ok(dict.len()),
            Value::Range(range) => Ok(range.len()),
            Value::Object(id) if matches!(self.objects[id.0], Object::Loop(_)) => self.loop_len(*id),
            _ => Err(Error::raised(format!("a {} has no length", self.type_of(value)))),
        }
    }

    /// Items in reverse: Python's `reversed`. Errors: the value is not a sequence.
    pub(crate) fn reversed(&mut self, value: &Value) -> Result<Vec<Value>> {
        if let Value::Object(_) = value {
            return Err(Error::raised(format!("a {} can't be reversed", self.type_of(value))));
        }
        let mut items = self.items(value)?;
        items.reverse();
        Ok(items)
    }
}

fn not_iterable(value: &Value) -> Error {
    Error::raised(format!("a {} is not iterable", value.type_name()))
}
