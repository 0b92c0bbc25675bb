//! The flags for pairs of texts: their columns, and how they become rows.

use super::model::USUAL_PAIR;
use super::options::positive_size;
use clap::Args;
use plimsoll_data::{Column, PairColumns, PairSettings, Split, Tokenizer};
use serde_json::{Map, Value, json};

#[derive(Debug, Clone, Args)]
pub(super) struct PairArgs {
    /// Column of the sources in a .tsv or .csv, or their field in a .jsonl. A table has a header only if a column is
    /// given by name [default: 1, or `source`]
    #[arg(long, value_name = "N|NAME", value_parser = column)]
    pub source_column: Option<Column>,
    /// Column or field of the targets [default: 2, or `target`]
    #[arg(long, value_name = "N|NAME", value_parser = column)]
    pub target_column: Option<Column>,
    /// Text to put before each source
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Maximum tokens per source
    #[arg(long, value_name = "N", value_parser = positive_size, default_value = "512")]
    pub source_len: usize,
    /// Maximum tokens per target [default: 512; for steps of `bench`, the tokens per source]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    pub target_len: Option<usize>,
    /// Round lengths up to multiples of this number of tokens
    #[arg(long, value_name = "N", value_parser = positive_size, default_value = "64")]
    pub bucket: usize,
}

/// Parses a column.
pub(super) fn column(text: &str) -> Result<Column, String> {
    text.parse().map_err(|error: plimsoll_data::DataError| error.to_string())
}

impl PairArgs {
    fn target_len(&self) -> usize {
        self.target_len.unwrap_or(USUAL_PAIR)
    }

    /// The columns of sources and targets; those of an encoder have the names of sentence-transformers by default.
    pub(super) fn columns(&self, is_encoder: bool) -> PairColumns {
        let column = |asked: &Option<Column>, name: &str| {
            asked.clone().or_else(|| is_encoder.then(|| Column::Name(name.to_owned())))
        };
        PairColumns {
            source: column(&self.source_column, "anchor"),
            target: column(&self.target_column, "positive"),
            prefix: self.prefix.clone(),
            ..PairColumns::default()
        }
    }

    /// These flags as settings; `seq_len` replaces `--source-len`.
    pub(super) fn resolved(&self, seq_len: Option<usize>) -> Map<String, Value> {
        let mut settings = Map::new();
        for (key, column) in [("source_column", &self.source_column), ("target_column", &self.target_column)] {
            settings.extend(column.as_ref().map(|column| (key.to_owned(), json!(column.to_string()))));
        }
        settings.insert("prefix".into(), json!(self.prefix));
        settings.insert("source_len".into(), json!(seq_len.unwrap_or(self.source_len)));
        settings.insert("target_len".into(), json!(self.target_len()));
        settings.insert("bucket".into(), json!(self.bucket));
        settings
    }

    /// The settings of a dataset of pairs. As in T5, the decoder starts with the padding token.
    pub(super) fn settings(&self, tokenizer: &Tokenizer, Split { seed, held_out }: Split) -> PairSettings {
        PairSettings {
            source_len_max: self.source_len,
            target_len_max: self.target_len(),
            bucket: self.bucket,
            end_token: tokenizer.end_token(),
            decoder_start: tokenizer.pad_token().unwrap_or(0),
            seed,
            held_out,
        }
    }
}
