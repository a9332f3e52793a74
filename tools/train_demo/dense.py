#!/usr/bin/env python3
"""dense.py DEMO OUT: the dense DeepSeek-V3 variant of the bundled model, made by dropping its indexers.

OUT gets a config.json and a model.safetensors without them; the other files are copied. Needs nothing but Python.
"""
import json
import shutil
import struct
import sys
from pathlib import Path


def dense_config(config):
    out = {k: v for k, v in config.items() if not k.startswith("index_")}
    return {**out, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}


def drop_indexers(data):
    """A safetensors file's bytes without the tensors of indexers."""
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :]
    kept, blobs, at = {"__metadata__": header.pop("__metadata__", {})}, [], 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if ".indexer." in name:
            continue
        begin, end = tensor["data_offsets"]
        kept[name] = {**tensor, "data_offsets": [at, at + end - begin]}
        blobs.append(body[begin:end])
        at += end - begin
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    demo, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    config = dense_config(json.loads((demo / "config.json").read_text(encoding="utf-8")))
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "model.safetensors").write_bytes(drop_indexers((demo / "model.safetensors").read_bytes()))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(demo / name, out / name)


if __name__ == "__main__":
    main()
