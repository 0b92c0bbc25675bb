//! Tokenizers and pairs on the command line: a trained tokenizer is read again, and invalid tables are reported.

use crate::support::Sandbox;

fn table() -> String {
    let row = |n: usize| format!("define number {n}\tthe {n}th of the numbers that are counted\n");
    (0..300).map(row).collect()
}

#[test]
fn a_trained_tokenizer_feeds_the_bench_of_data() {
    let sandbox = Sandbox::new();
    sandbox.write("pairs.tsv", table());
    for (kind, pad_token) in [("unigram", Some(0)), ("bpe", None)] {
        let train =
            format!("tokenizer train --data pairs.tsv --kind {kind} --vocab-size 300 --output {kind}.json --json");
        let said = sandbox.run(&train).json();
        assert!(said["vocab_size"].as_u64().is_some_and(|size| size <= 300), "{said}");
        assert!(said["bytes_per_token"].as_f64().is_some_and(|bytes| bytes > 1.0), "{said}");
        assert_eq!(said["pad_token"].as_u64(), pad_token);
        let columns = "--source-column 1 --target-column 2 --global-batch 8";
        let bench =
            format!("bench --data-only --data pairs.tsv --tokenizer {kind}.json {columns} --cache-dir cache --json");
        let said = sandbox.run(&bench).json();
        // 297 pairs in batches of 8.
        for part in ["cached", "raw"] {
            assert_eq!(said[part]["samples"], 296, "{said}");
            assert!(said[part]["samples_per_s"].as_f64().is_some_and(|speed| speed > 0.0), "{said}");
        }
        assert_eq!(said["cached"]["tokens"], said["raw"]["tokens"]);
    }
}

#[test]
fn a_table_without_the_column_is_refused_with_its_line() {
    let sandbox = Sandbox::new();
    sandbox.write("pairs.tsv", table() + "no target\n");
    let said = sandbox.run("bench --data-only --data pairs.tsv --tokenizer bytes --cache-dir cache");
    assert_eq!(said.code, Some(4));
    assert!(said.stderr.contains("pairs.tsv line 301 has 1 column, not 2"), "{}", said.stderr);
    assert!(said.stderr.contains("hint: "), "{}", said.stderr);
}

/// From a table to answers, with every regularizer: train, stop, resume, generate.
#[test]
fn a_t5_is_trained_on_pairs_and_answers() {
    let sandbox = Sandbox::new();
    sandbox.write("pairs.tsv", table());
    sandbox.write("prompts.txt", "define number 7\ndefine number 123\n\ndefine number 5\n");
    let run = |flags: &str| {
        let said = sandbox.run(&format!("train {flags} --cache-dir cache --json"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.json()
    };
    let data = "--model t5-nano --tokenizer bytes --data pairs.tsv --source-len 32 --target-len 64 --bucket 16";
    let levers = "--r-drop 1 --label-smoothing 0.1 --layer-decay 0.9 --dropout 0.1 --ema 0.9";
    let report = run(&format!("{data} {levers} --global-batch 4 --max-steps 4 --name t5 --sample-tokens 8"));
    assert_eq!(report["measured"]["touched_bytes"], report["measured"]["planned_bytes_of_what_ran"]);
    // As long as the longest target needs, not as the limit allows.
    assert_eq!(report["plan"]["target_len"], 48);
    assert!(report["padding_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{report}");
    let resumed = run("--resume runs/t5 --max-steps 6");
    assert_eq!(resumed["losses"].as_array().map(Vec::len), Some(6));
    assert_eq!(resumed["losses"][3], report["losses"][3]);

    let ask = |flags: &str| {
        let said = sandbox.run(&format!("generate --checkpoint runs/t5 --max-tokens 5 --temperature 0 {flags}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout_text().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let together = ask("--prompt-file prompts.txt --json");
    assert_eq!(together.len(), 3);
    assert_eq!(together, ask("--prompt-file prompts.txt --batch 1 --json"));
}

/// The sample at the end of a run may be set longer than any target: it stops there, and the run succeeds.
#[test]
fn a_sample_longer_than_any_target_ends_a_run_as_any_other() {
    let sandbox = Sandbox::new();
    sandbox.write("pairs.tsv", table());
    let data = "--model t5-nano --tokenizer bytes --data pairs.tsv --source-len 32 --target-len 64";
    let said =
        sandbox.run(&format!("train {data} --global-batch 4 --max-steps 1 --cache-dir cache --sample-tokens 300"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(!said.stderr.contains("warning: no sample"), "{}", said.stderr);
}
