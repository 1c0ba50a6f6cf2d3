"""octavo's server, as llama.cpp's is measured: python octavo_server.py MODEL"""

import sys

from worker import protocol, serve_url

from octavo.bench.own_server import own_server

messages = protocol()
with own_server(sys.argv[1], ["--max-num-seqs", "32", "--kv-cache-memory", "2GiB"]) as server:
    serve_url(messages, server.url)
