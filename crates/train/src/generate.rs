//! Generates text: reads a prompt several tokens at a time, then draws each next token from the model's distribution.

use crate::{Engine, Feed, TrainError};
use plimsoll_exec::philox;
use plimsoll_graph::{ProgramKind, Scalars};

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 selects the most likely token.
    pub temperature: f32,
    /// Draws only from this many of the most likely tokens; `None` means all.
    pub top_k: Option<usize>,
    /// Draws only from the most likely tokens with this total probability; 1 means all.
    pub top_p: f32,
    /// Seed.
    pub seed: u64,
}

/// Draws a token from logits (V). `draw` counts the draws of a text. Never draws a token whose logit is NaN; if all are
/// NaN, returns token 0.
/// Source of top-p: Holtzman et al. 2020, section 3.1.
pub fn choose(logits: &[f32], sampling: &Sampling, draw: u64) -> u32 {
    let mut order = (0..logits.len() as u32).filter(|&i| !logits[i as usize].is_nan()).collect::<Vec<_>>();
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let kept = sampling.top_k.unwrap_or(order.len()).clamp(1, order.len().max(1));
    if sampling.temperature <= 0.0 {
        return order.into_iter().min_by(by_logit).unwrap_or(0);
    }
    if kept < order.len() {
        order.select_nth_unstable_by(kept, by_logit);
        order.truncate(kept);
    }
    order.sort_unstable_by(by_logit);
    let Some(&likeliest) = order.first() else { return 0 };
    let temperature = f64::from(sampling.temperature);
    let weight = |i: u32| (f64::from(logits[i as usize] - logits[likeliest as usize]) / temperature).exp();
    let weights = order.iter().map(|&i| weight(i)).collect::<Vec<_>>();
    let total = weights.iter().sum::<f64>();
    let mut nucleus = 0.0;
    let inside = weights.iter().take_while(|w| {
        let before = nucleus;
        nucleus += **w;
        before < f64::from(sampling.top_p) * total
    });
    let inside = inside.count().max(1);
    let bits =
        philox([draw as u32, (draw >> 32) as u32, 0, 0x5A3E], [sampling.seed as u32, (sampling.seed >> 32) as u32]);
    let mut left = f64::from(bits[0]) / 4_294_967_296.0 * weights[..inside].iter().sum::<f64>();
    for (&token, weight) in order[..inside].iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return token;
        }
    }
    order[inside - 1]
}

/// Generates text with the programs `sample` and `prefill` or `encode` of an engine's plan, for up to as many prompts
/// at a time as the plan has rows.
pub struct Writer<'e> {
    engine: &'e mut Engine,
    rows: usize,
    capacity: usize,
    prefill: usize,
    /// The tokens fed so far per row, all of the same length.
    contexts: Vec<Vec<u32>>,
    /// (B, V).
    logits: Vec<f32>,
    source: Option<Source>,
}

/// The input that a decoder attends to.
struct Source {
    /// The id that starts the decoder.
    start: u32,
    /// Maximum number of tokens.
    capacity: usize,
    /// (B, S): 1 for each token of the source, 0 for padding.
    segments: Vec<i32>,
}

impl<'e> Writer<'e> {
    /// A writer with empty contexts. `decoder_start` is the id that starts a decoder, if there is one.
    pub fn new(engine: &'e mut Engine, decoder_start: Option<u32>) -> Self {
        let plan = engine.plan();
        let capacity = plan
            .tensors
            .iter()
            .find(|t| t.storage == plimsoll_graph::Storage::Carried)
            .map_or(0, |cache| cache.ty.shape[1]);
        let columns = |program: ProgramKind| {
            let port = plan.program(program).and_then(|program| program.ports.tokens);
            port.map(|tokens| plan[tokens].ty.columns())
        };
        let logits = &plan[engine.ports(ProgramKind::Sample).logits.expect("sample gives logits")].ty;
        let (rows, elements) = (logits.rows(), logits.elements());
        let source = decoder_start.zip(columns(ProgramKind::Encode));
        let source = source.map(|(start, capacity)| Source { start, capacity, segments: vec![0; rows * capacity] });
        let prefill = columns(ProgramKind::Prefill).unwrap_or(1);
        Self { engine, rows, capacity, prefill, contexts: vec![vec![]; rows], logits: vec![0.0; elements], source }
    }

    /// Number of prompts processed at a time.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Reads the decoder's sources, one per row, and clears the contexts; does nothing without a decoder. Truncates a
    /// source that is too long. Panics unless there is one per row.
    pub fn encode(&mut self, sources: &[&[u32]]) -> Result<(), TrainError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        assert_eq!(sources.len(), self.rows, "sources");
        let mut ids = vec![0; source.segments.len()];
        source.segments.fill(0);
        let rows = ids.chunks_exact_mut(source.capacity).zip(source.segments.chunks_exact_mut(source.capacity));
        for ((ids, segments), tokens) in rows.zip(sources) {
            for ((id, segment), &token) in ids.iter_mut().zip(segments).zip(*tokens) {
                (*id, *segment) = (token as i32, 1);
            }
        }
        self.contexts.iter_mut().for_each(Vec::clear);
        let feed = Feed { tokens: &ids, segments: &source.segments, ..Feed::default() };
        self.engine.run_fed(ProgramKind::Encode, &feed, &Scalars::default())
    }

    /// Appends the same number of tokens to the context of each row and returns the logits (B, V) of the next token.
    /// When the contexts are full, drops their older half; [`Writer::write`] ends a decoder's answer there. Panics if
    /// there are no tokens, or if rows have different numbers.
    pub fn feed(&mut self, tokens: &[&[u32]]) -> Result<&[f32], TrainError> {
        let count = tokens[0].len();
        assert!(
            count > 0 && tokens.len() == self.rows && tokens.iter().all(|t| t.len() == count),
            "tokens of each row"
        );
        let mut done = self.contexts[0].len();
        for (context, tokens) in self.contexts.iter_mut().zip(tokens) {
            context.extend_from_slice(&tokens[count.saturating_sub(self.capacity)..]);
            if context.len() > self.capacity {
                let keep = (self.capacity / 2).max(1);
                context.drain(..context.len() - keep);
                done = 0;
            }
        }
        while done < self.contexts[0].len() {
            done += self.feed_once(done)?;
        }
        Ok(&self.logits)
    }

    /// Feeds tokens of the contexts from `position` on, up to the capacity of one program; returns their number.
    fn feed_once(&mut self, position: usize) -> Result<usize, TrainError> {
        let left = self.contexts[0].len() - position;
        let wide = left.min(self.prefill) > 1 && position + self.prefill <= self.capacity;
        let (program, width) = if wide { (ProgramKind::Prefill, self.prefill) } else { (ProgramKind::Sample, 1) };
        let fed = left.min(width);
        let mut ids = vec![0; self.rows * width];
        for (ids, context) in ids.chunks_exact_mut(width).zip(&self.contexts) {
            ids.iter_mut().zip(&context[position..position + fed]).for_each(|(id, &token)| *id = token as i32);
        }
        let scalars = Scalars { position: position as u32, row: fed as u32 - 1, ..Scalars::default() };
        let segments = self.source.as_ref().map_or(&[][..], |source| &source.segments);
        let feed = Feed { tokens: &ids, segments, decoder_segments: &vec![1; ids.len()], ..Feed::default() };
        self.engine.run_fed(program, &feed, &scalars)?;
        let logits = self.engine.ports(program).logits.expect("sampling programs give logits");
        self.engine.read(logits, &mut self.logits)?;
        Ok(fed)
    }

    /// Continues prompts, or answers them if there is a decoder, by at most `max_tokens` tokens each, until one of
    /// `stops`, or, with a decoder, until its cache is full. Never draws ids from `vocab` on. `on_token` receives each
    /// token and the index of its prompt; it returns whether to continue that prompt. Panics if there are no prompts or
    /// more than rows, if one is empty, or if continued prompts have different lengths.
    pub fn write(
        &mut self,
        prompts: &[&[u32]],
        max_tokens: usize,
        vocab: usize,
        stops: &[u32],
        sampling: &Sampling,
        on_token: &mut dyn FnMut(usize, u32) -> bool,
    ) -> Result<(), TrainError> {
        // Rows without a prompt repeat the first; their output is discarded.
        let of_row = |row: usize| prompts.get(row).copied().unwrap_or(prompts[0]);
        let prompts_of_rows = (0..self.rows).map(of_row).collect::<Vec<_>>();
        self.encode(&prompts_of_rows)?;
        let mut next = match &self.source {
            Some(source) => vec![vec![source.start]; self.rows],
            None => prompts_of_rows.iter().map(|prompt| prompt.to_vec()).collect(),
        };
        let mut open = vec![true; prompts.len()];
        for draw in 0..max_tokens as u64 {
            // A decoder has no positions past the longest target of its plan.
            if self.source.is_some() && self.contexts[0].len() == self.capacity {
                break;
            }
            let fed = next.iter().map(Vec::as_slice).collect::<Vec<_>>();
            let logits = self.feed(&fed)?;
            let drawn = logits.chunks_exact(logits.len() / next.len());
            next = drawn.map(|logits| vec![choose(&logits[..vocab.min(logits.len())], sampling, draw)]).collect();
            for (prompt, open) in open.iter_mut().enumerate() {
                let token = next[prompt][0];
                *open = *open && !stops.contains(&token) && on_token(prompt, token);
            }
            if !open.contains(&true) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 1 };

    fn counts(logits: &[f32], sampling: Sampling) -> Vec<u32> {
        let mut counts = vec![0; logits.len()];
        for draw in 0..4000 {
            counts[choose(logits, &sampling, draw) as usize] += 1;
        }
        counts
    }

    #[test]
    fn draws_follow_the_distribution() {
        let probabilities = [0.5f32, 0.25, 0.125, 0.125];
        let counts = counts(&probabilities.map(f32::ln), PLAIN);
        for (count, p) in counts.iter().zip(probabilities) {
            assert!((*count as f32 / 4000.0 - p).abs() < 0.03, "{counts:?}");
        }
    }

    #[test]
    fn top_k_top_p_and_temperature_narrow_it() {
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        assert!(counts(&logits, Sampling { top_k: Some(2), ..PLAIN })[2..].iter().all(|&c| c == 0));
        assert_eq!(counts(&logits, Sampling { top_p: 0.6, ..PLAIN })[2..], [0, 0]);
        assert_eq!(counts(&logits, Sampling { top_p: 0.01, ..PLAIN })[0], 4000);
        assert_eq!(counts(&logits, Sampling { temperature: 0.0, ..PLAIN })[0], 4000);
        assert!(counts(&logits, Sampling { temperature: 5.0, ..PLAIN })[0] < 1500);
    }

    #[test]
    fn logits_that_are_not_numbers_are_never_drawn() {
        assert_eq!(counts(&[f32::NAN, 0.0, f32::NEG_INFINITY], PLAIN), [0, 4000, 0]);
        assert_eq!(choose(&[f32::NAN; 3], &PLAIN, 0), 0);
        assert_eq!(choose(&[0.0], &Sampling { top_k: Some(0), ..PLAIN }, 0), 0);
    }
}
