//! The last messages of a run: what is on disk, and the command that resumes it.

use super::{Given, Setup};
use crate::cli::Failure;
use crate::cli::blas::library_flag;
use crate::cli::chats::has_template;
use crate::cli::failure::exit_code;
use crate::cli::quoted::for_a_shell;
use crate::cli::story::read_story;
use crate::streams::talk;
use ::plimsoll_train::checkpoint::newest_whole;
use ::plimsoll_train::{Ending, Outcome};
use plimsoll_render::run_html;
use plimsoll_watch::Sample;
use std::path::Path;

impl Given {
    /// The exit code of an outcome, with its last messages. Errors: its state is not completely on disk, or it
    /// diverged.
    pub(super) fn conclude(&self, outcome: &Outcome, setup: &Setup<'_>) -> Result<u8, Failure> {
        let resume = resume_command(setup);
        if let Some(reason) = &outcome.unsaved {
            let step = outcome.report.losses.len();
            let failure = Failure::device(format!("the state after step {step} is not on disk: {reason}"));
            return Err(failure.hint(on_disk(outcome)).hint(match outcome.saved {
                Some(_) => format!("free disk space, then rerun the steps since then: {resume}"),
                None => format!("free disk space, then start again: {}", self.start_command(setup)),
            }));
        }
        if outcome.ending == Ending::Diverged {
            return Err(divergence(outcome, &resume, setup));
        }
        if let Some(error) = &outcome.unreported {
            let message = format!("the run is saved, but writing its report failed: {error}");
            return Err(Failure::device(message).hint(on_disk(outcome)));
        }
        match outcome.ending {
            Ending::Interrupted => {
                talk(format_args!("interrupted; resume with:\n  {resume}"));
                Ok(exit_code::INTERRUPTED)
            }
            Ending::TooHot => {
                talk(format_args!("stopped for heat; when the GPU has cooled, resume with:\n  {resume}"));
                Ok(exit_code::TOO_HOT)
            }
            Ending::Finished | Ending::Replanned | Ending::Diverged => Ok(exit_code::DONE),
        }
    }

    /// Adds what is on disk, and the command that continues from it, to a failure in the middle of a run.
    pub(super) fn cut_short(&self, failure: Failure, setup: &Setup<'_>) -> Failure {
        match newest_whole(&setup.folder.checkpoints()).map(|newest| newest.found) {
            Ok(Some((path, state))) => failure
                .hint(words_of_saved(state.step, &path))
                .hint(format!("to continue from it, run: {}", resume_command(setup))),
            Ok(None) => {
                failure.hint(NOTHING_SAVED).hint(format!("to start the run again: {}", self.start_command(setup)))
            }
            Err(error) => failure.hint(format!("the run's checkpoints can't be read: {error}")),
        }
    }

    /// The command that starts this run again if it has no checkpoint: its folder has its settings, but not the source
    /// of its weights.
    fn start_command(&self, setup: &Setup<'_>) -> String {
        let path = setup.folder.path();
        let [runs, name] = [path.parent(), path.file_name().map(Path::new)].map(|part| part.unwrap_or(path));
        let [runs, name] = [runs, name].map(|part| for_a_shell(&part.to_string_lossy()));
        let weights = self.args.run.init.as_ref();
        let weights = weights.map_or(String::new(), |path| format!(" --init {}", for_a_shell(&path.to_string_lossy())));
        let library = library_flag().map_or(String::new(), |path| format!(" --blas {}", for_a_shell(&path)));
        format!("plimsoll train --resume auto --runs-dir {runs} --name {name}{weights}{library}")
    }
}

/// Writes the model's sample at the end of the run. A failed write is a warning, and does not fail the run.
pub(super) fn keep_sample([prompt, text]: &[String; 2], step: u64, setup: &Setup<'_>) {
    let sample = Sample { step, prompt: prompt.clone(), text: text.clone() };
    let json = serde_json::to_vec_pretty(&sample).expect("a sample is plain data");
    if let Err(error) = setup.folder.write(&setup.folder.sample(), &json) {
        talk(format_args!("warning: the sample was not saved: {error}"));
    }
}

/// Writes the run's page. Returns its path, or why it was not written, which does not fail the run.
pub(super) fn write_page(setup: &Setup<'_>) -> String {
    let page = setup.folder.page();
    let written = read_story(setup.folder.path())
        .map_err(|error| error.to_string())
        .and_then(|run| setup.folder.write(&page, run_html(&run).as_bytes()).map_err(|error| error.to_string()));
    match written {
        Ok(()) => page.display().to_string(),
        Err(error) => format!("not written: {error}"),
    }
}

fn divergence(outcome: &Outcome, resume: &str, setup: &Setup<'_>) -> Failure {
    let steps = outcome.report.losses.len() as u64;
    if steps > 0 && outcome.report.updates_skipped == steps {
        let message = format!("nothing was trained: the gradients of all {steps} steps overflowed in fp16");
        return Failure::new(exit_code::DIVERGED, message).hint(
            "`--precision bf16` does not overflow; with fp16, use a lower `--loss-scale` or more steps, each of which halves the scale",
        );
    }
    let rate = setup.trainer.schedule.learning_rate / 2.0;
    let message = "the loss, a gradient or a weight is not finite; no checkpoint contains that step";
    let failure = Failure::new(exit_code::DIVERGED, message);
    if outcome.saved.is_some() {
        failure.hint(format!("resume from the last checkpoint at a lower rate: {resume} --learning-rate {rate:?}"))
    } else {
        failure.hint("use a lower `--learning-rate` or a longer `--warmup-steps`")
    }
}

/// The command that resumes this run with the same matrix library. It names the library again, since a run's folder
/// does not choose one.
fn resume_command(setup: &Setup<'_>) -> String {
    let library = library_flag().map_or(String::new(), |path| format!(" --blas {}", for_a_shell(&path)));
    format!("plimsoll train --resume {}{library}", for_a_shell(&setup.folder.path().to_string_lossy()))
}

/// The command that talks to the trained model if it was trained on chats, or else continues a line of this prompt.
pub(super) fn generate_command(prompt: &str, setup: &Setup<'_>) -> String {
    let run = setup.folder.path().to_string_lossy();
    if has_template(setup.dataset) {
        return format!("plimsoll generate --checkpoint {} --chat", for_a_shell(&run));
    }
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("Once");
    format!("plimsoll generate --checkpoint {} --prompt={}", for_a_shell(&run), for_a_shell(line))
}

/// The newest checkpoint on disk.
fn on_disk(outcome: &Outcome) -> String {
    match &outcome.saved {
        Some((step, path)) => words_of_saved(*step, path),
        None => NOTHING_SAVED.to_owned(),
    }
}

fn words_of_saved(step: u64, path: &Path) -> String {
    format!("the newest checkpoint on disk is {}, after step {step}", path.display())
}

const NOTHING_SAVED: &str = "no checkpoint is on disk";
