"""How an engine's process talks to run.py: a JSON object a line, on the stdout that it was started with.

The process first says {"seconds": start-up time} and, if it is a server, its "url", which run.py then loads
itself. Otherwise it reads jobs, {"prompts": [text], "output_len": n, "max_concurrency": c}, and answers each
with {"seconds": s}: greedy, exactly n tokens a prompt, the end-of-sequence token ignored.

Standard library only, and Python 3.10: it runs inside the environments of the peers.
"""

import json
import os
import sys
import time

STARTED = time.perf_counter()


def protocol():
    """A file for messages. What libraries print from now on goes to stderr instead."""
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return messages


def say_ready(messages, **fields):
    print(json.dumps({"seconds": time.perf_counter() - STARTED, **fields}), file=messages, flush=True)


def serve_jobs(messages, generate):
    """generate(prompts, output_len): answer all of them at once. Runs until stdin ends."""
    say_ready(messages)
    for line in sys.stdin:
        job = json.loads(line)
        prompts, at_once = job["prompts"], job["max_concurrency"]
        started = time.perf_counter()
        for begin in range(0, len(prompts), at_once):
            generate(prompts[begin : begin + at_once], job["output_len"])
        print(json.dumps({"seconds": time.perf_counter() - started}), file=messages, flush=True)


def serve_url(messages, url):
    """For a server that runs in other threads of this process."""
    say_ready(messages, url=url)
    for _ in sys.stdin:
        pass
