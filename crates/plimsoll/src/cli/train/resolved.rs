//! The settings of a run, as stored in its folder.

use super::{Given, Setup};
use crate::cli::Failure;
use crate::cli::objective::ObjectiveArgs;
use ::plimsoll_train::Length;
use ::plimsoll_train::checkpoint::pooling_name;
use plimsoll_data::{ChatStore, DataFormat, Dataset};
use plimsoll_graph::optimizers::Constants;
use serde_json::{Map, Value, json};

impl Given {
    /// The text of the run's config.yaml.
    pub(super) fn config(&self, setup: &Setup<'_>) -> Result<Vec<u8>, Failure> {
        let text = serde_saphyr::to_string(&self.resolved(setup));
        text.map(String::into_bytes).map_err(|e| Failure::device(format!("settings can't be written: {e}")))
    }

    /// The run's settings in the form of a settings file: everything needed to resume the same run.
    pub(super) fn resolved(&self, setup: &Setup<'_>) -> Map<String, Value> {
        let (args, trainer, plan) = (&self.args, setup.trainer, &setup.found.plan);
        let (optimizer, budget) = (&setup.backend.request().optimizer, setup.backend.budget_args());
        let (key, length) = match trainer.length {
            Length::MaxSteps(steps) => ("max_steps", json!(steps)),
            Length::Epochs(epochs) => ("epochs", json!(epochs)),
            Length::Duration(time) => ("duration", json!(format!("{}s", time.0))),
        };
        let mut settings = json!({
            "name": trainer.name,
            "tokenizer": trainer.tokenizer,
            "model": if self.chosen.is_preset { json!(self.chosen.name) } else { json!(setup.folder.model()) },
            "global_batch": plan.global_batch,
            "micro_batch": plan.micro_batch,
            key: length,
            "optimizer": args.request.optimizer.optimizer,
            "weight_decay": optimizer.weight_decay.to_string(),
            "grad_clip": optimizer.grad_clip.unwrap_or(0.0).to_string(),
            "seed": trainer.seed,
            "blas": args.blas.setting(),
            "autotune": args.tune.autotune,
            "loss_scale": args.loss_scale,
            "eval_every": args.eval_every,
            "eval_samples": trainer.eval_samples,
            "keep_checkpoints": args.keep_checkpoints,
            "sample_tokens": args.run.sample_tokens,
        });
        let map = settings.as_object_mut().expect("an object literal");
        let of_objective = &args.request.objective;
        let ObjectiveArgs {
            label_smoothing,
            r_drop,
            neftune_noise_alpha,
            similarity_scale,
            pooling,
            negative_column,
            layer_decay,
            ..
        } = of_objective;
        map.append(&mut of_objective.resolved_preferences());
        map.append(&mut args.watch.resolved());
        map.append(&mut args.power.resolved());
        map.append(&mut args.tell.resolved());
        map.append(&mut args.track.resolved());
        map.extend(args.log_every.map(|steps| ("log_every".to_owned(), json!(steps))));
        map.insert("label_smoothing".into(), json!(label_smoothing.to_string()));
        map.insert("r_drop".into(), json!(r_drop));
        if *neftune_noise_alpha > 0.0 {
            map.insert("neftune_noise_alpha".into(), json!(neftune_noise_alpha));
        }
        if self.chosen.config.is_encoder() {
            map.insert("similarity_scale".into(), json!(similarity_scale));
            if !negative_column.is_empty() {
                let columns = negative_column.iter().map(ToString::to_string).collect::<Vec<_>>();
                map.insert("negative_column".into(), json!(columns));
            }
            map.insert("pooling".into(), json!(pooling_name(pooling.pooling())));
        }
        map.insert("layer_decay".into(), json!(layer_decay.to_string()));
        if self.chosen.takes_pairs() {
            map.append(&mut args.pairs.resolved(args.request.seq_len()));
        } else {
            map.insert("seq_len".into(), json!(plan.seq_len));
            let of_data = |chats: Option<&ChatStore>| {
                args.chats.resolved(chats.map_or(DataFormat::Text, |chats| DataFormat::Chats(chats.format())))
            };
            map.insert("packing".into(), json!(args.run.packing));
            map.append(&mut match &**setup.dataset {
                Dataset::Packed(packed) => of_data(packed.chats()),
                Dataset::Windows(_) | Dataset::Pairs(_) => of_data(None),
                Dataset::Preferences(pairs) => args.chats.resolved_for_preferences(&pairs.settings),
            });
            map.extend(args.text_field.as_ref().map(|field| ("text_field".to_owned(), json!(field))));
        }
        let Constants { beta1, beta2, eps } = optimizer.rule.constants();
        for (key, constant) in [("beta1", beta1), ("beta2", beta2), ("adam_eps", eps)] {
            map.extend(constant.map(|constant| (key.to_owned(), json!(constant.to_string()))));
        }
        if !args.request.optimizer.freeze.is_empty() {
            map.insert("freeze".into(), json!(args.request.optimizer.freeze));
        }
        map.append(&mut args.request.levers.settings(&setup.found.settings));
        if trainer.base.is_some() {
            map.append(&mut args.request.adapters.resolved());
            // Checkpoints do not contain the weights below the adapters.
            let continued = args.request.adapters.continued().map(|folder| json!(folder));
            let init = continued.or_else(|| args.request.adapters.base().map(|base| json!(base)));
            map.extend(init.map(|init| ("init".to_owned(), init)));
        }
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
        let (device, memory_fraction) = &self.safe.usual;
        map.append(&mut device.settings(plan));
        // An order replaces a size, but not that of a budget that moves by itself.
        let vram = if args.pressure.moves(&args.budget) { args.budget.vram } else { budget.vram };
        map.extend(vram.map(|vram| ("vram".to_owned(), json!(vram.to_string()))));
        let reserve = budget.emergency_reserve;
        map.extend(reserve.map(|reserve| ("emergency_reserve".to_owned(), json!(format!("{}b", reserve.0)))));
        map.extend(args.safe.then(|| ("safe".to_owned(), json!(true))));
        map.extend(args.pressure.progressive.then(|| ("progressive".to_owned(), json!(true))));
        map.extend(args.pressure.setting().map(|policy| ("on_pressure".to_owned(), json!(policy))));
        if let Some(margin) = budget.vram_margin {
            map.insert("vram_margin".into(), json!(format!("{}b", margin.0)));
        }
        map.insert("memory_fraction".into(), json!(memory_fraction.to_string()));
        if let Some(threads) = budget.threads {
            map.insert("threads".into(), json!(threads));
        }
        if let Some(every) = args.checkpoint_every {
            map.insert("checkpoint_every".into(), json!(every));
        }
        if let Some(grace) = args.grace {
            map.insert("grace".into(), json!(format!("{}s", grace.0)));
        }
        if let Some(path) = &args.cache_dir {
            map.insert("cache_dir".into(), json!(path));
        }
        map.clone()
    }
}
