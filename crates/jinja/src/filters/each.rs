//! The per-item operations of `map`, `select` and similar filters, and their attribute lookup.

use super::filter_function;
use crate::Value;
use crate::arguments::{Arguments, given};
use crate::error::{Error, Meter, Result};
use crate::predicates::test_function;
use crate::state::{Apply, Each, Kept, Path, Render};

impl Each {
    pub(crate) fn of_map(meter: &mut Meter, mut arguments: Arguments) -> Result<Self> {
        if arguments.positional.is_empty()
            && let Some(attribute) = arguments.take_named("attribute")
        {
            let default = given(arguments.take_named("default"));
            arguments.none("map")?;
            let apply = default.map_or(Apply::Nothing, Apply::Default);
            return Ok(Self { attribute: Some(Path::of(meter, &attribute)?), apply });
        }
        if arguments.positional.is_empty() {
            return Err(Error::raised("`map` needs a filter or `attribute`"));
        }
        let name = arguments.positional.remove(0);
        let function = name.as_str().and_then(filter_function).ok_or_else(|| unknown("filter", &name))?;
        Ok(Self { attribute: None, apply: Apply::Filter(function, arguments) })
    }

    pub(crate) fn of_select(meter: &mut Meter, kept: Kept, mut arguments: Arguments) -> Result<Self> {
        let mut attribute = None;
        if kept.by_attribute {
            if arguments.positional.is_empty() {
                return Err(Error::raised("`selectattr` and `rejectattr` need an attribute"));
            }
            attribute = Some(Path::of(meter, &arguments.positional.remove(0))?);
        }
        if arguments.positional.is_empty() {
            return Ok(Self { attribute, apply: Apply::Nothing });
        }
        let name = arguments.positional.remove(0);
        let function = name.as_str().and_then(test_function).ok_or_else(|| unknown("test", &name))?;
        Ok(Self { attribute, apply: Apply::Test(function, arguments) })
    }

    pub(crate) fn apply(&self, render: &mut Render<'_>, item: Value) -> Result<Value> {
        render.meter.step()?;
        let item = match (&self.attribute, &self.apply) {
            (Some(path), Apply::Default(default)) => path.of_item(render, item, Some(default))?,
            (Some(path), _) => path.of_item(render, item, None)?,
            (None, _) => item,
        };
        match &self.apply {
            Apply::Nothing | Apply::Default(_) => Ok(item),
            Apply::Filter(function, arguments) => {
                render.meter.charge(arguments.cost())?;
                function(render, item, arguments.clone())
            }
            Apply::Test(function, arguments) => {
                render.meter.charge(arguments.cost())?;
                function(render, item, arguments.clone()).map(Value::Bool)
            }
        }
    }
}

fn unknown(what: &str, name: &Value) -> Error {
    match name {
        Value::Undefined(undefined) => undefined.error(),
        _ => Error::raised(format!("unknown {what} `{}`", name.as_str().unwrap_or(name.type_name()))),
    }
}

impl Path {
    pub(super) fn of(meter: &mut Meter, attribute: &Value) -> Result<Self> {
        // Each part becomes a text.
        meter.charge(attribute.as_str().map_or(0, |text| text.len().saturating_mul(64)))?;
        let part = |part: &str| {
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { part.parse().map_or(Value::from(part), Value::Int) } else { Value::from(part) }
        };
        Ok(Self(match attribute {
            Value::None => Vec::new(),
            Value::Text(text) => text.text.split('.').map(part).collect(),
            other => vec![other.clone()],
        }))
    }

    /// Several paths, separated by commas.
    pub(super) fn all_of(meter: &mut Meter, attribute: Option<&Value>) -> Result<Vec<Self>> {
        match attribute {
            Some(Value::Text(text)) => text.text.split(',').map(|path| Self::of(meter, &Value::from(path))).collect(),
            Some(attribute) => Ok(vec![Self::of(meter, attribute)?]),
            None => Ok(vec![Self(Vec::new())]),
        }
    }

    pub(super) fn of_item(&self, render: &mut Render<'_>, mut item: Value, default: Option<&Value>) -> Result<Value> {
        for part in &self.0 {
            render.meter.step()?;
            item = render.item(&item, part)?;
            if let (Value::Undefined(_), Some(default)) = (&item, default) {
                item = default.clone();
            }
        }
        Ok(item)
    }
}
