"""octavo, offline: python octavo_batch.py MODEL"""

import sys

from worker import protocol, serve_jobs

from octavo import LLM, SamplingParams

messages = protocol()
llm = LLM(sys.argv[1], max_num_seqs=32, kv_cache_memory=2 << 30)


def generate(prompts, output_len):
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True))


serve_jobs(messages, generate)
