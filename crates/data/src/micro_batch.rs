//! The input of a step: micro-batches of padded rows, and their counts.
//! Not here: how each kind of sample fills them (`batch.rs`, `packed.rs`, `pairs/batches.rs`).

/// The input id of padding. Any valid id works, since its target is ignored.
pub const PADDING_INPUT: i32 = 0;
/// The target of padding, which the loss ignores.
pub const PADDING_TARGET: i32 = -1;

/// The target of the second group with this id, where a loss tells two groups of targets apart.
pub fn other_target(id: i32) -> i32 {
    -2 - id
}

/// The size that a batch is padded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Tokens of a row.
    pub source_len: usize,
    /// Tokens of a target's row; `None` for causal models, whose targets are as long as their rows.
    pub target_len: Option<usize>,
}

/// A micro-batch: B rows of S tokens; with a decoder, also B rows of T tokens. Row-major.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// B
    pub rows: usize,
    /// S
    pub source_len: usize,
    /// T; `None` without a decoder.
    pub target_len: Option<usize>,
    /// (B, S), padded with 0.
    pub tokens: Vec<i32>,
    /// (B, S): the document of each token within its row, counted from 1; 0 for padding. For pairs, 1 or 0. `None` for
    /// windows, in which all tokens belong together; there, rows past the end of an evaluation have no targets.
    pub segments: Option<Vec<i32>>,
    /// (B, T): the decoder's input, which is the targets shifted by one, padded with 0. For an encoder (k·B, T): the second
    /// texts of all rows, then their negatives. Empty without a decoder.
    pub decoder_tokens: Vec<i32>,
    /// (B, T): 1 for the source that a decoder's token attends to; for the candidates of an encoder (k·B, T), 0 for
    /// padding. Empty without a decoder.
    pub decoder_segments: Vec<i32>,
    /// (B, T), or (B, S) without a decoder, or (B,) for an encoder; -1 if there is nothing to predict, and of preferences less
    /// than that for an id of the second group, see [`other_target`].
    pub targets: Vec<i32>,
    /// The number of the first row's sample, counted over the whole run; for held-out rows, over the evaluation.
    pub first_sample: u64,
    /// Padding tokens, on both sides.
    pub padding: u64,
    /// Rows whose text was cut.
    pub truncated: u64,
    /// Whether the B samples are examples of preferences. Each has one row of tokens and targets, or two, so that these are
    /// (2B, S): the chosen answer to its prompt, then the rejected one. A sample without targets is padding.
    pub compares: bool,
    /// If the loss of single answers estimates a reference point, the same prompts with the answers to other ones: as many samples,
    /// without `mismatched`.
    pub mismatched: Option<Box<Batch>>,
}

impl Batch {
    /// Resets it to `rows` rows of padding, keeping its memory.
    pub(crate) fn clear(&mut self, rows: usize, shape: Shape, has_segments: bool, first_sample: u64) {
        let Shape { source_len, target_len } = shape;
        (self.rows, self.source_len, self.target_len) = (rows, source_len, target_len);
        let reset = |values: &mut Vec<i32>, len: usize, padding: i32| {
            values.clear();
            values.resize(rows * len, padding);
        };
        reset(&mut self.tokens, source_len, PADDING_INPUT);
        reset(&mut self.targets, target_len.unwrap_or(source_len), PADDING_TARGET);
        reset(&mut self.decoder_tokens, target_len.unwrap_or(0), PADDING_INPUT);
        reset(&mut self.decoder_segments, target_len.unwrap_or(0), 1);
        match has_segments {
            true => reset(self.segments.get_or_insert_default(), source_len, 0),
            false => self.segments = None,
        }
        self.padding = (rows * (source_len + target_len.unwrap_or(0))) as u64;
        (self.first_sample, self.truncated, self.compares) = (first_sample, 0, false);
    }

    /// Makes it a batch of preferences, all padding, with this number of rows for each sample.
    pub(crate) fn set_compared(&mut self, rows_of_sample: usize) {
        self.tokens.resize(rows_of_sample * self.rows * self.source_len, PADDING_INPUT);
        self.targets.resize(rows_of_sample * self.rows * self.source_len, PADDING_TARGET);
        (self.padding, self.compares) = (self.tokens.len() as u64, true);
    }

    /// Makes it a batch of an encoder, all padding, with this many candidates per row instead of a decoder's input.
    pub(crate) fn set_candidates(&mut self, candidates: usize) {
        let of_row = self.target_len.unwrap_or(0);
        for values in [&mut self.decoder_tokens, &mut self.decoder_segments] {
            values.clear();
            values.resize(candidates * self.rows * of_row, PADDING_INPUT);
        }
        self.targets.clear();
        self.targets.resize(self.rows, PADDING_TARGET);
        self.padding = (self.tokens.len() + self.decoder_tokens.len()) as u64;
    }

    /// Its padded size.
    pub fn shape(&self) -> Shape {
        Shape { source_len: self.source_len, target_len: self.target_len }
    }

    /// Number of terms that the loss is the mean of: targets to predict, or of preferences the samples.
    pub fn real_targets(&self) -> u64 {
        if self.compares {
            let samples = self.targets.chunks_exact(self.targets.len() / self.rows);
            return samples.filter(|targets| targets.iter().any(|&target| target != PADDING_TARGET)).count() as u64;
        }
        self.targets.iter().filter(|&&target| target != PADDING_TARGET).count() as u64
    }

    /// Tokens that are not padding, on both sides.
    pub fn real_tokens(&self) -> u64 {
        (self.tokens.len() + self.decoder_tokens.len()) as u64 - self.padding
    }
}

/// The global batch of a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepBatches {
    /// Its micro-batches. All sizes of micro-batch give the same rows in total.
    pub micro: Vec<Batch>,
    /// Targets to predict; of preferences, samples.
    pub targets: u64,
    /// Tokens that are not padding.
    pub tokens: u64,
    /// Tokens of padding.
    pub padding: u64,
    /// Samples whose text was cut.
    pub truncated: u64,
}

impl StepBatches {
    /// The micro-batches of a step, each with the number of its first sample.
    pub(crate) fn numbered(
        &mut self,
        step: u64,
        global_batch: usize,
        micro_batch: usize,
    ) -> impl Iterator<Item = (u64, &mut Batch)> {
        let first = step * global_batch as u64;
        (first..).step_by(micro_batch).zip(&mut self.micro)
    }
}
