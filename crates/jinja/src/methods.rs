//! Methods of lists, dicts, loops and cyclers.
//! Not here: methods of texts (`texts.rs`).

mod parts;
mod texts;

pub(crate) use parts::lines;
pub(crate) use texts::capitalized;

use crate::arguments::{Arguments, given, integer};
use crate::error::{Error, Result};
use crate::state::{Object, Render};
use crate::value::ObjectId;
use crate::value::compare::equal;
use crate::{Dict, Value, View};
use std::sync::Arc;

impl<'t> Render<'t> {
    /// Calls an existing method of a value.
    pub(crate) fn call_method(&mut self, of: &Value, name: &str, arguments: Arguments) -> Result<Value> {
        match of {
            Value::Text(text) => self.text_method(text, name, arguments),
            Value::Dict(dict) => self.dict_method(dict, name, arguments),
            Value::List(items) | Value::Tuple(items) => match name {
                "copy" => arguments.none(name).map(|()| of.clone()),
                "count" => {
                    let [value] = arguments.bind(name, [""], 1)?;
                    let value = value.unwrap_or(Value::None);
                    let mut count = 0_usize;
                    for item in items.iter() {
                        count += usize::from(equal(&mut self.meter, item, &value)?);
                    }
                    Ok(Value::from(count))
                }
                _ => {
                    let [value, start, stop] = arguments.bind(name, ["", "", ""], 1)?;
                    let value = value.unwrap_or(Value::None);
                    let (start, stop) = bounds(items.len(), given(start), given(stop))?;
                    for (at, item) in items.iter().enumerate().take(stop).skip(start) {
                        if equal(&mut self.meter, item, &value)? {
                            return Ok(Value::from(at));
                        }
                    }
                    Err(Error::raised("the value is not in the list"))
                }
            },
            Value::Float(number) => {
                arguments.none(name).map(|()| Value::Bool(number.is_finite() && number.fract() == 0.0))
            }
            Value::Object(id) => self.object_method(*id, name, arguments),
            _ => Err(Error::unsupported(format!("`{name}`"))),
        }
    }

    fn dict_method(&mut self, dict: &Arc<Dict>, name: &str, arguments: Arguments) -> Result<Value> {
        let view = |view| Ok(Value::View(view, Arc::clone(dict)));
        match name {
            "get" => {
                let [key, default] = arguments.bind(name, ["", ""], 1)?;
                let found = dict.find(&mut self.meter, &key.unwrap_or(Value::None))?.cloned();
                return Ok(found.or(default).unwrap_or(Value::None));
            }
            _ => arguments.none(name)?,
        }
        match name {
            "keys" => view(View::Keys),
            "values" => view(View::Values),
            "items" => view(View::Items),
            _ => Ok(Value::Dict(Arc::clone(dict))),
        }
    }

    fn object_method(&mut self, id: ObjectId, name: &str, arguments: Arguments) -> Result<Value> {
        match &mut self.objects[id.0] {
            Object::Cycler(items, at) => {
                arguments.none(name)?;
                if name == "reset" {
                    *at = 0;
                    return Ok(Value::None);
                }
                let item = items[*at].clone();
                *at = (*at + 1) % items.len();
                Ok(item)
            }
            _ if !arguments.named.is_empty() => Err(Error::raised(format!("`loop.{name}` takes no named arguments"))),
            _ if name == "changed" => self.loop_changed(id, arguments.positional).map(Value::Bool),
            _ => {
                let index = self.loop_attribute(id, "index0")?.and_then(|index| index.as_int()).unwrap_or_default();
                let items = arguments.positional;
                match usize::try_from(index).ok().and_then(|index| index.checked_rem(items.len())) {
                    Some(at) => Ok(items[at].clone()),
                    None => Err(Error::raised("`loop.cycle` needs values")),
                }
            }
        }
    }
}

/// Start and end of a part, clamped like in Python's methods.
fn bounds(len: usize, start: Option<Value>, stop: Option<Value>) -> Result<(usize, usize)> {
    let place = |bound: Option<Value>, default: usize| -> Result<usize> {
        let Some(bound) = bound else { return Ok(default) };
        let bound = integer(&bound)?;
        let place = if bound < 0 { bound.saturating_add(len as i128).max(0) } else { bound };
        Ok(usize::try_from(place).unwrap_or(usize::MAX))
    };
    Ok((place(start, 0)?, place(stop, len)?.min(len)))
}
