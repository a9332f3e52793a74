#!/usr/bin/env python3
"""How many tokens a second the server carries to many streams at once, and whether /health answers meanwhile.

    bench/serve_load.py [--streams 256] [--tokens 400] [--rounds 3] [--tokenize]

The server is `weft serve` with the smallest of models (bench/models/null, random weights), so that hardly anything but scheduling,
JSON and sockets takes time; the client is `weft bench serve` in a process of its own; /health is asked every 5 ms on one connection.
--tokenize posts 30 MB to /tokenize again and again beside it all. Build first: ./dev build.
"""

import argparse
import http.client
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEFT = ROOT / "build/release/weft"
TEXT_BYTES = 30_000_000


def model_folder(folder):
    """The null model, with the tokenizer of the bundled one for /tokenize."""
    for source in [ROOT / "bench/models/null/config.json", ROOT / "models/demo/tokenizer.json", ROOT / "models/demo/tokenizer_config.json"]:
        shutil.copy(source, folder)
    return str(folder)


def start_server(folder, streams):
    command = [WEFT, "serve", folder, "--load-format", "dummy", "--port", "0", "--threads", "1", "--max-num-seqs", str(streams),
               "--kv-cache-memory-bytes", "256M", "--disable-log-requests", "--log-level", "warning"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    if not line.startswith("weft serves at"):
        sys.exit("the server does not start")
    return server, int(line.rsplit(":", 1)[1])


class Every(threading.Thread):
    """Sends a request again and again until stopped, and keeps how long each took."""

    def __init__(self, port, method, path, body, pause_s):
        super().__init__()
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.request, self.pause_s, self.stop, self.ms = (method, path, body), pause_s, False, []

    def run(self):
        while not self.stop:
            began = time.monotonic()
            self.connection.request(*self.request)
            answer = self.connection.getresponse()
            answer.read()
            self.ms.append(1000 * (time.monotonic() - began))
            assert answer.status == 200, answer.status
            time.sleep(self.pause_s)

    def end(self):
        self.stop = True
        self.join()
        return sorted(self.ms)


def run_client(port, streams, tokens, result):
    command = [WEFT, "bench", "serve", "--port", str(port), "--skip-tokenizer-init", "--num-prompts", str(streams),
               "--random-input-len", "16", "--random-output-len", str(tokens), "--temperature", "0", "--save-result",
               "--result-filename", result]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(pathlib.Path(result).read_text())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenize", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_server(model_folder(folder), arguments.streams)
        try:
            for _ in range(arguments.rounds):
                health = Every(port, "GET", "/health", None, 0.005)
                others = [health]
                if arguments.tokenize:
                    body = json.dumps({"prompt": "the quick brown fox " * (TEXT_BYTES // 20)})
                    others.append(Every(port, "POST", "/tokenize", body, 0))
                for other in others:
                    other.start()
                result = run_client(port, arguments.streams, arguments.tokens, folder + "/result.json")
                ms = health.end()
                texts = others[1].end() if arguments.tokenize else []
                print(f"{arguments.streams} streams: {result['completed']} answered, {result['output_throughput']:.0f} tokens/s, "
                      f"best second {result['max_output_tokens_per_s']:.0f}; TTFT median {result['median_ttft_ms']:.0f} ms, "
                      f"ITL median {result['median_itl_ms']:.1f} ms, p99 {result['p99_itl_ms']:.1f} ms; /health median "
                      f"{ms[len(ms) // 2]:.1f} ms, p99 {ms[int(0.99 * (len(ms) - 1))]:.1f} ms, worst {ms[-1]:.1f} ms of {len(ms)}"
                      + (f"; {len(texts)} texts of 30 MB tokenised" if texts else ""), flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
