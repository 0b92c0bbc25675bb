//! Qwen2 and Qwen2.5: Llama with biases for queries, keys and values, and with sliding-window attention in some layers.
//! Source: Yang et al. 2023; transformers' `Qwen2ForCausalLM`.

use super::config::{Dialect, LlamaConfig};
use crate::GraphError;
use crate::models::keys::{bad, check_layers, flag, whole_or};
use serde_json::{Map, Value, json};

/// Qwen2's own keys: the layers with a window.
pub(super) const DIALECT: Dialect = Dialect {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    read: |value, own| {
        own.qkv_bias = true;
        own.sliding_layers = sliding_layers(value, flag(value, "use_sliding_window")?)?;
        Ok(())
    },
    write,
};

/// The first layer with a window if the file does not set it.
const DEFAULT_WINDOW_LAYERS: usize = 28;

/// Values of `layer_types`: without a window, and with one.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// For each layer, whether it attends within the window: as `layer_types` lists, or all layers from `max_window_layers`
/// on. `None` if no layer does. Errors: `BadConfig`.
/// Source: transformers 5.24, `configuration_qwen2.py`.
fn sliding_layers(value: &Value, windowed: bool) -> Result<Option<Vec<bool>>, GraphError> {
    let layers = whole_or(value, "num_hidden_layers", 0)?;
    check_layers("num_hidden_layers", layers)?;
    let slides = match value.get("layer_types").filter(|found| !found.is_null()) {
        None => {
            let first = whole_or(value, "max_window_layers", DEFAULT_WINDOW_LAYERS)?;
            (0..layers).map(|layer| windowed && layer >= first).collect::<Vec<_>>()
        }
        Some(types) => {
            let slides = |name: &Value| LAYER_TYPES.iter().position(|known| name == known).map(|place| place == 1);
            let found = types.as_array().filter(|types| types.len() == layers);
            let found = found.and_then(|types| types.iter().map(slides).collect::<Option<Vec<_>>>());
            found.ok_or_else(|| {
                bad(
                    "layer_types",
                    format!("is {types}; it must name each of {layers} layers: {}", LAYER_TYPES.join(" or ")),
                )
            })?
        }
    };
    if !slides.contains(&true) {
        return Ok(None);
    }
    if !windowed || value.get("sliding_window").is_some_and(Value::is_null) {
        return Err(bad(
            "layer_types",
            "asks for sliding_attention, but use_sliding_window and sliding_window set no window",
        ));
    }
    Ok(Some(slides))
}

fn write(config: &LlamaConfig, map: &mut Map<String, Value>) {
    if config.sliding_window.is_none() {
        return;
    }
    let slides = (0..config.num_hidden_layers).map(|layer| config.window(layer).is_some()).collect::<Vec<_>>();
    let first = slides.iter().position(|&slides| slides).unwrap_or(config.num_hidden_layers);
    let types = slides.iter().map(|&slides| LAYER_TYPES[usize::from(slides)]).collect::<Value>();
    map.insert("use_sliding_window".into(), json!(true));
    map.insert("max_window_layers".into(), json!(first));
    map.insert("layer_types".into(), types);
}
