//! The repair that answers want of memory with the next step of the ladder, resumes, and remembers what helped.
//! Not here: what an end means (`ends/`), the steps (`ladder/`), processes and limits on restarts (the supervisor's).

use crate::SUCCESS;
use crate::ends::{CardAllocator, Cause, Fault, Reason, Told, classify};
use crate::failures::{Failures, Outcome, Start, Subject};
use crate::ladder::{Configuration, Ladder, Taken, resumed};
use crate::repair::{Attempt, Decision, Ending, Repair, Verdict};
use plimsoll_files::Disk;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// The key by which trainers are told to resume.
const RESUMING: &str = "resume_from_checkpoint";

/// What shells say of a command that can't be started.
const NOT_STARTED: [i32; 2] = [126, 127];

/// Repairs one worker's run.
#[derive(Debug)]
pub struct Mender {
    ladder: Ladder,
    /// The command as it was given.
    given: Configuration,
    /// Steps so far.
    taken: Vec<Taken>,
    /// Steps that the program did not take, by name.
    refused: BTreeSet<String>,
    /// Whether the last step is new, so that an end for another reason may be its fault.
    is_unproven: bool,
    /// Whether memory was short in this run, or in one before.
    has_failed: bool,
    /// The last shortage of this run.
    shortage: Option<Cause>,
    memory: Option<(Failures, Subject)>,
    disk: Disk,
    folder: PathBuf,
    /// What is to be said with the next attempt.
    notes: Vec<String>,
}

impl Mender {
    /// For a command. Copies of files are put in `folder`, which is made if one is.
    pub fn new(argv: &[OsString], ladder: Ladder, folder: PathBuf) -> Self {
        Self {
            ladder,
            given: Configuration::new(argv),
            taken: Vec::new(),
            refused: BTreeSet::new(),
            is_unproven: false,
            has_failed: false,
            shortage: None,
            memory: None,
            disk: Disk::default(),
            folder,
            notes: Vec::new(),
        }
    }

    /// Remembers by this file, for runs on this card: its name and memory.
    #[must_use]
    pub fn remembering(mut self, failures: Failures, card: &str) -> Self {
        let read = self.given.read();
        let model = read.as_ref().and_then(|read| read.model.clone()).unwrap_or_default();
        // A form that changes from one version to the next makes old entries forgotten, and no more.
        let settings = match &read {
            Some(read) => format!("{:?}", read.run),
            None => self.given.argv.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
        };
        self.memory = Some((failures, Subject { card: card.to_owned(), model, settings }));
        self
    }

    fn configuration(&self) -> &Configuration {
        self.taken.last().map_or(&self.given, |taken| &taken.configuration)
    }

    fn names(&self) -> Vec<String> {
        self.taken.iter().map(|taken| taken.name.clone()).collect()
    }

    /// Begins where the last run of the same kind came to.
    fn recall(&mut self) {
        let Some((failures, subject)) = &self.memory else { return };
        let path = failures.path().display().to_string();
        let (start, problem) = failures.start(subject);
        self.notes.extend(problem.map(|what| format!("{path} is damaged, and begun anew: {what}")));
        let (steps, failed) = match start {
            Start::AsGiven => return,
            Start::At(steps) => (steps, false),
            Start::Beyond(steps) => (steps, true),
        };
        self.has_failed = true;
        for name in &steps {
            match self.ladder.again(name, self.configuration()) {
                Some(taken) => self.taken.push(taken),
                None => break,
            }
        }
        if failed && let Ok(next) = self.next_step(&unknown_shortage()) {
            self.taken.push(next);
        }
        if !self.taken.is_empty() {
            let did =
                if failed { "failed the last time, so it begins one step further" } else { "worked the last time" };
            self.notes.push(format!("begins with what is known of this card, model and settings: {did} ({path})"));
        }
    }

    fn next_step(&self, cause: &Cause) -> Result<Taken, String> {
        self.ladder.next(self.configuration(), cause, &self.names(), &self.refused)
    }

    /// Writes files, and says what is started. The same configuration is the same attempt, so that loops are noticed.
    fn attempt(&mut self, configuration: &Configuration) -> io::Result<Attempt> {
        let mut notes: Vec<String> = self.taken.iter().flat_map(|taken| taken.notes.clone()).collect();
        notes.append(&mut self.notes);
        let step = self.taken.len() + self.refused.len();
        let argv = configuration.write(&self.disk, &self.folder.join(format!("step-{step}")))?;
        let env = configuration.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Ok(Attempt { argv, env, notes })
    }

    fn again(&mut self, why: &str) -> Decision {
        let (configuration, from) = match self.refused.contains(RESUMING) {
            true => (self.configuration().clone(), "it begins anew".to_owned()),
            false => {
                let resumed = resumed(self.configuration());
                (resumed.configuration, resumed.note)
            }
        };
        match self.attempt(&configuration) {
            Ok(attempt) => Decision::Again { attempt, why: format!("{why}; {from}") },
            Err(error) => Decision::Stop { why: format!("{why}, but files can't be written: {error}") },
        }
    }

    fn remember(&mut self, outcome: Outcome) {
        let names = self.names();
        let Some((failures, subject)) = &self.memory else { return };
        if let Err(error) = failures.remember(subject, &names, outcome) {
            self.notes.push(format!("{}: what happened is not remembered: {error}", failures.path().display()));
        }
    }

    /// Memory sufficed. Of a run that never lacked any there is nothing to remember.
    fn worked(&mut self) {
        if self.has_failed {
            self.remember(Outcome::Worked);
        }
    }

    /// Another attempt may help against what comes from outside, and not against what the command itself says.
    fn after_fault(&mut self, fault: &Fault, reason: &Reason) -> Decision {
        let said = reason.line.as_deref().map(|line| format!(": {line}")).unwrap_or_default();
        let hopeless = match fault {
            Fault::Interrupted => "it was interrupted",
            Fault::Configuration => "its settings are wrong",
            Fault::Import => "a module can't be loaded",
            Fault::DiskFull => "the disk is full",
            Fault::NotANumber => "its loss is no number, and would be again",
            Fault::KernelLimits => "a kernel needs more than the card's chip has, whatever the batch",
            Fault::DeviceAssert => "an assertion failed on the card, and would again",
            Fault::IllegalAccess
            | Fault::Cuda
            | Fault::Communication
            | Fault::Killed
            | Fault::Hang
            | Fault::Crashed { .. }
            | Fault::Exception { .. }
            | Fault::Exit { .. } => return self.again(&format!("{}{said}", reason.cause.kind())),
        };
        Decision::Stop { why: format!("{hopeless}{said}") }
    }

    fn after_memory(&mut self, reason: &Reason) -> Decision {
        self.has_failed = true;
        self.shortage = Some(reason.cause.clone());
        self.remember(Outcome::Failed(reason.cause.kind().to_owned()));
        match self.next_step(&reason.cause) {
            Ok(taken) => {
                let why = format!("{}: {}", words(&reason.cause), taken.notes.join(", "));
                self.taken.push(taken);
                self.is_unproven = true;
                self.again(&why)
            }
            Err(none) => Decision::Stop { why: format!("{}: {none}", words(&reason.cause)) },
        }
    }

    /// The program did not take the last step: an unknown flag, a module that is not there. It is undone, and the next one
    /// is taken, for the want of memory that it was to answer.
    fn after_refusal(&mut self, reason: &Reason) -> Decision {
        self.is_unproven = false;
        let said = reason.line.as_deref().unwrap_or("no word");
        let mentions = |key: &str| said.replace('-', "_").contains(key);
        if mentions(RESUMING) {
            self.refused.insert(RESUMING.to_owned());
            return self.again(&format!("the program does not know `{RESUMING}`: {said}"));
        }
        let Some(taken) = self.taken.pop() else { return Decision::Stop { why: said.to_owned() } };
        self.refused.insert(taken.name.clone());
        let why = format!("the program did not take the step `{}` ({said}), which is undone", taken.name);
        match self.next_step(&self.shortage.clone().unwrap_or_else(unknown_shortage)) {
            Ok(next) => {
                let why = format!("{why}; instead: {}", next.notes.join(", "));
                self.taken.push(next);
                self.is_unproven = true;
                self.again(&why)
            }
            Err(none) => Decision::Stop { why: format!("{why}; {none}") },
        }
    }
}

impl Repair for Mender {
    fn start(&mut self) -> Attempt {
        self.recall();
        self.attempt(&self.configuration().clone()).unwrap_or_else(|error| {
            // What can't be written can't be started; the command as it was given can.
            self.taken.clear();
            let notes = vec![format!("begins as given: {} can't be written: {error}", self.folder.display())];
            Attempt { argv: self.given.argv.clone(), env: Vec::new(), notes }
        })
    }

    fn next(&mut self, ending: &Ending) -> Verdict {
        let reason = classify(ending);
        let has_trained = ending.progress.is_some_and(|progress| progress.step > 0);
        let is_new = std::mem::take(&mut self.is_unproven) && !has_trained;
        let decision = match &reason.cause {
            _ if ending.code.is_some_and(|code| NOT_STARTED.contains(&code)) => {
                Decision::Stop { why: "the command can't be started".to_owned() }
            }
            Cause::Done => {
                self.worked();
                Decision::Stop { why: "it is done".to_owned() }
            }
            Cause::CardMemory { .. } | Cause::HostMemory(_) => self.after_memory(&reason),
            Cause::Fault(fault) if is_new && may_refuse(fault) => self.after_refusal(&reason),
            Cause::Fault(fault) => {
                if has_trained {
                    self.worked();
                }
                self.after_fault(fault, &reason)
            }
        };
        Verdict { kind: kind(&reason.cause), cause: cause(&reason), decision }
    }
}

/// The kind of an end, by which ends are counted.
fn kind(cause: &Cause) -> String {
    match cause {
        Cause::Done => SUCCESS.to_owned(),
        Cause::Fault(Fault::Crashed { signal }) => format!("signal_{signal}"),
        Cause::Fault(Fault::Exit { code }) => format!("exit_{code}"),
        cause => cause.kind().to_owned(),
    }
}

/// The same for two ends of the same cause: numbers in what was said are those of a step, a size or a process.
fn cause(reason: &Reason) -> String {
    let line: String =
        reason.line.iter().flat_map(|line| line.chars()).filter(|c| !c.is_ascii_digit()).take(200).collect();
    [kind(&reason.cause), reason.cause.detail(), line].join(" ").trim_end().to_owned()
}

/// Whether a program may end so because of a flag, a key or a value that it does not know, or a module that it lacks.
fn may_refuse(fault: &Fault) -> bool {
    matches!(fault, Fault::Configuration | Fault::Import | Fault::Exception { .. } | Fault::Exit { .. })
}

/// A shortage of which only is known that there was one.
fn unknown_shortage() -> Cause {
    Cause::CardMemory { by: CardAllocator::PyTorch, told: Told::default() }
}

/// A cause in words.
fn words(cause: &Cause) -> String {
    match cause {
        Cause::CardMemory { by, told } => {
            let tried = told.tried.map(|tried| format!(": {tried} more were asked for")).unwrap_or_default();
            format!("the card's memory did not suffice ({}{tried})", by.name())
        }
        Cause::HostMemory(by) => format!("the machine's memory did not suffice ({})", by.name()),
        cause => cause.kind().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Progress;
    use std::path::Path;

    const COMMAND: &str =
        "python run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --output_dir OUT";
    const OOM: &str = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n\
                       torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";

    fn ended(tail: &str, step: u64) -> Ending {
        let progress = (step > 0).then_some(Progress { epoch: None, step, of: None });
        Ending { code: Some(1), tail: tail.as_bytes().to_vec(), progress, ..Ending::default() }
    }

    fn oom() -> Ending {
        ended(OOM, 0)
    }

    fn error(exception: &str) -> Ending {
        ended(
            &format!(
                "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n{exception}\n"
            ),
            0,
        )
    }

    fn done() -> Ending {
        Ending { code: Some(0), ..Ending::default() }
    }

    fn mender(folder: &Path) -> Mender {
        let command = COMMAND.replace("OUT", &folder.join("out").to_string_lossy());
        let argv: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        Mender::new(&argv, Ladder::new(false, ""), folder.join("run"))
    }

    fn remembering(folder: &Path) -> Mender {
        mender(folder).remembering(Failures::at(folder.join("failures.json")), "RTX 3060")
    }

    fn flags(attempt: &Attempt) -> String {
        let words = attempt.env.iter().map(|(name, value)| format!("{}={}", name.display(), value.display()));
        words.chain(attempt.argv.iter().skip(2).map(|word| word.display().to_string())).collect::<Vec<_>>().join(" ")
    }

    fn again(verdict: Verdict) -> (Attempt, String) {
        match verdict.decision {
            Decision::Again { attempt, why } => (attempt, why),
            Decision::Stop { why } => panic!("it stopped: {why}"),
        }
    }

    fn stopped(verdict: Verdict) -> String {
        match verdict.decision {
            Decision::Stop { why } => why,
            Decision::Again { why, .. } => panic!("it goes on: {why}"),
        }
    }

    #[test]
    fn each_shortage_is_answered_by_the_next_step_until_none_is_left() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mender = mender(folder.path());
        assert!(mender.start().notes.is_empty());
        let (attempt, why) = again(mender.next(&oom()));
        assert!(flags(&attempt).contains("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
        assert!(
            why.starts_with("the card's memory did not suffice (pytorch: 2.00 GiB more were asked for): PYTORCH_CUDA"),
            "{why}"
        );
        let (attempt, _) = again(mender.next(&oom()));
        assert!(attempt.notes.iter().any(|note| note.contains("micro-batch 4 → 2")), "{:?}", attempt.notes);
        for _ in 0..3 {
            again(mender.next(&oom()));
        }
        let verdict = mender.next(&oom());
        assert_eq!((verdict.kind.as_str(), verdict.cause.starts_with("card_memory pytorch")), ("card_memory", true));
        assert!(stopped(verdict).contains("nothing is left to change"));
    }

    #[test]
    fn what_helped_is_where_the_next_run_begins_and_what_failed_is_not_tried_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut first = remembering(folder.path());
        first.start();
        again(first.next(&oom()));
        let (helped, _) = again(first.next(&oom()));
        assert_eq!(stopped(first.next(&done())), "it is done");
        let mut second = remembering(folder.path());
        let begun = second.start();
        assert_eq!((&begun.argv, &begun.env), (&helped.argv, &helped.env));
        assert!(begun.notes.last().is_some_and(|note| note.contains("worked the last time")), "{:?}", begun.notes);
        // This time it does not suffice, and the supervisor is killed.
        again(second.next(&oom()));
        let mut third = remembering(folder.path());
        assert!(flags(&third.start()).contains("--per_device_train_batch_size 1"), "one step beyond what failed");
        let mut other = remembering(folder.path());
        other.given.argv.extend(["--block_size".into(), "64".into()]);
        let mut other = Mender::new(&other.given.argv, Ladder::new(false, ""), folder.path().join("other"))
            .remembering(Failures::at(folder.path().join("failures.json")), "RTX 3060");
        assert!(other.start().notes.is_empty(), "another length is another run");
    }

    #[test]
    fn a_run_that_never_lacked_memory_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mender = remembering(folder.path());
        mender.start();
        mender.next(&done());
        assert!(!folder.path().join("failures.json").exists() && !folder.path().join("run").exists());
    }

    #[test]
    fn a_step_that_the_program_does_not_know_is_undone_and_left_out() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mender = mender(folder.path());
        mender.start();
        for _ in 0..4 {
            again(mender.next(&oom()));
        }
        let unknown = Ending {
            code: Some(2),
            ..ended("usage: a.py [-h]\na.py: error: unrecognized arguments: --gradient_checkpointing\n", 0)
        };
        let (attempt, why) = again(mender.next(&unknown));
        assert!(why.contains("did not take the step `checkpointing`") && why.contains("8 bits"), "{why}");
        assert!(!flags(&attempt).contains("gradient_checkpointing") && flags(&attempt).contains("paged_adamw_8bit"));
        let missing = error("ImportError: bitsandbytes is not installed");
        assert!(stopped(mender.next(&missing)).contains("nothing is left to change"));
    }

    #[test]
    fn an_error_that_comes_after_training_is_not_the_steps_fault() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mender = mender(folder.path());
        mender.start();
        again(mender.next(&oom()));
        let (attempt, why) =
            again(mender.next(&ended(&String::from_utf8(error("KeyError: 'x'").tail).expect("text"), 40)));
        assert!(why.starts_with("exception: KeyError: 'x'; it begins anew"), "{why}");
        assert!(flags(&attempt).contains("expandable_segments"), "the step stays");
    }

    #[test]
    fn only_what_may_come_from_outside_is_tried_again_as_it_was() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (exception, goes_on) in [
            ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", true),
            ("ValueError: x", true),
            ("ConnectionResetError: [Errno 104] Connection reset by peer", true),
            ("ModuleNotFoundError: No module named 'x'", false),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", false),
            ("OSError: [Errno 28] No space left on device", false),
            ("ValueError: loss is nan", false),
            ("RuntimeError: CUDA error: device-side assert triggered", false),
        ] {
            let mut mender = mender(folder.path());
            let given = mender.start();
            match mender.next(&error(exception)).decision {
                Decision::Again { attempt, .. } => assert!(goes_on && attempt == given, "{exception}"),
                Decision::Stop { why } => assert!(!goes_on && why.contains(exception), "{exception}: {why}"),
            }
        }
        let mut mender = mender(folder.path());
        assert!(stopped(mender.next(&Ending { code: Some(127), ..Ending::default() })).contains("can't be started"));
        assert!(stopped(mender.next(&Ending { signal: Some(2), ..Ending::default() })).contains("interrupted"));
    }

    #[test]
    fn two_ends_of_the_same_cause_have_one_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mender = mender(folder.path());
        let [a, b, c] = ["ValueError: step 3 of 7", "ValueError: step 12 of 7", "ValueError: shapes differ"]
            .map(|exception| mender.next(&error(exception)).cause);
        assert!(a == b && a != c, "{a}, {b}, {c}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_leaves_the_command_as_it_was_given() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = folder.path().join("c.yaml");
        std::fs::write(&config, "base_model: gpt2\nmicro_batch_size: 4\n").expect("written");
        std::fs::write(folder.path().join("run"), "a file").expect("written");
        let argv: Vec<OsString> = vec!["axolotl".into(), "train".into(), config.into()];
        let mut mender = Mender::new(&argv, Ladder::new(false, "expandable_segments:True"), folder.path().join("run"));
        assert_eq!(mender.start().argv, argv);
        assert!(stopped(mender.next(&oom())).contains("files can't be written"));
    }
}
