//! Mistral: Llama without biases, attention in a window. Source: Jiang et al. 2023; transformers' `MistralForCausalLM`.

use super::config::Dialect;

/// Mistral's own keys: the window, of all layers.
pub(super) const DIALECT: Dialect = Dialect {
    model_type: "mistral",
    class: "MistralForCausalLM",
    read: |_, own| {
        own.sliding_layers = Some(vec![]);
        Ok(())
    },
    write: |_, _| (),
};
