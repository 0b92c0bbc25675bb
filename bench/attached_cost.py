#!/usr/bin/env python3
"""Measures the cost of watching a run: tokens/s of `nano` with everything attached, relative to tokens/s without, alternating.

Attached are trackers that write files (`--log-to tensorboard,wandb,mlflow,jsonl,csv`), a webhook, ntfy and mail to servers of
this script on loopback, `plimsoll serve` with a client that reads its events, and `plimsoll top` in a terminal. They share the
cores with the run, so the result is an upper bound.

usage:  python bench/attached_cost.py --plimsoll target/release/plimsoll --data TEXT [--pairs 5] [--steps 300]
            [--nvml LIBRARY --cards 2]
needs:  Linux and Python's standard library

The order within a pair alternates. tokens/s are medians over a run's steps, from its journal.

In addition it reports the kernel's counters (`schedstat`), which vary less than wall-clock time on a machine with varying load:

    waited     time in which a thread of the run was ready but had no core, watched minus alone, relative to the time from the
               first step to the last: an upper bound on the loss of tokens/s, since a waiting thread delays a step by at most
               its waiting time
    time       CPU time of everything that watches, relative to the run's own: the run's threads that log and notify, and `serve`
               and `top` from the run's first step on; this script's servers and client, which would run elsewhere, are listed
               separately
"""

import argparse
import fcntl
import http.server
import json
import os
import pty
import re
import socketserver
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from pathlib import Path

# Names of a run's threads that log and notify.
WATCHING = ("log-", "notify-")


class Sink(http.server.BaseHTTPRequestHandler):
    """Receives notifications."""

    def do_POST(self) -> None:  # noqa: N802, the name that http.server asks for
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.server.taken += 1

    do_PUT = do_POST

    def log_message(self, *_: object) -> None:
        pass


class MailSink(socketserver.StreamRequestHandler):
    """Takes mail."""

    def handle(self) -> None:
        self.wfile.write(b"220 sink\r\n")
        while line := self.rfile.readline():
            command = line[:4].upper()
            if command == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                while self.rfile.readline() not in (b".\r\n", b""):
                    pass
                self.server.taken += 1
            self.wfile.write(b"221 bye\r\n" if command == b"QUIT" else b"250 ok\r\n")
            if command == b"QUIT":
                return


def listen(handler: type, server: type) -> socketserver.BaseServer:
    server = server(("127.0.0.1", 0), handler)
    server.taken = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Usage:
    """CPU time of a process by the names of its threads, sampled: what a thread used after the last sample before its end is
    not counted."""

    def __init__(self, pid: int):
        self.tasks = Path(f"/proc/{pid}/task")
        self.seconds: dict[str, tuple[str, float]] = {}
        self.waited: dict[str, tuple[str, float]] = {}

    def look(self) -> None:
        for task in self.tasks.iterdir() if self.tasks.exists() else ():
            try:
                name, used = (task / "comm").read_text().strip(), (task / "schedstat").read_text().split()
            except OSError:
                continue
            if used:
                self.seconds[task.name] = (name, int(used[0]) / 1e9)
                self.waited[task.name] = (name, int(used[1]) / 1e9)

    def by_name(self) -> dict[str, float]:
        names: dict[str, float] = {}
        for name, seconds in self.seconds.values():
            names[name] = names.get(name, 0.0) + seconds
        return names


def follow(link: str) -> None:
    """Reads a server's events as a browser does, until the server ends."""
    address, token = re.fullmatch(r"(http://[^/]+)/\?token=(\S+)", link).groups()
    request = urllib.request.Request(f"{address}/api/events", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request) as events:
            while events.read(512):
                pass
    except OSError:
        pass


class Attached:
    """`serve` with a client and `top` in a terminal, on a folder of runs."""

    def __init__(self, plimsoll: str, runs: Path, environment: dict[str, str]):
        serve = [plimsoll, "serve", "--listen", "127.0.0.1:0", "--runs-dir", str(runs)]
        self.serve = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True)
        link = next((found[0] for line in self.serve.stdout if (found := re.findall(r"http://\S+token=\S+", line))), None)
        if link is None:
            sys.exit("error: plimsoll serve printed no link")
        threading.Thread(target=follow, args=(link,), daemon=True).start()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        top = [plimsoll, "top", "--runs-dir", str(runs)]
        self.top = subprocess.Popen(top, stdin=slave, stdout=slave, stderr=slave, env=environment | {"TERM": "xterm-256color"})
        os.close(slave)
        self.drawn = 0
        threading.Thread(target=self.read, args=(master,), daemon=True).start()

    def read(self, terminal: int) -> None:
        try:
            while piece := os.read(terminal, 65536):
                self.drawn += len(piece)
        except OSError:
            pass

    def end(self) -> None:
        for process in (self.serve, self.top):
            if process.poll() is not None:
                sys.exit(f"error: {process.args[1]} ended during the run, with {process.returncode}")
            process.terminate()
            process.wait()


def used_while(run: subprocess.Popen, others: dict[str, int], journal: Path) -> dict[str, float]:
    """CPU seconds of the run's watching threads, of its other threads, and of other processes from the run's first step on,
    until the run ends."""
    of_run, of_others = Usage(run.pid), {name: Usage(pid) for name, pid in others.items()}
    before: dict[str, float] | None = None
    while run.poll() is None:
        of_run.look()
        for usage in of_others.values():
            usage.look()
        if before is None and journal.exists() and '"step"' in journal.read_text():
            before = {name: sum(usage.by_name().values()) for name, usage in of_others.items()}
        time.sleep(0.5)
    threads = of_run.by_name()
    watching = {name: seconds for name, seconds in threads.items() if name.startswith(WATCHING)}
    used = {"run": sum(threads.values()) - sum(watching.values()), **watching}
    used["waited"] = sum(seconds for name, seconds in of_run.waited.values() if not name.startswith(WATCHING))
    for name, usage in of_others.items():
        used |= {name: sum(usage.by_name().values()) - (before or {}).get(name, 0.0)}
        used |= {f"  {name}: {thread}": seconds for thread, seconds in usage.by_name().items()}
    return used


def tokens_per_s(a: argparse.Namespace, folder: Path, name: str, watched: bool) -> tuple[float, dict[str, float]]:
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    command = [a.plimsoll, "train", "--model", "nano", "--data", a.data, "--max-steps", str(a.steps), "--seed", "1"]
    command += ["--threads", str(a.threads), "--device", "cpu", "--runs-dir", str(runs), "--name", name]
    environment = dict(os.environ) | {"XDG_STATE_HOME": str(folder / "state")}
    if a.nvml:
        cards = [f"NVIDIA GeForce RTX 4090,GPU-{n},24564,400,2000,busy=90" for n in range(a.cards)]
        environment |= {"PLIMSOLL_NVML": a.nvml, "PLIMSOLL_FAKE_GPUS": ";".join(cards)}
    attached = None
    if watched:
        services, mail = listen(Sink, http.server.ThreadingHTTPServer), listen(MailSink, socketserver.ThreadingTCPServer)
        address = f"http://127.0.0.1:{services.server_address[1]}"
        environment |= {"PLIMSOLL_WEBHOOK_URL": address, "PLIMSOLL_NTFY_SERVER": address, "PLIMSOLL_NTFY_TOPIC": "topic"}
        command += ["--log-to", "tensorboard,wandb,mlflow,jsonl,csv", "--notify-every", "10", "--mail-every", "10s"]
        command += ["--mail-to", "me@localhost.test", "--smtp", f"127.0.0.1:{mail.server_address[1]}"]
        command += ["--smtp-encryption", "none"]
        attached = Attached(a.plimsoll, runs, environment)
    own = time.process_time()
    with tempfile.TemporaryFile() as errors:
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder)
        others = {"serve": attached.serve.pid, "top": attached.top.pid} if attached else {}
        used = used_while(run, others, runs / name / "journal.jsonl")
        if run.returncode != 0:
            errors.seek(0)
            sys.exit(f"error: exit code {run.returncode}: {errors.read().decode()[-2000:]}")
    used["this script"] = time.process_time() - own
    if attached:
        attached.end()
        if min(services.taken, mail.taken, attached.drawn) == 0:
            sys.exit(f"error: {services.taken} messages, {mail.taken} mails and {attached.drawn} bytes of top came")
        services.shutdown()
        mail.shutdown()
    events = map(json.loads, (runs / name / "journal.jsonl").read_text().splitlines())
    steps = [event for event in events if event["event"] == "step"]
    used["waited"] /= steps[-1]["time_s"] - steps[0]["time_s"]
    return statistics.median(step["tokens_per_s"] for step in steps), used


def print_used(used: dict[str, float]) -> None:
    """Prints the CPU time of watching, relative to the run's."""
    run, ours, _ = used.pop("run"), used.pop("this script"), used.pop("waited")
    watching = sum(seconds for name, seconds in used.items() if not name.startswith(" "))
    print(f"\nCPU time: run {run:.2f} s; watching {watching:.3f} s, {watching / run:.2%} of it:")
    for name, seconds in sorted(used.items(), key=lambda part: -part[1]):
        print(f"  {seconds:8.3f} s  {seconds / run:7.3%}  {name}")
    print(f"  plus this script's servers and client {ours:.3f} s, {ours / run:.2%}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True)
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--nvml", help="library of the NVML stand-in")
    parser.add_argument("--cards", type=int, default=2)
    a = parser.parse_args()
    a.plimsoll, a.data = (str(Path(path).resolve()) for path in (a.plimsoll, a.data))
    ratios, waits = [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(a.pairs):
            speeds, used = {}, {}
            for watched in (pair % 2 == 0, pair % 2 != 0):
                name = f"{'watched' if watched else 'alone'}-{pair}"
                speeds[watched], used[watched] = tokens_per_s(a, Path(folder), name, watched)
            ratios.append(speeds[True] / speeds[False])
            waits.append(used[True]["waited"] - used[False]["waited"])
            cells = f"{speeds[False]:.0f} | {speeds[True]:.0f} | {ratios[-1]:.4f} | {waits[-1]:.2%}"
            print(f"| {pair + 1} | {cells} |", flush=True)
            print_used(used[True])
    print(f"median {statistics.median(ratios):.4f}, least {min(ratios):.4f}, most {max(ratios):.4f}")
    print(f"waited: median {statistics.median(waits):.2%}, least {min(waits):.2%}, most {max(waits):.2%}")


if __name__ == "__main__":
    main()
