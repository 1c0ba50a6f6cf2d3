"""llama.cpp's own server, from the xllamacpp wheel: python llama_cpp_server.py MODEL

Slots for 32 streams in one unified KV cache; prompts are cached, as is the default.
"""

import os
import sys

import xllamacpp
from worker import protocol, serve_url

messages = protocol()
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port = 0
params.n_parallel = 32
params.n_ctx = 65536
params.kv_unified = True
params.cont_batching = True
params.n_gpu_layers = 0
params.verbosity = -1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
server = xllamacpp.Server(params)
serve_url(messages, server.listening_address)
