//! What is trained: a model of a few hundred parameters, its data, its plans, and what an undisturbed run of it computes.

use crate::schedule::{Level, Subject};
use crate::world::Levels;
use plimsoll_data::{Batches, Dataset, HeldOut, Split, TokenStore, Tokenizer, TokenizerSpec, model_files};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::{MemoryId, Targets};
use plimsoll_plan::{Budget, Found, Machine, Rates, Request, search};
use plimsoll_session::same_sums;
use plimsoll_train::checkpoint::{MODEL_FILE, ModelFolder, OPTIMIZER_FILE};
use plimsoll_train::{Length, Outcome, Schedule, Shape, TrainerConfig};
use plimsoll_units::Bytes;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

/// Tokens of the vocabulary, and of a sample.
const VOCAB_SIZE: usize = 16;
const SEQ_LEN: usize = 8;

/// Samples of a step.
const GLOBAL_BATCH: usize = 4;

pub const TOKENS_PER_STEP: u64 = (GLOBAL_BATCH * SEQ_LEN) as u64;

/// Far more than the model needs.
const ROOMY: Bytes = Bytes::mib(64);

pub fn model() -> ModelConfig {
    ModelConfig::Gpt2(Gpt2Config {
        vocab_size: VOCAB_SIZE,
        n_positions: SEQ_LEN,
        n_embd: 4,
        n_layer: 1,
        n_head: 2,
        n_inner: None,
        attn_pdrop: 0.1,
        embd_pdrop: 0.1,
        resid_pdrop: 0.1,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.1,
        bias: true,
    })
}

pub fn dataset() -> Arc<Dataset> {
    static DATASET: LazyLock<Arc<Dataset>> = LazyLock::new(|| {
        let tokens = (0..2048_u32).map(|i| i * i % 13).collect::<Vec<_>>();
        let store = TokenStore::in_memory(&tokens, VOCAB_SIZE, Bytes(2048));
        let split = Split { seed: 1, held_out: HeldOut::OneIn(10) };
        Arc::new(Dataset::Windows(Batches::new(store, SEQ_LEN, split).expect("text enough")))
    });
    DATASET.clone()
}

pub fn request(subject: Subject) -> Request {
    let request = Request::new(model(), Targets::cpu(1), Machine::of_rates(Rates::guess(1)));
    let budget = Budget::shared(ROOMY);
    Request { global_batch: GLOBAL_BATCH, micro_batch: Some(subject.micro_batch), seq_len: SEQ_LEN, budget, ..request }
}

pub fn config(subject: Subject) -> TrainerConfig {
    static FOLDER: LazyLock<ModelFolder> = LazyLock::new(|| {
        let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes).expect("a built-in tokenizer");
        let files = model_files(&tokenizer, None, None, None).expect("nothing is read");
        ModelFolder::new(&model(), &tokenizer, &serde_json::Map::new(), None, files)
    });
    TrainerConfig {
        checkpoint_time_part: None,
        base: None,
        safe_settings: None,
        name: "run".to_owned(),
        model_name: "tiny".to_owned(),
        model_folder: FOLDER.clone(),
        model: model(),
        length: Length::MaxSteps(subject.steps),
        schedule: Schedule {
            learning_rate: 1e-2,
            warmup_steps: 2,
            final_part: 0.1,
            shape: Shape::Cosine,
            decay_part: 0.2,
        },
        seed: 7,
        eval_every: subject.eval_every,
        eval_samples: 12,
        checkpoint_every: subject.checkpoint_every,
        keep_checkpoints: subject.keep_checkpoints,
        tokenizer: "bytes".to_owned(),
        precision: "fp32".to_owned(),
        loss_scale: None,
    }
}

/// The result of a search, which depends on its request alone.
type Planned = Result<Box<Found>, String>;

/// Plans by micro-batch and budget, which all seeds share: a search takes longer than a run.
static PLANS: LazyLock<Mutex<HashMap<(usize, Bytes), Planned>>> = LazyLock::new(Mutex::default);

/// The plan for a budget, or what `plan` returns for it.
pub fn planned(
    micro_batch: usize,
    budget: Bytes,
    plan: impl FnOnce() -> Result<Found, String>,
) -> Result<Found, String> {
    let key = (micro_batch, budget);
    let known = PLANS.lock().expect("no panic").get(&key).cloned();
    let planned = known.unwrap_or_else(|| {
        let planned = plan().map(Box::new);
        PLANS.lock().expect("no panic").insert(key, planned.clone());
        planned
    });
    planned.map(|found| *found)
}

/// The plan that a user begins with.
pub fn first_plan(subject: Subject) -> Found {
    let search = || Ok(search(&request(subject)).expect("a sensible request").expect("a tiny model fits"));
    planned(subject.micro_batch, ROOMY, search).expect("a tiny model fits")
}

/// The memory that each level means for a subject.
pub fn levels(subject: Subject) -> Levels {
    static LEVELS: LazyLock<Mutex<HashMap<usize, Levels>>> = LazyLock::new(Mutex::default);
    let known = LEVELS.lock().expect("no panic").get(&subject.micro_batch).cloned();
    known.unwrap_or_else(|| {
        let found = first_plan(subject);
        let tight = Request { budget: Budget::shared(Bytes(1)), ..same_sums(&request(subject), &found) };
        let misfit = search(&tight).expect("a sensible request").expect_err("nothing fits in a byte");
        let least = misfit.plan.needed()[MemoryId::DEVICE];
        let most = found.plan.needed()[MemoryId::DEVICE];
        let levels = Levels::from([
            (Level::Nothing, Bytes(1)),
            (Level::BelowLeast, Bytes(least.0 / 2)),
            (Level::Least, least),
            (Level::Middle, Bytes(least.0.midpoint(most.0))),
            (Level::Most, ROOMY),
        ]);
        LEVELS.lock().expect("no panic").insert(subject.micro_batch, levels.clone());
        levels
    })
}

/// What a finished run has computed, to the bit.
#[derive(Debug, Clone, PartialEq)]
pub struct Computed {
    /// `None` if the journal lost it.
    pub losses: Vec<Option<u64>>,
    pub eval: Vec<(u64, u64)>,
    pub tokens_seen: u64,
    pub weights: blake3::Hash,
    pub moments: blake3::Hash,
}

impl Computed {
    /// Of a run that saved its last step.
    pub fn of(outcome: &Outcome, checkpoint: &Path) -> Self {
        let hash = |name| blake3::hash(&std::fs::read(checkpoint.join(name)).expect("a file of a checkpoint"));
        Self {
            losses: outcome.report.losses.iter().map(|loss| loss.map(f64::to_bits)).collect(),
            eval: outcome.report.eval.iter().map(|eval| (eval.step, eval.loss.to_bits())).collect(),
            tokens_seen: outcome.report.tokens_seen,
            weights: hash(MODEL_FILE),
            moments: hash(OPTIMIZER_FILE),
        }
    }
}
