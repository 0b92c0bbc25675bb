//! Pages of a column, decompressed one at a time; pages that are too long are refused before decompression.
//! Not here: the contents of a page; the `parquet` crate decodes them.

use super::header::{Header, PageKind};
use super::levels::values_of_last_row;
use crate::{Compression, LINE_BYTES_MAX, decompress};
use parquet::basic::CompressionCodec;
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

/// Maximum size of a page, compressed or not: writers begin a new page after a megabyte, but not within a value.
const PAGE_BYTES_MAX: usize = LINE_BYTES_MAX + (4 << 20);
/// Maximum values of a dictionary; each takes 32 bytes in addition to its own.
const DICTIONARY_VALUES_MAX: u32 = 1 << 20;
/// Sizes of the first and the longest read of a header, which includes the minimum and maximum of its page.
const HEADER_BYTES: [usize; 2] = [1 << 10, 4 << 20];

/// A row group whose columns are read through [`Pages`].
pub(super) struct RowGroup {
    pub file: Arc<File>,
    pub metadata: RowGroupMetaData,
}

impl RowGroupReader for RowGroup {
    fn metadata(&self) -> &RowGroupMetaData {
        &self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, column: usize) -> Result<Box<dyn PageReader>> {
        let column = self.metadata.column(column);
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let place = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
        let (at, bytes) = place.ok_or_else(|| bad("a column with a negative offset or length"))?;
        let end = at.checked_add(bytes).ok_or_else(|| bad("a column whose end overflows"))?;
        let level_max = column.column_descr().max_rep_level();
        let values_left = column.num_values();
        let codec = column.compression_codec();
        Ok(Box::new(Pages {
            file: Arc::clone(&self.file),
            at,
            end,
            codec,
            level_max,
            values_left,
            in_row: 0,
            next: None,
        }))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

fn bad(message: impl Into<String>) -> ParquetError {
    ParquetError::General(message.into())
}

/// The pages of a column chunk in order.
struct Pages {
    file: Arc<File>,
    at: u64,
    end: u64,
    codec: CompressionCodec,
    /// The largest repetition level: 0 if each row has one value.
    level_max: i16,
    /// Values that the footer declares and that no page contained yet.
    values_left: i64,
    /// Values of the row that the previous page ended within.
    in_row: u64,
    /// The header at `at`, if it was parsed already.
    next: Option<Header>,
}

impl Pages {
    /// The header of the next page; `None` after the last.
    fn header(&mut self) -> Result<Option<Header>> {
        while self.next.is_none() && self.at < self.end && self.values_left > 0 {
            let header = self.read_header()?;
            if header.kind == PageKind::Other {
                self.at += (header.bytes + header.compressed) as u64;
            } else {
                self.next = Some(header);
            }
        }
        Ok(self.next)
    }

    fn read_header(&self) -> Result<Header> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        for most in HEADER_BYTES {
            let mut bytes = vec![0; most.min(left)];
            plimsoll_files::read_exact_at(&self.file, &mut bytes, self.at)?;
            if let Some(header) = Header::parse(&bytes) {
                if header.compressed > PAGE_BYTES_MAX || header.uncompressed > PAGE_BYTES_MAX {
                    return Err(bad(format!("a page of {} bytes", header.compressed.max(header.uncompressed))));
                }
                return Ok(header);
            }
        }
        Err(bad("a page without a header"))
    }

    /// Reads the page after its header.
    fn read_page(&mut self, header: Header) -> Result<Page> {
        let mut stored = vec![0; header.compressed];
        plimsoll_files::read_exact_at(&self.file, &mut stored, self.at + header.bytes as u64)?;
        self.at += (header.bytes + header.compressed) as u64;
        self.next = None;
        match header.kind {
            PageKind::Dictionary { values, encoding, is_sorted } => {
                let buf = self.decompressed(stored, header.uncompressed)?;
                if values > DICTIONARY_VALUES_MAX || values as usize > buf.len() {
                    return Err(bad(format!("a dictionary of {values} values")));
                }
                Ok(Page::DictionaryPage { buf: buf.into(), num_values: values, encoding, is_sorted })
            }
            PageKind::Data { values, encoding, definitions, repetitions } => {
                let buf = self.decompressed(stored, header.uncompressed)?;
                if self.level_max > 0 {
                    let length = buf.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
                    let levels = length.and_then(|length| buf.get(4..length.checked_add(4)?));
                    self.count(levels.unwrap_or_default(), values)?;
                }
                self.values_left -= i64::from(values);
                Ok(Page::DataPage {
                    buf: buf.into(),
                    num_values: values,
                    encoding,
                    def_level_encoding: definitions,
                    rep_level_encoding: repetitions,
                    statistics: None,
                })
            }
            PageKind::DataV2 { values, nulls, rows, encoding, definition_bytes, repetition_bytes, is_compressed } => {
                let levels = definition_bytes as usize + repetition_bytes as usize;
                if levels > stored.len().min(header.uncompressed) || nulls > values {
                    return Err(bad("a page that is shorter than its levels"));
                }
                let data = stored.split_off(levels);
                let data = if is_compressed { self.decompressed(data, header.uncompressed - levels)? } else { data };
                if self.level_max > 0 {
                    self.count(&stored[..repetition_bytes as usize], values)?;
                }
                self.values_left -= i64::from(values);
                stored.extend(data);
                Ok(Page::DataPageV2 {
                    buf: stored.into(),
                    num_values: values,
                    encoding,
                    num_nulls: nulls,
                    num_rows: rows,
                    def_levels_byte_len: definition_bytes,
                    rep_levels_byte_len: repetition_bytes,
                    is_compressed: false,
                    statistics: None,
                })
            }
            PageKind::Other => Err(bad("an index page among data pages")),
        }
    }

    fn count(&mut self, levels: &[u8], values: u32) -> Result<()> {
        let counted = values_of_last_row(levels, self.level_max, values, self.in_row);
        self.in_row = counted.ok_or_else(|| bad("a row with too many values, or with broken levels"))?;
        Ok(())
    }

    fn decompressed(&self, stored: Vec<u8>, bytes: usize) -> Result<Vec<u8>> {
        let compression = match self.codec {
            CompressionCodec::UNCOMPRESSED => return Ok(stored),
            // Writers store an empty page as zero bytes.
            _ if bytes == 0 => return Ok(Vec::new()),
            CompressionCodec::SNAPPY => {
                if snap::raw::decompress_len(&stored).ok() != Some(bytes) {
                    return Err(bad("a page whose length differs from its header"));
                }
                return snap::raw::Decoder::new().decompress_vec(&stored).map_err(|error| bad(error.to_string()));
            }
            CompressionCodec::GZIP => Compression::Gzip,
            CompressionCodec::ZSTD => Compression::Zstd,
            other => return Err(bad(format!("compression {other:?} is not supported; use Snappy, gzip or zstd"))),
        };
        let mut page = Vec::with_capacity(bytes);
        decompress::decompressed(&stored[..], compression).take(bytes as u64 + 1).read_to_end(&mut page)?;
        if page.len() == bytes { Ok(page) } else { Err(bad("a page whose length differs from its header")) }
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.header()?.map(|header| self.read_page(header)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        Ok(self.header()?.map(|header| {
            let (num_rows, num_levels, is_dict) = match header.kind {
                PageKind::Data { values, .. } => (None, Some(values as usize), false),
                PageKind::DataV2 { values, rows, .. } => (Some(rows as usize), Some(values as usize), false),
                PageKind::Dictionary { .. } | PageKind::Other => (None, None, true),
            };
            PageMetadata { num_rows, num_levels, is_dict }
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(drop)
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
