//! Filters of lists and dicts.

use crate::arguments::{Arguments, given, integer, text};
use crate::ast::BinaryOperator;
use crate::error::{Error, Meter, Result};
use crate::state::{Generator, Iter, Kept, Path, Render};
use crate::value::compare::{equal, hash, order};
use crate::{Items, Value};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

/// Lower-cases texts, unless the comparison is case-sensitive.
fn folded(render: &mut Render<'_>, value: Value, is_case_sensitive: bool) -> Result<Value> {
    match &value {
        Value::Text(text) if !is_case_sensitive => {
            render.meter.charge(text.text.len() + 64)?;
            Ok(Value::from(text.text.to_lowercase()))
        }
        _ => Ok(value),
    }
}

fn is_true(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}

pub(super) fn map(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    render.generator(Generator::Map(value, arguments))
}

pub(super) fn select(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    render.generator(Generator::Select(Kept { if_true: true, by_attribute: false }, value, arguments))
}

pub(super) fn reject(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    render.generator(Generator::Select(Kept { if_true: false, by_attribute: false }, value, arguments))
}

pub(super) fn selectattr(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    render.generator(Generator::Select(Kept { if_true: true, by_attribute: true }, value, arguments))
}

pub(super) fn rejectattr(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    render.generator(Generator::Select(Kept { if_true: false, by_attribute: true }, value, arguments))
}

pub(super) fn items(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("items")?;
    let whole = |render: &mut Render<'_>, value: Value, _: Arguments| match &value {
        Value::Undefined(_) => Ok(Vec::new()),
        Value::Dict(dict) => render.items(&Value::View(crate::View::Items, Arc::clone(dict))),
        _ => Err(Error::raised(format!("`items` needs a dict, not a {}", render.type_of(&value)))),
    };
    render.generator(Generator::Whole(whole, value, Arguments::default()))
}

pub(super) fn list(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("list")?;
    render.items(&value).map(Value::list)?.within_depth()
}

pub(super) fn first(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("first")?;
    let mut iter = render.iter(&value)?;
    Ok(render.next(&mut iter)?.unwrap_or(Value::undefined("the sequence has no first item")))
}

pub(super) fn last(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("last")?;
    if let Value::List(items) | Value::Tuple(items) = &value {
        return Ok(items.last().cloned().unwrap_or(Value::undefined("the sequence has no last item")));
    }
    let mut items = render.reversed(&value)?;
    Ok(if items.is_empty() { Value::undefined("the sequence has no last item") } else { items.swap_remove(0) })
}

pub(super) fn reverse(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("reverse")?;
    match &value {
        Value::Text(_) => render.slice(&value, &[None, None, Some(Value::Int(-1))]),
        // An iterator is read into a list first.
        Value::Object(_) => {
            let mut items = render.items(&value)?;
            items.reverse();
            Value::list(items).within_depth()
        }
        _ => {
            let items = render.reversed(&value)?;
            render.generator(Generator::Iter(Iter::Values(items.into_iter())))
        }
    }
}

pub(super) fn join(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [separator, attribute] = arguments.bind("join", ["d", "attribute"], 0)?;
    let mut items = render.items(&value)?;
    if let Some(attribute) = given(attribute) {
        let path = Path::of(&mut render.meter, &attribute)?;
        for item in &mut items {
            *item = path.of_item(render, item.clone(), None)?;
        }
    }
    let separator = render.text_of(&separator.unwrap_or(Value::from("")))?;
    render.join(&separator, &items)
}

pub(super) fn sum(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [attribute, start] = arguments.bind("sum", ["attribute", "start"], 0)?;
    let path = given(attribute).map(|attribute| Path::of(&mut render.meter, &attribute)).transpose()?;
    let mut sum = start.unwrap_or(Value::Int(0));
    if sum.as_str().is_some() {
        return Err(Error::raised("`sum` does not support texts"));
    }
    // Since 3.12, Python adds floats with compensation (Neumaier 1974).
    let (mut compensated, mut compensation) = (0.0, 0.0);
    for item in render.items(&value)? {
        let item = match &path {
            Some(path) => path.of_item(render, item, None)?,
            None => item,
        };
        if let Value::Float(number) = item {
            let next: f64 = compensated + number;
            let (large, small) =
                if compensated.abs() >= number.abs() { (compensated, number) } else { (number, compensated) };
            compensation += (large - next) + small;
            compensated = next;
        }
        sum = render.binary(BinaryOperator::Add, &sum, &item)?;
    }
    if compensation != 0.0 && compensated + compensation != compensated {
        return Err(Error::unsupported("a sum of floats that is not exact, on which versions of Python differ,"));
    }
    Ok(sum)
}

pub(super) fn sort(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let parameters = ["reverse", "case_sensitive", "attribute"];
    let [reverse, case, attribute] = arguments.bind("sort", parameters, 0)?;
    let paths = Path::all_of(&mut render.meter, given(attribute).as_ref())?;
    let mut keyed = Vec::new();
    for item in render.items(&value)? {
        let mut keys = Vec::new();
        for path in &paths {
            let key = path.of_item(render, item.clone(), None)?;
            keys.push(folded(render, key, is_true(&case))?);
        }
        keyed.push((Value::list(keys), item));
    }
    crate::value::compare::sort(&mut render.meter, &mut keyed, is_true(&reverse))?;
    Ok(Value::list(keyed.into_iter().map(|(_, item)| item).collect()))
}

pub(super) fn dictsort(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [case, by, reverse] = arguments.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let by_value = match by.as_ref().map(text).transpose()? {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => return Err(Error::raised("`dictsort` sorts by `key` or `value`")),
    };
    let Value::Dict(dict) = &value else {
        return Err(match &value {
            Value::Undefined(undefined) => undefined.error(),
            _ => Error::raised(format!("`dictsort` needs a dict, not a {}", render.type_of(&value))),
        });
    };
    let mut keyed = Vec::new();
    for (key, item) in dict.iter() {
        render.meter.charge_items(4)?;
        let sorted_by = if by_value { item.clone() } else { key.clone() };
        let sorted_by = folded(render, sorted_by, is_true(&case))?;
        keyed.push((sorted_by, Value::tuple(vec![key.clone(), item.clone()])));
    }
    crate::value::compare::sort(&mut render.meter, &mut keyed, is_true(&reverse))?;
    Ok(Value::list(keyed.into_iter().map(|(_, pair)| pair).collect()))
}

pub(super) fn min(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    extreme(render, value, arguments, Ordering::Less)
}

pub(super) fn max(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    extreme(render, value, arguments, Ordering::Greater)
}

fn extreme(render: &mut Render<'_>, value: Value, arguments: Arguments, wanted: Ordering) -> Result<Value> {
    let [case, attribute] = arguments.bind("min", ["case_sensitive", "attribute"], 0)?;
    let path = Path::of(&mut render.meter, &attribute.unwrap_or(Value::None))?;
    let mut best: Option<(Value, Value)> = None;
    for item in render.items(&value)? {
        let key = path.of_item(render, item.clone(), None)?;
        let key = folded(render, key, is_true(&case))?;
        let is_better = match &best {
            Some((best, _)) => {
                order(&mut render.meter, &key, best, if wanted == Ordering::Less { "<" } else { ">" })? == Some(wanted)
            }
            None => true,
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::undefined("the sequence is empty"), |(_, item)| item))
}

/// The keys seen so far.
#[derive(Default)]
struct Seen(HashMap<u64, Vec<Value>>);

impl Seen {
    /// Adds a key; false if it was seen before.
    fn insert(&mut self, meter: &mut Meter, key: Value) -> Result<bool> {
        meter.charge_items(4)?;
        let same_hash = self.0.entry(hash(meter, &key)?).or_default();
        for other in same_hash.iter() {
            if equal(meter, other, &key)? {
                return Ok(false);
            }
        }
        same_hash.push(key);
        Ok(true)
    }
}

pub(super) fn unique(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let whole = |render: &mut Render<'_>, value: Value, arguments: Arguments| {
        let [case, attribute] = arguments.bind("unique", ["case_sensitive", "attribute"], 0)?;
        let path = Path::of(&mut render.meter, &attribute.unwrap_or(Value::None))?;
        let (mut seen, mut items) = (Seen::default(), Vec::new());
        for item in render.items(&value)? {
            let key = path.of_item(render, item.clone(), None)?;
            let key = folded(render, key, is_true(&case))?;
            if seen.insert(&mut render.meter, key)? {
                items.push(item);
            }
        }
        Ok(items)
    };
    arguments.clone().bind("unique", ["case_sensitive", "attribute"], 0)?;
    render.generator(Generator::Whole(whole, value, arguments))
}

pub(super) fn batch(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let whole = |render: &mut Render<'_>, value: Value, arguments: Arguments| {
        let [len, fill] = arguments.bind("batch", ["linecount", "fill_with"], 1)?;
        let len = len.unwrap_or(Value::None);
        let items = render.items(&value)?;
        // Python compares the length with it, so a float or a text yields a single batch.
        let Some(len) = len.as_int() else {
            return Err(Error::unsupported("`batch` with a size that is not an integer"));
        };
        if items.is_empty() {
            return Ok(Vec::new());
        }
        if len == 0 {
            return Err(Error::unsupported("`batch` with size 0"));
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut batches: Vec<Vec<Value>> = items.chunks(len).map(<[Value]>::to_vec).collect();
        if let (Some(fill), Some(last)) = (given(fill), batches.last_mut()) {
            let missing = len.saturating_sub(last.len());
            render.meter.charge_items(missing)?;
            last.extend(std::iter::repeat_n(fill, missing));
        }
        render.meter.charge_items(3 * batches.len())?;
        batches.into_iter().map(|batch| Value::list(batch).within_depth()).collect()
    };
    arguments.clone().bind("batch", ["linecount", "fill_with"], 1)?;
    render.generator(Generator::Whole(whole, value, arguments))
}

pub(super) fn slice(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let whole = |render: &mut Render<'_>, value: Value, arguments: Arguments| {
        let [count, fill] = arguments.bind("slice", ["slices", "fill_with"], 1)?;
        let count = integer(&count.unwrap_or(Value::None))?;
        let items = render.items(&value)?;
        if count == 0 {
            return Err(Error::raised("division by zero"));
        }
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        render.meter.charge_items(count.saturating_mul(4))?;
        let (each, longer) = (items.len().checked_div(count).unwrap_or(0), items.len().checked_rem(count).unwrap_or(0));
        let (fill, mut slices, mut rest) = (given(fill), Vec::new(), &items[..]);
        for number in 0..count {
            let (slice, after) = rest.split_at(each + usize::from(number < longer));
            let mut slice = slice.to_vec();
            if number >= longer {
                slice.extend(fill.clone());
            }
            slices.push(Value::list(slice).within_depth()?);
            rest = after;
        }
        Ok(slices)
    };
    arguments.clone().bind("slice", ["slices", "fill_with"], 1)?;
    render.generator(Generator::Whole(whole, value, arguments))
}

pub(super) fn groupby(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [attribute, default, case] = arguments.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let (path, default) = (Path::of(&mut render.meter, &attribute.unwrap_or(Value::None))?, given(default));
    let mut keyed = Vec::new();
    for item in render.items(&value)? {
        let key = path.of_item(render, item.clone(), default.as_ref())?;
        keyed.push((folded(render, key, is_true(&case))?, item));
    }
    crate::value::compare::sort(&mut render.meter, &mut keyed, false)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in keyed {
        match groups.last_mut() {
            Some((last, items)) if equal(&mut render.meter, last, &key)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut tuples = Vec::new();
    for (_, items) in groups {
        // The key as it is in the first item.
        let key = path.of_item(render, items[0].clone(), default.as_ref())?;
        let mut tuple = Items::new(vec![key, Value::list(items)]);
        tuple.is_group = true;
        tuples.push(Value::Tuple(Arc::new(tuple)));
    }
    Value::list(tuples).within_depth()
}
