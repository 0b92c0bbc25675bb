#!/bin/sh
# A trainer that parses its own flags and rejects all others. It fails like PyTorch if its batch exceeds TOY_CAP, or if
# less
# than TOY_FRACTION percent is offloaded to the host. It prints the effective batch of each attempt.
set -eu
batch=8 accumulation=1 fraction=0
while [ $# -gt 0 ]; do
    flag=$1
    case $flag in
    --*=*) value=${flag#*=} flag=${flag%%=*}; shift ;;
    --use_cpu_offload | --no_rdrop) shift ;;
    *) value=${2:-}; shift 2 ;;
    esac
    case $flag in
    --batch_size | --batch-size) batch=$value ;;
    --gradient_accumulation_steps) accumulation=$value ;;
    --cpu_offload_fraction) fraction=$value ;;
    --use_cpu_offload | --no_rdrop) ;;
    *) echo "usage: train.py [--batch_size N]" >&2; echo "train.py: error: unrecognized arguments: $flag" >&2; exit 2 ;;
    esac
done
echo "effective batch $((batch * accumulation))"
case $fraction in 0.*) percent=${fraction#0.}; percent=$(echo "${percent}0" | cut -c 1-2) ;; *) percent=$((fraction * 100)) ;; esac
if [ "$batch" -gt "${TOY_CAP:-1000}" ] || [ "$percent" -lt "${TOY_FRACTION:-0}" ]; then
    echo 'Traceback (most recent call last):' >&2
    echo '  File "train.py", line 20, in <module>' >&2
    echo '    loss.backward()' >&2
    echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has 1000.00 MiB memory in use. Of the allocated memory 900.00 MiB is allocated by PyTorch, and 5.00 MiB is reserved by PyTorch but unallocated." >&2
    exit 1
fi
echo "trained with batch $batch, accumulation $accumulation, fraction $fraction"
