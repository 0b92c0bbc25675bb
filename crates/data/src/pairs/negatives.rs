//! Finds the hard negatives of an encoder's samples by the first row of the data.

use super::rows::field_names;
use super::{Column, PairColumns};
use crate::{DataError, Sources};

/// The field of one negative.
const NEGATIVE: &str = "negative";

/// More negatives than this are not looked for; each is one more text of every sample.
const NEGATIVES_MAX: usize = 64;

impl PairColumns {
    /// The same columns with those of the negatives, unless some are given: `negative`, or `negative_1`, `negative_2`
    /// and so on, as far as the first row of the first file has them. Without any, rows that have one are refused.
    /// Errors: the file can't be read.
    pub fn with_negatives_of(mut self, sources: &Sources) -> Result<Self, DataError> {
        if !self.negatives.is_empty() {
            return Ok(self);
        }
        let names = field_names(&sources.files[0], sources.line_bytes_max)?;
        let has = |name: &String| names.contains(name);
        let numbered = (1..=NEGATIVES_MAX).map(|number| format!("{NEGATIVE}_{number}")).take_while(has);
        let found = [NEGATIVE.to_owned()].into_iter().filter(has).chain(numbered).collect::<Vec<_>>();
        if found.is_empty() {
            self.unexpected = vec![NEGATIVE.to_owned(), format!("{NEGATIVE}_1")];
        }
        self.negatives = found.into_iter().map(Column::Name).collect();
        Ok(self)
    }
}
