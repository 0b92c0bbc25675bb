//! `plimsoll plan`: prints the plan for a model and a budget, without running it.

use super::Failure;
use super::answer::{Answer, Given};
use super::budget::{BudgetArgs, is_more_than};
use super::cards::{DeviceArgs, FoundDevice};
use super::device::Device;
use super::explain;
use super::failure::{exit_code, io_failure};
use super::find::{Find, longest_power_of_two};
use super::fp8::offered_fp8;
use super::gpus::list_known;
use super::half;
use super::hub;
use super::in_pytorch::OtherProgram;
use super::misfit::{Enough, misfit_failure};
use super::model::{self, Chosen};
use super::options::{AutoOr, Workers, positive_count, positive_number, positive_size, workers};
use super::request::{RequestArgs, RunArgs, Sequences};
use super::speed::{Speed, on_paper};
use crate::streams::{talk, write_data};
use ::plimsoll_plan::{
    Budget, Card, CurvePoint, Found, Level, LeverEffect, MOST_WORKERS, Misfit, Moment, Plan, Precision, Recompute,
    Request, RuleOfThumb, assumed_card, card_of_memory, curve, first_that_fits, is_memory_of_card, lever_effects,
    moment_of_peak, most_workers, rule_of_thumb, search, shared, validate,
};
use ::plimsoll_train::TrainError;
use clap::Args;
use plimsoll_data::{Tokenizer, TokenizerSpec};
use plimsoll_exec::cuda::CudaError;
use plimsoll_files::write_whole;
use plimsoll_graph::MemoryId;
use plimsoll_render::{
    ComparedPlan, PlanPage, PlanReport, compare_table, curve_svg, grouped, levers_table, moment_text, plan_html,
    plan_json, plan_svg, plan_table,
};
use plimsoll_session::same_sums;
use plimsoll_telemetry::gpus;
use plimsoll_units::{Bytes, Seconds, format_duration};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct PlanArgs {
    /// Model name from `plimsoll models`, or the path of a config.json [default: the model of `--init`, else nano]
    #[arg(long, visible_alias = "model-size", value_name = "NAME|PATH")]
    model: Option<String>,
    #[command(flatten)]
    run: RunArgs,
    /// Tokenizer that sets the vocabulary size: `bytes`, `gpt2`, or the path of a tokenizer.json
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// Plan for this GPU: a name (`rtx-3060`, `4090`, `A100 80GB`), `auto` for the GPUs of this machine, or `list` to
    /// list all names
    #[arg(long, value_name = "NAME|auto|list", conflicts_with = "device")]
    gpu: Option<String>,
    /// Compare plans for several GPUs
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', conflicts_with_all = ["gpu", "vram", "explain", "machine"])]
    compare: Vec<String>,
    /// Number of epochs; with `--tokens` or `--records`, predicts the time of the whole training
    #[arg(long, value_name = "X", value_parser = positive_number)]
    epochs: Option<f64>,
    /// Number of tokens in the text: `100M`
    #[arg(long, value_name = "N", value_parser = positive_count, requires = "epochs")]
    tokens: Option<u64>,
    /// Number of records in the data, one sample each: `55k`
    #[arg(long, value_name = "N", value_parser = positive_count, requires = "epochs", conflicts_with_all = ["tokens", "compare"])]
    records: Option<u64>,
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    budget: BudgetArgs,
    /// Tokens per target, for encoder-decoder models [default: the tokens per source]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    target_len: Option<usize>,
    #[command(flatten)]
    request: RequestArgs,
    /// Show when the peak occurs, the largest tensors alive then, and what recomputation saves and costs
    #[arg(long)]
    explain: bool,
    /// Show the fastest plan at each of several budgets, from the smallest that fits to the smallest that allows the fastest
    /// plan
    #[arg(long, conflicts_with_all = ["compare", "workers"])]
    curve: bool,
    /// Draw the plans of `--curve` as SVG. With several GPUs, one file each: FILE-1, ...
    #[arg(long, value_name = "FILE", conflicts_with_all = ["compare", "workers"])]
    curve_svg: Option<PathBuf>,
    /// Find the longest sequence, the largest micro-batch or the largest preset that fits, and plan it
    #[arg(long, value_name = "WHAT", value_enum)]
    find: Option<Find>,
    /// Compare the plan with the usual rule of thumb for this much memory
    #[arg(long)]
    rules: bool,
    /// Compare the memory with that of the same run in another program
    #[arg(long = "beside", value_name = "PROGRAM", value_enum, conflicts_with = "compare")]
    other: Option<OtherProgram>,
    /// Number of independent runs that share the device and its speed evenly, `auto` for as many as fit, or `N@SIZE` for N runs
    /// with SIZE each; shows the plan of one of them
    #[arg(long, value_name = "N|N@SIZE|auto", value_parser = workers)]
    workers: Option<Workers>,
    /// File of measurements from `plimsoll calibrate --out` [default: the one in the user's cache folder]
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Write an HTML map of the arena over time. With several GPUs, one file each: FILE-1, ...
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    html: Option<PathBuf>,
    /// Write an SVG map of the program with the peak. With several GPUs, one file each: FILE-1, ...
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Common memory sizes of GPUs, in GiB. A misfit names the first that fits.
const CARD_SIZES: [u64; 9] = [8, 12, 16, 24, 32, 48, 80, 96, 141];

/// Number of budgets of `--curve`.
const CURVE_POINTS: u64 = 20;

/// Number of tensors that `--explain` lists.
const EXPLAINED: usize = 10;

pub(super) fn run(mut args: PlanArgs) -> Result<u8, Failure> {
    if args.gpu.as_deref().is_some_and(|name| name.eq_ignore_ascii_case("list")) {
        return list_known(args.json);
    }
    args.run.init = hub::init_of(args.run.init, args.model.as_deref(), args.run.download)?;
    let model = model::choose(args.model.as_deref(), args.run.init.as_deref(), args.run.download)?;
    let mut devices = args.devices()?;
    if args.request.levers.host_ram.is_some() {
        devices.iter_mut().for_each(|device| device.budget.assumed_host = None);
    }
    let made = devices.into_iter().map(|device| args.plan(device, &model)).collect::<Result<Vec<_>, _>>()?;
    args.draw(&made)?;
    let all_fit = made.iter().all(|made| made.result.is_ok());
    let code = if all_fit { exit_code::DONE } else { exit_code::DOES_NOT_FIT };
    if args.json {
        let mut values = made.iter().map(|made| made.json(args.explain)).collect::<Vec<_>>();
        let value =
            if values.len() == 1 && args.compare.is_empty() { values.remove(0) } else { json!({ "plans": values }) };
        write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
        return Ok(code);
    }
    if !args.compare.is_empty() {
        let rows = made.iter().map(|made| ComparedPlan {
            device: &made.device.name,
            budget: made.device.budget.bytes,
            result: &made.result,
        });
        let tokens = args.epochs.zip(args.tokens).map(|(epochs, tokens)| epochs * tokens as f64);
        write_data(compare_table(&rows.collect::<Vec<_>>(), tokens))?;
        if made.iter().any(|made| made.device.budget.assumed_host.is_some()) {
            write_data("each host is assumed to have twice the memory of its GPU; `--host-ram` sets another size")?;
        }
        return Ok(code);
    }
    for made in &made {
        if let Ok(found) = &made.result {
            write_data(plan_table(
                &made.model,
                &made.device.name,
                found,
                &made.device.budget.describe(),
                &made.device.times,
            ))?;
            write_data(levers_table(&made.effects))?;
        }
        if let Some(moment) = made.moment(args.explain) {
            write_data(moment_text(&moment))?;
        }
        for answer in &made.answers {
            write_data(&answer.words)?;
        }
    }
    if made.len() > 1 {
        let budgets = made.iter().map(|made| made.device.budget.bytes).sum::<Bytes>();
        let speed = made.iter().filter_map(|made| Some(made.result.as_ref().ok()?.tokens_per_s())).sum::<f64>();
        write_data(format_args!(
            "{} GPUs, one independent run each: {budgets} of budget and {speed:.0} tokens/s predicted in total",
            made.len()
        ))?;
    }
    match made.iter().find_map(Made::failure) {
        Some(failure) => Err(failure),
        None => Ok(exit_code::DONE),
    }
}

/// A plan for a device, or a misfit.
struct Made {
    device: Device,
    model: String,
    result: Result<Found, Box<Misfit>>,
    effects: Vec<LeverEffect>,
    milliseconds: f64,
    /// A hint that names a larger GPU on which it fits.
    larger_card: Option<String>,
    /// Number of runs that share the device.
    workers: usize,
    /// Whether `--workers` gives the memory of each run.
    is_sized: bool,
    /// Results of flags that ask for more than the plan.
    answers: Vec<Answer>,
    /// The fastest plans by budget, with `--curve` or `--curve-svg`.
    curve: Vec<CurvePoint>,
}

impl Made {
    /// The plan, whether it fits or not.
    fn laid_out(&self) -> &Plan {
        match &self.result {
            Ok(found) => &found.plan,
            Err(misfit) => &misfit.plan,
        }
    }

    /// Why it does not fit; `None` if it fits.
    fn failure(&self) -> Option<Failure> {
        let misfit = self.result.as_ref().err()?;
        let needed = misfit.plan.needed();
        let of_all = |memory| Bytes(needed[memory].0.saturating_mul(self.workers as u64));
        let [device, host] = [MemoryId::DEVICE, MemoryId::HOST].map(of_all);
        let vram = self.device.budget.vram_for(device).filter(|_| !self.is_sized);
        let failure = misfit_failure(&self.model, misfit, &Enough { vram, host_ram: host, host_max: None });
        Some(self.larger_card.iter().fold(failure, |failure, card| failure.hint(card)))
    }

    fn page(&self) -> String {
        let failure = self.failure();
        let said = failure.iter().flat_map(|failure| [vec![failure.message()], failure.hints().to_vec()].concat());
        plan_html(&PlanPage {
            model: &self.model,
            device: &self.device.name,
            budget: &self.device.budget.describe(),
            times: &self.device.times,
            result: &self.result,
            levers: &self.effects,
            ways_out: &said.collect::<Vec<_>>(),
            answers: &self.answers.iter().map(|answer| answer.words.as_str()).collect::<Vec<_>>(),
        })
    }

    fn moment(&self, explain: bool) -> Option<Moment> {
        if explain { moment_of_peak(self.laid_out(), EXPLAINED) } else { None }
    }

    fn json(&self, explain: bool) -> Value {
        let mut value = plan_json(&PlanReport {
            model: &self.model,
            device: &self.device.name,
            times: &self.device.times,
            result: &self.result,
            levers: &self.effects,
            moment: self.moment(explain),
            milliseconds: self.milliseconds,
        });
        for Answer { key, value: answer, .. } in &self.answers {
            value[*key] = answer.clone();
        }
        value
    }
}

impl PlanArgs {
    /// The devices to plan for: the GPUs of `--compare`, the GPU or GPUs of `--gpu`, or the processor.
    fn devices(&self) -> Result<Vec<Device>, Failure> {
        if !self.compare.is_empty() {
            let speed = self.speed_of_absent_card(None)?;
            let cards = self.compare.iter().map(|name| Device::cards(name, &self.budget, speed));
            return Ok(cards.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect());
        }
        let speed = || self.speed_of_absent_card(self.machine.as_deref());
        match &self.gpu {
            Some(name) if self.machine.is_some() && !name.eq_ignore_ascii_case("auto") => {
                let message =
                    format!("`--machine` is for devices of this machine, but `--gpu {name}` plans for another machine");
                Err(Failure::bad_flag(message).hint("omit `--machine` to take times from the GPU's data sheet"))
            }
            Some(name) => Device::cards(name, &self.budget, speed()?),
            // Without a driver, `--vram-auto` means the processor's memory, as in `train`.
            None if self.budget.vram_auto == Some(true) && gpus().is_ok_and(|found| !found.cards.is_empty()) => {
                Device::cards("auto", &self.budget, speed()?)
            }
            None => Ok(vec![self.device_here_or_of_vram()?]),
        }
    }

    /// The device that `train` would use. If this machine has no GPU, or one with less memory than `--vram`, the device is
    /// a GPU of that size, as most guides mean it.
    fn device_here_or_of_vram(&self) -> Result<Device, Failure> {
        let found = self.on.look()?;
        // The measurements of `--machine` are those of this machine.
        if let (Some(vram), None) = (self.budget.most(), &self.machine)
            && is_memory_of_card(vram)
            && let Some(why) = why_elsewhere(&found, vram)
        {
            let speed = self.speed_of_absent_card(None)?;
            let card = match &found {
                FoundDevice::AnyCard(card) => on_paper(card.card()).0,
                _ => assumed_card(),
            };
            let device = Device::of_vram(vram, card, &self.budget, speed)?;
            talk(format_args!("planning for an NVIDIA GPU with {vram}: {why}"));
            return Ok(device);
        }
        Ok(self.on.open_found(found, &self.budget, self.machine.as_deref())?.device)
    }

    fn speed_of_absent_card<'a>(&self, measured: Option<&'a Path>) -> Result<Speed<'a>, Failure> {
        Ok(Speed { tf32: self.on.tf32(), products: self.on.products_of_absent_card()?, measured })
    }

    /// Writes the requested pictures; for several GPUs one each, with a number after the file's name.
    fn draw(&self, made: &[Made]) -> Result<(), Failure> {
        let several = made.len() > 1;
        for (index, made) in made.iter().enumerate() {
            let number = several.then_some(index + 1);
            if let Some(path) = &self.html {
                write_picture(path, number, &made.device, &made.page())?;
            }
            if let Some(path) = &self.svg {
                write_picture(path, number, &made.device, &plan_svg(&made.model, made.laid_out()))?;
            }
            if let (Some(path), Ok(found)) = (&self.curve_svg, &made.result) {
                write_picture(path, number, &made.device, &curve_svg(&made.model, &made.curve, found))?;
            }
        }
        Ok(())
    }

    /// The length that `--seq-len auto` finds for a model on a device; the default without that flag.
    fn given(&self, model: &Chosen, device: &Device) -> Result<Given, Failure> {
        let of = |seq_len| Given { seq_len: Some(seq_len), ..Given::default() };
        if !self.request.finds_seq_len() {
            return Ok(Given::default());
        }
        let request = |seq_len| self.asked(model.clone(), device, of(seq_len)).map(|(_, request)| request);
        longest_power_of_two(model.most_positions(), request).map(of)
    }

    /// The request for this model, in which the values of `given` replace `--seq-len` and `--micro-batch`.
    pub(super) fn asked(
        &self,
        mut chosen: Chosen,
        device: &Device,
        given: Given,
    ) -> Result<(Chosen, Request), Failure> {
        let Given { seq_len, micro_batch } = given;
        let seq_len = seq_len.or(self.request.seq_len()).unwrap_or_else(|| chosen.default_seq_len());
        let vocab_size = match &self.tokenizer {
            Some(spec) => Some(Tokenizer::open(&spec.parse::<TokenizerSpec>()?)?.vocab_size()),
            None => None,
        };
        chosen.fit(vocab_size, seq_len);
        self.request.set_dropout(&mut chosen);
        let sequences = Sequences::of_length(seq_len, self.target_len.or(chosen.takes_pairs().then_some(seq_len)));
        let asked = match micro_batch {
            Some(samples) => &self.request.with_micro_batch(samples),
            None => &self.request,
        };
        let request = self.run.request(asked, &chosen, device, sequences, None)?;
        Ok((chosen, request))
    }

    fn plan(&self, device: Device, model: &Chosen) -> Result<Made, Failure> {
        let mut answers = Vec::new();
        let (mut chosen, mut request) = self.asked(model.clone(), &device, self.given(model, &device)?)?;
        if let Some(what) = self.find {
            let found = what.find(&self.request, model, |model, given| self.asked(model, &device, given))?;
            answers.push(found.answer);
            if let Some(of_answer) = found.asked {
                (chosen, request) = of_answer;
            }
        }
        let whole = request.budget.clone();
        let mut workers = 1;
        if let Some(asked) = self.workers {
            workers = count(&request, asked)?;
            share(&mut request, workers, asked.each)?;
        }
        let start = Instant::now();
        let mut result = search(&request)?;
        if let (Err(misfit), 2..) = (&mut result, workers) {
            // Each run has only a share of the host memory.
            misfit.nearest.retain(|way| way.changes.iter().all(|change| change.setting != "host-ram"));
        }
        answers.extend(self.workers.map(|_| shared_answer(&request, workers, whole.device(), &result)));
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        let plan = result.as_ref().map_or_else(|misfit| &misfit.plan, |found| &found.plan);
        // Show a plan that does not fit as it would be with enough memory.
        let shown = plan.clone().within(&Budget::unlimited());
        let effects = || result.as_ref().map_or(Ok(Vec::new()), |found| lever_effects(&request, found));
        let others = || -> Result<Option<Answer>, Failure> {
            let Ok(found) = &result else { return Ok(None) };
            Ok(half::compared_with_bf16(&request, found)?.or(offered_fp8(&request, found)?))
        };
        let (sound, (effects, others)) = rayon::join(|| validate(&shown), || rayon::join(effects, others));
        sound.map_err(TrainError::from)?;
        let effects = effects?;
        answers.extend(others?);
        if self.rules {
            answers.push(compare_rule(&request, &device, &result, chosen.most_positions())?);
        }
        if let Some(other) = self.other {
            answers.push(other.compare(&request, plan, device.budget.outside())?);
        }
        answers.extend(result.as_ref().ok().and_then(|found| self.whole_training(found)));
        if let Ok(found) = &result {
            answers.extend(self.in_the_least(&request, &device, found)?);
        }
        let mut points = Vec::new();
        if let Ok(found) = &result {
            if self.explain {
                answers.push(explain::choice(&request, found)?);
            }
            if self.curve || self.curve_svg.is_some() {
                say_how_long(milliseconds);
                points = curve(&request, CURVE_POINTS)?;
            }
            answers.extend(self.curve.then(|| explain::along_the_curve(&points, found)));
        }
        let larger_card = match (&result, workers) {
            (Err(_), 1) => self.larger_card(model, &device)?,
            _ => None,
        };
        let model = chosen.name;
        let is_sized = self.workers.is_some_and(|workers| workers.each.is_some());
        Ok(Made {
            device,
            model,
            result,
            effects,
            milliseconds,
            larger_card,
            workers,
            is_sized,
            answers,
            curve: points,
        })
    }

    /// The plan in the least of a range as `--vram`, with the same sums if they fit there; `None` if it is a single size.
    fn in_the_least(&self, request: &Request, device: &Device, found: &Found) -> Result<Option<Answer>, Failure> {
        let Some(least) = self.budget.vram.and_then(|vram| vram.least) else { return Ok(None) };
        let budget = device.budget.of_vram(&self.budget, least)?;
        let budget = budget.with_host(request.targets.device.kind(), self.request.levers.host_ram)?;
        let mut result = search(&Request { budget: budget.clone(), ..same_sums(request, found) })?;
        if result.is_err() {
            result = search(&Request { budget, ..request.clone() })?;
        }
        let (value, words) = match result {
            Ok(small) => {
                let slower = (small.step.0 / found.step.0 - 1.0).max(0.0);
                let rounds = match small.plan.micro_batch == found.plan.micro_batch {
                    true => "the losses are the same, to the bit".to_owned(),
                    false => {
                        format!("a micro-batch of {}, so losses are the same up to rounding", small.plan.micro_batch)
                    }
                };
                let words = format!("in {least}, the least of the range: {:.0} % slower; {rounds}", 100.0 * slower);
                (
                    json!({ "vram_bytes": least.0, "step_ms": small.step.0 * 1e3, "micro_batch": small.plan.micro_batch }),
                    words,
                )
            }
            Err(misfit) => {
                let needed = misfit.plan.needed()[MemoryId::DEVICE] + device.budget.outside();
                let words = format!("in {least}, the least of the range, no plan fits: below {needed}, a run waits");
                (json!({ "vram_bytes": least.0, "needed_bytes": needed.0 }), words)
            }
        };
        Ok(Some(Answer { key: "least", value, words }))
    }

    /// The steps and the time of all epochs; `None` without the size of the data.
    fn whole_training(&self, found: &Found) -> Option<Answer> {
        let (epochs, plan) = (self.epochs?, &found.plan);
        let (steps_of_epoch, data) = match (self.tokens, self.records) {
            (Some(tokens), _) => (tokens as f64 / plan.tokens_per_step() as f64, format!("{} tokens", grouped(tokens))),
            (None, records) => {
                let records = records?;
                (records as f64 / plan.global_batch as f64, format!("{} records", grouped(records)))
            }
        };
        let steps = (epochs * steps_of_epoch).ceil().max(1.0);
        let time = Seconds(steps * found.step.0);
        let words =
            format!("{epochs} epochs of {data}: {} steps, {} predicted", grouped(steps as u64), format_duration(time));
        let value = json!({ "epochs": epochs, "steps": steps as u64, "seconds": time.0 });
        Some(Answer { key: "training", value, words })
    }

    /// A hint that names the smallest GPU on which the run fits, out of those with more memory than the one of `--gpu`.
    fn larger_card(&self, model: &Chosen, named: &Device) -> Result<Option<String>, Failure> {
        let is_named = self.gpu.as_ref().is_some_and(|name| !name.eq_ignore_ascii_case("auto"));
        if !is_named || self.budget.vram.is_some() {
            return Ok(None);
        }
        let larger = CARD_SIZES.into_iter().map(Bytes::gib).filter(|size| *size > named.budget.total());
        let in_fp8 = self.request.levers.precision(Precision::Bf16) == Precision::Fp8;
        let has_precision = |card: &&Card| !in_fp8 || card.fp8_tflops.is_some();
        let larger = larger.filter_map(card_of_memory).filter(has_precision).collect::<Vec<_>>();
        let asked = |card: &Card| -> Result<Request, Failure> {
            let device = Device::cards(card.name, &self.budget, self.speed_of_absent_card(None)?)?.remove(0);
            Ok(self.asked(model.clone(), &device, self.given(model, named)?)?.1)
        };
        let Some(first) = first_that_fits(larger.len(), |index| asked(larger[index]))? else { return Ok(None) };
        let flag = larger[first].name.to_lowercase().replace(' ', "-");
        Ok(Some(format!("`--gpu {flag}` is enough")))
    }
}

/// Prints about how long a curve takes: each point takes one search, and each end about ten.
fn say_how_long(milliseconds: f64) {
    const SEARCHES: f64 = 40.0;
    const LONG: Seconds = Seconds(5.0);
    let time = Seconds(SEARCHES * milliseconds / 1e3);
    if time > LONG {
        talk(format_args!("planning for {CURVE_POINTS} budgets, about {}", format_duration(time)));
    }
}

/// Why `--vram` means a GPU that is not in this machine; `None` if it means the device that `train` would use.
fn why_elsewhere(found: &FoundDevice, vram: Bytes) -> Option<String> {
    match found {
        FoundDevice::Processor | FoundDevice::Card(_) => None,
        FoundDevice::AnyCard(card) => {
            let card = card.card();
            is_more_than(vram, card.memory).then(|| {
                format!(
                    "the GPU that `train` would use, {}, has {}; `--device cuda` plans for its free memory",
                    card.name, card.memory
                )
            })
        }
        FoundDevice::NoCard(why) => {
            let why = match why {
                CudaError::NoDriver { .. } => "no NVIDIA driver was found",
                _ => "no GPU of this machine can be used",
            };
            Some(format!("{why}; `--device cpu` plans for the CPU, which `train` would use"))
        }
    }
}

/// Writes a picture. With a number, `plan.html` becomes `plan-2.html`, and a message names the file.
fn write_picture(path: &Path, number: Option<usize>, device: &Device, picture: &str) -> Result<(), Failure> {
    let path = number.map_or(path.to_owned(), |number| numbered(path, number));
    write_whole(&path, picture.as_bytes()).map_err(io_failure(path.display()))?;
    if number.is_some() {
        talk(format_args!("picture of {}: {}", device.name, path.display()));
    }
    Ok(())
}

fn numbered(path: &Path, number: usize) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or(String::new(), |extension| format!(".{}", extension.to_string_lossy()));
    path.with_file_name(format!("{stem}-{number}{extension}"))
}

/// The number of workers. Errors: it is above `MOST_WORKERS`.
fn count(request: &Request, asked: Workers) -> Result<usize, Failure> {
    match (asked.count, asked.each) {
        (AutoOr::Given(workers), _) if workers > MOST_WORKERS => {
            Err(Failure::bad_flag(format!("{workers} runs can't share a device; the maximum is {MOST_WORKERS}"))
                .hint("`--workers auto` finds how many fit"))
        }
        (AutoOr::Given(workers), _) => Ok(workers),
        (AutoOr::Auto, None) => Ok(most_workers(request)?.unwrap_or(1)),
        (AutoOr::Auto, Some(each)) => {
            let most = (request.budget.device().0 / each.0).clamp(1, MOST_WORKERS as u64);
            Ok(most as usize)
        }
    }
}

/// Shares the device among workers: the request becomes that of one worker. Errors: the workers need more than the budget.
fn share(request: &mut Request, workers: usize, each: Option<Bytes>) -> Result<(), Failure> {
    let whole = request.budget.device();
    *request = shared(request, workers);
    let Some(each) = each else { return Ok(()) };
    let together = Bytes(each.0.saturating_mul(workers as u64));
    if together > whole {
        let message =
            format!("{workers} runs with {each} each need {together}, but the budget of the device is {whole}");
        let fit = whole.0 / each.0;
        let failure = Failure::new(exit_code::DOES_NOT_FIT, message)
            .hint(format!("`--workers {workers}@{}MiB` shares it evenly", (whole.0 / workers as u64) >> 20));
        return Err(match fit {
            0 => failure,
            fit => failure.hint(format!("`--workers {fit}@{}` fits", each.to_string().replace(' ', ""))),
        });
    }
    request.budget = request.budget.with(MemoryId::DEVICE, each);
    Ok(())
}

/// The memory and the speed of each worker, and of all together.
fn shared_answer(request: &Request, workers: usize, whole: Bytes, result: &Result<Found, Box<Misfit>>) -> Answer {
    let (device, host) = (request.budget.device(), request.budget.host());
    let of_host = host.map_or(String::new(), |host| format!(" and {host} of the host"));
    let each = result.as_ref().ok().map(Found::tokens_per_s);
    let speed = each.map_or(String::new(), |each| {
        format!("; {each:.0} tokens/s each while all compute, {:.0} together", each * workers as f64)
    });
    let words = format!("{workers} runs share the device's {whole}, each with {device}{of_host}{speed}");
    let value = json!({
        "count": workers, "budget_bytes": device.0, "host_budget_bytes": host.map(|host| host.0),
        "tokens_per_s_together": each.map(|each| each * workers as f64),
    });
    Answer { key: "workers", value, words }
}

/// Compares the rule of thumb's plan with the best plan of the same sequence length.
fn compare_rule(
    request: &Request,
    device: &Device,
    ours: &Result<Found, Box<Misfit>>,
    most_positions: usize,
) -> Result<Answer, Failure> {
    let rule = rule_of_thumb(device.budget.total());
    let RuleOfThumb { micro_batch, accumulation, recompute, .. } = rule;
    // The planner rejects a sequence longer than the model's positions.
    let seq_len = rule.seq_len.min(most_positions);
    let mut model = request.model.clone();
    model.set_max_positions(model.max_positions().max(seq_len));
    let level = Recompute::all(if recompute { Level::Block } else { Level::None });
    let levers = ::plimsoll_plan::LeverRequest {
        recompute: Some(level),
        activation_offload: Some(0.0),
        optimizer_offload: Some(0.0),
        weight_offload: Some(0.0),
        ..request.levers
    };
    let global_batch = micro_batch * accumulation;
    let by_rule = Request { model, seq_len, global_batch, micro_batch: Some(micro_batch), levers, ..request.clone() };
    let open = Request { micro_batch: None, levers: request.levers, ..by_rule.clone() };
    let speed = |result: &Result<Found, Box<Misfit>>| result.as_ref().ok().map(Found::tokens_per_s);
    let rule = format!(
        "rule of thumb: batch {micro_batch}, length {seq_len}, accumulation {accumulation}{}",
        if recompute { ", recompute" } else { "" }
    );
    let (found, same_length) = match (search(&by_rule), search(&open)) {
        (Ok(found), Ok(same_length)) => (found, same_length),
        // Other flags exclude the rule's settings.
        (Err(refused), _) | (_, Err(refused)) => {
            let value = json!({
                "micro_batch": micro_batch, "seq_len": seq_len, "accumulation": accumulation, "recompute": recompute,
                "refused": refused.to_string(),
            });
            return Ok(Answer { key: "rule_of_thumb", value, words: format!("{rule}: refused: {refused}") });
        }
    };
    let peak = match &found {
        Ok(found) => found.plan.peak(),
        Err(misfit) => misfit.plan.peak(),
    };
    let said = |speed: Option<f64>| speed.map_or("does not fit".to_owned(), |speed| format!("{speed:.0} tokens/s"));
    let words = format!(
        "{rule}: {peak}, {}; best plan at that length: {}; with your flags: {}",
        said(speed(&found)),
        said(speed(&same_length)),
        said(speed(ours))
    );
    let value = json!({
        "micro_batch": micro_batch, "seq_len": seq_len, "accumulation": accumulation, "recompute": recompute,
        "peak_bytes": peak.0, "tokens_per_s": speed(&found), "planned_tokens_per_s": speed(&same_length),
    });
    Ok(Answer { key: "rule_of_thumb", value, words })
}
