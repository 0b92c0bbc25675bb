//! Rows of a table as JSON, so that they are read like those of a .jsonl.
//! Binary values that are UTF-8 become text, others null; times become numbers.

use parquet::record::{Field, Row};
use std::io::Write;

/// Appends a row as an object. Stops soon after `bytes_max` bytes; the output is then not valid JSON.
pub(super) fn append_row(row: &Row, bytes_max: usize, out: &mut Vec<u8>) {
    enclosed(b"{}", row.get_column_iter(), bytes_max, out, |(name, field), out| {
        append_text(name, out);
        out.push(b':');
        append(field, bytes_max, out);
    });
}

fn append(field: &Field, bytes_max: usize, out: &mut Vec<u8>) {
    match field {
        Field::Group(row) => append_row(row, bytes_max, out),
        Field::ListInternal(list) => {
            enclosed(b"[]", list.elements().iter(), bytes_max, out, |element, out| append(element, bytes_max, out));
        }
        Field::MapInternal(map) => enclosed(b"{}", map.entries().iter(), bytes_max, out, |(key, value), out| {
            match key {
                Field::Str(key) => append_text(key, out),
                key => append_text(&key.to_string(), out),
            }
            out.push(b':');
            append(value, bytes_max, out);
        }),
        Field::Str(text) => append_text(text, out),
        Field::Bytes(bytes) => match str::from_utf8(bytes.data()) {
            Ok(text) => append_text(text, out),
            Err(_) => out.extend(b"null"),
        },
        Field::Bool(value) => append_plain(value, out),
        Field::Byte(value) => append_plain(value, out),
        Field::Short(value) => append_plain(value, out),
        Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => append_plain(value, out),
        Field::Long(value)
        | Field::TimeMicros(value)
        | Field::TimestampMillis(value)
        | Field::TimestampMicros(value) => append_plain(value, out),
        Field::UByte(value) => append_plain(value, out),
        Field::UShort(value) => append_plain(value, out),
        Field::UInt(value) => append_plain(value, out),
        Field::ULong(value) => append_plain(value, out),
        Field::Float16(value) => append_number(value.to_f64(), out),
        Field::Float(value) => append_number(f64::from(*value), out),
        Field::Double(value) => append_number(*value, out),
        Field::Null | Field::Decimal(_) => out.extend(b"null"),
    }
}

fn enclosed<T>(
    brackets: &[u8; 2],
    items: impl Iterator<Item = T>,
    bytes_max: usize,
    out: &mut Vec<u8>,
    write: impl Fn(T, &mut Vec<u8>),
) {
    out.push(brackets[0]);
    for (at, item) in items.enumerate() {
        if out.len() > bytes_max {
            return;
        }
        if at > 0 {
            out.push(b',');
        }
        write(item, out);
    }
    out.push(brackets[1]);
}

fn append_text(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("writes to memory do not fail");
}

fn append_number(number: f64, out: &mut Vec<u8>) {
    if number.is_finite() { append_plain(&number, out) } else { out.extend(b"null") }
}

fn append_plain(value: &impl std::fmt::Display, out: &mut Vec<u8>) {
    write!(out, "{value}").expect("writes to memory do not fail");
}
