//! Parameters on the card: which there are, which are trained, and which layers get additions.
//! Not here: what layers compute (`linear.rs`, `adapter.rs`).

use crate::estimate::Cannot;
use crate::runtime::{DType, Place, Rt, Tensor};
use crate::usage::Kind;
use plimsoll_trainers::{Lora, Method, Precision, Quantized, Run, Targets};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Makes parameters, in the order of the model's modules.
pub(crate) struct Loader {
    rt: Rt,
    /// Of weights that are not in 4 bits.
    dtype: DType,
    /// What 4-bit weights were loaded in and are computed in.
    pub compute: DType,
    method: Method,
    /// PEFT's default target layers: ends of their names.
    defaults: &'static [&'static str],
    trained: RefCell<Vec<Tensor>>,
    /// The last parts of the names of linear layers.
    layers: RefCell<BTreeSet<String>>,
    /// Ends of names that were asked for and that some layer has.
    found: RefCell<BTreeSet<String>>,
    /// One that an embedding has.
    embedding: RefCell<Option<String>>,
}

/// Whether a layer of this name is meant: its whole name, or its last parts. Source: `_check_target_module_exists` of PEFT.
fn ends_so(name: &str, end: &str) -> bool {
    name == end || name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'))
}

impl Loader {
    /// `defaults`: PEFT's own targets for the family.
    pub fn new(rt: &Rt, run: &Run, defaults: &'static [&'static str]) -> Self {
        let (half, pure) = match run.precision {
            Precision::Fp32 => (DType::F32, DType::F32),
            Precision::PureBf16 => (DType::BF16, DType::BF16),
            Precision::PureFp16 => (DType::F16, DType::F16),
            Precision::AmpBf16 => (DType::BF16, DType::F32),
            Precision::AmpFp16 => (DType::F16, DType::F32),
        };
        // What is not in 4 bits is cast to single precision: `prepare_model_for_kbit_training` of PEFT's `utils/other.py`.
        let dtype = if matches!(run.method, Method::Qlora(..)) { DType::F32 } else { pure };
        Self {
            rt: rt.clone(),
            dtype,
            compute: half,
            method: run.method.clone(),
            defaults,
            trained: RefCell::default(),
            layers: RefCell::default(),
            found: RefCell::default(),
            embedding: RefCell::default(),
        }
    }

    /// A tensor that stays.
    pub fn weight(&self, name: &str, shape: &[u64], dtype: DType) -> Tensor {
        let weight = self.rt.module(name, || Tensor::new(&self.rt, shape, dtype, "parameter"));
        weight.mark(Kind::Weight);
        weight
    }

    /// A parameter of the model, which is trained if all are.
    pub fn parameter(&self, name: &str, shape: &[u64]) -> Tensor {
        if self.method != Method::Full {
            return self.weight(name, shape, self.dtype);
        }
        // Sharded weights are stored in flat tensors of the sharding.
        let place = if self.rt.has_flat_weights.get() { Place::Host } else { Place::Card };
        let weight = self.rt.module(name, || Tensor::place(&self.rt, shape, self.dtype, "parameter", place));
        weight.mark(Kind::Weight);
        let parameter = self.learned(weight);
        parameter.leaf().into_iter().for_each(|leaf| *leaf.name.borrow_mut() = Rc::from(name));
        parameter
    }

    /// A parameter that is trained.
    pub fn learned(&self, weight: Tensor) -> Tensor {
        let parameter = weight.into_leaf();
        self.trained.borrow_mut().push(parameter.clone());
        parameter
    }

    /// The weight of an embedding: (V, C).
    pub fn table(&self, name: &str, shape: &[u64; 2]) -> Tensor {
        let module = name.trim_end_matches(".weight");
        if let Some((_, Targets::Named(ends))) = self.lora().map(|lora| (lora, &lora.targets))
            && let Some(end) = ends.iter().find(|end| ends_so(module, end))
        {
            self.embedding.replace(Some(end.clone()));
        }
        let table = self.parameter(name, shape);
        table.leaf().into_iter().for_each(|leaf| leaf.is_table.set(true));
        table
    }

    fn lora(&self) -> Option<&Lora> {
        match &self.method {
            Method::Full => None,
            Method::Lora(lora) | Method::Qlora(lora, _) => Some(lora),
        }
    }

    /// How weights of linear layers are stored in 4 bits, if they are.
    pub fn quantized(&self) -> Option<Quantized> {
        match self.method {
            Method::Qlora(_, quantized) => Some(quantized),
            Method::Full | Method::Lora(_) => None,
        }
    }

    /// The additions that a linear layer of this name gets, if it gets some.
    pub fn added_to(&self, name: &str, is_head: bool) -> Option<&Lora> {
        let last = name.rsplit('.').next().unwrap_or(name);
        self.layers.borrow_mut().insert(last.to_owned());
        let lora = self.lora()?;
        let is_meant = match &lora.targets {
            Targets::AllLinear => !is_head,
            Targets::Default => self.defaults.iter().any(|end| ends_so(name, end)),
            Targets::Named(ends) => {
                let meant = ends.iter().filter(|end| ends_so(name, end)).cloned().collect::<Vec<_>>();
                let is_meant = !meant.is_empty();
                self.found.borrow_mut().extend(meant);
                is_meant
            }
        };
        is_meant.then_some(lora)
    }

    /// All parameters that are trained.
    pub fn trained(&self) -> Vec<Tensor> {
        self.trained.borrow().clone()
    }

    /// What is to be said of the names of layers that get additions.
    /// Errors: no layer has such a name, or an embedding has.
    pub fn check(&self) -> Result<Vec<String>, Cannot> {
        let Some(Lora { targets: Targets::Named(ends), .. }) = self.lora() else { return Ok(vec![]) };
        if let Some(name) = self.embedding.take() {
            return Err(Cannot::NotModeled(format!("LoRA on embeddings, as `{name}`, is not modeled yet")));
        }
        let found = self.found.borrow();
        let (named, missing) = ends.iter().partition::<Vec<_>, _>(|end| found.contains(*end));
        let has = || self.layers.borrow().iter().cloned().collect::<Vec<_>>().join(", ");
        if named.is_empty() {
            let names = ends.iter().map(|end| format!("`{end}`")).collect::<Vec<_>>().join(" or ");
            return Err(Cannot::NoSuchLayer { names, has: has() });
        }
        let said = |end: &String| format!("No layer's name ends in `{end}`; the model has {}.", has());
        Ok(missing.into_iter().map(said).collect())
    }
}
