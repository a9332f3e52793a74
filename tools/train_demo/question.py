#!/usr/bin/env python3
"""question.py TASK LENGTH [NUMBER]: one of the held-out cases as the body of a chat request, and the right answer on standard error."""
import json
import sys
from pathlib import Path


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    task, length, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) == 4 else 0
    file = json.loads((Path(__file__).parent / "cases.json").read_text(encoding="utf-8"))
    case = [c for c in file["cases"] if c["task"] == task and c["length"] == length][number]
    user = "".join(p if isinstance(p, str) else file["filler"][p[0] : p[1]] for p in case["user"])
    print(json.dumps({"messages": [{"role": "user", "content": user}], "max_tokens": 48, "temperature": 0}))
    print(case["answer"], file=sys.stderr)


if __name__ == "__main__":
    main()
