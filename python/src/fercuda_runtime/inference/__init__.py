"""Language models: load one, generate text, stream it.

    from fercuda_runtime.inference import generate, load, stream_generate

    with load("model.gguf") as model:
        print(generate(model, "The capital of France is", max_tokens=8))
        for part in stream_generate(model, [{"role": "user", "content": "Hello!"}]):
            print(part, end="", flush=True)

A model is a GGUF file, the first of several, a folder with safetensors, or a name at Hugging Face
as "owner/name", "owner/name:Q4_K_M" or "owner/name:file.gguf". Requests of any threads and tasks
run together, in steps. `adapters` has the files of models, `tokenizers` texts and tokens. Times are
in seconds, sizes in bytes, lengths in tokens. `accelerate` is for models of Hugging Face
Transformers: their `generate` then decodes by CUDA graphs.
"""

from .accelerated import Accelerated, accelerate, restore
from .adapters import GgufAdapter, ModelAdapter, SafetensorsAdapter, StoredTensor, open_adapter
from .generation import (
    EmbeddingModel,
    Generation,
    GenerationOptions,
    LanguageModel,
    LoadFigures,
    TextStream,
    TokenChoice,
    generate,
    generate_async,
    load,
    random_model,
    stream_generate,
)
from .tokenizers import Tokenizer, load_tokenizer

__all__ = [
    "Accelerated",
    "EmbeddingModel",
    "Generation",
    "GenerationOptions",
    "GgufAdapter",
    "LanguageModel",
    "LoadFigures",
    "ModelAdapter",
    "SafetensorsAdapter",
    "StoredTensor",
    "TextStream",
    "TokenChoice",
    "Tokenizer",
    "accelerate",
    "generate",
    "generate_async",
    "load",
    "load_tokenizer",
    "open_adapter",
    "random_model",
    "restore",
    "stream_generate",
]
