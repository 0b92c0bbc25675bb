//! The filters after `|`.

mod each;
mod lists;
mod numbers;
mod texts;

use crate::Value;
use crate::arguments::Arguments;
use crate::error::{Error, Result};
use crate::state::{FilterFunction, Render};
use std::sync::Arc;

/// The filter with this name.
pub(crate) fn filter_function(name: &str) -> Option<FilterFunction> {
    let function: FilterFunction = match name {
        "abs" => numbers::abs,
        "attr" => attr,
        "batch" => lists::batch,
        "capitalize" => texts::capitalize,
        "center" => texts::center,
        "count" | "length" => length,
        "d" | "default" => default,
        "dictsort" => lists::dictsort,
        "e" | "escape" => texts::escape,
        "filesizeformat" => numbers::filesizeformat,
        "first" => lists::first,
        "float" => numbers::float,
        "forceescape" => texts::forceescape,
        "format" => texts::format,
        "groupby" => lists::groupby,
        "indent" => texts::indent,
        "int" => numbers::int,
        "items" => lists::items,
        "join" => lists::join,
        "last" => lists::last,
        "list" => lists::list,
        "lower" => texts::lower,
        "map" => lists::map,
        "max" => lists::max,
        "min" => lists::min,
        "pprint" => texts::pprint,
        "random" => |_, _, _| Err(Error::unsupported("`random`, whose text differs each time,")),
        "reject" => lists::reject,
        "rejectattr" => lists::rejectattr,
        "replace" => texts::replace,
        "reverse" => lists::reverse,
        "round" => numbers::round,
        "safe" => texts::safe,
        "select" => lists::select,
        "selectattr" => lists::selectattr,
        "slice" => lists::slice,
        "sort" => lists::sort,
        "string" => texts::string,
        "striptags" => texts::striptags,
        "sum" => lists::sum,
        "title" => texts::title,
        "tojson" => crate::json::tojson,
        "trim" => texts::trim,
        "truncate" => texts::truncate,
        "unique" => lists::unique,
        "upper" => texts::upper,
        "urlencode" => texts::urlencode,
        "urlize" => |_, _, _| Err(Error::unsupported("`urlize`")),
        "wordcount" => texts::wordcount,
        "wordwrap" => texts::wordwrap,
        "xmlattr" => texts::xmlattr,
        _ => return None,
    };
    Some(function)
}

fn length(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("length")?;
    render.len_of(&value).map(Value::from)
}

fn default(_: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [default, boolean] = arguments.bind("default", ["default_value", "boolean"], 0)?;
    let replaces_false = boolean.is_some_and(|boolean| boolean.is_true());
    let is_replaced = matches!(value, Value::Undefined(_)) || (replaces_false && !value.is_true());
    Ok(if is_replaced { default.unwrap_or(Value::from("")) } else { value })
}

fn attr(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [name] = arguments.bind("attr", ["name"], 1)?;
    let name = name.unwrap_or(Value::None);
    let name: Arc<str> = crate::arguments::text(&name)?.into();
    if let Value::Undefined(undefined) = &value {
        return Err(undefined.error());
    }
    Ok(render.own_attribute(&value, &name)?.unwrap_or(Value::undefined("the value has no such attribute")))
}
