#!/usr/bin/env bash
# Checks to run on an NVIDIA card that is available for a few minutes: those that need a card, most important first,
# each with a time limit. Prints Markdown for bench/results; stderr shows progress. Add new checks that need a card
# here.
#
# usage:  bench/on_card.sh PLIMSOLL [CUDA_TESTS]
#         PLIMSOLL    the release binary
#         CUDA_TESTS  the test program of crates/exec/tests/cuda, as `cargo test --workspace --test cuda --no-run` prints it
# needs:  a card with its driver, Python, and eight minutes
set -uo pipefail

plimsoll=$(realpath "$1")
tests=${2:+$(realpath "$2")}
repository=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export HOME=$work PLIMSOLL=$plimsoll

# Runs a command within a limit of seconds, as a section of the page.
section() {
    local title=$1 limit=$2
    shift 2
    echo "on_card: $title" >&2
    printf '\n## %s\n\n```text\n' "$title"
    timeout --signal=INT "$limit" "$@" 2>&1 | grep -v '^step ' | tail -n 60
    printf '```\n(exit status %s)\n' "${PIPESTATUS[0]}"
}

# A run that is killed and resumed ends with the same weights as one that is not interrupted.
killed_and_resumed() {
    local flags="--data text.txt --device cuda --seq-len 64 --max-steps 60 --checkpoint-every 10 --sample-tokens 0"
    "$PLIMSOLL" train $flags --name whole || return
    "$PLIMSOLL" train $flags --name cut &
    local run=$!
    until [ -e runs/cut/checkpoints/step-000020 ] || ! kill -0 $run 2>/dev/null; do sleep 0.05; done
    kill -KILL $run
    wait $run 2>/dev/null
    "$PLIMSOLL" train $flags --name cut --resume auto || return
    cmp runs/whole/checkpoints/step-000060/model.safetensors runs/cut/checkpoints/step-000060/model.safetensors &&
        echo "the weights are the same, to the bit"
}
export -f killed_and_resumed

for line in $(seq 4000); do echo "Line $line counts $((line * line % 977)) ships, and $((line * 31 % 89)) of them are loaded."; done >text.txt
# A Mistral whose second layer alone has a window: kernels with windows have not been timed on a card.
cat >window.json <<'JSON'
{"model_type": "mistral", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
 "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 4096, "sliding_window": 1024,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true}
JSON

# Experts: their kernels have not been timed on a card.
cat >experts.json <<'JSON'
{"model_type": "olmoe", "vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 8,
 "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 32, "num_experts_per_tok": 4,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}
JSON

# Attention over 131,072 tokens, which is split on a card that drives a display: no launch may exceed the system's limit.
cat >long.json <<'JSON'
{"model_type": "llama", "vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2,
 "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
 "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": true}
JSON

echo "# A card, $(date -u +%F)"
section "Self-test" 60 "$plimsoll" doctor --self-test
section "Killed and resumed" 90 bash -c killed_and_resumed
if [ -n "$tests" ]; then section "The tests of the CUDA device" 60 "$tests" --test-threads 1; fi
section "Stress" 90 "$plimsoll" stress --device cuda --duration 1m
section "Calibration" 60 "$plimsoll" calibrate --device cuda
for part in off 1; do
    section "Weights on the host: $part" 45 "$plimsoll" bench --model llama-3.2-1b --device cuda --seq-len 1024 --global-batch 16 --micro-batch 8 --precision bf16 --optimizer-state bf16 --optimizer-offload 1 --weight-offload $part --steps 4
done
section "8B in full in 16 GiB" 150 "$plimsoll" bench --model llama-3.1-8b --device cuda --vram 16 --seq-len 1024 --global-batch 64 --precision bf16 --optimizer-state bf16 --steps 2
section "8B in full in 16 GiB, gradients in bf16" 150 "$plimsoll" bench --model llama-3.1-8b --device cuda --vram 16 --seq-len 1024 --global-batch 64 --precision bf16 --optimizer-state bf16 --gradient-precision bf16 --steps 2
# The host updates while the next step begins: at the end of a step, this takes a quarter longer.
section "8B in full in 24 GiB, 16 samples a step" 120 "$plimsoll" bench --model llama-3.1-8b --device cuda --vram 24 --seq-len 1024 --global-batch 16 --precision bf16 --optimizer-state bf16 --steps 4
for precision in bf16 fp8; do
    section "1.5B in $precision" 45 "$plimsoll" bench --model qwen2.5-1.5b --device cuda --seq-len 1024 --global-batch 32 --micro-batch 8 --precision $precision --optimizer-state bf16 --steps 4
    section "7B in $precision" 90 "$plimsoll" bench --model qwen2.5-7b --method lora --device cuda --seq-len 1024 --global-batch 16 --micro-batch 4 --precision $precision --steps 3
done
section "Sliding window" 60 "$plimsoll" bench --model window.json --device cuda --seq-len 4096 --micro-batch 4 --precision bf16 --steps 10
section "Adapters" 60 "$plimsoll" bench --model qwen3-0.6b --method lora --device cuda --seq-len 1024 --micro-batch 8 --precision bf16 --steps 10
section "Long context in tiles" 60 "$plimsoll" bench --model qwen3-0.6b --method qlora --device cuda --seq-len 16384 --micro-batch 1 --precision bf16 --sequence-tile 2048 --steps 4
section "Long context without tiles" 60 "$plimsoll" bench --model qwen3-0.6b --method qlora --device cuda --seq-len 16384 --micro-batch 1 --precision bf16 --sequence-tile off --steps 4
section "Attention over 131,072 tokens" 120 "$plimsoll" bench --model long.json --device cuda --seq-len 131072 --micro-batch 1 --precision bf16 --steps 2
section "Experts" 60 "$plimsoll" bench --model experts.json --device cuda --seq-len 1024 --micro-batch 8 --precision bf16 --steps 10
section "Adapters of experts" 60 "$plimsoll" bench --model experts.json --method lora --lora-targets q_proj,gate_proj,up_proj,down_proj --device cuda --seq-len 1024 --micro-batch 8 --precision bf16 --steps 10
section "Experts in NF4" 60 "$plimsoll" bench --model experts.json --method qlora --device cuda --seq-len 1024 --micro-batch 8 --precision bf16 --steps 10
section "GPT-2 124M" 60 "$plimsoll" bench --model gpt2 --device cuda --seq-len 1024 --micro-batch 16 --precision bf16 --steps 20
section "First start, without the driver's cache of kernels" 60 bash -c 'time CUDA_CACHE_DISABLE=1 "$PLIMSOLL" bench --model gpt2 --device cuda --seq-len 1024 --micro-batch 4 --precision bf16 --steps 1'
section "Budgets" 150 python3 "$repository/bench/card_budgets.py" --plimsoll "$plimsoll" --cases gpt2-medium --budgets 4 --steps 4
