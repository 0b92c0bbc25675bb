//! `plimsoll run --max-temp`: heat of the cards that commands may use decides how fast these may go.
//! Not here: who samples (`watch.rs`), who stops commands (`plimsoll-supervise`), and what is made of a sample (`plimsoll_session::Guarded`).

use super::visible::cards;
use crate::cli::Failure;
use crate::cli::failure::exit_code;
use crate::cli::heat::checked;
use crate::cli::train::sample_time;
use clap::Args;
use plimsoll_heat::Settings;
use plimsoll_session::Guarded;
use plimsoll_supervise::{Job, Pacer, run_slice};
use plimsoll_telemetry::Sample;
use plimsoll_units::Seconds;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Args)]
pub(super) struct HeatArgs {
    /// Degrees Celsius of a card above which the command is asked to end, with exit code 6; the card's own limit if that is
    /// lower [default: 83, and heat is watched only if one of these four is given]
    #[arg(long, value_name = "C")]
    max_temp: Option<f64>,
    /// From here on the command is slowed, by stopping it for some seconds at a time, so that the card stays here [default: 78]
    #[arg(long, value_name = "C")]
    throttle_temp: Option<f64>,
    /// Below this a command that was slowed runs freely again [default: 70]
    #[arg(long, value_name = "C")]
    resume_temp: Option<f64>,
    /// As `--max-temp`, of the card's memory, where it tells [default: 100]
    #[arg(long, value_name = "C")]
    memory_temp: Option<f64>,
    /// Time between two samples of the cards: `1s`, `0.5s`, `1m`
    #[arg(long, value_name = "TIME", value_parser = sample_time, default_value = "1s")]
    sample_every: Seconds,
}

/// Cards, and the workers that may use them.
struct Watched {
    cards: Vec<String>,
    workers: Vec<usize>,
}

impl HeatArgs {
    /// The limits that are asked for, if any is. Errors: they are none.
    pub(super) fn settings(&self) -> Result<Option<Settings>, Failure> {
        let Self { max_temp, throttle_temp, resume_temp, memory_temp, .. } = *self;
        if [max_temp, throttle_temp, resume_temp, memory_temp].iter().all(Option::is_none) {
            return Ok(None);
        }
        let usual = Settings::default();
        checked(Settings {
            max_c: max_temp.unwrap_or(usual.max_c),
            throttle_c: throttle_temp.unwrap_or(usual.throttle_c),
            resume_c: resume_temp.unwrap_or(usual.resume_c),
            memory_max_c: memory_temp.unwrap_or(usual.memory_max_c),
        })
        .map(Some)
    }

    /// Time between two samples.
    pub(super) fn every(&self) -> Duration {
        Duration::from_secs_f64(self.sample_every.0)
    }

    /// Gives a job a pacer and the cards of its workers guards, if that is asked for. Errors: the limits are none.
    pub(super) fn guards(&self, job: &mut Job) -> Result<Option<Guards>, Failure> {
        let Some(settings) = self.settings()? else { return Ok(None) };
        let pacer = Pacer::new(job.workers.len(), self.sample_every, exit_code::TOO_HOT.into());
        job.pacer = Some(pacer.clone());
        let watched = watched(job);
        if watched.iter().all(|watched| watched.cards.is_empty()) {
            pacer.note("cards".to_owned(), "none is known that the command may use: heat is not watched".to_owned());
            return Ok(None);
        }
        let guard = |Watched { cards, workers }| (Guarded::new(cards, settings, "the run is asked to end"), workers);
        Ok(Some(Guards { guarded: watched.into_iter().map(guard).collect(), pacer, began: Instant::now() }))
    }
}

/// The guards of a run's cards, and who may use which.
pub(super) struct Guards {
    guarded: Vec<(Guarded, Vec<usize>)>,
    pacer: Pacer,
    began: Instant,
}

impl Guards {
    /// Gives orders by a sample.
    pub(super) fn observe(&mut self, sample: &Sample) {
        let now = Seconds(self.began.elapsed().as_secs_f64());
        for (guarded, workers) in &mut self.guarded {
            let (order, told) = guarded.observe(sample, now, |_| None);
            told.into_iter().for_each(|told| self.pacer.note(told.card, told.what));
            if let Some(order) = order {
                if let Some(slice) = run_slice(order) {
                    guarded.guard().micro_batch(slice);
                }
                self.pacer.give(workers, order);
            }
        }
    }
}

/// Which cards which workers may use: each the one that it is given, or all that can be seen.
fn watched(job: &Job) -> Vec<Watched> {
    let visible = cards();
    let mut all: Vec<Watched> = Vec::new();
    for (worker, (share, _)) in job.workers.iter().enumerate() {
        let cards = share.card.clone().map_or_else(|| visible.clone(), |card| vec![card]);
        match all.iter_mut().find(|watched| watched.cards == cards) {
            Some(watched) => watched.workers.push(worker),
            None => all.push(Watched { cards, workers: vec![worker] }),
        }
    }
    all
}
