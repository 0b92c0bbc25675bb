"""Checks `/metrics` of `plimsoll serve` with other projects' parsers, and with a Prometheus that scrapes it.

    python -m venv VENV && VENV/bin/pip install prometheus_client grafana-foundation-sdk
    VENV/bin/python scripts/check_metrics.py [URL TOKEN]

Without a URL, the texts come from a test of the crate `serve` and contain every metric of cards and runs. `promtool` and
`prometheus` are Debian's; if they are missing, their checks are skipped with a message. The dashboard is checked against Grafana's own
schema, from which `grafana-foundation-sdk` is generated: it must not contain unknown fields.
"""

import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as open_parser

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
TYPES = {
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
    "text": "text/plain; version=0.0.4; charset=utf-8",
}


def texts_of_test():
    with tempfile.TemporaryDirectory() as folder:
        command = ["cargo", "test", "-q", "--locked", "-p", "plimsoll-serve", "--lib", "prints_for_the_check"]
        variables = os.environ | {"PLIMSOLL_METRICS_OUT": folder}
        subprocess.run(command, cwd=REPOSITORY, env=variables, check=True, stdout=subprocess.DEVNULL)
        folder = pathlib.Path(folder)
        return (folder / "metrics.openmetrics").read_text(), (folder / "metrics.txt").read_text()


def texts_of_server(url, token):
    def ask(accept):
        headers = {"Accept": accept, "Authorization": f"Bearer {token}"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.headers["content-type"], answer.read().decode()

    kinds, texts = zip(*[ask("application/openmetrics-text"), ask("text/plain")])
    assert list(kinds) == list(TYPES.values()), kinds
    return texts


def parsed(open_text, text):
    families = {family.name: family for family in open_parser.text_string_to_metric_families(open_text)}
    older = {family.name: family for family in text_parser.text_string_to_metric_families(text)}
    series = lambda families: {
        (s.name, tuple(sorted(s.labels.items()))): s.value for family in families.values() for s in family.samples
    }
    assert series(families) == series(older), "the formats differ"
    print(f"ok: {len(families)} families, {len(series(families))} series, the same in both formats")
    return families


def promtool(text):
    if not shutil.which("promtool"):
        return print("skipped: promtool is not installed")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    # promtool has notes on DCGM's names, which we cannot change; there must be none on ours.
    complaints = (checked.stdout + checked.stderr).splitlines()
    ours = [line for line in complaints if not (line.startswith("DCGM_") and " should " in line)]
    assert checked.returncode in (0, 3) and not ours, ours
    print(f"ok: promtool check metrics; {len(complaints)} notes on DCGM's names")


def scraped(open_text, families):
    if not shutil.which("prometheus"):
        return print("skipped: prometheus is not installed")

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert "application/openmetrics-text" in self.headers["accept"]
            self.send_response(200)
            self.send_header("content-type", TYPES["openmetrics"])
            self.end_headers()
            self.wfile.write(open_text.encode())

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "prometheus.yml"
        target = f"127.0.0.1:{server.server_port}"
        job = {"job_name": "plimsoll", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
        config.write_text(json.dumps({"scrape_configs": [job]}))
        with http.server.HTTPServer(("127.0.0.1", 0), Answer) as free:
            port = free.server_port
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
        prometheus = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ask = lambda query: json.load(
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
            )["data"]["result"]
            for _ in range(60):
                try:
                    if (up := ask("up")) and up[0]["value"][1] == "1":
                        break
                except OSError:
                    pass
                time.sleep(0.5)
            else:
                sys.exit("Prometheus did not scrape it")
            found = int(ask('count({job="plimsoll",__name__!~"up|scrape_.*"})')[0]["value"][1])
            expected = sum(len(family.samples) for family in families.values())
            assert found == expected, (found, expected)
            dashboard = json.loads((REPOSITORY / "docs/grafana.json").read_text())
            expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
            for expression in expressions:
                for name in ("run", "host", "gpu"):
                    expression = expression.replace(f"${name}", ".*")
                ask(expression.replace("$__rate_interval", "1m"))
            print(f"ok: Prometheus has {found} series, and answers the dashboard's {len(expressions)} queries")
        finally:
            prometheus.terminate()
            prometheus.wait()


def unknown(ours, theirs, path=""):
    """Parts of a value that the schema dropped or changed."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            if not isinstance(theirs, dict) or key not in theirs:
                yield f"{path}.{key}"
            else:
                yield from unknown(value, theirs[key], f"{path}.{key}")
    elif isinstance(ours, list):
        if len(ours) != len(theirs):
            yield path
        for index, pair in enumerate(zip(ours, theirs)):
            yield from unknown(*pair, f"{path}[{index}]")
    elif ours != theirs:
        yield path


def dashboard():
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    ours = json.loads((REPOSITORY / "docs/grafana.json").read_text())
    theirs = json.loads(JSONEncoder().encode(Dashboard.from_json(ours)))
    found = list(unknown(ours, theirs))
    assert not found, found
    print(f"ok: the dashboard's {len(ours['panels'])} panels conform to Grafana's schema")


def main():
    open_text, text = texts_of_server(*sys.argv[1:3]) if len(sys.argv) == 3 else texts_of_test()
    families = parsed(open_text, text)
    promtool(text)
    scraped(open_text, families)
    dashboard()


if __name__ == "__main__":
    main()
