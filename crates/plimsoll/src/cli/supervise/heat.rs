//! `plimsoll run --max-temp`: slows or stops commands when the cards that they may use get hot.
//! Not here: sampling (`watch.rs`), stopping commands (`plimsoll-supervise`), and the decision for each sample
//! (`plimsoll_session::Guarded`).

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
    /// Highest GPU temperature in degrees Celsius: above it, Plimsoll asks the command to end, with exit code 6. The
    /// GPU's own limit applies if it is lower [default: 83; heat is watched only if one of these four flags is given]
    #[arg(long, value_name = "C")]
    max_temp: Option<f64>,
    /// Temperature to hold by slowing the command: it is stopped for some seconds at a time [default: 78]
    #[arg(long, value_name = "C")]
    throttle_temp: Option<f64>,
    /// Temperature below which a slowed command runs at full speed again [default: 70]
    #[arg(long, value_name = "C")]
    resume_temp: Option<f64>,
    /// As `--max-temp`, for the GPU's memory if the GPU reports its temperature [default: 100]
    #[arg(long, value_name = "C")]
    memory_temp: Option<f64>,
    /// Time between two samples of the GPUs: `1s`, `0.5s`, `1m`
    #[arg(long, value_name = "TIME", value_parser = sample_time, default_value = "1s")]
    sample_every: Seconds,
}

/// Cards, and the workers that may use them.
struct Watched {
    cards: Vec<String>,
    workers: Vec<usize>,
}

impl HeatArgs {
    /// The requested limits, if any. Errors: they contradict each other.
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

    /// If heat limits were requested, gives the job a pacer and returns guards for the cards of its workers. Errors:
    /// the limits contradict each other.
    pub(super) fn guards(&self, job: &mut Job) -> Result<Option<Guards>, Failure> {
        let Some(settings) = self.settings()? else { return Ok(None) };
        let pacer = Pacer::new(job.workers.len(), self.sample_every, exit_code::TOO_HOT.into());
        job.pacer = Some(pacer.clone());
        let watched = watched(job);
        if watched.iter().all(|watched| watched.cards.is_empty()) {
            pacer.note("GPUs".to_owned(), "found none that the command may use: heat is not watched".to_owned());
            return Ok(None);
        }
        let guard = |Watched { cards, workers }| (Guarded::new(cards, settings, "ending the run"), workers);
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
    /// Updates the pace of the workers from a sample.
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

/// Which workers may use which cards: each worker its own card, or all visible ones.
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
