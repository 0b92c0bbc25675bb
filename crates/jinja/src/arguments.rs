//! The arguments of a call, and how functions take them.

use crate::Value;
use crate::error::{Error, Result};
use std::sync::Arc;

#[derive(Debug, Clone, Default)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
}

impl Arguments {
    /// The arguments for these parameters, of which the first `required` must be there. A parameter whose name is empty can't
    /// be named. Errors: one is missing, unknown, too many, or given twice.
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

    /// What it costs to hand them over: functions read their texts.
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

/// An integer argument. Errors: it is something else.
pub(crate) fn integer(value: &Value) -> Result<i128> {
    let wrong = || Error::raised(format!("expected an integer, not a {}", value.type_name()));
    value.as_int().ok_or_else(|| if let Value::Undefined(undefined) = value { undefined.error() } else { wrong() })
}

/// A text argument. Errors: it is something else.
pub(crate) fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| match value {
        Value::Undefined(undefined) => undefined.error(),
        _ => Error::raised(format!("expected a text, not a {}", value.type_name())),
    })
}

/// Without what is not given or is `none`.
pub(crate) fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_none())
}
