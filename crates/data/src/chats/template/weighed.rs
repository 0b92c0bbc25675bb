//! Values that know how large they are and how deep they nest, so that what prints, compares or drops one is charged before
//! it walks it.
//!
//! Every list and map that a template handles is one, so lists do not nest deeper than `DEPTH_MAX`, nothing is iterated
//! lazily, and a list that repeats one list counts it each time.
//! Not here: what a size costs (`budget.rs`).

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Tuple};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt;
use std::sync::Arc;

/// JSON of a row nests 128 levels, and templates put it in lists of their own.
const DEPTH_MAX: u32 = 160;
/// What a value costs besides its text, in units of the engine: bytes.
const NODE_UNITS: u64 = 32;
/// The engine charges an instruction as this many bytes.
pub(super) const UNITS_PER_FUEL: u64 = 64;

/// How large a value is, as if it was written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Weight {
    pub depth: u32,
    /// Values, itself among them.
    pub nodes: u64,
    /// Of text.
    pub bytes: u64,
}

impl Weight {
    pub(super) fn units(self) -> u64 {
        self.nodes.saturating_mul(NODE_UNITS).saturating_add(self.bytes)
    }

    fn leaf(value: &Value) -> Self {
        let bytes = value.as_bytes().map_or(0, |bytes| bytes.len() as u64);
        Self { depth: 0, nodes: 1, bytes }
    }

    fn add(&mut self, part: Self) {
        self.depth = self.depth.max(part.depth + 1);
        self.nodes = self.nodes.saturating_add(part.nodes);
        self.bytes = self.bytes.saturating_add(part.bytes);
    }
}

/// A list, tuple or map with its weight.
struct Weighed {
    inner: DynObject,
    weight: Weight,
}

impl Object for Weighed {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.inner.repr()
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.inner.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.inner.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.inner.enumerate()
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.inner.enumerator_len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.render(f)
    }
}

impl fmt::Debug for Weighed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weighed").field("weight", &self.weight).finish_non_exhaustive()
    }
}

/// Consumes units of a render's budget. Errors: too little is left.
pub(super) fn charge(state: &State<'_, '_>, units: u64) -> Result<(), Error> {
    state.consume_fuel(units / UNITS_PER_FUEL)
}

/// The weight of a value that was made. Errors: it is a namespace, a loop or a macro.
pub(super) fn weight(value: &Value) -> Result<Weight, Error> {
    match value.as_object() {
        None => Ok(Weight::leaf(value)),
        Some(object) => object.downcast_ref::<Weighed>().map(|weighed| weighed.weight).ok_or_else(not_data),
    }
}

/// A value as templates handle it: lists and maps are weighed, and what is lazy is a list. What is no data stays as it is.
/// Errors: it nests too deep; without units for each item of a list that is walked.
pub(super) fn made(state: Option<&State<'_, '_>>, value: Value) -> Result<Value, Error> {
    if is_data(&value) { Ok(made_data(state, value, 0)?.0) } else { Ok(value) }
}

/// Whether a value is neither a namespace nor a loop, macro or function.
pub(super) fn is_data(value: &Value) -> bool {
    value.as_object().is_none_or(|object| match object.repr() {
        ObjectRepr::Seq | ObjectRepr::Iterable => true,
        // The engine's own maps. Its namespaces, loops and macros look like maps too.
        ObjectRepr::Map => ["Weighed", "IndexMap", "MergeDict"].iter().any(|name| object.type_name().contains(name)),
        _ => false,
    })
}

pub(super) fn not_data() -> Error {
    let message = "a namespace, loop, macro or function can't be printed, compared or kept in another value";
    Error::new(ErrorKind::InvalidOperation, message)
}

fn made_data(state: Option<&State<'_, '_>>, value: Value, level: u32) -> Result<(Value, Weight), Error> {
    let Some(object) = value.as_object() else {
        let weight = Weight::leaf(&value);
        return Ok((value, weight));
    };
    let mut weight = Weight { depth: 1, nodes: 1, bytes: 0 };
    if let Some(weighed) = object.downcast_ref::<Weighed>() {
        return within_depth(level + weighed.weight.depth).map(|()| (value.clone(), weighed.weight));
    } else if !is_data(&value) {
        return Err(not_data());
    }
    within_depth(level + 1)?;
    let mut part = |part: Value| -> Result<Value, Error> {
        if let Some(state) = state {
            charge(state, UNITS_PER_FUEL)?;
        }
        let (part, weight_of_part) = made_data(state, part, level + 1)?;
        weight.add(weight_of_part);
        Ok(part)
    };
    let inner = if object.repr() == ObjectRepr::Map {
        let mut pairs = Vec::new();
        for (key, item) in object.try_iter_pairs().into_iter().flatten() {
            pairs.push((part(key)?, part(item)?));
        }
        Value::from_pairs(pairs)
    } else {
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            items.push(part(item?)?);
        }
        let is_tuple = object.downcast_ref::<Tuple>().is_some();
        if is_tuple { Value::from(Tuple::from(items)) } else { Value::from(items) }
    };
    within_depth(level + weight.depth)?;
    let inner = inner.as_object().expect("a list or map").clone();
    Ok((Value::from_object(Weighed { inner, weight }), weight))
}

fn within_depth(depth: u32) -> Result<(), Error> {
    if depth <= DEPTH_MAX {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("a value nests deeper than {DEPTH_MAX} levels")))
}
