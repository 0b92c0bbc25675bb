//! A run on a card, through the stand-in for NVIDIA's driver: it trains as on the processor, evaluates, samples,
//! checkpoints, and goes on to the bit; and what is planned is what is measured.

mod support;

use serde_json::Value;
use support::{Said, Sandbox};

/// Few steps of few tokens: each instruction of each thread is interpreted.
const RUN: &str = "--max-steps 4 --global-batch 2 --seq-len 8 --checkpoint-every 2 --eval-every 4 --eval-samples 2 \
                   --precision fp32 --json";

fn on_card(sandbox: &Sandbox, arguments: &[String]) -> Said {
    let mut command = sandbox.command(arguments);
    command.env("PLIMSOLL_CUDA", plimsoll_fake_cuda::library()).env(plimsoll_fake_cuda::MACHINE, "execution=late");
    Said::of(command.output().expect("the binary runs"))
}

fn report(said: &Said) -> Value {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.json()
}

fn losses(report: &Value) -> Vec<f64> {
    let losses = report["losses"].as_array().expect("losses");
    losses.iter().map(|loss| loss.as_f64().expect("a number")).collect()
}

#[test]
fn invariant_7_a_run_on_a_card_trains_as_on_the_processor_and_resumes_to_the_bit() {
    let sandbox = Sandbox::new();
    let card = Sandbox::train_arguments(&format!("{RUN} --name card --device cuda --vram 2 --sample-tokens 2"));
    let said = on_card(&sandbox, &card);
    let whole = report(&said);
    assert!(said.stderr.contains("a sample, after held-out text"), "{}", said.stderr);
    let processor = report(&sandbox.must_train(&format!("{RUN} --name processor --device cpu")));
    assert_eq!(losses(&whole).len(), 4);
    for (a, b) in losses(&whole).iter().zip(losses(&processor)) {
        assert!((a - b).abs() < 1e-4, "{a} on the card, {b} on the processor");
    }
    // What was planned is what kernels and copies touched, and the driver has that much less, in pieces of 2 MiB.
    let (plan, measured) = (&whole["plan"], &whole["measured"]);
    assert_eq!(measured["touched_bytes"], plan["peak_bytes"]);
    assert_eq!(measured["device_allocations_after_first_step"], 0);
    let bytes = |value: &Value| value.as_u64().expect("bytes");
    let pieces = bytes(&plan["peak_bytes"]).next_multiple_of(2 << 20);
    let host = bytes(&plan["host_bytes"]).next_multiple_of(4096);
    assert_eq!(bytes(&measured["arena_resident_bytes"]), pieces + host);

    let last = "runs/card/checkpoints/step-000004";
    let weights = sandbox.read(&format!("{last}/model.safetensors"));
    std::fs::remove_dir_all(sandbox.path(last)).expect("it is there");
    let resumed = on_card(&sandbox, &["train", "--resume", "runs/card", "--json"].map(str::to_owned));
    assert_eq!(losses(&report(&resumed)), losses(&whole));
    assert!(sandbox.read(&format!("{last}/model.safetensors")) == weights, "other weights");

    let text = on_card(
        &sandbox,
        &"generate --checkpoint runs/card --max-tokens 3".split(' ').map(str::to_owned).collect::<Vec<_>>(),
    );
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    assert!(text.stderr.contains("on NVIDIA GeForce RTX 3060"), "{}", text.stderr);
}
