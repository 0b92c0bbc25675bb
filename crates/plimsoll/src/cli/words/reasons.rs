//! The sentences for reasons why a word of another trainer has no setting here, or has another effect.

use plimsoll_trainers::words::Reason;

/// The sentence for a reason, to follow the word.
pub(in crate::cli) fn sentence(reason: Reason) -> &'static str {
    match reason {
        Reason::ActivationOffload => {
            "activations that do not fit are offloaded to the host or recomputed automatically; `activation_offload` sets it"
        }
        Reason::AllFilesRead => "all files of `data` are read, and tokenized once",
        Reason::AllRows => "all rows of the files are used; subset, split and limit are ignored",
        Reason::AnyWeightFormat => "weights are read in any format; `precision` says how they are trained",
        Reason::BestCheckpointNamed => "checkpoints are kept, and the report names the best one",
        Reason::CheckpointOnRequest => "`plimsoll serve` can request a checkpoint at any time",
        Reason::ChunkedLogits => "the output head never holds all logits",
        Reason::CompleteCheckpoints => "checkpoints are complete, in safetensors",
        Reason::ConfigJson => "the config.json next to the weights has it",
        Reason::CpuOrNvidia => "a run uses the CPU or an NVIDIA card",
        Reason::CrossEntropy => "the loss is cross-entropy",
        Reason::Deterministic => "runs with the same seed are always identical",
        Reason::DuplicatesKept => "duplicate rows are kept",
        Reason::EmbeddingsAsStored => "embeddings start as they are in the weights",
        Reason::EqualBatches => "all batches have the same number of rows",
        Reason::FilledBatches => {
            "an incomplete batch at the end of an epoch is filled from the next epoch; no sample is dropped"
        }
        Reason::FormatDetected => "the format of records is detected",
        Reason::FractionHeldOut => {
            "it is a number of samples; a fraction of the data is held out: the default, or `held_out`"
        }
        Reason::FreezeInstead => "`freeze` names the parameters that are not trained, such as `freeze: ['*.h.0.*']`",
        Reason::FromScratch => "omit `base_model` and set `model` to start from random weights",
        Reason::FullRows => "rows are always as long as `seq_len`",
        Reason::HeldOut => "`held_out` sets how much data is held out, and `eval_steps` when it is evaluated",
        Reason::InferenceOnly => "it is for generating or serving, not for training",
        Reason::LocalRevision => "the weights on this machine are used, of any revision",
        Reason::LongSamplesSplit => "samples longer than `seq_len` are split into rows; none is dropped or refused",
        Reason::ModelList => "`plimsoll models` lists the models",
        Reason::NoAdapters => {
            "adapters are LoRA's: `method: lora` or `method: qlora`, with `lora_rank`, `lora_alpha`, `lora_dropout`, \
     `lora_targets`, `rslora` and `dora`"
        }
        Reason::NoEarlyStopping => {
            "a run does not stop early by itself; `max_steps` ends it sooner, and every checkpoint can be used"
        }
        Reason::NoExperts => "mixtures of experts are not supported",
        Reason::NoMixing => "data sets are concatenated; repeat a file under `data` to give it more weight",
        Reason::NoOverwrite => "a run never overwrites another one",
        Reason::NoPreferences => {
            "there is no such training on preferences or rewards; `--objective dpo` and `--objective orpo` train on rows with `chosen` and `rejected`"
        }
        Reason::NoRemoteCode => "code of models is never executed",
        Reason::NoSpikeStop => {
            "a run is not ended when its loss rises; it ends with exit code 7 when the loss is NaN or infinite"
        }
        Reason::NoSystemPrompt => "no system prompt is added to chats that have none",
        Reason::NoTemplateArguments => "templates get no extra arguments",
        Reason::NoUpload => "runs are not uploaded",
        Reason::NotQuantized => {
            "frozen weights are stored in 4 or 8 bits by `base_weights: nf4` or `base_weights: int8`, for adapters"
        }
        Reason::OldMicroBatchName => "it is the old name of `per_device_train_batch_size`",
        Reason::OneDevice => "a run has one device",
        Reason::OneLearningRate => "all parameters have the same learning rate; `layer_decay` lowers it per layer",
        Reason::OneSeed => "`seed` also sets the order of the data",
        Reason::OptimizerOffload => {
            "the share of the optimizer that does not fit is offloaded to the host automatically; `optimizer_offload` sets it"
        }
        Reason::OtherModel => "it would change the model; give the config.json of such a model as `model`",
        Reason::OtherOptimizer => "use `optim` with a supported optimizer",
        Reason::OtherTraining => "this training method is not supported; omit it to train without it",
        Reason::OwnChatTemplate => "the tokenizer's own chat template is used, or the file that `chat_template` names",
        Reason::OwnChunkSize => "Plimsoll chooses the chunk size of the output head",
        Reason::OwnPrecisions => "Plimsoll's own kernels compute fp16, bf16 and fp8",
        Reason::OwnPrompt => "rows become chats in the tokenizer's chat template, not in the trainer's own prompt",
        Reason::OwnRecompute => "recomputation has no such option",
        Reason::OwnReports => "progress, events and a report are always written to the run's folder",
        Reason::OwnSchedule => {
            "a schedule has the keys `warmup_steps`, `final_lr_part` and, for the decay of `scheduler: wsd`, \
     `decay_part`"
        }
        Reason::OwnSpecialTokens => "the tokenizer's own special tokens are used: answers end with its end token",
        Reason::OwnTokenizer => "the tokenizer next to the weights is used, or `tokenizer`",
        Reason::PaddingNotTrained => "padding is never trained on",
        Reason::PlannedMemory => "memory is planned before the first step",
        Reason::Precompiled => "kernels are compiled already",
        Reason::Prefetched => "batches are prepared and sent ahead of the step that needs them",
        Reason::SampleAtEnd => "a sample of text is written at the end of the run",
        Reason::Shuffled => "samples are always shuffled, by `seed`",
        Reason::SinglePrecisionSums => "norms, sums and losses are always in single precision",
        Reason::SinglePrecisionSumsOnly => "sums are always in single precision",
        Reason::StepIntervals => "evaluations and checkpoints are set in steps: `eval_steps`, `save_steps`",
        Reason::StepsOfRun => "`max_steps` is the number of steps of the whole run",
        Reason::SystemMessagesKept => "system messages are kept",
        Reason::TemplateEndsTurns => "the chat template ends each turn, and the end token is trained on",
        Reason::TemplateFile => "write the template to a file: `chat_template: FILE`",
        Reason::TextOnly => "text models have none",
        Reason::TiledAttention => "attention is always computed in tiles, without a quadratic buffer",
        Reason::TrainCommand => "`plimsoll train` trains and evaluates",
        Reason::TrainedTurns => "chats are trained on the assistant's turns, or on all turns with `train_on: all`",
        Reason::VocabularyKept => "the vocabulary is not resized",
        Reason::WandbOffline => "`log_to: wandb` writes an offline run; variables such as WANDB_ENTITY set its owner",
        Reason::WholeDocuments => "packing keeps documents whole; `packing: false` cuts them at row ends",
        Reason::WsdSchedule => "use `scheduler: wsd` with `decay_part`",
    }
}

/// What a plan leaves out when it ignores an unsupported word, by the reason for which a run refuses it; `None` if the plan
/// without it would describe another run.
pub(in crate::cli) fn planned_without(refusal: Reason) -> Option<&'static str> {
    match refusal {
        Reason::NoAdapters => Some("the plan is without it: adapters are LoRA's"),
        Reason::NotQuantized => {
            Some("the plan has weights in the type of `precision`; `--base-weights` stores them in 4 or 8 bits")
        }
        Reason::FreezeInstead => Some("the plan trains all weights"),
        Reason::OtherModel => Some("the plan has the model without it"),
        Reason::OtherTraining => Some("the plan trains on the next token, without it"),
        Reason::OtherOptimizer => Some("the plan uses AdamW"),
        Reason::NoEarlyStopping
        | Reason::NoMixing
        | Reason::OwnSchedule
        | Reason::TemplateFile
        | Reason::StepsOfRun
        | Reason::FromScratch
        | Reason::Shuffled => Some("memory does not depend on it"),
        _ => None,
    }
}
