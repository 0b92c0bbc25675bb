//! Compares the simulated steps with steps of PyTorch that `scripts/record_eager.py` recorded: every allocation in
//! order with the storages live at that time, the peak, the peak of each phase, and the storages live at the peak.

use crate::card::Gpu;
use crate::runtime::Event;
use crate::sharding::Bound;
use crate::step::{Steps, steps};
use crate::usage::Phase;
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{
    Attention, Checkpointing, CustomLoop, KeptOutputs, Libraries, Library, Lora, Loss, Method, Optimizer, Precision,
    Quantized, Run, Targets,
};
use plimsoll_units::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A record: its lines by their first word.
pub(crate) struct Record {
    name: String,
    run: BTreeMap<String, String>,
    shape: BTreeMap<String, String>,
    peak: u64,
    /// The number of allocations, and a hash of their bytes and of the live bytes.
    events: String,
    most: BTreeMap<String, u64>,
    live: BTreeMap<u64, (u64, String)>,
}

/// The keys of dropout rates in all families.
const DROPOUTS: [&str; 9] = [
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "dropout_rate",
    "attention_dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "embedding_dropout",
    "mlp_dropout",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn settings<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    words.filter_map(|word| word.split_once('=')).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn read(text: &str) -> Record {
    let mut record = Record {
        name: String::new(),
        run: BTreeMap::new(),
        shape: BTreeMap::new(),
        peak: 0,
        events: String::new(),
        most: BTreeMap::new(),
        live: BTreeMap::new(),
    };
    for line in text.lines() {
        let mut words = line.split(' ');
        match words.next().expect("lines have words") {
            "case" => record.name = words.collect(),
            "run" => record.run = settings(words),
            "shape" => record.shape = settings(words),
            "peak" => record.peak = words.next().unwrap().parse().unwrap(),
            "events" => record.events = words.collect::<Vec<_>>().join(" "),
            "most" => {
                let phase = words.next().unwrap().to_owned();
                record.most.insert(phase, words.next().unwrap().parse().unwrap());
            }
            "live" => {
                let bytes = words.next().unwrap().parse().unwrap();
                let count = words.next().unwrap().parse().unwrap();
                record.live.insert(bytes, (count, words.collect()));
            }
            other => panic!("`{other}` starts no line of a record"),
        }
    }
    record
}

impl Record {
    fn get(&self, key: &str) -> Option<&str> {
        self.run.get(key).map(String::as_str)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.get(key).map(|value| value.parse().expect("a number"))
    }

    fn model(&self) -> ModelConfig {
        let family = self.get("family").expect("a family");
        let rate = self.get("dropout").unwrap_or("0");
        let mut json = format!("{{\"model_type\": \"{family}\"");
        for (key, value) in &self.shape {
            let value = match value.as_str() {
                "False" => "false".to_owned(),
                "True" => "true".to_owned(),
                number if number.parse::<f64>().is_ok() => number.to_owned(),
                text => format!("\"{text}\""),
            };
            write!(json, ", \"{key}\": {value}").unwrap();
        }
        for key in DROPOUTS {
            write!(json, ", \"{key}\": {rate}").unwrap();
        }
        ModelConfig::from_json(&(json + "}")).expect("a model")
    }

    pub(crate) fn run(&self) -> Run {
        let lora = |rank: &str| Lora {
            rank: rank.parse().expect("a rank"),
            targets: match self.get("targets") {
                None => Targets::Default,
                Some("all-linear") => Targets::AllLinear,
                Some(names) => Targets::Named(names.split(',').map(str::to_owned).collect()),
            },
            dropout: self.get("lora_dropout").is_some(),
        };
        Run {
            method: match (self.get("lora"), self.get("quantized")) {
                (None, _) => Method::Full,
                (Some(rank), None) => Method::Lora(lora(rank)),
                (Some(rank), Some(how)) => Method::Qlora(lora(rank), Quantized { block: 64, double: how == "double" }),
            },
            precision: match self.get("precision") {
                Some("bf16") => Precision::PureBf16,
                Some("fp16") => Precision::PureFp16,
                Some("amp-bf16") => Precision::AmpBf16,
                Some("amp-fp16") => Precision::AmpFp16,
                _ => Precision::Fp32,
            },
            micro_batch: self.number("batch").expect("a batch"),
            accumulation: self.number("accumulation").unwrap_or(1),
            seq_len: self.number("length").expect("a length"),
            target_len: self.number("target"),
            optimizer: match self.get("optimizer") {
                None | Some("adamw-fused") => Optimizer::AdamWFused,
                Some("adamw-foreach") => Optimizer::AdamWForeach,
                Some("adamw-loop") => Optimizer::AdamWForLoop,
                Some("adamw-8bit") => Optimizer::AdamW8bit,
                Some("paged-adamw-8bit") => Optimizer::PagedAdamW8bit,
                Some("paged-adamw") => Optimizer::PagedAdamW,
                Some("adafactor") => Optimizer::Adafactor,
                Some("sgd") => Optimizer::Sgd { momentum: false },
                Some("sgd-momentum") => Optimizer::Sgd { momentum: true },
                Some(other) => panic!("no optimizer {other}"),
            },
            checkpointing: match self.get("checkpointing") {
                Some("reentrant") => Checkpointing::Reentrant,
                Some("hooks") => Checkpointing::NonReentrant,
                _ => Checkpointing::Off,
            },
            attention: if self.get("attention") == Some("eager") { Attention::Eager } else { Attention::Sdpa },
            loss: match self.get("loss") {
                None => Loss::Plain,
                Some("liger") => Loss::Liger,
                Some(other) => panic!("no loss {other}"),
            },
            clips: self.get("clips").is_some(),
            custom_loop: self.custom_loop(),
            libraries: self.libraries(),
            ..Run::default()
        }
    }

    fn custom_loop(&self) -> CustomLoop {
        let mut custom_loop = CustomLoop::default();
        for difference in self.get("loop").into_iter().flat_map(|text| text.split(',')) {
            match difference {
                "outputs-until-backward" => custom_loop.outputs = KeptOutputs::UntilBackward,
                "outputs-until-step" => custom_loop.outputs = KeptOutputs::UntilStep,
                "outputs-until-next" => custom_loop.outputs = KeptOutputs::UntilNext,
                "zeroed-gradients" => custom_loop.keeps_gradients = true,
                "no-attention-mask" => custom_loop.omits_mask = true,
                other => panic!("no loop has {other}"),
            }
        }
        custom_loop
    }

    fn libraries(&self) -> Libraries {
        let transformers = self.get("transformers").map(|text| Library::Transformers.read(text).expect("a version"));
        let newest = Libraries::default();
        Libraries { transformers: transformers.unwrap_or(newest.transformers), ..newest }
    }

    fn steps(&self) -> Steps {
        self.steps_of(&self.run(), Bound::Likely)
    }

    /// Reads the record of this name.
    pub(crate) fn named(name: &str) -> Self {
        read(&std::fs::read_to_string(folder().join(format!("{name}.txt"))).expect("a record"))
    }

    /// The record's model with other settings.
    pub(crate) fn steps_of(&self, run: &Run, bound: Bound) -> Steps {
        let gpu = Gpu { memory: Bytes::gib(80), compute_capability: (9, 0) };
        steps(&self.model(), run, gpu, false, bound).expect("recorded runs are modeled")
    }
}

/// Storages up to this size are not recorded.
const SCALAR: u64 = 8;

/// The storages live at the peak, with their ops, and the peak of each phase.
struct Peak {
    bytes: u64,
    events: String,
    live: BTreeMap<u64, (u64, BTreeSet<&'static str>)>,
    most: BTreeMap<String, u64>,
}

fn peak(steps: &Steps) -> Peak {
    let mut result = Peak { bytes: 0, events: String::new(), live: BTreeMap::new(), most: BTreeMap::new() };
    // FNV-1a, as in the script.
    let (mut count, mut hash) = (0, 0xcbf2_9ce4_8422_2325_u64);
    let mut live = BTreeSet::new();
    let mut at_peak = BTreeSet::new();
    let (mut total, mut phase) = (0, "load");
    let is_followed = |event: &&Event| match event {
        Event::Allocate(id) | Event::Free(id) => steps.records[*id as usize].bytes > SCALAR,
        Event::Enter(_) => true,
    };
    for event in steps.events.iter().filter(is_followed) {
        match event {
            Event::Enter(Phase::Forward) => phase = "forward",
            Event::Enter(Phase::Backward) => phase = "backward",
            Event::Enter(Phase::Update) => phase = "update",
            Event::Enter(Phase::Load) => phase = "load",
            Event::Free(id) => {
                assert!(live.remove(id), "a storage is freed once");
                total -= steps.records[*id as usize].bytes;
            }
            Event::Allocate(id) => {
                live.insert(*id);
                let bytes = steps.records[*id as usize].bytes;
                total += bytes;
                count += 1;
                for byte in format!("{bytes} {total};").bytes() {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
                let most = result.most.entry(phase.to_owned()).or_default();
                *most = total.max(*most);
                if total > result.bytes {
                    (result.bytes, at_peak) = (total, live.clone());
                }
            }
        }
    }
    result.events = format!("{count} {hash:016x}");
    for id in at_peak {
        let record = &steps.records[id as usize];
        let entry = result.live.entry(record.bytes).or_default();
        entry.0 += 1;
        entry.1.insert(record.op);
    }
    result
}

/// Largest relative difference of peaks in records of older versions: they create positions and masks in other ops.
const OLDER: f64 = 0.01;

/// The differences between a record and the simulation; empty if there are none.
fn differences(record: &Record) -> String {
    let peak = peak(&record.steps());
    let mut text = String::new();
    if record.get("transformers").is_some() {
        for (phase, most) in &record.most {
            let here = peak.most.get(phase).copied().unwrap_or(0);
            if (here as f64 / *most as f64 - 1.0).abs() > OLDER {
                writeln!(text, "  most in {phase}: {most} recorded, {here} here").unwrap();
            }
        }
        return text;
    }
    if peak.bytes != record.peak {
        writeln!(text, "  peak: {} recorded, {} here", record.peak, peak.bytes).unwrap();
    }
    if peak.events != record.events {
        writeln!(text, "  events: {} recorded, {} here; compare them by `events` below", record.events, peak.events)
            .unwrap();
    }
    for (phase, most) in &record.most {
        let here = peak.most.get(phase).copied().unwrap_or(0);
        if here != *most {
            writeln!(text, "  most in {phase}: {most} recorded, {here} here").unwrap();
        }
    }
    let sizes = record.live.keys().chain(peak.live.keys()).collect::<BTreeSet<_>>();
    for bytes in sizes.into_iter().rev() {
        let (recorded, names) = record.live.get(bytes).cloned().unwrap_or_default();
        let (here, ops) = peak.live.get(bytes).cloned().unwrap_or_default();
        if recorded != here {
            writeln!(text, "  {bytes} bytes: {recorded} recorded ({names}), {here} here {ops:?}").unwrap();
        }
    }
    text
}

fn records() -> Vec<Record> {
    let files = std::fs::read_dir(folder()).expect("the folder of records").flatten();
    let mut records = files.map(|file| read(&std::fs::read_to_string(file.path()).unwrap())).collect::<Vec<_>>();
    records.sort_by(|a, b| a.name.cmp(&b.name));
    records
}

#[test]
fn allocations_and_frees_are_as_recorded_event_by_event() {
    let records = records();
    assert!(records.len() > 50, "{} records", records.len());
    let wanted = std::env::var("RECORD").ok();
    let mut failed = String::new();
    for record in records.iter().filter(|record| wanted.as_ref().is_none_or(|name| *name == record.name)) {
        let text = differences(record);
        if !text.is_empty() {
            writeln!(failed, "{}:\n{text}", record.name).unwrap();
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Prints every allocation and free of the record that `RECORD` names, like `record_eager.py --events`.
#[test]
#[ignore = "for comparing by hand"]
fn events() {
    let name = std::env::var("RECORD").expect("RECORD names a record");
    let record = read(&std::fs::read_to_string(folder().join(name + ".txt")).unwrap());
    let steps = record.steps();
    for event in &steps.events {
        let text = |id: &u32| {
            let record = &steps.records[*id as usize];
            format!("{} {} {}", record.bytes, record.op, record.module)
        };
        match event {
            Event::Allocate(id) => println!("+{}", text(id)),
            Event::Free(id) => println!("-{}", text(id)),
            Event::Enter(_) => {}
        }
    }
}
