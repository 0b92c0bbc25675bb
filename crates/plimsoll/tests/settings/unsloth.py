# All weights
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "meta-llama/Llama-3.2-1B",
    max_seq_length = 2048,
    dtype = None,
    load_in_4bit = False,
    full_finetuning = True,
)
dataset = load_dataset("text", data_files = "notes.txt", split = "train")
trainer = SFTTrainer(
    model = model, tokenizer = tokenizer, train_dataset = dataset,
    args = SFTConfig(
        per_device_train_batch_size = 2,
        gradient_accumulation_steps = 4, # a step has eight samples
        warmup_steps = 5, max_steps = 60,
        learning_rate = 2e-5,
        fp16 = not is_bfloat16_supported(),
        bf16 = is_bfloat16_supported(),
        logging_steps = 1,
        optim = "adamw_8bit", weight_decay = 0.01,
        lr_scheduler_type = "linear", seed = 3407,
        output_dir = "outputs", report_to = "none",
    ),
)
---
# Adapters in 4 bits, as most notebooks have it
max_seq_length = 2048
dtype = None
load_in_4bit = True
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Llama-3.2-1B-Instruct", max_seq_length = max_seq_length, dtype = dtype, load_in_4bit = load_in_4bit)
model = FastLanguageModel.get_peft_model(
    model,
    r = 16,
    target_modules = ["q_proj", "k_proj", "v_proj", "o_proj",
                      "gate_proj", "up_proj", "down_proj",],
    lora_alpha = 16, lora_dropout = 0, bias = "none",
    use_gradient_checkpointing = "unsloth",
    random_state = 3407, use_rslora = False, loftq_config = None,
)
dataset = load_dataset("mlabonne/FineTome-100k", split = "train")
---
# Packing
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/mistral-7b-v0.3", full_finetuning = True)
trainer = SFTTrainer(model = model, train_dataset = dataset, dataset_text_field = "text", dataset_num_proc = 2,
    packing = True, args = TrainingArguments(bf16 = True, fp16 = False, num_train_epochs = 1))
---
# Rewards
model, tokenizer = FastLanguageModel.from_pretrained(model_name = "unsloth/Qwen2.5-3B-Instruct", fast_inference = True,
    max_lora_rank = 64, gpu_memory_utilization = 0.6)
model = FastLanguageModel.get_peft_model(model, r = 64)
training_args = GRPOConfig(num_generations = 6, max_prompt_length = 256)
---
# 8 bits
model, tokenizer = FastModel.from_pretrained(model_name = "Qwen/Qwen2.5-0.5B", load_in_8bit = True, token = "hf_secret")
---
# Continued pretraining
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = 'openai-community/gpt2', full_finetuning = True, max_seq_length = 1024)
dataset = load_dataset("json", data_files = ["a.jsonl", "b.jsonl"])
trainer = UnslothTrainer(args = UnslothTrainingArguments(max_steps = 120, warmup_ratio = 0.1, learning_rate = 5e-5,
    embedding_learning_rate = 1e-5, per_device_train_batch_size = 2, gradient_accumulation_steps = 8))
---
# The format of loading
model, tokenizer = FastLanguageModel.from_pretrained(model_name = "HuggingFaceTB/SmolLM2-135M", dtype = "bfloat16",
    full_finetuning = True)
args = SFTConfig(optim = "adamw_torch", save_strategy = "steps", save_steps = 50, adam_beta2 = 0.95)
---
# Pictures
model, tokenizer = FastVisionModel.from_pretrained("HuggingFaceTB/SmolLM2-360M", full_finetuning = True)
model = FastVisionModel.get_peft_model(model, finetune_vision_layers = False, finetune_language_layers = True)
args = SFTConfig(remove_unused_columns = False, dataset_text_field = "", dataset_kwargs = {"skip_prepare_dataset": True},
    max_length = 2048)
---
# Evaluations
model, tokenizer = FastLanguageModel.from_pretrained(model_name = "HuggingFaceTB/SmolLM2-135M", full_finetuning = True)
trainer = SFTTrainer(eval_dataset = new_dataset["test"], args = SFTConfig(fp16_full_eval = True,
    per_device_eval_batch_size = 2, eval_accumulation_steps = 4, eval_strategy = "steps", eval_steps = 10,
    lr_scheduler_type = "cosine", max_grad_norm = 0.3))
---
# Without adapters, and without saying so
model, tokenizer = FastLanguageModel.from_pretrained(model_name = "HuggingFaceTB/SmolLM2-135M", full_finetuning = False,
    device_map = "balanced", attn_implementation = "eager")
args = SFTConfig(optim = "muon", learning_rate = learning_rate)
