//! The sample that a run writes at its end.

use super::prompt::{self, Text};
use super::{Given, Setup};
use crate::cli::Failure;
use crate::cli::chats::has_template;
use crate::cli::failure::exit_code;
use ::plimsoll_train::{Engine, Sampling, Writer};
use plimsoll_data::{AnswerEnds, Dataset, PADDING_TARGET};
use std::sync::atomic::{AtomicBool, Ordering};

impl Given {
    /// The token IDs and strings that end a sample.
    fn ends(&self, setup: &Setup<'_>) -> Result<AnswerEnds, Failure> {
        Ok(match has_template(setup.dataset) {
            true => self.args.chats.template(&self.tokenizer)?.answer_ends(&self.tokenizer),
            false => AnswerEnds::of(&self.tokenizer),
        })
    }

    /// Held-out text that begins with words, a held-out source, or a held-out chat up to its first answer; from the
    /// training data if nothing is held out.
    fn prompt(&self, setup: &Setup<'_>) -> Result<Vec<u32>, Failure> {
        let held_out = setup.dataset.held_out_batches(prompt::SAMPLES, 1)?.collect::<Result<Vec<_>, _>>()?;
        let batches = if held_out.is_empty() { setup.dataset.step(0, 1, 1)?.micro } else { held_out };
        let has_answers = matches!(&**setup.dataset, Dataset::Packed(packed) if packed.chats().is_some());
        let rows = batches.iter().map(|batch| {
            let real = match &batch.segments {
                // The first target is the token after the question.
                _ if has_answers => 1 + batch.targets.iter().position(|&target| target != PADDING_TARGET).unwrap_or(0),
                Some(segments) => segments.iter().take_while(|&&segment| segment == 1).count(),
                None => batch.tokens.len(),
            };
            batch.tokens[..real.max(1)].iter().map(|&id| id as u32).collect::<Vec<_>>()
        });
        let rows = rows.collect::<Vec<_>>();
        if self.chosen.has_decoder() || has_answers {
            return Ok(rows.into_iter().next().unwrap_or_default());
        }
        // A prompt does not continue from one document into the next.
        let (separator, beginning) = (self.tokenizer.separator(), self.tokenizer.beginning());
        let texts = rows.iter().flat_map(|ids| ids.split(|&id| Some(id) == separator).enumerate());
        let texts = texts.filter(|(_, ids)| !ids.is_empty()).map(|(n, ids)| {
            let text = ids.strip_prefix(beginning).unwrap_or(ids);
            Text { ids: text, is_whole: n > 0 || text.len() < ids.len() }
        });
        let texts = texts.collect::<Vec<_>>();
        let most = (setup.found.plan.seq_len / 2).clamp(1, 32);
        let prompt = prompt::choose(&texts, most, |ids| self.tokenizer.decode(ids));
        // If documents are empty, the prompt is a separator.
        Ok(match prompt.is_empty() {
            true => rows.into_iter().flatten().take(1).collect(),
            false => [beginning, &prompt].concat(),
        })
    }

    /// Continues the start of held-out text. Errors: `stop` is set before it ends.
    pub(super) fn write_sample(
        &self,
        setup: &Setup<'_>,
        engine: &mut Engine,
        stop: &AtomicBool,
    ) -> Result<[String; 2], Failure> {
        let prompt = self.prompt(setup)?;
        let sampling = Sampling { temperature: 0.8, top_k: None, top_p: 0.95, seed: setup.trainer.seed };
        let mut written = Vec::new();
        let (most, vocab) = (self.args.run.sample_tokens as usize, self.tokenizer.vocab_size());
        let decoder_start = self.chosen.config.decoder_start();
        let text = |ids: &[u32]| String::from_utf8_lossy(&self.tokenizer.decode(ids)).into_owned();
        let ends = self.ends(setup)?;
        let mut on_token = |_, token| {
            written.push(token);
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            ends.texts.is_empty() || !ends.texts.iter().any(|end| text(&written).contains(end))
        };
        Writer::new(engine, decoder_start).write(&[&prompt], most, vocab, &ends.ids, &sampling, &mut on_token)?;
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::new(exit_code::INTERRUPTED, "interrupted"));
        }
        Ok([text(&prompt), text(&written)])
    }
}
