//! Calls: global functions, macros, and other callable values.

use crate::arguments::{Arguments, integer, text};
use crate::ast::{ArgumentExprs, Call, Expr, Macro};
use crate::error::{Error, Result};
use crate::state::{Object, Render};
use crate::value::Dict;
use crate::value::Range;
use crate::{Function, Value};
use std::sync::Arc;

const EXCEPTION_CHARACTERS_MAX: usize = 2000;
/// Jinja2's sandbox refuses longer ranges.
const RANGE_LEN_MAX: usize = 100_000;

impl<'t> Render<'t> {
    /// Evaluates a call expression; `caller` is the body of a call block.
    pub(crate) fn call(&mut self, node: &'t Call, frame: usize, caller: Option<Value>) -> Result<Value> {
        let result = self.deeper(|render| match &node.of {
            Expr::Attribute(of, name) => {
                let of = render.evaluate(of, frame)?;
                if crate::attributes::is_method(&of, name) {
                    let arguments = render.arguments(&node.arguments, frame, caller)?;
                    return render.call_method(&of, name, arguments);
                }
                let function = render.attribute(&of, name)?;
                let arguments = render.arguments(&node.arguments, frame, caller)?;
                render.call_value(&function, arguments)
            }
            of => {
                let function = render.evaluate(of, frame)?;
                let arguments = render.arguments(&node.arguments, frame, caller)?;
                render.call_value(&function, arguments)
            }
        });
        result.map_err(|error| error.at(node.line))
    }

    pub(crate) fn arguments(
        &mut self,
        node: &'t ArgumentExprs,
        frame: usize,
        caller: Option<Value>,
    ) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        for expr in &node.positional {
            arguments.positional.push(self.evaluate(expr, frame)?);
        }
        for (name, expr) in &node.named {
            arguments.named.push((Arc::clone(name), self.evaluate(expr, frame)?));
        }
        if let Some(expr) = &node.all_positional {
            let all = self.evaluate(expr, frame)?;
            arguments.positional.extend(self.items(&all)?);
        }
        if let Some(expr) = &node.all_named {
            let Value::Dict(all) = self.evaluate(expr, frame)? else {
                return Err(Error::raised("`**` needs a dict"));
            };
            for (name, value) in all.iter() {
                let name = text(name)?;
                if arguments.named.iter().any(|(other, _)| **other == *name) {
                    return Err(Error::raised(format!("the argument `{name}` is given twice")));
                }
                self.meter.charge(64 + name.len() + 16 * arguments.named.len())?;
                arguments.named.push((name.into(), value.clone()));
            }
        }
        if let Some(caller) = caller {
            if arguments.named.iter().any(|(name, _)| &**name == "caller") {
                return Err(Error::raised("the argument `caller` is given twice"));
            }
            arguments.named.push(("caller".into(), caller));
        }
        self.meter.charge(arguments.cost())?;
        Ok(arguments)
    }

    pub(crate) fn call_value(&mut self, function: &Value, arguments: Arguments) -> Result<Value> {
        match function {
            Value::Function(function) => self.call_function(*function, arguments),
            Value::Method(method) => self.call_method(&method.of, &method.name, arguments),
            Value::Undefined(undefined) => Err(undefined.error()),
            Value::Object(id) => match &mut self.objects[id.0] {
                Object::Macro(node, frame) => {
                    let (node, frame) = (*node, *frame);
                    self.call_macro(node, frame, arguments).map(Value::from)
                }
                Object::Joiner(separator, is_used) => {
                    let result = if *is_used { separator.clone() } else { Value::from("") };
                    *is_used = true;
                    arguments.none("joiner")?;
                    Ok(result)
                }
                Object::Loop(_) => {
                    let [items] = arguments.bind("loop", ["iterable"], 1)?;
                    self.loop_call(*id, &items.unwrap_or(Value::None))
                }
                _ => Err(self.not_callable(function)),
            },
            _ => Err(self.not_callable(function)),
        }
    }

    fn not_callable(&self, value: &Value) -> Error {
        Error::raised(format!("a {} can't be called", self.type_of(value)))
    }

    pub(crate) fn macro_value(&mut self, node: &'t Macro, frame: usize) -> Result<Value> {
        self.capture_frame(frame);
        Ok(Value::Object(self.object(Object::Macro(node, frame))?))
    }

    /// Renders a macro to text. `frame` belongs to the function that defines it.
    pub(crate) fn call_macro(&mut self, node: &'t Macro, frame: usize, mut arguments: Arguments) -> Result<String> {
        let inner = self.open_frame(node.slots, frame)?;
        let count = arguments.positional.len().min(node.parameters.len());
        let others = arguments.positional.split_off(count);
        let mut positional = arguments.positional.drain(..);
        let mut values: Vec<Option<Value>> = Vec::new();
        for parameter in &node.parameters {
            values.push(positional.next().or_else(|| {
                let at = arguments.named.iter().position(|(name, _)| *name == parameter.name.name)?;
                Some(arguments.named.remove(at).1)
            }));
        }
        drop(positional);
        for (parameter, value) in node.parameters.iter().zip(values) {
            self.set_variable(parameter.name.slot, inner, value);
        }
        let set = |render: &mut Self, slot: Option<usize>, value: Value| {
            if let Some(index) = slot {
                render.set_variable(crate::ast::Slot { up: 0, index }, inner, Some(value));
            }
        };
        let name = || node.name.as_deref().unwrap_or("caller");
        if node.caller.is_some() {
            let caller = arguments.take_named("caller").filter(|caller| !caller.is_none());
            set(self, node.caller, caller.unwrap_or(Value::undefined("the macro was not called by a call block")));
        }
        if node.kwargs.is_none()
            && let Some((argument, _)) = arguments.named.first()
        {
            return Err(Error::raised(format!("macro `{}` takes no argument `{argument}`", name())));
        }
        let named = arguments.named.into_iter().map(|(name, value)| (Value::from(name), value)).collect();
        let kwargs = Value::Dict(Arc::new(Dict::new(&mut self.meter, named)?)).within_depth()?;
        set(self, node.kwargs, kwargs);
        if node.varargs.is_none() && !others.is_empty() {
            let most = node.parameters.len();
            return Err(Error::raised(format!("macro `{}` takes at most {most} arguments", name())));
        }
        set(self, node.varargs, Value::tuple(others).within_depth()?);
        self.enter(&node.scope, inner)?;
        for parameter in &node.parameters {
            if self.variable(parameter.name.slot, inner).is_none() {
                let value = match &parameter.default {
                    Some(default) => self.evaluate(default, inner)?,
                    None => Value::undefined("a parameter of a macro was not given"),
                };
                self.set_variable(parameter.name.slot, inner, Some(value));
            }
        }
        let (text, _) = self.captured(|render| render.run(&node.body, inner))?;
        self.close_frame(inner);
        Ok(text)
    }

    fn call_function(&mut self, function: Function, arguments: Arguments) -> Result<Value> {
        match function {
            Function::Range => range(arguments),
            Function::Dict => Ok(Value::Dict(Arc::new(Dict::new_of_arguments(self, arguments)?)).within_depth()?),
            Function::Namespace => {
                let attributes = Dict::new_of_arguments(self, arguments)?;
                if attributes.iter().any(|(name, _)| name.as_str().is_some_and(|name| name.starts_with('_'))) {
                    return Err(Error::raised("an attribute of a namespace begins with `_`"));
                }
                self.meter.charge_items(2 * attributes.len())?;
                let attributes = attributes.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
                Ok(Value::Object(self.object(Object::Namespace(attributes))?))
            }
            Function::Cycler => {
                let Arguments { positional, named } = arguments;
                if positional.is_empty() || !named.is_empty() {
                    return Err(Error::raised("`cycler` needs values, without names"));
                }
                Ok(Value::Object(self.object(Object::Cycler(positional, 0))?))
            }
            Function::Joiner => {
                let [separator] = arguments.bind("joiner", ["sep"], 0)?;
                let separator = separator.unwrap_or(Value::from(", "));
                Ok(Value::Object(self.object(Object::Joiner(separator, false))?))
            }
            Function::Lipsum => Err(Error::unsupported("`lipsum`")),
            Function::RaiseException => {
                let [message] = arguments.bind("raise_exception", ["message"], 1)?;
                let message = self.text_of(&message.unwrap_or(Value::None))?;
                Err(Error::raised(message.chars().take(EXCEPTION_CHARACTERS_MAX).collect::<String>()))
            }
            Function::StrftimeNow => {
                let [format] = arguments.bind("strftime_now", ["format"], 1)?;
                let format = format.unwrap_or(Value::None);
                let format = text(&format)?;
                // A two-character directive expands to at most the text of `%c`.
                self.meter.charge(format.len().saturating_mul(16))?;
                (self.host.strftime_now)(format).map(Value::from).map_err(Error::unsupported_as)
            }
        }
    }
}

impl Dict {
    /// Creates a dict like Python's `dict`: from a dict or pairs, and from named arguments.
    fn new_of_arguments(render: &mut Render<'_>, arguments: Arguments) -> Result<Self> {
        let Arguments { positional, named } = arguments;
        let mut pairs = Vec::new();
        match &positional[..] {
            [] => {}
            [Value::Dict(dict)] => pairs.extend(dict.iter().map(|(key, value)| (key.clone(), value.clone()))),
            [all] => {
                for pair in render.items(all)? {
                    let [key, value] = render.items(&pair)?.try_into().map_err(|items: Vec<Value>| {
                        Error::raised(format!("a dict needs pairs, not {} values", items.len()))
                    })?;
                    pairs.push((key, value));
                }
            }
            _ => return Err(Error::raised("`dict` takes one positional argument and named ones")),
        }
        pairs.extend(named.into_iter().map(|(name, value)| (Value::from(name), value)));
        Self::new(&mut render.meter, pairs)
    }
}

fn range(arguments: Arguments) -> Result<Value> {
    let [first, second, step] = arguments.bind("range", ["", "", ""], 1)?;
    let number = |value: &Value| {
        let number = integer(value)?;
        i64::try_from(number).map_err(|_| Error::unsupported("a range beyond 64 bits"))
    };
    let first = number(&first.unwrap_or(Value::None))?;
    let (start, stop) = match second {
        Some(stop) => (first, number(&stop)?),
        None => (0, first),
    };
    let step = step.as_ref().map_or(Ok(1), number)?;
    if step == 0 {
        return Err(Error::raised("the step of a range is 0"));
    }
    let range = Range { start, stop, step };
    if range.len() > RANGE_LEN_MAX {
        return Err(Error::raised(format!("a range has more than {RANGE_LEN_MAX} numbers")));
    }
    Ok(Value::Range(range))
}
