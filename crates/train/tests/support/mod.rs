//! Shared by the tests of training: tiny models, generated text, and runs of both.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod weights;

use plimsoll_data::{
    Batches, ChatTemplate, Column, Dataset, Date, HeldOut, Packed, PairColumns, PairSettings, Pairs, PreferenceData,
    PreferencePairs, PreferenceRows, PreferenceSettings, TokenStore, Tokenizer, TokenizerSpec,
};
use plimsoll_exec::{CpuDevice, philox};
use plimsoll_files::Disk;
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::ops::PreferenceKind;
use plimsoll_graph::{
    Adapter, Adapters, Contrastive, Graph, LayerRole, Lengths, Objective, Optimizer, Preferences, Targets, TrainShape,
    build_training,
};
use plimsoll_plan::{Level, Levers, Plan, Recompute, lay_out};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::checkpoint::ModelFolder;
use plimsoll_train::{
    Base, Ending, Engine, Length, LossScale, Report, RunFolder, Schedule, Shape, Start, TrainError, Trainer,
    TrainerConfig,
};
use plimsoll_units::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Vocabulary size of the generated text.
pub const VOCAB_SIZE: usize = 61;
/// Default number of samples per step.
pub const GLOBAL_BATCH: usize = 8;

/// A model that trains in almost no time, with dropout everywhere.
pub fn tiny_gpt2() -> Gpt2Config {
    Gpt2Config {
        vocab_size: VOCAB_SIZE,
        n_positions: 16,
        n_embd: 24,
        n_layer: 2,
        n_head: 2,
        n_inner: None,
        attn_pdrop: 0.1,
        embd_pdrop: 0.1,
        resid_pdrop: 0.1,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.1,
        bias: true,
    }
}

/// A Llama of similar size, with grouped heads.
fn tiny_llama() -> ModelConfig {
    let config = r#"{
        "model_type": "llama", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16, "attention_dropout": 0.1,
        "initializer_range": 0.1, "attention_bias": true
    }"#;
    ModelConfig::from_json(config).expect("a sensible model")
}

/// A T5 of similar size, for text of bytes.
fn tiny_t5(feed_forward: &str) -> ModelConfig {
    let config = format!(
        r#"{{
        "model_type": "t5", "vocab_size": 256, "d_model": 24, "d_kv": 5, "d_ff": 32, "num_layers": 2, "num_heads": 3,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "dropout_rate": 0.1,
        "feed_forward_proj": "{feed_forward}", "tie_word_embeddings": {}
    }}"#,
        feed_forward == "relu"
    );
    ModelConfig::from_json(&config).expect("a sensible model")
}

/// A run of every kind of model and of data.
pub fn families() -> Vec<(&'static str, Setup)> {
    let plain = Setup::default();
    let of_t5 = |feed_forward: &str, objective: Objective| {
        let shape = TrainShape { objective, ..plain.shape.clone() };
        Setup { model: tiny_t5(feed_forward), shape, ..plain.clone() }.with_rows()
    };
    let packed = TrainShape { packed: true, ..plain.shape.clone() };
    let paired =
        Objective { label_smoothing: 0.1, r_drop: Some(1.0), embedding_noise: Some(5.0), ..Objective::default() };
    vec![
        ("GPT-2", plain.clone()),
        ("Llama", Setup { model: tiny_llama(), ..plain.clone() }),
        ("T5", of_t5("relu", Objective::default())),
        ("T5 v1.1 with R-Drop", of_t5("gated-gelu", paired)),
        ("GPT-2, packed", Setup { shape: packed.clone(), ..plain.clone() }),
        ("Llama, packed", Setup { model: tiny_llama(), shape: packed, ..plain.clone() }),
    ]
}

/// Runs of encoders, whose steps have one micro-batch: with pairs, and with negatives.
pub fn encoders() -> Vec<(&'static str, Setup)> {
    let of = |family: &str, more: &str, negatives: usize| {
        let config = format!(
            r#"{{
            "model_type": "{family}", "vocab_size": 256, "hidden_size": 24, "intermediate_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 32, "initializer_range": 0.1,
            {more}
        }}"#
        );
        let model = ModelConfig::from_json(&config).expect("a sensible model");
        let contrastive = Contrastive { scale: 5.0, negatives, ..Contrastive::default() };
        let shape = TrainShape {
            micro_batch: GLOBAL_BATCH,
            accumulates: false,
            sample_prefill: None,
            objective: Objective { contrastive, ..Objective::default() },
            ..Setup::default().shape
        };
        Setup { model, shape, ..Setup::default() }.with_rows()
    };
    vec![
        ("BERT", of("bert", r#""hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1"#, 0)),
        ("ModernBERT with negatives", of("modernbert", r#""local_attention": 8, "mlp_dropout": 0.1"#, 2)),
    ]
}

const QWEN3_MOE: &str = r#"{
    "model_type": "qwen3_moe", "vocab_size": 256, "hidden_size": 24, "intermediate_size": 40, "moe_intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 48, "initializer_range": 0.1
}"#;

const GPT_OSS: &str = r#"{
    "model_type": "gpt_oss", "vocab_size": 256, "hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 48, "initializer_range": 0.1
}"#;

/// Runs of adapters: of experts, on preferences, with magnitudes, and of output heads; and on preferences without a reference, of all
/// weights.
pub fn adapted() -> Vec<(&'static str, Setup)> {
    let config = r#"{
        "model_type": "llama", "vocab_size": 256, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48, "attention_dropout": 0.1,
        "initializer_range": 0.1
    }"#;
    let model = ModelConfig::from_json(config).expect("a sensible model");
    let known = model.adaptable_layers().expect("a sensible model").into_iter();
    let layers = known.clone().map(|layer| (layer.module, Adapter { rank: 3, scale: 2.0 })).collect();
    let plain = Setup::default();
    let on_preferences = |preferences, adapters| {
        let objective = Objective { preferences: Some(preferences), ..Objective::default() };
        let shape = TrainShape { sample_prefill: None, objective, adapters, ..plain.shape.clone() };
        Setup { model: model.clone(), shape, ..plain.clone() }.with_rows()
    };
    let adapters = Adapters { layers, dropout: 0.1, ..Adapters::default() };
    let single = PreferenceKind::Single { liked: 1.0, disliked: 0.5, has_reference_point: true };
    let single = Preferences { kind: single, beta: 0.5 };
    let odds = Preferences { kind: PreferenceKind::Orpo, ..Preferences::default() };
    let with_reference = on_preferences(Preferences::default(), Some(adapters.clone()));
    let judged = on_preferences(single, Some(adapters));
    let without = on_preferences(odds, None);
    let linear = known.filter(|layer| layer.role == LayerRole::Inner);
    let layers = linear.map(|layer| (layer.module, Adapter { rank: 3, scale: 2.0 })).collect();
    let saved = ["lm_head.weight".to_owned()].into();
    let adapters = Adapters { layers, saved, has_magnitudes: true, ..Adapters::default() };
    let objective = Objective { embedding_noise: Some(5.0), ..Objective::default() };
    let with_magnitudes = |dropout, objective| {
        let adapters = Some(Adapters { dropout, ..adapters.clone() });
        let shape = TrainShape { adapters, objective, ..plain.shape.clone() };
        Setup { model: model.clone(), shape, ..plain.clone() }
    };
    let of_head = |model: ModelConfig, r_drop| {
        let layers = model.adaptable_layers().expect("a sensible model").into_iter();
        let layers =
            layers.filter(|layer| layer.role == LayerRole::Head || layer.module.ends_with("layer.0.SelfAttention.v"));
        let layers = layers.map(|layer| (layer.module, Adapter { rank: 3, scale: 2.0 })).collect();
        let adapters = Some(Adapters { layers, dropout: 0.1, ..Adapters::default() });
        let shape =
            TrainShape { adapters, objective: Objective { r_drop, ..Objective::default() }, ..plain.shape.clone() };
        let setup = Setup { model, shape, ..plain.clone() };
        if setup.model.takes_pairs() { setup.with_rows() } else { setup }
    };
    let of_experts = |config: &str, targets: [&str; 2]| {
        let model = ModelConfig::from_json(config).expect("a sensible model");
        let layers = model.adaptable_layers().expect("a sensible model").into_iter();
        let layers = layers.filter(|layer| targets.iter().any(|end| layer.module.ends_with(end)));
        let layers = layers.map(|layer| (layer.module, Adapter { rank: 3, scale: 2.0 })).collect();
        // The head is trained whole, so that a random model learns something.
        let saved = ["lm_head.weight".to_owned()].into();
        let adapters = Some(Adapters { layers, saved, ..Adapters::default() });
        Setup { model, shape: TrainShape { adapters, ..plain.shape.clone() }, ..plain.clone() }
    };
    vec![
        ("Qwen3-MoE with adapters of its experts", of_experts(QWEN3_MOE, ["experts.*.up_proj", "experts.*.down_proj"])),
        ("gpt-oss with adapters of its experts", of_experts(GPT_OSS, ["gate_up_proj", "v_proj"])),
        ("T5 with adapters of its tied head", of_head(tiny_t5("relu"), None)),
        ("Llama with R-Drop and an adapter of its head", of_head(model.clone(), Some(1.0))),
        ("Llama on preferences", with_reference),
        ("Llama on judged answers", judged),
        ("Llama on preferences without a reference", without),
        ("Llama with magnitudes", with_magnitudes(0.0, objective)),
        ("Llama with magnitudes and dropout", with_magnitudes(0.3, Objective::default())),
    ]
}

/// The graph and the plan of a model's training run on the processor.
pub fn plan_training(
    model: &ModelConfig,
    shape: &TrainShape,
    optimizer: &Optimizer,
    levers: &Levers,
    global_batch: usize,
    threads: usize,
) -> (Graph, Plan) {
    let mut graph = build_training(model, optimizer, shape).expect("a sensible model");
    levers.pull(&mut graph).expect("levers that don't exclude each other");
    let plan = Plan {
        micro_batch: shape.micro_batch,
        accumulation: global_batch / shape.micro_batch,
        global_batch,
        seq_len: shape.seq_len,
        target_len: shape.target_len,
        ..lay_out(&graph, &Targets::cpu(threads))
    };
    (graph, plan)
}

/// Text in which every token depends on the previous one; a twentieth is held out.
fn text(seed: u64) -> TokenStore {
    let mut token = 0;
    let tokens = (0..4000).map(|i| {
        let noise = philox([i, 0, 0, 0], [seed as u32, 0])[0] % 4;
        token = (token * 5 + noise + 1) % VOCAB_SIZE as u32;
        token
    });
    TokenStore::in_memory(&tokens.collect::<Vec<_>>(), VOCAB_SIZE, Bytes(4000))
}

/// A file of generated lines, tokenized as bytes.
fn made_up(extension: &str, line: impl Fn(usize) -> String) -> (tempfile::TempDir, plimsoll_data::Sources, Tokenizer) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(format!("made-up.{extension}"));
    std::fs::write(&path, (0..300).map(line).collect::<String>()).expect("a new file");
    let sources = plimsoll_data::resolve(&[path.to_string_lossy()], plimsoll_data::DEFAULT_TEXT_FIELD)
        .expect("a file that is there");
    (folder, sources, Tokenizer::open(&TokenizerSpec::Bytes).expect("bytes need no file"))
}

/// Words of a few letters, in an order that can be learned.
fn words(count: usize, first: usize) -> String {
    (0..count).map(|i| ["ab", "cde", "f", "ghij"][(first + i * i) % 4]).collect()
}

/// Sources of one to five words, whose targets are longer; for an encoder also this many negatives, which are others'
/// targets.
fn pairs(seed: u64, negatives: Option<usize>) -> Pairs {
    let target = |i: usize| words(1 + i % 7, i + 1);
    let (_folder, sources, tokenizer) =
        made_up("tsv", |i| format!("{}\t{}\t{}\t{}\n", words(1 + i % 5, i), target(i), target(i + 2), target(i + 3)));
    let of_negatives = (3..).take(negatives.unwrap_or(0)).map(Column::Number);
    let columns = PairColumns { negatives: of_negatives.collect(), ..PairColumns::default() };
    let store = plimsoll_data::tokenize_pairs(&sources, &columns, &tokenizer, &|_| {}).expect("a sound table");
    let settings = PairSettings {
        source_len_max: 16,
        target_len_max: 24,
        bucket: 8,
        end_token: Some(1),
        decoder_start: 0,
        seed,
        held_out: HeldOut::Usual,
    };
    let pairs = match negatives {
        Some(_) => Pairs::for_encoder(store, settings, &[2]),
        None => Pairs::new(store, settings),
    };
    pairs.expect("pairs enough")
}

/// Answers of several lengths, of which those that repeat the prompt's first letter are chosen; some rows are cut.
fn compared(seed: u64, rows: PreferenceRows) -> PreferencePairs {
    let is_judged = matches!(rows, PreferenceRows::Judged { .. });
    let data = if is_judged { PreferenceData::Judged } else { PreferenceData::Paired };
    let (folder, sources, tokenizer) = made_up("jsonl", |i| {
        let (prompt, chosen, rejected) = (words(1 + i % 3, i), "a".repeat(1 + i % 9), words(1 + i % 13, i + 2));
        if data == PreferenceData::Judged {
            let (answer, label) = if i % 3 == 0 { (chosen, true) } else { (rejected, false) };
            return format!("{{\"prompt\":\"{prompt}\",\"completion\":\"{answer}\",\"label\":{label}}}\n");
        }
        format!("{{\"prompt\":\"{prompt}\",\"chosen\":\"{chosen}\",\"rejected\":\"b{rejected}\"}}\n")
    });
    let template = ChatTemplate::chatml(Date::of_unix_seconds(0));
    let format = plimsoll_data::detect_preferences(&sources, data).expect("preferences");
    let cache = folder.path().join("cache");
    let store = plimsoll_data::prepare_preferences(&sources, data, format, &template, &tokenizer, &cache, &|_| {});
    let settings = PreferenceSettings { len_max: 32, bucket: 8, seed, held_out: HeldOut::Usual, rows };
    let pairs = PreferencePairs::new(store.expect("sound rows"), settings).expect("examples enough");
    assert!(pairs.truncated() > 0 && pairs.left_out() == 0, "some rows are cut");
    pairs
}

/// Documents of one to six words, whose letters are small numbers.
fn documents(seq_len: usize, seed: u64) -> Packed {
    let mut tokens = Vec::new();
    for i in 0..300 {
        tokens.extend(words(1 + i % 6, i).bytes().map(|letter| u32::from(letter - b'a') + 1));
        tokens.push(0);
    }
    let store = TokenStore::in_memory(&tokens, VOCAB_SIZE, Bytes(tokens.len() as u64));
    let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes).expect("bytes need no file");
    assert_eq!(tokenizer.separator(), Some(0));
    Packed::new(store, &tokenizer, seq_len, seed).expect("documents enough")
}

/// All settings of a run.
#[derive(Debug, Clone)]
pub struct Setup {
    pub model: ModelConfig,
    pub shape: TrainShape,
    pub optimizer: Optimizer,
    pub levers: Levers,
    pub loss_scale: Option<LossScale>,
    pub global_batch: usize,
    pub threads: usize,
    pub steps: u64,
    pub seed: u64,
    pub text_seed: u64,
    pub eval_every: Option<u64>,
    pub checkpoint_every: Option<u64>,
    pub checkpoint_time_part: Option<f64>,
    pub keep_checkpoints: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let shape = TrainShape {
            micro_batch: 4,
            seq_len: 16,
            accumulates: true,
            head_chunk: 64,
            evaluates: true,
            sample_prefill: Some(8),
            ..TrainShape::default()
        };
        Self {
            model: ModelConfig::Gpt2(tiny_gpt2()),
            shape,
            optimizer: Optimizer::default(),
            levers: Levers { recompute: Recompute::all(Level::Cheap), ..Levers::default() },
            loss_scale: None,
            global_batch: GLOBAL_BATCH,
            threads: 1,
            steps: 12,
            seed: 7,
            text_seed: 1,
            eval_every: Some(4),
            checkpoint_every: None,
            checkpoint_time_part: None,
            keep_checkpoints: 100,
        }
    }
}

/// Receives events, and may set the flag that stops the run.
pub trait View: FnMut(&Event, &AtomicBool) + Send {}
impl<F: FnMut(&Event, &AtomicBool) + Send> View for F {}

struct ViewSink<'a, V> {
    view: V,
    stop: &'a AtomicBool,
}

impl<V: View> Sink for ViewSink<'_, V> {
    fn take(&mut self, event: &Event) {
        (self.view)(event, self.stop);
    }
}

/// The ending of a run, its report, and its newest checkpoint.
pub type Outcome = (Ending, Report, Option<PathBuf>);

impl Setup {
    /// The run's graph and plan.
    pub fn plan(&self) -> (Graph, Plan) {
        plan_training(&self.model, &self.shape, &self.optimizer, &self.levers, self.global_batch, self.threads)
    }

    /// A device with the run's plan; weights are still zero.
    pub fn engine(&self) -> Engine {
        let (graph, plan) = self.plan();
        Engine::new(Box::new(CpuDevice::new()), &graph, plan).expect("a sound plan and memory for it")
    }

    /// Runs a session in `folder`.
    pub fn try_run(&self, folder: &Path, start: &Start, view: impl View) -> Result<Outcome, TrainError> {
        let outcome = self.run_on(Disk::default(), folder, start, view)?;
        Ok((outcome.ending, outcome.report, outcome.saved.map(|(_, path)| path)))
    }

    /// Runs a session in `folder`, on a disk that a test can watch.
    pub fn run_on(
        &self,
        disk: Disk,
        folder: &Path,
        start: &Start,
        view: impl View,
    ) -> Result<plimsoll_train::Outcome, TrainError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build().expect("a pool");
        pool.install(|| {
            let stop = AtomicBool::new(false);
            let dataset = Arc::new(self.dataset());
            let mut sink = ViewSink { view, stop: &stop };
            let trainer = Trainer {
                engine: &mut self.engine(),
                dataset: &dataset,
                folder: &RunFolder::open_on(disk, folder, *start != Start::Fresh)?,
                config: &self.config(),
                sinks: vec![&mut sink],
                stop: &stop,
                pace: &plimsoll_train::UnlimitedPace,
            };
            trainer.run(start)
        })
    }

    /// Runs a session in `folder`, which must not fail.
    pub fn run(&self, folder: &Path, start: &Start, view: impl View) -> Outcome {
        self.try_run(folder, start, view).expect("a session without an error")
    }

    /// The losses of a run from start to end, in a temporary folder.
    pub fn losses(&self) -> Vec<f64> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (ending, report, _) = self.run(&folder.path().join("run"), &Start::Fresh, |_: &_, _: &_| {});
        assert_eq!(ending, Ending::Finished);
        all_losses(&report, self.steps)
    }

    /// The run's data: windows of text, packed documents, or pairs, as required by its model and shape.
    pub fn dataset(&self) -> Dataset {
        if let Some(Preferences { kind, .. }) = self.shape.objective.preferences {
            return Dataset::Preferences(compared(
                self.seed,
                match kind {
                    PreferenceKind::Orpo => PreferenceRows::AnswersAndPrompt,
                    PreferenceKind::Single { has_reference_point, .. } => {
                        PreferenceRows::Judged { mismatches: has_reference_point }
                    }
                    _ => PreferenceRows::Answers,
                },
            ));
        } else if self.model.decoder_start().is_some() {
            return Dataset::Pairs(pairs(self.seed, None));
        } else if self.model.is_encoder() {
            return Dataset::Pairs(pairs(self.seed, Some(self.shape.objective.contrastive.negatives)));
        }
        let store = text(self.text_seed);
        if self.shape.packed {
            return Dataset::Packed(documents(self.shape.seq_len, self.seed));
        }
        Dataset::Windows(Batches::new(store, self.shape.seq_len, self.seed).expect("text enough"))
    }

    /// Sets the lengths to those of the data.
    fn with_rows(mut self) -> Self {
        let shapes = self.dataset().shapes();
        let lengths = shapes.iter().map(|s| Lengths { tokens: s.source_len, target: s.target_len });
        let lengths = lengths.collect::<Vec<_>>();
        assert!(lengths.len() > 1, "pairs of several lengths: {lengths:?}");
        self.shape.seq_len = lengths.iter().map(|l| l.tokens).max().expect("there are pairs");
        self.shape.target_len = lengths.iter().filter_map(|l| l.target).max();
        let longest = Lengths { tokens: self.shape.seq_len, target: self.shape.target_len };
        self.shape.buckets = lengths.into_iter().filter(|l| *l != longest).collect();
        self
    }

    /// The files that make its checkpoints model folders.
    pub fn model_folder(&self) -> ModelFolder {
        let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes).expect("a built-in tokenizer");
        let files = plimsoll_data::model_files(&tokenizer, None, None, None).expect("nothing is read");
        ModelFolder::new(&self.model, &tokenizer, &serde_json::Map::new(), None, files)
    }

    /// The settings of the run's loop.
    pub fn config(&self) -> TrainerConfig {
        TrainerConfig {
            base: self.shape.adapters.as_ref().map(|_| Base { weights: None, adapters: None }),
            safe_settings: None,
            name: "test".into(),
            model_name: "tiny".into(),
            model: self.model.clone(),
            model_folder: self.model_folder(),
            length: Length::MaxSteps(self.steps),
            schedule: Schedule {
                learning_rate: 1e-2,
                warmup_steps: 3,
                final_part: 0.1,
                shape: Shape::Cosine,
                decay_part: 0.2,
            },
            seed: self.seed,
            eval_every: self.eval_every,
            eval_samples: 5,
            checkpoint_every: self.checkpoint_every,
            checkpoint_time_part: self.checkpoint_time_part,
            keep_checkpoints: self.keep_checkpoints,
            tokenizer: "bytes".into(),
            loss_scale: self.loss_scale,
            precision: self.levers.precision.name().to_owned(),
        }
    }
}

/// The losses of a report that has one for every step.
pub fn all_losses(report: &Report, steps: u64) -> Vec<f64> {
    let losses = report.losses.iter().map(|loss| loss.expect("a loss for every step")).collect::<Vec<_>>();
    assert_eq!(losses.len() as u64, steps);
    losses
}

/// Floats as bits, to be compared exactly.
pub fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Panics unless `found` and `expected` agree to `tolerance` times the scale of what is expected.
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance, "{what}[{index}]: {f} found, {e} expected, {tolerance} allowed");
    }
}
