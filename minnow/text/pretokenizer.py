"""how text is cut into words before byte pairs are merged, by the name a GGUF gives it"""

from tokenizers import Regex, pre_tokenizers

from minnow.core.errors import CheckpointError

# Each pattern in turn cuts what the ones before it left.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = (_WORDS.replace("DIGITS", r"\p{N}{1,3}"),)
_QWEN2 = (_WORDS.replace("DIGITS", r"\p{N}"),)

PATTERNS_BY_NAME: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
}
# vocabularies whose whole words are taken as they are, whatever the merges would make of them
IGNORES_MERGES = frozenset({"llama-bpe", "llama3", "llama-v3"})


def build(name: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer that `tokenizer.ggml.pre` names; its words are written in the byte-level alphabet.

    Raises:
        CheckpointError: the name is not known here; lists those that are.

    Source: the names and the patterns of "default" are llama.cpp's; the other patterns are those of the
        `tokenizer.json` files of GPT-2, SmolLM, Llama 3 and Qwen2.
    """
    if name not in PATTERNS_BY_NAME:
        known = ", ".join(sorted(PATTERNS_BY_NAME))
        raise CheckpointError(
            f"the GGUF's tokenizer.ggml.pre is {name!r}; known are {known}: "
            "convert the model's safetensors checkpoint instead"
        )
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in PATTERNS_BY_NAME[name]]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
