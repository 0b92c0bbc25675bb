# Builds the program in one stage and runs it, as a user without root's rights, in a small second one.
#
#   docker build -t plimsoll .
#   docker run --rm --gpus all -v "$PWD/data:/work/data:ro" -v runs:/work/runs -v cache:/cache plimsoll train --data data
#
# The image has no CUDA: the NVIDIA container toolkit adds the driver's libraries of the host.
ARG BUILDER=rust:1-bookworm
ARG RUNTIME=debian:bookworm-slim

FROM ${BUILDER} AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked -p plimsoll \
    && install -D target/release/plimsoll /out/plimsoll \
    && strip /out/plimsoll

FROM ${RUNTIME}
# Named volumes get the owner of the folders that they cover.
RUN useradd --uid 1000 --user-group --create-home plimsoll \
    && install -d -o plimsoll -g plimsoll /work /work/runs /work/data /cache /cache/state
COPY --from=build /out/plimsoll /usr/local/bin/plimsoll
COPY LICENSE NOTICE /usr/local/share/doc/plimsoll/
ENV XDG_CACHE_HOME=/cache \
    XDG_STATE_HOME=/cache/state \
    HF_HOME=/cache/huggingface \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# A number, since Kubernetes can't check a name with `runAsNonRoot`.
USER 1000:1000
WORKDIR /work
VOLUME ["/work/runs", "/cache"]
STOPSIGNAL SIGTERM
# Healthy while a run of this container trains. Tokenizing the data comes before that.
HEALTHCHECK --interval=1m --timeout=10s --start-period=30m CMD ["plimsoll", "ps", "--check"]
ENTRYPOINT ["plimsoll"]
CMD ["--help"]
