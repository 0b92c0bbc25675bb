//! Samples cards and the machine while a supervised run lasts: stores the samples in its folder, puts the peak memory
//! of its cards into its report, slows it for heat, and sends a status when one is due.
//! Not here: heat (`heat.rs`), messages about events (`reporter.rs`).

use super::heat::HeatArgs;
use super::visible::cards;
use crate::cli::Failure;
use crate::cli::failure::no_thread;
use crate::cli::samples::{say_lost, say_not_kept};
use plimsoll_files::Disk;
use plimsoll_notify::{Card, Kind, Message, Notifier};
use plimsoll_registry::progress_of;
use plimsoll_session::KeptSamples;
use plimsoll_supervise::Job;
use plimsoll_telemetry::{Sample, Sampler, SamplerOptions};
use plimsoll_units::{Seconds, format_duration};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Samples until the returned value is dropped. Errors: the heat limits contradict each other; the system starts no
/// thread.
pub(super) fn watch(job: &mut Job, heat: &HeatArgs, notifier: Option<Arc<Notifier>>) -> Result<Sampler, Failure> {
    let mut guards = heat.guards(job)?;
    let folder = job.folder.path().to_owned();
    let status = notifier.map(|notifier| StatusTeller {
        notifier,
        run: job.folder.name(),
        folder: folder.clone(),
        workers: job.workers.len(),
        began: Instant::now(),
    });
    let (mut kept, refused) = KeptSamples::open(&folder, &Disk::default());
    refused.iter().for_each(say_not_kept);
    let (uuids, peaks) = (cards(), job.peaks.clone());
    let each = move |sample: &Arc<Sample>| {
        kept.append(sample).iter().for_each(say_lost);
        peaks.observe(sample, &uuids);
        guards.iter_mut().for_each(|guards| guards.observe(sample));
        status.iter().for_each(|status| status.tell(sample));
    };
    let options = SamplerOptions { every: heat.every(), folder: Some(folder) };
    Sampler::start(options, each).map_err(no_thread("can't sample the GPUs and the machine"))
}

/// Sends the progress of a run when that is due.
struct StatusTeller {
    notifier: Arc<Notifier>,
    run: String,
    folder: PathBuf,
    workers: usize,
    began: Instant,
}

impl StatusTeller {
    fn tell(&self, sample: &Sample) {
        // Read the output only if a service may want a message.
        if !self.notifier.is_progress_due(u64::MAX) {
            return;
        }
        let progress = progress_of(&self.folder, self.workers);
        let step = progress.map(|progress| progress.step);
        if !self.notifier.is_progress_due(step.unwrap_or(0)) {
            return;
        }
        let time = format_duration(Seconds(self.began.elapsed().as_secs_f64()));
        let message = Message {
            step,
            last_step: progress.and_then(|progress| progress.of),
            cards: Card::of_sample(sample),
            ..Message::new(Kind::Progress, self.run.clone(), format!("Running for {time}."), sample.time_s)
        };
        self.notifier.send(&message);
    }
}
