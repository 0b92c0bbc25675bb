//! Loads parameters to the card: which exist, which are trained, and which layers get LoRA.
//! Not here: the computation of layers (`linear.rs`, `adapter.rs`).

use super::loading::{self, Original};
use crate::estimate::Cannot;
use crate::runtime::{DType, Place, Rt, Tensor};
use crate::usage::Kind;
use plimsoll_trainers::{Lora, Method, Precision, Quantized, Run, Targets};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Creates parameters in the order of the model's modules.
pub(crate) struct Loader {
    rt: Rt,
    /// Type of weights that are not in 4 bits.
    dtype: DType,
    /// Type of 4-bit weights before quantization, which is also their compute type.
    pub compute: DType,
    method: Method,
    /// PEFT's default targets: ends of layer names; none if PEFT requires names.
    defaults: &'static [&'static str],
    trained: RefCell<Vec<Tensor>>,
    /// The checkpoint's weights, in the model's order; empty if the run has no 4-bit weights.
    originals: RefCell<Vec<Original>>,
    /// Last parts of the names of linear layers.
    layers: RefCell<BTreeSet<String>>,
    /// Requested ends of names that match a layer.
    found: RefCell<BTreeSet<String>>,
    /// A requested name that matches an embedding.
    embedding: RefCell<Option<String>>,
    /// Why PEFT refuses the targets.
    refused: RefCell<Option<String>>,
}

/// Whether a layer's whole name or its last parts equal `end`. Source: `_check_target_module_exists` of PEFT.
fn name_matches(name: &str, end: &str) -> bool {
    name == end || name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'))
}

impl Loader {
    /// `defaults` are PEFT's targets for the family.
    pub fn new(rt: &Rt, run: &Run, defaults: &'static [&'static str]) -> Self {
        let (half, pure) = match run.precision {
            Precision::Fp32 => (DType::F32, DType::F32),
            Precision::PureBf16 => (DType::BF16, DType::BF16),
            Precision::PureFp16 => (DType::F16, DType::F16),
            Precision::AmpBf16 => (DType::BF16, DType::F32),
            Precision::AmpFp16 => (DType::F16, DType::F32),
        };
        // Weights that are not in 4 bits are cast to single precision: `prepare_model_for_kbit_training` of PEFT's
        // `utils/other.py`.
        let dtype = if matches!(run.method, Method::Qlora(..)) { DType::F32 } else { pure };
        Self {
            rt: rt.clone(),
            dtype,
            compute: half,
            method: run.method.clone(),
            defaults,
            trained: RefCell::default(),
            originals: RefCell::default(),
            layers: RefCell::default(),
            found: RefCell::default(),
            embedding: RefCell::default(),
            refused: RefCell::default(),
        }
    }

    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    /// Creates a tensor that lives until the end of the run.
    pub fn weight(&self, name: &str, shape: &[u64], dtype: DType) -> Tensor {
        let weight = self.rt.module(name, || Tensor::new(&self.rt, shape, dtype, "parameter"));
        weight.mark(Kind::Weight);
        weight
    }

    /// Creates the stored form of a weight that the checkpoint has in the compute type.
    pub fn original<T>(&self, name: &str, elements: u64, is_packed: bool, store: impl FnOnce() -> T) -> T {
        let count = || self.rt.trace.borrow().records.len() as u32;
        let first = count();
        let result = store();
        if self.quantized().is_some() {
            let (name, dtype, stored) = (name.to_owned(), self.compute, first..count());
            self.originals.borrow_mut().push(Original { name, elements, dtype, stored, is_packed });
        }
        result
    }

    /// Adds the temporary allocations of loading 4-bit weights, and orders all allocations as that happens. Recorded
    /// steps have no loading.
    pub fn order_allocations(&self) {
        if self.rt.kernels && self.quantized().is_some() {
            loading::replay(&mut self.rt.trace.borrow_mut(), &self.originals.borrow());
        }
    }

    /// Creates a parameter of the model; it is trained if all parameters are.
    pub fn parameter(&self, name: &str, shape: &[u64]) -> Tensor {
        if self.method != Method::Full {
            let elements = shape.iter().product();
            return self.original(name, elements, false, || self.weight(name, shape, self.dtype));
        }
        // With sharding, weights are stored in its flat tensors.
        let place = if self.rt.has_flat_weights.get() { Place::Host } else { Place::Card };
        let weight = self.rt.module(name, || Tensor::place(&self.rt, shape, self.dtype, "parameter", place));
        weight.mark(Kind::Weight);
        let parameter = self.learned(weight);
        parameter.leaf().into_iter().for_each(|leaf| *leaf.name.borrow_mut() = Rc::from(name));
        parameter
    }

    /// Creates a trained parameter.
    pub fn learned(&self, weight: Tensor) -> Tensor {
        let parameter = weight.into_leaf();
        self.trained.borrow_mut().push(parameter.clone());
        parameter
    }

    /// Loads the weight of an embedding: (V, C).
    pub fn table(&self, name: &str, shape: &[u64; 2]) -> Tensor {
        let module = name.trim_end_matches(".weight");
        if let Some((_, Targets::Named(ends))) = self.lora().map(|lora| (lora, &lora.targets))
            && let Some(end) = ends.iter().find(|end| name_matches(module, end))
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

    /// How weights of linear layers are quantized; `None` if they are not.
    pub fn quantized(&self) -> Option<Quantized> {
        match self.method {
            Method::Qlora(_, quantized) => Some(quantized),
            Method::Full | Method::Lora(_) => None,
        }
    }

    /// The LoRA settings of a linear layer; `None` if it gets no adapter.
    pub fn added_to(&self, name: &str, is_head: bool) -> Option<&Lora> {
        let last = name.rsplit('.').next().unwrap_or(name);
        self.layers.borrow_mut().insert(last.to_owned());
        let lora = self.lora()?;
        let is_meant = match &lora.targets {
            Targets::AllLinear => !is_head,
            Targets::Default => self.defaults.iter().any(|end| name_matches(name, end)),
            Targets::Named(ends) => {
                let meant = ends.iter().filter(|end| name_matches(name, end)).cloned().collect::<Vec<_>>();
                let is_meant = !meant.is_empty();
                self.found.borrow_mut().extend(meant);
                is_meant
            }
        };
        is_meant.then_some(lora)
    }

    /// The rank of the LoRA adapter of a parameter that stands for layers of these names, which PEFT adapts together;
    /// `None` if it gets none. `path` is the module's.
    pub fn added_to_parameter(&self, path: &str, names: &[&str]) -> Option<u64> {
        let all = names.iter().map(|name| (*name).to_owned());
        self.layers.borrow_mut().extend(all.clone());
        let lora = self.lora()?;
        let is_meant = |name: &String| match &lora.targets {
            Targets::AllLinear => true,
            Targets::Default => false,
            Targets::Named(ends) => {
                let meant = ends.iter().filter(|end| name == *end || end.ends_with(&format!(".{name}")));
                let meant = meant.cloned().collect::<Vec<_>>();
                let is_meant = !meant.is_empty();
                self.found.borrow_mut().extend(meant);
                is_meant
            }
        };
        let (meant, missing) = all.partition::<Vec<_>, _>(is_meant);
        let problem = match (meant.first(), missing.first()) {
            (None, _) => return None,
            (Some(one), Some(other)) => format!("PEFT adapts `{one}` of {path} only together with `{other}`"),
            (Some(one), None) if lora.dropout => {
                format!("PEFT has no dropout on adapters of experts, as `{one}` of {path}: set LoRA's dropout to 0")
            }
            (Some(_), None) => return Some(lora.rank * names.len() as u64),
        };
        self.refused.replace(Some(problem));
        None
    }

    /// All trained parameters.
    pub fn trained(&self) -> Vec<Tensor> {
        self.trained.borrow().clone()
    }

    /// Notes on requested target names that match no layer.
    /// Errors: none of the names matches a layer, one matches an embedding, or PEFT requires names.
    pub fn check(&self) -> Result<Vec<String>, Cannot> {
        if let Some(problem) = self.refused.take() {
            return Err(Cannot::NotModeled(problem));
        }
        let has = || self.layers.borrow().iter().cloned().collect::<Vec<_>>().join(", ");
        let ends = match self.lora().map(|lora| &lora.targets) {
            Some(Targets::Default) if self.defaults.is_empty() => {
                return Err(Cannot::NoDefaultLayers { has: has() });
            }
            Some(Targets::Named(ends)) => ends,
            Some(Targets::Default | Targets::AllLinear) | None => return Ok(vec![]),
        };
        if let Some(name) = self.embedding.take() {
            return Err(Cannot::NotModeled(format!("LoRA on embeddings, as `{name}`, is not modeled yet")));
        }
        let found = self.found.borrow();
        let (named, missing) = ends.iter().partition::<Vec<_>, _>(|end| found.contains(*end));
        if named.is_empty() {
            let names = ends.iter().map(|end| format!("`{end}`")).collect::<Vec<_>>().join(" or ");
            return Err(Cannot::NoSuchLayer { names, has: has() });
        }
        let note = |end: &String| format!("No layer's name ends in `{end}`; the model has {}.", has());
        Ok(missing.into_iter().map(note).collect())
    }
}
