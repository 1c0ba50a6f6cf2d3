"""vLLM's CPU backend: python vllm_cpu_batch.py FOLDER, a Hugging Face folder

OMP_NUM_THREADS and VLLM_ENABLE_V1_MULTIPROCESSING=0 are set here.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if __name__ == "__main__":
    from worker import protocol, serve_jobs

    messages = protocol()
    from vllm import LLM, SamplingParams

    llm = LLM(model=sys.argv[1], dtype="float32", max_model_len=2048, enable_prefix_caching=True)

    def generate(prompts, output_len):
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        llm.generate(prompts, params, use_tqdm=False)

    serve_jobs(messages, generate)
