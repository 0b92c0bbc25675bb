//! Writing text: a prompt is read some tokens at a time, then each next token is drawn from the model's distribution.

use crate::{Engine, Feed, TrainError};
use exec::philox;
use graph::Scalars;

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; 0 takes the likeliest token.
    pub temperature: f32,
    /// Only so many of the likeliest tokens are drawn from; none: all.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability are drawn from; 1: all.
    pub top_p: f32,
    /// Seed.
    pub seed: u64,
}

/// Draws a token from logits (V). `draw` counts the draws of a text. Tokens whose logit is not a number are never
/// drawn; if none is a number, token 0 is.
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

/// Writes text with the programs `sample` and `prefill` or `encode` of an engine's plan.
pub struct Writer<'e> {
    engine: &'e mut Engine,
    capacity: usize,
    prefill: usize,
    context: Vec<u32>,
    logits: Vec<f32>,
    source: Option<Source>,
}

/// What a decoder attends to.
struct Source {
    /// The id that the decoder begins with.
    start: u32,
    /// Tokens that fit.
    capacity: usize,
    /// 1 for each token of the source that was read, 0 for padding.
    segments: Vec<i32>,
}

impl<'e> Writer<'e> {
    /// A writer with an empty context. `decoder_start` is the id that a decoder begins with, where there is one.
    pub fn new(engine: &'e mut Engine, decoder_start: Option<u32>) -> Self {
        let plan = engine.plan();
        let capacity =
            plan.tensors.iter().find(|t| t.storage == graph::Storage::Carried).map_or(0, |cache| cache.ty.shape[0]);
        let elements = |program: &str| {
            let port = plan.program(program).and_then(|program| program.ports.tokens);
            port.map(|tokens| plan[tokens].ty.elements())
        };
        let source = decoder_start.zip(elements("encode"));
        let source = source.map(|(start, capacity)| Source { start, capacity, segments: vec![0; capacity] });
        let logits = engine.ports("sample").logits.expect("sample gives logits");
        let (prefill, vocab) = (elements("prefill").unwrap_or(1), plan[logits].ty.elements());
        Self { engine, capacity, prefill, context: Vec::new(), logits: vec![0.0; vocab], source }
    }

    /// Reads what the decoder answers to, and forgets what was written before; does nothing where there is no decoder.
    /// Of a source that is too long, the beginning is read.
    pub fn encode(&mut self, tokens: &[u32]) -> Result<(), TrainError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        let read = tokens.len().min(source.capacity);
        let mut ids = tokens[..read].iter().map(|&id| id as i32).collect::<Vec<_>>();
        ids.resize(source.capacity, 0);
        source.segments.fill(0);
        source.segments[..read].fill(1);
        self.context.clear();
        let feed = Feed { tokens: &ids, segments: &source.segments, ..Feed::default() };
        self.engine.run_fed("encode", &feed, &Scalars::default())
    }

    /// Appends tokens to the context and returns the logits (V) of what comes next. `tokens` must not be empty.
    /// When the context is full, its older half is forgotten.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], TrainError> {
        let tokens = &tokens[tokens.len().saturating_sub(self.capacity)..];
        let mut done = self.context.len();
        self.context.extend_from_slice(tokens);
        if self.context.len() > self.capacity {
            let keep = (self.capacity / 2).max(1);
            self.context.drain(..self.context.len() - keep);
            done = 0;
        }
        while done < self.context.len() {
            done += self.feed_once(done)?;
        }
        Ok(&self.logits)
    }

    /// Feeds as many of the context's tokens from `position` on as one program takes; returns their number.
    fn feed_once(&mut self, position: usize) -> Result<usize, TrainError> {
        let left = self.context.len() - position;
        let wide = left > 1 && position + self.prefill <= self.capacity;
        let (program, width) = if wide { ("prefill", self.prefill) } else { ("sample", 1) };
        let fed = left.min(width);
        let mut ids = self.context[position..position + fed].iter().map(|&id| id as i32).collect::<Vec<_>>();
        ids.resize(width, 0);
        let scalars = Scalars { position: position as u32, row: fed as u32 - 1, ..Scalars::default() };
        let segments = self.source.as_ref().map_or(&[][..], |source| &source.segments);
        let feed = Feed { tokens: &ids, segments, decoder_segments: &vec![1; width], ..Feed::default() };
        self.engine.run_fed(program, &feed, &scalars)?;
        let logits = self.engine.ports(program).logits.expect("sampling programs give logits");
        self.engine.read(logits, &mut self.logits)?;
        Ok(fed)
    }

    /// Continues a prompt (not empty), or answers to it where there is a decoder, by at most `max_tokens` tokens, or until `stop`. Ids from `vocab` on are never
    /// drawn. `on_token` is told each token; it returns whether to go on.
    pub fn write(
        &mut self,
        prompt: &[u32],
        max_tokens: usize,
        vocab: usize,
        stop: Option<u32>,
        sampling: &Sampling,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<(), TrainError> {
        self.encode(prompt)?;
        let mut next = self.source.as_ref().map_or_else(|| prompt.to_vec(), |source| vec![source.start]);
        for draw in 0..max_tokens as u64 {
            let logits = self.feed(&next)?;
            let token = choose(&logits[..vocab.min(logits.len())], sampling, draw);
            if Some(token) == stop || !on_token(token) {
                break;
            }
            next = vec![token];
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
