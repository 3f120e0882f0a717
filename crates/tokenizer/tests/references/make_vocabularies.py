"""Trains small tokenizers and writes what they make of texts, for tests to compare with.

    pip install tokenizers==0.23.3
    make_vocabularies.py      writes bytes, pieces, words and unigram (.json, .vectors.json) beside it

Texts to train on are this file and the sentences below; nothing is taken from any model.
"""

import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
SENTENCES = [
    "The capital of France is Paris, isn't it? They'll say we've known that since 1789.",
    "Stra\u00dfe, \u00c9cole, na\u00efve, \u043f\u0440\u0438\u0432\u0435\u0442, \u4e2d\u6587\u5b57, \ud55c\uad6d\uc5b4, \u0939\u093f\u0928\u094d\u0926\u0940, \U0001f600\U0001f600",
    "def f(x):\n    return x ** 2  # 3.14159\n\n\nclass A:\n\tpass\r\n",
    "hello world, hello worlds, the world is the whole world",
]
PIECES = ["the", "world", " ", "  ", "\n", "\n\n", "\t", "don't", "I'LL", "12345", "3.14", "\u00c9cole", "na\u00efve", "\u4e2d\u6587",
          "\ud55c", "\U0001f600", "\u200d", "\u00a0", "\u3000", "\u0301", "<s>", "</s>", "<|im_end|>", "<|im_start|>user", "<unk>", "##s", "\ufb01", "()", "...", "x", "Zz", "\u0939\u093f", "<think>"]


def corpus():
    return (SENTENCES + Path(__file__).read_text().splitlines()) * 3


def texts():
    numbers = random.Random(20261130)
    made = ["", " ", "Hello", "The capital of France is", "  a  b  "] + SENTENCES
    for _ in range(70):
        made.append("".join(numbers.choice(PIECES) + numbers.choice(["", "", " "]) for _ in range(numbers.randint(1, 12))))
    return made


def write(name, tokenizer):
    tokenizer.save(str(HERE / f"{name}.json"), pretty=False)
    vectors = []
    for text in texts():
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(text, add_special_tokens=True).ids
        bare = tokenizer.encode(text, add_special_tokens=False).ids
        vectors.append({
            "text": text,
            "plain": plain,
            "parsed": bare,
            "framed": parsed,
            "decoded": tokenizer.decode(plain, skip_special_tokens=True),
        })
    numbers = random.Random(7)
    for _ in range(30):
        ids = [numbers.randrange(tokenizer.get_vocab_size()) for _ in range(numbers.randint(1, 8))]
        vectors.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
    lines = ",\n".join(json.dumps(vector) for vector in vectors)
    (HERE / f"{name}.vectors.json").write_text(f"[\n{lines}\n]\n")


def bos(tokenizer):
    return processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])


def main():
    # Bytes: what most models have today.
    tokenizer = Tokenizer(models.BPE())
    words = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(words), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False))
    tokenizer.post_processor = bos(tokenizer)
    write("bytes", tokenizer)

    # Pieces: byte-pair merges over text with escaped spaces, and bytes for what has no piece.
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokens = SPECIALS + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=620, special_tokens=tokens, show_progress=False))
    # Only the first five are special; bytes are tokens of the model alone.
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["content"] in SPECIALS]
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = bos(tokenizer)
    write("pieces", tokenizer)

    # Words: BERT's.
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=500, special_tokens=specials, show_progress=False))
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends)
    write("words", tokenizer)

    # Probable pieces: Unigram, of which the best sequence is taken.
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(Regex(" +"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    tokenizer.train_from_iterator(corpus(), trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False))
    ends = [("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=ends)
    write("unigram", tokenizer)


if __name__ == "__main__":
    main()
