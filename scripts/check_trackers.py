"""Checks the files of `plimsoll train --log-to` with the programs that read them: TensorBoard, W&B, MLflow, pandas.

    python -m venv VENV && VENV/bin/pip install tensorboard wandb mlflow
    VENV/bin/python scripts/check_trackers.py [--wandb-reader PYTHON]

The example `sessions` of the crate `trackers` writes the logs of a run that was killed within a record after step 300 and resumed
after step 200: losses are `step + 0.25` up to step 200, `step + 0.75` after it. `--wandb-reader` is the Python of another
environment with wandb 0.17 or older, whose log reader is written in Python and strict.
"""

import argparse
import csv
import http.server
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(sys.executable).parent
EXPECTED = [(step, step + (0.25 if step <= 200 else 0.75)) for step in range(1, 401)]


def same(what, found, expected):
    if found != expected:
        wrong = next((pair for pair in zip(found, expected) if pair[0] != pair[1]), "one is longer")
        sys.exit(f"{what}: {len(found)} of {len(expected)} values; first difference {wrong}")
    print(f"ok: {what}")


def write(folder, **variables):
    command = ["cargo", "run", "-q", "--locked", "-p", "plimsoll-trackers", "--example", "sessions", "--", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, env=os.environ | variables, check=True)


def tensorboard(logs):
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    accumulator = event_accumulator.EventAccumulator(str(logs / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    points = [(event.step, event.value) for event in accumulator.Scalars("train/loss")]
    same("TensorBoard: train/loss of a resumed run", points, EXPECTED)
    points = [(event.step, event.value) for event in accumulator.Scalars("eval/loss")]
    same("TensorBoard: eval/loss", [step for step, _ in points], [100, 200, 300, 400])
    same("TensorBoard: NaN", math.isnan(points[-1][1]), True)
    same("TensorBoard: temperature", [e.value for e in accumulator.Scalars("system/gpu.0.temp")][-1], 61.0)
    content = accumulator.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    same("TensorBoard: hyperparameters", (start.hparams["seed"].number_value, start.hparams["model"].string_value), (1337.0, "nano"))


def tables(logs):
    with open(logs / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    same("csv", [(int(r["step"]), float(r["train/loss"])) for r in rows if r["train/loss"]], EXPECTED)
    lines = [json.loads(line) for line in (logs / "metrics.jsonl").read_text().splitlines()]
    same("jsonl", [(r["step"], r["train/loss"]) for r in lines if "train/loss" in r], EXPECTED)
    import pandas

    frame = pandas.read_csv(logs / "metrics.csv")
    same("csv, by pandas", list(frame["train/loss"].dropna()), [loss for _, loss in EXPECTED])
    frame = pandas.read_json(logs / "metrics.jsonl", lines=True)
    same("jsonl, by pandas", list(frame["train/loss"].dropna()), [loss for _, loss in EXPECTED])


READER = """
import json, sys
from wandb.proto import wandb_internal_pb2 as pb
from wandb.sdk.internal.datastore import DataStore
store, rows, kinds = DataStore(), [], {}
store.open_for_scan(sys.argv[1])
while (data := store.scan_data()) is not None:
    record = pb.Record.FromString(data)
    kind = record.WhichOneof("record_type")
    kinds[kind] = kinds.get(kind, 0) + 1
    if kind == "history":
        rows.append({item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
    if kind == "exit":
        kinds["code"] = record.exit.exit_code
print(json.dumps([rows, kinds]))
"""


def wandb_reader(logs, python):
    (log,) = logs.glob("wandb/offline-run-*/run-*.wandb")
    output = subprocess.run([python, "-c", READER, str(log)], check=True, capture_output=True, text=True).stdout
    rows, kinds = json.loads(output)
    points = [(row["train/global_step"], row["train/loss"]) for row in rows if "train/loss" in row]
    same("W&B: history, by the reader in Python", points, EXPECTED)
    same("W&B: records", (kinds["run"], kinds["exit"], kinds["code"], kinds["stats"] > 0), (1, 1, 0, True))
    same("W&B: its own steps", [row["_step"] for row in rows], list(range(len(rows))))


class Backend(http.server.BaseHTTPRequestHandler):
    """The parts of W&B's server that `wandb sync` needs."""

    files, bodies = {}, []

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        Backend.bodies.append((self.path, self.headers.get("authorization"), body))
        if self.path.endswith("/graphql"):
            answer = {"data": self.data(body)}
        else:
            for name, chunk in (body.get("files") or {}).items():
                Backend.files.setdefault(name, []).extend(chunk["content"])
            answer = {}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def data(self, body):
        query = body.get("query", "")
        project = {"id": "1", "name": "plimsoll-check", "entity": {"id": "1", "name": "me"}}
        if "upsertBucket" in query:
            bucket = {"id": "1", "name": body["variables"].get("name") or "x", "displayName": "nano-1", "description": None,
                      "config": None, "sweepName": None, "project": project, "historyLineCount": 0}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "viewer" in query:
            viewer = {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}, "email": "me@example.com"}
            return {"viewer": viewer, "serverInfo": {"cliVersionInfo": {}, "latestLocalVersionInfo": None, "features": []}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": [], "cliVersionInfo": {}}}
        return {"model": None, "createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}

    do_PUT = do_POST

    def do_GET(self):
        self.do_POST()

    def log_message(self, *arguments):
        pass


def wandb_sync(logs):
    (run,) = logs.glob("wandb/offline-run-*")
    dry = subprocess.run([BIN / "wandb", "sync", "--dry-run", str(run)], capture_output=True, text=True, check=True)
    same("W&B: `wandb sync --dry-run` finds the run", "Would sync 1 run" in dry.stdout + dry.stderr, True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    key = "0123456789abcdef" * 2 + "01234567"
    variables = {"WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": key, "WANDB_ERROR_REPORTING": "false"}
    synced = subprocess.run(
        [BIN / "wandb", "sync", str(run)], env=os.environ | variables, capture_output=True, text=True, timeout=120
    )
    same("W&B: `wandb sync` to a server on loopback", (synced.returncode, synced.stderr[-2000:] if synced.returncode else ""), (0, ""))
    rows = [json.loads(line) for line in Backend.files.get("wandb-history.jsonl", [])]
    points = [(row["train/global_step"], row["train/loss"]) for row in rows if "train/loss" in row]
    same("W&B: history that the server receives", points, EXPECTED)
    events = [json.loads(line) for line in Backend.files.get("wandb-events.jsonl", [])]
    same("W&B: temperature that the server receives", any(event.get("system.gpu.0.temp") == 61.0 for event in events), True)
    configs = [body["variables"].get("config") for _, _, body in Backend.bodies if "upsertBucket" in body.get("query", "")]
    same("W&B: settings that the server receives", any(c and json.loads(c).get("seed", {}).get("value") == 1337 for c in configs), True)


def mlflow_points(client, name="plimsoll-check"):
    experiment = client.get_experiment_by_name(name)
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    return run, sorted((metric.step, metric.value) for metric in history)


def mlflow_files(logs):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    run, points = mlflow_points(MlflowClient((logs / "mlruns").as_uri()))
    same("MLflow: metrics of the file store", points, EXPECTED)
    same("MLflow: status, name, parameter", (run.info.status, run.info.run_name, run.data.params["seed"]), ("FINISHED", "nano-1", "1337"))
    database = f"sqlite:///{logs}/mlflow.db"
    subprocess.run(
        [BIN / "mlflow", "migrate-filestore", "--source", str(logs / "mlruns"), "--target", database],
        check=True, capture_output=True,
    )
    _, points = mlflow_points(MlflowClient(database))
    same("MLflow: metrics of a database that imported the file store", points, EXPECTED)


def mlflow_server(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    command = [BIN / "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/server.db", "--port", str(port),
               "--workers", "1", "--default-artifact-root", str(folder / "artifacts")]
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{uri}/health").read()
                break
            except OSError:
                time.sleep(0.5)
        write(folder, MLFLOW_TRACKING_URI=uri)
        from mlflow import MlflowClient

        run, points = mlflow_points(MlflowClient(uri))
        # The server's API cannot delete values: those of repeated steps are listed in addition to the old ones.
        again = [(step, step + 0.25) for step in range(201, 301)]
        same("MLflow: metrics on a server", points, sorted(EXPECTED + again))
        same("MLflow: status and parameter on a server", (run.info.status, run.data.params["seed"]), ("FINISHED", "1337"))
    finally:
        os.killpg(server.pid, 15)
        server.wait()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--wandb-reader", help="Python with wandb 0.17 or older")
    reader = arguments.parse_args().wandb_reader
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write(folder)
        logs = folder / "logs"
        tensorboard(logs)
        tables(logs)
        if reader:
            wandb_reader(logs, reader)
        wandb_sync(logs)
        mlflow_files(logs)
    with tempfile.TemporaryDirectory() as folder:
        mlflow_server(pathlib.Path(folder))


if __name__ == "__main__":
    main()
