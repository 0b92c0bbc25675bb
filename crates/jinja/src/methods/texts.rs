//! Methods of texts.
//! Not here: methods that split or join texts (`parts.rs`).

use super::parts::{find, lines, part};
use crate::arguments::{Arguments, given, integer, text};
use crate::error::{Error, Result};
use crate::predicates::{has_lower_or_title, has_upper_or_title};
use crate::state::Render;
use crate::unicode::{is_alpha, is_alphanumeric, is_decimal, is_printable, is_space, title_of};
use crate::{Text, Value};

impl Render<'_> {
    pub(super) fn text_method(&mut self, of: &Text, name: &str, arguments: Arguments) -> Result<Value> {
        // A text is read at least once, and its copy may be longer.
        self.meter.charge(of.text.len().saturating_mul(2))?;
        let whole = &*of.text;
        let like = |text: String| Ok(Value::like(of, text));
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let [characters] = arguments.bind(name, [""], 0)?;
                let characters = given(characters);
                self.strip(of, name, characters.as_ref())
            }
            "split" | "rsplit" => {
                let [separator, most] = arguments.bind(name, ["sep", "maxsplit"], 0)?;
                let most = most.as_ref().map(integer).transpose()?.filter(|most| *most >= 0);
                let most = most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
                self.split(of, given(separator).as_ref(), most, name == "rsplit")
            }
            "splitlines" => {
                let [keeps_ends] = arguments.bind(name, ["keepends"], 0)?;
                self.pieces(of, lines(whole, keeps_ends.is_some_and(|keeps| keeps.is_true())))
            }
            "partition" | "rpartition" => {
                let [separator] = arguments.bind(name, [""], 1)?;
                self.partition(of, &separator.unwrap_or(Value::None), name == "rpartition")
            }
            "startswith" | "endswith" => {
                let [affix, start, stop] = arguments.bind(name, ["", "", ""], 1)?;
                let part = part(whole, given(start), given(stop))?;
                self.has_affix(part, &affix.unwrap_or(Value::None), name == "endswith").map(Value::Bool)
            }
            "find" | "rfind" | "index" | "rindex" | "count" => {
                let [wanted, start, stop] = arguments.bind(name, ["", "", ""], 1)?;
                find(whole, name, &wanted.unwrap_or(Value::None), given(start), given(stop))
            }
            "replace" => {
                let [old, new, count] = arguments.bind(name, ["", "", "count"], 2)?;
                let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
                self.only_plain(of, name)?;
                self.replace(whole, text(&old)?, text(&new)?, count.as_ref().map(integer).transpose()?.unwrap_or(-1))
            }
            "join" => {
                let [all] = arguments.bind(name, [""], 1)?;
                self.only_plain(of, name)?;
                let items = self.items(&all.unwrap_or(Value::None))?;
                for item in &items {
                    text(item)?;
                }
                self.join(whole, &items)
            }
            "format" => self.format(of, &arguments),
            "format_map" => {
                let [map] = arguments.bind(name, [""], 1)?;
                let Some(Value::Dict(dict)) = map else {
                    return Err(Error::unsupported("`format_map` with a value that is not a dict"));
                };
                let named = dict.iter().filter_map(|(key, value)| Some((key.as_str()?.into(), value.clone())));
                self.meter.charge_items(2 * dict.len())?;
                let arguments = Arguments { positional: Vec::new(), named: named.collect() };
                self.format(of, &arguments)
            }
            "center" | "ljust" | "rjust" => {
                let [width, fill] = arguments.bind(name, ["", ""], 1)?;
                let width = integer(&width.unwrap_or(Value::None))?;
                let fill = fill.unwrap_or(Value::from(" "));
                let mut fill = text(&fill)?.chars();
                let (Some(fill), None) = (fill.next(), fill.next()) else {
                    return Err(Error::raised(format!("`{name}` pads with a single character")));
                };
                self.justify(of, name, width, fill)
            }
            "zfill" => {
                let [width] = arguments.bind(name, [""], 1)?;
                let missing = self.missing(whole, integer(&width.unwrap_or(Value::None))?, '0')?;
                let (sign, digits) = whole.split_at(usize::from(whole.starts_with(['+', '-'])));
                like(format!("{sign}{}{digits}", "0".repeat(missing)))
            }
            "expandtabs" => {
                let [width] = arguments.bind(name, ["tabsize"], 0)?;
                self.expand_tabs(of, width.as_ref().map(integer).transpose()?.unwrap_or(8))
            }
            "removeprefix" | "removesuffix" => {
                let [affix] = arguments.bind(name, [""], 1)?;
                let affix = affix.unwrap_or(Value::None);
                let affix = text(&affix)?;
                let rest = if name == "removeprefix" { whole.strip_prefix(affix) } else { whole.strip_suffix(affix) };
                like(rest.unwrap_or(whole).to_owned())
            }
            _ => {
                arguments.none(name)?;
                self.plain_text_method(of, name)
            }
        }
    }

    /// A method without arguments.
    fn plain_text_method(&mut self, of: &Text, name: &str) -> Result<Value> {
        let whole = &*of.text;
        let like = |text: String| Ok(Value::like(of, text));
        let all = |is: fn(char) -> bool| Ok(Value::Bool(!whole.is_empty() && whole.chars().all(is)));
        match name {
            "upper" => like(whole.to_uppercase()),
            "lower" => like(whole.to_lowercase()),
            "capitalize" => capitalized(whole).map(|text| Value::like(of, text)),
            "title" => titled(whole).map(|text| Value::like(of, text)),
            "swapcase" | "casefold" if !whole.is_ascii() => Err(Error::unsupported(format!("`{name}` beyond ASCII"))),
            "swapcase" => like(
                whole
                    .chars()
                    .map(|c| if c.is_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() })
                    .collect(),
            ),
            "casefold" => like(whole.to_ascii_lowercase()),
            "isalpha" => all(is_alpha),
            "isalnum" => all(is_alphanumeric),
            "isdecimal" => all(is_decimal),
            "isdigit" | "isnumeric" | "isidentifier" if !whole.is_ascii() && !whole.chars().all(is_decimal) => {
                // Most letters and symbols are not digits; some are.
                if whole.chars().any(|c| c.is_ascii() && !c.is_ascii_digit()) && name != "isidentifier" {
                    return Ok(Value::Bool(false));
                }
                Err(Error::unsupported(format!("`{name}` beyond ASCII")))
            }
            "isdigit" | "isnumeric" => all(is_decimal),
            "isidentifier" => {
                let is_word = whole.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                Ok(Value::Bool(is_word && !whole.is_empty() && !whole.starts_with(|c: char| c.is_ascii_digit())))
            }
            "isascii" => Ok(Value::Bool(whole.is_ascii())),
            "isspace" => all(is_space),
            "isprintable" => Ok(Value::Bool(whole.chars().all(is_printable))),
            "islower" => Ok(Value::Bool(whole.chars().any(char::is_lowercase) && !has_upper_or_title(whole))),
            "isupper" => Ok(Value::Bool(whole.chars().any(char::is_uppercase) && !has_lower_or_title(whole))),
            "istitle" if !whole.is_ascii() => Err(Error::unsupported("`istitle` beyond ASCII")),
            "istitle" => {
                let has_letters = whole.chars().any(|c| c.is_ascii_alphabetic());
                Ok(Value::Bool(has_letters && titled(whole)? == whole))
            }
            _ => Err(Error::unsupported(format!("`{name}` of a text"))),
        }
    }

    /// These methods would have to escape the text that they add to markup.
    fn only_plain(&self, of: &Text, name: &str) -> Result<()> {
        if of.is_markup {
            return Err(Error::unsupported(format!("`{name}` of a text that `escape` or `safe` returned")));
        }
        Ok(())
    }
}

pub(crate) fn capitalized(whole: &str) -> Result<String> {
    let mut characters = whole.chars();
    let Some(first) = characters.next() else { return Ok(String::new()) };
    // Lower case depends on context: a sigma at the end of a word has another form.
    let lower = whole.to_lowercase();
    let rest = if first.to_lowercase().count() == 1 { lower.chars().skip(1).collect() } else { String::new() };
    if first.to_lowercase().count() != 1 {
        return Err(Error::unsupported(format!("the lower case of `{first}` in `capitalize`")));
    }
    Ok(title_of(first)? + &rest)
}

/// Capitalizes words. A word is a run of cased letters.
fn titled(whole: &str) -> Result<String> {
    let mut titled = String::with_capacity(whole.len());
    let mut is_in_word = false;
    for c in whole.chars() {
        if is_in_word {
            if c == 'Σ' {
                return Err(Error::unsupported("the letter `Σ` in `title`"));
            }
            titled.extend(c.to_lowercase());
        } else {
            titled += &title_of(c)?;
        }
        is_in_word = c.is_lowercase() || c.is_uppercase();
    }
    Ok(titled)
}
