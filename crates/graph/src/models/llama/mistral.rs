//! Mistral: Llama without biases and with sliding-window attention. Source: Jiang et al. 2023; transformers'
//! `MistralForCausalLM`.

use super::config::Dialect;

/// Mistral's own key: the window of all layers.
pub(super) const DIALECT: Dialect = Dialect {
    model_type: "mistral",
    class: "MistralForCausalLM",
    read: |_, own| {
        own.sliding_layers = Some(vec![]);
        Ok(())
    },
    write: |_, _| (),
};
