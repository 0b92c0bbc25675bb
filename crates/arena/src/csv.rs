//! Reads and writes the lifetime CSV of the public benchmark (google/minimalloc).
//!
//! ```text
//!   id,lower,upper,size            id,lower,upper,size,offset
//!   b1,0,3,4              solve    b1,0,3,4,8
//!   b2,3,9,4             ------>   b2,3,9,4,8
//!   b3,0,9,8                       b3,0,9,8,0
//! ```
//!
//! Lifetimes are half-open. Columns may be in any order; columns with other names are ignored. The format has no
//! quoting, so a quote is an error. This is not a general CSV reader. The errors are in `csv_error.rs`.

use super::csv_error::{CsvError, Place};
use super::problem::{Buffer, MAX_TOTAL_BYTES, Problem, Solution};
use std::collections::HashMap;
use std::fmt::Write;

/// The columns that a file must have, in the order in which they are written.
const COLUMNS: [&str; 4] = ["id", "lower", "upper", "size"];

/// A problem as read from a CSV, with the names that its file gives to the buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvProblem {
    /// `ids[i]` names `problem.buffers[i]`.
    pub ids: Vec<String>,
    /// The buffers in the order of their lines. The format has no alignment, so it is 1.
    pub problem: Problem,
}

/// Reads a lifetime CSV. Accepts LF and CRLF, a byte order mark, blanks around fields and empty lines at the end.
/// Errors: the first `CsvError` from the top, with its line and column.
pub fn read_csv(text: &str) -> Result<CsvProblem, CsvError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim_end();
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let header = match lines.next() {
        Some((_, header)) if !text.is_empty() => Header::read(header)?,
        _ => return Err(CsvError::Empty),
    };

    let mut csv = CsvProblem { ids: Vec::new(), problem: Problem { buffers: Vec::new(), alignment: 1 } };
    let mut line_of_id: HashMap<&str, usize> = HashMap::new();
    let mut total = 0u64;
    for (line, text) in lines {
        let row = Row::read(&header, line, text)?;
        let id = row.field(0);
        if let Some(first_line) = line_of_id.insert(id, line) {
            return Err(CsvError::DuplicateId { place: row.place(0), id: id.to_owned(), first_line });
        }
        let (lower, upper, size) = (row.number(1)?, row.number(2)?, row.number(3)?);
        if upper < lower {
            return Err(CsvError::Reversed { place: row.place(2), lower, upper });
        }
        total = match total.checked_add(size) {
            Some(total) if total <= MAX_TOTAL_BYTES => total,
            _ => return Err(CsvError::TotalTooLarge { place: row.place(3), size, before: total }),
        };
        csv.ids.push(id.to_owned());
        csv.problem.buffers.push(Buffer::new(lower, upper, size));
    }
    Ok(csv)
}

/// Writes a lifetime CSV: `id,lower,upper,size`, and `offset` if there is a solution.
///
/// Panics unless the numbers of ids, buffers and offsets are equal.
/// Errors: `UnwritableId` for an id that `read_csv` would not read back unchanged.
pub fn write_csv(csv: &CsvProblem, solution: Option<&Solution>) -> Result<String, CsvError> {
    let CsvProblem { ids, problem } = csv;
    assert_eq!(ids.len(), problem.buffers.len(), "one id for each buffer");
    if let Some(solution) = solution {
        assert_eq!(solution.offsets.len(), problem.buffers.len(), "one offset for each buffer");
    }

    let mut text = COLUMNS.join(",");
    text.push_str(if solution.is_some() { ",offset\n" } else { "\n" });
    for (i, (id, buffer)) in ids.iter().zip(&problem.buffers).enumerate() {
        if id.trim() != id || id.contains([',', '"', '\n']) {
            return Err(CsvError::UnwritableId { line: i + 2, id: id.clone() });
        }
        let lifespan = buffer.lifespan;
        write!(text, "{id},{},{},{}", lifespan.lower, lifespan.upper, buffer.size)
            .expect("writing to a String cannot fail");
        if let Some(solution) = solution {
            write!(text, ",{}", solution.offsets[i]).expect("writing to a String cannot fail");
        }
        text.push('\n');
    }
    Ok(text)
}

/// The position of each of `COLUMNS` in a line.
struct Header {
    at: [usize; COLUMNS.len()],
    width: usize,
}

impl Header {
    fn read(text: &str) -> Result<Self, CsvError> {
        let names = split(1, text, |_| String::new())?;
        let mut at = [usize::MAX; COLUMNS.len()];
        for (slot, wanted) in at.iter_mut().zip(COLUMNS) {
            let mut places = (0..names.len()).filter(|&i| names[i] == wanted);
            *slot = places
                .next()
                .ok_or_else(|| CsvError::MissingColumn { missing: wanted.to_owned(), found: text.trim().to_owned() })?;
            if let Some(second) = places.next() {
                let place = Place { line: 1, column: second + 1, name: wanted.to_owned() };
                return Err(CsvError::DuplicateColumn { place, first_column: *slot + 1 });
            }
        }
        Ok(Self { at, width: names.len() })
    }

    /// The name of the column at `index`; empty if the reader ignores that column.
    fn name(&self, index: usize) -> String {
        let known = self.at.iter().position(|&at| at == index);
        known.map(|c| COLUMNS[c].to_owned()).unwrap_or_default()
    }
}

/// The fields of one line, indexed as `COLUMNS`.
struct Row<'a> {
    header: &'a Header,
    line: usize,
    fields: Vec<&'a str>,
}

impl<'a> Row<'a> {
    fn read(header: &'a Header, line: usize, text: &'a str) -> Result<Self, CsvError> {
        let fields = split(line, text, |index| header.name(index))?;
        if fields.len() != header.width {
            let place = Place { line, column: fields.len().min(header.width + 1), name: String::new() };
            return Err(CsvError::FieldCount { place, found: fields.len(), expected: header.width });
        }
        Ok(Self { header, line, fields })
    }

    fn place(&self, column: usize) -> Place {
        Place { line: self.line, column: self.header.at[column] + 1, name: COLUMNS[column].to_owned() }
    }

    fn field(&self, column: usize) -> &'a str {
        self.fields[self.header.at[column]]
    }

    fn number(&self, column: usize) -> Result<u64, CsvError> {
        let text = self.field(column);
        let place = self.place(column);
        let found = text.to_owned();
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(CsvError::NotANumber { place, found });
        }
        if digits.len() < text.len() {
            return Err(CsvError::Negative { place, found });
        }
        digits.parse().map_err(|_| CsvError::TooLarge { place, found })
    }
}

/// Splits a line into fields and trims them. `name` gives the name of a column for errors.
fn split(line: usize, text: &str, name: impl Fn(usize) -> String) -> Result<Vec<&str>, CsvError> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    match fields.iter().position(|field| field.contains('"')) {
        None => Ok(fields),
        Some(index) => {
            let place = Place { line, column: index + 1, name: name(index) };
            Err(CsvError::Quoted { place, found: fields[index].to_owned() })
        }
    }
}
