//! Which layers of a model get adapters, and with which rank: settings with PEFT's meaning.

use crate::GraphError;
use crate::adaptable::{LayerRole, LinearLayer};
use crate::adapters::{Adapter, Adapters};
use crate::models::ModelConfig;
use plimsoll_units::patterns::is_named;
use plimsoll_units::spelling;
use std::collections::{BTreeMap, BTreeSet};

/// The layers that get adapters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterTargets {
    /// All linear layers of the blocks that every token passes, without the embedding and the output head.
    AllLinear,
    /// Those whose name, or its last parts, is one of these; `*` matches any characters.
    Named(Vec<String>),
}

/// Settings of adapters.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSettings {
    /// Rank of the matrices.
    pub rank: usize,
    /// The adapter's result is multiplied by this over the rank.
    pub alpha: f32,
    /// The part of the adapters' inputs that is dropped in training, in [0, 1).
    pub dropout: f32,
    /// The layers.
    pub targets: AdapterTargets,
    /// Other ranks of the layers that these names match.
    pub ranks: BTreeMap<String, usize>,
    /// Other alphas of the layers that these names match.
    pub alphas: BTreeMap<String, f32>,
    /// Whether alpha is over the square root of the rank instead. Source: Kalajdzievski 2023.
    pub is_rank_stabilized: bool,
    /// Names of modules whose parameters are trained whole, such as `lm_head`.
    pub saved: Vec<String>,
    /// Whether each layer's magnitudes are trained, too. Source: Liu et al. 2024.
    pub has_magnitudes: bool,
}

impl Default for AdapterSettings {
    /// Rank 16 and twice that as alpha, for all linear layers.
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            dropout: 0.0,
            targets: AdapterTargets::AllLinear,
            ranks: BTreeMap::new(),
            alphas: BTreeMap::new(),
            is_rank_stabilized: false,
            saved: vec![],
            has_magnitudes: false,
        }
    }
}

/// Why a model can't have these adapters.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdapterError {
    /// The model can't be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A name matches no layer.
    #[error("`{name}` matches no {what} of the model; {}", there_are(nearest))]
    NoMatch {
        /// What it should match.
        what: &'static str,
        /// The name.
        name: String,
        /// The names that are nearest, else some of those that exist.
        nearest: Vec<String>,
    },
    /// A rank is zero or larger than a layer.
    #[error("a rank of {rank} does not fit `{module}`, whose weight is {inputs} × {outputs}; the rank must be from 1 to {}", (*inputs).min(*outputs))]
    Rank {
        /// The rank.
        rank: usize,
        /// The layer.
        module: String,
        /// Its inputs.
        inputs: usize,
        /// Its outputs.
        outputs: usize,
    },
}

fn there_are(names: &[String]) -> String {
    match names {
        [] => "it has no layer that can have an adapter".to_owned(),
        names => format!("there are `{}`", names.join("`, `")),
    }
}

impl Adapters {
    /// The adapters of a model with these settings. Errors: a name that matches nothing, a rank that does not fit.
    pub fn of(model: &ModelConfig, settings: &AdapterSettings) -> Result<Self, AdapterError> {
        let known = model.adaptable_layers()?;
        let of_targets = match &settings.targets {
            AdapterTargets::AllLinear => &[][..],
            AdapterTargets::Named(names) => names,
        };
        for name in of_targets.iter().chain(settings.ranks.keys()).chain(settings.alphas.keys()) {
            if !known.iter().any(|layer| is_named(&layer.module, name)) {
                return Err(no_match(
                    "layer that can have an adapter",
                    name,
                    known.iter().map(|layer| layer.module.as_str()),
                ));
            }
        }
        let is_target = |layer: &LinearLayer| match &settings.targets {
            AdapterTargets::AllLinear => layer.role == LayerRole::Inner,
            AdapterTargets::Named(names) => names.iter().any(|name| is_named(&layer.module, name)),
        };
        let mut layers = BTreeMap::new();
        for LinearLayer { module, inputs, outputs, .. } in known.into_iter().filter(is_target) {
            let rank = of_pattern(&settings.ranks, &module).unwrap_or(settings.rank);
            let alpha = of_pattern(&settings.alphas, &module).unwrap_or(settings.alpha);
            if rank == 0 || rank > inputs.min(outputs) {
                return Err(AdapterError::Rank { rank, module, inputs, outputs });
            }
            let over = if settings.is_rank_stabilized { (rank as f32).sqrt() } else { rank as f32 };
            layers.insert(module, Adapter { rank, scale: alpha / over });
        }
        let names = model.parameter_names();
        let module = |name: &str| name.rsplit_once('.').map_or(String::new(), |(module, _)| module.to_owned());
        let mut saved = BTreeSet::new();
        for name in &settings.saved {
            let found = names.iter().filter(|parameter| is_named(&module(parameter), name)).cloned();
            let found = found.collect::<Vec<_>>();
            if found.is_empty() {
                let modules = names.iter().map(|parameter| module(parameter)).collect::<BTreeSet<_>>();
                return Err(no_match("module", name, modules.iter().map(String::as_str)));
            }
            saved.extend(found);
        }
        Ok(Self { layers, dropout: settings.dropout, saved, has_magnitudes: settings.has_magnitudes })
    }
}

impl Adapters {
    /// Adapters of another model's layers with the same names, for example of a smaller one: with the rank of such a layer
    /// here, or less if that does not fit.
    pub fn of_other(&self, model: &ModelConfig) -> Self {
        let end = |module: &str| module.rsplit('.').next().unwrap_or_default().to_owned();
        let of_end = self.layers.iter().map(|(module, adapter)| (end(module), *adapter)).collect::<BTreeMap<_, _>>();
        let layers = model.adaptable_layers().unwrap_or_default().into_iter().filter_map(|layer| {
            let Adapter { rank, scale } = *of_end.get(&end(&layer.module))?;
            Some((layer.module, Adapter { rank: rank.min(layer.inputs).min(layer.outputs), scale }))
        });
        let names = model.parameter_names();
        let saved = self.saved.iter().filter(|name| names.contains(name)).cloned();
        let (layers, saved) = (layers.collect(), saved.collect());
        Self { layers, saved, ..*self }
    }
}

/// The value of the last of the names that a module has.
fn of_pattern<T: Copy>(patterns: &BTreeMap<String, T>, module: &str) -> Option<T> {
    patterns.iter().filter(|(name, _)| is_named(module, name)).map(|(_, value)| *value).next_back()
}

/// The error for a name that matches none of these, with the last parts of the names that are nearest.
fn no_match<'a>(what: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> AdapterError {
    let wanted = name.rsplit('.').next().unwrap_or_default();
    let ends = known.filter_map(|module| module.rsplit('.').next()).filter(|end| end.parse::<usize>().is_err());
    let ends = ends.collect::<BTreeSet<_>>();
    let near = spelling::nearest_of(wanted, ends.iter().map(|&end| (end, end.to_owned())));
    let nearest = if near.is_empty() { ends.iter().map(|&end| end.to_owned()).collect() } else { near };
    AdapterError::NoMatch { what, name: name.to_owned(), nearest }
}
