//! The columns of a table, or the fields of JSON lines, that hold the pairs.
//!
//! A .csv or .tsv has a header if either column is given by name, or if the first row has the names `source` and
//! `target`. Otherwise, with columns given by number (1 and 2 by default), the first row is a pair. JSON lines only
//! have field names: `source` and `target`, or the given text.

use crate::DataError;
use std::fmt;
use std::str::FromStr;

/// A column by its number, counted from 1, or by its name in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// Counted from 1.
    Number(usize),
    /// The name in the header; for JSON lines, the field.
    Name(String),
}

/// Parses digits as a number, other text as a name. Errors: `BadColumn` for 0, for a number that is too large, and for
/// empty text.
impl FromStr for Column {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let bad = || DataError::BadColumn { text: text.to_owned() };
        if text.is_empty() {
            return Err(bad());
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self::Name(text.to_owned()));
        }
        text.parse().ok().filter(|&number| number > 0).map(Self::Number).ok_or_else(bad)
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.pad(name),
        }
    }
}

/// The position of the pairs in a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PairColumns {
    /// The source; `None` means the first column, or the field `source`.
    pub source: Option<Column>,
    /// The target; `None` means the second column, or the field `target`.
    pub target: Option<Column>,
    /// Hard negatives of an encoder's sample, each a text of its own.
    pub negatives: Vec<Column>,
    /// Fields of JSON lines that no row may have, since their texts would be ignored.
    pub unexpected: Vec<String>,
    /// Prepended verbatim to each source: "summarize: ".
    pub prefix: String,
}

impl PairColumns {
    /// Texts of a sample.
    pub(super) fn sides(&self) -> usize {
        2 + self.negatives.len()
    }

    /// The columns of the source and of the target.
    pub(super) fn pair_in_table(&self) -> [Column; 2] {
        let or = |column: &Option<Column>, number| column.clone().unwrap_or(Column::Number(number));
        [or(&self.source, 1), or(&self.target, 2)]
    }

    /// The columns of all texts of a sample.
    pub(super) fn in_table(&self) -> Vec<Column> {
        self.pair_in_table().into_iter().chain(self.negatives.iter().cloned()).collect()
    }

    fn pair_in_json(&self) -> [String; 2] {
        let or = |column: &Option<Column>, name: &str| column.as_ref().map_or(name.to_owned(), Column::to_string);
        [or(&self.source, "source"), or(&self.target, "target")]
    }

    /// The fields of all texts of a sample.
    pub(super) fn in_json(&self) -> Vec<String> {
        self.pair_in_json().into_iter().chain(self.negatives.iter().map(Column::to_string)).collect()
    }

    /// Identifies everything that changes the pairs read from the same file, for the key of their cache.
    pub(super) fn identity(&self) -> String {
        let negatives = match self.negatives.as_slice() {
            [] => String::new(),
            negatives => format!(" with {negatives:?}"),
        };
        let (table, json) = (self.pair_in_table(), self.pair_in_json());
        format!("pairs without headers {table:?} {json:?} {:?}{negatives}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_numbers_from_one() {
        assert_eq!("12".parse::<Column>().unwrap(), Column::Number(12));
        assert_eq!("text2".parse::<Column>().unwrap(), Column::Name("text2".into()));
        for bad in ["", "0", "99999999999999999999999"] {
            assert!(matches!(bad.parse::<Column>(), Err(DataError::BadColumn { .. })), "{bad}");
        }
    }
}
