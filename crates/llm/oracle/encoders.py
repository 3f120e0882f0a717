"""Compares vectors of tiny random encoders with transformers, by hand: as compare.py.

    python encoders.py target/debug/examples/embeddings [--model FOLDER]

With --model those of a real checkpoint are compared instead, of random tokens.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from transformers import AutoModel, BertConfig, BertModel

MOST = 1e-5
POOLINGS = ("pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_lasttoken")


def vectors(model, texts, pooling):
    """Those of transformers."""
    rows = []
    for text in texts:
        with torch.no_grad():
            tokens = model(torch.tensor([text])).last_hidden_state[0].double()
        own = {POOLINGS[0]: tokens.mean(0), POOLINGS[1]: tokens[0], POOLINGS[2]: tokens[-1]}[pooling]
        rows.append((own / own.norm()).numpy())
    return np.array(rows)


def computed(binary, folder, texts):
    given = [",".join(map(str, text)) for text in texts]
    done = subprocess.run([binary, folder, *given], check=True, capture_output=True, text=True)
    return np.array([[float(it) for it in line.split()] for line in done.stdout.splitlines()])


def tiny(generator, activation):
    hidden = 8 * int(generator.integers(2, 6))
    config = BertConfig(
        vocab_size=100,
        hidden_size=hidden,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=int(generator.integers(20, 90)),
        max_position_embeddings=64,
        hidden_act=activation,
        initializer_range=0.3,
    )
    torch.manual_seed(int(generator.integers(2**31)))
    return BertModel(config).eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--model")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else int(np.random.default_rng().integers(2**31))
    generator = np.random.default_rng(seed)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, seed {seed}")
    is_near = True

    def compare(name, model, folder, pooling):
        most, words = model.config.max_position_embeddings, model.config.vocab_size
        lengths = [1, 2, 17, most - 1, most]
        texts = [generator.integers(0, words, length).tolist() for length in lengths]
        off = np.abs(computed(args.binary, folder, texts) - vectors(model, texts, pooling)).max()
        print(f"{name}: {off:.2e} apart")
        return off <= MOST

    if args.model:
        model = AutoModel.from_pretrained(args.model).eval()
        is_near &= compare(args.model, model, args.model, POOLINGS[0])
    else:
        for activation in ("gelu", "gelu_new", "relu"):
            for pooling in POOLINGS:
                model = tiny(generator, activation)
                with tempfile.TemporaryDirectory() as folder:
                    model.save_pretrained(folder)
                    own = pathlib.Path(folder) / "1_Pooling"
                    own.mkdir()
                    (own / "config.json").write_text(json.dumps({pooling: True}))
                    is_near &= compare(f"{activation}, {pooling}", model, folder, pooling)
    sys.exit(0 if is_near else 1)


if __name__ == "__main__":
    main()
