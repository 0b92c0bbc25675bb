//! Python's methods of texts that the engine's own collection lacks, and its `%`.
//! Not here: what they cost (`budget.rs`).

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value, filters};

/// The result of a method; `None` if it is not one of these.
pub(super) fn method(text: &str, name: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    let wrong =
        || Error::new(ErrorKind::InvalidOperation, format!("{name} was called with other arguments than it takes"));
    let words: Option<Vec<&str>> = arguments.iter().map(Value::as_str).collect();
    let result = match (name, words.as_deref(), arguments) {
        ("removeprefix", Some([prefix]), _) => Value::from(text.strip_prefix(prefix).unwrap_or(text)),
        ("removesuffix", Some([suffix]), _) => Value::from(text.strip_suffix(suffix).unwrap_or(text)),
        ("partition", Some([at]), _) if !at.is_empty() => match text.split_once(at) {
            Some((before, after)) => list(&[before, at, after]),
            None => list(&[text, "", ""]),
        },
        ("rpartition", Some([at]), _) if !at.is_empty() => match text.rsplit_once(at) {
            Some((before, after)) => list(&[before, at, after]),
            None => list(&["", "", text]),
        },
        ("rsplit", Some([at]), _) if !at.is_empty() => list(&text.split(at).collect::<Vec<_>>()),
        ("rsplit", None, [at, most]) => match (at.as_str(), most.as_usize()) {
            (Some(at), Some(most)) if !at.is_empty() => {
                let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), at).collect();
                parts.reverse();
                list(&parts)
            }
            _ => return Some(Err(wrong())),
        },
        ("zfill", None, [width]) => match width.as_usize() {
            Some(width) => {
                let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
                let zeros = width.saturating_sub(text.chars().count());
                Value::from(format!("{sign}{}{digits}", "0".repeat(zeros)))
            }
            None => return Some(Err(wrong())),
        },
        ("removeprefix" | "removesuffix" | "partition" | "rpartition" | "rsplit" | "zfill", ..) => {
            return Some(Err(wrong()));
        }
        _ => return None,
    };
    Some(Ok(result))
}

fn list(texts: &[&str]) -> Value {
    texts.iter().map(|text| Value::from(*text)).collect()
}

/// What a text to the left of `%` formats: the items of a tuple or list, or one value.
pub(super) fn formatted(right: &Value) -> Result<Vec<Value>, Error> {
    if right.kind() == ValueKind::Seq { Ok(right.try_iter()?.collect()) } else { Ok(vec![right.clone()]) }
}

/// Python's `%`: formats a text, and gives the remainder with the sign of the divisor.
pub(super) fn modulo(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    if left.as_str().is_some() {
        let mut arguments = vec![left.clone()];
        arguments.extend(formatted(right)?);
        return Value::from_function(filters::format).call(state, &arguments);
    }
    let refused = || Error::new(ErrorKind::InvalidOperation, "`%` needs two numbers, the second not 0, or a text");
    if let (true, true, Some(left), Some(right)) =
        (left.is_integer(), right.is_integer(), left.as_i64(), right.as_i64())
    {
        let remainder = left.checked_rem(right).ok_or_else(refused)?;
        return Ok(Value::from(if remainder != 0 && (remainder < 0) != (right < 0) {
            remainder + right
        } else {
            remainder
        }));
    }
    let (Ok(left), Ok(right)) = (f64::try_from(left.clone()), f64::try_from(right.clone())) else {
        return Err(refused());
    };
    let remainder = left % right;
    match right {
        0.0 => Err(refused()),
        _ if remainder != 0.0 && (remainder < 0.0) != (right < 0.0) => Ok(Value::from(remainder + right)),
        _ => Ok(Value::from(remainder)),
    }
}
