"""Requests and answers of a peer: one JSON object a line. What the peer's libraries print goes to stderr."""

import json
import os
import sys
import traceback


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def serve(hello, answer):
    """Says `hello`, then answers each line until `quit` or the end.

    A failure is an answer with `error`, and its trace is on stderr.
    """
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lines.write(json.dumps({"kind": "hello", **hello}) + "\n")
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            if asked["do"] == "quit":
                return
            said = answer(asked)
        except Exception as error:
            traceback.print_exc()
            words = str(error).strip().splitlines() or ["nothing more is known"]
            said = {"error": f"{type(error).__name__}: {words[0]}"}
        lines.write(json.dumps({"kind": "answer", **said}) + "\n")
