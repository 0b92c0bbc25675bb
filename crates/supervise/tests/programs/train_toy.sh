#!/bin/sh
# A trainer without Python: it accepts Hugging Face's flags, fails like PyTorch if a micro-batch exceeds TOY_CAP, and
# trains
# a number modulo a prime. The result of a step depends only on its samples and their order, not on the micro-batches,
# so the
# same effective batch gives the same number.
set -eu
micro=8 accumulation=1 out=out steps=12 resume= checkpointing=
while [ $# -gt 0 ]; do
    case $1 in
    --per_device_train_batch_size) micro=$2; shift 2 ;;
    --gradient_accumulation_steps) accumulation=$2; shift 2 ;;
    --output_dir) out=$2; shift 2 ;;
    --max_steps) steps=$2; shift 2 ;;
    --resume_from_checkpoint) resume=$2; shift 2 ;;
    --gradient_checkpointing) checkpointing=yes; shift ;;
    *) echo "usage: train_toy.sh [--max_steps N]" >&2; echo "train_toy.sh: error: unrecognized arguments: $1" >&2; exit 2 ;;
    esac
done
needed=$((micro * 4))
if [ -n "$checkpointing" ]; then needed=$micro; fi
weight=1 step=0
if [ -n "$resume" ]; then
    read -r step weight <"$resume/optimizer.pt"
    echo "resumed at step $step"
fi
while [ "$step" -lt "$steps" ]; do
    step=$((step + 1))
    # Fail after the first step, so that there is a checkpoint to resume from.
    if [ "$needed" -gt "${TOY_CAP:-1000}" ] && [ "$step" -gt "${TOY_CAP_FROM:-0}" ]; then
        echo 'Traceback (most recent call last):' >&2
        echo '  File "train_toy.py", line 20, in <module>' >&2
        echo '    loss.backward()' >&2
        echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate $needed.00 MiB. GPU 0 has a total capacity of 1.00 GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has 1000.00 MiB memory in use. Of the allocated memory 900.00 MiB is allocated by PyTorch, and 5.00 MiB is reserved by PyTorch but unallocated." >&2
        exit 1
    fi
    sample=0
    while [ "$sample" -lt $((micro * accumulation)) ]; do
        weight=$(((weight * 31 + step * 7 + sample) % 1000003))
        sample=$((sample + 1))
    done
    echo "step $step/$steps | loss 0.$weight"
    if [ $((step % 4)) -eq 0 ]; then
        mkdir -p "$out/checkpoint-$step"
        echo "{\"global_step\": $step}" >"$out/checkpoint-$step/trainer_state.json"
        echo weights >"$out/checkpoint-$step/pytorch_model.bin"
        echo "$step $weight" >"$out/checkpoint-$step/optimizer.pt"
    fi
done
echo "final loss 0.$weight"
