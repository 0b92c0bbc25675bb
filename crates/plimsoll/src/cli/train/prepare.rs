//! Turns the flags of `plimsoll train` into a session's setup.

use super::args::TrainArgs;
use super::folder::{kept_products, resumed_config};
use super::hardware::Hardware;
use super::signals::StepClock;
use super::watch::notices;
use super::{Given, SHORT_ROW, safe};
use crate::cli::Failure;
use crate::cli::find::longest_power_of_two;
use crate::cli::hub;
use crate::cli::misfit::{Others, misfit_of};
use crate::cli::model;
use crate::cli::power::Wished;
use crate::cli::request::Sequences;
use crate::streams::talk;
use ::plimsoll_plan::{Found, Request, can_fit, search};
use ::plimsoll_train::Base;
use plimsoll_data::{Tokenizer, TokenizerSpec};
use plimsoll_graph::MemoryId;
use plimsoll_heat::Settings;
use plimsoll_session::{SessionSettings, System};
use std::sync::Arc;

/// A session that has not begun, and facts that only the command line knows.
pub(super) struct Prepared {
    pub(super) given: Given,
    pub(super) settings: SessionSettings,
    pub(super) hardware: Hardware,
    /// Requested settings of the card.
    pub(super) wished: Option<Wished>,
}

/// Resolves all settings of a session, and opens its device. `limits`: the heat limits.
pub(super) fn prepare(mut args: TrainArgs, limits: Settings, clock: StepClock) -> Result<Prepared, Failure> {
    let continues = match &args.resume {
        Some(resume) => resumed_config(resume, args.name.as_deref(), &args.runs_dir)?.is_some(),
        None => false,
    };
    if !continues {
        args.refuse_weights_without_data()?;
    }
    let named = args.run.init.clone();
    args.run.init = hub::init_of(args.run.init, args.model.as_deref(), args.run.download)?;
    args.run.init = args.request.adapters.resolve_init(named, args.run.init, args.run.download)?;
    let weights = args.run.init.as_deref();
    weights.map_or(Ok(()), |weights| args.request.adapters.check_codes(weights))?;
    let mut chosen = model::choose(args.model.as_deref(), weights, args.run.download)?;
    args.check_kind_of_data(&chosen)?;
    let spec = match &args.tokenizer {
        Some(spec) => spec.parse::<TokenizerSpec>()?,
        None => chosen.default_tokenizer(weights)?,
    };
    let tokenizer = Tokenizer::open(&spec)?;
    tokenizer.special_in_words().into_iter().for_each(|words| talk(format_args!("tokenizer: {words}")));
    let of_pairs = chosen.takes_pairs().then_some(args.pairs.source_len);
    if args.request.finds_seq_len() && chosen.takes_pairs() {
        let failure = Failure::bad_flag("`--seq-len auto` is for models without an encoder");
        return Err(failure.hint("`--source-len N` and `--target-len N` set the length of pairs"));
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
        // Report this before tokenizing the text, which may take long.
        return Err(::plimsoll_train::TrainError::Vocabulary { tokenizer: ids, model: rows }.into());
    }
    args.request.set_dropout(&mut chosen);
    // Memory that the tokenizer uses is no longer free.
    let (mut opened, safe) = safe::open(&mut args)?;
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
    // Refuse conflicting flags, and runs that do not fit even without data, before tokenizing the data, which may take
    // long.
    let request_of = |tokens, records| {
        let lengths = Sequences::of_length(tokens, chosen.takes_pairs().then_some(tokens));
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
    // The data determines how many samples are in a step, and how long they are.
    let dataset = args.open_data(&tokenizer, &chosen, seq_len)?;
    let sequences = Sequences::of(&dataset);
    if !chosen.takes_pairs() {
        chosen.fit(None, sequences.longest.tokens);
    }
    let records = Some(dataset.training());
    let mut request = args.run.request(&args.request, &chosen, device, sequences, records)?;
    let mut found = plan(&request)?;
    let outside = device.budget.outside();
    if let Some(most) = safe.at_most(&args.budget, found.plan.needed()[MemoryId::DEVICE] + outside) {
        let budget = request.budget.with(MemoryId::DEVICE, most.saturating_sub(outside));
        let below = Request { budget, ..request.clone() };
        // If nothing fits below, what failed before is tried again.
        if let Ok(smaller) = search(&below)? {
            (request, found) = (below, smaller);
        }
    }
    opened.check_free(&args.budget, &found.plan)?;
    let (folder, start) = args.open_folder(&chosen.name)?;
    let mut trainer = args.trainer_config(&folder, &chosen, &tokenizer, &dataset, &found)?;
    if let Some(adapters) = &request.adapters {
        trainer.model_folder.adapter_json = Some(adapters.to_json(&chosen.config, args.request.adapters.base()));
        let continued = args.request.adapters.continued();
        trainer.base = Some(Base { weights: args.run.init.clone(), adapters: continued });
    }
    trainer.safe_settings.clone_from(&safe.what);
    let products = kept_products(&folder);
    opened.choose_products(products.clone(), args.tune.autotune);
    let (uuid, budget) = (opened.uuid(), opened.device.budget.clone());
    let mut hardware = Hardware::new(&args, &chosen.name, request, opened, &safe);
    let memory = args.pressure.settings(&args.budget, &budget, uuid.clone(), hardware.held(&found.plan));
    let found = if args.pressure.progressive { hardware.begin_small(found)? } else { found };
    let settings = SessionSettings {
        folder,
        start,
        trainer,
        dataset: Arc::new(dataset),
        found,
        card: uuid,
        watch: args.watch.settings(limits, args.power.price(), memory),
        notices: notices(clock),
        surroundings: Arc::new(System),
    };
    Ok(Prepared { given: Given { args, chosen, tokenizer, products, safe }, settings, hardware, wished })
}
