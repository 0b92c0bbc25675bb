//! Weights that bitsandbytes quantized: trained over, merged, exported, and refused where they can't be used. Values are compared
//! with those of bitsandbytes by the crate `train`.

use crate::adapters::{DATA, largest_difference, logits};
use crate::support::Sandbox;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::fs;

/// A folder with the golden weights that bitsandbytes quantized, in one file or in shards.
fn quantized(sandbox: &Sandbox, folder: &str, format: &str, is_sharded: bool) {
    let golden = format!("{}/../train/tests/golden/bitsandbytes_{format}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let golden = fs::read(golden).expect("a golden file");
    let (_, metadata) = SafeTensors::read_metadata(&golden).expect("a right file");
    let metadata = metadata.metadata().clone().expect("a configuration");
    // Prompts are bytes.
    let config = metadata["config"].replace("\"vocab_size\": 37", "\"vocab_size\": 256");
    let archive = SafeTensors::deserialize(&golden).expect("a right file");
    let of_model = archive.tensors().into_iter().filter(|(name, _)| !name.starts_with("expected."));
    let widened = of_model.map(|(name, view)| {
        let mut bytes = view.data().to_vec();
        let mut shape = view.shape().to_vec();
        if shape[..] == [37, 64] {
            shape[0] = 256;
            bytes = bytes.iter().copied().cycle().take(bytes.len() / 37 * 256).collect();
        }
        (name, (view.dtype(), shape, bytes))
    });
    let tensors = widened.collect::<BTreeMap<_, _>>();
    let file = |part: &[&String]| {
        let views = part.iter().map(|name| {
            let (dtype, shape, bytes) = &tensors[*name];
            (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("bytes of this shape"))
        });
        safetensors::serialize(views, None).expect("a file in memory")
    };
    let names = tensors.keys().collect::<Vec<_>>();
    sandbox.write(&format!("{folder}/config.json"), config);
    if !is_sharded {
        return sandbox.write(&format!("{folder}/model.safetensors"), file(&names));
    }
    let mut index = BTreeMap::new();
    for (number, part) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let shard = format!("model-0000{}-of-00002.safetensors", number + 1);
        sandbox.write(&format!("{folder}/{shard}"), file(part));
        index.extend(part.iter().map(|name| (name.as_str(), shard.clone())));
    }
    let index = serde_json::json!({ "weight_map": index });
    sandbox.write(&format!("{folder}/model.safetensors.index.json"), index.to_string());
}

#[test]
fn adapters_over_codes_of_bitsandbytes_are_trained_and_merged() {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    for (format, flags, dtype, is_sharded) in [
        ("nf4", "--method qlora", "F32", true),
        ("plain", "--method qlora", "BF16", false),
        ("int8", "--method lora --base-weights int8", "F32", false),
    ] {
        quantized(&sandbox, format, format, is_sharded);
        let train = format!("train {DATA} --tokenizer bytes --init {format} --max-steps 3 --learning-rate 0.02");
        sandbox.refused(&format!("{train} --name whole"), 4, &["codes of bitsandbytes", "`--method qlora`"]);
        sandbox.must(&format!("{train} --name {format} --lora-rank 4 {flags}"));
        let trained = logits(&sandbox, &format!("runs/{format}"), "");
        let base = logits(&sandbox, format, "");
        assert!(largest_difference(&trained, &base) > 1e-2, "the adapters were trained");
        let said = sandbox.run(&format!("merge --checkpoint runs/{format} --out {format}-merged --device cpu"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let words = format!("decoded weights of bitsandbytes, in {dtype}, of");
        assert!(said.stderr.contains(&words), "{}", said.stderr);
        let merged = logits(&sandbox, &format!("{format}-merged"), "");
        // Scales of plain codes are quantized in the run, and bf16 rounds.
        let most = if format == "plain" { 0.5 } else { 1e-3 };
        let apart = largest_difference(&merged, &trained);
        assert!(apart < most, "{format}: {apart}");
        let config =
            fs::read_to_string(sandbox.path(&format!("{format}-merged/config.json"))).expect("a configuration");
        assert!(!config.contains("quantization_config"), "{config}");
        // The merged weights are floats, which can be trained whole.
        let train = train.replace(&format!("--init {format}"), &format!("--init {format}-merged"));
        sandbox.must(&format!("{train} --name {format}-whole"));
        sandbox.must(&format!("export --checkpoint {format} --tokenizer bytes --gguf F32 --out {format}.gguf"));
    }
}
