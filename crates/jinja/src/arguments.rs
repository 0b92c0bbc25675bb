//! The arguments of a call, and binding them to parameters.

use crate::Value;
use crate::error::{Error, Result};
use std::sync::Arc;

#[derive(Debug, Clone, Default)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
}

impl Arguments {
    /// Binds the arguments to these parameters, of which the first `required` are mandatory. A parameter with an empty
    /// name is positional only. Errors: an argument is missing, unknown, surplus, or repeated.
    pub(crate) fn bind<const N: usize>(
        self,
        function: &str,
        parameters: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        let problem = |what: String| Err(Error::raised(format!("`{function}` {what}")));
        if self.positional.len() > N {
            return problem(format!("takes at most {N} arguments, not {}", self.positional.len()));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match parameters.iter().position(|parameter| **parameter == *name && !name.is_empty()) {
                None => return problem(format!("takes no argument `{name}`")),
                Some(at) if bound[at].is_some() => return problem(format!("got the argument `{name}` twice")),
                Some(at) => bound[at] = Some(value),
            }
        }
        match bound.iter().take(required).position(Option::is_none) {
            Some(at) if parameters[at].is_empty() => problem(format!("needs {required} arguments")),
            Some(at) => problem(format!("needs the argument `{}`", parameters[at])),
            None => Ok(bound),
        }
    }

    /// Errors: there are arguments.
    pub(crate) fn none(self, function: &str) -> Result<()> {
        self.bind::<0>(function, [], 0).map(|_| ())
    }

    /// The cost of passing them: functions read their texts.
    pub(crate) fn cost(&self) -> usize {
        let values = self.positional.iter().chain(self.named.iter().map(|(_, value)| value));
        values.map(|value| 64 + value.as_str().map_or(0, str::len)).sum()
    }

    /// Takes an argument by its name.
    pub(crate) fn take_named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(other, _)| **other == *name)?;
        Some(self.named.remove(at).1)
    }
}

/// An integer argument. Errors: it has another type.
pub(crate) fn integer(value: &Value) -> Result<i128> {
    let wrong = || Error::raised(format!("expected an integer, not a {}", value.type_name()));
    value.as_int().ok_or_else(|| if let Value::Undefined(undefined) = value { undefined.error() } else { wrong() })
}

/// A text argument. Errors: it has another type.
pub(crate) fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| match value {
        Value::Undefined(undefined) => undefined.error(),
        _ => Error::raised(format!("expected a text, not a {}", value.type_name())),
    })
}

/// Treats `none` like an absent argument.
pub(crate) fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_none())
}
