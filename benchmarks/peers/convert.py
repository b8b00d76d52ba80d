"""the demo's GGUF as a bf16 model directory for transformers and vllm: python convert.py GGUF DIRECTORY

Runs inside the environment of transformers. Every weight is dequantised, then rounded to bf16.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(gguf: Path, directory: Path) -> None:
    """Convert, and save model and tokenizer."""
    where = {"gguf_file": gguf.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **where
    )
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
