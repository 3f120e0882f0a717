#!/usr/bin/env bash
# Kitoken spells a character that a unigram model lacks in its bytes from the last to the first; in
# a BPE model of the same texts they come in order. A tab is unknown to it where it is a blank.
#
# Versions: kitoken 0.11.1, sentencepiece 0.2.3, on small models that the script trains.
# Expected: from_sentencepiece() gives SentencePiece's ids, and what it encodes decodes to the text,
# as byte_fallback is for.
# Seen: U+00C9 in a unigram model with byte_fallback is <0xC3> <0x89> in SentencePiece and <0x89>
# <0xC3> in Kitoken, which decodes them to those two bytes, so to no UTF-8; four bytes are reversed
# as a whole, each character by itself. With model_type="bpe" the order is right. Texts of known
# characters are equal in both. A tab becomes a blank by the normaliser of the model in
# SentencePiece; in Kitoken it stays and is unknown, or <0x09>. No error.
# Likely why: the best path of a unigram model is read from its end and turned round, the bytes of
# one character within it not.
# For us: a tokenizer's test needs characters outside of its vocabulary, and a text back from its
# ids. Ours for such models in GGUF (crates/tokenizer, gguf/unigram.rs) has one unknown token in
# their place, as llama.cpp has, so it gives no text back either, but none that is wrong.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'kitoken==0.11.1' 'sentencepiece==0.2.3'
"$work/venv/bin/python" - 2>"$work/log" <<'END' || { cat "$work/log"; exit 1; }
import io, random, sys
import sentencepiece
from kitoken import Kitoken

source = random.Random(3)
words = "the quick brown fox jumps over lazy dog hello world tokens model language paper rain train".split()
lines = [" ".join(source.choice(words) for _ in range(12)) for _ in range(3000)]


def trained(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=340,
                                             hard_vocab_limit=False, minloglevel=2, byte_fallback=True, **options)
    return model.getvalue()


changed = []
texts = ["hello world", "\u00c9", "\u00c9\u00dc", "a \u65e5 b", "\U0001f600", "x\ty"]
for kind in ("unigram", "bpe"):
    model = trained(model_type=kind)
    right, other = sentencepiece.SentencePieceProcessor(model_proto=model), Kitoken.from_sentencepiece(model)
    for text in texts:
        ids, seen = right.encode(text), other.encode(text, False)
        back = other.decode(seen, True)
        names = [[right.id_to_piece(it) for it in some if right.is_byte(it)] for some in (ids, seen)]
        print(f"{kind:8} {ascii(text):18} bytes of SentencePiece {' '.join(names[0]) or 'none'}, of Kitoken {' '.join(names[1]) or 'none'}")
        is_reversed = kind == "unigram" and not text.isascii()
        order = [bytes(int(it[1:-1], 16) for it in some) for some in names]
        if text == "x\ty":
            wanted = names == [[], ["<0x09>"]]
        elif is_reversed:
            wanted = order[1] == b"".join(it.encode()[::-1] for it in text if not it.isascii()) and back != text.encode()
        else:
            wanted = ids == seen and back == text.encode()
        if right.decode(ids) != text.replace("\t", " ") or not wanted:
            changed.append((kind, text))
if changed:
    sys.exit(f"changed: {changed}")
END
