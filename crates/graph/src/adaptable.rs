//! The layers of a model that can have adapters, and the names of their adapters in files, which are PEFT's.

use crate::models::{Caches, Inputs, Mode, ModelConfig, Weights};
use crate::ops::{Op, WeightLayout};
use crate::{DType, Graph, GraphError, Node, Parameter, ProgramBuilder, StoredPiece, TensorId};
use std::collections::{BTreeSet, HashMap};

/// What a layer that can have an adapter is in its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRole {
    /// The embedding of tokens, whose weight is (inputs, outputs).
    Embedding,
    /// A linear layer between the embedding and the head.
    Inner,
    /// A linear layer that each expert has, with a weight and an adapter for each: this many. Their module in files of the
    /// model is `LIST.*.NAME`, with the expert's index for `*`; or `LIST.NAME` if the files stack their weights in one tensor
    /// (E, inputs, outputs).
    Experts(usize),
    /// The output head. Its weight may be that of the embedding.
    Head,
}

impl LayerRole {
    /// Why such a layer can't have magnitudes (DoRA); `None` if it can.
    pub fn lacks_magnitudes(self) -> Option<&'static str> {
        match self {
            Self::Embedding => Some("it is an embedding"),
            Self::Inner => None,
            Self::Experts(_) => Some("it is a layer of experts"),
            Self::Head => Some("it is the output head, whose logits are computed in chunks"),
        }
    }
}

/// A linear layer, an embedding or an output head that can have an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearLayer {
    /// The name of its weight in the graph.
    pub weight: String,
    /// Its name in the model's files. Several layers of the graph may be parts of one layer there.
    pub module: String,
    /// Number of its inputs.
    pub inputs: usize,
    /// Number of its outputs; of the whole layer in the files if this is a part of it.
    pub outputs: usize,
    /// The first of those outputs that are its own.
    pub first: usize,
    /// The layout of its weight.
    pub layout: WeightLayout,
    /// What it is in the model.
    pub role: LayerRole,
}

impl LinearLayer {
    /// The layers of single experts that have a tensor each in the model's files; otherwise the layer itself.
    pub fn in_files(&self) -> Vec<Self> {
        let LayerRole::Experts(count) = self.role else { return vec![self.clone()] };
        let Some((list, name)) = self.module.split_once(EACH_EXPERT) else { return vec![self.clone()] };
        let of_expert = |expert| {
            let module = format!("{list}.{expert}.{name}");
            Self { weight: format!("{module}{WEIGHT}"), module, role: LayerRole::Inner, ..self.clone() }
        };
        (0..count).map(of_expert).collect()
    }

    /// Whether it is a layer of experts whose weights are stacked in one tensor in the model's files.
    pub fn is_stacked(&self) -> bool {
        matches!(self.role, LayerRole::Experts(_)) && !self.module.contains(EACH_EXPERT)
    }

    /// Whether its weight has its name, and not that of another layer or of a part of this one.
    pub fn has_own_weight(&self) -> bool {
        self.weight.strip_suffix(WEIGHT) == Some(self.module.as_str())
    }

    /// The list of experts and the name of the tensor, if the experts' weights are stacked.
    pub(crate) fn in_list(&self) -> Option<(&str, &str)> {
        if self.is_stacked() { self.module.rsplit_once('.') } else { None }
    }

    /// The name of an adapter's magnitudes in a file of adapters, as PEFT writes it.
    pub fn magnitudes(&self) -> String {
        format!("{ADAPTER_PREFIX}{}{MAGNITUDES}", self.module)
    }
}

/// The end of the name of an adapter's magnitudes.
pub(crate) const MAGNITUDES: &str = ".lora_magnitude_vector";

/// The end of a weight's name.
pub(crate) const WEIGHT: &str = ".weight";

/// The start of the name of every tensor in a file of adapters, as PEFT writes it.
pub const ADAPTER_PREFIX: &str = "base_model.model.";

/// What stands for the index of an expert in the name of a layer of all experts.
const EACH_EXPERT: &str = ".*.";

/// The name of the layer of all experts that this layer of one expert is a part of; the layer's own name if it is not of
/// an expert.
pub(crate) fn of_all_experts(module: &str) -> String {
    let mut parts = module.split('.').collect::<Vec<_>>();
    for index in 1..parts.len().saturating_sub(1) {
        if parts[index - 1] == "experts" && parts[index].parse::<usize>().is_ok() {
            parts[index] = "*";
        }
    }
    parts.join(".")
}

/// The output head's name in the files of a model whose head has the weight of the embedding.
const TIED_HEAD: &str = "lm_head";

/// A parameter's tensor in the model's files, if it is in one: its name, its shape, and the parameter's first element.
pub(crate) fn place(graph: &Graph, parameter: &Parameter) -> Option<(String, Vec<usize>, usize)> {
    match parameter.stored.as_slice() {
        [] => Some((graph[parameter.tensor].name.to_string(), graph[parameter.tensor].ty.shape.to_vec(), 0)),
        [StoredPiece { tensor, shape, from, .. }] => Some((tensor.to_string(), shape.clone(), *from)),
        _ => None,
    }
}

impl ModelConfig {
    /// The layers that can have adapters, in the order of the parameters: the embedding of tokens of models without an encoder,
    /// all linear layers except routers of experts, and last the output head. Errors: `BadConfig`.
    pub fn adaptable_layers(&self) -> Result<Vec<LinearLayer>, GraphError> {
        self.validate()?;
        let mut graph = Graph::default();
        let weights = self.declare(&mut graph);
        let mut builder = ProgramBuilder::new(&mut graph);
        let mut input = |name: &str| builder.input(name, &[1, 1], DType::I32);
        let [tokens, segments] = [input("tokens"), input("segments")];
        if let Weights::Encoder(encoder) = &weights {
            encoder.forward(&mut builder, "text", [tokens, segments], Mode::Evaluate)?;
        } else {
            let decoder = self.decoder_start().map(|_| [input("decoder_tokens"), input("decoder_segments")]);
            let inputs = Inputs { tokens, positions: None, segments: decoder.map(|_| segments), decoder };
            weights.forward(&mut builder, &inputs, Mode::Evaluate, &Caches::default())?;
        }
        let nodes = builder.nodes;
        let tables = nodes.iter().filter(|node| matches!(node.op, Op::Embedding(_)));
        let tables = tables.map(|node| (node.inputs[0], node.inputs[1])).collect::<Vec<_>>();
        let is_decoder = matches!(&weights, Weights::Decoder(_));
        let embedding = tables.iter().find(|(ids, _)| is_decoder && *ids == tokens).map(|(_, table)| *table);
        let mut layouts = linear_layouts(&nodes);
        layouts.extend(embedding.map(|table| (table, (WeightLayout::InOut, false))));
        let extents = |layout, shape: &[usize]| match layout {
            WeightLayout::InOut => (shape[0], shape[1]),
            WeightLayout::OutIn => (shape[1], shape[0]),
        };
        let layer = |parameter: &Parameter, layout, role| {
            let (name, shape, from) = place(&graph, parameter)?;
            let (inputs, outputs) = extents(layout, &shape);
            let first = from / shape[1];
            let weight = graph[parameter.tensor].name.to_string();
            let module = name.strip_suffix(WEIGHT)?.to_owned();
            Some(LinearLayer { weight, module, inputs, outputs, first, layout, role })
        };
        let of_experts = |parameter: &Parameter, layout| {
            let tensor = &graph[parameter.tensor];
            let (inputs, outputs) = extents(layout, &tensor.ty.shape[1..]);
            let module = match parameter.stored.first() {
                Some(piece) => of_all_experts(piece.tensor.strip_suffix(WEIGHT)?),
                None => tensor.name.to_string(),
            };
            let role = LayerRole::Experts(tensor.ty.shape[0]);
            Some(LinearLayer { weight: tensor.name.to_string(), module, inputs, outputs, first: 0, layout, role })
        };
        let inner = graph.parameters.iter().filter_map(|parameter| {
            let (layout, is_of_experts) = *layouts.get(&parameter.tensor)?;
            match embedding == Some(parameter.tensor) {
                true => layer(parameter, layout, LayerRole::Embedding),
                false if is_of_experts => of_experts(parameter, layout),
                false => layer(parameter, layout, LayerRole::Inner),
            }
        });
        let head = (!self.is_encoder()).then(|| weights.head());
        let head = graph.parameters.iter().find(|parameter| head == Some(parameter.tensor));
        let head = head.and_then(|parameter| {
            let head = layer(parameter, WeightLayout::OutIn, LayerRole::Head)?;
            let is_tied = tables.iter().any(|(_, table)| *table == parameter.tensor);
            let module = if is_tied { TIED_HEAD.to_owned() } else { head.module };
            Some(LinearLayer { module, ..head })
        });
        Ok(inner.chain(head).collect())
    }

    /// The layers of experts that have a tensor each in the model's files, as `transformers` 5 has them: stacked, with the gate and
    /// the layer that it multiplies in one, of which two layers of the graph are parts. PEFT writes adapters of these.
    /// Errors: `BadConfig`.
    pub fn fused_layers(&self) -> Result<Vec<LinearLayer>, GraphError> {
        let layers = self.adaptable_layers()?.into_iter().filter(|layer| layer.module.contains(EACH_EXPERT));
        let layers = layers.collect::<Vec<_>>();
        let list = |layer: &LinearLayer| layer.module.split_once(EACH_EXPERT).map(|(list, _)| list.to_owned());
        let of_lists = layers.chunk_by(|a, b| list(a) == list(b));
        let fused = of_lists.filter_map(|of_list| match of_list {
            [gate, up, down] => {
                let list = list(gate)?.replace(".block_sparse_moe.", ".mlp.");
                let outputs = gate.outputs + up.outputs;
                let gate_up = |layer: &LinearLayer, first| {
                    let module = format!("{list}.gate_up_proj");
                    LinearLayer { module, outputs, first, ..layer.clone() }
                };
                let down = LinearLayer { module: format!("{list}.down_proj"), ..down.clone() };
                Some([gate_up(gate, 0), gate_up(up, gate.outputs), down])
            }
            _ => None,
        });
        Ok(fused.flatten().collect())
    }
}

/// The weights of all linear layers but routers of experts, with their layouts, and whether they are those of experts.
fn linear_layouts(nodes: &[Node]) -> HashMap<TensorId, (WeightLayout, bool)> {
    let routed = nodes.iter().filter(|node| matches!(node.op, Op::Route(_))).flat_map(|node| node.inputs.clone());
    let routed = routed.collect::<BTreeSet<_>>();
    let layout = |node: &Node| match &node.op {
        Op::Linear(linear) if !routed.contains(&node.outputs[0]) => Some((node.inputs[1], (linear.layout, false))),
        Op::ExpertLinear(linear) => Some((node.inputs[1], (linear.layout, true))),
        _ => None,
    };
    nodes.iter().filter_map(layout).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdapterSettings, Adapters};

    const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 20, "max_position_embeddings": 16, "tie_word_embeddings": TIED}"#;
    const T5: &str = r#"{"model_type": "t5", "vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1,
        "num_heads": 2, "tie_word_embeddings": TIED}"#;

    fn read(text: &str, is_tied: bool) -> (String, ModelConfig) {
        let text = text.replace("TIED", &is_tied.to_string());
        let model = ModelConfig::from_json(&text).expect("a sensible model");
        (text, model)
    }

    #[test]
    fn the_head_is_the_last_layer_and_not_one_of_all_linear_layers() {
        for (family, is_tied, weight) in [
            (LLAMA, false, "lm_head.weight"),
            (LLAMA, true, "model.embed_tokens.weight"),
            (T5, false, "lm_head.weight"),
            (T5, true, "shared.weight"),
        ] {
            let (_, model) = read(family, is_tied);
            let head = model.adaptable_layers().expect("a sensible model").pop().expect("a layer");
            let (module, weight) = ("lm_head".to_owned(), weight.to_owned());
            let (layout, role) = (WeightLayout::OutIn, LayerRole::Head);
            assert_eq!(head.has_own_weight(), !is_tied);
            assert_eq!(head, LinearLayer { weight, module, inputs: 8, outputs: 20, first: 0, layout, role });
            assert_eq!(Adapters::default().matrices(&head)[0], "base_model.model.lm_head.lora_A.weight");
            let usual = AdapterSettings { rank: 2, ..AdapterSettings::default() };
            let adapters = Adapters::of(&model, &usual).expect("layers");
            assert!(adapters.layers.keys().all(|module| !module.contains("head") && !module.contains("embed")));
        }
        let gpt2 = ModelConfig::preset("nano").expect("a preset").adaptable_layers().expect("a sensible model");
        let of_head = gpt2.iter().filter(|layer| layer.role == LayerRole::Head).collect::<Vec<_>>();
        assert_eq!((of_head.len(), of_head[0].module.as_str()), (1, "lm_head"));
    }

    #[test]
    fn a_head_gets_a_weight_of_its_own_where_the_family_has_such_heads() {
        let untied = |text: &str| ModelConfig::with_own_head(text).expect("an object");
        for family in [LLAMA, T5] {
            let (text, model) = read(family, true);
            let own = ModelConfig::from_json(&untied(&text).expect("such heads")).expect("a configuration");
            assert!(own.parameter_names().contains(&"lm_head.weight".to_owned()));
            assert_eq!(own.parameter_names().len(), model.parameter_names().len() + 1);
            if let (ModelConfig::T5(own), ModelConfig::T5(tied)) = (own, model) {
                assert_eq!((own.scale_decoder_outputs, tied.scale_decoder_outputs), (true, true));
            }
        }
        assert_eq!(untied(&ModelConfig::preset("nano").expect("a preset").to_json()), None);
        assert!(ModelConfig::with_own_head("[]").is_err());
    }
}
