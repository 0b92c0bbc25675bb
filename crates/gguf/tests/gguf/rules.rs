//! Which encoding a tensor gets, and the Modelfile.

use plimsoll_gguf::{Encoding, FileType, Modelfile};

fn encodings(file: FileType, tensors: &[(&str, &[usize])]) -> String {
    file.encodings(tensors).into_iter().map(Encoding::name).collect::<Vec<_>>().join(" ")
}

#[test]
fn q4_k_m_raises_the_tensors_that_llama_cpp_raises() {
    let names = (0..16).map(|layer| format!("blk.{layer}.ffn_down.weight")).collect::<Vec<_>>();
    let layers = names.iter().map(|name| (name.as_str(), &[256, 512][..])).collect::<Vec<_>>();
    let raised = FileType::Q4KM.encodings(&layers);
    let raised = (0..16).filter(|&layer| raised[layer] == Encoding::Q6K).collect::<Vec<_>>();
    assert_eq!(raised, [0, 1, 4, 7, 10, 13, 14, 15]);
    let [tied, head] = ["token_embd.weight", "output.weight"].map(|name| (name, &[9, 256][..]));
    assert_eq!(encodings(FileType::Q4KM, &[tied]), "Q6_K");
    assert_eq!(encodings(FileType::Q4KM, &[tied, head]), "Q4_K Q6_K");
    let packed = ["blk.0.attn_qkv.weight", "blk.0.attn_q.weight"].map(|name| (name, &[9, 256][..]));
    assert_eq!(encodings(FileType::Q4KM, &packed), "Q5_K Q4_K");
}

#[test]
fn rows_that_are_not_whole_blocks_get_smaller_ones() {
    let of = |columns| {
        let shape = [4, columns];
        let both = ["blk.0.attn_v.weight", "blk.0.attn_q.weight"].map(|name| (name, &shape[..]));
        [FileType::Q4KM, FileType::Q8_0].map(|file| encodings(file, &both))
    };
    assert_eq!(of(512), ["Q6_K Q4_K", "Q8_0 Q8_0"]);
    assert_eq!(of(96), ["Q8_0 Q5_0", "Q8_0 Q8_0"]);
    assert_eq!(of(40), ["F16 F16", "F16 F16"]);
}

#[test]
fn norms_biases_and_routers_stay_in_single_precision() {
    let tensors: [(&str, &[usize]); 5] = [
        ("blk.0.attn_norm.weight", &[256]),
        ("blk.0.attn_q.bias", &[256]),
        ("blk.0.ffn_gate_inp.weight", &[4, 256]),
        ("blk.0.ffn_down_exps.bias", &[4, 256]),
        ("blk.0.attn_q.weight", &[256, 256]),
    ];
    for file in [FileType::F16, FileType::Bf16, FileType::Q8_0] {
        assert_eq!(encodings(file, &tensors), format!("F32 F32 F32 F32 {}", file.name()));
    }
}

#[test]
fn a_modelfile_names_the_file_the_template_and_the_ends() {
    let file = Modelfile {
        from: "./a.gguf".to_owned(),
        adapter: Some("./b.gguf".to_owned()),
        is_chatml: true,
        stops: vec!["<|im_end|>".to_owned(), "\"".to_owned()],
    };
    let text = file.to_string();
    let (before, after) = text.split_once("TEMPLATE \"\"\"{{- range .Messages }}").expect("a template");
    assert_eq!(before, "FROM ./a.gguf\nADAPTER ./b.gguf\n");
    assert!(
        after
            .ends_with("<|im_start|>assistant\n\"\"\"\nPARAMETER stop \"<|im_end|>\"\nPARAMETER stop \"\"\"\"\"\"\"\n")
    );
    let plain = Modelfile { from: "./a.gguf".to_owned(), ..Modelfile::default() };
    assert_eq!(plain.to_string(), "FROM ./a.gguf\n");
}
