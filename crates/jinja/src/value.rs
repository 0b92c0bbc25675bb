//! Values with Python's semantics. Cheap to clone, and usable from any thread.
//! Lists and dicts have values, and a dict compares its keys: these are parts of one recursive type, and so `dict.rs` and
//! `compare.rs` are parts of this module.
//! Not here: printing (`repr.rs`) and arithmetic (`arithmetic.rs`).

pub(crate) mod compare;
mod dict;

pub use dict::Dict;

use crate::error::{Error, Meter, Result};
use std::sync::Arc;

/// Maximum nesting of lists, tuples and dicts: JSON of a row nests up to 128 levels, and templates put it in further
/// lists.
const DEPTH_MAX: u32 = 160;

/// A value of a template.
#[derive(Debug, Clone)]
pub enum Value {
    /// The value of absent names and attributes.
    Undefined(Undefined),
    /// `none`.
    None,
    /// `true` or `false`.
    Bool(bool),
    /// An integer. Python's integers are unbounded; operations that overflow this type are errors.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// A string.
    Text(Text),
    /// A list.
    List(Arc<Items>),
    /// A tuple.
    Tuple(Arc<Items>),
    /// A dict.
    Dict(Arc<Dict>),
    /// `keys()`, `values()` or `items()` of a dict.
    View(View, Arc<Dict>),
    /// `range(…)`.
    Range(Range),
    /// A global function.
    Function(Function),
    /// A method of a value.
    Method(Arc<Method>),
    /// A mutable object of a render: a namespace, an iterator, a loop, a macro. Stored in the render.
    Object(ObjectId),
}

/// Why a value is undefined.
#[derive(Debug, Clone)]
pub enum Undefined {
    /// No variable has this name.
    Name(Arc<str>),
    /// A value of this type has no such attribute or item.
    Attribute(&'static str, Arc<str>),
    /// Another reason.
    Because(&'static str),
}

/// A string. Markup is text returned by the filters `escape` and `safe`.
#[derive(Debug, Clone)]
pub struct Text {
    pub(crate) text: Arc<str>,
    pub(crate) is_markup: bool,
}

/// The items of a list or tuple.
#[derive(Debug)]
pub struct Items {
    items: Vec<Value>,
    depth: u32,
    /// Whether it is a tuple from `groupby`, whose items are also accessible as `grouper` and `list`.
    pub(crate) is_group: bool,
}

/// The contents of a dict view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Its keys.
    Keys,
    /// Its values.
    Values,
    /// Pairs of both.
    Items,
}

/// The arguments of `range`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub(crate) start: i64,
    pub(crate) stop: i64,
    pub(crate) step: i64,
}

/// Global functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// `range`
    Range,
    /// `dict`
    Dict,
    /// `namespace`
    Namespace,
    /// `cycler`
    Cycler,
    /// `joiner`
    Joiner,
    /// `lipsum`
    Lipsum,
    /// `raise_exception`
    RaiseException,
    /// `strftime_now`
    StrftimeNow,
}

/// A method bound to a value.
#[derive(Debug)]
pub struct Method {
    pub(crate) of: Value,
    pub(crate) name: Arc<str>,
}

/// The index of an object in a render.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectId(pub(crate) usize);

impl Range {
    pub(crate) fn len(self) -> usize {
        let (start, stop, step) = (i128::from(self.start), i128::from(self.stop), i128::from(self.step));
        let span = if step > 0 { stop - start } else { start - stop };
        if span <= 0 { 0 } else { usize::try_from((span - 1) / step.abs() + 1).unwrap_or(usize::MAX) }
    }

    /// The item at a position below the length.
    pub(crate) fn at(self, position: usize) -> i128 {
        i128::from(self.start) + i128::from(self.step) * position as i128
    }

    /// The position of a number in it.
    pub(crate) fn position(self, number: i128) -> Option<usize> {
        let (distance, step) = (number - i128::from(self.start), i128::from(self.step));
        let position = usize::try_from(distance.checked_div(step)?).ok()?;
        (distance % step == 0 && position < self.len()).then_some(position)
    }
}

impl Items {
    pub(crate) fn new(items: Vec<Value>) -> Self {
        let depth = 1 + items.iter().map(Value::depth).max().unwrap_or(0);
        Self { items, depth, is_group: false }
    }
}

impl std::ops::Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.items
    }
}

/// The size of a value as if written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weight {
    /// Number of values, including itself.
    pub nodes: u64,
    /// Bytes of text.
    pub bytes: u64,
}

impl std::ops::Add for Weight {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nodes: self.nodes + other.nodes, bytes: self.bytes + other.bytes }
    }
}

impl Function {
    /// The function with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "range" => Self::Range,
            "dict" => Self::Dict,
            "namespace" => Self::Namespace,
            "cycler" => Self::Cycler,
            "joiner" => Self::Joiner,
            "lipsum" => Self::Lipsum,
            "raise_exception" => Self::RaiseException,
            "strftime_now" => Self::StrftimeNow,
            _ => return None,
        })
    }
}

impl Meter {
    /// Charges for values that are added to a list.
    pub(crate) fn charge_items(&mut self, items: usize) -> Result<()> {
        self.charge(items.saturating_mul(size_of::<Value>()))
    }
}

impl Value {
    /// A list of values.
    pub fn list(items: Vec<Self>) -> Self {
        Self::List(Arc::new(Items::new(items)))
    }

    pub(crate) fn tuple(items: Vec<Self>) -> Self {
        Self::Tuple(Arc::new(Items::new(items)))
    }

    /// A dict with text keys. The last of equal keys wins.
    pub fn dict<K: Into<Self>, V: Into<Self>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Dict(Arc::new(Dict::of_texts(pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect())))
    }

    pub(crate) fn markup(text: impl Into<Arc<str>>) -> Self {
        Self::Text(Text { text: text.into(), is_markup: true })
    }

    pub(crate) fn undefined(because: &'static str) -> Self {
        Self::Undefined(Undefined::Because(because))
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(&text.text) } else { None }
    }

    /// The items of a list.
    pub fn as_list(&self) -> Option<&[Self]> {
        if let Self::List(items) = self { Some(items) } else { None }
    }

    /// The dict, if it is one.
    pub fn as_dict(&self) -> Option<&Dict> {
        if let Self::Dict(dict) = self { Some(dict) } else { None }
    }

    /// The value of a key of a dict.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_dict()?.get(key)
    }

    /// Whether it is `none`.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// An integer; like in Python, a boolean counts as one.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match *self {
            Self::Int(number) => Some(number),
            Self::Bool(truth) => Some(i128::from(truth)),
            _ => None,
        }
    }

    /// Python's truth value.
    pub fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(truth) => *truth,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.text.is_empty(),
            Self::List(items) | Self::Tuple(items) => !items.is_empty(),
            Self::Dict(dict) | Self::View(_, dict) => dict.len() > 0,
            Self::Range(range) => range.len() > 0,
            Self::Function(_) | Self::Method(_) | Self::Object(_) => true,
        }
    }

    /// Its nesting depth. A leaf is 0.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::List(items) | Self::Tuple(items) => items.depth,
            Self::Dict(dict) => dict.depth(),
            Self::View(_, dict) => dict.depth() + 1,
            Self::Method(method) => method.of.depth() + 1,
            _ => 0,
        }
    }

    /// Returns the value, unless it is nested too deep.
    pub(crate) fn within_depth(self) -> Result<Self> {
        if self.depth() <= DEPTH_MAX {
            return Ok(self);
        }
        Err(Error::over_budget(format!("a value is nested deeper than {DEPTH_MAX} levels")))
    }

    /// Its size.
    pub fn weight(&self) -> Weight {
        let bytes = self.as_str().map_or(0, |text| text.len() as u64);
        let of_all = |items: &[Self]| items.iter().map(Self::weight).fold(Weight::default(), |a, b| a + b);
        let parts = match self {
            Self::List(items) | Self::Tuple(items) => of_all(items),
            Self::Dict(dict) => dict.iter().fold(Weight::default(), |all, (k, v)| all + k.weight() + v.weight()),
            _ => Weight::default(),
        };
        parts + Weight { nodes: 1, bytes }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Text { text: text.into(), is_markup: false })
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Text { text: text.into(), is_markup: false })
    }
}

impl From<Arc<str>> for Value {
    fn from(text: Arc<str>) -> Self {
        Self::Text(Text { text, is_markup: false })
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Int(number as i128)
    }
}

impl<'de> serde::Deserialize<'de> for Value {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

/// Builds values from JSON and similar formats, in text order.
struct Visitor;

impl<'de> serde::de::Visitor<'de> for Visitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::from(text))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Value::list(items))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs: Vec<(String, Value)> = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Value::dict(pairs))
    }
}
