//! Computes the vectors of texts with the programs `embed` of an engine's plan.

use crate::{Engine, Feed, TrainError};
use plimsoll_graph::{ProgramKind, ProgramName, Scalars, TensorId};

/// Computes vectors, for up to as many texts at a time as the plan has rows.
pub struct Embedder<'e> {
    engine: &'e mut Engine,
    programs: Vec<Program>,
    rows: usize,
    /// (B, C).
    vectors: Vec<f32>,
    channels: usize,
}

/// A program of the plan.
struct Program {
    name: ProgramName,
    tokens: usize,
    vectors: TensorId,
}

impl<'e> Embedder<'e> {
    /// An embedder for an engine whose plan is from `plan_embedding`. Panics if the plan has no program `embed`.
    pub fn new(engine: &'e mut Engine) -> Self {
        let plan = engine.plan();
        let programs = plan.programs.iter().filter(|program| program.name.kind == ProgramKind::Embed);
        let programs = programs.filter_map(|program| {
            let (tokens, vectors) = (program.ports.tokens?, program.ports.vectors?);
            Some(Program { name: program.name, tokens: plan[tokens].ty.columns(), vectors })
        });
        let mut programs = programs.collect::<Vec<_>>();
        programs.sort_by_key(|program| program.tokens);
        let ty = &plan[programs.first().expect("the plan computes vectors").vectors].ty;
        let (rows, channels) = (ty.rows(), ty.columns());
        Self { programs, rows, channels, vectors: vec![0.0; rows * channels], engine }
    }

    /// Number of texts processed at a time.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Channels of a vector.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Largest number of tokens of a text.
    pub fn longest(&self) -> usize {
        self.programs.last().map_or(0, |program| program.tokens)
    }

    /// The vectors (N, C) of N texts, each of at least one token. Panics if there are more texts than rows, or if one is
    /// longer than the plan's longest.
    pub fn embed(&mut self, texts: &[&[u32]]) -> Result<&[f32], TrainError> {
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        assert!(texts.len() <= self.rows, "{} texts in {} rows", texts.len(), self.rows);
        let program = self.programs.iter().find(|program| program.tokens >= longest).expect("the longest text fits");
        let mut tokens = vec![0; self.rows * program.tokens];
        let mut segments = vec![0; tokens.len()];
        let rows = tokens.chunks_exact_mut(program.tokens).zip(segments.chunks_exact_mut(program.tokens));
        for ((ids, segments), text) in rows.zip(texts) {
            ids.iter_mut().zip(*text).for_each(|(id, &token)| *id = token as i32);
            segments[..text.len()].fill(1);
        }
        let feed = Feed { tokens: &tokens, segments: &segments, ..Feed::default() };
        self.engine.run_fed(program.name, &feed, &Scalars::default())?;
        self.engine.read(program.vectors, &mut self.vectors)?;
        Ok(&self.vectors[..texts.len() * self.channels])
    }
}

/// Divides each vector (of `channels` elements) by its length; a vector of length zero stays.
pub fn normalize(vectors: &mut [f32], channels: usize) {
    for vector in vectors.chunks_exact_mut(channels) {
        let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_get_length_one_and_zeros_stay() {
        let mut vectors = [3.0, 4.0, 0.0, 0.0, -1e-30, 0.0];
        normalize(&mut vectors, 2);
        assert_eq!(vectors, [0.6, 0.8, 0.0, 0.0, -1.0, 0.0]);
    }
}
