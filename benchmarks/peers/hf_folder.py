"""A Hugging Face folder of a GGUF file, in float32, for engines that read nothing else.

python hf_folder.py MODEL.gguf FOLDER      in an environment with transformers, torch and gguf
"""

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

if __name__ == "__main__":
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype="float32")
    model.hf_quantizer = None  # the weights are floats by now, though the file's were not
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
