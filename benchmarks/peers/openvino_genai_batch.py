"""OpenVINO GenAI's paged continuous batching: python openvino_genai_batch.py MODEL"""

import sys

import openvino_genai
from worker import protocol, serve_jobs

messages = protocol()
scheduler = openvino_genai.SchedulerConfig()
scheduler.cache_size = 2  # GiB
scheduler.max_num_seqs = 64
scheduler.enable_prefix_caching = True
pipeline = openvino_genai.LLMPipeline(sys.argv[1], "CPU", scheduler_config=scheduler)


def generate(prompts, output_len):
    config = openvino_genai.GenerationConfig(max_new_tokens=output_len, ignore_eos=True)
    config.apply_chat_template = False  # the prompts are what all engines get, and no more
    pipeline.generate(prompts, config)


serve_jobs(messages, generate)
