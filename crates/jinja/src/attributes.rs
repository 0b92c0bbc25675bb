//! Attributes, items and slices, with the lookup rules of Jinja2's sandbox.

use crate::arguments::integer;
use crate::error::{Error, Result};
use crate::state::{Object, Render};
use crate::value::{Method, Range, Undefined};
use crate::{Items, Value, View};
use std::sync::Arc;

/// Classifies a name in a value's type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Method,
    /// The sandbox hides it, since it modifies the value or accesses Python's internals.
    Hidden,
    /// Python has it, but this crate does not support it.
    Unsupported,
}

const DUNDERS: &[&str] = &[
    "__class__",
    "__contains__",
    "__delattr__",
    "__dir__",
    "__doc__",
    "__eq__",
    "__format__",
    "__ge__",
    "__getattribute__",
    "__getitem__",
    "__getstate__",
    "__gt__",
    "__hash__",
    "__init__",
    "__init_subclass__",
    "__iter__",
    "__le__",
    "__len__",
    "__lt__",
    "__ne__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__repr__",
    "__setattr__",
    "__sizeof__",
    "__str__",
    "__subclasshook__",
];

const TEXT_METHODS: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

fn member(value: &Value, name: &str) -> Option<Member> {
    use Member::{Hidden, Method, Unsupported};
    if DUNDERS.contains(&name) && !matches!(value, Value::Undefined(_) | Value::Object(_)) {
        return Some(Hidden);
    }
    match value {
        Value::Text(_) => match name {
            "encode" | "maketrans" | "translate" => Some(Unsupported),
            _ => TEXT_METHODS.contains(&name).then_some(Method),
        },
        Value::List(_) => match name {
            "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" => Some(Hidden),
            "copy" | "count" | "index" => Some(Method),
            _ => None,
        },
        Value::Tuple(_) => matches!(name, "count" | "index").then_some(Method),
        Value::Dict(_) => match name {
            "clear" | "pop" | "popitem" | "setdefault" | "update" => Some(Hidden),
            "copy" | "get" | "items" | "keys" | "values" => Some(Method),
            "fromkeys" => Some(Unsupported),
            _ => None,
        },
        Value::View(..) => matches!(name, "isdisjoint" | "mapping").then_some(Unsupported),
        Value::Range(_) => matches!(name, "count" | "index").then_some(Unsupported),
        Value::Int(_) | Value::Bool(_) => matches!(
            name,
            "as_integer_ratio"
                | "bit_count"
                | "bit_length"
                | "conjugate"
                | "denominator"
                | "from_bytes"
                | "imag"
                | "is_integer"
                | "numerator"
                | "real"
                | "to_bytes"
        )
        .then_some(Unsupported),
        Value::Float(_) => match name {
            "is_integer" => Some(Method),
            "as_integer_ratio" | "conjugate" | "fromhex" | "hex" | "imag" | "real" => Some(Unsupported),
            _ => None,
        },
        _ => None,
    }
}

/// Whether an attribute of a value is a method that templates may call.
pub(crate) fn is_method(value: &Value, name: &str) -> bool {
    member(value, name) == Some(Member::Method)
}

impl Undefined {
    /// The error of an operation on this undefined value.
    pub(crate) fn error(&self) -> Error {
        Error::raised(match self {
            Self::Name(name) => format!("`{name}` is undefined"),
            Self::Attribute(of, name) => format!("a {of} has no `{name}`"),
            Self::Because(reason) => (*reason).to_owned(),
        })
    }
}

impl Value {
    /// The name of its type in Python.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Range(_) => "range",
            Self::Function(_) => "function",
            Self::Method(_) => "method",
            Self::Object(_) => "object",
        }
    }
}

impl<'t> Render<'t> {
    /// The name of a value's type, including objects.
    pub(crate) fn type_of(&self, value: &Value) -> &'static str {
        match value {
            Value::Object(id) => match self.objects[id.0] {
                Object::Namespace(_) => "namespace",
                Object::Generator(_) => "generator",
                Object::Loop(_) => "loop",
                Object::Macro(..) => "macro",
                Object::Cycler(..) => "cycler",
                Object::Joiner(..) => "joiner",
            },
            _ => value.type_name(),
        }
    }

    /// `of.name`: an attribute, otherwise an item.
    pub(crate) fn attribute(&mut self, of: &Value, name: &Arc<str>) -> Result<Value> {
        if let Value::Undefined(undefined) = of {
            return Err(undefined.error());
        }
        if let Some(value) = self.own_attribute(of, name)? {
            return Ok(value);
        }
        self.meter.charge(name.len())?;
        let item = if let Value::Dict(dict) = of { dict.get(name) } else { None };
        Ok(item.cloned().unwrap_or_else(|| self.absent(of, Arc::clone(name))))
    }

    fn absent(&self, of: &Value, name: Arc<str>) -> Value {
        Value::Undefined(Undefined::Attribute(self.type_of(of), name))
    }

    /// An attribute that is not an item.
    pub(crate) fn own_attribute(&mut self, of: &Value, name: &Arc<str>) -> Result<Option<Value>> {
        match member(of, name) {
            Some(Member::Method) => {
                let method = Method { of: of.clone(), name: Arc::clone(name) };
                return Value::Method(Arc::new(method)).within_depth().map(Some);
            }
            Some(Member::Hidden) => return Ok(Some(Value::undefined("templates can't use this attribute"))),
            Some(Member::Unsupported) => {
                return Err(Error::unsupported(format!("`{name}` of a {}", of.type_name())));
            }
            None => {}
        }
        match (of, &**name) {
            (Value::Range(range), "start") => Ok(Some(Value::Int(range.start.into()))),
            (Value::Range(range), "stop") => Ok(Some(Value::Int(range.stop.into()))),
            (Value::Range(range), "step") => Ok(Some(Value::Int(range.step.into()))),
            (Value::Tuple(items), "grouper") if items.is_group => Ok(items.first().cloned()),
            (Value::Tuple(items), "list") if items.is_group => Ok(items.get(1).cloned()),
            (Value::Function(_) | Value::Method(_), name) if name.starts_with('_') => {
                Ok(Some(Value::undefined("templates can't use this attribute")))
            }
            (Value::Function(_) | Value::Method(_), _) => Err(Error::unsupported("an attribute of a function")),
            (Value::Object(id), _) => match &self.objects[id.0] {
                Object::Namespace(attributes) => {
                    self.meter.charge(16 * attributes.len())?;
                    let found = attributes.iter().find(|(key, _)| key.as_str() == Some(name));
                    Ok(found.map(|(_, value)| value.clone()))
                }
                Object::Loop(_) if matches!(&**name, "cycle" | "changed") => self.method_of(of, name).map(Some),
                Object::Loop(_) => self.loop_attribute(*id, name),
                Object::Cycler(items, at) => match &**name {
                    "current" => Ok(Some(items[*at].clone())),
                    "next" | "reset" => self.method_of(of, name).map(Some),
                    _ => Err(Error::unsupported(format!("`{name}` of a cycler"))),
                },
                Object::Macro(node, _) if &**name == "name" => {
                    Ok(Some(node.name.as_ref().map_or(Value::None, |name| Value::from(Arc::clone(name)))))
                }
                Object::Macro(..) | Object::Joiner(..) | Object::Generator(_) => {
                    Err(Error::unsupported(format!("`{name}` of a {}", self.type_of(of))))
                }
            },
            _ => Ok(None),
        }
    }

    fn method_of(&mut self, of: &Value, name: &Arc<str>) -> Result<Value> {
        self.meter.charge_items(2)?;
        Ok(Value::Method(Arc::new(Method { of: of.clone(), name: Arc::clone(name) })))
    }

    /// `of[key]`: an item, otherwise an attribute.
    pub(crate) fn item(&mut self, of: &Value, key: &Value) -> Result<Value> {
        let item = match of {
            Value::Undefined(undefined) => return Err(undefined.error()),
            Value::Dict(dict) => match dict.find(&mut self.meter, key) {
                Ok(item) => item.cloned(),
                Err(error) if error.kind == crate::ErrorKind::Raised => None,
                Err(error) => return Err(error),
            },
            _ => match key.as_int() {
                Some(index) => self.item_at(of, index)?,
                None => None,
            },
        };
        if let Some(item) = item {
            return Ok(item);
        }
        let name: Arc<str> = match key {
            Value::Text(text) => Arc::clone(&text.text),
            _ => self.repr_of(key).map(Arc::from).unwrap_or_else(|_| "item".into()),
        };
        if key.as_str().is_some()
            && let Some(value) = self.own_attribute(of, &name)?
        {
            return Ok(value);
        }
        Ok(self.absent(of, name))
    }

    /// The item at an index; a negative index counts from the end.
    fn item_at(&mut self, of: &Value, index: i128) -> Result<Option<Value>> {
        if !matches!(of, Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_)) {
            return Ok(None);
        }
        let len = self.len_of(of)? as i128;
        let index = if index < 0 { index + len } else { index };
        if !(0..len).contains(&index) {
            return Ok(None);
        }
        let index = index as usize;
        Ok(match of {
            Value::Text(text) => {
                self.meter.charge(text.text.len())?;
                text.text.chars().nth(index).map(|c| Value::like(text, c.to_string()))
            }
            Value::List(items) | Value::Tuple(items) => items.get(index).cloned(),
            Value::Range(range) => Some(Value::Int(range.at(index))),
            _ => None,
        })
    }

    /// `of[start:stop:step]`.
    pub(crate) fn slice(&mut self, of: &Value, bounds: &[Option<Value>; 3]) -> Result<Value> {
        match of {
            Value::Undefined(undefined) => return Err(undefined.error()),
            Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_) => {}
            _ => return Err(Error::raised(format!("a {} can't be sliced", self.type_of(of)))),
        }
        let mut numbers = [None, None, None];
        for (number, bound) in numbers.iter_mut().zip(bounds) {
            *number = bound.as_ref().filter(|bound| !bound.is_none()).map(integer).transpose()?;
        }
        let len = self.len_of(of)?;
        let positions = Positions::new(numbers, len)?;
        self.meter.charge_items(if of.as_str().is_some() { 0 } else { positions.count })?;
        Ok(match of {
            Value::Text(text) if positions.step == 1 => {
                let byte =
                    |position: usize| text.text.char_indices().nth(position).map_or(text.text.len(), |(at, _)| at);
                self.meter.charge(text.text.len())?;
                let (start, end) = (positions.start.max(0) as usize, positions.start.max(0) as usize + positions.count);
                Value::like(text, &text.text[byte(start)..byte(end)])
            }
            Value::Text(text) => {
                self.meter.charge(text.text.len().saturating_mul(5))?;
                let all: Vec<char> = text.text.chars().collect();
                Value::like(text, positions.iter().map(|at| all[at]).collect::<String>())
            }
            Value::List(items) => Value::list(positions.of(items)),
            Value::Tuple(items) => Value::tuple(positions.of(items)),
            Value::Range(range) => {
                let (start, step) = (i128::from(range.start), i128::from(range.step));
                let narrow =
                    |number: i128| i64::try_from(number).map_err(|_| Error::unsupported("a range beyond 64 bits"));
                Value::Range(Range {
                    start: narrow(start + step * positions.start)?,
                    stop: narrow(start + step * positions.stop)?,
                    step: narrow(step * positions.step)?,
                })
            }
            _ => Value::None,
        })
    }
}

/// The positions that a slice selects from a sequence: Python's `slice.indices`.
struct Positions {
    start: i128,
    stop: i128,
    step: i128,
    count: usize,
}

impl Positions {
    fn new([start, stop, step]: [Option<i128>; 3], len: usize) -> Result<Self> {
        let (len, step) = (len as i128, step.unwrap_or(1).clamp(-(i64::MAX as i128), i64::MAX as i128));
        if step == 0 {
            return Err(Error::raised("the step of a slice is 0"));
        }
        let (lowest, highest) = if step < 0 { (-1, len - 1) } else { (0, len) };
        let place = |bound: i128| if bound < 0 { (bound.saturating_add(len)).max(lowest) } else { bound.min(highest) };
        let start = start.map_or(if step < 0 { highest } else { lowest }, place);
        let stop = stop.map_or(if step < 0 { lowest } else { highest }, place);
        let span = if step < 0 { start - stop } else { stop - start };
        let count = if span <= 0 { 0 } else { ((span - 1) / step.abs() + 1) as usize };
        Ok(Self { start, stop, step, count })
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.count).map(|number| (self.start + self.step * number as i128) as usize)
    }

    fn of(&self, items: &Items) -> Vec<Value> {
        self.iter().map(|at| items[at].clone()).collect()
    }
}

impl Value {
    /// A text that is markup if `other` is.
    pub(crate) fn like(other: &crate::Text, text: impl Into<Arc<str>>) -> Self {
        Self::Text(crate::Text { text: text.into(), is_markup: other.is_markup })
    }
}
