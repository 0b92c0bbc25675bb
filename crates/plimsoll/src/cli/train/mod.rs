//! `plimsoll train`: train or fine-tune a model. The main job.

mod args;
mod binary;
#[cfg(unix)]
mod detach;
mod ending;
mod folder;
mod orders;
mod outlook;
mod prompt;
mod replan;
mod room;
mod signals;
mod slow;
mod text;
mod watch;
mod watched;

pub(super) use args::{GRAD_CLIP, TrainArgs};
pub(super) use ending::for_a_shell;
pub(super) use folder::{check_run_of_path, newest_run, resumed_config};
pub(super) use text::default_cache_dir;
use text::has_template;
pub(super) use watch::sample_time;

use super::budget::Budget;
use super::cards::Opened;
use super::device::Device;
use super::failure::exit_code;
use super::find::longest_power_of_two;
use super::hub;
use super::levers::note_if_sent_for_nothing;
use super::loading::Flags;
use super::misfit::{Others, misfit_of};
use super::model::{self, Chosen};
use super::notify::say_goodbye;
use super::objective::ObjectiveArgs;
use super::power::{Wished, settle_leftovers};
use super::request::Sequences;
#[cfg(unix)]
use super::supervise::OwnRun;
use super::track::{Tracked, Tracking};
use super::{Failure, in_pool};
use crate::progress::{Live, LiveRun};
use crate::streams::{talk, wait_for_no_reader, write_data};
use ::plimsoll_plan::{Found, Request, can_fit, search};
use ::plimsoll_train::{Ending, Engine, Length, Outcome, RunFolder, Sampling, Start, Trainer, TrainerConfig, Writer};
use folder::kept_products;
use orders::Asking;
use plimsoll_data::{AnswerEnds, DataFormat, Dataset, PADDING_TARGET, Tokenizer, TokenizerSpec};
use plimsoll_exec::cuda::ProductChoices;
use plimsoll_graph::DeviceKind;
use plimsoll_graph::optimizers::Constants;
use plimsoll_heat::Settings;
use plimsoll_notify::{Notifier, NotifySink};
use plimsoll_render::{closing, plan_table, sample_text, summary};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_units::Bytes;
use prompt::Text;
use replan::Around;
use serde_json::{Map, Value, json};
use signals::{StepClock, stop_on_signals};
use slow::Compared;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use watch::{Subject, Told, Watch};

/// What a run's entry for `plimsoll ps` takes of the disk, replaced as a whole.
const ENTRY: Bytes = Bytes(8 << 10);

/// Tokens of a row that data may have where no flag gives its length.
const SHORT_ROW: usize = 64;

/// Tokens that a prompt is read at a time.
pub(super) const PREFILL: usize = 32;

pub(super) fn run(args: TrainArgs) -> Result<u8, Failure> {
    wait_for_no_reader();
    if args.detach {
        #[cfg(unix)]
        return detach::start(&args.runs_dir);
        #[cfg(not(unix))]
        return Err(Failure::bad_flag("`--detach` needs a Unix system"));
    }
    let threads = args.budget.threads()?;
    args.blas.choose()?;
    let limits = args.watch.limits()?;
    if args.watch.is_off() && args.power.is_auto() {
        return Err(Failure::bad_flag(
            "`--power-limit auto` follows the heat, which `--sample-every off` does not watch",
        ));
    }
    settle_leftovers(false);
    // What is missing to tell somebody is said before anything is made.
    let notifier = args.tell.start()?;
    args.track.check(&args.tell.secrets()?)?;
    in_pool(threads, || {
        let (session, device) = Session::prepare(args)?;
        let mut entered = Entered::default();
        let ended = session.train(device, limits, notifier.as_ref(), &mut entered);
        notifier.into_iter().for_each(say_goodbye);
        entered.leave(ended.as_ref().map_or_else(Failure::code, |code| *code));
        ended
    })
}

/// This run's place among those that `plimsoll ps` lists, once its start was accepted.
#[derive(Default)]
struct Entered {
    #[cfg(unix)]
    run: Option<OwnRun>,
}

#[cfg(unix)]
impl Entered {
    fn enter(&mut self, folder: &Path, runs: &Path) {
        self.run = OwnRun::enter(folder, runs);
    }

    fn leave(self, code: u8) {
        if let Some(run) = self.run {
            run.leave(code);
        }
    }
}

#[cfg(not(unix))]
impl Entered {
    fn enter(&mut self, _: &Path, _: &Path) {}

    fn leave(self, _: u8) {}
}

/// Everything that was resolved before the first step.
struct Session {
    args: TrainArgs,
    budget: Budget,
    chosen: Chosen,
    tokenizer: Tokenizer,
    dataset: Arc<Dataset>,
    found: Found,
    folder: RunFolder,
    start: Start,
    trainer: TrainerConfig,
    /// The device's name.
    device: String,
    /// Where predicted times come from.
    times: String,
    /// What was asked of the planner.
    request: Request,
    /// How a library computed the products of a run that goes on.
    products: Option<ProductChoices>,
    /// What is to be set of the card.
    wished: Option<Wished>,
    /// What was changed so that the run fits, after it was planned.
    averted: Option<String>,
    /// How long its last step took.
    clock: StepClock,
}

impl Session {
    /// Resolves everything, and opens the device, which is to be given the plan.
    fn prepare(mut args: TrainArgs) -> Result<(Self, Opened), Failure> {
        let continues = match &args.resume {
            Some(resume) => resumed_config(resume, args.name.as_deref(), &args.runs_dir)?.is_some(),
            None => false,
        };
        if !continues {
            args.refuse_weights_without_data()?;
        }
        args.run.init = hub::init_of(args.run.init, args.run.download)?;
        let weights = args.run.init.as_deref();
        let mut chosen = model::choose(args.model.as_deref(), weights)?;
        args.check_kind_of_data(&chosen)?;
        let spec = match &args.tokenizer {
            Some(spec) => spec.parse::<TokenizerSpec>()?,
            None => chosen.default_tokenizer(weights)?,
        };
        let tokenizer = Tokenizer::open(&spec)?;
        tokenizer.special_in_words().into_iter().for_each(|words| talk(format_args!("tokenizer: {words}")));
        let of_pairs = chosen.has_decoder().then_some(args.pairs.source_len);
        if args.request.finds_seq_len() && chosen.has_decoder() {
            let failure = Failure::bad_flag("`--seq-len auto` is for models without an encoder");
            return Err(failure.hint("`--source-len N` and `--target-len N` say how long pairs may be"));
        }
        let mut seq_len = args.request.seq_len().or(of_pairs).unwrap_or_else(|| chosen.default_seq_len());
        let published = chosen.config.vocab_size();
        chosen.fit(args.run.init.is_none().then_some(tokenizer.vocab_size()), seq_len);
        if chosen.config.vocab_size() != published && chosen.has_published_sizes() {
            talk(format_args!(
                "note: {} is built for the tokenizer's {} ids instead of its own {published}",
                chosen.name,
                chosen.config.vocab_size()
            ));
        }
        if args.run.init.is_none() && chosen.is_preset {
            chosen.fit_special_tokens(&tokenizer);
        }
        let (ids, rows) = (tokenizer.vocab_size(), chosen.config.vocab_size());
        if ids > rows {
            // Said before the text is tokenized, which may take long.
            return Err(::plimsoll_train::TrainError::Vocabulary { tokenizer: ids, model: rows }.into());
        }
        args.request.set_dropout(&mut chosen);
        // What the tokenizer takes is no longer free.
        let mut opened = args.device.open(&args.budget, None)?;
        let wished = args.power.wished(opened.uuid().as_deref(), &opened.device.name)?;
        let device = &opened.device;
        if args.request.finds_seq_len() {
            seq_len = longest_power_of_two(chosen.most_positions(), |seq_len| {
                let mut chosen = chosen.clone();
                chosen.fit(None, seq_len);
                args.run.request(&args.request, &chosen, device, Sequences::of_length(seq_len, None), None)
            })?;
            chosen.fit(None, seq_len);
        }
        let model_name = chosen.name.clone();
        let plan = |request: &Request| -> Result<Found, Failure> {
            search(request)?.map_err(|misfit| {
                let failure = misfit_of(&model_name, &misfit, &device.budget);
                let others = Others { uuid: opened.uuid(), kind: device.targets.device.kind() };
                others.name(failure, &device.budget, request, args.request.levers.host_ram)
            })
        };
        // Flags that can't be together, and what fits with no data, are refused before the data is tokenized, which may take
        // long.
        let request_of = |tokens, records| {
            let lengths = Sequences::of_length(tokens, chosen.has_decoder().then_some(tokens));
            args.run.request(&args.request, &chosen, device, lengths, records)
        };
        request_of(seq_len, None)?.check()?;
        let least = match args.request.gives_global_batch() && args.request.seq_len().is_some() {
            true => request_of(seq_len, None)?,
            false => request_of(seq_len.min(SHORT_ROW), Some(1))?,
        };
        if !can_fit(&least)? {
            plan(&least)?;
        }
        // The data says how many samples a step takes, and how long they are.
        let dataset = args.open_data(&tokenizer, &chosen, seq_len)?;
        let sequences = Sequences::of(&dataset);
        if !chosen.has_decoder() {
            chosen.fit(None, sequences.longest.tokens);
        }
        let records = Some(dataset.training());
        let request = args.run.request(&args.request, &chosen, device, sequences, records)?;
        let found = plan(&request)?;
        opened.check_free(&args.budget, &found.plan)?;
        let (folder, start) = args.open_folder(&chosen.name)?;
        let trainer = args.trainer_config(&folder, &chosen, &tokenizer, &dataset, &found)?;
        let dataset = Arc::new(dataset);
        let (budget, name, times) = (device.budget.clone(), device.name.clone(), device.times.clone());
        let products = kept_products(&folder);
        opened.choose_products(products.clone(), args.tune.autotune);
        let session = Self {
            args,
            budget,
            chosen,
            tokenizer,
            dataset,
            found,
            folder,
            start,
            trainer,
            device: name,
            times,
            request,
            products,
            wished,
            averted: None,
            clock: StepClock::default(),
        };
        Ok((session, opened))
    }

    fn plan_table(&self) -> String {
        plan_table(&self.chosen.name, &self.device, &self.found, &self.budget.describe(), &self.times)
    }

    /// The plan on its device; planned again, as it was asked for, where less memory is free by now, so that a resumed run
    /// keeps what decides its sums.
    fn load(&mut self, opened: Opened) -> Result<Engine, Failure> {
        let Self { args, chosen, found, request, budget, .. } = self;
        let before = budget.bytes;
        let flags = Flags { device: &args.device, budget: &args.budget };
        let engine = flags.load(opened, found, |on: &Device| {
            request.budget = on.budget.with_host(on.targets.device.kind(), args.request.levers.host_ram)?;
            *budget = on.budget.clone();
            search(request)?.map_err(|misfit| misfit_of(&chosen.name, &misfit, budget))
        })?;
        if self.budget.bytes != before {
            let (micro_batch, seq_len) = (self.found.plan.micro_batch, self.found.plan.seq_len);
            self.averted = Some(format!(
                "less memory was free than the {before} that the run was planned for; planned again for {}: a micro-batch of \
                 {micro_batch}, sequences of {seq_len}, {}",
                self.budget.bytes,
                self.found.plan.peak()
            ));
            talk(self.plan_table());
        }
        Ok(engine)
    }

    fn train(
        mut self,
        opened: Opened,
        limits: Settings,
        notifier: Option<&Notifier>,
        entered: &mut Entered,
    ) -> Result<u8, Failure> {
        talk(self.plan_table());
        note_if_sent_for_nothing(&self.found.settings, self.found.plan.targets.device.kind());
        let (card, reopening) = (opened.uuid(), opened.reopening());
        let engine = self.load(opened)?;
        self.say_outlook();
        let files = self.files(&engine)?;
        let others = files.iter().map(|(_, contents)| contents.len() as u64).sum();
        let checkpoint = self.check_room(&engine, Bytes(others) + ENTRY)?;
        self.compare_products(&engine);
        engine.notes().iter().for_each(|note| talk(format_args!("note: {note}")));
        let stop = stop_on_signals(self.clock.clone())?;
        let subject =
            Subject { card, offloads: self.found.plan.host_bytes > 0, checkpoint, price: self.args.power.price() };
        // From here on, whatever ends the run puts it back.
        let set = self.wished.take().and_then(|wished| wished.set(&self.trainer.name));
        let asked = Asking { stop: stop.clone(), planner: self.planner(), clock: self.clock.clone() };
        let mut watch = Watch::new(&self.args.watch, limits, subject, set, asked);
        self.averted.take().into_iter().for_each(|what| watch.tell(Event::OutOfMemoryAverted { what }));
        let mut teller = notifier.map(|notifier| NotifySink::new(notifier, self.trainer.name.clone()));
        let around =
            Around { watch: &mut watch, teller: teller.as_mut(), stop: &stop, card: reopening.as_ref(), entered };
        let ended = self.through_all_plans(engine, files, around);
        watch.put_back();
        if let (Err(failure), Some(teller)) = (&ended, &mut teller) {
            teller.fail(&failure.message());
        }
        let (mut engine, mut outcome) = ended?;
        let mut sample = None;
        if outcome.ending == Ending::Finished && outcome.unsaved.is_none() && self.args.run.sample_tokens > 0 {
            match self.write_sample(&mut engine) {
                Ok(text) => sample = Some(text),
                // The run is finished, and its last checkpoint written.
                Err(failure) => talk(format_args!("warning: no sample was written: {}", failure.message())),
            }
            outcome.report.measured.update_memory(engine.memory());
        }
        sample.iter().for_each(|text| self.keep_sample(text, outcome.report.losses.len() as u64));
        let device = self.found.plan.targets.device.kind();
        talk(summary(&outcome, self.folder.path(), &self.write_page(), device));
        sample.iter().for_each(|text| talk(sample_text(text)));
        talk(closing(&outcome.report, &self.chosen.name, &self.device, &self.found.plan));
        if let Some([prompt, _]) = sample.filter(|_| !self.chosen.has_decoder()) {
            talk(format_args!("try it: {}", self.generate_command(&prompt)));
        }
        let written = match self.args.json {
            true => write_data(serde_json::to_string_pretty(&outcome.report).expect("a report is plain data")),
            false => Ok(()),
        };
        let code = self.conclude(&outcome)?;
        match written {
            // How the run ended says more than what became of its report, which is in its folder, too.
            Err(failure) if code != exit_code::DONE => talk(format_args!("warning: {}", failure.message())),
            written => written?,
        }
        Ok(code)
    }

    /// What the folder is to have of a run that goes by this plan.
    fn files(&self, engine: &Engine) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
        let plan_json = serde_json::to_vec(&self.found.plan).expect("a plan is plain data");
        let config = serde_saphyr::to_string(&self.resolved())
            .map_err(|e| Failure::device(format!("settings can't be written: {e}")))?;
        let mut files = vec![
            (self.folder.plan(), plan_json),
            (self.folder.config(), config.into_bytes()),
            (self.folder.model(), self.trainer.model_folder.config_json.clone().into_bytes()),
        ];
        files.extend(
            engine
                .product_choices()
                .map(|choices| (self.folder.products(), serde_json::to_vec_pretty(&choices).expect("plain data"))),
        );
        Ok(files)
    }

    /// Trains from the start that is set until something ends it. `accepted` is called once it is sure to begin.
    fn go(
        &self,
        engine: &mut Engine,
        files: Vec<(PathBuf, Vec<u8>)>,
        watch: &Watch,
        teller: Option<&mut NotifySink<'_>>,
        stop: &AtomicBool,
        accepted: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Outcome, Failure> {
        let mut live = Live::new(LiveRun {
            planned: self.found.plan.needed()[0],
            device: self.found.plan.targets.device.kind(),
            device_total: self.budget.total(),
            samples: self.found.plan.global_batch as u64,
            duration: self.args.duration,
            log_every: self.args.log_every,
        });
        let mut told = teller.map(|teller| Told { teller, watch });
        let mut clock = self.clock.clone();
        let is_calibrated = self.times.starts_with("times from ");
        let threads = self.found.plan.targets.host.threads();
        let mut compared = Compared::new(self.found.step, watch, threads, is_calibrated);
        let mut sinks: Vec<&mut dyn Sink> = vec![&mut live, &mut clock, &mut compared];
        sinks.extend(told.as_mut().map(|told| -> &mut dyn Sink { told }));
        let mut tracking = self.start_tracking()?;
        watch.log_to(tracking.as_ref().map(|tracking| tracking.trackers.machine_tap()));
        sinks.extend(tracking.as_mut().map(|tracking| -> &mut dyn Sink { &mut tracking.trackers }));
        let run = Trainer {
            engine,
            dataset: &self.dataset,
            folder: &self.folder,
            config: &self.trainer,
            sinks,
            stop,
            pace: watch,
        };
        let started = run.start(&self.start)?;
        // Not before the start is accepted: a run that can't be resumed like this keeps the settings that it has.
        for (path, contents) in files {
            self.folder.write(&path, &contents)?;
        }
        accepted()?;
        let ended = started.run();
        live.finish();
        let is_over = !ended.as_ref().is_ok_and(|outcome| outcome.ending == Ending::Replanned);
        tracking.into_iter().for_each(|tracking| tracking.finish(is_over));
        ended.map_err(|error| self.cut_short(error.into()))
    }

    /// Logs for other tools; none where nothing is to be logged. Nothing is written before the run begins.
    fn start_tracking(&self) -> Result<Option<Tracking>, Failure> {
        let mut config = self.resolved();
        // Who receives messages is nothing to log elsewhere.
        self.args.tell.resolved().keys().for_each(|key| drop(config.remove(key)));
        let tracked = Tracked {
            folder: &self.folder,
            config,
            steps_per_epoch: self.steps_per_epoch(),
            every_steps: self.args.log_every.unwrap_or(1),
        };
        self.args.track.start(tracked, &self.args.tell.secrets()?)
    }

    /// Says it where a run goes on whose products something else computed.
    fn compare_products(&self, engine: &Engine) {
        let is_resumed =
            matches!(self.start, Start::Resume(_)) && self.found.plan.targets.device.kind() == DeviceKind::Cuda;
        match (&self.products, engine.product_choices()) {
            (Some(_), None) if is_resumed => talk(
                "note: the run's products were computed by cuBLASLt until now; the built-in kernels may round differently",
            ),
            (None, Some(_)) if is_resumed && !self.folder.products().exists() => talk(
                "note: the run's products were computed by the built-in kernels until now; cuBLASLt may round differently, \
                 `--cublas off` continues with these",
            ),
            _ => {}
        }
    }

    /// The settings of this run as a file of settings: what resuming needs to be the same run.
    fn resolved(&self) -> Map<String, Value> {
        let (args, trainer, plan) = (&self.args, &self.trainer, &self.found.plan);
        let (key, length) = match trainer.length {
            Length::MaxSteps(steps) => ("max_steps", json!(steps)),
            Length::Epochs(epochs) => ("epochs", json!(epochs)),
            Length::Duration(time) => ("duration", json!(format!("{}s", time.0))),
        };
        let mut settings = json!({
            "name": trainer.name,
            "tokenizer": trainer.tokenizer,
            "model": if self.chosen.is_preset { json!(self.chosen.name) } else { json!(self.folder.model()) },
            "global_batch": plan.global_batch,
            "micro_batch": plan.micro_batch,
            key: length,
            "optimizer": args.request.optimizer.optimizer,
            "weight_decay": self.request.optimizer.weight_decay.to_string(),
            "grad_clip": self.request.optimizer.grad_clip.unwrap_or(0.0).to_string(),
            "seed": trainer.seed,
            "blas": args.blas.setting(),
            "autotune": args.tune.autotune,
            "loss_scale": args.loss_scale,
            "eval_every": args.eval_every,
            "eval_samples": trainer.eval_samples,
            "checkpoint_every": args.checkpoint_every,
            "keep_checkpoints": args.keep_checkpoints,
            "sample_tokens": args.run.sample_tokens,
        });
        let map = settings.as_object_mut().expect("an object literal");
        let ObjectiveArgs { label_smoothing, r_drop, layer_decay } = &args.request.objective;
        map.append(&mut args.watch.resolved());
        map.append(&mut args.power.resolved());
        map.append(&mut args.tell.resolved());
        map.append(&mut args.track.resolved());
        map.extend(args.log_every.map(|steps| ("log_every".to_owned(), json!(steps))));
        map.insert("label_smoothing".into(), json!(label_smoothing.to_string()));
        map.insert("r_drop".into(), json!(r_drop));
        map.insert("layer_decay".into(), json!(layer_decay.to_string()));
        if self.chosen.has_decoder() {
            map.append(&mut args.pairs.resolved(args.request.seq_len()));
        } else {
            map.insert("seq_len".into(), json!(plan.seq_len));
            map.insert("packing".into(), json!(args.run.packing));
            let chats = match &*self.dataset {
                Dataset::Packed(packed) => packed.chats(),
                Dataset::Windows(_) | Dataset::Pairs(_) => None,
            };
            map.append(&mut args.chats.resolved(chats.map_or(DataFormat::Text, |c| DataFormat::Chats(c.format()))));
            map.extend(args.text_field.as_ref().map(|field| ("text_field".to_owned(), json!(field))));
        }
        let Constants { beta1, beta2, eps } = self.request.optimizer.rule.constants();
        for (key, constant) in [("beta1", beta1), ("beta2", beta2), ("adam_eps", eps)] {
            map.extend(constant.map(|constant| (key.to_owned(), json!(constant.to_string()))));
        }
        if !args.request.optimizer.freeze.is_empty() {
            map.insert("freeze".into(), json!(args.request.optimizer.freeze));
        }
        map.append(&mut args.request.levers.settings(&self.found.settings));
        if !args.data.is_empty() {
            map.insert("data".into(), json!(args.data));
        }
        if let Some(part) = args.held_out {
            map.insert("held_out".into(), json!(part.1.to_string()));
        }
        if let Some(rate) = args.request.dropout {
            map.insert("dropout".into(), json!(rate.to_string()));
        }
        map.append(&mut args.schedule.settings(&trainer.schedule));
        map.append(&mut args.device.settings(plan));
        if let Some(vram) = args.budget.vram {
            map.insert("vram".into(), json!(format!("{}b", vram.0)));
        }
        if let Some(margin) = args.budget.vram_margin {
            map.insert("vram_margin".into(), json!(format!("{}b", margin.0)));
        }
        map.insert("memory_fraction".into(), json!(args.budget.memory_fraction.to_string()));
        if let Some(threads) = args.budget.threads {
            map.insert("threads".into(), json!(threads));
        }
        if let Some(path) = &args.cache_dir {
            map.insert("cache_dir".into(), json!(path));
        }
        map.clone()
    }

    /// What ends a sample.
    fn ends(&self) -> Result<AnswerEnds, Failure> {
        Ok(match has_template(&self.dataset) {
            true => self.args.chats.template(&self.tokenizer)?.answer_ends(&self.tokenizer),
            false => AnswerEnds::of(&self.tokenizer),
        })
    }

    /// Held-out text that begins with words, a held-out source, or a held-out chat up to its first answer; of what is trained
    /// on if nothing is held out.
    fn prompt(&self) -> Result<Vec<u32>, Failure> {
        let held_out = self.dataset.held_out_batches(prompt::SAMPLES, 1)?.collect::<Result<Vec<_>, _>>()?;
        let batches = if held_out.is_empty() { self.dataset.step(0, 1, 1)?.micro } else { held_out };
        let has_answers = matches!(&*self.dataset, Dataset::Packed(packed) if packed.chats().is_some());
        let rows = batches.iter().map(|batch| {
            let real = match &batch.segments {
                // The first target is the token behind the question.
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
        // No prompt runs from one document into the next.
        let (separator, beginning) = (self.tokenizer.separator(), self.tokenizer.beginning());
        let texts = rows.iter().flat_map(|ids| ids.split(|&id| Some(id) == separator).enumerate());
        let texts = texts.filter(|(_, ids)| !ids.is_empty()).map(|(n, ids)| {
            let text = ids.strip_prefix(beginning).unwrap_or(ids);
            Text { ids: text, is_whole: n > 0 || text.len() < ids.len() }
        });
        let texts = texts.collect::<Vec<_>>();
        let most = (self.found.plan.seq_len / 2).clamp(1, 32);
        let prompt = prompt::choose(&texts, most, |ids| self.tokenizer.decode(ids));
        // Where documents are empty, so is what is written: a separator is continued.
        Ok(match prompt.is_empty() {
            true => rows.into_iter().flatten().take(1).collect(),
            false => [beginning, &prompt].concat(),
        })
    }

    /// Continues the beginning of held-out text.
    fn write_sample(&self, engine: &mut Engine) -> Result<[String; 2], Failure> {
        let prompt = self.prompt()?;
        let sampling = Sampling { temperature: 0.8, top_k: None, top_p: 0.95, seed: self.trainer.seed };
        let mut written = Vec::new();
        let (most, vocab) = (self.args.run.sample_tokens as usize, self.tokenizer.vocab_size());
        let decoder_start = self.chosen.config.decoder_start();
        let text = |ids: &[u32]| String::from_utf8_lossy(&self.tokenizer.decode(ids)).into_owned();
        let ends = self.ends()?;
        let mut on_token = |_, token| {
            written.push(token);
            ends.texts.is_empty() || !ends.texts.iter().any(|end| text(&written).contains(end))
        };
        Writer::new(engine, decoder_start).write(&[&prompt], most, vocab, &ends.ids, &sampling, &mut on_token)?;
        Ok([text(&prompt), text(&written)])
    }
}
