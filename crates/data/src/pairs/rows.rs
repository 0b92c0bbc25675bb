//! Reads pairs of texts from .tsv, .csv, .jsonl, JSON and Parquet files, row by row in the order of the files.
//! Not here: selecting columns (`column.rs`), and tokenizing the texts (`prepare.rs`).
//!
//! A .csv may quote fields, also across several lines; in a .tsv quotes are text, and a row is a line. Empty lines are
//! skipped. If columns are given by name, every file has a header; if they are given by number, a first row with the
//! default names is a header too.

use super::{Column, PairColumns};
use crate::error::{NAMES_MAX, cut_name};
use crate::jsonl::{text_fields, texts_of_line};
use crate::pieces::PIECE_OVERHEAD_BYTES;
use crate::rows::{Rows, Wanted};
use crate::{DataError, Format, LINE_BYTES_MAX, RowNumber, Source, Sources, decompress};
use csv::{ByteRecord, Reader, ReaderBuilder, Terminator};
use plimsoll_units::Bytes;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pair as read, with the prefix before its source; or a sample of an encoder that has negatives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The index of its file.
    pub file: usize,
    /// Its row in the file.
    pub number: RowNumber,
    /// The source, the target, and the negatives.
    pub texts: Vec<Vec<u8>>,
}

impl Row {
    /// Bytes of its texts.
    pub(super) fn bytes(&self) -> usize {
        self.texts.iter().map(Vec::len).sum()
    }
}

/// The default names of columns.
const DEFAULT_NAMES: [&str; 2] = ["source", "target"];

/// Names of source and target columns that are common in data sets of pairs.
const USUAL_NAMES: [[&str; 11]; 2] = [
    ["source", "src", "input", "inputs", "question", "prompt", "text", "document", "article", "en", "instruction"],
    ["target", "tgt", "output", "targets", "answer", "completion", "label", "summary", "highlights", "de", "response"],
];

/// The first row of a .csv or .tsv whose columns are given by number, if it may not be a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstRow {
    /// A header with the default names, which is skipped.
    Header,
    /// A pair of words that data sets often use as column names.
    LikelyNames([String; 2]),
}

/// Classifies the first row of a file; `None` for a pair, for a file without such rows, and for a file that can't be
/// read.
pub fn first_row(source: &Source, columns: &PairColumns) -> Option<FirstRow> {
    let delimiter = match table_of(source).ok()? {
        Table::Tabs => b'\t',
        Table::Commas => b',',
        Table::Objects => return None,
    };
    let reader = decompress::open(source, Arc::default()).ok()?;
    let limited = RowLimit::new(reader, delimiter, LINE_BYTES_MAX);
    let mut cells = Cells::open(limited, columns.pair_in_table().to_vec(), source).ok()?;
    if !std::mem::take(&mut cells.may_begin_with_header) {
        return None;
    }
    let (_, texts) = cells.next(source).ok()??;
    let texts: [Vec<u8>; 2] = texts.try_into().ok()?;
    let names = texts.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
    let is_usual = |[a, b]: [usize; 2]| {
        let known = |at: usize, of: usize| USUAL_NAMES[of].iter().any(|name| name.eq_ignore_ascii_case(&names[at]));
        known(a, 0) && known(b, 1)
    };
    match names.each_ref().map(String::as_bytes) {
        cells if are_default_names(cells) => Some(FirstRow::Header),
        _ if is_usual([0, 1]) || is_usual([1, 0]) => Some(FirstRow::LikelyNames(names)),
        _ => None,
    }
}

/// Whether these are the default names, in either order and any case.
fn are_default_names(cells: [&[u8]; 2]) -> bool {
    let is = |cell: &[u8], name: &str| cell.trim_ascii().eq_ignore_ascii_case(name.as_bytes());
    let [source, target] = DEFAULT_NAMES;
    is(cells[0], source) && is(cells[1], target) || is(cells[0], target) && is(cells[1], source)
}

/// Whether a file is a .csv or .tsv.
pub fn is_table(source: &Source) -> bool {
    matches!(table_of(source), Ok(Table::Tabs | Table::Commas))
}

/// The syntax of a file's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Tabs,
    Commas,
    Objects,
}

/// Reads the rows of all files in order.
pub(super) struct RowReader<'a> {
    sources: &'a Sources,
    columns: &'a PairColumns,
    next_file: usize,
    open: Option<OpenTable>,
    raw_bytes: Arc<AtomicU64>,
}

enum OpenTable {
    Cells(Cells),
    Objects { rows: Rows, fields: Vec<String> },
}

impl<'a> RowReader<'a> {
    pub(super) fn new(sources: &'a Sources, columns: &'a PairColumns) -> Self {
        Self { sources, columns, next_file: 0, open: None, raw_bytes: Arc::default() }
    }

    /// Bytes read from disk so far.
    pub(super) fn raw_bytes(&self) -> Bytes {
        Bytes(self.raw_bytes.load(Ordering::Relaxed))
    }

    /// Rows with about `group_bytes` of text in total (exceeded by at most one row). Empty at the end of the data.
    pub(super) fn next_group(&mut self, group_bytes: usize) -> Result<Vec<Row>, DataError> {
        let mut group = Vec::new();
        let mut bytes = 0;
        while bytes < group_bytes {
            let Some(row) = self.next_row()? else { break };
            bytes += row.bytes() + row.texts.len() * PIECE_OVERHEAD_BYTES;
            group.push(row);
        }
        Ok(group)
    }

    fn next_row(&mut self) -> Result<Option<Row>, DataError> {
        loop {
            if self.open.is_none() && !self.open_next()? {
                return Ok(None);
            }
            let file = self.next_file - 1;
            let source = &self.sources.files[file];
            let read = match &mut self.open {
                Some(OpenTable::Cells(cells)) => cells.next(source)?,
                Some(OpenTable::Objects { rows, fields }) => {
                    next_of_objects(rows, fields, &self.columns.unexpected, source)?
                }
                None => None,
            };
            let Some((number, mut texts)) = read else {
                self.open = None;
                continue;
            };
            let sides = ["source", "target"].into_iter().chain(std::iter::repeat("negative"));
            for (side, text) in sides.zip(&texts) {
                if text.trim_ascii().is_empty() {
                    return Err(DataError::EmptySide { path: source.path.clone(), row: number, side });
                }
            }
            if !self.columns.prefix.is_empty() {
                texts[0].splice(0..0, self.columns.prefix.bytes());
            }
            return Ok(Some(Row { file, number, texts }));
        }
    }

    fn open_next(&mut self) -> Result<bool, DataError> {
        let Some(source) = self.sources.files.get(self.next_file) else { return Ok(false) };
        let table = table_of(source)?;
        let row_bytes_max = self.sources.line_bytes_max;
        let raw_bytes = Arc::clone(&self.raw_bytes);
        let cells = |delimiter| {
            let reader = decompress::open(source, Arc::clone(&raw_bytes))
                .map_err(|error| DataError::unreadable(&source.path, error))?;
            let limited = RowLimit::new(reader, delimiter, row_bytes_max);
            Cells::open(limited, self.columns.in_table(), source)
        };
        self.open = Some(match table {
            Table::Objects => {
                let fields = self.columns.in_json();
                let names = fields.iter().map(String::as_str).collect::<Vec<_>>();
                let rows = Rows::open(source, Wanted::All(&names), row_bytes_max, Arc::clone(&raw_bytes))?;
                OpenTable::Objects { rows, fields }
            }
            Table::Tabs => OpenTable::Cells(cells(b'\t')?),
            Table::Commas => OpenTable::Cells(cells(b',')?),
        });
        self.next_file += 1;
        Ok(true)
    }
}

/// The names of the columns or fields in the first row of a file. Empty if it has no row. Errors: it can't be read.
pub(super) fn field_names(source: &Source, row_bytes_max: usize) -> Result<Vec<String>, DataError> {
    let delimiter = match table_of(source)? {
        Table::Tabs => b'\t',
        Table::Commas => b',',
        Table::Objects => {
            let mut rows = Rows::open(source, Wanted::Any(&[]), row_bytes_max, Arc::default())?;
            while rows.next(source)? {
                let row = rows.text(source)?;
                if !row.trim().is_empty() {
                    return Ok(text_fields(row));
                }
            }
            return Ok(vec![]);
        }
    };
    let reader =
        decompress::open(source, Arc::default()).map_err(|error| DataError::unreadable(&source.path, error))?;
    let mut cells = Cells::open(RowLimit::new(reader, delimiter, row_bytes_max), vec![], source)?;
    let found = cells.reader.read_byte_record(&mut cells.record).map_err(|error| bad_row(source, 1, error))?;
    let names = cells.record.iter().filter(|_| found);
    Ok(names.map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect())
}

/// The syntax of each file's rows, for the key of the cache. Errors: `NotPairs`.
pub(super) fn tables_identity(sources: &Sources) -> Result<String, DataError> {
    let tables = sources.files.iter().map(table_of).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{tables:?}"))
}

fn table_of(source: &Source) -> Result<Table, DataError> {
    let extension = |path: &Path| path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    let inner = match extension(&source.path).as_deref() {
        Some("gz" | "zst" | "zstd") => source.path.file_stem().map(Path::new).and_then(extension),
        plain => plain.map(str::to_owned),
    };
    match (source.format, inner.as_deref()) {
        (Format::JsonLines | Format::Json | Format::Parquet, _) => Ok(Table::Objects),
        (Format::Text, Some("tsv" | "tab")) => Ok(Table::Tabs),
        (Format::Text, Some("csv")) => Ok(Table::Commas),
        (Format::Text, _) => Err(DataError::NotPairs { path: source.path.clone() }),
    }
}

/// A .csv or .tsv.
struct Cells {
    reader: Reader<RowLimit>,
    record: ByteRecord,
    /// The columns of the texts, counted from 0.
    at: Vec<usize>,
    /// The line of the previous row.
    line: u64,
    /// Whether the last row was read.
    ended: bool,
    /// Whether the next row is the first one and may be a header.
    may_begin_with_header: bool,
}

/// The number of a row, and its texts: source, target, negatives.
type Texts = (RowNumber, Vec<Vec<u8>>);

impl Cells {
    fn open(reader: RowLimit, columns: Vec<Column>, source: &Source) -> Result<Self, DataError> {
        let delimiter = reader.delimiter;
        let mut reader = ReaderBuilder::new()
            .delimiter(delimiter)
            .terminator(Terminator::Any(b'\n'))
            .quoting(delimiter == b',')
            .has_headers(false)
            .flexible(true)
            .from_reader(reader);
        let mut record = ByteRecord::new();
        let named = columns.iter().any(|column| matches!(column, Column::Name(_)));
        if named {
            reader.read_byte_record(&mut record).map_err(|error| bad_row(source, 1, error))?;
        }
        let at = columns.into_iter().map(|column| match column {
            Column::Number(number) => Ok(number - 1),
            Column::Name(name) => {
                let mut places = (0..record.len()).filter(|&at| record[at].trim_ascii() == name.trim().as_bytes());
                let at = places.next();
                if places.next().is_some() {
                    return Err(DataError::DuplicateColumn { path: source.path.clone(), name });
                }
                let name_of = |cell: &[u8]| cut_name(&String::from_utf8_lossy(cell));
                let present = || record.iter().take(NAMES_MAX).map(name_of).collect();
                at.ok_or_else(|| DataError::NoSuchColumn { path: source.path.clone(), name, present: present() })
            }
        });
        let at = at.collect::<Result<_, _>>()?;
        Ok(Self { reader, at, record, line: 1, ended: false, may_begin_with_header: !named })
    }

    fn next(&mut self, source: &Source) -> Result<Option<Texts>, DataError> {
        let line = loop {
            let line_before = self.reader.position().line();
            self.reader.get_mut().begin_row();
            if !self.reader.read_byte_record(&mut self.record).map_err(|error| bad_row(source, line_before, error))? {
                return if self.ended { Ok(None) } else { Err(self.endless(source)) };
            }
            let cells = self.record.as_slice();
            let line_feeds = cells.iter().filter(|&&byte| byte == b'\n').count() as u64;
            let line = self.reader.position().line().saturating_sub(1 + line_feeds).max(line_before);
            self.ended = self.record.len() == 1 && cells == b"\x04";
            if self.ended || (self.record.len() <= 1 && cells.trim_ascii().is_empty()) {
                continue;
            }
            let named = [0, 1].map(|side| self.record.get(self.at[side]).unwrap_or_default());
            if !(std::mem::take(&mut self.may_begin_with_header) && are_default_names(named)) {
                break line;
            }
        };
        self.line = line;
        let cell = |at: usize| {
            let is_last = at + 1 == self.record.len();
            let text = |cell: &[u8]| cell.strip_suffix(b"\r").filter(|_| is_last).unwrap_or(cell).to_vec();
            self.record.get(at).map(text).ok_or_else(|| DataError::RowTooShort {
                path: source.path.clone(),
                line,
                columns: self.record.len(),
                column: at + 1,
            })
        };
        Ok(Some((RowNumber::Line(line), self.at.iter().map(|&at| cell(at)).collect::<Result<_, _>>()?)))
    }

    fn endless(&self, source: &Source) -> DataError {
        let message = "a quoted field is not closed".to_owned();
        DataError::BadRow { path: source.path.clone(), row: RowNumber::Line(self.line), message }
    }
}

/// Appended to each table. If the last row read is different, it was inside an unclosed quoted field.
const LAST_ROW: &[u8] = b"\n\x04\n";

/// Maximum cells of a row, used or not: each takes 8 bytes of memory.
const CELLS_MAX: usize = 1 << 20;

/// The bytes of a table; fails if a row has too many bytes or cells. The parser's read-ahead counts toward the previous
/// row, so limits are accurate to its buffer of 8 KiB.
struct RowLimit {
    inner: Box<dyn Read>,
    delimiter: u8,
    bytes_max: usize,
    /// Bytes of the current row.
    bytes: usize,
    delimiters: usize,
}

/// The limit that a row exceeds.
#[derive(Debug, thiserror::Error)]
enum RowTooLong {
    #[error("it is longer than {0}")]
    Bytes(Bytes),
    #[error("it has more than {CELLS_MAX} cells")]
    Cells,
}

impl RowLimit {
    /// Only line feeds end rows, the last one too, so that rows can be counted.
    fn new(inner: Box<dyn Read>, delimiter: u8, bytes_max: usize) -> Self {
        Self { inner: Box::new(inner.chain(LAST_ROW)), delimiter, bytes_max, bytes: 0, delimiters: 0 }
    }

    fn begin_row(&mut self) {
        (self.bytes, self.delimiters) = (0, 0);
    }
}

impl Read for RowLimit {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let too_long = |which| Err(io::Error::new(io::ErrorKind::FileTooLarge, which));
        if self.bytes > self.bytes_max {
            return too_long(RowTooLong::Bytes(Bytes(self.bytes_max as u64)));
        } else if self.delimiters >= CELLS_MAX {
            return too_long(RowTooLong::Cells);
        }
        let count = self.inner.read(buffer)?;
        self.bytes += count;
        self.delimiters += buffer[..count].iter().filter(|&&byte| byte == self.delimiter).count();
        Ok(count)
    }
}

/// The error for an unreadable row that starts on `line`.
fn bad_row(source: &Source, line: u64, error: csv::Error) -> DataError {
    let message = error.to_string();
    let (path, row) = (source.path.clone(), RowNumber::Line(line));
    match error.into_kind() {
        csv::ErrorKind::Io(error) => match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(RowTooLong::Bytes(limit)) => DataError::LineTooLong { path, row, limit: *limit },
            Some(too_long @ RowTooLong::Cells) => DataError::BadRow { path, row, message: too_long.to_string() },
            None => source.read_error(error),
        },
        _ => DataError::BadRow { path, row, message },
    }
}

/// The next row of objects. Errors: a field is missing or no text; a row has an unexpected one.
fn next_of_objects(
    rows: &mut Rows,
    fields: &[String],
    unexpected: &[String],
    source: &Source,
) -> Result<Option<Texts>, DataError> {
    let names = fields.iter().map(String::as_str).collect::<Vec<_>>();
    while rows.next(source)? {
        let number = rows.number();
        let row = rows.text(source)?;
        match texts_of_line(row, &names) {
            Ok(Some(texts)) => {
                if let Some(field) = unexpected.iter().find(|field| texts_of_line(row, &[field.as_str()]).is_ok()) {
                    let (path, field) = (source.path.clone(), field.clone());
                    return Err(DataError::UnexpectedField { path, row: number, field });
                }
                return Ok(Some((number, texts.into_iter().map(String::into_bytes).collect())));
            }
            Ok(None) => {}
            Err((field, error)) => return Err(error.in_file(source.path.clone(), number, names[field])),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompress::tests::{gzip, zstd};
    use crate::resolve;
    use proptest::prelude::*;

    fn columns(source: Option<&str>, target: Option<&str>, prefix: &str) -> PairColumns {
        let column = |text: &str| text.parse().unwrap();
        let (source, target) = (source.map(column), target.map(column));
        PairColumns { source, target, prefix: prefix.to_owned(), ..PairColumns::default() }
    }

    /// `line source=target` of each row.
    fn rows(name: &str, bytes: &[u8], columns: &PairColumns) -> Result<Vec<String>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let sources = resolve(&[path.to_str().unwrap()], "text").unwrap();
        let mut reader = RowReader::new(&sources, columns);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut found = Vec::new();
        loop {
            let group = reader.next_group(1)?;
            if group.is_empty() {
                return Ok(found);
            }
            let texts = |row: &Row| row.texts.iter().map(|bytes| text(bytes)).collect::<Vec<_>>().join("=");
            let shown = |row: &Row| format!("{} {}", row.number, texts(row));
            found.extend(group.iter().map(|row| shown(row).trim_start_matches("line ").to_owned()));
        }
    }

    #[test]
    fn rows_of_all_kinds_are_read() {
        let plain = PairColumns::default();
        let tsv = b"a \"b\tc\n\nd\te\tmore\r\n";
        for (name, bytes) in [("a.tsv", tsv.to_vec()), ("a.tsv.gz", gzip(tsv)), ("A.TSV.zst", zstd(tsv))] {
            assert_eq!(rows(name, &bytes, &plain).unwrap(), ["1 a \"b=c", "3 d=e"], "{name}");
        }
        let csv = b"\xef\xbb\xbfin,out\n\"a, \"\"b\"\"\nc\",d\r\n\r\ne,\"f\"\r\n";
        assert_eq!(rows("a.csv", csv, &plain).unwrap(), ["1 in=out", "2 a, \"b\"\nc=d", "5 e=f"]);
        assert_eq!(
            rows("a.csv", csv, &columns(Some("out"), Some("1"), "to: ")).unwrap(),
            ["2 to: d=a, \"b\"\nc", "5 to: f=e"]
        );
        let jsonl = b"{\"source\":\"a\",\"target\":\"b\",\"en\":\"c\"}\n\n{\"target\":\"e\",\"source\":\"d\"}";
        assert_eq!(rows("a.jsonl", jsonl, &plain).unwrap(), ["1 a=b", "3 d=e"]);
        assert_eq!(rows("a.jsonl", &jsonl[..36], &columns(Some("en"), Some("en"), "")).unwrap(), ["1 c=c"]);
    }

    /// Negatives are found by the first row, read from all files, and no row may lack or add one.
    #[test]
    fn negatives_are_found_and_read() {
        let column = |name: &str| Some(Column::Name(name.to_owned()));
        let plain = PairColumns { source: column("anchor"), target: column("positive"), ..PairColumns::default() };
        let found = |name: &str, bytes: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let sources = resolve(&[path.to_str().unwrap()], "text").unwrap();
            let columns = plain.clone().with_negatives_of(&sources).unwrap();
            let names = columns.negatives.iter().map(Column::to_string).collect::<Vec<_>>();
            (names, rows(name, bytes.as_bytes(), &columns).map_err(|error| error.to_string()))
        };
        let one = r#"{"anchor":"a","positive":"p","negative":"n"}"#;
        let none = r#"{"anchor":"b","positive":"q"}"#;
        assert_eq!(found("a.jsonl", one), (vec!["negative".to_owned()], Ok(vec!["1 a=p=n".to_owned()])));
        assert_eq!(found("a.jsonl", none), (vec![], Ok(vec!["1 b=q".to_owned()])));
        let tsv = "negative_2\tanchor\tpositive\tnegative_1\nm\ta\tp\tn\n";
        let two = vec!["negative_1".to_owned(), "negative_2".to_owned()];
        assert_eq!(found("a.tsv", tsv), (two.clone(), Ok(vec!["2 a=p=n=m".to_owned()])));
        assert_eq!(found("a.csv", &tsv.replace('\t', ",")), (two, Ok(vec!["2 a=p=n=m".to_owned()])));
        let mixed = |first: &str, second: &str| found("a.jsonl", &format!("{first}\n{second}\n")).1.unwrap_err();
        assert!(mixed(one, none).contains("line 2 has no field `negative`; it has `anchor`, `positive`"));
        assert!(mixed(none, one).ends_with("line 2 has a field `negative`, which the first row does not have"));
        let empty = found("a.jsonl", &one.replace('n', " ")).1;
        assert!(empty.is_err(), "{empty:?}");
    }

    #[test]
    fn a_first_row_with_the_default_names_is_a_header() {
        let plain = PairColumns::default();
        let swapped = columns(Some("2"), Some("1"), "");
        for (name, bytes) in [
            ("a.csv", "source,target\na,b\n"),
            ("a.csv", "\u{feff}\"Source\" ,\"TARGET\"\r\n\r\na,b\r\n"),
            ("a.tsv", "\n\u{20}source\ttarget\tmore\na\tb\tc\n"),
            ("a.tsv", "\u{feff}source\ttarget\na\tb\n"),
        ] {
            let found = rows(name, bytes.as_bytes(), &plain).unwrap();
            assert_eq!(found.len(), 1, "{bytes:?}");
            assert!(found[0].ends_with(" a=b"), "{bytes:?}: {found:?}");
        }
        assert_eq!(rows("a.csv", b"target,source\nb,a\n", &swapped).unwrap(), ["2 a=b"]);
        // Only in the first row, and only if both match.
        let later = b"a,b\nsource,target\nsource,Quelle\n";
        assert_eq!(rows("a.csv", later, &plain).unwrap(), ["1 a=b", "2 source=target", "3 source=Quelle"]);
        let first = |name: &str, bytes: &str, columns: &PairColumns| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            first_row(&resolve(&[path.to_str().unwrap()], "text").unwrap().files[0], columns)
        };
        assert_eq!(first("a.csv", "source,target\na,b\n", &plain), Some(FirstRow::Header));
        let names = FirstRow::LikelyNames(["Question".to_owned(), "answer".to_owned()]);
        assert_eq!(first("a.tsv", "Question\tanswer\na\tb\n", &plain), Some(names));
        assert_eq!(first("a.csv", "a ship,one\n", &plain), None);
        assert_eq!(first("a.csv", "source,target\na,b\n", &columns(Some("source"), None, "")), None);
        assert_eq!(first("a.jsonl", "{\"source\":\"source\",\"target\":\"target\"}", &plain), None);
    }

    #[test]
    fn rows_that_are_not_pairs_are_named_by_file_and_line() {
        let message = |name: &str, bytes: &[u8], columns: &PairColumns| rows(name, bytes, columns).unwrap_err();
        let plain = PairColumns::default();
        let short = message("a.tsv", b"a\tb\nonly\n", &plain).to_string();
        assert!(short.ends_with("a.tsv line 2 has 1 column, not 2"), "{short}");
        let empty = message("a.csv", b"a,b\nc, \n", &plain).to_string();
        assert!(empty.ends_with("a.csv line 2: the target is empty"), "{empty}");
        let named = message("a.csv", b"in,out\na,b\n", &columns(Some("input"), Some("out"), ""));
        assert!(named.to_string().contains("has no column `input`; it has `in`, `out`"), "{named}");
        let field = message("a.jsonl", b"{\"source\":\"a\"}", &plain).to_string();
        assert!(field.contains("line 1 has no field `target`; it has `source`"), "{field}");
        assert!(matches!(message("a.jsonl", b"{\"source\":1}", &plain), DataError::FieldIsNotText { .. }));
        let quote = message("a.csv", b"a,b\nc,\"d\ne,f\n", &plain).to_string();
        assert!(quote.contains("line 2 can't be read: a quoted field is not closed"), "{quote}");
        assert!(matches!(message("a.jsonl", b"\xff", &plain), DataError::NotUtf8 { offset: 0, .. }));
        assert!(matches!(message("a.txt", b"a\tb", &plain), DataError::NotPairs { .. }));
        assert!(matches!(message("a.tsv.gz", b"a\tb", &plain), DataError::BadCompression { .. }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\t'), Just(b','), Just(b'\n'), Just(b'"')], 0..60),
            named: bool,
        ) {
            let columns = if named { columns(Some("a"), Some("2"), "p") } else { PairColumns::default() };
            for name in ["a.tsv", "a.csv", "a.jsonl", "a.csv.gz"] {
                let _ = rows(name, &bytes, &columns);
            }
        }

        #[test]
        fn pairs_without_tabs_survive(pairs in proptest::collection::vec(("[^\t\r\n]{0,9}x", "y[^\t\r\n]{0,9}"), 1..5)) {
            prop_assume!(!pairs[0].0.starts_with('\u{feff}'));
            let text: String = pairs.iter().map(|(a, b)| format!("{a}\t{b}\n")).collect();
            let expected: Vec<String> = pairs.iter().zip(1..).map(|((a, b), line)| format!("{line} {a}={b}")).collect();
            prop_assert_eq!(rows("a.tsv", text.as_bytes(), &PairColumns::default()).unwrap(), expected);
        }
    }
}
